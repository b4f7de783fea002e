package supervisor

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/runtime"
	"github.com/berthrun/berth/internal/runtime/gvisor/proc"
)

// killPatience is how long a killed process may take to be gone. A sandbox with much memory takes seconds.
const killPatience = 30 * time.Second

// Stop ends a sandbox and keeps its disk. With a grace its guest is asked to end first.
func (s *Supervisor) Stop(ctx context.Context, id string, generation int64, grace time.Duration) (runtime.Status, error) {
	return s.change(ctx, id, generation, func(sb *sandbox, r record) (runtime.Status, error) {
		if r.Phase == stopped {
			return s.keepGeneration(sb, r)
		}
		asked := r.Phase == running && grace > 0
		r.Phase, r.Reason = stopping, runtime.ReasonRequested
		if err := sb.put(r); err != nil {
			return runtime.Status{}, err
		}
		if asked {
			s.ask(sb, grace)
		}
		return s.stopped(sb, r, runtime.ReasonRequested)
	})
}

// ask sends the guest a TERM and waits until the sandbox has ended, at most for the grace.
func (s *Supervisor) ask(sb *sandbox, grace time.Duration) {
	l := sb.current()
	if l == nil || l.cont == nil {
		return
	}
	timer := time.NewTimer(grace)
	defer timer.Stop()
	// Apart, as a sandbox that hangs does not answer; it is killed in the end, and with it the call.
	asked := make(chan error, 1)
	go func() { asked <- l.cont.SignalContainer(unix.SIGTERM, false) }()
	select {
	case <-l.dead:
	case <-timer.C:
	}
}

// stopped removes what belongs to a boot and records why it ended. The turn is held.
func (s *Supervisor) stopped(sb *sandbox, r record, reason string) (runtime.Status, error) {
	status := -1
	if l := sb.current(); l != nil && l.pidfd != nil {
		if e := proc.ExitOf(l.boot, l.pidfd); e.Known && e.Status.Exited() {
			status = e.Status.ExitStatus()
		}
	}
	if err := s.teardown(sb, r); err != nil {
		return runtime.Status{}, errs.Wrap(errs.Unavailable, err, "the sandbox could not be stopped on this node").Because("stop_failed")
	}
	// One that died before its wake was settled can still be rewound.
	if keep := r.Unsettled && reason != runtime.ReasonRequested; !keep {
		r.Unsettled = false
		if err := s.dropMemory(sb); err != nil {
			return runtime.Status{}, err
		}
	}
	r.Phase, r.Reason, r.ExitStatus, r.Since, r.Boot, r.Gofer = stopped, reason, status, s.now(), proc.Process{}, proc.Process{}
	if err := sb.put(r); err != nil {
		return runtime.Status{}, err
	}
	return s.announce(sb), nil
}

// Delete removes a sandbox and all it had. One that is not here is fine.
func (s *Supervisor) Delete(ctx context.Context, id string, generation int64) error {
	_, err := s.do(ctx, id, false, func(_ context.Context, sb *sandbox) (runtime.Status, error) {
		r, ok := sb.record()
		if !ok {
			return runtime.Status{}, nil
		}
		r, err := newer(r, generation)
		if err != nil {
			return runtime.Status{}, err
		}
		r.Phase = deleting
		if err := sb.put(r); err != nil {
			return runtime.Status{}, err
		}
		if err := s.remove(sb, r); err != nil {
			return runtime.Status{}, errs.Wrap(errs.Unavailable, err, "the sandbox could not be deleted on this node").Because("delete_failed")
		}
		s.events.publish(runtime.Status{ID: id, Generation: r.Generation, State: runtime.Deleted, ExitStatus: -1, Since: s.now()})
		return runtime.Status{}, nil
	})
	if errs.Is(err, errs.NotFound) {
		return nil
	}
	return err
}

// remove undoes a sandbox whole and takes it out of the table. The turn is held.
func (s *Supervisor) remove(sb *sandbox, r record) error {
	if err := s.undo(sb, r); err != nil {
		return err
	}
	s.forget(sb)
	return nil
}

// undo removes all that a sandbox has, its record last. Only then another may have its slot: nothing of it answers there any more.
func (s *Supervisor) undo(sb *sandbox, r record) error {
	if err := s.teardown(sb, r); err != nil {
		return err
	}
	if err := errors.Join(s.disks.Remove(sb.id), s.disks.Remove(wakeDisk(sb.id)), s.disks.Remove(baseDisk(sb.id))); err != nil {
		return err
	}
	if err := os.RemoveAll(sb.dir); err != nil {
		return fmt.Errorf("remove folder: %w", err)
	}
	s.giveSlot(r.Slot)
	sb.mu.Lock()
	sb.rec, sb.live = nil, nil
	sb.mu.Unlock()
	return nil
}

// teardown removes what belongs to a boot: processes first, then all that they held. It is safe at any moment of a boot and of itself.
func (s *Supervisor) teardown(sb *sandbox, r record) error {
	l := sb.current()
	if l != nil && l.child {
		// Both are our children: until they are waited for, which Destroy does, their numbers are theirs.
		if err := l.cont.Destroy(); err != nil {
			s.log.Warn("destroy failed", "sandbox", sb.id, "error", err)
		}
	}
	for _, p := range []proc.Process{r.Boot, r.Gofer} {
		if err := p.Kill(killPatience); err != nil {
			return err
		}
	}
	if l != nil {
		l.letGo()
		if l.pidfd != nil {
			<-l.dead
		}
	}
	sb.setLive(nil)
	return s.clear(sb.id, r.Slot)
}

// clear removes what a boot has put into the machine, once its processes are gone.
func (s *Supervisor) clear(id string, slot int) error {
	for _, pid := range s.groups.Members(id) {
		// Threads of the sandbox's platform end with it, a moment later.
		p, err := proc.Identify(pid)
		if err != nil {
			continue
		}
		if err := p.Kill(killPatience); err != nil {
			return err
		}
	}
	err := errors.Join(s.nets.Teardown(id, slot), s.unmountDisk(id), s.groups.Remove(id))
	for _, kind := range []string{"state", "lock", "sock"} {
		if e := os.Remove(s.stateFile(id, kind)); e != nil && !errors.Is(e, os.ErrNotExist) {
			err = errors.Join(err, e)
		}
	}
	return errors.Join(err, os.RemoveAll(s.path("sandboxes", id, "bundle")))
}

// watchDeath waits for the end of a boot, and then settles what that means. It begins with the boot.
func (s *Supervisor) watchDeath(sb *sandbox, l *live) {
	s.work.Add(1)
	go func() {
		defer s.work.Done()
		err := proc.Wait(l.pidfd)
		how := proc.Exit{}
		if err == nil {
			how = proc.ExitOf(l.boot, l.pidfd)
		}
		close(l.dead)
		if err != nil {
			return // closed: an operation ends it, or this process ends
		}
		s.died(sb, l, how)
	}()
}

// died settles a sandbox that ended by itself.
func (s *Supervisor) died(sb *sandbox, l *live, how proc.Exit) {
	sb.turn <- struct{}{} // an operation that holds it ends: it has deadlines
	defer func() { <-sb.turn }()
	r, ok := sb.record()
	if !ok || sb.current() != l || r.Phase != running && r.Phase != paused {
		return
	}
	if !how.Known {
		how = proc.ExitOf(l.boot, l.pidfd) // reaped meanwhile
	}
	reason := s.reason(sb.id, how, l.goferExit())
	s.log.Info("sandbox died", "sandbox", sb.id, "reason", reason, "said", s.quote(sb))
	r.Phase, r.Reason = stopping, reason
	if err := sb.put(r); err == nil {
		if _, err = s.stopped(sb, r, reason); err == nil {
			return
		}
		s.log.Error("settle dead sandbox", "sandbox", sb.id, "error", err)
	}
}

// goferExit says how the file server ended. Without it the sandbox ends too, as if by itself.
func (l *live) goferExit() proc.Exit {
	if l.goferfd == nil || !proc.Ended(l.goferfd) {
		return proc.Exit{}
	}
	return proc.ExitOf(l.gofer, l.goferfd)
}

// reason says why a sandbox ended, from the exits of its processes and from what the kernel counted in its group.
func (s *Supervisor) reason(id string, how, gofer proc.Exit) string {
	panicked, err := os.Stat(filepath.Join(s.path("sandboxes", id), panicLog))
	switch {
	case s.groups.OOMKills(id) > 0 && !(how.Known && how.Status.Exited() && how.Status.ExitStatus() < 128):
		return runtime.ReasonOutOfMemory
	case gofer.Known && gofer.Status.Signaled():
		return runtime.ReasonKilled
	case how.Known && how.Status.Exited() && (err != nil || panicked.Size() == 0):
		return runtime.ReasonExited
	}
	return runtime.ReasonKilled
}
