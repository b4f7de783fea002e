package fake

import (
	"context"
	"sync"

	"github.com/berthrun/berth/internal/runtime"
)

// watcher holds the latest status of each sandbox that its reader has not seen.
type watcher struct {
	mu      sync.Mutex
	pending map[string]runtime.Status
	order   []string
	ready   chan struct{}
}

func (w *watcher) put(st runtime.Status) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if _, waiting := w.pending[st.ID]; !waiting {
		w.order = append(w.order, st.ID)
	}
	w.pending[st.ID] = st
	select {
	case w.ready <- struct{}{}:
	default:
	}
}

func (w *watcher) take() (runtime.Status, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.order) == 0 {
		return runtime.Status{}, false
	}
	id := w.order[0]
	w.order = w.order[1:]
	st := w.pending[id]
	delete(w.pending, id)
	return st, true
}

// Watch implements runtime.Driver.
func (d *Driver) Watch(ctx context.Context) (<-chan runtime.Event, error) {
	w := &watcher{pending: map[string]runtime.Status{}, ready: make(chan struct{}, 1)}
	d.mu.Lock()
	for _, b := range d.boxes {
		w.put(b.status)
	}
	d.watchers[w] = struct{}{}
	d.mu.Unlock()
	events := make(chan runtime.Event)
	go func() {
		defer close(events)
		defer func() {
			d.mu.Lock()
			delete(d.watchers, w)
			d.mu.Unlock()
		}()
		for {
			st, ok := w.take()
			if !ok {
				select {
				case <-w.ready:
					continue
				case <-ctx.Done():
					return
				}
			}
			select {
			case events <- runtime.Event{Status: st}:
			case <-ctx.Done():
				return
			}
		}
	}()
	return events, nil
}
