package volume

import (
	"context"
	"time"

	"github.com/berthrun/berth/api"
	"github.com/berthrun/berth/api/op"
	"github.com/berthrun/berth/internal/caller"
	"github.com/berthrun/berth/internal/db"
	"github.com/berthrun/berth/internal/draft"
	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/id"
)

func (s *Service) registerBackups(r *op.Registry) {
	op.Handle(r, api.CreateBackup, op.Handler[api.CreateBackupIn, api.BackupOut]{
		Draft:  func(ctx context.Context, in *api.CreateBackupIn) (*op.Draft, error) { return s.draft(ctx, in.VolumeID) },
		Intent: s.intentBackup, Act: s.actBackup,
	})
	op.Handle(r, api.ListBackups, op.Handler[api.ListBackupsIn, api.ListBackupsOut]{Draft: s.draftListBackups, Act: s.actListBackups})
	op.Handle(r, api.GetBackup, op.Handler[api.BackupIn, api.GetBackupOut]{
		Draft: func(ctx context.Context, in *api.BackupIn) (*op.Draft, error) {
			b, err := s.findBackup(ctx, s.DB, in.BackupID)
			if err != nil {
				return nil, err
			}
			return &op.Draft{Resource: b.resource()}, nil
		},
		Act: func(ctx context.Context, in *api.BackupIn, _ *op.Draft) (*api.GetBackupOut, error) {
			b, err := s.findBackup(ctx, s.DB, in.BackupID)
			if err != nil {
				return nil, err
			}
			return &api.GetBackupOut{Backup: b.show()}, nil
		},
	})
	op.Handle(r, api.DeleteBackup, op.Handler[api.DeleteBackupIn, api.DeleteBackupOut]{Draft: s.draftDeleteBackup, Intent: s.intentDeleteBackup, Act: s.actDeleteBackup})
	op.Handle(r, api.SetBackupPolicy, op.Handler[api.BackupPolicyIn, api.BackupPolicyOut]{
		Draft:  func(ctx context.Context, in *api.BackupPolicyIn) (*op.Draft, error) { return s.draft(ctx, in.VolumeID) },
		Intent: s.intentPolicy, Act: s.actPolicy,
	})
}

// findBackup gives a backup of the caller's organization, errs.NotFound for another's and for a deleted one.
func (s *Service) findBackup(ctx context.Context, q op.Tx, id string) (*backup, error) {
	b, err := s.findDeletedBackup(ctx, q, id)
	if err == nil && b.State == api.BackupDeleted {
		return nil, errNoBackup(id)
	}
	return b, err
}

func (s *Service) findDeletedBackup(ctx context.Context, q op.Tx, id string) (*backup, error) {
	b, err := s.store.getBackup(ctx, q, id)
	if err != nil {
		return nil, err
	}
	if c := caller.From(ctx); b == nil || c == nil || b.OrgID != c.OrgID {
		return nil, errNoBackup(id)
	}
	return b, nil
}

// newBackup is the row of a backup of a volume that begins now.
func (s *Service) newBackup(r *row, id string) *backup {
	now := db.Micros(s.Now())
	return &backup{
		ID: id, OrgID: r.OrgID, WorkspaceID: r.WorkspaceID, VolumeID: r.ID, VolumeName: r.Name, SizeGiB: r.SizeGiB, State: api.BackupCreating, CreatedAt: now, StateAt: now,
	}
}

func (s *Service) insertBackup(ctx context.Context, tx op.Tx, b *backup) error {
	if err := s.store.insertBackup(ctx, tx, b); err != nil {
		return err
	}
	return s.Events.Append(ctx, tx, b.OrgID, b.WorkspaceID, "backup."+b.State, b.ID, map[string]any{"to": b.State, "volumeId": b.VolumeID, "automatic": b.Automatic})
}

func (s *Service) intentBackup(ctx context.Context, tx op.Tx, in *api.CreateBackupIn, d *op.Draft) error {
	if s.Storage == nil || !s.Node.Capabilities().Volumes {
		return unsupported("backups")
	}
	r, err := s.store.lock(ctx, tx, in.VolumeID)
	switch {
	case err != nil:
		return err
	case r == nil || gone(r.State):
		return errNotFound(in.VolumeID)
	case r.State != api.VolumeReady:
		return errNotReady(r)
	}
	making, err := s.store.making(ctx, tx, r.ID)
	if err != nil {
		return err
	}
	if len(making) > 0 {
		return errs.E(errs.Busy, "the volume is being backed up").Because("backing_up").After(2*time.Second).
			Suggest("Wait for that one, or call again in a few seconds with the same idempotencyKey.").With("backupId", making[0])
	}
	c := caller.From(ctx)
	b := s.newBackup(r, idOf(id.Backup, d))
	b.CreatedBy, b.PrincipalID = draft.By(c), c.PrincipalID
	return s.insertBackup(ctx, tx, b)
}

func outBackup(b *backup) *api.BackupOut {
	v := b.show()
	return &api.BackupOut{Status: "done", Ready: b.State == api.BackupReady, Backup: &v}
}

func (s *Service) actBackup(ctx context.Context, in *api.CreateBackupIn, d *op.Draft) (*api.BackupOut, error) {
	s.nudge(idOf(id.Backup, d))
	b, err := s.settleBackup(ctx, idOf(id.Backup, d), in.Wait())
	switch {
	case err != nil:
		return nil, err
	case b.State == api.BackupFailed:
		return nil, errs.E(errs.Upstream, "the backup failed: %s", b.Error).Because(b.Reason).
			Suggest("The volume and its other backups are as they were. Try again with a new idempotencyKey.").With("backupId", b.ID)
	case gone(b.State):
		return nil, errNoBackup(b.ID)
	}
	return outBackup(b), nil
}

// settleBackup is settle of a backup.
func (s *Service) settleBackup(ctx context.Context, id string, seconds int) (*backup, error) {
	return db.Settled(ctx, s.DB, topic(id), op.Remaining(ctx, time.Duration(seconds)*time.Second), op.Yield, func(ctx context.Context) (*backup, error) {
		b, err := s.store.getBackup(ctx, s.DB, id)
		if err == nil && b == nil {
			err = errNoBackup(id)
		}
		return b, err
	}, func(b *backup) bool { return !moving(b.State) })
}

func (s *Service) draftListBackups(ctx context.Context, in *api.ListBackupsIn) (*op.Draft, error) {
	c := caller.From(ctx)
	if in.VolumeID != "" {
		// Of a volume that is long gone there may be some left.
		if _, err := s.find(ctx, s.DB, in.VolumeID); err != nil {
			had, herr := s.store.hadBackups(ctx, s.DB, c.OrgID, in.VolumeID)
			if herr != nil {
				return nil, herr
			}
			if !had {
				return nil, err
			}
		}
	}
	return &op.Draft{Resource: op.Resource{Kind: "backup", OrgID: c.OrgID, WorkspaceID: c.WorkspaceID}}, nil
}

func (s *Service) actListBackups(ctx context.Context, in *api.ListBackupsIn, _ *op.Draft) (*api.ListBackupsOut, error) {
	bound := *in
	bound.PageIn = op.PageIn{}
	f, limit, err := pageOf(ctx, bound, &in.PageIn, in.Scope, map[string]string{"volume_id": in.VolumeID})
	if err != nil {
		return nil, err
	}
	rows, err := s.store.listBackups(ctx, s.DB, f)
	if err != nil {
		return nil, err
	}
	list := &api.ListBackupsOut{Items: []api.Backup{}}
	if len(rows) > limit {
		rows = rows[:limit]
		list.NextCursor = op.EncodeMoment(bound, rows[limit-1].CreatedAt, rows[limit-1].ID)
	}
	for _, b := range rows {
		list.Items = append(list.Items, b.show())
	}
	return list, nil
}

func (s *Service) draftDeleteBackup(ctx context.Context, in *api.DeleteBackupIn) (*op.Draft, error) {
	b, err := s.findDeletedBackup(ctx, s.DB, in.BackupID)
	if err != nil {
		return nil, err
	}
	return &op.Draft{Resource: b.resource()}, nil
}

func (s *Service) intentDeleteBackup(ctx context.Context, tx op.Tx, in *api.DeleteBackupIn, _ *op.Draft) error {
	b, err := s.store.lockBackup(ctx, tx, in.BackupID)
	if err != nil || b == nil || gone(b.State) {
		return err
	}
	return s.deleteBackup(ctx, tx, b)
}

// deleteBackup begins the deletion of a backup that nothing is being made of.
func (s *Service) deleteBackup(ctx context.Context, tx op.Tx, b *backup) error {
	n, err := s.store.restoring(ctx, tx, b.ID)
	if err != nil {
		return err
	}
	if n > 0 {
		return errs.E(errs.Busy, "a volume is being made of the backup").Because("in_use").After(2 * time.Second).
			Suggest("Call again in a few seconds with the same idempotencyKey.")
	}
	return s.moveBackupTx(ctx, tx, b, api.BackupDeleting)
}

func (s *Service) actDeleteBackup(ctx context.Context, in *api.DeleteBackupIn, _ *op.Draft) (*api.DeleteBackupOut, error) {
	s.interrupt(in.BackupID)
	b, err := s.settleBackup(ctx, in.BackupID, in.Wait())
	if errs.Is(err, errs.NotFound) {
		return &api.DeleteBackupOut{BackupID: in.BackupID, Deleted: true}, nil
	}
	if err != nil {
		return nil, err
	}
	return &api.DeleteBackupOut{BackupID: b.ID, Deleted: b.State == api.BackupDeleted}, nil
}

// keepDays is how many days a backup is kept where a policy does not say.
const keepDays = 7

func (s *Service) intentPolicy(ctx context.Context, tx op.Tx, in *api.BackupPolicyIn, _ *op.Draft) error {
	r, err := s.store.lock(ctx, tx, in.VolumeID)
	switch {
	case err != nil:
		return err
	case r == nil || gone(r.State):
		return errNotFound(in.VolumeID)
	}
	on := in.Enabled == nil || *in.Enabled
	s.DB.NotifyAfter(tx, topic(r.ID))
	if !on {
		if err := s.store.dropPolicy(ctx, tx, r.ID); err != nil {
			return err
		}
		return s.Events.Append(ctx, tx, r.OrgID, r.WorkspaceID, "volume.policy", r.ID, map[string]any{"enabled": false})
	}
	if s.Storage == nil || !s.Node.Capabilities().Volumes {
		return unsupported("backups")
	}
	c := caller.From(ctx)
	p := &policy{
		VolumeID: r.ID, Hour: in.Hour, KeepDays: in.KeepDays, KeepLast: in.KeepLast,
		CreatedBy: draft.By(c), PrincipalID: c.PrincipalID,
	}
	if p.KeepDays == 0 && p.KeepLast == 0 {
		p.KeepDays = keepDays
	}
	p.NextAt = db.Micros(p.next(s.Now()))
	if err := s.store.setPolicy(ctx, tx, p); err != nil {
		return err
	}
	return s.Events.Append(ctx, tx, r.OrgID, r.WorkspaceID, "volume.policy", r.ID, map[string]any{"enabled": true, "hour": p.Hour, "keepDays": p.KeepDays, "keepLast": p.KeepLast})
}

func (s *Service) actPolicy(ctx context.Context, in *api.BackupPolicyIn, _ *op.Draft) (*api.BackupPolicyOut, error) {
	out := &api.BackupPolicyOut{Status: "done", VolumeID: in.VolumeID}
	p, err := s.store.policy(ctx, s.DB, in.VolumeID)
	if err == nil && p != nil {
		out.Policy = p.show()
	}
	return out, err
}
