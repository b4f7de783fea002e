package db_test

import (
	"testing"

	"github.com/berthrun/berth/internal/db"
	"github.com/berthrun/berth/internal/db/dbtest"
	"github.com/berthrun/berth/internal/errs"
)

// Who looks into a database makes none, writes nothing, and sees one moment of it.
func TestOpenToRead(t *testing.T) {
	dbtest.EachURL(t, func(t *testing.T, url string) {
		if _, err := db.OpenToRead(t.Context(), url); errs.CodeOf(err) != errs.NotFound {
			t.Errorf("there is none: %v", err)
		}
		server := dbtest.Open(t, url)
		d, err := db.OpenToRead(t.Context(), url)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = d.Close() }()
		count := func(q db.Querier) (n int) {
			t.Helper()
			if err := q.QueryRowContext(t.Context(), `SELECT COUNT(*) FROM sequences`).Scan(&n); err != nil {
				t.Fatal(err)
			}
			return n
		}
		err = d.Snapshot(t.Context(), func(q db.Querier) error {
			before := count(q)
			if _, err := server.ExecContext(t.Context(), `INSERT INTO sequences (name, value) VALUES ('another', 0)`); err != nil {
				t.Fatal(err)
			}
			if n := count(q); n != before || count(server) != before+1 {
				t.Errorf("it sees %d rows after %d", n, before)
			}
			rows, err := q.QueryContext(t.Context(), `UPDATE sequences SET value = 5 RETURNING value`)
			if err == nil {
				rows.Next()
				err = rows.Err()
				_ = rows.Close()
			}
			if err == nil {
				t.Error("it writes")
			}
			return nil
		})
		if err != nil {
			t.Error(err)
		}
		if _, err := server.ExecContext(t.Context(), `UPDATE goose_db_version SET version_id = version_id + 100 WHERE version_id = (SELECT MAX(version_id) FROM goose_db_version)`); err != nil {
			t.Fatal(err)
		}
		if _, err := db.OpenToRead(t.Context(), url); errs.CodeOf(err) != errs.InvalidState {
			t.Errorf("of another version: %v", err)
		}
	})
}
