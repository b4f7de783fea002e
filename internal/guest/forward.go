//go:build linux

package guest

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"strconv"
	"sync"
	"syscall"
	"time"
)

const (
	dialTime    = 10 * time.Second
	maxForwards = 512
)

// forward connects to a port of this sandbox and turns the connection into it.
func (s *Server) forward(w http.ResponseWriter, r *http.Request) {
	port, err := number(r.URL.Query().Get("port"), 0, 1<<16)
	if err == nil && (port < 1 || port > 1<<16-1) {
		err = fail(CodeInvalid, "a port is 1 to 65535")
	}
	var inside net.Conn
	if err == nil {
		inside, err = dialInside(r.Context(), int(port))
	}
	if err != nil {
		answer(w, nil, err)
		return
	}
	defer inside.Close()
	if !s.forwards.add(inside) {
		answer(w, nil, fail(CodeTooMany, "%d connections to ports are open; close some first", maxForwards))
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
