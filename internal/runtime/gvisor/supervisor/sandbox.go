package supervisor

import (
	"context"
	"os"
	"path/filepath"
	"sync"

	"gvisor.dev/gvisor/runsc/container"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/runtime"
	"github.com/berthrun/berth/internal/runtime/gvisor/proc"
)

// sandbox is one on this node. Whoever changes it holds its turn; mu lets others read meanwhile.
type sandbox struct {
	id   string
	dir  string
	turn chan struct{} // one operation at a time, in which a waiting caller may give up

	mu   sync.Mutex
	rec  *record // nil until it is created and after it is deleted
	live *live   // nil while nothing of it runs
	gone bool    // not in the table any more
}

// live is what belongs to one boot.
type live struct {
	boot    proc.Process
	pidfd   *os.File // of boot
	gofer   proc.Process
	goferfd *os.File             // of gofer; nil where it was gone already
	cont    *container.Container // nil where gVisor's own state could not be read: then only signals are left
	child   bool                 // boot and gofer are children of this process
	lazy    bool                 // it was brought back, and may still be reading its pages
	dead    chan struct{}        // closed when boot has ended, or watching it was given up
}

func (s *Supervisor) newSandbox(id string) *sandbox {
	return &sandbox{id: id, dir: s.path("sandboxes", id), turn: make(chan struct{}, 1)}
}

func (sb *sandbox) bundle() string           { return filepath.Join(sb.dir, "bundle") }
func (s *Supervisor) mount(id string) string { return s.path("mounts", id) }

// status gives what callers see; false while there is nothing to see.
func (s *Supervisor) status(sb *sandbox) (runtime.Status, bool) {
	sb.mu.Lock()
	defer sb.mu.Unlock()
	if sb.rec == nil || sb.rec.Phase == creating || sb.rec.Phase == deleting {
		return runtime.Status{}, false
	}
	return sb.rec.status(s.nets.Address(sb.rec.Slot).String()), true
}

// put replaces the record, durably first.
func (sb *sandbox) put(r record) error {
	if err := r.save(sb.dir); err != nil {
		return errs.Wrap(errs.Unavailable, err, "the node cannot write its records").Because("disk")
	}
	sb.mu.Lock()
	sb.rec = &r
	sb.mu.Unlock()
	return nil
}

// record gives a copy of the record. Only whoever holds the turn may call it.
func (sb *sandbox) record() (record, bool) {
	sb.mu.Lock()
	defer sb.mu.Unlock()
	if sb.rec == nil {
		return record{}, false
	}
	return *sb.rec, true
}

func (sb *sandbox) current() *live {
	sb.mu.Lock()
	defer sb.mu.Unlock()
	return sb.live
}

func (sb *sandbox) setLive(l *live) {
	sb.mu.Lock()
	defer sb.mu.Unlock()
	sb.live = l
}

// unwatch ends the goroutine that waits for the sandbox's death.
func (sb *sandbox) unwatch() {
	if l := sb.current(); l != nil && l.pidfd != nil {
		_ = l.pidfd.Close()
	}
}

// letGo closes what a boot was watched through.
func (l *live) letGo() {
	for _, f := range []*os.File{l.pidfd, l.goferfd} {
		if f != nil {
			_ = f.Close()
		}
	}
}

// find gives the sandbox of an id and, where make is true, a new one for an id that has none.
func (s *Supervisor) find(id string, make bool) (*sandbox, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, errs.E(errs.HostUnavailable, "the runtime of this node is shutting down").Because("shutting_down")
	}
	sb := s.sandboxes[id]
	if sb == nil && make {
		sb = s.newSandbox(id)
		s.sandboxes[id] = sb
	}
	if sb == nil {
		return nil, notFound(id)
	}
	return sb, nil
}

func notFound(id string) error { return errs.E(errs.NotFound, "no sandbox %s is on this node", id) }

// forget takes a sandbox out of the table. Its turn is held.
func (s *Supervisor) forget(sb *sandbox) {
	s.mu.Lock()
	delete(s.sandboxes, sb.id)
	s.mu.Unlock()
	sb.mu.Lock()
	sb.rec, sb.live, sb.gone = nil, nil, true
	sb.mu.Unlock()
}

// do runs an operation in the sandbox's turn. A caller that gives up stops waiting only: what has begun goes on to its end.
func (s *Supervisor) do(ctx context.Context, id string, make bool, op func(context.Context, *sandbox) (runtime.Status, error)) (runtime.Status, error) {
	for {
		sb, err := s.find(id, make)
		if err != nil {
			return runtime.Status{}, err
		}
		select {
		case sb.turn <- struct{}{}:
		case <-ctx.Done():
			return runtime.Status{}, ctx.Err()
		}
		sb.mu.Lock()
		gone := sb.gone
		sb.mu.Unlock()
		if gone {
			<-sb.turn
			continue // it was deleted while we waited
		}
		return s.begin(ctx, sb, op)
	}
}

// change runs an operation on a sandbox that is there, in its turn, with its record as the call's generation makes it.
func (s *Supervisor) change(ctx context.Context, id string, generation int64, op func(*sandbox, record) (runtime.Status, error)) (runtime.Status, error) {
	return s.do(ctx, id, false, func(_ context.Context, sb *sandbox) (runtime.Status, error) {
		r, ok := sb.record()
		if !ok {
			return runtime.Status{}, notFound(id)
		}
		r, err := newer(r, generation)
		if err != nil {
			return runtime.Status{}, err
		}
		return op(sb, r)
	})
}

func (s *Supervisor) begin(ctx context.Context, sb *sandbox, op func(context.Context, *sandbox) (runtime.Status, error)) (runtime.Status, error) {
	type result struct {
		st  runtime.Status
		err error
	}
	_, made := sb.record()
	s.mu.Lock()
	if s.closed || s.closing && !made {
		s.mu.Unlock()
		s.drop(sb)
		<-sb.turn
		return runtime.Status{}, errs.E(errs.HostUnavailable, "the runtime of this node is shutting down").Because("shutting_down")
	}
	s.work.Add(1)
	s.ops.Add(1)
	s.mu.Unlock()
	done := make(chan result, 1)
	go func() {
		defer s.work.Done()
		defer s.ops.Done()
		st, err := op(ctx, sb)
		s.drop(sb)
		<-sb.turn
		done <- result{st, err}
	}()
	select {
	case r := <-done:
		return r.st, r.err
	case <-ctx.Done():
		return runtime.Status{}, ctx.Err()
	}
}

// drop forgets a sandbox that never came to be.
func (s *Supervisor) drop(sb *sandbox) {
	if _, ok := sb.record(); !ok {
		s.forget(sb)
	}
}

// newer refuses a generation older than the newest seen, and gives the record with the newer one.
func newer(r record, generation int64) (record, error) {
	if generation < r.Generation {
		return r, errs.E(errs.InvalidState, "the call carries generation %d of %s, and %d was seen already", generation, r.Spec.ID, r.Generation).Because("stale_generation")
	}
	r.Generation = generation
	return r, nil
}
