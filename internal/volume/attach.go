package volume

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/berthrun/berth/api"
	"github.com/berthrun/berth/api/op"
	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/id"
	"github.com/berthrun/berth/internal/runtime"
)

// placeOf is where a volume is to be in a sandbox: /volumes/NAME where nothing is asked for.
func placeOf(asked, name string) (string, error) {
	if asked == "" {
		return "/volumes/" + name, nil
	}
	return asked, pathOf(runtime.CheckMountPath(asked))
}

// pathOf says which argument a path's error is about.
func pathOf(err error) error {
	if err == nil {
		return nil
	}
	return errs.From(err).With("path", "path")
}

// within reports whether a clean path is a folder or lies below it.
func within(p, folder string) bool { return p == folder || strings.HasPrefix(p, folder+"/") }

// Attach gives volumes to a sandbox of an organization, in the transaction that makes it.
func (s *Service) Attach(ctx context.Context, tx op.Tx, orgID, sandboxID string, asked []api.VolumeMount) error {
	if len(asked) == 0 {
		return nil
	}
	if !s.Node.Capabilities().Volumes {
		return unsupported("volumes")
	}
	var volumes []*row
	for i, m := range asked {
		r, err := s.meant(ctx, tx, orgID, m.Volume)
		if err != nil {
			return at(err, i, "volume")
		}
		volumes = append(volumes, r)
	}
	// Their rows are held in one order, whatever the order in which they were asked for.
	order := make([]int, len(asked))
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(a, b int) int { return strings.Compare(volumes[a].ID, volumes[b].ID) })
	for _, i := range order {
		if err := s.attach(ctx, tx, volumes[i].ID, sandboxID, asked[i].Path, asked[i].ReadOnly); err != nil {
			return at(err, i, "path")
		}
	}
	return nil
}

// at names the place in a list of what an error is about.
func at(err error, i int, member string) error {
	e := errs.From(err)
	if e.Code == errs.Internal {
		return err
	}
	return e.With("path", fmt.Sprintf("volumes[%d].%s", i, member))
}

// meant finds a volume by its id or its name.
func (s *Service) meant(ctx context.Context, q op.Tx, orgID, volume string) (*row, error) {
	if !id.Valid(id.Volume, volume) {
		r, err := s.store.named(ctx, q, orgID, volume)
		if err == nil && r == nil {
			err = errNotFound(volume)
		}
		return r, err
	}
	r, err := s.store.get(ctx, q, volume)
	if err == nil && (r == nil || r.OrgID != orgID) {
		err = errNotFound(volume)
	}
	return r, err
}

// attach decides by the rows whether a sandbox may have a volume: one may write to it, or any number may read it.
func (s *Service) attach(ctx context.Context, tx op.Tx, volumeID, sandboxID, asked string, readOnly bool) error {
	r, err := s.store.lock(ctx, tx, volumeID)
	switch {
	case err != nil:
		return err
	case r == nil || gone(r.State):
		return errNotFound(volumeID)
	case r.State != api.VolumeReady:
		return errNotReady(r)
	}
	place, err := placeOf(asked, r.Name)
	if err != nil {
		return err
	}
	others, err := s.store.to(ctx, tx, r.ID)
	if err != nil {
		return err
	}
	for _, o := range others {
		if o.SandboxID == sandboxID {
			if o.Path == place && o.ReadOnly == readOnly {
				return nil
			}
			return errs.E(errs.InvalidState, "the sandbox has the volume %s already, at %s", r.Name, o.Path).Because("attached").
				Suggest("Detach it first, to have it otherwise.").With("sandboxId", sandboxID)
		}
		if !o.ReadOnly || !readOnly {
			return errInUse(r, o, readOnly)
		}
	}
	own, err := s.store.of(ctx, tx, sandboxID)
	if err != nil {
		return err
	}
	if len(own) >= runtime.MaxMounts {
		return errs.E(errs.LimitExceeded, "a sandbox has at most %d volumes", runtime.MaxMounts).Because("mounts").Suggest("Detach one first.").With("limit", runtime.MaxMounts)
	}
	for _, o := range own {
		if within(o.Path, place) || within(place, o.Path) {
			return errs.E(errs.InvalidInput, "the volume %s is at %s already", o.Name, o.Path).Because("mount_path").
				Suggest("Give each volume a folder of its own, none inside another.").With("path", "path")
		}
	}
	if err := s.store.attach(ctx, tx, &attachment{SandboxID: sandboxID, VolumeID: r.ID, Path: place, ReadOnly: readOnly}); err != nil {
		return err
	}
	s.DB.NotifyAfter(tx, topic(r.ID))
	return s.Events.Append(ctx, tx, r.OrgID, r.WorkspaceID, "volume.attached", r.ID, map[string]any{"sandboxId": sandboxID, "path": place, "readOnly": readOnly})
}

// errInUse is the error of whoever wants a volume that another sandbox has in a way that excludes it.
func errInUse(r *row, o *attachment, readOnly bool) error {
	e := errs.E(errs.InvalidState, "the sandbox %s writes to the volume %s", o.SandboxID, r.Name)
	if o.ReadOnly {
		e = errs.E(errs.InvalidState, "others read the volume %s, such as %s: nobody can write to it", r.Name, o.SandboxID)
	}
	e = e.Because("volume_in_use").With("volumeId", r.ID).With("sandboxId", o.SandboxID).With("readOnly", o.ReadOnly)
	if o.ReadOnly && !readOnly {
		return e.Suggest("Attach it with readOnly: true, or delete or stop and detach those that read it.")
	}
	return e.Suggest("One sandbox may write to it, stopped and paused ones count. Delete that sandbox, or stop it and detach the volume.")
}

// Of gives what a sandbox mounts, and the names of the volumes in the same order.
func (s *Service) Of(ctx context.Context, q op.Tx, sandboxID string) (mounts []runtime.Mount, names []string, err error) {
	all, err := s.store.of(ctx, q, sandboxID)
	for _, a := range all {
		mounts, names = append(mounts, runtime.Mount{Volume: a.VolumeID, Path: a.Path, ReadOnly: a.ReadOnly}), append(names, a.Name)
	}
	return mounts, names, err
}

// Release takes all volumes from a sandbox that is no more, in the transaction that ends it.
func (s *Service) Release(ctx context.Context, tx op.Tx, sandboxID string) error {
	all, err := s.store.of(ctx, tx, sandboxID)
	if err != nil {
		return err
	}
	for _, a := range all {
		if err := s.detach(ctx, tx, sandboxID, a.VolumeID); err != nil {
			return err
		}
	}
	return nil
}

func (s *Service) detach(ctx context.Context, tx op.Tx, sandboxID, volumeID string) error {
	had, err := s.store.detach(ctx, tx, sandboxID, volumeID)
	if err != nil || !had {
		return err
	}
	r, err := s.store.get(ctx, tx, volumeID)
	if err != nil || r == nil {
		return err
	}
	s.DB.NotifyAfter(tx, topic(r.ID))
	return s.Events.Append(ctx, tx, r.OrgID, r.WorkspaceID, "volume.detached", r.ID, map[string]any{"sandboxId": sandboxID})
}

func (s *Service) draftAttach(ctx context.Context, in *api.AttachVolumeIn) (*op.Draft, error) {
	d, err := s.draft(ctx, in.VolumeID)
	if err != nil {
		return nil, err
	}
	if _, err := placeOf(in.Path, d.Resource.Name); err != nil {
		return nil, err
	}
	_, err = s.Sandboxes.Resource(ctx, in.SandboxID)
	return d, err
}

func (s *Service) intentAttach(ctx context.Context, tx op.Tx, in *api.AttachVolumeIn, _ *op.Draft) error {
	if !s.Node.Capabilities().Volumes {
		return unsupported("volumes")
	}
	if err := s.Sandboxes.Stopped(ctx, tx, in.SandboxID); err != nil {
		return err
	}
	return s.attach(ctx, tx, in.VolumeID, in.SandboxID, in.Path, in.ReadOnly)
}

func (s *Service) draftDetach(ctx context.Context, in *api.DetachVolumeIn) (*op.Draft, error) {
	d, err := s.draft(ctx, in.VolumeID)
	if err != nil {
		return nil, err
	}
	_, err = s.Sandboxes.Resource(ctx, in.SandboxID)
	return d, err
}

func (s *Service) intentDetach(ctx context.Context, tx op.Tx, in *api.DetachVolumeIn, _ *op.Draft) error {
	if err := s.Sandboxes.Stopped(ctx, tx, in.SandboxID); err != nil {
		return err
	}
	return s.detach(ctx, tx, in.SandboxID, in.VolumeID)
}
