//go:build linux

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
	"strings"
	"sync"
	"syscall"
	"time"
)

const (
	dialTime    = 10 * time.Second
	maxForwards = 512
	// maxSocketPath is how long a socket's path may be (unix(7)).
	maxSocketPath = 107
)

// forward connects to a port or a socket of this sandbox and turns the connection into it.
func (s *Server) forward(w http.ResponseWriter, r *http.Request) {
	inside, err := s.dialAsked(r.Context(), r.URL.Query())
	if err != nil {
		answer(w, nil, err)
		return
	}
	defer inside.Close()
	if !s.forwards.add(inside) {
		answer(w, nil, fail(CodeTooMany, "%d connections to ports and sockets are open; close some first", maxForwards))
		return
	}
	defer s.forwards.remove(inside)
	outside, buffered, err := upgraded(w, forwardUpgrade)
	if err != nil {
		return
	}
	defer outside.Close()
	s.join(outside, buffered, inside)
}

// dialAsked connects to what a query names: a port, or the path of a socket and the account that connects to it.
func (s *Server) dialAsked(ctx context.Context, q url.Values) (net.Conn, error) {
	if q.Has("path") {
		return s.dialSocket(q.Get("path"), q.Get("user"))
	}
	port, err := number(q.Get("port"), 0, 1<<16)
	if err != nil {
		return nil, err
	}
	if port < 1 || port > 1<<16-1 {
		return nil, fail(CodeInvalid, "a port is 1 to 65535")
	}
	return dialInside(ctx, int(port))
}

// dialSocket connects to a UNIX socket with an account's rights: what it may not reach is not reached, and who listens is told who it is.
func (s *Server) dialSocket(path, name string) (net.Conn, error) {
	if !strings.HasPrefix(path, "/") || len(path) > maxSocketPath || strings.Contains(path, "\x00") {
		return nil, fail(CodeInvalid, "a socket is named by an absolute path of at most %d bytes", maxSocketPath)
	}
	a, err := s.users.lookup(name)
	if err != nil {
		return nil, err
	}
	var conn net.Conn
	err = s.as(a, func() (err error) {
		conn, err = net.Dial("unix", s.host(path)) // does not wait: a socket whose queue is full refuses at once
		return err
	})
	switch {
	case err == nil:
		return conn, nil
	case errors.Is(err, syscall.ECONNREFUSED), errors.Is(err, syscall.ENOENT):
		return nil, fail(CodeRefused, "nothing listens on the socket %s in the sandbox", path)
	case errors.Is(err, syscall.EACCES), errors.Is(err, syscall.EPERM):
		return nil, fail(CodeRefused, "%s may not connect to the socket %s in the sandbox", a.name, path)
	}
	return nil, fail(CodeRefused, "the socket %s in the sandbox cannot be reached: %s", path, clip(err.Error(), 256))
}

// dialInside connects to a port of this machine, whichever of its two names a program listens on.
func dialInside(ctx context.Context, port int) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, dialTime)
	defer cancel()
	var d net.Dialer
	var last error
	for _, host := range []string{"127.0.0.1", "::1"} {
		conn, err := d.DialContext(ctx, "tcp", net.JoinHostPort(host, strconv.Itoa(port)))
		if err == nil {
			return conn, nil
		}
		if last == nil || errors.Is(last, syscall.ECONNREFUSED) && !errors.Is(err, syscall.EADDRNOTAVAIL) {
			last = err
		}
	}
	if errors.Is(last, syscall.ECONNREFUSED) {
		return nil, fail(CodeRefused, "nothing listens on port %d in the sandbox", port)
	}
	return nil, fail(CodeRefused, "port %d in the sandbox cannot be reached: %s", port, clip(last.Error(), 256))
}

// join copies both ways. The end of one direction is passed on; when both have ended, or one has failed, it is over.
func (s *Server) join(outside net.Conn, buffered *bufio.Reader, inside net.Conn) {
	var wg sync.WaitGroup
	one := func(dst net.Conn, src io.Reader) {
		_, err := io.Copy(dst, active{src, s.touch})
		if c, ok := dst.(interface{ CloseWrite() error }); ok && err == nil {
			if c.CloseWrite() == nil {
				return
			}
		}
		_ = outside.Close()
		_ = inside.Close()
	}
	wg.Go(func() { one(inside, buffered) })
	wg.Go(func() { one(outside, inside) })
	wg.Wait()
}

// active marks activity at each read.
type active struct {
	io.Reader
	touch func()
}

// Read implements io.Reader.
func (a active) Read(p []byte) (int, error) {
	n, err := a.Reader.Read(p)
	if n > 0 {
		a.touch()
	}
	return n, err
}

// forwards are the open connections to ports.
type forwards struct {
	mu     sync.Mutex
	all    map[net.Conn]struct{}
	closed bool
}

func (f *forwards) add(c net.Conn) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed || len(f.all) >= maxForwards {
		return false
	}
	if f.all == nil {
		f.all = map[net.Conn]struct{}{}
	}
	f.all[c] = struct{}{}
	return true
}

func (f *forwards) remove(c net.Conn) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.all, c)
}

// close ends all of them, now and from now on.
func (f *forwards) close() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.closed = true
	for c := range f.all {
		_ = c.Close()
	}
}
