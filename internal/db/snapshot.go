package db

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"

	"github.com/berthrun/berth/internal/errs"
)

// OpenToRead opens a database that a server may be using, to look into it: it makes no file, brings no tables up to date and cannot write. A file that
// is not there, and tables of another version, are errors with a code.
func OpenToRead(ctx context.Context, rawURL string) (*DB, error) {
	st, err := Probe(ctx, rawURL)
	switch {
	case err != nil:
		return nil, fmt.Errorf("open database: %w", err)
	case st.Fresh:
		return nil, errs.E(errs.NotFound, "there is no database yet").Suggest("Name the server's data folder with --data, or its database with --database.")
	case st.Version != st.Newest:
		return nil, errs.E(errs.InvalidState, "the database has the tables of version %d, and this program has %d", st.Version, st.Newest).
			Suggest("Use the program that the server runs, or let it bring the tables up to date first.")
	}
	conn, err := openToRead(rawURL)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, errs.E(errs.NotFound, "there is no database any more")
	}
	if err != nil {
		return nil, fmt.Errorf("open database: %w", err)
	}
	return &DB{dialect: st.Dialect, read: conn, write: conn, log: slog.New(slog.DiscardHandler), hub: newHub(), stop: func() {}}, nil
}

// Snapshot runs fn in a transaction that sees the database as it was at its first read, whatever others write meanwhile. It cannot write.
func (d *DB) Snapshot(ctx context.Context, fn func(q Querier) error) error {
	var opts *sql.TxOptions
	if d.dialect == Postgres {
		opts = &sql.TxOptions{Isolation: sql.LevelRepeatableRead, ReadOnly: true}
	}
	tx, err := d.read.BeginTx(ctx, opts)
	if err != nil {
		return fmt.Errorf("begin: %w", err)
	}
	defer func() { _ = tx.Rollback() }()
	return fn(tx)
}
