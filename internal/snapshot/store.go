package snapshot

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/berthrun/berth/api"
	"github.com/berthrun/berth/api/op"
	"github.com/berthrun/berth/internal/db"
	"github.com/berthrun/berth/internal/runtime"
)

type store struct{}

const columns = `id, org_id, workspace_id, name, state, error, mode, sandbox_id, template, image, image_ref, image_id, vcpu_milli, memory_mib, disk_gib,
	internet, env, metadata, guest_token, disk_bytes, memory_bytes, stored, taken_at, created_by, principal_id, created_at, state_at, without_volumes, build_id`

func scan(s interface{ Scan(...any) error }) (*row, error) {
	var r row
	var env, metadata, by, without string
	err := s.Scan(&r.ID, &r.OrgID, &r.WorkspaceID, &r.Name, &r.State, &r.Error, &r.Mode, &r.SandboxID, &r.Template, &r.Image, &r.ImageRef, &r.ImageID,
		&r.vcpu, &r.memory, &r.diskGiB, &r.Internet, &env, &metadata, &r.GuestToken, &r.DiskBytes, &r.MemBytes, &r.Stored, &r.TakenAt, &by, &r.PrincipalID,
		&r.CreatedAt, &r.StateAt, &without, &r.BuildID)
	if err != nil {
		return nil, err
	}
	r.Resources = runtime.Resources{VCPU: float64(r.vcpu) / 1000, MemoryMiB: r.memory, DiskGiB: r.diskGiB}
	r.Memory = r.Mode == api.ModeMemory
	for into, text := range map[any]string{&r.Env: env, &r.Metadata: metadata, &r.CreatedBy: by, &r.Volumes: without} {
		if err := json.Unmarshal([]byte(text), into); err != nil {
			return nil, fmt.Errorf("read snapshot %s: %w", r.ID, err)
		}
	}
	return &r, nil
}

// get finds a snapshot by id, deleted ones too; nil where there is none.
func (s store) get(ctx context.Context, q op.Tx, id string) (*row, error) {
	r, err := scan(q.QueryRowContext(ctx, `SELECT `+columns+` FROM snapshots WHERE id = $1`, id))
	if errors.Is(err, sql.ErrNoRows) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read snapshot: %w", err)
	}
	return r, nil
}

// insert makes a row. It is errNameTaken where another one has the name.
func (s store) insert(ctx context.Context, tx op.Tx, r *row) error {
	env, err := texts(r.Env)
	if err != nil {
		return err
	}
	metadata, err := texts(r.Metadata)
	if err != nil {
		return err
	}
	by, err := json.Marshal(r.CreatedBy)
	if err != nil {
		return fmt.Errorf("encode snapshot: %w", err)
	}
	without, err := json.Marshal(append([]string{}, r.Volumes...))
	if err != nil {
		return fmt.Errorf("encode snapshot: %w", err)
	}
	res, err := tx.ExecContext(ctx, `INSERT INTO snapshots (`+columns+`) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19,
		$20, $21, $22, $23, $24, $25, $26, $27, $28, $29) ON CONFLICT DO NOTHING`,
		r.ID, r.OrgID, r.WorkspaceID, r.Name, r.State, r.Error, r.Mode, r.SandboxID, r.Template, r.Image, r.ImageRef, r.ImageID, int64(r.Resources.VCPU*1000+0.5),
		r.Resources.MemoryMiB, r.Resources.DiskGiB, db.Flag(r.Internet), env, metadata, r.GuestToken, r.DiskBytes, r.MemBytes, db.Flag(r.Stored), r.TakenAt, string(by),
		r.PrincipalID, r.CreatedAt, r.StateAt, string(without), r.BuildID)
	if err != nil {
		return fmt.Errorf("insert snapshot: %w", err)
	}
	if n, _ := res.RowsAffected(); n == 0 {
		return errNameTaken(r.Name)
	}
	return s.label(ctx, tx, r)
}

func (s store) label(ctx context.Context, tx op.Tx, r *row) error {
	if _, err := tx.ExecContext(ctx, `DELETE FROM snapshot_labels WHERE snapshot_id = $1`, r.ID); err != nil {
		return fmt.Errorf("clear labels: %w", err)
	}
	for k, v := range r.Metadata {
		if _, err := tx.ExecContext(ctx, `INSERT INTO snapshot_labels (snapshot_id, key, value) VALUES ($1, $2, $3)`, r.ID, k, v); err != nil {
			return fmt.Errorf("insert label: %w", err)
		}
	}
	return nil
}

// named gives the id of the living snapshot of a name, empty where there is none.
func (s store) named(ctx context.Context, q op.Tx, workspaceID, name string) (id string, err error) {
	err = q.QueryRowContext(ctx, `SELECT id FROM snapshots WHERE workspace_id = $1 AND name = $2 AND state <> 'deleting' AND state <> 'deleted'`, workspaceID, name).Scan(&id)
	if err != nil && !errors.Is(err, sql.ErrNoRows) {
		return "", fmt.Errorf("find snapshot by name: %w", err)
	}
	return id, nil
}

// save writes what callers may change.
func (s store) save(ctx context.Context, tx op.Tx, r *row) error {
	metadata, err := texts(r.Metadata)
	if err != nil {
		return err
	}
	res, err := tx.ExecContext(ctx, `UPDATE snapshots SET name = $1, metadata = $2 WHERE id = $3 AND state = $4`, r.Name, metadata, r.ID, r.State)
	if err != nil {
		return fmt.Errorf("save snapshot: %w", err)
	}
	if n, _ := res.RowsAffected(); n == 0 {
		return errLostRace
	}
	return s.label(ctx, tx, r)
}

// move writes a transition. It is errLostRace when the state is no longer what r says.
func (s store) move(ctx context.Context, tx op.Tx, r *row, to string) error {
	if !slices.Contains(transitions[r.State], to) {
		return fmt.Errorf("snapshot %s cannot go from %s to %s", r.ID, r.State, to)
	}
	res, err := tx.ExecContext(ctx, `UPDATE snapshots SET state = $1, error = $2, disk_bytes = $3, memory_bytes = $4, taken_at = $5, state_at = $6
		WHERE id = $7 AND state = $8`, to, r.Error, r.DiskBytes, r.MemBytes, r.TakenAt, r.StateAt, r.ID, r.State)
	if err != nil {
		return fmt.Errorf("move snapshot: %w", err)
	}
	if n, _ := res.RowsAffected(); n == 0 {
		return errLostRace
	}
	r.State = to
	return nil
}

// filter is what a list asks for.
type filter struct {
	OrgID, PrincipalID, SandboxID, Name, Mode string
	Metadata                                  map[string]string
	AfterTime                                 int64
	AfterID                                   string
	Limit                                     int
}

func (s store) list(ctx context.Context, q op.Tx, f filter) ([]*row, error) {
	var where []string
	var args []any
	add := func(cond string, values ...any) {
		for _, v := range values {
			args = append(args, v)
			cond = strings.Replace(cond, "?", fmt.Sprintf("$%d", len(args)), 1)
		}
		where = append(where, cond)
	}
	add("org_id = ?", f.OrgID)
	add("state <> ?", api.SnapshotDeleted)
	for column, value := range map[string]string{"principal_id": f.PrincipalID, "sandbox_id": f.SandboxID, "name": f.Name, "mode": f.Mode} {
		if value != "" {
			add(column+" = ?", value)
		}
	}
	for k, v := range f.Metadata {
		add("EXISTS (SELECT 1 FROM snapshot_labels l WHERE l.snapshot_id = snapshots.id AND l.key = ? AND l.value = ?)", k, v)
	}
	if f.AfterID != "" {
		add("(created_at < ? OR (created_at = ? AND id < ?))", f.AfterTime, f.AfterTime, f.AfterID)
	}
	return collect(q.QueryContext(ctx, fmt.Sprintf(`SELECT %s FROM snapshots WHERE %s ORDER BY created_at DESC, id DESC LIMIT %d`,
		columns, strings.Join(where, " AND "), f.Limit), args...))
}

// made reports whether an organization has or had a snapshot of a sandbox.
func (s store) made(ctx context.Context, q op.Tx, orgID, sandboxID string) (bool, error) {
	var n int
	err := q.QueryRowContext(ctx, `SELECT COUNT(*) FROM snapshots WHERE org_id = $1 AND sandbox_id = $2`, orgID, sandboxID).Scan(&n)
	if err != nil {
		return false, fmt.Errorf("count snapshots of sandbox: %w", err)
	}
	return n > 0, nil
}

// due gives those that need work at now: that move, that are not stored yet where keep, failed for an hour, deleted for a day.
func (s store) due(ctx context.Context, q op.Tx, keep bool, failedBefore, deletedBefore int64) ([]*row, error) {
	return collect(q.QueryContext(ctx, `SELECT `+columns+` FROM snapshots WHERE state = 'creating' OR state = 'deleting' OR (state = 'ready' AND stored < $1)
		OR (state = 'failed' AND state_at <= $2) OR (state = 'deleted' AND state_at <= $3) LIMIT 200`, db.Flag(keep), failedBefore, deletedBefore))
}

// living gives the state of every snapshot that is not deleted.
func (s store) living(ctx context.Context, q op.Tx) (map[string]string, error) {
	rows, err := q.QueryContext(ctx, `SELECT id, state FROM snapshots WHERE state <> 'deleted'`)
	if err != nil {
		return nil, fmt.Errorf("list snapshots: %w", err)
	}
	defer rows.Close()
	all := map[string]string{}
	for rows.Next() {
		var id, state string
		if err := rows.Scan(&id, &state); err != nil {
			return nil, fmt.Errorf("list snapshots: %w", err)
		}
		all[id] = state
	}
	return all, rows.Err()
}

var collect = db.Collect("list snapshots", scan)

func texts(m map[string]string) (string, error) {
	if m == nil {
		return "{}", nil
	}
	b, err := json.Marshal(m)
	if err != nil {
		return "", fmt.Errorf("encode snapshot: %w", err)
	}
	return string(b), nil
}
