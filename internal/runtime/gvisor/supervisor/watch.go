package supervisor

import (
	"sync"

	"github.com/berthrun/berth/internal/runtime"
)

// hub tells any number of watchers of changes. One that falls behind loses what lay between, never the latest of each sandbox.
type hub struct {
	mu       sync.Mutex
	closed   bool
	watchers map[*watcher]bool
}

type watcher struct {
	mu      sync.Mutex
	order   []string
	pending map[string]runtime.Status
	ready   chan struct{} // holds one token while something is pending
	done    chan struct{} // closed when the hub is
}

func newHub() *hub { return &hub{watchers: map[*watcher]bool{}} }

func (h *hub) publish(st runtime.Status) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for w := range h.watchers {
		w.push(st, false)
	}
}

// push keeps a status to be taken. One that was read at the beginning never replaces a change.
func (w *watcher) push(st runtime.Status, initial bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if _, ok := w.pending[st.ID]; !ok {
		w.order = append(w.order, st.ID)
	} else if initial {
		return
	}
	w.pending[st.ID] = st
	select {
	case w.ready <- struct{}{}:
	default:
	}
}

// take gives what is pending, in the order in which each sandbox first changed.
func (w *watcher) take() []runtime.Status {
	w.mu.Lock()
	defer w.mu.Unlock()
	var out []runtime.Status
	for _, id := range w.order {
		out = append(out, w.pending[id])
	}
	w.order, w.pending = nil, map[string]runtime.Status{}
	return out
}

// subscribe begins with what all gives, read after changes are already seen: none falls between.
func (h *hub) subscribe(all func() []runtime.Status) *watcher {
	w := &watcher{pending: map[string]runtime.Status{}, ready: make(chan struct{}, 1), done: make(chan struct{})}
	h.mu.Lock()
	if h.closed {
		close(w.done)
	} else {
		h.watchers[w] = true
	}
	h.mu.Unlock()
	for _, st := range all() {
		w.push(st, true)
	}
	return w
}

func (h *hub) unsubscribe(w *watcher) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.watchers, w)
}

func (h *hub) close() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.closed = true
	for w := range h.watchers {
		close(w.done)
		delete(h.watchers, w)
	}
}
