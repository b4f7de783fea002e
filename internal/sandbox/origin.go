package sandbox

import (
	"context"
	"errors"
	"maps"
	"time"

	"github.com/berthrun/berth/api"
	"github.com/berthrun/berth/api/op"
	"github.com/berthrun/berth/internal/db"
	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/runtime"
)

// clonesAtOnce is how many copies are made at the same time.
const clonesAtOnce = 2

// Snapshot is a snapshot as a create sees it.
type Snapshot struct {
	Template, Image, ImageRef, ImageID string
	BuildID                            string // of the template's build
	Resources                          runtime.Resources
	Memory                             bool // it keeps memory
	Internet                           bool
	Env                                map[string]string
	GuestToken                         string   // of the guest in it
	Volumes                            []string // names of those that the sandbox had; they are not in it
}

// Snapshots gives what sandboxes are made of. A snapshot's save on a node has its id as its name.
type Snapshots interface {
	// Source gives a snapshot of the caller's organization, or errs.NotFound.
	Source(ctx context.Context, id string) (Snapshot, error)
	// Usable refuses, in the transaction that takes it into use, one that is not ready.
	Usable(ctx context.Context, tx op.Tx, id string) error
	// Fetch brings one to the node. Errors with HOST_UNAVAILABLE may pass.
	Fetch(ctx context.Context, id string) error
}

// setSnapshot has a new sandbox come up as a snapshot was.
func (s *Service) setSnapshot(ctx context.Context, r *row, in *api.CreateSandboxIn) error {
	switch {
	case in.SnapshotID == "":
		return errs.E(errs.InvalidInput, "fromDisk needs a snapshotId").With("path", "fromDisk")
	case in.Template != "" || in.Image != "":
		return errs.E(errs.InvalidInput, "snapshotId excludes template and image").Suggest("Give one of them.").With("path", "snapshotId")
	case s.Snapshots == nil || !s.Driver.Capabilities().Saves:
		return unsupported("a sandbox of a snapshot")
	}
	snap, err := s.Snapshots.Source(ctx, in.SnapshotID)
	if err != nil {
		return err
	}
	if snap.Memory && !in.FromDisk && !s.Driver.Capabilities().Memory {
		return unsupported("restoring memory").(*errs.Error).Suggest("Pass fromDisk: true to boot on the snapshot's files.")
	}
	r.Template, r.Image, r.ImageRef, r.ImageID, r.BuildID = snap.Template, snap.Image, snap.ImageRef, snap.ImageID, snap.BuildID
	r.SnapshotID, r.SaveName, r.FromDisk, r.WithoutVolumes = in.SnapshotID, in.SnapshotID, in.FromDisk, snap.Volumes
	if r.mounted && snap.Memory && !in.FromDisk {
		return errs.E(errs.InvalidInput, "a snapshot with memory does not come back with volumes").Because("volumes").
			Suggest("Pass fromDisk: true, to boot on its files with the volumes, or leave volumes out.").With("path", "volumes")
	}
	if snap.Memory && !in.FromDisk {
		r.SaveToken = snap.GuestToken
	}
	if in.Network == nil || in.Network.Internet == nil {
		r.Internet = snap.Internet
	}
	env := maps.Clone(orEmpty(snap.Env))
	maps.Copy(env, in.Env)
	r.Env = env
	if err := s.setResources(ctx, r, in, snap.Resources); err != nil {
		return err
	}
	same := r.VCPUMilli == milli(snap.Resources.VCPU) && r.MemoryMiB == snap.Resources.MemoryMiB
	switch {
	case r.SaveToken != "" && !same:
		return errs.E(errs.InvalidInput, "a snapshot with memory comes back with the %v cores and %d MiB that it had", snap.Resources.VCPU, snap.Resources.MemoryMiB).
			Because("snapshot_resources").Suggest("Leave resources.vcpu, resources.memoryMiB and size out, or pass fromDisk: true.").With("path", "resources")
	case r.DiskGiB < snap.Resources.DiskGiB:
		return errs.E(errs.InvalidInput, "the snapshot's disk has %d GiB", snap.Resources.DiskGiB).Because("snapshot_resources").
			Suggest("Ask for at least that much.").With("path", "resources.diskGiB").With("least", snap.Resources.DiskGiB)
	}
	return checkEnv(r.Env)
}

func milli(vcpu float64) int64 { return int64(vcpu*1000 + 0.5) }

// fetchSave waits until what a new sandbox is made of is on the node, and for its turn to be made, which free ends. done says that there is nothing to boot.
// A sandbox's time to boot begins with its turn.
func (s *Service) fetchSave(ctx context.Context, r *row) (free func(), done bool, err error) {
	free = func() {}
	if r.State != api.StateCreating || r.SaveName == "" {
		return free, false, nil
	}
	switch {
	case r.seeded(): // it is there, or the sandbox boots
	case r.SnapshotID != "":
		err = s.Snapshots.Fetch(ctx, r.SnapshotID)
	case r.layered():
		err = s.Templates.Fetch(ctx, r.SaveName)
	default:
		err = s.saveOnce(ctx, r.ForkedFrom, r.SaveName)
	}
	switch {
	case err == nil:
	case ctx.Err() != nil:
		return free, false, ctx.Err()
	case errs.Is(err, errs.HostUnavailable) && s.Now().Before(db.Time(r.CreatedAt).Add(s.BootTimeout)):
		return free, false, err // the node comes back
	default:
		s.Logger.Warn("a sandbox's origin cannot be had", "sandbox", r.ID, "error", err)
		s.booted(r, true)
		r.Error = errs.From(err).Message
		if reason := reasonOf(err); runtime.MemoryUnusable(reason) {
			r.StopReason = reason
		}
		return free, true, s.move(ctx, r, api.StateFailed)
	}
	select {
	case s.cloning <- struct{}{}:
		if err := s.store.beginBoot(ctx, s.DB, r, s.Now()); err != nil {
			<-s.cloning
			return free, false, err
		}
		return func() { <-s.cloning }, false, nil
	case <-ctx.Done():
		return free, false, ctx.Err()
	}
}

// saving is a save under way, which all the copies that are made of it wait for.
type saving struct {
	done chan struct{}
	err  error
}

// saveOnce makes the save that copies of a sandbox are made of, where it is not there yet, and ends what the sandbox held for it.
func (s *Service) saveOnce(ctx context.Context, source, name string) error {
	s.mu.Lock()
	sv := s.saving[name]
	first := sv == nil
	if first {
		sv = &saving{done: make(chan struct{})}
		s.saving[name] = sv
	}
	s.mu.Unlock()
	if !first {
		select {
		case <-sv.done:
			return sv.err
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	// One of many asks for all of them: when it goes away they still want it, for as long as the server runs.
	s.mu.Lock()
	run := s.ctx
	s.mu.Unlock()
	sv.err = s.saveFork(run, source, name)
	s.mu.Lock()
	delete(s.saving, name)
	s.mu.Unlock()
	close(sv.done)
	return sv.err
}

func (s *Service) saveFork(ctx context.Context, source, name string) error {
	ctx, cancel := context.WithTimeout(ctx, saveTime)
	defer cancel()
	r, err := s.store.get(ctx, s.DB, source)
	if err != nil {
		return err
	}
	if r == nil || r.OpID != name {
		return nil // it was made before
	}
	copies, err := s.store.ofSave(ctx, s.DB, name)
	if err != nil {
		return err
	}
	memory := len(copies) == 0 || !copies[0].FromDisk
	_, err = s.save(ctx, source, name, runtime.SaveOptions{Memory: memory, Brief: true})
	if errs.Is(err, errs.HostUnavailable) || errors.Is(err, context.Canceled) {
		return err // the node comes back, or the next server does it
	}
	if err != nil {
		// What waits for it fails as this did, before the sandbox is free for another.
		if ferr := s.failCopies(ctx, name, err); ferr != nil {
			return ferr
		}
	}
	if rerr := s.store.release(ctx, s.DB, source, name); rerr != nil {
		return rerr
	}
	return err
}

// failCopies fails all the copies that are to be made of a save.
func (s *Service) failCopies(ctx context.Context, name string, why error) error {
	rows, err := s.store.ofSave(ctx, s.DB, name)
	if err != nil {
		return err
	}
	for _, r := range rows {
		if r.State != api.StateCreating {
			continue
		}
		r.Error = errs.From(why).Message
		s.booted(r, true)
		if err := s.move(ctx, r, api.StateFailed); err != nil && !isLostRace(err) {
			return err
		}
	}
	return nil
}

// saveTime bounds a save.
const saveTime = 10 * time.Minute

// save has the node keep a sandbox as it is. What runs is asked to write everything to its disk first.
func (s *Service) save(ctx context.Context, id, name string, opts runtime.SaveOptions) (runtime.Save, error) {
	for tries := 0; ; tries++ {
		r, err := s.store.get(ctx, s.DB, id)
		if err != nil {
			return runtime.Save{}, err
		}
		switch {
		case r == nil || goes(r):
			return runtime.Save{}, errNotFound(id)
		case r.State == api.StateRunning:
			s.syncDisk(ctx, r)
		case moving(r.State):
			if r, err = s.settle(ctx, id, time.Minute); err != nil {
				return runtime.Save{}, err
			}
		}
		if opts.Memory && r.State != api.StateRunning && r.State != api.StatePaused {
			return runtime.Save{}, errInvalidState(r, verbFork)
		}
		out, err := s.Driver.Save(ctx, id, r.Generation, name, opts)
		if reasonOf(err) != "stale_generation" || tries == 5 {
			return out, err
		}
	}
}

// syncDisk has a guest write everything to its disk. What it does not answer in time is saved as it is.
func (s *Service) syncDisk(ctx context.Context, r *row) {
	ctx, cancel := context.WithTimeout(ctx, restTime)
	defer cancel()
	g := s.guest(r.ID, r.BootGeneration, r.GuestToken)
	if err := g.Sync(ctx); err != nil {
		s.Logger.Warn("disk not synced before a save", "sandbox", r.ID, "error", err)
	}
	g.Close() // a kernel that is copied must not have half a conversation with this host in it
}
