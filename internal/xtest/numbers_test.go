package xtest

import (
	"context"
	"testing"

	"github.com/berthrun/berth/internal/db"
)

// numbered waits until every row of a table has its number and checks that these are 1, 2, 3, ….
func numbered(t testing.TB, d *db.DB, table string) (rows int) {
	t.Helper()
	var waiting, least, most int
	eventually(t, func() bool {
		err := d.QueryRowContext(context.Background(), `SELECT COUNT(*), COUNT(*) - COUNT(seq), MIN(seq), MAX(seq) FROM `+table).Scan(&rows, &waiting, &least, &most)
		if err != nil {
			t.Fatal(err)
		}
		return waiting == 0
	})
	if least != 1 || most != rows {
		t.Errorf("%s: %d rows have the numbers %d to %d", table, rows, least, most)
	}
	return rows
}
