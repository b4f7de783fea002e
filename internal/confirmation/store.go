package confirmation

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/berthrun/berth/api/op"
	"github.com/berthrun/berth/internal/db"
)

// row is a request in the database.
type row struct {
	ID, OrgID, WorkspaceID, PrincipalID    string
	AskedBy                                op.CreatedBy
	Client, Operation                      string
	ResourceKind, ResourceID, ResourceName string
	Arguments                              string
	Reasons                                []string
	Draft, Digest, Nonce                   string
	State                                  State
	CreatedAt, ExpiresAt                   int64
	DecidedAt                              int64
	DecidedBy, Note                        string
}

// told is what the path of a call is told of it. One whose time is over is expired, approved or not.
func (w *row) told(now time.Time) Confirmation {
	return Confirmation{ID: w.ID, State: w.state(now), ExpiresAt: db.Time(w.ExpiresAt), Note: w.Note}
}

func (w *row) state(now time.Time) State {
	if (w.State == Pending || w.State == Approved) && w.ExpiresAt <= db.Micros(now) {
		return Expired
	}
	return w.State
}

const columns = `id, org_id, workspace_id, principal_id, asked_by, client, operation, resource_kind, resource_id, resource_name, arguments, reasons, draft, digest, nonce,
	state, created_at, expires_at, decided_at, decided_by, note`

type store struct{}

func scan(r interface{ Scan(...any) error }) (*row, error) {
	var w row
	var by, why string
	err := r.Scan(&w.ID, &w.OrgID, &w.WorkspaceID, &w.PrincipalID, &by, &w.Client, &w.Operation, &w.ResourceKind, &w.ResourceID, &w.ResourceName, &w.Arguments, &why,
		&w.Draft, &w.Digest, &w.Nonce, &w.State, &w.CreatedAt, &w.ExpiresAt, &w.DecidedAt, &w.DecidedBy, &w.Note)
	if errors.Is(err, sql.ErrNoRows) {
		return nil, nil
	}
	if err == nil {
		err = errors.Join(json.Unmarshal([]byte(by), &w.AskedBy), json.Unmarshal([]byte(why), &w.Reasons))
	}
	if err != nil {
		return nil, fmt.Errorf("read confirmation: %w", err)
	}
	return &w, nil
}

func (store) get(ctx context.Context, q db.Querier, id string) (*row, error) {
	return scan(q.QueryRowContext(ctx, `SELECT `+columns+` FROM confirmations WHERE id = $1`, id))
}

func (store) insert(ctx context.Context, tx op.Tx, w *row) error {
	by, err := json.Marshal(w.AskedBy)
	if err != nil {
		return fmt.Errorf("encode who asked: %w", err)
	}
	why, err := json.Marshal(w.Reasons)
	if err != nil {
		return fmt.Errorf("encode reasons: %w", err)
	}
	_, err = tx.ExecContext(ctx, `INSERT INTO confirmations (`+columns+`)
		VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, 0, '', '')`,
		w.ID, w.OrgID, w.WorkspaceID, w.PrincipalID, string(by), w.Client, w.Operation, w.ResourceKind, w.ResourceID, w.ResourceName, w.Arguments, string(why),
		w.Draft, w.Digest, w.Nonce, w.State, w.CreatedAt, w.ExpiresAt)
	if err != nil {
		return fmt.Errorf("insert confirmation: %w", err)
	}
	return nil
}

// pending counts what a caller waits for.
func (store) pending(ctx context.Context, tx op.Tx, org, principal string, now int64) (n int, err error) {
	err = tx.QueryRowContext(ctx, `SELECT COUNT(*) FROM confirmations WHERE org_id = $1 AND principal_id = $2 AND state = 'pending' AND expires_at > $3`,
		org, principal, now).Scan(&n)
	if err != nil {
		return 0, fmt.Errorf("count confirmations: %w", err)
	}
	return n, nil
}

// decide moves a request from one state to another, where it is exactly that and its time is not over.
func (store) decide(ctx context.Context, tx op.Tx, id, digest string, from, to State, now, decidedAt int64, by, note string) (bool, error) {
	res, err := tx.ExecContext(ctx, `UPDATE confirmations SET state = $1, decided_at = $2, decided_by = $3, note = $4
		WHERE id = $5 AND digest = $6 AND state = $7 AND expires_at > $8`, to, decidedAt, by, note, id, digest, from, now)
	if err != nil {
		return false, fmt.Errorf("decide confirmation: %w", err)
	}
	n, err := res.RowsAffected()
	return n == 1, err
}

func (store) list(ctx context.Context, q db.Querier, org string, state State, now, before int64, beforeID string, limit int) ([]*row, error) {
	return db.Collect("list confirmations", scan)(q.QueryContext(ctx, `SELECT `+columns+` FROM confirmations WHERE org_id = $1
		AND (CAST($2 AS TEXT) = '' OR ($2 = 'expired' AND state IN ('pending', 'approved') AND expires_at <= $3)
			OR (state = $2 AND (state NOT IN ('pending', 'approved') OR expires_at > $3)))
		AND (CAST($4 AS BIGINT) = 0 OR created_at < $4 OR (created_at = $4 AND id < $5)) ORDER BY created_at DESC, id DESC LIMIT $6`,
		org, string(state), now, before, beforeID, limit))
}

func (store) purge(ctx context.Context, d *db.DB) error {
	return d.TxRelaxed(ctx, func(tx *sql.Tx) error {
		now, err := d.Now(ctx, tx)
		if err == nil {
			_, err = tx.ExecContext(ctx, `DELETE FROM confirmations WHERE expires_at <= $1 OR (state = 'pending' AND expires_at <= $2)`,
				db.Micros(now.Add(-keepFor)), db.Micros(now.Add(-keepUndecided)))
		}
		return err
	})
}
