package supervisor

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

	"gvisor.dev/gvisor/runsc/container"

	"github.com/berthrun/berth/internal/runtime"
	"github.com/berthrun/berth/internal/runtime/gvisor/proc"
)

// recover takes back what an earlier process left: sandboxes that run go on, what was interrupted is finished or undone, and whatever
// belongs to no sandbox is removed.
func (s *Supervisor) recover(ctx context.Context) error {
	entries, err := os.ReadDir(s.path("sandboxes"))
	if err != nil {
		return fmt.Errorf("list sandboxes: %w", err)
	}
	alive, err := proc.Scan(s.path("gvisor"))
	if err != nil {
		return fmt.Errorf("list processes: %w", err)
	}
	if err := s.loadSaves(); err != nil {
		return err
	}
	for _, e := range entries {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := s.take(e.Name(), alive); err != nil {
			return fmt.Errorf("take back sandbox %s: %w", e.Name(), err)
		}
	}
	if err := errors.Join(s.sweep(), s.sweepPrograms()); err != nil {
		s.log.Error("what belongs to no sandbox is not all removed", "error", err)
	}
	if _, _, ok := s.disks.Room(); ok { // they may be held since before
		s.checkRoom()
		if s.disks.Held() {
			return nil // it has set all limits
		}
		if err := s.limitDisks(); err != nil {
			s.log.Error("limits of disks not set", "error", err)
		}
	}
	return nil
}

// take settles one folder. One that cannot be settled now, as on a machine where processes take long to end, does not keep the node from the others: its
// record says what is left to do, and the next call that is about it does that first.
func (s *Supervisor) take(id string, alive []proc.Found) error {
	sb := s.newSandbox(id)
	r, err := loadRecord(sb.dir, id)
	switch {
	case errors.Is(err, errDamaged):
		r, err = s.salvage(sb)
		if err != nil {
			return err
		}
	case errors.Is(err, os.ErrNotExist):
		// Made, but its first record was not: nothing else was begun.
		r, err = &record{Spec: runtime.Spec{ID: id}, Phase: creating, Slot: -1}, nil
	case err != nil:
		return err
	}
	sb.rec = r
	s.sandboxes[id] = sb
	if r.Slot >= 0 {
		s.slots[r.Slot] = true
	}
	now, dead := *r, ""
	switch now.Phase {
	case running, paused:
		dead, err = s.reattach(sb, now)
	case suspending, saving:
		now, dead, err = s.unfinished(sb, now)
	}
	if err != nil || dead == "" && now.Phase.lives() {
		return err
	}
	if err := s.settle(sb, now, dead, alive); err != nil {
		s.log.Error("sandbox not settled", "sandbox", id, "phase", now.Phase, "error", err)
	}
	return nil
}

// settle finishes or undoes what a record says was going on; dead is why one that should run does not.
func (s *Supervisor) settle(sb *sandbox, r record, dead string, alive []proc.Found) error {
	switch r.Phase {
	case creating, deleting:
		s.log.Info("undo interrupted sandbox", "sandbox", sb.id, "phase", r.Phase)
		return errors.Join(s.end(sb.id, alive), s.remove(sb, r))
	case stopped, suspended:
		return s.end(sb.id, alive)
	case replacing:
		if err := s.end(sb.id, alive); err != nil {
			return err
		}
		return s.rebased(sb, r)
	case waking:
		if err := s.end(sb.id, alive); err != nil {
			return err
		}
		return s.rewound(sb, r, r.Spec)
	case running, paused:
		s.log.Info("sandbox died meanwhile", "sandbox", sb.id, "reason", dead)
		if r.BootID != s.bootID {
			r.Boot, r.Gofer = proc.Process{}, proc.Process{} // numbers of before the machine's restart
		}
		r.Phase, r.Reason = stopping, dead
		if err := sb.put(r); err != nil {
			return err
		}
	}
	if err := s.end(sb.id, alive); err != nil {
		return err
	}
	_, err := s.stopped(sb, r, r.interrupted())
	return err
}

// interrupted is why a sandbox is stopped whose start or stop was not finished.
func (r *record) interrupted() string {
	if r.Phase == starting || r.Reason == "" {
		return runtime.ReasonKilled
	}
	return r.Reason
}

// unfinished has a sandbox go on that stood still while something was kept of it, which was not finished. It gives what the sandbox was before, and why it is
// dead where it is.
func (s *Supervisor) unfinished(sb *sandbox, r record) (before record, dead string, err error) {
	s.log.Info("a sandbox goes on after an interruption", "sandbox", sb.id, "phase", r.Phase)
	if r.Phase == suspending {
		if err := os.RemoveAll(sb.memory()); err != nil {
			return r, "", err
		}
	}
	if r.Phase, r.Before = r.Before, ""; r.Phase != paused {
		r.Phase = running
	}
	if dead, err = s.reattach(sb, r); err != nil || dead != "" {
		return r, dead, err
	}
	return r, "", sb.put(r)
}

// salvage makes a record for a sandbox whose own cannot be read: it becomes a stopped one that still has its disk. The damaged file is kept.
func (s *Supervisor) salvage(sb *sandbox) (*record, error) {
	s.log.Error("record is damaged", "sandbox", sb.id)
	r := &record{Spec: runtime.Spec{ID: sb.id}, Phase: starting, ExitStatus: -1, Since: s.now(), Slot: -1}
	if !s.disks.Has(sb.id) {
		r.Phase = creating // there is nothing to keep
		return r, nil
	}
	if err := os.Rename(sb.dir+"/"+recordFile, sb.dir+"/"+recordFile+".damaged"); err != nil {
		return nil, err
	}
	slot, err := s.takeSlot()
	if err != nil {
		return nil, err
	}
	r.Slot = slot
	return r, r.save(sb.dir)
}

// reattach takes a running sandbox back, or gives the reason why it is dead.
func (s *Supervisor) reattach(sb *sandbox, r record) (dead string, err error) {
	pidfd, err := r.Boot.Open()
	if r.BootID != s.bootID {
		err = proc.ErrGone // the number may be any process's after a restart of the machine
	}
	if errors.Is(err, proc.ErrGone) {
		if r.BootID != s.bootID {
			return runtime.ReasonHostRestart, nil
		}
		return s.reason(sb.id, proc.Exit{}, proc.Exit{}), nil
	}
	if err != nil {
		return "", err
	}
	l := &live{boot: r.Boot, pidfd: pidfd, gofer: r.Gofer, dead: make(chan struct{})}
	if l.goferfd, err = r.Gofer.Open(); err != nil {
		l.goferfd = nil // gone, and the sandbox with it in a moment
	}
	l.lazy = true // it may be
	if l.cont, err = s.loadState(sb, r); err != nil {
		// The sandbox works without it, and can still be ended and deleted.
		s.log.Warn("gvisor's state cannot be read", "sandbox", sb.id, "error", err)
	}
	sb.setLive(l)
	s.watchDeath(sb, l)
	if l.cont != nil {
		if err := align(l, r.Phase == paused); err != nil {
			s.log.Error("sandbox is not as its record says", "sandbox", sb.id, "phase", r.Phase, "error", err)
		}
	}
	if err := s.plug(r); err != nil { // its memory may have been written
		s.log.Error("sandbox has no network", "sandbox", sb.id, "error", err)
	}
	// It may have been booting, with more than its share.
	if err := s.groups.Update(sb.id, limits(r.Spec.Resources)); err != nil {
		s.log.Warn("limits not set again", "sandbox", sb.id, "error", err)
	}
	return "", nil
}

// end kills the processes of one sandbox that the scan found.
func (s *Supervisor) end(id string, alive []proc.Found) error {
	var failed error
	for _, p := range alive {
		if p.ID == id {
			failed = errors.Join(failed, p.Kill(killPatience))
		}
	}
	return failed
}

// sweep removes what belongs to no sandbox in the table. It looks for processes once more: one that was just being started when the process before this
// one was killed shows under its name only a moment later.
func (s *Supervisor) sweep() error {
	slots := map[string]int{}
	for id, sb := range s.sandboxes {
		if sb.live != nil {
			slots[id] = sb.rec.Slot
		}
	}
	alive, failed := proc.Scan(s.path("gvisor"))
	for _, p := range alive {
		if _, ok := slots[p.ID]; !ok {
			failed = errors.Join(failed, p.Kill(killPatience))
		}
	}
	failed = errors.Join(failed, s.nets.Reclaim(slots))
	mounts, err := os.ReadDir(s.path("mounts"))
	failed = errors.Join(failed, err)
	for _, m := range mounts {
		if _, ok := slots[m.Name()]; !ok {
			failed = errors.Join(failed, s.unmountDisk(m.Name()))
		}
	}
	groups, err := s.groups.List()
	failed = errors.Join(failed, err)
	for _, id := range groups {
		if _, ok := slots[id]; !ok {
			failed = errors.Join(failed, s.clear(id, -1))
		}
	}
	disks, err := s.disks.List()
	failed = errors.Join(failed, err)
	for _, id := range disks {
		if !s.owned(id) {
			failed = errors.Join(failed, s.disks.Remove(id))
		}
	}
	return errors.Join(failed, s.sweepVolumes(), s.sweepStates(slots))
}

// owned reports whether somebody has a disk: a sandbox, one whose disk is being replaced, a wake that is not settled, a save, or itself: a volume or a copy.
func (s *Supervisor) owned(disk string) bool {
	if id, ok := strings.CutPrefix(disk, wakePrefix); ok {
		sb := s.sandboxes[id]
		return sb != nil && sb.rec.Unsettled
	}
	if id, ok := strings.CutPrefix(disk, basePrefix); ok {
		sb := s.sandboxes[id]
		return sb != nil && sb.rec.Phase == replacing
	}
	if name, ok := strings.CutPrefix(disk, savePrefix); ok {
		return s.saves[name] != nil
	}
	if strings.HasPrefix(disk, volumePrefix) || strings.HasPrefix(disk, copyPrefix) {
		return s.ownsVolumeDisk(disk)
	}
	return s.sandboxes[disk] != nil
}

// sweepStates removes the files of gVisor that no running sandbox has.
func (s *Supervisor) sweepStates(slots map[string]int) error {
	ids, err := container.List(s.path("gvisor"))
	if err != nil {
		return fmt.Errorf("list gvisor's states: %w", err)
	}
	var failed error
	for _, id := range ids {
		if _, ok := slots[id.SandboxID]; !ok {
			failed = errors.Join(failed, s.clear(id.SandboxID, -1))
		}
	}
	return failed
}
