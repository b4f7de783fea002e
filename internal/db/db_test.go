package db_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/berthrun/berth/internal/db"
	"github.com/berthrun/berth/internal/db/dbtest"
)

func TestOpenAtOnce(t *testing.T) {
	dbtest.EachURL(t, func(t *testing.T, url string) {
		var wg sync.WaitGroup
		for range 4 {
			wg.Go(func() {
				d, err := db.Open(t.Context(), db.Config{URL: url})
				if err != nil {
					t.Error(err)
					return
				}
				defer d.Close()
				var n int
				if err := d.QueryRowContext(t.Context(), `SELECT COUNT(*) FROM sequences`).Scan(&n); err != nil || n < 2 {
					t.Errorf("sequences: got %d rows, %v", n, err)
				}
			})
		}
		wg.Wait()
	})
}

func TestOpenRefuses(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, []byte(strings.Repeat("this is no database. ", 100)), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, url := range []string{"", file, file + "/below.db", "postgres://127.0.0.1:1/none?connect_timeout=1"} {
		if d, err := db.Open(t.Context(), db.Config{URL: url}); err == nil {
			t.Errorf("%q: opened", url)
			d.Close()
		}
	}
}

func TestSQLiteFileIsPrivate(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a folder?&%20", "berth.db")
	d := dbtest.Open(t, path)
	if _, err := d.ExecContext(t.Context(), `INSERT INTO limits (scope, key, value) VALUES ('o', 'k', 1)`); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{path, path + "-wal", path + "-shm"} {
		fi, err := os.Stat(name)
		if err != nil {
			t.Error(err)
		} else if fi.Mode().Perm() != 0o600 {
			t.Errorf("%s: mode %v, want 0600", name, fi.Mode().Perm())
		}
	}
}

func TestTx(t *testing.T) {
	dbtest.Each(t, func(t *testing.T, d *db.DB) {
		ctx := t.Context()
		boom := errors.New("boom")
		insert := func(tx *sql.Tx, key string) error {
			_, err := tx.ExecContext(ctx, `INSERT INTO limits (scope, key, value) VALUES ($2, $1, $3)`, key, "o", 7)
			return err
		}
		if err := d.Tx(ctx, func(tx *sql.Tx) error { return insert(tx, "kept") }); err != nil {
			t.Fatal(err)
		}
		if err := d.TxRelaxed(ctx, func(tx *sql.Tx) error { return insert(tx, "relaxed") }); err != nil {
			t.Fatal(err)
		}
		if err := d.Tx(ctx, func(tx *sql.Tx) error { return errors.Join(insert(tx, "undone"), boom) }); !errors.Is(err, boom) {
			t.Errorf("got %v, want the function's error", err)
		}
		err := d.Tx(ctx, func(tx *sql.Tx) error { return insert(tx, "kept") })
		if !db.IsUnique(err) {
			t.Errorf("got %v, want a unique violation", err)
		}
		if db.IsUnique(boom) || db.IsUnique(nil) {
			t.Error("any error is called a unique violation")
		}
		func() {
			defer func() { _ = recover() }()
			_ = d.Tx(ctx, func(tx *sql.Tx) error {
				if err := insert(tx, "panicked"); err != nil {
					t.Error(err)
				}
				panic("in a transaction")
			})
		}()
		var got []string
		rows, err := d.QueryContext(ctx, `SELECT key FROM limits WHERE scope = $1 ORDER BY key`, "o")
		if err != nil {
			t.Fatal(err)
		}
		defer rows.Close()
		for rows.Next() {
			var k string
			if err := rows.Scan(&k); err != nil {
				t.Fatal(err)
			}
			got = append(got, k)
		}
		if diff := cmp.Diff([]string{"kept", "relaxed"}, got); diff != "" {
			t.Errorf("rows (-want +got):\n%s", diff)
		}
		if d.Dialect() == db.SQLite {
			var level int
			err := d.Tx(ctx, func(tx *sql.Tx) error { return tx.QueryRowContext(ctx, `PRAGMA synchronous`).Scan(&level) })
			if err != nil || level != 2 {
				t.Errorf("synchronous after a relaxed transaction: got %d, %v, want 2 (FULL)", level, err)
			}
		}
	})
}

// Two transactions that take two rows in opposite order end in a deadlock on PostgreSQL; both must come through.
func TestTxRunsAgain(t *testing.T) {
	dbtest.Each(t, func(t *testing.T, d *db.DB) {
		ctx := t.Context()
		for _, k := range []string{"a", "b"} {
			if _, err := d.ExecContext(ctx, `INSERT INTO usage (scope, key, used) VALUES ('o', $1, 0)`, k); err != nil {
				t.Fatal(err)
			}
		}
		var met sync.WaitGroup
		met.Add(2)
		var runs atomic.Int32
		take := func(first, second string) error {
			tried := false
			return d.Tx(ctx, func(tx *sql.Tx) error {
				runs.Add(1)
				if _, err := tx.ExecContext(ctx, `UPDATE usage SET used = used + 1 WHERE key = $1`, first); err != nil {
					return err
				}
				if !tried && d.Dialect() == db.Postgres {
					tried = true
					met.Done()
					met.Wait()
				}
				_, err := tx.ExecContext(ctx, `UPDATE usage SET used = used + 1 WHERE key = $1`, second)
				return err
			})
		}
		var wg sync.WaitGroup
		for _, keys := range [][2]string{{"a", "b"}, {"b", "a"}} {
			wg.Go(func() {
				if err := take(keys[0], keys[1]); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		var sum int
		if err := d.QueryRowContext(ctx, `SELECT CAST(SUM(used) AS BIGINT) FROM usage`).Scan(&sum); err != nil || sum != 4 {
			t.Errorf("got %d, %v, want 4", sum, err)
		}
		if d.Dialect() == db.Postgres && runs.Load() != 3 {
			t.Errorf("ran %d times, want 3: one lost the deadlock", runs.Load())
		}
	})
}

func TestNow(t *testing.T) {
	dbtest.Each(t, func(t *testing.T, d *db.DB) {
		now, err := d.Now(t.Context(), d)
		if err != nil {
			t.Fatal(err)
		}
		if off := time.Since(now).Abs(); off > time.Minute || now.Location() != time.UTC {
			t.Errorf("got %v, %v away", now, off)
		}
		if got := db.Time(db.Micros(now)); !got.Equal(now) {
			t.Errorf("got %v back, want %v", got, now)
		}
		if !db.Time(db.Micros(time.Time{})).IsZero() {
			t.Error("the zero time does not come back")
		}
	})
}

func TestWait(t *testing.T) {
	dbtest.EachURL(t, func(t *testing.T, url string) {
		a := dbtest.Open(t, url)
		b := a
		if a.Dialect() == db.Postgres {
			b = dbtest.Open(t, url) // another server
		}
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		defer cancel()
		var checks atomic.Int32
		first, ended := make(chan struct{}), make(chan error, 1)
		go func() {
			ended <- a.Wait(ctx, "limits", func(ctx context.Context) (bool, error) {
				if checks.Add(1) == 1 {
					close(first)
				}
				var n int
				err := a.QueryRowContext(ctx, `SELECT COUNT(*) FROM limits`).Scan(&n)
				return n > 0, err
			})
		}()
		<-first
		err := b.Tx(ctx, func(tx *sql.Tx) error {
			b.NotifyAfter(tx, "limits")
			b.NotifyAfter(tx, "limits")
			_, err := tx.ExecContext(ctx, `INSERT INTO limits (scope, key, value) VALUES ('o', 'k', 1)`)
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

func TestSignals(t *testing.T) {
	dbtest.EachURL(t, func(t *testing.T, url string) {
		a := dbtest.Open(t, url)
		b := a
		if a.Dialect() == db.Postgres {
			b = dbtest.Open(t, url)
		}
		signals, stop := a.Subscribe("topic")
		other, stopOther := a.Subscribe("other")
		defer stopOther()
		// A transaction that is undone signals nothing; what comes first on the channel must be of the committed one.
		_ = b.Tx(t.Context(), func(tx *sql.Tx) error {
			b.NotifyAfter(tx, "other")
			return errors.New("undone")
		})
		b.Notify(t.Context(), "topic")
		select {
		case <-signals:
		case <-time.After(30 * time.Second):
			t.Fatal("no signal came")
		}
		select {
		case <-other:
			t.Error("an undone transaction signalled")
		default:
		}
		stop()
		b.Notify(t.Context(), "topic")
	})
}

func TestNumber(t *testing.T) {
	dbtest.EachURL(t, func(t *testing.T, url string) {
		servers := []*db.DB{dbtest.Open(t, url), dbtest.Open(t, url)}
		ctx, cancel := context.WithCancel(t.Context())
		s := db.Sequence{Table: "events"}
		var running, writing sync.WaitGroup
		for _, d := range servers {
			running.Go(func() { _ = d.RunSequence(ctx, s) })
		}
		const writers, each = 4, 30
		for w := range writers {
			d := servers[w%2]
			writing.Go(func() {
				for i := range each {
					err := d.Tx(ctx, func(tx *sql.Tx) error {
						d.NotifyAfter(tx, s.Topic())
						_, err := tx.ExecContext(ctx, `INSERT INTO events (id, org_id, workspace_id, at, type, resource_id, data) VALUES ($1, 'o', '', $2, 't', '', '{}')`,
							fmt.Sprintf("%d-%d", w, i), db.Micros(time.Now()))
						return err
					})
					if err != nil {
						t.Error(err)
					}
				}
			})
		}
		// A reader that goes on after the greatest number it saw must meet every row.
		seen := map[string]bool{}
		var after int64
		err := servers[0].Wait(ctx, s.NumberedTopic(), func(ctx context.Context) (bool, error) {
			rows, err := servers[0].QueryContext(ctx, `SELECT id, seq FROM events WHERE seq > $1 ORDER BY seq`, after)
			if err != nil {
				return false, err
			}
			defer rows.Close()
			for rows.Next() {
				var id string
				var seq int64
				if err := rows.Scan(&id, &seq); err != nil {
					return false, err
				}
				if seq != after+1 {
					t.Errorf("%d follows %d", seq, after)
				}
				seen[id], after = true, seq
			}
			return len(seen) == writers*each, rows.Err()
		})
		if err != nil {
			t.Error(err)
		}
		writing.Wait()
		cancel()
		running.Wait()
	})
}
