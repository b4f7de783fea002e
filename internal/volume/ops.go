package volume

import (
	"context"
	"strings"
	"time"

	"github.com/berthrun/berth/api"
	"github.com/berthrun/berth/api/op"
	"github.com/berthrun/berth/internal/caller"
	"github.com/berthrun/berth/internal/db"
	"github.com/berthrun/berth/internal/draft"
	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/id"
)

// Register binds the operations on volumes and backups.
func (s *Service) Register(r *op.Registry) {
	op.Handle(r, api.ListVolumes, op.Handler[api.ListVolumesIn, api.ListVolumesOut]{Draft: s.draftList, Act: s.actList})
	op.Handle(r, api.GetVolume, op.Handler[api.VolumeIn, api.GetVolumeOut]{
		Draft: func(ctx context.Context, in *api.VolumeIn) (*op.Draft, error) { return s.draft(ctx, in.VolumeID) },
		Act: func(ctx context.Context, in *api.VolumeIn, _ *op.Draft) (*api.GetVolumeOut, error) {
			r, err := s.find(ctx, s.DB, in.VolumeID)
			if err != nil {
				return nil, err
			}
			v, err := s.show(ctx, r)
			return &api.GetVolumeOut{Volume: v}, err
		},
	})
	op.Handle(r, api.CreateVolume, op.Handler[api.CreateVolumeIn, api.VolumeOut]{Draft: s.draftCreate, Intent: s.intentCreate, Act: s.actCreate})
	op.Handle(r, api.ResizeVolume, op.Handler[api.ResizeVolumeIn, api.VolumeOut]{Draft: s.draftResize, Intent: s.intentResize, Act: s.actResize})
	op.Handle(r, api.AttachVolume, op.Handler[api.AttachVolumeIn, api.VolumeOut]{
		Draft: s.draftAttach, Intent: s.intentAttach,
		Act: func(ctx context.Context, in *api.AttachVolumeIn, _ *op.Draft) (*api.VolumeOut, error) {
			return s.actOut(ctx, in.VolumeID)
		},
	})
	op.Handle(r, api.DetachVolume, op.Handler[api.DetachVolumeIn, api.VolumeOut]{
		Draft: s.draftDetach, Intent: s.intentDetach,
		Act: func(ctx context.Context, in *api.DetachVolumeIn, _ *op.Draft) (*api.VolumeOut, error) {
			return s.actOut(ctx, in.VolumeID)
		},
	})
	op.Handle(r, api.DeleteVolume, op.Handler[api.DeleteVolumeIn, api.DeleteVolumeOut]{Draft: s.draftDelete, Intent: s.intentDelete, Act: s.actDelete})
	s.registerBackups(r)
}

// find gives a volume of the caller's organization, errs.NotFound for another's and for a deleted one.
func (s *Service) find(ctx context.Context, q op.Tx, id string) (*row, error) {
	r, err := s.findDeleted(ctx, q, id)
	if err == nil && r.State == api.VolumeDeleted {
		return nil, errNotFound(id)
	}
	return r, err
}

func (s *Service) findDeleted(ctx context.Context, q op.Tx, id string) (*row, error) {
	r, err := s.store.get(ctx, q, id)
	if err != nil {
		return nil, err
	}
	if c := caller.From(ctx); r == nil || c == nil || r.OrgID != c.OrgID {
		return nil, errNotFound(id)
	}
	return r, nil
}

func (s *Service) draft(ctx context.Context, id string) (*op.Draft, error) {
	r, err := s.find(ctx, s.DB, id)
	if err != nil {
		return nil, err
	}
	return &op.Draft{Resource: r.resource()}, nil
}

// show is a volume with what other tables hold.
func (s *Service) show(ctx context.Context, r *row) (api.Volume, error) {
	v := r.show()
	all, err := s.store.to(ctx, s.DB, r.ID)
	if err != nil {
		return v, err
	}
	for _, a := range all {
		v.Attachments = append(v.Attachments, api.VolumeAttachment{SandboxID: a.SandboxID, Path: a.Path, ReadOnly: a.ReadOnly})
	}
	p, err := s.store.policy(ctx, s.DB, r.ID)
	if err != nil {
		return v, err
	}
	if p != nil {
		v.Backups = p.show()
	}
	if r.State == api.VolumeCreating && r.FromBackup != "" {
		b, err := s.store.getBackup(ctx, s.DB, r.FromBackup)
		if err != nil {
			return v, err
		}
		if b != nil {
			v.Progress = progress(r.DoneBytes, b.ContentBytes)
		}
	}
	return v, nil
}

func (s *Service) out(ctx context.Context, r *row) (*api.VolumeOut, error) {
	v, err := s.show(ctx, r)
	return &api.VolumeOut{Status: "done", Ready: r.State == api.VolumeReady, Volume: &v}, err
}

func (s *Service) actOut(ctx context.Context, id string) (*api.VolumeOut, error) {
	r, err := s.find(ctx, s.DB, id)
	if err != nil {
		return nil, err
	}
	return s.out(ctx, r)
}

// checkPool refuses a pool that volumes cannot lie in.
func (s *Service) checkPool(pool string) error {
	if pool != "" && pool != s.Pool {
		return errs.E(errs.NotFound, "there is no pool %s", pool).Because("pool").Suggest("list_pools shows which exist.").With("path", "poolId")
	}
	return nil
}

func (s *Service) draftList(ctx context.Context, in *api.ListVolumesIn) (*op.Draft, error) {
	if err := s.checkPool(in.PoolID); err != nil {
		return nil, err
	}
	c := caller.From(ctx)
	return &op.Draft{Resource: op.Resource{Kind: "volume", OrgID: c.OrgID, WorkspaceID: c.WorkspaceID}}, nil
}

// pageOf gives what a page asks of the database, one item more than it has.
func pageOf[In any](ctx context.Context, in In, p *op.PageIn, scope string, equal map[string]string) (f filter, limit int, err error) {
	c := caller.From(ctx)
	limit = p.Size()
	f = filter{OrgID: c.OrgID, Equal: equal, Limit: limit + 1}
	if scope != "all" {
		f.PrincipalID = c.PrincipalID
	}
	f.AfterTime, f.AfterID, err = op.DecodeMoment(p.Cursor, in)
	return f, limit, err
}

func (s *Service) actList(ctx context.Context, in *api.ListVolumesIn, _ *op.Draft) (*api.ListVolumesOut, error) {
	bound := *in
	bound.PageIn = op.PageIn{}
	f, limit, err := pageOf(ctx, bound, &in.PageIn, in.Scope, map[string]string{"name": in.Name, "pool_id": in.PoolID})
	if err != nil {
		return nil, err
	}
	rows, err := s.store.list(ctx, s.DB, f)
	if err != nil {
		return nil, err
	}
	list := &api.ListVolumesOut{Items: []api.Volume{}}
	if len(rows) > limit {
		rows = rows[:limit]
		list.NextCursor = op.EncodeMoment(bound, rows[limit-1].CreatedAt, rows[limit-1].ID)
	}
	for _, r := range rows {
		v, err := s.show(ctx, r)
		if err != nil {
			return nil, err
		}
		list.Items = append(list.Items, v)
	}
	return list, nil
}

// idOf is the id of what one effect makes: the same at every repetition.
func idOf(k id.Kind, d *op.Draft) string {
	_, rest, _ := strings.Cut(d.Once, "_")
	return string(k) + "_" + rest
}

func (s *Service) draftCreate(ctx context.Context, in *api.CreateVolumeIn) (*op.Draft, error) {
	c := caller.From(ctx)
	if err := s.checkPool(in.PoolID); err != nil {
		return nil, err
	}
	size := in.SizeGiB
	if in.FromBackup != "" {
		b, err := s.findBackup(ctx, s.DB, in.FromBackup)
		if err != nil {
			return nil, err
		}
		if size == 0 {
			size = b.SizeGiB
		}
		if size < b.SizeGiB {
			return nil, errs.E(errs.InvalidInput, "the volume that was backed up had %d GiB", b.SizeGiB).Because("too_small").Suggest("Ask for at least that much.").
				With("path", "sizeGiB").With("least", b.SizeGiB)
		}
	}
	if size == 0 {
		return nil, errs.E(errs.InvalidInput, "sizeGiB is required").Suggest("Say how large it is to be, from 1 to 16384 GiB.").With("path", "sizeGiB")
	}
	if id.Valid(id.Volume, in.Name) {
		return nil, errs.E(errs.InvalidInput, "a name must not look like the id of a volume").Suggest("Choose another name.").With("path", "name")
	}
	r := &row{
		OrgID: c.OrgID, WorkspaceID: c.WorkspaceID, Name: in.Name, State: api.VolumeCreating, PoolID: s.Pool, SizeGiB: size, FromBackup: in.FromBackup,
		CreatedBy: draft.By(c), PrincipalID: c.PrincipalID,
	}
	return &op.Draft{Resource: r.resource(), Cost: r.usage(r.State), Data: r}, nil
}

func (s *Service) intentCreate(ctx context.Context, tx op.Tx, in *api.CreateVolumeIn, d *op.Draft) error {
	if !s.Node.Capabilities().Volumes {
		return unsupported("volumes")
	}
	if in.FromBackup != "" {
		switch b, err := s.store.lockBackup(ctx, tx, in.FromBackup); {
		case err != nil:
			return err
		case b == nil || gone(b.State):
			return errNoBackup(in.FromBackup)
		case b.State != api.BackupReady:
			return errBackupNotReady(b)
		}
	}
	switch there, err := s.store.named(ctx, tx, d.Resource.OrgID, in.Name); {
	case err != nil:
		return err
	case there != nil:
		return errNameTaken(in.Name)
	}
	r := *d.Data.(*row) // it may run again
	r.ID, r.CreatedAt = idOf(id.Volume, d), db.Micros(s.Now())
	r.StateAt = r.CreatedAt
	d.Resource.ID = r.ID
	if err := s.store.insert(ctx, tx, &r); err != nil {
		return err
	}
	if err := s.Quota.Take(ctx, tx, r.OrgID, r.usage(r.State)); err != nil {
		return err
	}
	return s.Events.Append(ctx, tx, r.OrgID, r.WorkspaceID, "volume."+r.State, r.ID, map[string]any{"to": r.State, "name": r.Name, "sizeGiB": r.SizeGiB})
}

func (s *Service) actCreate(ctx context.Context, in *api.CreateVolumeIn, d *op.Draft) (*api.VolumeOut, error) {
	volume := idOf(id.Volume, d)
	s.nudge(volume)
	r, err := s.settle(ctx, volume, in.Wait())
	switch {
	case err != nil:
		return nil, err
	case r.State == api.VolumeFailed:
		e := errs.E(errs.Upstream, "the volume could not be made: %s", r.Error).Because(r.Reason).With("volumeId", r.ID)
		if r.FromBackup != "" {
			return nil, e.Suggest("Nothing of it is left. Use another backup; if its node was full, try again with a new idempotencyKey once there is room.")
		}
		return nil, e.Suggest("Nothing of it is left. Try again with a new idempotencyKey.")
	case gone(r.State):
		return nil, errNotFound(r.ID)
	}
	return s.out(ctx, r)
}

// settle waits until a volume moves no more, at most for the given seconds and what the call has left, and gives it as it is then.
func (s *Service) settle(ctx context.Context, id string, seconds int) (*row, error) {
	return db.Settled(ctx, s.DB, topic(id), op.Remaining(ctx, time.Duration(seconds)*time.Second), op.Yield, func(ctx context.Context) (*row, error) {
		r, err := s.store.get(ctx, s.DB, id)
		if err == nil && r == nil {
			err = errNotFound(id)
		}
		return r, err
	}, func(r *row) bool { return !moving(r.State) })
}

func (s *Service) draftResize(ctx context.Context, in *api.ResizeVolumeIn) (*op.Draft, error) {
	r, err := s.find(ctx, s.DB, in.VolumeID)
	if err != nil {
		return nil, err
	}
	return &op.Draft{Resource: r.resource(), Cost: map[string]int64{"disk.total": max(in.SizeGiB-r.SizeGiB, 0)}}, nil
}

func (s *Service) intentResize(ctx context.Context, tx op.Tx, in *api.ResizeVolumeIn, _ *op.Draft) error {
	r, err := s.store.lock(ctx, tx, in.VolumeID)
	switch {
	case err != nil:
		return err
	case r == nil || gone(r.State):
		return errNotFound(in.VolumeID)
	case r.State != api.VolumeReady:
		return errNotReady(r)
	case in.SizeGiB < r.SizeGiB:
		return errs.E(errs.InvalidInput, "the volume has %d GiB and never gets smaller", r.SizeGiB).Because("shrinks").
			Suggest("Create a smaller one and copy what is to stay.").With("path", "sizeGiB").With("least", r.SizeGiB)
	case in.SizeGiB == r.SizeGiB:
		return nil
	}
	if err := s.Quota.Take(ctx, tx, r.OrgID, map[string]int64{"disk.total": in.SizeGiB - r.SizeGiB}); err != nil {
		return err
	}
	if _, err := tx.ExecContext(ctx, `UPDATE volumes SET size_gib = $1 WHERE id = $2`, in.SizeGiB, r.ID); err != nil {
		return err
	}
	s.DB.NotifyAfter(tx, topic(r.ID))
	return s.Events.Append(ctx, tx, r.OrgID, r.WorkspaceID, "volume.resized", r.ID, map[string]any{"from": r.SizeGiB, "to": in.SizeGiB})
}

// growWait is how long a resize waits for the node.
const growWait = 10 * time.Second

func (s *Service) actResize(ctx context.Context, in *api.ResizeVolumeIn, _ *op.Draft) (*api.VolumeOut, error) {
	s.nudge(in.VolumeID)
	r, err := db.Settled(ctx, s.DB, topic(in.VolumeID), op.Remaining(ctx, growWait), op.Yield, func(ctx context.Context) (*row, error) {
		return s.find(ctx, s.DB, in.VolumeID)
	}, func(r *row) bool { return r.MadeGiB >= r.SizeGiB || gone(r.State) })
	if err != nil {
		return nil, err
	}
	return s.out(ctx, r)
}

func (s *Service) draftDelete(ctx context.Context, in *api.DeleteVolumeIn) (*op.Draft, error) {
	r, err := s.findDeleted(ctx, s.DB, in.VolumeID)
	if err != nil {
		return nil, err
	}
	return &op.Draft{Resource: r.resource()}, nil
}

func (s *Service) intentDelete(ctx context.Context, tx op.Tx, in *api.DeleteVolumeIn, _ *op.Draft) error {
	r, err := s.store.lock(ctx, tx, in.VolumeID)
	if err != nil || r == nil || gone(r.State) {
		return err
	}
	all, err := s.store.to(ctx, tx, r.ID)
	if err != nil {
		return err
	}
	if len(all) > 0 {
		return errAttached(r, all)
	}
	making, err := s.store.making(ctx, tx, r.ID)
	if err != nil {
		return err
	}
	if len(making) > 0 {
		return errs.E(errs.Busy, "the volume is being backed up").Because("backing_up").After(2*time.Second).
			Suggest("Call again in a few seconds with the same idempotencyKey, or delete the backup first.").With("backups", making)
	}
	if err := s.store.dropPolicy(ctx, tx, r.ID); err != nil {
		return err
	}
	return s.moveTx(ctx, tx, r, api.VolumeDeleting)
}

// errAttached is the error of a delete of what sandboxes have.
func errAttached(r *row, all []*attachment) error {
	names := make([]string, len(all))
	for i, a := range all {
		names[i] = a.SandboxID
	}
	shown := names[:min(len(names), 5)]
	text := strings.Join(shown, ", ")
	if len(names) > len(shown) {
		text += ", …"
	}
	return errs.E(errs.InvalidState, "the volume %s is attached to %s", r.Name, text).Because("attached").
		Suggest("Delete these sandboxes, or stop them and detach it with detach_volume.").With("sandboxes", names)
}

func (s *Service) actDelete(ctx context.Context, in *api.DeleteVolumeIn, _ *op.Draft) (*api.DeleteVolumeOut, error) {
	s.interrupt(in.VolumeID)
	r, err := s.settle(ctx, in.VolumeID, in.Wait())
	if errs.Is(err, errs.NotFound) {
		return &api.DeleteVolumeOut{VolumeID: in.VolumeID, Deleted: true}, nil
	}
	if err != nil {
		return nil, err
	}
	return &api.DeleteVolumeOut{VolumeID: r.ID, Deleted: r.State == api.VolumeDeleted}, nil
}
