package db

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"modernc.org/sqlite"

	"github.com/berthrun/berth/internal/errs"
)

// maxAttempts bounds how often a transaction that lost against another one is run.
const maxAttempts = 10

// Tx runs fn in a write transaction and commits it: what it wrote survives a loss of power. fn is run again from the start when the transaction lost
// against another one, so it changes nothing but the database. It must not open a second transaction. Errors of fn come back as they are.
func (d *DB) Tx(ctx context.Context, fn func(tx *sql.Tx) error) error {
	return d.repeat(ctx, fn, false)
}

// TxRelaxed is Tx for what may be lost with the machine's power, but not when a server of ours is killed: it doesn't wait for the disk. What a later Tx
// commits makes it durable too.
func (d *DB) TxRelaxed(ctx context.Context, fn func(tx *sql.Tx) error) error {
	return d.repeat(ctx, fn, true)
}

func (d *DB) repeat(ctx context.Context, fn func(tx *sql.Tx) error, relaxed bool) error {
	for n := 1; ; n++ {
		err := d.once(ctx, fn, relaxed)
		switch {
		case err == nil || !lostRace(err):
			return err
		case n == maxAttempts:
			return errs.Wrap(errs.Unavailable, err, "the database is too busy").After(time.Second).Suggest("Try again in a moment.")
		}
		most := min(5*time.Millisecond<<n, 250*time.Millisecond)
		pause(ctx, most/2+rand.N(most/2))
		if ctx.Err() != nil {
			return errors.Join(ctx.Err(), err)
		}
	}
}

func (d *DB) once(ctx context.Context, fn func(tx *sql.Tx) error, relaxed bool) (err error) {
	conn, err := d.write.Conn(ctx)
	if err != nil {
		return fmt.Errorf("connect: %w", err)
	}
	defer conn.Close() //nolint:errcheck // gives it back to the pool
	if relaxed && d.dialect == SQLite {
		if _, err := conn.ExecContext(ctx, `PRAGMA synchronous = NORMAL`); err != nil {
			return fmt.Errorf("relax: %w", err)
		}
		defer func() {
			if _, failed := conn.ExecContext(context.WithoutCancel(ctx), `PRAGMA synchronous = FULL`); failed != nil {
				_ = conn.Raw(func(any) error { return driver.ErrBadConn }) // a connection that may be lax is never used again
			}
		}()
	}
	tx, err := conn.BeginTx(ctx, nil)
	if err != nil {
		return fmt.Errorf("begin: %w", err)
	}
	defer d.after.Delete(tx)
	committed := false
	defer func() {
		if !committed { // also when fn panics
			_ = tx.Rollback()
		}
	}()
	if relaxed && d.dialect == Postgres {
		if _, err := tx.ExecContext(ctx, `SET LOCAL synchronous_commit = off`); err != nil {
			return fmt.Errorf("relax: %w", err)
		}
	}
	if err := fn(tx); err != nil {
		return err
	}
	if err := tx.Commit(); err != nil {
		// A context that ends between the last statement and the commit has rolled it back already, and Commit says only that it is over.
		return fmt.Errorf("commit: %w", errors.Join(ctx.Err(), err))
	}
	committed = true
	if topics, ok := d.after.Load(tx); ok {
		for _, topic := range *topics.(*[]string) {
			d.Notify(ctx, topic)
		}
	}
	return nil
}

// NotifyAfter signals the topic once the transaction is committed. tx is one that Tx or TxRelaxed gave.
func (d *DB) NotifyAfter(tx Querier, topic string) {
	topics, _ := d.after.LoadOrStore(tx, new([]string))
	list := topics.(*[]string)
	for _, t := range *list {
		if t == topic {
			return
		}
	}
	*list = append(*list, topic)
}

// The result codes of SQLite that matter here, without their extensions.
const (
	sqliteBusy   = 5
	sqliteLocked = 6
)

func lostRace(err error) bool {
	if e, ok := errors.AsType[*sqlite.Error](err); ok {
		return e.Code()&0xff == sqliteBusy || e.Code()&0xff == sqliteLocked
	}
	if e, ok := errors.AsType[*pgconn.PgError](err); ok {
		return e.Code == "40001" || e.Code == "40P01" // serialization failure, deadlock
	}
	return false
}

// IsUnique reports whether the error is the violation of a primary key or a unique constraint.
func IsUnique(err error) bool {
	if e, ok := errors.AsType[*sqlite.Error](err); ok {
		return e.Code() == 2067 || e.Code() == 1555 // SQLITE_CONSTRAINT_UNIQUE, SQLITE_CONSTRAINT_PRIMARYKEY
	}
	if e, ok := errors.AsType[*pgconn.PgError](err); ok {
		return e.Code == "23505"
	}
	return false
}
