package guest

import (
	"context"
	"net/http"
	"sync/atomic"
)

// beginning is what a guest is told before its client asks for anything else.
type beginning struct {
	turn chan struct{}
	told atomic.Bool
	what func(context.Context) (*Configure, error)
}

// Begin has a guest told what gives, before the first thing that is asked of it; nil is nothing. Where that fails, what was asked for fails with it, and the
// next call tries again. Begin must be called before the first call.
func (c *Client) Begin(what func(context.Context) (*Configure, error)) {
	c.first = &beginning{turn: make(chan struct{}, 1), what: what}
}

// Begun has the guest told now, where it was not yet.
func (c *Client) Begun(ctx context.Context) error {
	b := c.first
	if b == nil || b.told.Load() {
		return nil
	}
	select {
	case b.turn <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	defer func() { <-b.turn }()
	if b.told.Load() {
		return nil
	}
	in, err := b.what(ctx)
	if err == nil && in != nil {
		_, err = c.configure(ctx, *in, true)
	}
	b.told.Store(err == nil)
	return err
}

// configure makes the call; first where it is the one that all others wait for.
func (c *Client) configure(ctx context.Context, in Configure, first bool) (Configured, error) {
	var out Configured
	err := c.do(ctx, call{method: http.MethodPost, path: "/configure", body: in, safe: true, first: first}, &out)
	if err == nil {
		c.seen.forget()
	}
	return out, err
}
