package volume

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/berthrun/berth/api"
	"github.com/berthrun/berth/api/op"
	"github.com/berthrun/berth/internal/db"
	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/id"
)

// advanceBackup makes the next step of a backup.
func (s *Service) advanceBackup(ctx context.Context, id string) error {
	b, err := s.store.getBackup(ctx, s.DB, id)
	if err != nil || b == nil {
		return err
	}
	switch b.State {
	case api.BackupCreating:
		return s.keep(ctx, b)
	case api.BackupDeleting:
		return s.drop(ctx, b)
	case api.BackupFailed:
		if db.Time(b.StateAt).Add(failedFor).After(s.Now()) {
			return nil
		}
		return s.moveBackup(ctx, b, api.BackupDeleting)
	case api.BackupDeleted:
		if db.Time(b.StateAt).Add(tombstoneFor).After(s.Now()) {
			return nil
		}
		_, err := s.DB.ExecContext(ctx, `DELETE FROM volume_backups WHERE id = $1 AND state = 'deleted'`, b.ID)
		return err
	}
	return nil
}

// keep makes a backup: a copy of a moment on the node, which is then kept elsewhere and forgotten there.
func (s *Service) keep(ctx context.Context, b *backup) error {
	ctx, free, mine, err := s.hold(ctx, b.ID)
	if err != nil || !mine {
		return err
	}
	defer free()
	if b, err = s.store.getBackup(ctx, s.DB, b.ID); err != nil || b == nil || b.State != api.BackupCreating {
		return err // another server has done it
	}
	kept, err := s.copyOff(ctx, b)
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case err != nil && s.passes(err, b.CreatedAt):
		return err
	}
	// What cannot be forgotten now is at the next look at the node.
	defer func() {
		if err := s.Node.ForgetCopy(ctx, b.ID); err != nil && ctx.Err() == nil {
			s.Logger.Warn("copy of a backup not forgotten", "backup", b.ID, "error", err)
		}
	}()
	if err != nil {
		s.Logger.Warn("backup failed", "backup", b.ID, "volume", b.VolumeID, "error", err)
		b.Error, b.Reason = explain(err)
		return s.moveBackup(ctx, b, api.BackupFailed)
	}
	b.Files, b.ContentBytes, b.StoredBytes, b.SHA256 = kept.Files, kept.Content, kept.Added, kept.SHA256
	if err := s.moveBackup(ctx, b, api.BackupReady); err != nil {
		return err
	}
	if b.Automatic {
		return s.thin(ctx, b.VolumeID)
	}
	return nil
}

func (s *Service) copyOff(ctx context.Context, b *backup) (Kept, error) {
	if s.Storage == nil {
		return Kept{}, unsupported("backups")
	}
	if b.TakenAt == 0 {
		if err := s.take(ctx, b); err != nil {
			return Kept{}, err
		}
	}
	var done atomic.Int64
	defer s.tell(ctx, `UPDATE volume_backups SET done_bytes = $1 WHERE id = $2 AND state = 'creating'`, b.ID, &done)()
	kept, err := s.Storage.Keep(ctx, b.stored(), done.Store)
	if errs.Is(err, errs.NotFound) {
		// The node has lost its copy, as a machine may that lost its power at that moment. Another one is as good: nobody was told of the first.
		if _, uerr := s.DB.ExecContext(ctx, `UPDATE volume_backups SET taken_at = 0 WHERE id = $1 AND state = 'creating'`, b.ID); uerr != nil {
			return Kept{}, uerr
		}
		err = errs.Wrap(errs.Busy, err, "the copy is gone from the node")
	}
	return kept, err
}

// take makes the copy of a moment. Who writes to the volume has written everything down before.
func (s *Service) take(ctx context.Context, b *backup) error {
	all, err := s.store.to(ctx, s.DB, b.VolumeID)
	if err != nil {
		return err
	}
	for _, a := range all {
		if !a.ReadOnly {
			s.Sandboxes.Flush(ctx, a.SandboxID)
		}
	}
	if err := s.Node.CopyVolume(ctx, b.VolumeID, b.ID); err != nil {
		return err
	}
	r, err := s.store.get(ctx, s.DB, b.VolumeID)
	if err != nil {
		return err
	}
	if r != nil {
		b.TotalBytes = r.UsedBytes
	}
	b.TakenAt = db.Micros(s.Now())
	return s.DB.Tx(ctx, func(tx *sql.Tx) error {
		n, err := affected(tx.ExecContext(ctx, `UPDATE volume_backups SET taken_at = $1, total_bytes = $2 WHERE id = $3 AND state = 'creating'`, b.TakenAt, b.TotalBytes, b.ID))
		if err != nil {
			return fmt.Errorf("record copy: %w", err)
		}
		if n == 0 {
			return errLostRace
		}
		return nil
	})
}

// drop takes everything away that a deleting backup has.
func (s *Service) drop(ctx context.Context, b *backup) error {
	if s.Node.Capabilities().Volumes {
		if err := s.Node.ForgetCopy(ctx, b.ID); err != nil {
			return err
		}
	}
	if s.Storage != nil {
		if err := s.Storage.Drop(ctx, b.stored()); err != nil {
			return err
		}
	}
	return s.moveBackup(ctx, b, api.BackupDeleted)
}

// keepPolicies begins the backups whose hour has come.
func (s *Service) keepPolicies(ctx context.Context) error {
	if s.Storage == nil || !s.Node.Capabilities().Volumes {
		return nil
	}
	due, err := s.store.duePolicies(ctx, s.DB, db.Micros(s.Now()))
	if err != nil {
		return err
	}
	for _, p := range due {
		if err := s.keepPolicy(ctx, p); err != nil {
			return err
		}
	}
	return nil
}

// keepPolicy begins one backup. An hour that passed while no server ran is made up for once, whatever their number.
func (s *Service) keepPolicy(ctx context.Context, p *policy) error {
	fresh := id.New(id.Backup)
	begun := false
	err := s.DB.Tx(ctx, func(tx *sql.Tx) error {
		begun = false
		mine, err := s.store.turn(ctx, tx, p, db.Micros(p.next(s.Now())))
		if err != nil || !mine {
			return err
		}
		r, err := s.store.lock(ctx, tx, p.VolumeID)
		if err != nil || r == nil || r.State != api.VolumeReady {
			return err
		}
		making, err := s.store.making(ctx, tx, r.ID)
		if err != nil || len(making) > 0 { // one that is under way is as good
			return err
		}
		b := s.newBackup(r, fresh)
		b.Automatic, b.CreatedBy, b.PrincipalID = true, p.CreatedBy, p.PrincipalID
		begun = true
		return s.insertBackup(ctx, tx, b)
	})
	if err == nil && begun {
		s.nudge(fresh)
	}
	return err
}

// thin deletes the automatic backups of a volume that its policy does not keep.
func (s *Service) thin(ctx context.Context, volumeID string) error {
	p, err := s.store.policy(ctx, s.DB, volumeID)
	if err != nil || p == nil {
		return err
	}
	all, err := s.store.automatic(ctx, s.DB, volumeID)
	if err != nil {
		return err
	}
	for _, b := range overdue(all, p, s.Now()) {
		err := s.DB.Tx(ctx, func(tx *sql.Tx) error {
			now, err := s.store.lockBackup(ctx, tx, b.ID)
			if err != nil || now == nil || now.State != api.BackupReady {
				return err
			}
			return s.deleteBackup(ctx, tx, now)
		})
		if errs.Is(err, errs.Busy) || errors.Is(err, errLostRace) {
			continue // a volume is being made of it: the next one's turn
		}
		if err != nil {
			return err
		}
		s.nudge(b.ID)
	}
	return nil
}

// overdue gives which of a volume's automatic backups, newest first, a policy does not keep any more. The newest is always kept.
func overdue(all []*backup, p *policy, now time.Time) (old []*backup) {
	since := db.Micros(now.AddDate(0, 0, -p.KeepDays))
	for i, b := range all {
		kept := i == 0 || i < p.KeepLast || p.KeepDays > 0 && b.CreatedAt > since
		if !kept {
			old = append(old, b)
		}
	}
	return old
}

// moveBackupTx is moveTx of a backup.
func (s *Service) moveBackupTx(ctx context.Context, tx op.Tx, b *backup, to string) error {
	from := b.State
	b.StateAt = db.Micros(s.Now())
	if err := s.store.moveBackup(ctx, tx, b, to); err != nil {
		return err
	}
	s.DB.NotifyAfter(tx, topic(b.ID))
	data := map[string]any{"from": from, "to": to, "volumeId": b.VolumeID}
	if to == api.BackupFailed {
		data["error"], data["reason"] = b.Error, b.Reason
	}
	return s.Events.Append(ctx, tx, b.OrgID, b.WorkspaceID, "backup."+to, b.ID, data)
}

// moveBackup is move of a backup.
func (s *Service) moveBackup(ctx context.Context, b *backup, to string) error {
	before := *b
	err := s.DB.Tx(ctx, func(tx *sql.Tx) error {
		*b = before
		return s.moveBackupTx(ctx, tx, b, to)
	})
	if err != nil {
		*b = before
	}
	return err
}
