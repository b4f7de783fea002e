package volume

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/berthrun/berth/api/op"
	"github.com/berthrun/berth/internal/db"
)

type store struct{}

const columns = `id, org_id, workspace_id, name, state, error, reason, pool_id, size_gib, made_gib, used_bytes, measured_at, from_backup, done_bytes, created_by,
	principal_id, created_at, state_at`

func scan(s interface{ Scan(...any) error }) (*row, error) {
	var r row
	var by string
	err := s.Scan(&r.ID, &r.OrgID, &r.WorkspaceID, &r.Name, &r.State, &r.Error, &r.Reason, &r.PoolID, &r.SizeGiB, &r.MadeGiB, &r.UsedBytes, &r.MeasuredAt,
		&r.FromBackup, &r.DoneBytes, &by, &r.PrincipalID, &r.CreatedAt, &r.StateAt)
	if errors.Is(err, sql.ErrNoRows) {
		return nil, nil
	}
	if err == nil {
		err = json.Unmarshal([]byte(by), &r.CreatedBy)
	}
	if err != nil {
		return nil, fmt.Errorf("read volume: %w", err)
	}
	return &r, nil
}

// get finds a volume by id, deleted ones too; nil where there is none.
func (store) get(ctx context.Context, q op.Tx, id string) (*row, error) {
	return scan(q.QueryRowContext(ctx, `SELECT `+columns+` FROM volumes WHERE id = $1`, id))
}

// named gives the living volume of a name, nil where there is none.
func (store) named(ctx context.Context, q op.Tx, orgID, name string) (*row, error) {
	return scan(q.QueryRowContext(ctx, `SELECT `+columns+` FROM volumes WHERE org_id = $1 AND name = $2 AND state <> 'deleting' AND state <> 'deleted'`, orgID, name))
}

// insert makes a row. It is errNameTaken where another one has the name.
func (store) insert(ctx context.Context, tx op.Tx, r *row) error {
	by, err := json.Marshal(r.CreatedBy)
	if err != nil {
		return fmt.Errorf("encode volume: %w", err)
	}
	n, err := affected(tx.ExecContext(ctx, `INSERT INTO volumes (`+columns+`) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18)
		ON CONFLICT DO NOTHING`, r.ID, r.OrgID, r.WorkspaceID, r.Name, r.State, r.Error, r.Reason, r.PoolID, r.SizeGiB, r.MadeGiB, r.UsedBytes, r.MeasuredAt,
		r.FromBackup, r.DoneBytes, string(by), r.PrincipalID, r.CreatedAt, r.StateAt))
	if err != nil {
		return fmt.Errorf("insert volume: %w", err)
	}
	if n == 0 {
		return errNameTaken(r.Name)
	}
	return nil
}

// lock has whoever changes what a volume has or is come before or after this transaction, and gives the volume as it is then.
func (s store) lock(ctx context.Context, tx op.Tx, id string) (*row, error) {
	if _, err := tx.ExecContext(ctx, `UPDATE volumes SET state = state WHERE id = $1`, id); err != nil {
		return nil, fmt.Errorf("hold volume: %w", err)
	}
	return s.get(ctx, tx, id)
}

// move writes a transition. It is errLostRace when the state is no longer what r says.
func (store) move(ctx context.Context, tx op.Tx, r *row, to string) error {
	if !slices.Contains(transitions[r.State], to) {
		return fmt.Errorf("volume %s cannot go from %s to %s", r.ID, r.State, to)
	}
	n, err := affected(tx.ExecContext(ctx, `UPDATE volumes SET state = $1, error = $2, reason = $3, made_gib = $4, state_at = $5 WHERE id = $6 AND state = $7`,
		to, r.Error, r.Reason, r.MadeGiB, r.StateAt, r.ID, r.State))
	if err != nil {
		return fmt.Errorf("move volume: %w", err)
	}
	if n == 0 {
		return errLostRace
	}
	r.State = to
	return nil
}

// filter is what a list asks for.
type filter struct {
	OrgID, PrincipalID string
	Equal              map[string]string // by column; what is empty is not asked for
	AfterTime          int64
	AfterID            string
	Limit              int
}

// page gives the rest of a statement that lists what is not deleted, newest first, and its arguments.
func (f filter) page() (rest string, args []any) {
	where := []string{"org_id = $1", "state <> 'deleted'"}
	args = []any{f.OrgID}
	add := func(cond string, v any) {
		args = append(args, v)
		where = append(where, strings.ReplaceAll(cond, "?", fmt.Sprintf("$%d", len(args))))
	}
	if f.PrincipalID != "" {
		add("principal_id = ?", f.PrincipalID)
	}
	for column, v := range f.Equal {
		if v != "" {
			add(column+" = ?", v)
		}
	}
	if f.AfterID != "" {
		args = append(args, f.AfterTime, f.AfterID)
		n := len(args)
		where = append(where, fmt.Sprintf("(created_at < $%d OR (created_at = $%d AND id < $%d))", n-1, n-1, n))
	}
	return fmt.Sprintf(" WHERE %s ORDER BY created_at DESC, id DESC LIMIT %d", strings.Join(where, " AND "), f.Limit), args
}

func (store) list(ctx context.Context, q op.Tx, f filter) ([]*row, error) {
	rest, args := f.page()
	return collect(scan)(q.QueryContext(ctx, `SELECT `+columns+` FROM volumes`+rest, args...))
}

// due gives the ids of those that need work: that move, that are to be larger, failed or deleted for long enough.
func (store) due(ctx context.Context, q op.Tx, failedBefore, deletedBefore int64) ([]string, error) {
	return ids(q.QueryContext(ctx, `SELECT id FROM volumes WHERE state = 'creating' OR state = 'deleting' OR (state = 'ready' AND made_gib < size_gib)
		OR (state = 'failed' AND state_at <= $1) OR (state = 'deleted' AND state_at <= $2) LIMIT 200`, failedBefore, deletedBefore))
}

// states gives the state of every volume that has a row, deleted ones too.
func (store) states(ctx context.Context, q op.Tx) (map[string]string, error) {
	rows, err := collect(scan)(q.QueryContext(ctx, `SELECT `+columns+` FROM volumes`))
	all := make(map[string]string, len(rows))
	for _, r := range rows {
		all[r.ID] = r.State
	}
	return all, err
}

// used counts what an organization's volumes take from its quotas, by the rules of usage.
func (store) used(ctx context.Context, q db.Querier, orgID string) (map[string]int64, error) {
	total := (&row{}).usage("")
	rows, err := collect(scan)(q.QueryContext(ctx, `SELECT `+columns+` FROM volumes WHERE org_id = $1 AND state <> 'deleted'`, orgID))
	for _, r := range rows {
		for k, v := range r.usage(r.State) {
			total[k] += v
		}
	}
	return total, err
}

// restoring counts the volumes that are being made of a backup.
func (store) restoring(ctx context.Context, q op.Tx, backupID string) (n int, err error) {
	err = q.QueryRowContext(ctx, `SELECT COUNT(*) FROM volumes WHERE from_backup = $1 AND state = 'creating'`, backupID).Scan(&n)
	if err != nil {
		return 0, fmt.Errorf("count restores: %w", err)
	}
	return n, nil
}

const attachments = `SELECT m.sandbox_id, m.volume_id, v.name, m.path, m.read_only FROM sandbox_volumes m JOIN volumes v ON v.id = m.volume_id`

func scanAttachment(s interface{ Scan(...any) error }) (*attachment, error) {
	var a attachment
	if err := s.Scan(&a.SandboxID, &a.VolumeID, &a.Name, &a.Path, &a.ReadOnly); err != nil {
		return nil, fmt.Errorf("read attachment: %w", err)
	}
	return &a, nil
}

// of gives what a sandbox has, by path.
func (store) of(ctx context.Context, q op.Tx, sandboxID string) ([]*attachment, error) {
	return collect(scanAttachment)(q.QueryContext(ctx, attachments+` WHERE m.sandbox_id = $1 ORDER BY m.path`, sandboxID))
}

// to gives the sandboxes that have a volume.
func (store) to(ctx context.Context, q op.Tx, volumeID string) ([]*attachment, error) {
	return collect(scanAttachment)(q.QueryContext(ctx, attachments+` WHERE m.volume_id = $1 ORDER BY m.sandbox_id`, volumeID))
}

func (store) attach(ctx context.Context, tx op.Tx, a *attachment) error {
	_, err := tx.ExecContext(ctx, `INSERT INTO sandbox_volumes (sandbox_id, volume_id, path, read_only) VALUES ($1, $2, $3, $4)`, a.SandboxID, a.VolumeID, a.Path, db.Flag(a.ReadOnly))
	if err != nil {
		return fmt.Errorf("attach volume: %w", err)
	}
	return nil
}

func (store) detach(ctx context.Context, tx op.Tx, sandboxID, volumeID string) (bool, error) {
	n, err := affected(tx.ExecContext(ctx, `DELETE FROM sandbox_volumes WHERE sandbox_id = $1 AND volume_id = $2`, sandboxID, volumeID))
	if err != nil {
		return false, fmt.Errorf("detach volume: %w", err)
	}
	return n > 0, nil
}

func collect[T any](scan func(interface{ Scan(...any) error }) (T, error)) func(*sql.Rows, error) ([]T, error) {
	return db.Collect("list volumes", scan)
}

func ids(rows *sql.Rows, err error) ([]string, error) {
	return collect(func(s interface{ Scan(...any) error }) (id string, err error) {
		err = s.Scan(&id)
		return id, err
	})(rows, err)
}

func affected(res sql.Result, err error) (int64, error) {
	if err != nil {
		return 0, err
	}
	return res.RowsAffected()
}
