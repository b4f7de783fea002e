package nodeapi

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/runtime"
)

// Client is a node's driver as the control plane sees it. It implements runtime.Driver.
type Client struct {
	dial func(ctx context.Context) (net.Conn, error)
	http *http.Client
	// direct connects into sandboxes of a node in this process; nil where the node is another's.
	direct DialSandbox

	mu   sync.Mutex
	info *Info
}

var _ runtime.Driver = (*Client)(nil)

// DialSandbox makes a connection to a port inside a sandbox, as runtime.Driver does.
type DialSandbox func(ctx context.Context, id string, port int) (net.Conn, error)

// UseDirect has connections into sandboxes made by the given function, for a node in the same process: its driver's connections need no copying then.
// Everything else still goes the one way.
func (c *Client) UseDirect(dial DialSandbox) { c.direct = dial }

// NewClient makes a client that reaches its node by the given dialer.
func NewClient(dial func(ctx context.Context) (net.Conn, error)) *Client {
	return &Client{
		dial: dial,
		http: &http.Client{Transport: &http.Transport{
			DialContext:         func(ctx context.Context, _, _ string) (net.Conn, error) { return dial(ctx) },
			MaxIdleConns:        32,
			MaxIdleConnsPerHost: 32,
			IdleConnTimeout:     time.Minute,
			DisableCompression:  true,
		}},
	}
}

// Info asks the node about itself.
func (c *Client) Info(ctx context.Context) (Info, error) {
	var info Info
	if err := c.do(ctx, http.MethodGet, "info", nil, &info); err != nil {
		return Info{}, err
	}
	c.mu.Lock()
	c.info = &info
	c.mu.Unlock()
	return info, nil
}

// Name implements runtime.Driver: the name that the node last told, empty before the first Info.
func (c *Client) Name() string { return c.Known().Driver }

// Capabilities implements runtime.Driver: those that the node last told, none before the first Info.
func (c *Client) Capabilities() runtime.Capabilities { return c.Known().Capabilities }

// Known is what the node last told of itself, empty before the first Info.
func (c *Client) Known() Info {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.info == nil {
		return Info{}
	}
	return *c.info
}

// Create implements runtime.Driver.
func (c *Client) Create(ctx context.Context, spec runtime.Spec) (st runtime.Status, err error) {
	return st, c.post(ctx, "create", specBody{Spec: spec}, &st)
}

// Start implements runtime.Driver.
func (c *Client) Start(ctx context.Context, spec runtime.Spec) (st runtime.Status, err error) {
	return st, c.post(ctx, "start", specBody{Spec: spec}, &st)
}

// Stop implements runtime.Driver.
func (c *Client) Stop(ctx context.Context, id string, generation int64, o runtime.StopOptions) (st runtime.Status, err error) {
	return st, c.post(ctx, "stop", idBody{ID: id, Generation: generation, Grace: o.Grace}, &st)
}

// Delete implements runtime.Driver.
func (c *Client) Delete(ctx context.Context, id string, generation int64) error {
	return c.post(ctx, "delete", idBody{ID: id, Generation: generation}, nil)
}

// Get implements runtime.Driver.
func (c *Client) Get(ctx context.Context, id string) (st runtime.Status, err error) {
	return st, c.post(ctx, "get", idBody{ID: id}, &st)
}

// List implements runtime.Driver.
func (c *Client) List(ctx context.Context) (all []runtime.Status, err error) {
	return all, c.post(ctx, "list", idBody{}, &all)
}

// Stats implements runtime.Driver.
func (c *Client) Stats(ctx context.Context, id string) (st runtime.Stats, err error) {
	return st, c.post(ctx, "stats", idBody{ID: id}, &st)
}

// Update implements runtime.Driver.
func (c *Client) Update(ctx context.Context, id string, generation int64, r runtime.Resources) error {
	return c.post(ctx, "update", idBody{ID: id, Generation: generation, Resources: &r}, nil)
}

// Pause implements runtime.Driver.
func (c *Client) Pause(ctx context.Context, id string, generation int64) (st runtime.Status, err error) {
	return st, c.post(ctx, "pause", idBody{ID: id, Generation: generation}, &st)
}

// Resume implements runtime.Driver.
func (c *Client) Resume(ctx context.Context, id string, generation int64) (st runtime.Status, err error) {
	return st, c.post(ctx, "resume", idBody{ID: id, Generation: generation}, &st)
}

// Watch implements runtime.Driver. The channel closes when the connection to the node ends too.
func (c *Client) Watch(ctx context.Context) (<-chan runtime.Event, error) {
	resp, err := c.send(ctx, http.MethodPost, "watch", struct{}{})
	if err != nil {
		return nil, err
	}
	events := make(chan runtime.Event)
	go func() {
		defer close(events)
		defer resp.Body.Close()
		in := json.NewDecoder(resp.Body)
		for {
			var e runtime.Event
			if in.Decode(&e) != nil {
				return
			}
			select {
			case events <- e:
			case <-ctx.Done():
				return
			}
		}
	}()
	return events, nil
}

// Dial implements runtime.Driver.
func (c *Client) Dial(ctx context.Context, id string, port int) (net.Conn, error) {
	if c.direct != nil {
		return c.direct(ctx, id, port)
	}
	body, err := json.Marshal(idBody{ID: id, Port: port})
	if err != nil {
		return nil, fmt.Errorf("encode dial: %w", err)
	}
	conn, err := c.dial(ctx)
	if err != nil {
		return nil, unreachable(err)
	}
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	upgraded, err := upgrade(conn, "dial", dialProtocol, body)
	if !stop() && err == nil {
		err = ctx.Err()
	}
	if err != nil {
		_ = conn.Close()
		return nil, err
	}
	return upgraded, nil
}

// upgrade turns a fresh connection into one of another protocol, by a call of a method.
func upgrade(conn net.Conn, method, protocol string, body []byte) (net.Conn, error) {
	req, err := http.NewRequest(http.MethodPost, "http://node/node/v1/"+method, bytes.NewReader(body))
	if err != nil {
		return nil, fmt.Errorf("make %s request: %w", method, err)
	}
	req.Header.Set("Connection", "Upgrade")
	req.Header.Set("Upgrade", protocol)
	if err := req.Write(conn); err != nil {
		return nil, unreachable(err)
	}
	br := bufio.NewReader(conn)
	resp, err := http.ReadResponse(br, req)
	if err != nil {
		return nil, unreachable(err)
	}
	if resp.StatusCode != http.StatusSwitchingProtocols {
		defer resp.Body.Close()
		return nil, readError(resp.StatusCode, resp.Body)
	}
	return &bufferedConn{Conn: conn, r: br}, nil
}

// bufferedConn reads first what came with the answer to the upgrade.
type bufferedConn struct {
	net.Conn
	r *bufio.Reader
}

// Read implements net.Conn.
func (c *bufferedConn) Read(p []byte) (int, error) {
	if c.r.Buffered() == 0 {
		return c.Conn.Read(p)
	}
	return c.r.Read(p)
}

// CloseWrite ends the writing side, where the connection can.
func (c *bufferedConn) CloseWrite() error {
	if w, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return w.CloseWrite()
	}
	return nil
}

// Close implements runtime.Driver: it lets go of idle connections.
func (c *Client) Close() error {
	c.http.CloseIdleConnections()
	return nil
}

func (c *Client) post(ctx context.Context, method string, in, out any) error {
	return c.do(ctx, http.MethodPost, method, in, out)
}

func (c *Client) do(ctx context.Context, verb, method string, in, out any) error {
	resp, err := c.send(ctx, verb, method, in)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if out == nil {
		_, _ = io.Copy(io.Discard, io.LimitReader(resp.Body, maxBody))
		return nil
	}
	if err := json.NewDecoder(resp.Body).Decode(out); err != nil {
		return errs.Wrap(errs.Upstream, err, "the node's answer cannot be read")
	}
	return nil
}

// send gives a successful answer, its body open.
func (c *Client) send(ctx context.Context, verb, method string, in any) (*http.Response, error) {
	body, err := json.Marshal(in)
	if err != nil {
		return nil, fmt.Errorf("encode %s: %w", method, err)
	}
	req, err := http.NewRequestWithContext(ctx, verb, "http://node/node/v1/"+method, bytes.NewReader(body))
	if err != nil {
		return nil, fmt.Errorf("make %s request: %w", method, err)
	}
	resp, err := c.http.Do(req)
	if err != nil {
		if ctx.Err() != nil {
			return nil, fmt.Errorf("%s on node: %w", method, ctx.Err())
		}
		return nil, unreachable(err)
	}
	if resp.StatusCode >= 300 {
		defer resp.Body.Close()
		return nil, readError(resp.StatusCode, resp.Body)
	}
	return resp, nil
}

func unreachable(err error) error {
	return errs.Wrap(errs.HostUnavailable, err, "the node does not answer").
		Suggest("Try again in a few seconds with the same idempotencyKey.").After(2 * time.Second)
}
