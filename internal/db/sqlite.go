package db

import (
	"context"
	"database/sql"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"syscall"

	"github.com/pressly/goose/v3"
	"modernc.org/sqlite"
)

// logLimit is to how many bytes the write-ahead log is cut once it is in the database, however long a slow reader has let it grow.
const logLimit = "16777216"

func (d *DB) openSQLite(ctx context.Context, path string, readers int) error {
	d.dialect = SQLite
	path, err := filepath.Abs(path)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	// Made here, because SQLite would make it readable to everyone; its companions take over the mode.
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	if err := f.Close(); err != nil {
		return err
	}
	base := "file:" + (&url.URL{Path: path}).EscapedPath() + "?_busy_timeout=5000&_foreign_keys=1&_journal_mode=WAL"
	writer, err := sqlite.NewConnector(base + "&_synchronous=FULL&_txlock=immediate&_pragma=journal_size_limit(" + logLimit + ")")
	if err != nil {
		return err
	}
	reader, err := sqlite.NewConnector(base + "&_query_only=1")
	if err != nil {
		return err
	}
	d.write, d.read = sql.OpenDB(writer), sql.OpenDB(reader)
	d.write.SetMaxOpenConns(1)
	d.read.SetMaxOpenConns(readers)
	d.read.SetMaxIdleConns(readers)

	lock, err := os.OpenFile(path+".lock", os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	defer lock.Close() //nolint:errcheck // closing gives the lock back
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		return fmt.Errorf("lock for migrations: %w", err)
	}
	return migrate(ctx, goose.DialectSQLite3, d.write)
}
