package wire

import (
	"sync"

	"github.com/berthrun/berth/internal/runtime"
)

// Event is one line of the answer to a watch: the status of a sandbox that changed or, once everything there was at the beginning has been
// told, Synced alone.
type Event struct {
	Status *runtime.Status `json:"status,omitempty"`
	Synced bool            `json:"synced,omitempty"`
}

// Latest is a queue of statuses that keeps only the newest of each sandbox: a slow reader loses what lay between, never the end.
type Latest struct {
	ready chan struct{}

	mu      sync.Mutex
	order   []string
	pending map[string]runtime.Status
}

// NewLatest makes an empty queue.
func NewLatest() *Latest {
	return &Latest{ready: make(chan struct{}, 1), pending: map[string]runtime.Status{}}
}

// Put adds a status. One that only tells what was there at the beginning never replaces a change.
func (l *Latest) Put(st runtime.Status, initial bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, ok := l.pending[st.ID]; !ok {
		l.order = append(l.order, st.ID)
	} else if initial {
		return
	}
	l.pending[st.ID] = st
	select {
	case l.ready <- struct{}{}:
	default:
	}
}

// Ready holds a token while something waits to be taken.
func (l *Latest) Ready() <-chan struct{} { return l.ready }

// Take gives what waits, in the order in which each sandbox first changed, and empties the queue.
func (l *Latest) Take() []runtime.Status {
	l.mu.Lock()
	defer l.mu.Unlock()
	var out []runtime.Status
	for _, id := range l.order {
		out = append(out, l.pending[id])
	}
	l.order, l.pending = nil, map[string]runtime.Status{}
	return out
}
