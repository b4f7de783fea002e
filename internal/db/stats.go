package db

import (
	"context"
	"database/sql"
	"fmt"
	"time"
)

// Pools gives how the connections are used, by pool: read and write of SQLite, all of PostgreSQL.
func (d *DB) Pools() map[string]sql.DBStats {
	if d.read == d.write {
		return map[string]sql.DBStats{"all": d.write.Stats()}
	}
	return map[string]sql.DBStats{"read": d.read.Stats(), "write": d.write.Stats()}
}

// Behind gives how many rows wait for their numbers, and how long the oldest of them does.
func (d *DB) Behind(ctx context.Context, s Sequence) (rows int64, oldest time.Duration, err error) {
	var at sql.NullInt64
	if err := d.QueryRowContext(ctx, `SELECT COUNT(*), MIN(at) FROM `+s.Table+` WHERE seq IS NULL`).Scan(&rows, &at); err != nil {
		return 0, 0, fmt.Errorf("count rows without numbers: %w", err)
	}
	if !at.Valid {
		return rows, 0, nil
	}
	now, err := d.Now(ctx, d)
	if err != nil {
		return 0, 0, err
	}
	return rows, max(0, now.Sub(Time(at.Int64))), nil
}
