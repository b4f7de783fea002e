package client

import (
	"context"
	"encoding/json"
	"errors"
	"math/rand/v2"
	"net/http"
	"net/url"
	"time"

	"github.com/berthrun/berth/internal/errs"
)

const (
	firstPause = 250 * time.Millisecond
	maxPause   = 8 * time.Second
	maxAsked   = time.Minute // what a server may ask for and get waited for
)

// call sends a request until it is answered for good. What the network lost, and 429, 502 and 503, are tried again after the pause that the
// server asks for or a growing one, as long as ctx lasts.
func (c *Client) call(ctx context.Context, rt route, in json.RawMessage) (json.RawMessage, error) {
	req, err := c.build(rt, in)
	if err != nil {
		return nil, err
	}
	for n := 1; ; n++ {
		body, err := c.attempt(ctx, req)
		if err == nil && rt.write {
			return body, held(body)
		}
		if err == nil {
			return body, nil
		}
		if n >= c.attempts || !again(req, err) || !c.pause(ctx, n, err.RetryAfter) {
			return nil, err
		}
	}
}

func (c *Client) attempt(ctx context.Context, req *request) (json.RawMessage, *Error) {
	resp, body, err := c.send(ctx, req)
	if e, ok := errors.AsType[*Error](err); ok {
		return nil, e
	}
	if err != nil {
		return nil, c.unreachable(ctx, err)
	}
	switch {
	case resp.StatusCode >= 200 && resp.StatusCode < 300 && json.Valid(body):
		return body, nil
	case resp.StatusCode >= 300 && resp.StatusCode < 400:
		return nil, &Error{
			Code: string(errs.InvalidConfig), Status: resp.StatusCode, Message: "the server's URL leads elsewhere",
			Suggestion: "Use the address to which it leads as the server's URL: " + originOf(resp.Header.Get("Location")),
		}
	}
	return nil, failed(resp, body)
}

func (c *Client) unreachable(ctx context.Context, err error) *Error {
	if u, ok := errors.AsType[*url.Error](err); ok {
		err = u.Err // its text repeats the whole URL
	}
	if ctx.Err() != nil {
		return &Error{Code: string(errs.Timeout), Message: "the call was ended before the server answered", cause: ctx.Err()}
	}
	return &Error{
		Code: string(errs.Unavailable), Message: "cannot reach " + c.base.Scheme + "://" + c.base.Host,
		Suggestion: "Check that the server runs and that its URL is right.", cause: err,
	}
}

func again(req *request, e *Error) bool {
	switch e.Status {
	case http.StatusTooManyRequests, http.StatusBadGateway, http.StatusServiceUnavailable:
		return req.repeatable
	case 0:
		return req.repeatable && e.Code == string(errs.Unavailable)
	}
	return false
}

// pause waits before attempt n+1. It reports false, at once, where ctx would not last that long or the server asks for too much.
func (c *Client) pause(ctx context.Context, n int, asked time.Duration) bool {
	d := asked
	if d <= 0 {
		d = c.jitter(min(firstPause<<(n-1), maxPause))
	}
	if asked > maxAsked {
		return false
	}
	if until, ok := ctx.Deadline(); ok && time.Until(until) <= d {
		return false
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// jitter spreads pauses so that callers who failed together do not come back together.
func jitter(d time.Duration) time.Duration { return d/2 + rand.N(d/2+1) }

func originOf(location string) string {
	u, err := url.Parse(location)
	if err != nil || u.Host == "" {
		return "a path on the same server"
	}
	return u.Scheme + "://" + u.Host
}
