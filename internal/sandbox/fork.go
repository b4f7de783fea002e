package sandbox

import (
	"context"
	"errors"
	"fmt"
	"slices"
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

// kindFork is the kind of the names of saves that copies are made of.
const kindFork id.Kind = "fork"

// saveOf is the name of the save of one effect of fork: the same at every repetition.
func saveOf(d *op.Draft) string {
	_, rest, _ := strings.Cut(d.Once, "_")
	return string(kindFork) + "_" + rest
}

func isLostRace(err error) bool { return errors.Is(err, errLostRace) }

func (s *Service) draftFork(ctx context.Context, in *api.ForkSandboxIn) (*op.Draft, error) {
	r, err := s.find(ctx, s.DB, in.SandboxID)
	if err != nil {
		return nil, err
	}
	if len(in.Names) > 0 && in.Count > 0 && in.Count != len(in.Names) {
		return nil, errs.E(errs.InvalidInput, "there are %d names for %d copies", len(in.Names), in.Count).With("path", "names")
	}
	for i, name := range in.Names {
		if slices.Contains(in.Names[:i], name) {
			return nil, errs.E(errs.InvalidInput, "the name %s is given twice", name).With("path", "names")
		}
	}
	cost := r.usage(api.StateCreating)
	for k := range cost {
		cost[k] *= int64(copies(in))
	}
	return &op.Draft{Resource: r.resource(), Cost: cost}, nil
}

// copies is how many a fork makes.
func copies(in *api.ForkSandboxIn) int { return max(in.Count, len(in.Names), 1) }

func (s *Service) intentFork(ctx context.Context, tx op.Tx, in *api.ForkSandboxIn, d *op.Draft) error {
	if can := s.Driver.Capabilities(); !can.Memory || !can.Saves {
		return unsupported("copying a sandbox with its memory")
	}
	return decided(func() error {
		r, err := s.find(ctx, tx, in.SandboxID)
		if err != nil {
			return err
		}
		switch decide(verbFork, r.State) {
		case do:
		case busy:
			return errBusy(r)
		default:
			return errInvalidState(r, verbFork)
		}
		if err := s.store.hold(ctx, tx, r, saveOf(d)); err != nil {
			return err
		}
		names, err := s.names(ctx, tx, r, in)
		if err != nil {
			return err
		}
		without, err := s.volumeNames(ctx, tx, r.ID)
		if err != nil {
			return err
		}
		for i, name := range names {
			c := s.copyOf(ctx, r, name, saveOf(d))
			// Memory in which volumes are mounted does not come back without them: the copies boot.
			c.WithoutVolumes, c.FromDisk = without, len(without) > 0
			c.CreatedAt += int64(i) // in their order
			if err := s.insertTx(ctx, tx, c); err != nil {
				return err
			}
		}
		return nil
	})
}

// copyOf is the row of a copy: all that a caller chose of the original, and nothing of what happened to it.
func (s *Service) copyOf(ctx context.Context, r *row, name, save string) *row {
	c, now := caller.From(ctx), db.Micros(s.Now())
	return &row{
		ID: id.New(id.Sandbox), OrgID: r.OrgID, WorkspaceID: r.WorkspaceID, Name: name, State: api.StateCreating, Generation: 1,
		Template: r.Template, Image: r.Image, ImageRef: r.ImageRef, ImageID: r.ImageID, BuildID: r.BuildID, VCPUMilli: r.VCPUMilli, MemoryMiB: r.MemoryMiB, DiskGiB: r.DiskGiB,
		Internet: r.Internet, Env: r.Env, Metadata: r.Metadata, IdleSeconds: r.IdleSeconds, OnIdle: r.OnIdle, OnExpiry: r.OnExpiry,
		AutoWake: r.AutoWake, WakeOnTimers: r.WakeOnTimers, Persist: r.Persist, RetentionSeconds: r.RetentionSeconds,
		GuestToken: guest.NewToken(), CreatedBy: draft.By(c), PrincipalID: c.PrincipalID,
		CreatedAt: now, StateAt: now, ActiveAt: now, TTLSeconds: r.TTLSeconds, ExpiresAt: now + r.TTLSeconds*int64(time.Second/time.Microsecond),
		Origin: Origin{ForkedFrom: r.ID, SaveName: save, SaveToken: r.GuestToken},
	}
}

// names gives the copies' names: those that were asked for, or the original's with a number each that is free.
func (s *Service) names(ctx context.Context, tx op.Tx, r *row, in *api.ForkSandboxIn) ([]string, error) {
	names := make([]string, copies(in))
	for i, name := range in.Names {
		there, err := s.store.named(ctx, tx, r.WorkspaceID, name)
		if err != nil {
			return nil, err
		}
		if there != nil {
			return nil, errNameTaken(there).(*errs.Error).Suggest("Choose another name, or leave names out.").With("path", fmt.Sprintf("names[%d]", i))
		}
		names[i] = name
	}
	if len(in.Names) > 0 || r.Name == "" {
		return names, nil
	}
	for i, n := 0, 1; i < len(names); n++ {
		end := fmt.Sprintf("-%d", n)
		name := r.Name[:min(len(r.Name), 63-len(end))] + end
		there, err := s.store.named(ctx, tx, r.WorkspaceID, name)
		if err != nil {
			return nil, err
		}
		if there == nil {
			names[i] = name
			i++
		}
	}
	return names, nil
}

func (s *Service) actFork(ctx context.Context, in *api.ForkSandboxIn, d *op.Draft) (*api.ForkSandboxOut, error) {
	until := time.Now().Add(op.Remaining(ctx, time.Duration(in.Wait())*time.Second))
	rows, err := s.store.ofSave(ctx, s.DB, saveOf(d))
	if err != nil {
		return nil, err
	}
	for _, r := range rows {
		s.nudge(r.ID)
	}
	out := &api.ForkSandboxOut{Status: "done", Ready: true}
	if len(rows) > 0 && rows[0].FromDisk {
		out.WithoutVolumes, out.Message = rows[0].WithoutVolumes, withoutVolumes(rows[0].WithoutVolumes, "each copy booted on the files of the sandbox's own disk, without its memory and processes")
	}
	var failed *row
	for _, r := range rows {
		r, err := s.settle(ctx, r.ID, time.Until(until))
		if err != nil && !errs.Is(err, errs.NotFound) {
			return nil, err
		}
		if r == nil {
			continue // it was deleted, and its tombstone is gone
		}
		c := api.Copy{SandboxID: r.ID, Name: r.Name, State: r.State, Ready: r.State == api.StateRunning}
		switch {
		case r.State == api.StateFailed:
			failed, c.Error = r, r.Error
		case !goes(r):
			out.Made++
		}
		out.Ready = out.Ready && c.Ready
		out.Items = append(out.Items, c)
	}
	if out.Made == 0 && failed != nil {
		e := errNoMemory(failed)
		if e == nil {
			e = errs.E(errs.Upstream, "no copy could be made: %s", failed.Error).Because("fork_failed").
				Suggest("The original goes on. Try again with a new idempotencyKey; with less copies where room is short.")
		}
		return nil, e
	}
	return out, nil
}

// listSaves gives the saves on the node, where it can have any.
func (s *Service) listSaves(ctx context.Context) ([]runtime.Save, error) {
	if !s.Driver.Capabilities().Saves {
		return nil, nil
	}
	return s.Driver.Saves(ctx)
}

// auditSaves ends forks that nobody carries on: sandboxes that are held for one whose copies are all there or gone, and saves that nothing is made of any
// more. The saves were listed before the rows.
func (s *Service) auditSaves(ctx context.Context, saves []runtime.Save, rows []*row) {
	making := map[string]bool{}
	for _, r := range rows {
		if r.State == api.StateCreating && r.ForkedFrom != "" {
			making[r.SaveName] = true
		}
	}
	for _, r := range rows {
		if strings.HasPrefix(r.OpID, string(kindFork)+"_") && !making[r.OpID] {
			if err := s.store.release(ctx, s.DB, r.ID, r.OpID); err != nil {
				s.Logger.Warn("sandbox not released", "sandbox", r.ID, "error", err)
			}
		}
	}
	for _, sv := range saves {
		if strings.HasPrefix(sv.Name, string(kindFork)+"_") && !making[sv.Name] {
			s.forget(ctx, sv.Name)
		}
	}
}

// endFork lets go of the save of a fork once nothing more is made of it.
func (s *Service) endFork(ctx context.Context, r *row) {
	if r.ForkedFrom == "" || ctx.Err() != nil {
		return
	}
	rows, err := s.store.ofSave(ctx, s.DB, r.SaveName)
	if err != nil || slices.ContainsFunc(rows, func(r *row) bool { return r.State == api.StateCreating }) {
		return // the last one does it, or the audit
	}
	s.forget(ctx, r.SaveName)
}

func (s *Service) forget(ctx context.Context, save string) {
	if err := s.Driver.Forget(ctx, save); err != nil && ctx.Err() == nil {
		s.Logger.Warn("save not forgotten, will try again", "save", save, "error", err)
	}
}
