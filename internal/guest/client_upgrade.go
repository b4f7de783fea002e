package guest

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"time"
)

// upgradeTimeout is how long a guest may take to turn a connection into what was asked for. A forwarded port may take a while to be reached.
const upgradeTimeout = 20 * time.Second

// upgrade dials anew and turns the connection into what the call asks for.
func (c *Client) upgrade(ctx context.Context, k call, protocol string) (net.Conn, *bufio.Reader, error) {
	inner, cancel := context.WithTimeout(ctx, upgradeTimeout)
	defer cancel()
	conn, err := c.dial(inner)
	if err != nil {
		return nil, nil, c.transportError(ctx, &dialError{err})
	}
	stop := context.AfterFunc(inner, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	r, err := c.handshake(inner, conn, k, protocol)
	if !stop() && err == nil {
		err = inner.Err()
	}
	if err != nil {
		_ = conn.Close()
		return nil, nil, c.transportError(ctx, err)
	}
	return conn, r, nil
}

func (c *Client) handshake(ctx context.Context, conn net.Conn, k call, protocol string) (*bufio.Reader, error) {
	req, err := c.request(ctx, k)
	if err != nil {
		return nil, err
	}
	req.Header["Connection"], req.Header["Upgrade"] = []string{"Upgrade"}, []string{protocol}
	if err := req.Write(conn); err != nil {
		return nil, err
	}
	// The bound is on the answer's head; once it is read, the reader goes on without one.
	limit := &io.LimitedReader{R: conn, N: 16 << 10}
	r := bufio.NewReaderSize(limit, 4<<10)
	res, err := http.ReadResponse(r, req)
	if err != nil {
		if limit.N == 0 || !errors.Is(err, io.ErrUnexpectedEOF) && !isNet(err) {
			return nil, protocolError("its answer is not HTTP")
		}
		return nil, err
	}
	if res.StatusCode == http.StatusSwitchingProtocols && res.Header.Get("Upgrade") == protocol {
		limit.N = 1<<63 - 1
		return r, nil
	}
	defer res.Body.Close()
	body, err := io.ReadAll(io.LimitReader(res.Body, smallAnswer))
	if err != nil {
		return nil, err
	}
	if res.StatusCode < 400 {
		return nil, protocolError("it did not take the connection over")
	}
	return nil, answeredError(res.StatusCode, body)
}

func isNet(err error) bool {
	_, ok := errors.AsType[net.Error](err)
	return ok || errors.Is(err, io.EOF) || errors.Is(err, net.ErrClosed)
}

// Forward connects to a port of the sandbox itself, IPv4 or IPv6. What nothing listens on is INVALID_STATE, reason connection_refused.
func (c *Client) Forward(ctx context.Context, port int) (net.Conn, error) {
	return c.forward(ctx, url.Values{"port": {strconv.Itoa(port)}})
}

// ForwardSocket connects to a UNIX socket inside, by its absolute path and with the rights of an account; the default one is empty. What nothing listens
// on, and what the account may not connect to, is INVALID_STATE, reason connection_refused. A guest from before there was this refuses it as no port.
func (c *Client) ForwardSocket(ctx context.Context, path, user string) (net.Conn, error) {
	return c.forward(ctx, url.Values{"path": {path}, "user": {user}})
}

func (c *Client) forward(ctx context.Context, to url.Values) (net.Conn, error) {
	k := call{method: http.MethodPost, path: "/forward", query: to}
	conn, r, err := c.upgrade(ctx, k, forwardUpgrade)
	if err != nil {
		return nil, err
	}
	return &forwarded{conn, r}, nil
}

// forwarded reads first what came with the answer.
type forwarded struct {
	net.Conn
	r *bufio.Reader
}

// Read implements net.Conn.
func (f *forwarded) Read(p []byte) (int, error) {
	if f.r.Buffered() == 0 {
		return f.Conn.Read(p)
	}
	return f.r.Read(p)
}

// CloseWrite ends the writing side, where the connection can.
func (f *forwarded) CloseWrite() error {
	if w, ok := f.Conn.(interface{ CloseWrite() error }); ok {
		return w.CloseWrite()
	}
	return f.Conn.Close()
}
