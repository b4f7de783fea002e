package db

import (
	"context"
	"database/sql"
	"fmt"
	"time"
)

// dropAtOnce bounds the rows that one transaction drops, so that nobody waits long for the database.
const dropAtOnce = 2000

// DropOld removes the numbered rows of a table from before a time, oldest numbers first, and says how many there were. Their numbers are never given again.
func (d *DB) DropOld(ctx context.Context, s Sequence, before time.Time) (int64, error) {
	var all int64
	for {
		var n int64
		err := d.TxRelaxed(ctx, func(tx *sql.Tx) error {
			// Numbers follow the times but for a moment, so the oldest rows are found without an index on the time.
			res, err := tx.ExecContext(ctx, `DELETE FROM `+s.Table+` WHERE seq IN (
				SELECT seq FROM (SELECT seq, at FROM `+s.Table+` WHERE seq IS NOT NULL ORDER BY seq LIMIT $1) AS oldest WHERE at < $2)`, dropAtOnce, Micros(before))
			if err != nil {
				return fmt.Errorf("drop old rows of %s: %w", s.Table, err)
			}
			n, err = res.RowsAffected()
			return err
		})
		all += n
		if err != nil || n < dropAtOnce {
			return all, err
		}
	}
}

// RunDropOld removes rows that are older than keep, again and again until the context ends. It gives the context's error.
func (d *DB) RunDropOld(ctx context.Context, s Sequence, keep time.Duration, now func() time.Time) error {
	tick := time.NewTicker(min(max(keep/10, time.Second), time.Hour))
	defer tick.Stop()
	for {
		if _, err := d.DropOld(ctx, s, now().Add(-keep)); err != nil && ctx.Err() == nil {
			d.log.Error("old rows were not dropped", "table", s.Table, "error", err)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
	}
}
