package sandbox

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/berthrun/berth/api"
	"github.com/berthrun/berth/api/op"
	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/runtime"
)

// Volumes are the disks that outlive sandboxes. Which sandbox has which is theirs to decide and to keep.
type Volumes interface {
	// Attach gives volumes to a sandbox of an organization, in the transaction that makes it, or refuses.
	Attach(ctx context.Context, tx op.Tx, orgID, sandboxID string, asked []api.VolumeMount) error
	// Of gives what a sandbox mounts, by path, and the names of the volumes in the same order.
	Of(ctx context.Context, q op.Tx, sandboxID string) (mounts []runtime.Mount, names []string, err error)
	// Release takes all from a sandbox, in the transaction in which it is no more.
	Release(ctx context.Context, tx op.Tx, sandboxID string) error
}

// setVolumes notes that a new sandbox is made with volumes.
func (s *Service) setVolumes(r *row, in *api.CreateSandboxIn) error {
	if len(in.Volumes) == 0 {
		return nil
	}
	if s.Volumes == nil || !s.Driver.Capabilities().Volumes {
		return unsupported("a sandbox with volumes")
	}
	for i, m := range in.Volumes {
		if m.Path == "" {
			continue
		}
		if err := runtime.CheckMountPath(m.Path); err != nil {
			return errs.From(err).With("path", fmt.Sprintf("volumes[%d].path", i))
		}
	}
	r.mounted, r.asked = true, in.Volumes
	return nil
}

// specOf is all that is needed to boot a sandbox or to bring it back, with what it mounts now.
func (s *Service) specOf(ctx context.Context, r *row) (runtime.Spec, error) {
	spec := r.spec()
	if s.Volumes == nil {
		return spec, nil
	}
	var err error
	spec.Mounts, _, err = s.Volumes.Of(ctx, s.DB, r.ID)
	return spec, err
}

// volumeNames gives the names of the volumes that a sandbox has.
func (s *Service) volumeNames(ctx context.Context, q op.Tx, id string) ([]string, error) {
	if s.Volumes == nil {
		return nil, nil
	}
	_, names, err := s.Volumes.Of(ctx, q, id)
	return names, err
}

func (s *Service) showVolumes(ctx context.Context, r *row) (all []api.SandboxVolume, err error) {
	if s.Volumes == nil {
		return nil, nil
	}
	mounts, names, err := s.Volumes.Of(ctx, s.DB, r.ID)
	for i, m := range mounts {
		all = append(all, api.SandboxVolume{VolumeID: m.Volume, Name: names[i], Path: m.Path, ReadOnly: m.ReadOnly})
	}
	return all, err
}

// hasVolumes reports whether a sandbox has what a create asks for. What was left out is no wish.
func (s *Service) hasVolumes(ctx context.Context, id string, asked []api.VolumeMount) (bool, error) {
	if s.Volumes == nil || len(asked) == 0 {
		return true, nil
	}
	mounts, names, err := s.Volumes.Of(ctx, s.DB, id)
	if err != nil {
		return false, err
	}
	for _, a := range asked {
		there := slices.ContainsFunc(mounts, func(m runtime.Mount) bool {
			name := names[slices.Index(mounts, m)]
			return (a.Volume == m.Volume || a.Volume == name) && (a.Path == m.Path || a.Path == "") && a.ReadOnly == m.ReadOnly
		})
		if !there {
			return false, nil
		}
	}
	return true, nil
}

// withoutVolumes says what a copy comes up without, and how else it comes up.
func withoutVolumes(names []string, how string) string {
	return "volumes are not copied: " + how + ", without " + strings.Join(names, ", ")
}

// Stopped refuses, in the transaction that changes what it has, a sandbox of the caller's organization that is not stopped. A start at the same moment comes
// before or after.
func (s *Service) Stopped(ctx context.Context, tx op.Tx, id string) error {
	r, err := s.find(ctx, tx, id)
	if err != nil {
		return err
	}
	res, err := tx.ExecContext(ctx, `UPDATE sandboxes SET state = state WHERE id = $1 AND state = 'stopped'`, id)
	if err != nil {
		return fmt.Errorf("hold sandbox: %w", err)
	}
	switch n, _ := res.RowsAffected(); {
	case n > 0:
		return nil
	case moving(r.State) && !goes(r):
		return errBusy(r)
	case r.State == api.StateStopped:
		return errLostRace
	}
	return errs.E(errs.InvalidState, "the sandbox is %s: what it has of volumes changes only while it is stopped", r.State).Because(r.State).
		Suggest("Stop it with stop_sandbox, then call again; start_sandbox boots it with what it has then.").With("state", r.State)
}

// Flush has a sandbox that runs write everything to its disks. What does not answer in time is left as it is.
func (s *Service) Flush(ctx context.Context, id string) {
	r, err := s.store.get(ctx, s.DB, id)
	if err == nil && r != nil && r.State == api.StateRunning {
		s.syncDisk(ctx, r)
	}
}

func namesText(names []string) (string, error) {
	b, err := json.Marshal(append([]string{}, names...))
	if err != nil {
		return "", fmt.Errorf("encode names: %w", err)
	}
	return string(b), nil
}
