// Package db owns the database: opening SQLite or PostgreSQL, migrations, transactions, the database's clock, signals between waiting readers and
// writers, and the numbering of rows after their commit. Tables belong to the packages that use them; only their SQL for creation stands here.
//
// SQL is one text for both databases: $1 placeholders, ON CONFLICT, RETURNING, times as BIGINT microseconds UTC, JSON as TEXT, booleans as SMALLINT,
// no FOR UPDATE. A transaction decides by a conditional UPDATE or a unique constraint, never by a read alone: PostgreSQL runs it as READ COMMITTED.
package db

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"
)

// Dialect names the database.
type Dialect string

// The dialects.
const (
	SQLite   Dialect = "sqlite"
	Postgres Dialect = "postgres"
)

// Config says what to open.
type Config struct {
	// URL is sqlite:///path/file.db, a file's path, or postgres://….
	URL string
	// MaxConns bounds the connections of a pool: readers of SQLite, everything of PostgreSQL. 0 is 16.
	MaxConns int
	Logger   *slog.Logger     // nil: discards
	Now      func() time.Time // SQLite's clock; PostgreSQL has its own. nil: time.Now
}

// DB is an open database. It is safe for concurrent use.
type DB struct {
	dialect Dialect
	write   *sql.DB // of SQLite: one connection
	read    *sql.DB // of PostgreSQL: the same as write
	log     *slog.Logger
	now     func() time.Time
	hub     *hub
	after   sync.Map // *sql.Tx → *[]string, topics to notify once it is committed
	stop    context.CancelFunc
	done    sync.WaitGroup
}

// Querier is what reads may run on: a *DB, a *sql.Tx or an op.Tx.
type Querier interface {
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}

// Open opens the database and brings its tables up to date. Servers that start at the same time take turns.
func Open(ctx context.Context, cfg Config) (*DB, error) {
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if cfg.MaxConns == 0 {
		cfg.MaxConns = 16
	}
	d := &DB{log: cfg.Logger, now: cfg.Now, hub: newHub()}
	run, stop := context.WithCancel(context.Background())
	d.stop = stop
	var err error
	switch {
	case strings.HasPrefix(cfg.URL, "postgres://"), strings.HasPrefix(cfg.URL, "postgresql://"):
		err = d.openPostgres(ctx, run, cfg)
	case cfg.URL == "":
		err = errors.New("no database is named")
	default:
		err = d.openSQLite(ctx, strings.TrimPrefix(cfg.URL, "sqlite://"), cfg.MaxConns)
	}
	if err != nil {
		err = fmt.Errorf("open database: %w", err)
		return nil, errors.Join(err, d.Close())
	}
	return d, nil
}

// Close ends the connections and everything that waits on them.
func (d *DB) Close() error {
	d.stop()
	d.done.Wait()
	var errRead, errWrite error
	if d.read != nil && d.read != d.write {
		errRead = d.read.Close()
	}
	if d.write != nil {
		errWrite = d.write.Close()
	}
	return errors.Join(errRead, errWrite)
}

// Dialect is which database it is.
func (d *DB) Dialect() Dialect { return d.dialect }

// QueryContext reads outside a transaction. Statements that write, even with RETURNING, belong into Tx.
func (d *DB) QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error) {
	return d.read.QueryContext(ctx, query, args...)
}

// QueryRowContext reads one row outside a transaction.
func (d *DB) QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row {
	return d.read.QueryRowContext(ctx, query, args...)
}

// ExecContext runs one statement as a transaction of its own, without a second try.
func (d *DB) ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error) {
	return d.write.ExecContext(ctx, query, args...)
}

// Now is the database's clock. Leases and expiry use it, so that servers whose own clocks differ agree.
func (d *DB) Now(ctx context.Context, q Querier) (time.Time, error) {
	if d.dialect == SQLite {
		return Time(Micros(d.now())), nil
	}
	var us int64
	err := q.QueryRowContext(ctx, `SELECT CAST(extract(epoch FROM clock_timestamp()) * 1000000 AS BIGINT)`).Scan(&us)
	if err != nil {
		return time.Time{}, fmt.Errorf("read the database's clock: %w", err)
	}
	return Time(us), nil
}

// Micros is how a time is stored: microseconds since 1970 UTC. The zero time is 0.
func Micros(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixMicro()
}

// Time is the stored time in UTC. 0 is the zero time.
func Time(us int64) time.Time {
	if us == 0 {
		return time.Time{}
	}
	return time.UnixMicro(us).UTC()
}
