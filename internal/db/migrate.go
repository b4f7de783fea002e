package db

import (
	"context"
	"database/sql"
	"embed"
	"fmt"
	"io/fs"

	"github.com/pressly/goose/v3"
)

//go:embed migrations/*.sql
var migrations embed.FS

func migrate(ctx context.Context, dialect goose.Dialect, conn *sql.DB, options ...goose.ProviderOption) error {
	files, err := fs.Sub(migrations, "migrations")
	if err != nil {
		return err
	}
	options = append(options, goose.WithLogger(goose.NopLogger()), goose.WithDisableGlobalRegistry(true))
	p, err := goose.NewProvider(dialect, conn, files, options...)
	if err != nil {
		return fmt.Errorf("read migrations: %w", err)
	}
	if _, err := p.Up(ctx); err != nil {
		return fmt.Errorf("migrate: %w", err)
	}
	return nil
}
