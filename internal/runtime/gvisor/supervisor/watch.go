package supervisor

import (
	"sync"

	"github.com/berthrun/berth/internal/runtime"
	"github.com/berthrun/berth/internal/runtime/gvisor/wire"
)

// hub tells any number of watchers of changes.
type hub struct {
	done chan struct{} // closed when nothing more will be told

	mu       sync.Mutex
	closed   bool
	watchers map[*wire.Latest]bool
}

func newHub() *hub { return &hub{done: make(chan struct{}), watchers: map[*wire.Latest]bool{}} }

func (h *hub) publish(st runtime.Status) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for w := range h.watchers {
		w.Put(st, false)
	}
}

// subscribe gives a queue that holds every sandbox there is. It is told of changes before all is called, so none falls between.
func (h *hub) subscribe(all func() []runtime.Status) *wire.Latest {
	w := wire.NewLatest()
	h.mu.Lock()
	h.watchers[w] = true
	h.mu.Unlock()
	for _, st := range all() {
		w.Put(st, true)
	}
	return w
}

func (h *hub) unsubscribe(w *wire.Latest) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.watchers, w)
}

func (h *hub) close() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.closed {
		h.closed = true
		close(h.done)
	}
}
