package supervisor

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/runtime"
)

func (s *Supervisor) now() time.Time { return s.cfg.Now().UTC() }

// announce tells those who watch, and gives the status.
func (s *Supervisor) announce(sb *sandbox) runtime.Status {
	st, ok := s.status(sb)
	if ok {
		s.events.publish(st)
	}
	return st
}

// Get reports one.
func (s *Supervisor) Get(id string) (runtime.Status, error) {
	sb, err := s.find(id, false)
	if err != nil {
		return runtime.Status{}, err
	}
	st, ok := s.status(sb)
	if !ok {
		return runtime.Status{}, notFound(id)
	}
	return st, nil
}

// List reports all.
func (s *Supervisor) List() []runtime.Status {
	s.mu.Lock()
	all := make([]*sandbox, 0, len(s.sandboxes))
	for _, sb := range s.sandboxes {
		all = append(all, sb)
	}
	s.mu.Unlock()
	out := []runtime.Status{}
	for _, sb := range all {
		if st, ok := s.status(sb); ok {
			out = append(out, st)
		}
	}
	return out
}

// Pause freezes a running sandbox in memory; a paused one stays so.
func (s *Supervisor) Pause(ctx context.Context, id string, generation int64) (runtime.Status, error) {
	return s.freeze(ctx, id, generation, running, paused)
}

// Resume lets a paused sandbox go on; a running one stays so.
func (s *Supervisor) Resume(ctx context.Context, id string, generation int64) (runtime.Status, error) {
	return s.freeze(ctx, id, generation, paused, running)
}

func (s *Supervisor) freeze(ctx context.Context, id string, generation int64, from, to phase) (runtime.Status, error) {
	return s.change(ctx, id, generation, func(sb *sandbox, r record) (runtime.Status, error) {
		switch r.Phase {
		case to:
			return s.keepGeneration(sb, r)
		case suspended: // it stands still already, and only a wake changes that
			if to == paused {
				return s.keepGeneration(sb, r)
			}
		case from:
			return s.thaw(sb, r, to)
		}
		return runtime.Status{}, errPhase(&r)
	})
}

// thaw freezes a running sandbox or lets a frozen one go on. The turn is held.
func (s *Supervisor) thaw(sb *sandbox, r record, to phase) (runtime.Status, error) {
	l := sb.current()
	if l == nil || l.cont == nil {
		return runtime.Status{}, errPhase(&r)
	}
	call := l.cont.Resume
	if to == paused {
		call = l.cont.Pause
	}
	if err := call(); err != nil {
		return runtime.Status{}, errs.Wrap(errs.Unavailable, err, "the sandbox could not be made %s", to).Because("freeze_failed")
	}
	r.Phase, r.Since = to, s.now()
	if err := sb.put(r); err != nil {
		return runtime.Status{}, err
	}
	return s.announce(sb), nil
}

// Stats reads a running sandbox.
func (s *Supervisor) Stats(id string) (runtime.Stats, error) {
	if _, _, err := s.alive(id); err != nil {
		return runtime.Stats{}, err
	}
	g, err := s.groups.Stats(id)
	if err != nil {
		return runtime.Stats{}, errs.Wrap(errs.InvalidState, err, "sandbox %s is not running", id).Because("stopped")
	}
	out := runtime.Stats{CPUSeconds: g.CPUSeconds, MemoryBytes: g.MemoryBytes, MemoryPeak: g.MemoryPeak, Pids: g.Pids}
	if out.DiskBytes, err = s.disks.Usage(id); err != nil {
		s.log.Warn("measure disk", "sandbox", id, "error", err)
	}
	return out, nil
}

// alive gives a running or paused sandbox and its record.
func (s *Supervisor) alive(id string) (*live, record, error) {
	sb, err := s.find(id, false)
	if err != nil {
		return nil, record{}, err
	}
	sb.mu.Lock()
	defer sb.mu.Unlock()
	if sb.rec == nil || sb.rec.Phase == creating || sb.rec.Phase == deleting {
		return nil, record{}, notFound(id)
	}
	if sb.rec.Phase == suspended || sb.rec.Phase == waking {
		return nil, record{}, errs.E(errs.InvalidState, "sandbox %s is paused", id).Because("paused")
	}
	if sb.live == nil || !sb.rec.Phase.lives() {
		return nil, record{}, errs.E(errs.InvalidState, "sandbox %s is not running", id).Because("stopped")
	}
	return sb.live, *sb.rec, nil
}

// Update changes the limits of a sandbox, at once where it runs.
func (s *Supervisor) Update(ctx context.Context, id string, generation int64, res runtime.Resources) error {
	_, err := s.change(ctx, id, generation, func(sb *sandbox, r record) (runtime.Status, error) {
		spec := r.Spec
		spec.Resources = res
		if err := s.check(&spec); err != nil {
			return runtime.Status{}, err
		}
		if sb.current() != nil {
			if err := s.groups.Update(id, limits(res)); err != nil {
				// The kernel refuses a memory limit below what is in use and cannot be freed.
				return runtime.Status{}, errs.Wrap(errs.InvalidState, err, "the new limits cannot be set while sandbox %s uses more", id).Because("in_use")
			}
		}
		if err := s.disks.Limit(id, s.diskLimit(id, res.DiskGiB, 0)); err != nil {
			return runtime.Status{}, errs.Wrap(errs.Unavailable, err, "the disk's limit cannot be set").Because("disk")
		}
		r.Spec = spec
		return runtime.Status{}, sb.put(r)
	})
	return err
}

// standstill is how often it is looked whether a sandbox that stands still for a moment goes on.
const standstill = 5 * time.Millisecond

// Dial connects to a TCP port of a sandbox. It gives the connection and a pidfd that tells of the sandbox's death; the caller closes both. One that stands
// still while it is saved is waited for.
func (s *Supervisor) Dial(ctx context.Context, id string, port int) (*net.TCPConn, *os.File, error) {
	if port < 1 || port > 65535 {
		return nil, nil, errs.E(errs.InvalidInput, "%d is no port", port)
	}
	for {
		l, r, err := s.alive(id)
		if err != nil {
			return nil, nil, err
		}
		switch {
		case r.Phase == paused || r.Before == paused || r.Phase == suspending:
			return nil, nil, errs.E(errs.InvalidState, "sandbox %s is paused", id).Because("paused")
		case r.Phase != saving:
			return s.dialLive(ctx, l, r, port)
		}
		select {
		case <-time.After(standstill):
		case <-ctx.Done():
			return nil, nil, dialError(ctx, id, port, ctx.Err())
		}
	}
}

func (s *Supervisor) dialLive(ctx context.Context, l *live, r record, port int) (*net.TCPConn, *os.File, error) {
	id := r.Spec.ID
	death, err := l.boot.Open()
	if err != nil {
		return nil, nil, errs.Wrap(errs.InvalidState, err, "sandbox %s is not running", id).Because("stopped")
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() { // ends with this call
		select {
		case <-l.dead:
			cancel()
		case <-ctx.Done():
		}
	}()
	address := net.JoinHostPort(s.nets.Address(r.Slot).String(), fmt.Sprint(port))
	// A dead peer's cable is gone, and what is sent then must not be repeated for minutes.
	d := net.Dialer{
		KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: 15 * time.Second, Interval: 5 * time.Second, Count: 3},
		Control:         through(s.nets.Link(r.Slot, r.Spec.Network == runtime.NetworkInternet)),
	}
	conn, err := d.DialContext(ctx, "tcp4", address)
	if err != nil {
		death.Close()
		return nil, nil, dialError(ctx, id, port, err)
	}
	tcp := conn.(*net.TCPConn)
	if raw, err := tcp.SyscallConn(); err == nil {
		_ = raw.Control(func(fd uintptr) {
			_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, 30_000)
			// Nothing is lost on the cable, and no pace has to be found: what a machine's own algorithm, such as BBR, estimates from the shortest round trip
			// leaves too little under way where the sandbox waits for its turn. Every kernel has this one.
			_ = unix.SetsockoptString(int(fd), unix.IPPROTO_TCP, unix.TCP_CONGESTION, "reno")
		})
	}
	return tcp, death, nil
}

// through makes a socket use one interface only. Which one an address leads to is for the host's routes to say, and whoever else has a hand in them must not
// get what is meant for a sandbox: the guest's token goes with the first call.
func through(name string) func(string, string, syscall.RawConn) error {
	return func(_, _ string, c syscall.RawConn) error {
		var failed error
		err := c.Control(func(fd uintptr) { failed = unix.BindToDevice(int(fd), name) })
		return errors.Join(err, failed)
	}
}

func dialError(ctx context.Context, id string, port int, err error) error {
	if cause := context.Cause(ctx); cause != nil {
		return errs.Wrap(errs.Timeout, err, "port %d of sandbox %s did not answer in time", port, id).Because("no_answer")
	}
	return errs.Wrap(errs.Unavailable, err, "nothing listens on port %d of sandbox %s", port, id).Because("refused")
}
