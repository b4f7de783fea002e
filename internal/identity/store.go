package identity

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/berthrun/berth/api/op"
	"github.com/berthrun/berth/internal/db"
)

// keyRow is a key in the database. Its hash is null until its secret is given out.
type keyRow struct {
	ID, OrgID, WorkspaceID, Name, Last4 string
	Scopes, Confirm                     []string
	CreatedBy                           op.CreatedBy
	CreatedAt, ExpiresAt                int64
	RevokedAt, LastUsedAt               int64
}

const keyColumns = `id, org_id, workspace_id, name, last4, scopes, confirm, created_by, created_at, expires_at, revoked_at, last_used_at`

type store struct{}

func scanKey(row interface{ Scan(...any) error }) (*keyRow, error) {
	var k keyRow
	var scopes, confirm, by string
	err := row.Scan(&k.ID, &k.OrgID, &k.WorkspaceID, &k.Name, &k.Last4, &scopes, &confirm, &by, &k.CreatedAt, &k.ExpiresAt, &k.RevokedAt, &k.LastUsedAt)
	if errors.Is(err, sql.ErrNoRows) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read key: %w", err)
	}
	if err := errors.Join(json.Unmarshal([]byte(scopes), &k.Scopes), json.Unmarshal([]byte(confirm), &k.Confirm), json.Unmarshal([]byte(by), &k.CreatedBy)); err != nil {
		return nil, fmt.Errorf("read key %s: %w", k.ID, err)
	}
	return &k, nil
}

func (store) byHash(ctx context.Context, q db.Querier, hash string) (*keyRow, error) {
	return scanKey(q.QueryRowContext(ctx, `SELECT `+keyColumns+` FROM keys WHERE hash = $1`, hash))
}

func (store) byID(ctx context.Context, q db.Querier, org, id string) (*keyRow, error) {
	return scanKey(q.QueryRowContext(ctx, `SELECT `+keyColumns+` FROM keys WHERE org_id = $1 AND id = $2`, org, id))
}

func (store) insert(ctx context.Context, tx op.Tx, k *keyRow, hash *string) error {
	scopes, err := json.Marshal(k.Scopes)
	if err != nil {
		return fmt.Errorf("encode scopes: %w", err)
	}
	confirm, err := json.Marshal(k.Confirm) // none is null, which is read as none
	if err != nil {
		return fmt.Errorf("encode confirm list: %w", err)
	}
	by, err := json.Marshal(k.CreatedBy)
	if err != nil {
		return fmt.Errorf("encode creator: %w", err)
	}
	_, err = tx.ExecContext(ctx, `INSERT INTO keys (id, org_id, workspace_id, name, hash, last4, scopes, confirm, created_by, created_at, expires_at)
		VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)`,
		k.ID, k.OrgID, k.WorkspaceID, k.Name, hash, k.Last4, string(scopes), string(confirm), string(by), k.CreatedAt, k.ExpiresAt)
	if err != nil {
		return fmt.Errorf("insert key: %w", err)
	}
	return nil
}

// arm gives a key its secret, in place of one that nobody got.
func (store) arm(ctx context.Context, q op.Tx, id, hash, last4 string) error {
	if _, err := q.ExecContext(ctx, `UPDATE keys SET hash = $1, last4 = $2 WHERE id = $3`, hash, last4, id); err != nil {
		return fmt.Errorf("arm key: %w", err)
	}
	return nil
}

func (store) revoke(ctx context.Context, tx op.Tx, org, id string, at int64) (revoked bool, err error) {
	res, err := tx.ExecContext(ctx, `UPDATE keys SET revoked_at = $1 WHERE org_id = $2 AND id = $3 AND revoked_at = 0`, at, org, id)
	if err != nil {
		return false, fmt.Errorf("revoke key: %w", err)
	}
	n, err := res.RowsAffected()
	return n > 0, err
}

func (store) list(ctx context.Context, q db.Querier, org string, revoked bool, beforeTime int64, beforeID string, limit int) ([]*keyRow, error) {
	return db.Collect("list keys", scanKey)(q.QueryContext(ctx, `SELECT `+keyColumns+` FROM keys WHERE org_id = $1 AND (revoked_at = 0 OR $2 = 1)
		AND (CAST($3 AS BIGINT) = 0 OR created_at < $3 OR (created_at = $3 AND id < $4)) ORDER BY created_at DESC, id DESC LIMIT $5`,
		org, db.Flag(revoked), beforeTime, beforeID, limit))
}

func (store) used(ctx context.Context, d *db.DB, used map[string]int64) error {
	return d.TxRelaxed(ctx, func(tx *sql.Tx) error {
		for id, at := range used {
			if _, err := tx.ExecContext(ctx, `UPDATE keys SET last_used_at = $1 WHERE id = $2 AND last_used_at < $1`, at, id); err != nil {
				return fmt.Errorf("write last use: %w", err)
			}
		}
		return nil
	})
}

// workspaceRow is a workspace in the database.
type workspaceRow struct {
	ID, Name  string
	CreatedAt int64
}

func (store) workspaces(ctx context.Context, q db.Querier, org, after string, limit int) ([]workspaceRow, error) {
	rows, err := q.QueryContext(ctx, `SELECT id, name, created_at FROM workspaces WHERE org_id = $1 AND id > $2 ORDER BY id LIMIT $3`, org, after, limit)
	if err != nil {
		return nil, fmt.Errorf("list workspaces: %w", err)
	}
	defer rows.Close()
	var all []workspaceRow
	for rows.Next() {
		var w workspaceRow
		if err := rows.Scan(&w.ID, &w.Name, &w.CreatedAt); err != nil {
			return nil, fmt.Errorf("read workspace: %w", err)
		}
		all = append(all, w)
	}
	return all, rows.Err()
}

// names gives the names of an organization and of one of its workspaces.
func (store) names(ctx context.Context, q db.Querier, org, workspace string) (orgName, workspaceName string, err error) {
	err = q.QueryRowContext(ctx, `SELECT o.name, w.name FROM organizations o JOIN workspaces w ON w.org_id = o.id WHERE o.id = $1 AND w.id = $2`,
		org, workspace).Scan(&orgName, &workspaceName)
	if err != nil {
		return "", "", fmt.Errorf("read organization: %w", err)
	}
	return orgName, workspaceName, nil
}
