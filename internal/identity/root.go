package identity

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/berthrun/berth/api/op"
	"github.com/berthrun/berth/internal/db"
	"github.com/berthrun/berth/internal/id"
)

// EnsureRoot makes the root organization with its workspace and a first administrator's key where there is none, and gives the key's secret then. Of several
// servers that start at once, one makes it.
func (s *Service) EnsureRoot(ctx context.Context) (created bool, secret string, err error) {
	err = s.cfg.DB.Tx(ctx, func(tx *sql.Tx) error {
		created, secret = false, ""
		var there string
		err := tx.QueryRowContext(ctx, `SELECT id FROM organizations WHERE root = 1`).Scan(&there)
		if !errors.Is(err, sql.ErrNoRows) {
			return err
		}
		secret, err = s.found(ctx, tx, "root", true)
		created = err == nil
		return err
	})
	if db.IsUnique(err) {
		return false, "", nil // another server was first
	}
	if err != nil {
		return false, "", fmt.Errorf("make the first organization: %w", err)
	}
	return created, secret, nil
}

// Found makes an organization with a workspace and an administrator's key, whose secret it gives.
func (s *Service) Found(ctx context.Context, name string) (secret string, err error) {
	err = s.cfg.DB.Tx(ctx, func(tx *sql.Tx) error {
		secret, err = s.found(ctx, tx, name, false)
		return err
	})
	return secret, err
}

func (s *Service) found(ctx context.Context, tx op.Tx, name string, root bool) (string, error) {
	now := db.Micros(s.cfg.Now())
	org, workspace := id.New(id.Organization), id.New(id.Workspace)
	if _, err := tx.ExecContext(ctx, `INSERT INTO organizations (id, name, root, created_at) VALUES ($1, $2, $3, $4)`, org, name, db.Flag(root), now); err != nil {
		return "", err
	}
	if _, err := tx.ExecContext(ctx, `INSERT INTO workspaces (id, org_id, name, created_at) VALUES ($1, $2, 'default', $3)`, workspace, org, now); err != nil {
		return "", err
	}
	secret := newSecret()
	h := hash(secret)
	return secret, s.store.insert(ctx, tx, &keyRow{
		ID: id.New(id.Key), OrgID: org, WorkspaceID: workspace, Name: "first administrator", Last4: last4(secret), Scopes: []string{scopeAdmin}, CreatedAt: now,
	}, &h)
}
