package sandbox

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/berthrun/berth/api"
	"github.com/berthrun/berth/internal/db"
	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/guest"
	"github.com/berthrun/berth/internal/runtime"
)

// worker carries one sandbox through its moving states.
type worker struct {
	again     bool // it was nudged while it worked
	interrupt context.CancelFunc
}

// nudge has a worker look at a sandbox, soon. Without Run it does nothing: Run looks at everything when it begins.
func (s *Service) nudge(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ctx == nil || s.ctx.Err() != nil {
		return
	}
	if w := s.working[id]; w != nil {
		w.again = true
		return
	}
	ctx, cancel := context.WithCancel(s.ctx)
	w := &worker{interrupt: cancel}
	s.working[id] = w
	s.wg.Go(func() {
		defer cancel()
		s.work(ctx, id, w)
	})
}

// interrupt ends what a worker waits for: the sandbox goes another way.
func (s *Service) interrupt(id string) {
	s.mu.Lock()
	if w := s.working[id]; w != nil {
		w.interrupt()
	}
	s.mu.Unlock()
	s.nudge(id)
}

func (s *Service) work(ctx context.Context, id string, w *worker) {
	delay := 100 * time.Millisecond
	for {
		s.mu.Lock()
		w.again = false
		s.mu.Unlock()
		settled, err := s.advance(ctx, id)
		if err == nil {
			delay = 100 * time.Millisecond
		} else if s.ctx.Err() == nil && !errs.Is(err, errs.Busy) && !errors.Is(err, context.Canceled) {
			s.Logger.Warn("sandbox step failed, will try again", "sandbox", id, "error", err)
		}
		s.mu.Lock()
		done := s.ctx.Err() != nil || (settled && !w.again)
		if done {
			delete(s.working, id)
		} else if ctx.Err() != nil {
			ctx, w.interrupt = context.WithCancel(s.ctx)
			defer w.interrupt()
		}
		s.mu.Unlock()
		if done {
			return
		}
		if err != nil {
			select {
			case <-time.After(delay):
			case <-s.ctx.Done():
			}
			delay = min(2*delay, 10*time.Second)
		}
	}
}

// advance makes the next step of a sandbox; settled says that there is none.
func (s *Service) advance(ctx context.Context, id string) (settled bool, err error) {
	r, err := s.store.get(ctx, s.DB, id)
	if err != nil || r == nil {
		return err == nil, err
	}
	if done, err := s.switchStep(ctx, r); done {
		return false, err
	}
	switch r.State {
	case api.StateCreating, api.StateStarting:
		return false, s.boot(ctx, r)
	case api.StatePausing:
		return false, s.rest(ctx, r)
	case api.StateWaking:
		return false, s.wakeUp(ctx, r)
	case api.StateRunning:
		if r.Unsettled && !s.justWoken(r) {
			return true, s.letGo(ctx, r)
		}
	case api.StatePaused:
		if s.deepens(ctx, r) {
			return true, s.deepen(ctx, r)
		}
	case api.StateStopping:
		return false, s.halt(ctx, r)
	case api.StateDeleting:
		return false, s.remove(ctx, r)
	}
	return true, nil
}

func (r *row) spec() runtime.Spec {
	network := runtime.NetworkNone
	if r.Internet {
		network = runtime.NetworkInternet
	}
	return runtime.Spec{
		ID: r.ID, Generation: r.Generation, Image: r.Image, Network: network, Hostname: hostname(r), GuestToken: r.GuestToken,
		Resources: runtime.Resources{VCPU: float64(r.VCPUMilli) / 1000, MemoryMiB: r.MemoryMiB, DiskGiB: r.DiskGiB},
	}
}

// hostname is a sandbox's name as a host may have it: names may hold more.
func hostname(r *row) string {
	name := strings.Trim(strings.Map(func(c rune) rune {
		if c >= 'a' && c <= 'z' || c >= '0' && c <= '9' {
			return c
		}
		return '-'
	}, r.Name), "-")
	if name != "" {
		return name
	}
	return runtime.DefaultHostname(r.ID)
}

// bootFailed is why a sandbox is stopped that did not boot.
const bootFailed = "boot_failed"

// diskFull is why a sandbox failed for which its node had no room.
const diskFull = "disk_full"

// boot brings a creating or starting sandbox to its guest's first answer, or to failed or stopped when that does not succeed in time. A boot that the node
// itself gives up is not tried again: one that was cut off, or has to wait for the node, is HOST_UNAVAILABLE.
func (s *Service) boot(ctx context.Context, r *row) error {
	if done, err := s.fetchImage(ctx, r); done || err != nil {
		return err
	}
	free, done, err := s.fetchSave(ctx, r)
	if done || err != nil {
		return err
	}
	defer free()
	deadline := db.Time(r.StateAt).Add(s.BootTimeout)
	bctx, cancel := context.WithTimeout(ctx, max(deadline.Sub(s.Now()), time.Second))
	defer cancel()
	err = s.bring(bctx, r)
	switch {
	case err == nil:
		if err := s.up(ctx, r); err != nil {
			return err
		}
		s.endFork(ctx, r)
		return nil
	case ctx.Err() != nil:
		return ctx.Err() // interrupted: the sandbox goes another way
	case errs.Is(err, errs.HostUnavailable) && s.Now().Before(deadline):
		return err // the node comes back, or the deadline does
	case errs.From(err).Reason == "guest_unresponsive" && s.Now().Before(db.Time(r.StateAt).Add(s.BootTimeout/2)):
		return err // its kernel runs, and a machine with much to do starts a program slowly
	}
	s.Logger.Warn("sandbox did not boot", "sandbox", r.ID, "state", r.State, "error", err)
	s.booted(r, true)
	r.Error = errs.From(err).Message
	s.dropGuest(r.ID)
	if r.State == api.StateCreating {
		if reason := reasonOf(err); runtime.MemoryUnusable(reason) || reason == diskFull {
			r.StopReason = reason
		}
		if derr := s.Driver.Delete(ctx, r.ID, r.Generation); derr != nil {
			return fmt.Errorf("clear failed sandbox: %w", derr)
		}
		if err := s.move(ctx, r, api.StateFailed); err != nil {
			return err
		}
		s.endFork(ctx, r)
		return nil
	}
	if _, serr := s.Driver.Stop(ctx, r.ID, r.Generation, runtime.StopOptions{}); serr != nil && !errs.Is(serr, errs.NotFound) {
		return fmt.Errorf("stop sandbox that did not boot: %w", serr)
	}
	r.StopReason = bootFailed
	return s.move(ctx, r, api.StateStopped)
}

// up makes a booted sandbox a running one.
func (s *Service) up(ctx context.Context, r *row) error {
	s.booted(r, false)
	r.BootGeneration = r.Generation
	r.StartedAt = db.Micros(s.Now())
	r.ActiveAt = r.StartedAt
	return s.move(ctx, r, api.StateRunning)
}

// booted tells the observer how a boot ended and how long it took since it was asked for.
func (s *Service) booted(r *row, failed bool) {
	if s.Observer == nil {
		return
	}
	kind := "create"
	switch {
	case r.State == api.StateStarting:
		kind = "start"
	case r.State == api.StateWaking:
		kind = "wake"
	case r.ForkedFrom != "":
		kind = "fork"
	case r.SnapshotID != "":
		kind = "snapshot"
	}
	s.Observer.Booted(kind, failed, s.Now().Sub(db.Time(r.StateAt)))
}

func (s *Service) bring(ctx context.Context, r *row) error {
	spec, err := s.specOf(ctx, r)
	if err != nil {
		return err
	}
	switch {
	case r.State == api.StateStarting:
		_, err = s.Driver.Start(ctx, spec)
	case r.seeded():
		err = s.fromSeed(ctx, r)
	case r.layered():
		err = s.fromLayer(ctx, r, spec)
	case r.SaveName != "":
		_, err = s.Driver.Clone(ctx, spec, r.SaveName, runtime.CloneOptions{FromDisk: r.FromDisk})
	default:
		_, err = s.Driver.Create(ctx, spec)
		if r.SaveToken != "" && errs.Is(err, errs.AlreadyExists) { // it was ready, and has died since
			_, err = s.Driver.Start(ctx, spec)
		}
	}
	if err != nil {
		return err
	}
	if err := s.greet(ctx, r); err != nil {
		return err
	}
	return s.startOwn(ctx, r)
}

// greet waits for the guest of a sandbox that came up and gives it what is this sandbox's own. The guest of a copy may still have the token of the one that
// it is a copy of.
func (s *Service) greet(ctx context.Context, r *row) error {
	c, err := s.own(ctx, r)
	if err != nil {
		return err
	}
	c.Token, c.Entropy = r.GuestToken, guest.NewEntropy()
	configure := func(g *guest.Client) error {
		if _, err := g.Hello(ctx); err != nil {
			return err
		}
		c.UnixNanos = s.Now().UnixNano()
		_, err := g.Configure(ctx, c)
		return err
	}
	if r.State == api.StateCreating && r.SaveToken != "" && r.SaveToken != r.GuestToken && !r.FromDisk {
		old := s.connect(r.ID, r.SaveToken)
		err := configure(old)
		old.Close()
		if reasonOf(err) != "guest_token" { // it has its own already, where an earlier try came so far
			return err
		}
	}
	return configure(s.guest(r.ID, r.Generation, r.GuestToken))
}

// own is what a sandbox's guest is told that is this sandbox's and no copy's.
func (s *Service) own(ctx context.Context, r *row) (guest.Configure, error) {
	c := guest.Configure{Hostname: hostname(r), Env: orEmpty(r.Env), Pids: s.Defaults.PidsOf(r.MemoryMiB)}
	err := s.asImage(ctx, r, &c)
	return c, err
}

// halt ends a stopping sandbox and keeps its disk and what its processes wrote.
func (s *Service) halt(ctx context.Context, r *row) error {
	g := s.guest(r.ID, r.BootGeneration, r.GuestToken)
	if st, err := s.Driver.Get(ctx, r.ID); err == nil && st.State == runtime.Running && s.listens(ctx, r.ID, g) {
		kctx, cancel := context.WithTimeout(ctx, s.Grace+10*time.Second)
		err := s.Keeper.Keep(kctx, r.OrgID, r.ID, func(visit func(guest.ExportRecord) error) error {
			return g.ShutdownExport(kctx, s.Grace, visit)
		})
		cancel()
		if err != nil {
			s.Logger.Warn("processes not kept", "sandbox", r.ID, "error", err)
		}
	}
	if _, err := s.Driver.Stop(ctx, r.ID, r.Generation, runtime.StopOptions{Grace: time.Second}); err != nil && !errs.Is(err, errs.NotFound) {
		return err
	}
	s.dropGuest(r.ID)
	if err := s.Keeper.Lost(ctx, r.ID); err != nil {
		return err
	}
	return s.move(ctx, r, api.StateStopped)
}

// keepDeleted bounds the wait for what a sandbox's processes wrote before it is deleted.
const keepDeleted = 3 * time.Second

// listens reports whether a guest that is to be shut down can be told so. One that hangs is not waited for any longer.
func (s *Service) listens(ctx context.Context, id string, g *guest.Client) bool {
	err := g.Check(ctx)
	if err != nil {
		s.Logger.Warn("processes not kept: the guest does not answer", "sandbox", id, "error", err)
	}
	return err == nil
}

// remove takes everything away that a deleting sandbox has.
func (s *Service) remove(ctx context.Context, r *row) error {
	// What it wrote stays readable for as long as its tombstone stands.
	if st, err := s.Driver.Get(ctx, r.ID); err == nil && st.State == runtime.Running {
		kctx, cancel := context.WithTimeout(ctx, keepDeleted)
		g := s.guest(r.ID, r.BootGeneration, r.GuestToken)
		if err := s.Keeper.Keep(kctx, r.OrgID, r.ID, func(visit func(guest.ExportRecord) error) error { return g.Export(kctx, visit) }); err != nil {
			s.Logger.Info("processes of a deleted sandbox not kept", "sandbox", r.ID, "error", err)
		}
		cancel()
	}
	s.dropGuest(r.ID)
	if err := s.Driver.Delete(ctx, r.ID, r.Generation); err != nil {
		return err
	}
	if err := s.Keeper.Lost(ctx, r.ID); err != nil {
		return err
	}
	return s.move(ctx, r, api.StateDeleted)
}
