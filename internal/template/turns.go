package template

import (
	"context"
	"slices"
	"sync"
)

// turns has a number of builds worked on at once. A free turn goes to the organization that has the fewest, and there to whoever waits longest: one that asks
// for thousands of builds has the others wait for one of them, not for all.
type turns struct {
	mu      sync.Mutex
	free    int
	has     map[string]int // by organization
	waiting []*turn        // oldest first
}

type turn struct {
	org   string
	given chan struct{}
}

func newTurns(n int) *turns { return &turns{free: n, has: map[string]int{}} }

// take waits for a turn. Whoever has one gives it back with give.
func (t *turns) take(ctx context.Context, org string) error {
	t.mu.Lock()
	if t.free > 0 {
		t.free--
		t.has[org]++
		t.mu.Unlock()
		return nil
	}
	w := &turn{org: org, given: make(chan struct{})}
	t.waiting = append(t.waiting, w)
	t.mu.Unlock()
	select {
	case <-w.given:
		return nil
	case <-ctx.Done():
	}
	t.mu.Lock()
	i := slices.Index(t.waiting, w)
	if i >= 0 {
		t.waiting = slices.Delete(t.waiting, i, i+1)
	}
	t.mu.Unlock()
	if i < 0 { // it was given at the same moment
		t.give(org)
	}
	return ctx.Err()
}

// give hands a turn on to whoever is next, or keeps it free.
func (t *turns) give(org string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.has[org]--; t.has[org] == 0 {
		delete(t.has, org)
	}
	next := -1
	for i, w := range t.waiting {
		if next < 0 || t.has[w.org] < t.has[t.waiting[next].org] {
			next = i
		}
	}
	if next < 0 {
		t.free++
		return
	}
	w := t.waiting[next]
	t.waiting = slices.Delete(t.waiting, next, next+1)
	t.has[w.org]++
	close(w.given)
}
