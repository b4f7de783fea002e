package gvisor

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"time"

	"github.com/berthrun/berth/internal/runtime"
	"github.com/berthrun/berth/internal/runtime/gvisor/wire"
)

// Watch implements runtime.Driver. It goes on over restarts of the process; a sandbox that vanished meanwhile is told as deleted.
func (d *Driver) Watch(ctx context.Context) (<-chan runtime.Event, error) {
	// Once here, so that a node without a runtime is an error and not a silent channel.
	if _, err := d.Hello(ctx); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	stop := context.AfterFunc(d.ctx, cancel)
	queue, out := wire.NewLatest(), make(chan runtime.Event)
	d.work.Add(2)
	go func() {
		defer d.work.Done()
		d.follow(ctx, queue)
	}()
	go func() {
		defer d.work.Done()
		defer stop()
		defer cancel()
		defer close(out)
		for {
			select {
			case <-queue.Ready():
			case <-ctx.Done():
				return
			}
			for _, st := range queue.Take() {
				select {
				case out <- runtime.Event{Status: st}:
				case <-ctx.Done():
					return
				}
			}
		}
	}()
	return out, nil
}

// follow fills a queue until the context ends.
func (d *Driver) follow(ctx context.Context, queue *wire.Latest) {
	known := map[string]runtime.Status{}
	for ctx.Err() == nil {
		seen, synced := map[string]bool{}, false
		_ = d.stream(ctx, func(e wire.Event) {
			switch {
			case e.Synced:
				synced = true
				for id, st := range known {
					if !seen[id] {
						st.State, st.Reason = runtime.Deleted, ""
						queue.Put(st, false)
						delete(known, id)
					}
				}
			case e.Status != nil:
				st := *e.Status
				old, had := known[st.ID]
				seen[st.ID] = true
				if st.State == runtime.Deleted {
					delete(known, st.ID)
				} else {
					known[st.ID] = st
				}
				// After a restart all is told again: only what changed is news.
				if synced || !had || old != st {
					queue.Put(st, false)
				}
			}
		})
		if ctx.Err() == nil {
			// An error shows at the next call that somebody makes; here it is only tried again.
			if err := d.revive(ctx); err != nil {
				waitFor(ctx, time.Second)
			}
		}
	}
}

func waitFor(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}

// stream reads one watch until it breaks.
func (d *Driver) stream(ctx context.Context, each func(wire.Event)) error {
	resp, err := d.request(ctx, http.MethodGet, wire.PathWatch, nil)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return readError(resp.Body)
	}
	dec := json.NewDecoder(resp.Body)
	for {
		var e wire.Event
		if err := dec.Decode(&e); err != nil {
			return errors.Join(errNoProcess, err)
		}
		each(e)
	}
}
