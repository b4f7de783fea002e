package policy

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/berthrun/berth/api/op"
	"github.com/berthrun/berth/internal/db"
)

// row is one version in the database.
type row struct {
	Version   int64
	Text      string
	CreatedBy op.CreatedBy
	CreatedAt int64
}

type store struct{}

const columns = `version, text, created_by, created_at`

func scan(from interface{ Scan(...any) error }) (*row, error) {
	var r row
	var by string
	if err := from.Scan(&r.Version, &r.Text, &by, &r.CreatedAt); err != nil {
		return nil, err
	}
	if err := json.Unmarshal([]byte(by), &r.CreatedBy); err != nil {
		return nil, fmt.Errorf("read who changed policies: %w", err)
	}
	return &r, nil
}

// newest gives the version that holds; version 0 with the default where none was put.
func (store) newest(ctx context.Context, q db.Querier, org string) (*row, error) {
	r, err := scan(q.QueryRowContext(ctx, `SELECT `+columns+` FROM policy_sets WHERE org_id = $1 ORDER BY version DESC LIMIT 1`, org))
	if errors.Is(err, sql.ErrNoRows) {
		return &row{Text: Default()}, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read policies: %w", err)
	}
	return r, nil
}

// at gives one version, or nil.
func (store) at(ctx context.Context, q db.Querier, org string, version int64) (*row, error) {
	r, err := scan(q.QueryRowContext(ctx, `SELECT `+columns+` FROM policy_sets WHERE org_id = $1 AND version = $2`, org, version))
	if errors.Is(err, sql.ErrNoRows) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read policies: %w", err)
	}
	return r, nil
}

func (store) version(ctx context.Context, q op.Tx, org string) (version int64, err error) {
	if err := q.QueryRowContext(ctx, `SELECT COALESCE(MAX(version), 0) FROM policy_sets WHERE org_id = $1`, org).Scan(&version); err != nil {
		return 0, fmt.Errorf("read version of policies: %w", err)
	}
	return version, nil
}

// history gives the newest versions, without their texts.
func (store) history(ctx context.Context, q db.Querier, org string, most int) ([]*row, error) {
	return db.Collect("list versions of policies", scan)(q.QueryContext(ctx, `SELECT version, '', created_by, created_at FROM policy_sets WHERE org_id = $1 ORDER BY version DESC LIMIT $2`, org, most))
}

func (store) insert(ctx context.Context, tx op.Tx, org string, r *row) error {
	by, err := json.Marshal(r.CreatedBy)
	if err != nil {
		return fmt.Errorf("encode who changes policies: %w", err)
	}
	_, err = tx.ExecContext(ctx, `INSERT INTO policy_sets (org_id, version, text, created_by, created_at) VALUES ($1, $2, $3, $4, $5)`,
		org, r.Version, r.Text, string(by), r.CreatedAt)
	if err != nil {
		return fmt.Errorf("write policies: %w", err)
	}
	return nil
}
