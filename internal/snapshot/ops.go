package snapshot

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

// Register binds the operations on snapshots.
func (s *Service) Register(r *op.Registry) {
	op.Handle(r, api.SnapshotSandbox, op.Handler[api.SnapshotSandboxIn, api.SnapshotOut]{Draft: s.draftTake, Intent: s.intentTake, Act: s.actTake})
	op.Handle(r, api.ListSnapshots, op.Handler[api.ListSnapshotsIn, api.ListSnapshotsOut]{Draft: s.draftList, Act: s.actList})
	op.Handle(r, api.GetSnapshot, op.Handler[api.SnapshotIn, api.GetSnapshotOut]{
		Draft: func(ctx context.Context, in *api.SnapshotIn) (*op.Draft, error) { return s.draft(ctx, in.SnapshotID) },
		Act: func(ctx context.Context, in *api.SnapshotIn, _ *op.Draft) (*api.GetSnapshotOut, error) {
			r, err := s.find(ctx, s.DB, in.SnapshotID)
			if err != nil {
				return nil, err
			}
			return &api.GetSnapshotOut{Snapshot: r.show()}, nil
		},
	})
	op.Handle(r, api.UpdateSnapshot, op.Handler[api.UpdateSnapshotIn, api.SnapshotOut]{
		Draft: func(ctx context.Context, in *api.UpdateSnapshotIn) (*op.Draft, error) {
			if err := api.CheckMetadata(in.Metadata); err != nil {
				return nil, err
			}
			return s.draft(ctx, in.SnapshotID)
		},
		Intent: s.intentUpdate,
		Act: func(ctx context.Context, in *api.UpdateSnapshotIn, _ *op.Draft) (*api.SnapshotOut, error) {
			r, err := s.find(ctx, s.DB, in.SnapshotID)
			if err != nil {
				return nil, err
			}
			return out(r), nil
		},
	})
	op.Handle(r, api.DeleteSnapshot, op.Handler[api.DeleteSnapshotIn, api.DeleteSnapshotOut]{Draft: s.draftDelete, Intent: s.intentDelete, Act: s.actDelete})
}

// find gives a snapshot of the caller's organization, errs.NotFound for another's and for a deleted one.
func (s *Service) find(ctx context.Context, q op.Tx, id string) (*row, error) {
	r, err := s.findDeleted(ctx, q, id)
	if err == nil && r.State == api.SnapshotDeleted {
		return nil, errNotFound(id)
	}
	return r, err
}

func (s *Service) findDeleted(ctx context.Context, q op.Tx, id string) (*row, error) {
	r, err := s.store.get(ctx, q, id)
	if err != nil {
		return nil, err
	}
	c := caller.From(ctx)
	if r == nil || c == nil || r.OrgID != c.OrgID {
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

func (s *Service) draftTake(ctx context.Context, in *api.SnapshotSandboxIn) (*op.Draft, error) {
	if err := api.CheckMetadata(in.Metadata); err != nil {
		return nil, err
	}
	res, err := s.Sandboxes.Resource(ctx, in.SandboxID)
	if err != nil {
		return nil, err
	}
	return &op.Draft{Resource: res}, nil
}

// idOf is the id of the snapshot of one effect: the same at every repetition.
func idOf(d *op.Draft) string {
	_, rest, _ := strings.Cut(d.Once, "_")
	return string(id.Snapshot) + "_" + rest
}

func (s *Service) intentTake(ctx context.Context, tx op.Tx, in *api.SnapshotSandboxIn, d *op.Draft) error {
	can := s.Node.Capabilities()
	if !can.Saves || in.Mode == api.ModeMemory && !can.Memory {
		return errs.E(errs.Unavailable, "such snapshots are not available in this deployment").Because("not_supported").
			Suggest("list_capabilities says what is on and what the rest needs.")
	}
	if in.Name != "" {
		switch there, err := s.store.named(ctx, tx, d.Resource.WorkspaceID, in.Name); {
		case err != nil:
			return err
		case there != "":
			return errNameTaken(in.Name)
		}
	}
	snapshot := idOf(d)
	src, err := s.Sandboxes.Hold(ctx, tx, in.SandboxID, snapshot)
	if err != nil {
		return err
	}
	mode := in.Mode
	switch {
	case mode == api.ModeMemory && len(src.Volumes) > 0:
		return errs.E(errs.InvalidState, "the memory of a sandbox with volumes cannot be kept: volumes are not copied").Because("volumes").
			Suggest("Take the snapshot with mode disk; it then has the sandbox's own disk, without what is on the volumes.").With("volumes", src.Volumes)
	case mode == "" && len(src.Volumes) > 0:
		mode = api.ModeDisk
	case mode == api.ModeMemory && !src.Memory:
		return errs.E(errs.InvalidState, "a stopped sandbox has no memory to keep").Because("stopped").Suggest("Take the snapshot with mode disk.").With("state", api.StateStopped)
	case mode == "" && src.Memory && can.Memory:
		mode = api.ModeMemory
	case mode == "":
		mode = api.ModeDisk
	}
	c, now := caller.From(ctx), db.Micros(s.Now())
	r := &row{
		ID: snapshot, OrgID: d.Resource.OrgID, WorkspaceID: d.Resource.WorkspaceID, Name: in.Name, State: api.SnapshotCreating, Mode: mode, SandboxID: in.SandboxID,
		Source: src, Metadata: in.Metadata, CreatedBy: draft.By(c), PrincipalID: c.PrincipalID,
		CreatedAt: now, StateAt: now,
	}
	if err := s.store.insert(ctx, tx, r); err != nil {
		return err
	}
	return s.Events.Append(ctx, tx, r.OrgID, r.WorkspaceID, "snapshot."+r.State, r.ID, map[string]any{"to": r.State, "sandboxId": r.SandboxID})
}

func (s *Service) actTake(ctx context.Context, in *api.SnapshotSandboxIn, d *op.Draft) (*api.SnapshotOut, error) {
	s.nudge(idOf(d))
	r, err := s.settle(ctx, idOf(d), time.Duration(in.Wait())*time.Second)
	switch {
	case err != nil:
		return nil, err
	case r.State == api.SnapshotFailed:
		return nil, errs.E(errs.Upstream, "the snapshot failed: %s", r.Error).Because("snapshot_failed").
			Suggest("The sandbox is as it was. Try again with a new idempotencyKey.").With("snapshotId", r.ID)
	case goes(r):
		return nil, errNotFound(r.ID)
	}
	return out(r), nil
}

// settle waits until a snapshot moves no more, at most for the given time and what the call has left, and gives it as it is then.
func (s *Service) settle(ctx context.Context, id string, most time.Duration) (*row, error) {
	if deadline, ok := ctx.Deadline(); ok {
		most = min(most, time.Until(deadline)-2*time.Second)
	}
	return db.Settled(ctx, s.DB, topic(id), most, op.Yield, func(ctx context.Context) (*row, error) {
		r, err := s.store.get(ctx, s.DB, id)
		if err == nil && r == nil {
			err = errNotFound(id)
		}
		return r, err
	}, func(r *row) bool { return !moving(r.State) })
}

func (s *Service) draftList(ctx context.Context, in *api.ListSnapshotsIn) (*op.Draft, error) {
	c := caller.From(ctx)
	if in.SandboxID != "" {
		// Of a sandbox that is long gone there may be some left.
		if _, err := s.Sandboxes.Resource(ctx, in.SandboxID); err != nil {
			made, merr := s.store.made(ctx, s.DB, c.OrgID, in.SandboxID)
			if merr != nil {
				return nil, merr
			}
			if !made {
				return nil, err
			}
		}
	}
	return &op.Draft{Resource: op.Resource{Kind: "snapshot", OrgID: c.OrgID, WorkspaceID: c.WorkspaceID}}, nil
}

func (s *Service) actList(ctx context.Context, in *api.ListSnapshotsIn, _ *op.Draft) (*api.ListSnapshotsOut, error) {
	c := caller.From(ctx)
	limit := in.Size()
	bound := *in
	bound.Cursor, bound.Limit = "", 0
	at, afterID, err := op.DecodeMoment(in.Cursor, bound)
	if err != nil {
		return nil, err
	}
	f := filter{OrgID: c.OrgID, SandboxID: in.SandboxID, Name: in.Name, Mode: in.Mode, Metadata: in.Metadata, AfterTime: at, AfterID: afterID, Limit: limit + 1}
	if in.Scope != "all" {
		f.PrincipalID = c.PrincipalID
	}
	rows, err := s.store.list(ctx, s.DB, f)
	if err != nil {
		return nil, err
	}
	list := &api.ListSnapshotsOut{}
	if len(rows) > limit {
		rows = rows[:limit]
		last := rows[limit-1]
		list.NextCursor = op.EncodeMoment(bound, last.CreatedAt, last.ID)
	}
	for _, r := range rows {
		list.Items = append(list.Items, r.show())
	}
	return list, nil
}

func (s *Service) intentUpdate(ctx context.Context, tx op.Tx, in *api.UpdateSnapshotIn, _ *op.Draft) error {
	r, err := s.find(ctx, tx, in.SnapshotID)
	if err != nil {
		return err
	}
	if goes(r) {
		return errNotReady(r)
	}
	if in.Metadata != nil {
		r.Metadata = in.Metadata
	}
	if in.Name != nil {
		r.Name = *in.Name
		if r.Name != "" {
			switch there, err := s.store.named(ctx, tx, r.WorkspaceID, r.Name); {
			case err != nil:
				return err
			case there != "" && there != r.ID:
				return errNameTaken(r.Name)
			}
		}
	}
	err = s.store.save(ctx, tx, r)
	if db.IsUnique(err) {
		return errNameTaken(r.Name)
	}
	return err
}

func (s *Service) draftDelete(ctx context.Context, in *api.DeleteSnapshotIn) (*op.Draft, error) {
	r, err := s.findDeleted(ctx, s.DB, in.SnapshotID)
	if err != nil {
		return nil, err
	}
	return &op.Draft{Resource: r.resource()}, nil
}

func (s *Service) intentDelete(ctx context.Context, tx op.Tx, in *api.DeleteSnapshotIn, _ *op.Draft) error {
	r, err := s.findDeleted(ctx, tx, in.SnapshotID)
	if err != nil || goes(r) {
		return err
	}
	if err := s.moveTx(ctx, tx, r, api.SnapshotDeleting); err != nil {
		return err
	}
	// Counted last: whoever takes it into use at this moment has come before, or finds it gone.
	n, err := s.Sandboxes.MadeOf(ctx, tx, r.ID)
	if err == nil && n > 0 {
		err = errs.E(errs.Busy, "a sandbox is being made of the snapshot").Because("in_use").After(2 * time.Second).
			Suggest("Call again in a few seconds with the same idempotencyKey.")
	}
	return err
}

func (s *Service) actDelete(ctx context.Context, in *api.DeleteSnapshotIn, _ *op.Draft) (*api.DeleteSnapshotOut, error) {
	s.nudge(in.SnapshotID)
	r, err := s.settle(ctx, in.SnapshotID, time.Duration(in.Wait())*time.Second)
	if errs.Is(err, errs.NotFound) {
		return &api.DeleteSnapshotOut{SnapshotID: in.SnapshotID, Deleted: true}, nil
	}
	if err != nil {
		return nil, err
	}
	return &api.DeleteSnapshotOut{SnapshotID: r.ID, Deleted: r.State == api.SnapshotDeleted}, nil
}
