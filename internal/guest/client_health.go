package guest

import (
	"context"
	"errors"
	"net/http"
	"sync"
	"time"

	"github.com/berthrun/berth/internal/errs"
)

// How a guest is looked after while calls wait for it.
const (
	probeAfter = 4 * time.Second  // a call that has waited so long has the guest asked whether it is there
	probeTime  = 4 * time.Second  // what it has to answer that
	probeEvery = 10 * time.Second // and again, while the call goes on
	probeTries = 2                // as often it may fail to before the call is given up
)

// errSilent ends a call whose guest does not say that it is there.
var errSilent = errors.New("it does not even say that it is there")

// health is what is known of whether the guest answers.
type health struct {
	mu      sync.Mutex
	probing *probing
	failed  int   // probes in a row
	last    error // of the last one
}

// probing is a probe under way, which all that want to know wait for.
type probing struct {
	done chan struct{}
	err  error
}

// Silent gives why the guest is taken to be out of order: it did not answer the last probes, or not as the protocol has it. Nil where nothing is known
// against it. It asks nobody.
func (c *Client) Silent() error {
	c.health.mu.Lock()
	defer c.health.mu.Unlock()
	if c.health.failed < probeTries {
		return nil
	}
	return c.health.last
}

// Check asks the guest whether it is there, at most for 4 s and once for all who ask at the same time. Its errors are those of every call.
func (c *Client) Check(ctx context.Context) error {
	h := &c.health
	h.mu.Lock()
	p := h.probing
	if p == nil {
		p = &probing{done: make(chan struct{})}
		h.probing = p
		go c.probe(p) // ends in probeTime
	}
	h.mu.Unlock()
	select {
	case <-p.done:
		return p.err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Answers is Check that believes a failure only the second time: a busy sandbox may be slow once.
func (c *Client) Answers(ctx context.Context) error {
	if err := c.Check(ctx); err == nil || !ofGuest(err) {
		return err
	}
	return c.Check(ctx)
}

// probe asks once, on a connection of its own: the kept ones may all be waiting.
func (c *Client) probe(p *probing) {
	var h Hello
	one := &Client{transport: c.transport.Clone(), token: c.token}
	one.transport.DisableKeepAlives = true
	p.err = one.ask(context.Background(), call{method: http.MethodGet, path: "/hello", timeout: probeTime}, &h)
	if p.err == nil {
		p.err = checkHello(&h)
	}
	one.transport.CloseIdleConnections()
	c.health.mu.Lock()
	c.health.probing = nil
	switch {
	case p.err == nil:
		c.health.failed, c.health.last = 0, nil
	case ofGuest(p.err):
		c.health.failed, c.health.last = c.health.failed+1, p.err
	}
	c.health.mu.Unlock()
	close(p.done)
}

// ofGuest reports whether an error is the guest's doing. Where nobody got as far as the guest, nothing is known of it.
func ofGuest(err error) bool {
	e := errs.From(err)
	return e.Reason == "guest_unresponsive" || e.Reason == "guest_protocol" || e.Reason == "guest_token" || e.Reason == "guest_version"
}

// attended gives a context for a call that ends when the guest turns out not to be there. The returned function ends the attendance.
func (c *Client) attended(ctx context.Context) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	t := time.AfterFunc(probeAfter, func() { c.attend(ctx, cancel) })
	return ctx, func() {
		t.Stop()
		cancel(nil)
	}
}

// attend probes for as long as the call lasts.
func (c *Client) attend(ctx context.Context, giveUp context.CancelCauseFunc) {
	t := time.NewTimer(probeEvery)
	defer t.Stop()
	for {
		for tries := 1; ; tries++ {
			if err := c.Check(ctx); err == nil || !ofGuest(err) {
				break
			}
			if tries == probeTries {
				giveUp(errSilent)
				return
			}
		}
		t.Reset(probeEvery)
		select {
		case <-t.C:
		case <-ctx.Done():
			return
		}
	}
}
