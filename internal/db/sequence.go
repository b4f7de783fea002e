package db

import (
	"context"
	"database/sql"
	"fmt"
	"time"
)

// numberAtOnce bounds the rows that one transaction numbers.
const numberAtOnce = 500

// Sequence numbers the rows of a table after their commit: 1, 2, 3, … in its column seq. Numbers become visible in their order, so that a reader that
// goes on after the greatest one it saw never skips a row. The table has the columns id, at and seq, and a row in sequences.
type Sequence struct {
	Table string        // a name of ours, never from outside
	Gap   time.Duration // at least this long between two transactions; 0: none
	// Relaxed numbers may be given anew after a loss of power: only for a table of which nobody outside has seen them.
	Relaxed bool
}

// Topic is notified when the table has new rows, NumberedTopic when they have their numbers.
func (s Sequence) Topic() string { return "new:" + s.Table }

// NumberedTopic is notified when rows have got their numbers.
func (s Sequence) NumberedTopic() string { return "numbered:" + s.Table }

// Number gives the next rows their numbers and says how many there were. One server at a time does it: the row in sequences is its lock.
func (d *DB) Number(ctx context.Context, s Sequence) (int64, error) {
	var waiting int
	err := d.QueryRowContext(ctx, `SELECT COUNT(*) FROM (SELECT 1 FROM `+s.Table+` WHERE seq IS NULL LIMIT 1) AS one`).Scan(&waiting)
	if err != nil || waiting == 0 {
		return 0, err
	}
	var n int64
	err = d.repeat(ctx, func(tx *sql.Tx) error {
		var last int64
		if err := tx.QueryRowContext(ctx, `UPDATE sequences SET value = value WHERE name = $1 RETURNING value`, s.Table).Scan(&last); err != nil {
			return fmt.Errorf("lock sequence: %w", err)
		}
		res, err := tx.ExecContext(ctx, `
			WITH fresh AS (
				SELECT id, ROW_NUMBER() OVER (ORDER BY at, id) AS place FROM `+s.Table+` WHERE seq IS NULL ORDER BY at, id LIMIT $2
			)
			UPDATE `+s.Table+` SET seq = CAST($1 AS BIGINT) + fresh.place FROM fresh WHERE `+s.Table+`.id = fresh.id`, last, numberAtOnce)
		if err != nil {
			return fmt.Errorf("number rows: %w", err)
		}
		if n, err = res.RowsAffected(); err != nil {
			return err
		}
		if _, err := tx.ExecContext(ctx, `UPDATE sequences SET value = value + $2 WHERE name = $1`, s.Table, n); err != nil {
			return fmt.Errorf("advance sequence: %w", err)
		}
		d.NotifyAfter(tx, s.NumberedTopic())
		return nil
	}, s.Relaxed)
	return n, err
}

// RunSequence numbers rows as they come, until the context ends. It gives the context's error.
func (d *DB) RunSequence(ctx context.Context, s Sequence) error {
	signals, stop := d.Subscribe(s.Topic())
	defer stop()
	poll := time.NewTicker(pollEvery)
	defer poll.Stop()
	for {
		n, err := d.Number(ctx, s)
		if err != nil && ctx.Err() == nil {
			d.log.Error("rows were not numbered", "table", s.Table, "error", err)
		}
		if n > 0 {
			pause(ctx, s.Gap)
		}
		if n == numberAtOnce {
			continue
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-signals:
		case <-poll.C:
		}
	}
}
