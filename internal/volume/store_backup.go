package volume

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/berthrun/berth/api/op"
	"github.com/berthrun/berth/internal/db"
)

const backupColumns = `id, org_id, workspace_id, volume_id, volume_name, size_gib, state, error, reason, automatic, done_bytes, total_bytes, files, content_bytes,
	stored_bytes, sha256, taken_at, created_by, principal_id, created_at, state_at`

func scanBackup(s interface{ Scan(...any) error }) (*backup, error) {
	var b backup
	var by string
	err := s.Scan(&b.ID, &b.OrgID, &b.WorkspaceID, &b.VolumeID, &b.VolumeName, &b.SizeGiB, &b.State, &b.Error, &b.Reason, &b.Automatic, &b.DoneBytes, &b.TotalBytes,
		&b.Files, &b.ContentBytes, &b.StoredBytes, &b.SHA256, &b.TakenAt, &by, &b.PrincipalID, &b.CreatedAt, &b.StateAt)
	if errors.Is(err, sql.ErrNoRows) {
		return nil, nil
	}
	if err == nil {
		err = json.Unmarshal([]byte(by), &b.CreatedBy)
	}
	if err != nil {
		return nil, fmt.Errorf("read backup: %w", err)
	}
	return &b, nil
}

func (store) getBackup(ctx context.Context, q op.Tx, id string) (*backup, error) {
	return scanBackup(q.QueryRowContext(ctx, `SELECT `+backupColumns+` FROM volume_backups WHERE id = $1`, id))
}

// lockBackup is lock of a backup.
func (s store) lockBackup(ctx context.Context, tx op.Tx, id string) (*backup, error) {
	if _, err := tx.ExecContext(ctx, `UPDATE volume_backups SET state = state WHERE id = $1`, id); err != nil {
		return nil, fmt.Errorf("hold backup: %w", err)
	}
	return s.getBackup(ctx, tx, id)
}

func (store) insertBackup(ctx context.Context, tx op.Tx, b *backup) error {
	by, err := json.Marshal(b.CreatedBy)
	if err != nil {
		return fmt.Errorf("encode backup: %w", err)
	}
	_, err = tx.ExecContext(ctx, `INSERT INTO volume_backups (`+backupColumns+`)
		VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20, $21)`,
		b.ID, b.OrgID, b.WorkspaceID, b.VolumeID, b.VolumeName, b.SizeGiB, b.State, b.Error, b.Reason, db.Flag(b.Automatic), b.DoneBytes, b.TotalBytes, b.Files,
		b.ContentBytes, b.StoredBytes, b.SHA256, b.TakenAt, string(by), b.PrincipalID, b.CreatedAt, b.StateAt)
	if err != nil {
		return fmt.Errorf("insert backup: %w", err)
	}
	return nil
}

func (store) moveBackup(ctx context.Context, tx op.Tx, b *backup, to string) error {
	if !slices.Contains(transitions[b.State], to) {
		return fmt.Errorf("backup %s cannot go from %s to %s", b.ID, b.State, to)
	}
	n, err := affected(tx.ExecContext(ctx, `UPDATE volume_backups SET state = $1, error = $2, reason = $3, files = $4, content_bytes = $5, stored_bytes = $6, sha256 = $7,
		state_at = $8 WHERE id = $9 AND state = $10`, to, b.Error, b.Reason, b.Files, b.ContentBytes, b.StoredBytes, b.SHA256, b.StateAt, b.ID, b.State))
	if err != nil {
		return fmt.Errorf("move backup: %w", err)
	}
	if n == 0 {
		return errLostRace
	}
	b.State = to
	return nil
}

func (store) listBackups(ctx context.Context, q op.Tx, f filter) ([]*backup, error) {
	rest, args := f.page()
	return collect(scanBackup)(q.QueryContext(ctx, `SELECT `+backupColumns+` FROM volume_backups`+rest, args...))
}

// dueBackups gives the ids of those that need work.
func (store) dueBackups(ctx context.Context, q op.Tx, failedBefore, deletedBefore int64) ([]string, error) {
	return ids(q.QueryContext(ctx, `SELECT id FROM volume_backups WHERE state = 'creating' OR state = 'deleting' OR (state = 'failed' AND state_at <= $1)
		OR (state = 'deleted' AND state_at <= $2) LIMIT 200`, failedBefore, deletedBefore))
}

// making gives the ids of the backups of a volume, or of all, that are under way.
func (store) making(ctx context.Context, q op.Tx, volumeID string) ([]string, error) {
	return ids(q.QueryContext(ctx, `SELECT id FROM volume_backups WHERE state = 'creating' AND (volume_id = $1 OR $1 = '')`, volumeID))
}

// hadBackups reports whether an organization has or had backups of a volume.
func (store) hadBackups(ctx context.Context, q op.Tx, orgID, volumeID string) (bool, error) {
	var n int
	if err := q.QueryRowContext(ctx, `SELECT COUNT(*) FROM volume_backups WHERE org_id = $1 AND volume_id = $2`, orgID, volumeID).Scan(&n); err != nil {
		return false, fmt.Errorf("count backups: %w", err)
	}
	return n > 0, nil
}

// automatic gives the backups that a volume's policy made and that are there, newest first.
func (store) automatic(ctx context.Context, q op.Tx, volumeID string) ([]*backup, error) {
	return collect(scanBackup)(q.QueryContext(ctx, `SELECT `+backupColumns+` FROM volume_backups WHERE volume_id = $1 AND automatic = 1 AND state = 'ready'
		ORDER BY created_at DESC, id DESC`, volumeID))
}

const policyColumns = `volume_id, hour, keep_days, keep_last, next_at, created_by, principal_id`

func scanPolicy(s interface{ Scan(...any) error }) (*policy, error) {
	var p policy
	var by string
	err := s.Scan(&p.VolumeID, &p.Hour, &p.KeepDays, &p.KeepLast, &p.NextAt, &by, &p.PrincipalID)
	if errors.Is(err, sql.ErrNoRows) {
		return nil, nil
	}
	if err == nil {
		err = json.Unmarshal([]byte(by), &p.CreatedBy)
	}
	if err != nil {
		return nil, fmt.Errorf("read policy of backups: %w", err)
	}
	return &p, nil
}

func (store) policy(ctx context.Context, q op.Tx, volumeID string) (*policy, error) {
	return scanPolicy(q.QueryRowContext(ctx, `SELECT `+policyColumns+` FROM backup_policies WHERE volume_id = $1`, volumeID))
}

func (store) duePolicies(ctx context.Context, q op.Tx, now int64) ([]*policy, error) {
	return collect(scanPolicy)(q.QueryContext(ctx, `SELECT `+policyColumns+` FROM backup_policies WHERE next_at <= $1 LIMIT 200`, now))
}

func (store) setPolicy(ctx context.Context, tx op.Tx, p *policy) error {
	by, err := json.Marshal(p.CreatedBy)
	if err != nil {
		return fmt.Errorf("encode policy: %w", err)
	}
	_, err = tx.ExecContext(ctx, `INSERT INTO backup_policies (`+policyColumns+`) VALUES ($1, $2, $3, $4, $5, $6, $7)
		ON CONFLICT (volume_id) DO UPDATE SET hour = excluded.hour, keep_days = excluded.keep_days, keep_last = excluded.keep_last, next_at = excluded.next_at,
		created_by = excluded.created_by, principal_id = excluded.principal_id`, p.VolumeID, p.Hour, p.KeepDays, p.KeepLast, p.NextAt, string(by), p.PrincipalID)
	if err != nil {
		return fmt.Errorf("set policy of backups: %w", err)
	}
	return nil
}

func (store) dropPolicy(ctx context.Context, tx op.Tx, volumeID string) error {
	if _, err := tx.ExecContext(ctx, `DELETE FROM backup_policies WHERE volume_id = $1`, volumeID); err != nil {
		return fmt.Errorf("drop policy of backups: %w", err)
	}
	return nil
}

// turn takes a policy's turn: only one server does. It is false where another has it.
func (store) turn(ctx context.Context, tx op.Tx, p *policy, next int64) (bool, error) {
	n, err := affected(tx.ExecContext(ctx, `UPDATE backup_policies SET next_at = $1 WHERE volume_id = $2 AND next_at = $3`, next, p.VolumeID, p.NextAt))
	if err != nil {
		return false, fmt.Errorf("take turn of policy: %w", err)
	}
	return n > 0, nil
}
