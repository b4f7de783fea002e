package supervisor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/runtime"
	"github.com/berthrun/berth/internal/runtime/gvisor/proc"
)

// memory is the folder of the latest memory of a sandbox. It counts only where the record says that it does.
func (sb *sandbox) memory() string { return filepath.Join(sb.dir, "memory") }

// wakeDisk is the copy of a sandbox's disk that a Rewind goes back to.
func wakeDisk(id string) string { return wakePrefix + id }

// The beginnings of the names of disks that are no sandbox's. No id has a dot.
const (
	wakePrefix   = "wake."
	savePrefix   = "save."
	volumePrefix = "volume."
	copyPrefix   = "copy."
)

// Suspend writes the memory of a sandbox to disk and lets go of all that runs. Until the record says suspended it can go on as if nothing had been.
func (s *Supervisor) Suspend(ctx context.Context, id string, generation int64) (runtime.Status, error) {
	return s.change(ctx, id, generation, func(sb *sandbox, r record) (runtime.Status, error) {
		switch r.Phase {
		case suspended:
			return s.keepGeneration(sb, r)
		case running, paused:
		default:
			return runtime.Status{}, errPhase(&r)
		}
		// What an earlier wake could go back to is of no use any more.
		r, err := s.letGo(sb, r)
		if err != nil {
			return runtime.Status{}, full(err, "freeze_failed", "the sandbox could not be paused on disk")
		}
		err = s.still(sb, r, suspending, func(now record) error {
			err := s.suspended(sb, now)
			if err != nil {
				err = errors.Join(err, os.RemoveAll(sb.memory())) // at once: the record needs room
			}
			return err
		})
		if err != nil {
			return runtime.Status{}, full(err, "freeze_failed", "the sandbox could not be paused on disk")
		}
		r, _ = sb.record()
		if err := s.teardown(sb, r); err != nil {
			// It is suspended all the same: nothing of it goes on, and whoever comes next tries again.
			s.log.Error("clear suspended sandbox", "sandbox", sb.id, "error", err)
		}
		return s.announce(sb), nil
	})
}

// suspended writes the memory of a sandbox that stands still, and then says that this is what there is of it.
func (s *Supervisor) suspended(sb *sandbox, r record) error {
	if err := s.write(sb, sb.memory(), false); err != nil {
		return err
	}
	if _, err := s.finish(r, sb.memory(), false); err != nil {
		return err
	}
	if err := s.disks.Sync(); err != nil {
		return err
	}
	r.Phase, r.Since, r.Before = suspended, s.now(), ""
	return sb.put(r)
}

// errPhase says that a call cannot be made of a sandbox as it is.
func errPhase(r *record) error {
	return errs.E(errs.InvalidState, "sandbox %s is %s", r.Spec.ID, r.Phase).Because(string(r.status("").State))
}

// full gives the error of something that needed room, and says so where there was none.
func full(err error, reason, what string) error {
	if noRoom(err) {
		return errs.Wrap(errs.LimitExceeded, err, "%s: the node's disk is full", what).Because("disk_full").Suggest("Remove snapshots or sandboxes, or have the operator add room.")
	}
	if _, ok := errors.AsType[*errs.Error](err); ok {
		return err
	}
	return errs.Wrap(errs.Unavailable, err, "%s", what).Because(reason)
}

// still runs something while a sandbox stands still, under a phase of its own. Afterwards, or when this process is killed meanwhile, the sandbox goes on as
// it was, unless its record has become suspended.
func (s *Supervisor) still(sb *sandbox, r record, during phase, do func(now record) error) error {
	l := sb.current()
	if l == nil || l.cont == nil {
		return errs.E(errs.Unavailable, "sandbox %s cannot be frozen: gVisor's state of it was lost", sb.id).Because("freeze_failed").
			Suggest("Stop it and start it again: its files are kept.")
	}
	if err := l.whole(); err != nil {
		return err
	}
	now := r
	now.Phase, now.Before = during, r.Phase
	if err := sb.put(now); err != nil {
		return err
	}
	if err := s.hold(r); err != nil {
		s.undone(sb, r)
		return err
	}
	var err error
	if r.Phase == running {
		err = l.cont.Pause()
	}
	if err == nil {
		err = do(now)
	}
	if after, _ := sb.record(); after.Phase == suspended {
		return nil
	}
	err = errors.Join(err, s.plug(r))
	if r.Phase == running {
		if rerr := l.cont.Resume(); rerr != nil && !l.isDead() {
			s.log.Error("sandbox does not go on", "sandbox", sb.id, "error", rerr)
			err = errors.Join(err, fmt.Errorf("resume: %w", rerr))
			r.Phase = paused // so it is, and can be resumed or stopped
		}
	}
	s.undone(sb, r)
	return err
}

// hold keeps a sandbox's connections quiet while its memory is written. gVisor saves a packet that it has received and not dealt with yet beside its
// connection; should that connection be broken by a wake, and be saved once more before its program has closed it, the packet ends the kernel of the
// second wake when it closes it ("unexpected tcp state in processor: INITIAL"). For the same reason a kernel that is brought back is plugged in last.
func (s *Supervisor) hold(r record) error {
	return s.nets.Hold(r.Slot, r.Spec.Network == runtime.NetworkInternet)
}

func (s *Supervisor) plug(r record) error {
	return s.nets.Connect(r.Slot, r.Spec.Network == runtime.NetworkInternet)
}

// undone records that a sandbox is what it was before something that did not come to be. Where that cannot be written, the record on disk still says what
// was begun, which comes to the same for whoever takes the sandbox back.
func (s *Supervisor) undone(sb *sandbox, r record) {
	if err := sb.put(r); err != nil {
		s.log.Warn("record not written", "sandbox", sb.id, "error", err)
		sb.mu.Lock()
		sb.rec = &r
		sb.mu.Unlock()
	}
}

// whole waits until a kernel that was brought back has read all its pages: one that has not is not to be written again.
func (l *live) whole() error {
	if !l.lazy {
		return nil
	}
	if err := l.cont.WaitRestore(); err != nil && !strings.Contains(err.Error(), "is not being restored") { // of one that was booted
		return fmt.Errorf("wait for memory: %w", err)
	}
	l.lazy = false
	return nil
}

func (l *live) isDead() bool {
	select {
	case <-l.dead:
		return true
	default:
		return false
	}
}

// Wake brings a paused sandbox back.
func (s *Supervisor) Wake(ctx context.Context, spec runtime.Spec) (runtime.Status, error) {
	if err := s.check(&spec); err != nil {
		return runtime.Status{}, err
	}
	return s.change(ctx, spec.ID, spec.Generation, func(sb *sandbox, r record) (runtime.Status, error) {
		switch r.Phase {
		case running:
			return s.keepGeneration(sb, r)
		case paused:
			return s.thaw(sb, r, running)
		case waking:
			// An earlier wake failed, and undoing it did too.
			if err := s.rewound(sb, r, r.Spec); err != nil {
				return runtime.Status{}, s.unsettled(sb, err)
			}
			r, _ = sb.record()
			return s.wake(ctx, sb, r, spec)
		case suspended:
			return s.wake(ctx, sb, r, spec)
		}
		return runtime.Status{}, errPhase(&r)
	})
}

func (s *Supervisor) wake(ctx context.Context, sb *sandbox, r record, spec runtime.Spec) (runtime.Status, error) {
	m, err := readMemory(sb.memory())
	if err == nil {
		err = s.fits(m, spec)
	}
	if err != nil {
		_, kept := s.keepGeneration(sb, r)
		return runtime.Status{}, errors.Join(err, kept)
	}
	if err := s.takeTurnToBoot(ctx); err != nil {
		return runtime.Status{}, err
	}
	defer func() { <-s.boots }()
	if sb.current() != nil { // an earlier suspend left it
		if err := s.teardown(sb, r); err != nil {
			return runtime.Status{}, s.failed(err)
		}
	}
	spec.Network = r.Spec.Network // its rules are part of what is restored
	now := r
	// Where it would take long to keep the disk as it is before the sandbox goes on, a wake cannot be undone.
	now.Spec, now.Phase, now.Unsettled = spec, waking, s.disks.Describe().Snapshot
	if err := sb.put(now); err != nil {
		return runtime.Status{}, err
	}
	if now.Unsettled {
		err = errors.Join(s.disks.Remove(wakeDisk(sb.id)), s.disks.Copy(sb.id, wakeDisk(sb.id), 0))
	}
	if err == nil {
		err = s.boot(sb, now, origin{memory: m, dir: sb.memory(), undone: now.Unsettled})
	}
	if err != nil {
		r.Generation = spec.Generation
		return runtime.Status{}, errors.Join(s.failed(err), s.rewound(sb, now, r.Spec))
	}
	if !now.Unsettled {
		if err := s.dropMemory(sb); err != nil {
			s.log.Warn("memory not removed after the wake", "sandbox", sb.id, "error", err) // the next one replaces it
		}
	}
	return s.announce(sb), nil
}

// Rewind undoes a wake that is not settled.
func (s *Supervisor) Rewind(ctx context.Context, id string, generation int64) (runtime.Status, error) {
	return s.change(ctx, id, generation, func(sb *sandbox, r record) (runtime.Status, error) {
		if r.Phase == suspended {
			return s.keepGeneration(sb, r)
		}
		if !r.Unsettled {
			return runtime.Status{}, errs.E(errs.InvalidState, "sandbox %s has no memory to go back to", id).Because("settled")
		}
		if _, err := readMemory(sb.memory()); err != nil {
			return runtime.Status{}, err
		}
		r.Phase = waking // interrupted, it is undone as a wake is
		if err := sb.put(r); err != nil {
			return runtime.Status{}, err
		}
		if err := s.rewound(sb, r, r.Spec); err != nil {
			return runtime.Status{}, errs.Wrap(errs.Unavailable, err, "the sandbox could not be paused again on this node").Because("rewind_failed")
		}
		return s.announce(sb), nil
	})
}

// rewound makes a suspended sandbox of one that was waking: what runs is ended and the disk is what it was.
func (s *Supervisor) rewound(sb *sandbox, r record, spec runtime.Spec) error {
	if err := s.teardown(sb, r); err != nil {
		return err
	}
	if err := s.disks.Replace(wakeDisk(sb.id), sb.id); err != nil {
		return err
	}
	if err := s.disks.Limit(sb.id, s.diskLimit(sb.id, spec.Resources.DiskGiB, 0)); err != nil {
		return err
	}
	r.Spec, r.Phase, r.Since, r.Reason, r.Unsettled, r.Boot, r.Gofer = spec, suspended, s.now(), "", false, proc.Process{}, proc.Process{}
	s.undone(sb, r)
	return nil
}

// Settle lets go of what Rewind needs.
func (s *Supervisor) Settle(ctx context.Context, id string, generation int64) error {
	_, err := s.change(ctx, id, generation, func(sb *sandbox, r record) (runtime.Status, error) {
		_, err := s.letGo(sb, r)
		return runtime.Status{}, err
	})
	return err
}

// letGo removes the memory and the disk that a settled wake, a stop or a newer suspend makes useless. The record says first that they do not count.
func (s *Supervisor) letGo(sb *sandbox, r record) (record, error) {
	if !r.Unsettled {
		return r, nil
	}
	r.Unsettled = false
	if err := sb.put(r); err != nil {
		return r, err
	}
	return r, s.dropMemory(sb)
}

func (s *Supervisor) dropMemory(sb *sandbox) error {
	err := errors.Join(os.RemoveAll(sb.memory()), s.disks.Remove(wakeDisk(sb.id)))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return errs.Wrap(errs.Unavailable, err, "what a wake left could not be removed").Because("disk")
	}
	return nil
}
