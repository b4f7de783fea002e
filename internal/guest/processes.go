//go:build linux

package guest

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"sync"
	"time"
)

// processes are all that are remembered, by the id that the host chose.
type processes struct {
	budget *budget
	now    func() time.Time

	mu       sync.Mutex
	byID     map[string]*process
	inOrder  []*process // as they were started
	stopping bool
}

// claim gives the process of an id, and whether the caller has to start it.
func (t *processes) claim(id string) (*process, bool, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if p := t.byID[id]; p != nil {
		return p, false, nil
	}
	if t.stopping {
		return nil, false, fail(CodeStopping, "the sandbox is being shut down")
	}
	if len(t.inOrder) >= MaxProcesses && !t.forget() {
		return nil, false, fail(CodeTooMany, "%d processes are running; end some first", len(t.inOrder))
	}
	p := &process{
		id: id, stdout: &spool{budget: t.budget, now: t.now}, stderr: &spool{budget: t.budget, now: t.now},
		started: make(chan struct{}), ended: make(chan struct{}),
	}
	t.byID[id] = p
	t.inOrder = append(t.inOrder, p)
	return p, true, nil
}

// forget drops the oldest ended process.
func (t *processes) forget() bool {
	for i, p := range t.inOrder {
		if !p.running() {
			p.release()
			delete(t.byID, p.id)
			t.inOrder = slices.Delete(t.inOrder, i, i+1)
			return true
		}
	}
	return false
}

// abandon takes back a claim whose process could not be started.
func (t *processes) abandon(p *process) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.byID, p.id)
	if i := slices.Index(t.inOrder, p); i >= 0 {
		t.inOrder = slices.Delete(t.inOrder, i, i+1)
	}
}

// slim drops what the oldest ended processes wrote until the spools are small enough.
func (t *processes) slim() {
	if !t.budget.tight() {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, p := range t.inOrder {
		if !t.budget.tight() {
			return
		}
		if !p.running() {
			p.release()
		}
	}
}

// get gives a started process.
func (t *processes) get(ctx context.Context, id string) (*process, error) {
	t.mu.Lock()
	p := t.byID[id]
	t.mu.Unlock()
	if p == nil {
		return nil, fail(CodeNotFound, "there is no process %s in the sandbox", clip(id, 64))
	}
	return p, p.isStarted(ctx)
}

// isStarted waits until the call that starts it has done so.
func (p *process) isStarted(ctx context.Context) error {
	select {
	case <-p.started:
		return p.failed
	case <-ctx.Done():
		return ctx.Err()
	}
}

// all gives the started ones, oldest first.
func (t *processes) all() []*process {
	t.mu.Lock()
	defer t.mu.Unlock()
	started := make([]*process, 0, len(t.inOrder))
	for _, p := range t.inOrder {
		select {
		case <-p.started:
			if p.failed == nil {
				started = append(started, p)
			}
		default:
		}
	}
	slices.SortStableFunc(started, func(a, b *process) int {
		return cmp.Or(a.startedAt.Compare(b.startedAt), strings.Compare(a.id, b.id))
	})
	return started
}

// close refuses new processes from now on.
func (t *processes) close() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.stopping = true
}

// start gives the process of an id, started now or before.
func (s *Server) start(ctx context.Context, in *Start) (*process, error) {
	if !validID(in.ID) {
		return nil, fail(CodeInvalid, "a process needs an id of letters, digits and _")
	}
	if in.TimeoutMS < 0 {
		return nil, fail(CodeInvalid, "a timeout cannot be negative")
	}
	s.processes.slim()
	p, mine, err := s.processes.claim(in.ID)
	if err != nil {
		return nil, err
	}
	if !mine {
		return p, p.isStarted(ctx)
	}
	p.attached.linger = in.Linger
	if in.held {
		if in.PTY == nil {
			p.stdout.limit, p.stderr.limit = attachedSpool, attachedSpool
		}
		p.hold()
	}
	if p.failed = s.spawn(p, in); p.failed != nil {
		s.processes.abandon(p)
	}
	close(p.started)
	return p, p.failed
}
