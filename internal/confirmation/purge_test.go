package confirmation

import (
	"database/sql"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/berthrun/berth/internal/caller"
	"github.com/berthrun/berth/internal/db"
	"github.com/berthrun/berth/internal/db/dbtest"
)

func TestMain(m *testing.M) { dbtest.Main(m) }

// What nobody decided on goes after a day, so that a caller who is not answered fills no disk; decisions are kept for a month.
func TestPurge(t *testing.T) {
	dbtest.Each(t, func(t *testing.T, d *db.DB) {
		exec := func(query string, args ...any) {
			t.Helper()
			if _, err := d.ExecContext(t.Context(), query, args...); err != nil {
				t.Fatal(err)
			}
		}
		exec(`INSERT INTO organizations (id, name, created_at) VALUES ('org_a', 'a', 0)`)
		s := New(Config{DB: d})
		now, err := d.Now(t.Context(), d)
		if err != nil {
			t.Fatal(err)
		}
		for _, state := range []State{Pending, Approved, Denied, Consumed} {
			for _, days := range []int{-1, 0, 2, 31} {
				err := d.Tx(t.Context(), func(tx *sql.Tx) error {
					c, err := s.Ask(t.Context(), tx, Request{Caller: &caller.Caller{OrgID: "org_a", PrincipalID: fmt.Sprint(state, days)}, Arguments: []byte(`{}`)})
					if err != nil {
						return err
					}
					_, err = tx.ExecContext(t.Context(), `UPDATE confirmations SET state = $1, expires_at = $2, client = $3 WHERE id = $4`,
						string(state), db.Micros(now.Add(-time.Duration(days)*24*time.Hour-time.Minute)), fmt.Sprintf("%s %d", state, days), c.ID)
					return err
				})
				if err != nil {
					t.Fatal(err)
				}
			}
		}
		if err := s.store.purge(t.Context(), d); err != nil {
			t.Fatal(err)
		}
		rows, err := d.QueryContext(t.Context(), `SELECT client FROM confirmations ORDER BY client`)
		if err != nil {
			t.Fatal(err)
		}
		defer rows.Close()
		var left []string
		for rows.Next() {
			var c string
			if err := rows.Scan(&c); err != nil {
				t.Fatal(err)
			}
			left = append(left, c)
		}
		if err := rows.Err(); err != nil {
			t.Fatal(err)
		}
		const want = "approved -1,approved 0,approved 2,consumed -1,consumed 0,consumed 2,denied -1,denied 0,denied 2,pending -1,pending 0"
		if got := strings.Join(left, ","); got != want {
			t.Errorf("left: %s\nwant: %s", got, want)
		}
	})
}
