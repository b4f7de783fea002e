// Package dbtest gives store tests their databases: SQLite, and a PostgreSQL that it starts itself in a folder of its own.
//
// It owns the life of that PostgreSQL: one server a test binary, ended with it. A package whose tests use it declares
// func TestMain(m *testing.M) { dbtest.Main(m) }.
package dbtest

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/berthrun/berth/internal/db"
)

var (
	server  atomic.Pointer[lazyServer] // one a process: what TestMain sets up
	counter atomic.Int64
)

// Main runs the tests of a package and ends the PostgreSQL that they started.
func Main(m *testing.M) {
	s := &lazyServer{}
	server.Store(s)
	code := m.Run()
	if err := s.close(); err != nil {
		fmt.Fprintln(os.Stderr, "dbtest:", err)
		code = max(code, 1)
	}
	os.Exit(code)
}

// Each runs a test on an empty, migrated database of each kind. Without PostgreSQL's programs that half is skipped, in CI (CI=true) it fails.
func Each(t *testing.T, test func(t *testing.T, d *db.DB)) {
	t.Helper()
	EachURL(t, func(t *testing.T, url string) { test(t, Open(t, url)) })
}

// EachURL runs a test with the address of an empty database of each kind, for tests that open it more than once.
func EachURL(t *testing.T, test func(t *testing.T, url string)) {
	t.Helper()
	t.Run("sqlite", func(t *testing.T) { test(t, SQLite(t)) })
	t.Run("postgres", func(t *testing.T) { test(t, Postgres(t)) })
}

// SQLite gives the address of an SQLite database that does not exist yet.
func SQLite(t *testing.T) string {
	t.Helper()
	return "sqlite://" + filepath.Join(t.TempDir(), "berth.db")
}

// Postgres gives the address of a new, empty PostgreSQL database, dropped at the end of the test.
func Postgres(t *testing.T) string {
	t.Helper()
	s := server.Load()
	if s == nil {
		t.Fatal("dbtest: the package needs func TestMain(m *testing.M) { dbtest.Main(m) }")
	}
	name := fmt.Sprintf("t%d", counter.Add(1))
	url, drop, err := s.create(name)
	if err != nil {
		if _, missing := err.(missingError); missing && os.Getenv("CI") != "true" {
			t.Skip(err)
		}
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := drop(); err != nil {
			t.Error(err)
		}
	})
	return url
}

// Open opens and migrates a database and closes it at the end of the test.
func Open(t *testing.T, url string) *db.DB {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	d, err := db.Open(ctx, db.Config{URL: url, Logger: slog.New(slog.NewTextHandler(t.Output(), nil))})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	})
	return d
}
