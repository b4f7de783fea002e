package sandbox

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
	"github.com/berthrun/berth/internal/guest"
	"github.com/berthrun/berth/internal/id"
	"github.com/berthrun/berth/internal/runtime"
)

// sizes are the ready-made resources.
var sizes = map[string]api.ResourcesIn{
	"small": {VCPU: 0.5, MemoryMiB: 1024},
	"large": {VCPU: 1.5, MemoryMiB: 3072},
}

func (s *Service) draftCreate(ctx context.Context, in *api.CreateSandboxIn) (*op.Draft, error) {
	r, err := s.newRow(ctx, in)
	if err != nil {
		return nil, err
	}
	return &op.Draft{Resource: r.resource(), Cost: r.usage(api.StateCreating), Uses: r.uses, Data: &wanted{row: r}}, nil
}

// wanted is what a create asks for. existed says that the intent found one of the name.
type wanted struct {
	row     *row
	existed bool
	taken   *row // one that was ready; nil: none was
}

// newRow makes the row that a create asks for, its defaults filled in.
func (s *Service) newRow(ctx context.Context, in *api.CreateSandboxIn) (*row, error) {
	c := caller.From(ctx)
	if in.WorkspaceID != "" && in.WorkspaceID != c.WorkspaceID {
		return nil, errs.E(errs.NotFound, "there is no workspace %s", in.WorkspaceID).Suggest("list_workspaces shows which exist.")
	}
	if in.GetOrCreate && in.Name == "" {
		return nil, errs.E(errs.InvalidInput, "getOrCreate needs a name").With("path", "name")
	}
	now := s.Now()
	r := &row{
		ID: id.New(id.Sandbox), OrgID: c.OrgID, WorkspaceID: c.WorkspaceID, Name: in.Name, State: api.StateCreating, Generation: 1,
		Template: orDefault(in.Template, "base"), Internet: in.Network == nil || orTrue(in.Network.Internet),
		Env: in.Env, Metadata: in.Metadata, OnExpiry: orDefault(in.OnExpiry, "stop"), AutoWake: orTrue(in.AutoWake), WakeOnTimers: orTrue(in.WakeOnTimers),
		GuestToken: guest.NewToken(), CreatedBy: draft.By(c), PrincipalID: c.PrincipalID,
		CreatedAt: db.Micros(now), StateAt: db.Micros(now), ActiveAt: db.Micros(now), TTLSeconds: int64(in.TTLSeconds),
	}
	if r.TTLSeconds == 0 {
		r.TTLSeconds = int64(s.Defaults.TTLSeconds)
	}
	r.ExpiresAt = r.CreatedAt + r.TTLSeconds*int64(time.Second/time.Microsecond)
	if err := checkEnv(in.Env); err != nil {
		return nil, err
	}
	if err := api.CheckMetadata(in.Metadata); err != nil {
		return nil, err
	}
	if err := s.setIdling(r, in); err != nil {
		return nil, err
	}
	if err := s.setVolumes(r, in); err != nil {
		return nil, err
	}
	if in.SnapshotID != "" || in.FromDisk {
		return r, s.setSnapshot(ctx, r, in)
	}
	t, err := s.template(ctx, in)
	if err != nil {
		return nil, err
	}
	if t != nil {
		return r, s.setTemplate(ctx, r, in, t)
	}
	if err := s.setResources(ctx, r, in, s.Defaults.Resources); err != nil {
		return nil, err
	}
	return r, s.setImage(ctx, r, in)
}

func (s *Service) setIdling(r *row, in *api.CreateSandboxIn) error {
	pauses := s.Driver.Capabilities().Memory
	if !pauses && (in.OnIdle == "pause" || in.OnExpiry == "pause") {
		return unsupported("pausing with memory")
	}
	r.OnIdle = in.OnIdle
	if r.OnIdle == "" {
		r.OnIdle = "stop"
		if pauses {
			r.OnIdle = "pause"
		}
	}
	r.IdleSeconds = int64(s.Defaults.IdleSeconds)
	if in.IdlePauseSeconds != nil {
		r.IdleSeconds = int64(*in.IdlePauseSeconds)
	}
	return checkIdle(r.IdleSeconds)
}

func checkIdle(seconds int64) error {
	if seconds != 0 && seconds < 60 {
		return errs.E(errs.InvalidInput, "idlePauseSeconds must be 0 or from 60 to 86400").With("path", "idlePauseSeconds")
	}
	return nil
}

// setResources takes what is asked for, and of d what is left out.
func (s *Service) setResources(ctx context.Context, r *row, in *api.CreateSandboxIn, d runtime.Resources) error {
	if in.Size != "" && in.Resources != nil {
		return errs.E(errs.InvalidInput, "size and resources exclude each other").Suggest("Give one of them.").With("path", "size")
	}
	want := api.ResourcesIn{}
	if in.Resources != nil {
		want = *in.Resources
	}
	if in.Size != "" {
		want = sizes[in.Size]
	}
	r.VCPUMilli, r.MemoryMiB, r.DiskGiB = milli(d.VCPU), d.MemoryMiB, d.DiskGiB
	if want.VCPU > 0 {
		r.VCPUMilli = milli(want.VCPU)
	}
	if want.MemoryMiB > 0 {
		r.MemoryMiB = want.MemoryMiB
	}
	if want.DiskGiB > 0 {
		r.DiskGiB = want.DiskGiB
	}
	least, most, err := s.DiskBounds(ctx, r.OrgID)
	if err != nil {
		return err
	}
	if r.DiskGiB < least || r.DiskGiB > most {
		return errs.E(errs.LimitExceeded, "diskGiB must be from %d to %d here", least, most).Because("disk_size").
			Suggest("Ask for a disk within these limits.").With("path", "resources.diskGiB").With("least", least).With("most", most)
	}
	if s.Largest == nil {
		return nil
	}
	cores, memory, err := s.Largest(ctx)
	switch {
	case err != nil:
		return err
	case cores > 0 && float64(r.VCPUMilli) > cores*1000:
		return errTooLarge("resources.vcpu", "cores", float64(r.VCPUMilli)/1000, cores)
	case memory > 0 && r.MemoryMiB > memory:
		return errTooLarge("resources.memoryMiB", "MiB of memory", r.MemoryMiB, memory)
	}
	return nil
}

// errTooLarge is the error for more than any node has: waiting does not help.
func errTooLarge(path, of string, asked, most any) error {
	return errs.E(errs.InvalidInput, "no node here has %v %s", asked, of).Because("larger_than_nodes").
		Suggest("Ask for at most %v.", most).With("path", path).With("most", most)
}

func (s *Service) intentCreate(ctx context.Context, tx op.Tx, in *api.CreateSandboxIn, d *op.Draft) error {
	return decided(func() error { return s.insertNew(ctx, tx, in, d) })
}

// insertNew makes the row, or finds the one that has its name. It is errLostRace where another one of the name was made at the same moment.
func (s *Service) insertNew(ctx context.Context, tx op.Tx, in *api.CreateSandboxIn, d *op.Draft) error {
	w := d.Data.(*wanted)
	fresh := *w.row // it may run again
	r := &fresh
	w.existed, w.taken = false, nil
	if r.Name != "" {
		there, err := s.store.named(ctx, tx, r.WorkspaceID, r.Name)
		if err != nil {
			return err
		}
		switch {
		case there != nil && !in.GetOrCreate:
			return errNameTaken(there)
		case there != nil && there.State == api.StateFailed:
			// It never came up and has nothing to keep: it makes room.
			there.cause = "replaced"
			if err := s.moveTx(ctx, tx, there, api.StateDeleting); err != nil {
				return err
			}
		case there != nil:
			d.Resource, w.existed = there.resource(), true
			return nil
		}
	}
	if r.SnapshotID != "" {
		if err := s.Snapshots.Usable(ctx, tx, r.SnapshotID); err != nil {
			return err
		}
	}
	if r.BuildID != "" && s.Templates != nil {
		if err := s.Templates.Usable(ctx, tx, r.BuildID, r.SaveName); err != nil {
			return err
		}
	}
	taken, err := s.claim(ctx, tx, r)
	if err != nil {
		return err
	}
	if taken {
		w.taken = r
	}
	d.Resource = r.resource()
	if err := s.insertTx(ctx, tx, r); err != nil || !r.mounted {
		return err
	}
	return s.Volumes.Attach(ctx, tx, r.OrgID, r.ID, r.asked)
}

// insertTx makes the row of a new sandbox, with what it takes from the quotas and the event that tells of it.
func (s *Service) insertTx(ctx context.Context, tx op.Tx, r *row) error {
	if err := s.store.insert(ctx, tx, r); err != nil {
		return err
	}
	if err := s.Quota.Take(ctx, tx, r.OrgID, r.usageDelta("", api.StateCreating)); err != nil {
		return err
	}
	return s.Events.Append(ctx, tx, r.OrgID, r.WorkspaceID, "sandbox."+api.StateCreating, r.ID, map[string]any{"to": api.StateCreating, "generation": r.Generation})
}

func errNameTaken(there *row) error {
	e := errs.E(errs.AlreadyExists, "a sandbox named %s exists", there.Name).With("path", "name")
	if there.ID != "" {
		e = e.With("sandboxId", there.ID).With("state", there.State)
	}
	if there.State == api.StateFailed {
		return e.Suggest("It failed. Delete it, choose another name, or pass getOrCreate: true, which replaces it.")
	}
	return e.Suggest("Choose another name, or pass getOrCreate: true to get the one that exists.")
}

func (s *Service) actCreate(ctx context.Context, in *api.CreateSandboxIn, d *op.Draft) (*api.CreateSandboxOut, error) {
	w := d.Data.(*wanted)
	if w.taken != nil {
		s.adopt(ctx, w.taken)
	} else {
		s.nudge(d.Resource.ID)
	}
	if !w.existed {
		s.asked(w.row, w.taken != nil)
	}
	if in.GetOrCreate {
		s.nudgeFailed(ctx, in.Name)
	}
	until := time.Now().Add(op.Remaining(ctx, time.Duration(in.Wait())*time.Second))
	r, err := s.settle(ctx, d.Resource.ID, time.Until(until))
	woke := ""
	if err == nil && in.GetOrCreate && w.existed && (r.State == api.StateStopped && r.StopReason != bootFailed || r.State == api.StatePaused) {
		r, woke, err = s.startUntil(ctx, r, until)
	}
	if err != nil {
		return nil, err
	}
	switch {
	case r.State == api.StatePaused && woke != "" && r.WakeError != "":
		return nil, errNoWake(r)
	case r.State == api.StateFailed:
		return nil, errNoBoot(r)
	case goes(r):
		return nil, errNotFound(r.ID) // it was deleted meanwhile
	}
	out := &api.CreateSandboxOut{SandboxOut: *s.out(r)}
	out.Woke = woke
	if w.existed {
		out.Existed, out.Differs = true, differs(in, w.row, r)
		same, err := s.hasVolumes(ctx, r.ID, in.Volumes)
		if err != nil {
			return nil, err
		}
		if !same {
			out.Differs = append(out.Differs, "volumes")
		}
	}
	return out, nil
}

// out is the result of a write that leaves a sandbox.
func (s *Service) out(r *row) *api.SandboxOut {
	sb := s.show(r)
	return &api.SandboxOut{Status: "done", Ready: sb.Ready, Sandbox: &sb}
}

func checkEnv(env map[string]string) error {
	total := 0
	for k, v := range env {
		total += len(k) + len(v)
		if k == "" || strings.ContainsAny(k, "=\x00") || strings.ContainsRune(v, 0) {
			return errs.E(errs.InvalidInput, "env has a name or value that no process can take").With("path", "env")
		}
	}
	if total > api.MaxText {
		return errs.E(errs.InvalidInput, "env must hold at most %d bytes", api.MaxText).With("path", "env")
	}
	return nil
}

func orDefault(s, def string) string {
	if s == "" {
		return def
	}
	return s
}

func orTrue(b *bool) bool { return b == nil || *b }
