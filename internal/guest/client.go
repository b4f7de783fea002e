package guest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync/atomic"
	"time"

	"github.com/berthrun/berth/internal/errs"
)

// How the client talks: to one guest, over a few connections that are kept.
const (
	callTimeout   = 30 * time.Second // of a call that does not wait for anything
	waitMargin    = 15 * time.Second // beyond what a call was told to wait
	longTimeout   = 10 * time.Minute // of a call that may have much to do: removing a tree, exporting
	idleTimeout   = 2 * time.Minute  // of a kept connection; shorter than the guest's
	maxConns      = 128
	maxIdleConns  = 8
	smallAnswer   = 256 << 10
	execAnswer    = 1 << 20
	readAnswer    = 1 << 20
	listAnswer    = 16 << 20
	maxGuestError = 1 << 10
)

// Client speaks to one guest. It bounds and checks all that the guest says: a guest is the tenant's. Its errors are errs.Error values:
//
//   - the guest's own codes become the codes of errs, with a reason where one code stands for several things;
//   - a guest that cannot be reached is HOST_UNAVAILABLE, unless the dialer gives an error with a code of its own;
//   - one that breaks off or does not answer in time is UNAVAILABLE, reason guest_unresponsive;
//   - one that answers what the protocol does not allow is UPSTREAM_ERROR, reason guest_protocol.
//
// A cancelled context gives the context's error. A Client may be used concurrently.
type Client struct {
	transport *http.Transport
	dial      func(context.Context) (net.Conn, error)
	token     func() string
	seen      seen
	health    health
	reached   atomic.Int64 // connections that came as far as the sandbox
	observe   func(call string, failed bool, took time.Duration)
	features  features
	first     *beginning // nil: nothing is told first
}

// Observe has fn told of every call that ended: its name, of a few, whether it failed, and how long it took. It must be called before the first call.
func (c *Client) Observe(fn func(call string, failed bool, took time.Duration)) { c.observe = fn }

// NewClient makes a client that reaches the guest through dial and shows it the token that token gives at each call.
func NewClient(dial func(context.Context) (net.Conn, error), token func() string) *Client {
	c := &Client{dial: dial, token: token}
	c.transport = &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			conn, err := dial(ctx)
			if err != nil {
				if e, ok := errors.AsType[*errs.Error](err); ok && e.Code != errs.HostUnavailable {
					c.reached.Add(1) // refused by the sandbox
				}
				return nil, &dialError{err}
			}
			c.reached.Add(1)
			return conn, nil
		},
		DisableCompression: true, MaxConnsPerHost: maxConns, MaxIdleConns: maxIdleConns, MaxIdleConnsPerHost: maxIdleConns,
		IdleConnTimeout: idleTimeout, MaxResponseHeaderBytes: 16 << 10,
		WriteBufferSize: 4 << 10, ReadBufferSize: 4 << 10,
	}
	return c
}

// Close lets go of the kept connections. Calls in flight go on.
func (c *Client) Close() { c.transport.CloseIdleConnections() }

// dialError marks that the guest was not reached at all.
type dialError struct{ err error }

func (e *dialError) Error() string { return e.err.Error() }
func (e *dialError) Unwrap() error { return e.err }

// call is one request.
type call struct {
	method, path string
	query        url.Values
	op           string
	body         any
	safe         bool          // may be repeated when a kept connection turns out to be dead
	timeout      time.Duration // 0 is callTimeout
	limit        int64         // of the answer; 0 is smallAnswer
	first        bool          // it does not wait for what the guest is told first: it is that
}

// name is the call's without ids: processes.output of /processes/x/output.
func (k *call) name() string {
	parts := strings.Split(strings.Trim(k.path, "/"), "/")
	if parts[0] != "processes" {
		return strings.Join(parts, ".")
	}
	switch {
	case len(parts) > 2:
		return "processes." + parts[2]
	case len(parts) == 2:
		return "processes.get"
	case k.method == http.MethodPost:
		return "processes.start"
	}
	return "processes.list"
}

// do makes a call and decodes its answer into out.
func (c *Client) do(ctx context.Context, k call, out any) error {
	if c.observe == nil {
		return c.ask(ctx, k, out)
	}
	began := time.Now()
	err := c.ask(ctx, k, out)
	c.observe(k.name(), err != nil, time.Since(began))
	return err
}

func (c *Client) ask(ctx context.Context, k call, out any) error {
	if k.timeout == 0 {
		k.timeout = callTimeout
	}
	if k.limit == 0 {
		k.limit = smallAnswer
	}
	inner, cancel := context.WithTimeout(ctx, k.timeout)
	defer cancel()
	if k.timeout > probeAfter {
		var release func()
		inner, release = c.attended(inner)
		defer release()
	}
	res, err := c.send(inner, k)
	if err != nil {
		return c.transportError(ctx, err)
	}
	defer res.Body.Close()
	body, err := io.ReadAll(io.LimitReader(res.Body, k.limit+1))
	if err != nil {
		return c.transportError(ctx, err)
	}
	if int64(len(body)) > k.limit {
		return protocolError("its answer is larger than %d bytes", k.limit)
	}
	if res.StatusCode != http.StatusOK {
		return answeredError(res.StatusCode, body)
	}
	if err := json.Unmarshal(body, out); err != nil {
		return protocolError("its answer is not the JSON that was expected")
	}
	return nil
}

// send sends the request. The transport itself repeats a safe one, once for each kept connection that turns out to be dead.
func (c *Client) send(ctx context.Context, k call) (*http.Response, error) {
	req, err := c.request(ctx, k)
	if err != nil {
		return nil, err
	}
	return c.transport.RoundTrip(req)
}

func (c *Client) request(ctx context.Context, k call) (*http.Request, error) {
	if !k.first {
		if err := c.Begun(ctx); err != nil {
			return nil, err
		}
	}
	var body io.Reader
	if k.body != nil {
		b, err := json.Marshal(k.body)
		if err != nil {
			return nil, errs.Wrap(errs.InvalidInput, err, "the request cannot be encoded")
		}
		body = bytes.NewReader(b)
	}
	u := url.URL{Scheme: "http", Host: "guest", Path: k.path, RawQuery: k.query.Encode()}
	req, err := http.NewRequestWithContext(ctx, k.method, u.String(), body)
	if err != nil {
		return nil, errs.Wrap(errs.InvalidInput, err, "the request cannot be made")
	}
	req.Header[TokenHeader] = []string{c.token()}
	if k.op != "" {
		req.Header[OpHeader] = []string{k.op}
	}
	if k.safe || k.op != "" {
		// Present and empty, it is not sent and tells the transport that a repeat does no harm.
		req.Header["Idempotency-Key"] = []string{}
	}
	req.Header["User-Agent"] = []string{"berth"}
	return req, nil
}

// transportError says what a call that got no answer means. ctx is the caller's.
func (c *Client) transportError(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if e, ok := errors.AsType[*errs.Error](err); ok {
		return e
	}
	if d, ok := errors.AsType[*dialError](err); ok && !errors.Is(err, context.DeadlineExceeded) {
		return errs.Wrap(errs.HostUnavailable, d.err, "the sandbox cannot be reached on its node").
			Suggest("Read the sandbox's state; if it is running, try again in a few seconds.").After(2 * time.Second)
	}
	if m := err.Error(); strings.Contains(m, "malformed") || strings.Contains(m, "response headers exceeded") || strings.Contains(m, "unsupported transfer encoding") {
		return protocolError("its answer is not HTTP")
	}
	return unresponsive(err)
}

// unresponsive is the error for a guest that broke off or was too slow.
func unresponsive(cause error) error {
	return errs.Wrap(errs.Unavailable, cause, "the program inside the sandbox does not answer").Because("guest_unresponsive").
		Suggest("What was asked for may or may not have been done: look before you repeat it. If it stays so, stop and start the sandbox.").After(2 * time.Second)
}

// protocolError is the error for an answer that the protocol does not allow.
func protocolError(format string, args ...any) error {
	return errs.Wrap(errs.Upstream, errs.E(errs.Upstream, format, args...), "the program inside the sandbox answered something that makes no sense").
		Because("guest_protocol").Suggest("It may have been tampered with from within: stop and start the sandbox.")
}
