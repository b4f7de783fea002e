package db

import (
	"context"
	"sync"
	"time"
)

// pollEvery is how often a waiting reader looks again even without a signal.
const pollEvery = time.Second

type hub struct {
	mu       sync.Mutex
	subs     map[string]map[chan struct{}]struct{}
	out      map[string]struct{} // for other servers
	outgoing chan struct{}       // there is something in out
}

func newHub() *hub {
	return &hub{subs: map[string]map[chan struct{}]struct{}{}, out: map[string]struct{}{}, outgoing: make(chan struct{}, 1)}
}

func (h *hub) wake(topic string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for ch := range h.subs[topic] {
		signal(ch)
	}
}

func (h *hub) wakeAll() {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, chs := range h.subs {
		for ch := range chs {
			signal(ch)
		}
	}
}

func (h *hub) queue(topic string) {
	h.mu.Lock()
	h.out[topic] = struct{}{}
	h.mu.Unlock()
	signal(h.outgoing)
}

func (h *hub) takeOut() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	topics := make([]string, 0, len(h.out))
	for t := range h.out {
		topics = append(topics, t)
	}
	clear(h.out)
	return topics
}

func signal(ch chan struct{}) {
	select {
	case ch <- struct{}{}:
	default: // one is waiting there already
	}
}

// Notify signals a topic after a commit: at once in this server, and through PostgreSQL soon in the others. It never waits. A signal may come more
// than once and may be lost with a connection, so that readers poll too.
func (d *DB) Notify(_ context.Context, topic string) {
	d.hub.wake(topic)
	if d.dialect == Postgres {
		d.hub.queue(topic)
	}
}

// Subscribe gives a channel that holds one signal when the topic was notified since the last receive. stop ends it and must be called.
func (d *DB) Subscribe(topic string) (signals <-chan struct{}, stop func()) {
	ch := make(chan struct{}, 1)
	h := d.hub
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.subs[topic] == nil {
		h.subs[topic] = map[chan struct{}]struct{}{}
	}
	h.subs[topic][ch] = struct{}{}
	return ch, func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		delete(h.subs[topic], ch)
		if len(h.subs[topic]) == 0 {
			delete(h.subs, topic)
		}
	}
}

// Wait returns when check says so, with its error, or with the context's. It subscribes before the first check and checks after every signal, and
// once a second without one.
func (d *DB) Wait(ctx context.Context, topic string, check func(ctx context.Context) (done bool, err error)) error {
	signals, stop := d.Subscribe(topic)
	defer stop()
	poll := time.NewTicker(pollEvery)
	defer poll.Stop()
	for {
		if done, err := check(ctx); done || err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-signals:
		case <-poll.C:
		}
	}
}

// Settled reads something until it is settled, at most for the given time, and gives it as it was at last: where the time runs out, as far as it came. What
// changes it notifies the topic. waiting is called where it has to wait, and what that gives when the wait is over.
func Settled[T any](
	ctx context.Context, d *DB, topic string, most time.Duration, waiting func(context.Context) (over func()), read func(context.Context) (T, error), settled func(T) bool,
) (T, error) {
	last, err := read(ctx)
	if err != nil || settled(last) || most <= 0 {
		return last, err
	}
	defer waiting(ctx)()
	wctx, cancel := context.WithTimeout(ctx, most)
	defer cancel()
	err = d.Wait(wctx, topic, func(ctx context.Context) (bool, error) {
		now, err := read(ctx)
		if err != nil {
			return false, err
		}
		last = now
		return settled(now), nil
	})
	if err != nil && wctx.Err() == nil {
		var none T
		return none, err
	}
	return last, nil
}
