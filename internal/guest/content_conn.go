//go:build linux

package guest

import (
	"bytes"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"strconv"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// refusedTime is how long the rest of a content that was refused is read, so that the host sees why.
const refusedTime = 500 * time.Millisecond

// contentConn is a content's connection, taken over from the HTTP server: its bytes are moved by calls that block and move much. Inside gVisor a system call
// costs as much as moving tens of kilobytes, and each packet that arrives wakes whoever waits for it through epoll.
type contentConn struct {
	buffered []byte // what had already been read
	conn     net.Conn

	mu sync.Mutex
	fd int // -1 where the connection is no socket, or is closed
}

// contents are the connections that contents are moved on.
type contents struct {
	mu   sync.Mutex
	open map[*contentConn]bool
}

// takeOver takes a request's connection, or gives nil where that cannot be done. The caller closes it.
func (s *Server) takeOver(w http.ResponseWriter) *contentConn {
	conn, rw, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return nil
	}
	c := &contentConn{conn: conn, fd: -1}
	c.buffered, _ = rw.Reader.Peek(rw.Reader.Buffered())
	c.buffered = bytes.Clone(c.buffered)
	if fd, err := detach(conn); err == nil {
		_ = conn.Close()
		c.conn, c.fd = nil, fd
	}
	s.contents.mu.Lock()
	defer s.contents.mu.Unlock()
	if s.contents.open == nil {
		s.contents.open = map[*contentConn]bool{}
	}
	s.contents.open[c] = true
	return c
}

// detach gives a descriptor of a connection that Go's poller does not know, and whose calls block.
func detach(conn net.Conn) (fd int, err error) {
	sc, ok := conn.(syscall.Conn)
	if !ok {
		return -1, errors.ErrUnsupported
	}
	raw, err := sc.SyscallConn()
	if err != nil {
		return -1, err
	}
	cerr := raw.Control(func(old uintptr) { fd, err = unix.FcntlInt(old, unix.F_DUPFD_CLOEXEC, 0) })
	if err = errors.Join(cerr, err); err != nil {
		return -1, err
	}
	if err := unix.SetNonblock(fd, false); err != nil {
		_ = unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

// close breaks off what still moves on contents' connections.
func (cs *contents) close() {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	for c := range cs.open {
		c.mu.Lock()
		if c.fd >= 0 {
			_ = unix.Shutdown(c.fd, unix.SHUT_RDWR)
		} else {
			_ = c.conn.Close()
		}
		c.mu.Unlock()
	}
}

// letGo closes a connection that was taken over.
func (s *Server) letGo(c *contentConn) {
	s.contents.mu.Lock()
	delete(s.contents.open, c)
	s.contents.mu.Unlock()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.fd < 0 {
		_ = c.conn.Close()
		return
	}
	_ = unix.Close(c.fd)
	c.fd = -1
}

// Read fills p as far as bytes come. It gives io.EOF once no more do.
func (c *contentConn) Read(p []byte) (int, error) {
	if n := copy(p, c.buffered); n > 0 || len(p) == 0 {
		c.buffered = c.buffered[n:]
		return n, nil
	}
	if c.conn != nil {
		return c.conn.Read(p)
	}
	for {
		n, _, err := unix.Recvfrom(c.fd, p, unix.MSG_WAITALL)
		switch {
		case err == unix.EINTR:
		case err != nil:
			return 0, err
		case n == 0:
			return 0, io.EOF
		default:
			return n, nil
		}
	}
}

// Write writes all of p.
func (c *contentConn) Write(p []byte) (n int, err error) {
	if c.conn != nil {
		return c.conn.Write(p)
	}
	for n < len(p) {
		m, err := unix.SendmsgN(c.fd, p[n:], nil, nil, unix.MSG_NOSIGNAL)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return n, err
		}
		n += m
	}
	return n, nil
}

// send sends a part of a file, as much as one call does. It gives errors.ErrUnsupported where the file cannot be sent so, and then has sent nothing.
func (c *contentConn) send(f *os.File, offset, length int64) (n int, err error) {
	if c.conn != nil {
		return 0, errors.ErrUnsupported
	}
	for {
		n, err = unix.Sendfile(c.fd, int(f.Fd()), &offset, int(min(length, contentSent)))
		switch {
		case err == unix.EINTR:
		case err == unix.EINVAL || err == unix.ENOSYS || err == unix.ESPIPE:
			return 0, errors.ErrUnsupported
		case err == nil && n <= 0:
			return 0, io.ErrUnexpectedEOF
		default:
			return n, err
		}
	}
}

// answer sends the head of an answer, after which the connection ends, and its body where that is known.
func (c *contentConn) answer(status int, h http.Header, body []byte) error {
	var b bytes.Buffer
	b.WriteString("HTTP/1.1 " + strconv.Itoa(status) + " " + http.StatusText(status) + "\r\n")
	h.Set("Connection", "close")
	if err := h.Write(&b); err != nil {
		return err
	}
	b.WriteString("\r\n")
	b.Write(body)
	_, err := c.Write(b.Bytes())
	return err
}

// drain ends the sending side and reads what still comes for a moment: closed before, the answer would be lost.
func (c *contentConn) drain() {
	if c.conn != nil {
		return // a connection in memory loses nothing
	}
	_ = unix.Shutdown(c.fd, unix.SHUT_WR)
	wait := unix.NsecToTimeval(refusedTime.Nanoseconds())
	if unix.SetsockoptTimeval(c.fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &wait) != nil {
		return
	}
	buf := make([]byte, 64<<10)
	for end := time.Now().Add(refusedTime); time.Now().Before(end); {
		if n, _, err := unix.Recvfrom(c.fd, buf, 0); n <= 0 && err != unix.EINTR {
			return
		}
	}
}
