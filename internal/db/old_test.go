package db_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/berthrun/berth/internal/db"
	"github.com/berthrun/berth/internal/db/dbtest"
)

// Old rows go once they have their numbers, more of them than one transaction drops, and no number is given twice.
func TestDropOld(t *testing.T) {
	dbtest.Each(t, func(t *testing.T, d *db.DB) {
		ctx, now, s := t.Context(), time.Now(), db.Sequence{Table: "audit"}
		put := func(n int, id string, at time.Time) {
			t.Helper()
			err := d.TxRelaxed(ctx, func(tx *sql.Tx) error {
				for i := range n {
					_, err := tx.ExecContext(ctx, `INSERT INTO audit (id, org_id, workspace_id, at, principal_id, person_id, agent_id, app_id, key_id, face, client, source_ip,
						request_id, operation, action, resource_kind, resource_id, result, duration_us) VALUES ($1, '', '', $2, '', '', '', '', '', '', '', '', '', '', '', '', '', '', 0)`,
						fmt.Sprintf("%s-%d", id, i), db.Micros(at))
					if err != nil {
						return err
					}
				}
				return nil
			})
			if err != nil {
				t.Fatal(err)
			}
		}
		number := func() {
			t.Helper()
			for n := int64(1); n > 0; {
				var err error
				if n, err = d.Number(ctx, s); err != nil {
					t.Fatal(err)
				}
			}
		}
		const old = 2500
		put(old, "old", now.Add(-2*time.Hour))
		put(3, "new", now)
		number()
		put(1, "unnumbered", now.Add(-2*time.Hour))
		if n, err := d.DropOld(ctx, s, now.Add(-time.Hour)); n != old || err != nil {
			t.Errorf("dropped %d, %v; want %d", n, err, old)
		}
		number()
		var rows, least, most int64
		if err := d.QueryRowContext(ctx, `SELECT COUNT(*), MIN(seq), MAX(seq) FROM audit`).Scan(&rows, &least, &most); err != nil {
			t.Fatal(err)
		}
		if rows != 4 || least != old+1 || most != old+4 {
			t.Errorf("%d rows are left, numbered %d to %d", rows, least, most)
		}
		if n, err := d.DropOld(ctx, s, now.Add(-time.Hour)); n != 1 || err != nil {
			t.Errorf("numbered, the last old one: dropped %d, %v", n, err)
		}
	})
}

// A transaction whose caller goes away before its commit says so, and not only that it is over.
func TestTxOfACallerThatGoesAway(t *testing.T) {
	dbtest.Each(t, func(t *testing.T, d *db.DB) {
		for range 50 {
			ctx, cancel := context.WithCancel(t.Context())
			err := d.Tx(ctx, func(*sql.Tx) error {
				cancel()
				return nil
			})
			if !errors.Is(err, context.Canceled) {
				t.Fatalf("the error is %v", err)
			}
		}
	})
}

// The write-ahead log that a slow reader has let grow is cut again.
func TestLogIsCut(t *testing.T) {
	dir, ctx := t.TempDir(), t.Context()
	d, err := db.Open(ctx, db.Config{URL: filepath.Join(dir, "x.db")})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close() //nolint:errcheck // it is read no more
	put := func(id string, size int) {
		t.Helper()
		err := d.TxRelaxed(ctx, func(tx *sql.Tx) error {
			_, err := tx.ExecContext(ctx, `INSERT INTO events (id, org_id, workspace_id, at, type, resource_id, data) VALUES ($1, '', '', 1, '', '', $2)`, id, make([]byte, size))
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	size := func() int64 {
		t.Helper()
		info, err := os.Stat(filepath.Join(dir, "x.db-wal"))
		if err != nil {
			t.Fatal(err)
		}
		return info.Size()
	}
	put("first", 1)
	put("second", 1)
	rows, err := d.QueryContext(ctx, `SELECT id FROM events`)
	if err != nil {
		t.Fatal(err)
	}
	if !rows.Next() {
		t.Fatal("no row")
	}
	for i := range 10 {
		put(fmt.Sprint(i), 4<<20)
	}
	if n := size(); n < 32<<20 {
		t.Fatalf("the log has %d bytes while it is read", n)
	}
	if err := errors.Join(rows.Err(), rows.Close()); err != nil {
		t.Fatal(err)
	}
	for i := range 3 {
		put(fmt.Sprint("after", i), 1)
	}
	if n := size(); n > 17<<20 {
		t.Errorf("the log still has %d bytes", n)
	}
}
