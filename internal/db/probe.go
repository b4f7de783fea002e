package db

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/stdlib"
	"modernc.org/sqlite"
)

// Status is what Probe finds of a database.
type Status struct {
	Dialect Dialect
	Fresh   bool          // it has no tables of ours yet; of SQLite, the file may not be there
	Version int64         // of the last migration it had
	Newest  int64         // of the last migration that this program has
	Latency time.Duration // of one small query
	Offset  time.Duration // of its clock from ours; 0 of SQLite
	Server  string        // of PostgreSQL, its version
}

// Probe looks at a database without changing it: it makes no file and no table.
func Probe(ctx context.Context, rawURL string) (Status, error) {
	st := Status{Dialect: SQLite, Newest: newest()}
	if isPostgres(rawURL) {
		st.Dialect = Postgres
	}
	conn, err := openToRead(rawURL)
	if errors.Is(err, fs.ErrNotExist) && st.Dialect == SQLite {
		st.Fresh = true
		return st, nil
	}
	if err != nil {
		return st, err
	}
	defer conn.Close()
	return st, st.read(ctx, conn)
}

func isPostgres(rawURL string) bool {
	return strings.HasPrefix(rawURL, "postgres://") || strings.HasPrefix(rawURL, "postgresql://")
}

// openToRead opens a database without making anything. A file that is not there is fs.ErrNotExist.
func openToRead(rawURL string) (*sql.DB, error) {
	if isPostgres(rawURL) {
		pc, err := parsePostgres(rawURL)
		if err != nil {
			return nil, err
		}
		return stdlib.OpenDB(*pc), nil
	}
	path, err := filepath.Abs(strings.TrimPrefix(rawURL, "sqlite://"))
	if err != nil {
		return nil, err
	}
	if _, err := os.Stat(path); err != nil {
		return nil, err
	}
	c, err := sqlite.NewConnector("file:" + (&url.URL{Path: path}).EscapedPath() + "?mode=ro&_busy_timeout=2000&_query_only=1")
	if err != nil {
		return nil, err
	}
	return sql.OpenDB(c), nil
}

func (st *Status) read(ctx context.Context, conn *sql.DB) error {
	if err := conn.PingContext(ctx); err != nil {
		return err
	}
	began := time.Now()
	var one int
	if err := conn.QueryRowContext(ctx, `SELECT 1`).Scan(&one); err != nil {
		return err
	}
	st.Latency = time.Since(began)
	if st.Dialect == Postgres {
		var us int64
		began := time.Now()
		if err := conn.QueryRowContext(ctx, `SELECT CAST(extract(epoch FROM clock_timestamp()) * 1000000 AS BIGINT), current_setting('server_version')`).Scan(&us, &st.Server); err != nil {
			return err
		}
		st.Offset = Time(us).Sub(began.Add(time.Since(began) / 2))
	}
	var v sql.NullInt64
	if err := conn.QueryRowContext(ctx, `SELECT MAX(version_id) FROM goose_db_version WHERE is_applied`).Scan(&v); err != nil {
		if strings.Contains(err.Error(), "goose_db_version") { // there is no such table
			st.Fresh = true
			return nil
		}
		return fmt.Errorf("read migrations: %w", err)
	}
	st.Version, st.Fresh = v.Int64, v.Int64 == 0
	return nil
}

// newest is the number of the last migration.
func newest() (n int64) {
	names, _ := fs.Glob(migrations, "migrations/*.sql")
	for _, name := range names {
		digits, _, _ := strings.Cut(filepath.Base(name), "_")
		if v, err := strconv.ParseInt(digits, 10, 64); err == nil {
			n = max(n, v)
		}
	}
	return n
}
