package gvisor

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/runtime/gvisor/proc"
	"github.com/berthrun/berth/internal/runtime/gvisor/wire"
)

// Dial implements runtime.Driver. The process only opens the connection: its descriptor is handed over, and nothing of it passes through
// there. With it comes a descriptor of the sandbox's own process, so that its death is known even while berth-runtime is gone.
func (d *Driver) Dial(ctx context.Context, id string, port int) (net.Conn, error) {
	c, err := d.connect(ctx)
	if errors.Is(err, errNoProcess) {
		if err := d.ensure(ctx); err != nil {
			return nil, err
		}
		c, err = d.connect(ctx)
	}
	if err != nil {
		return nil, d.broken(ctx, err)
	}
	defer c.Close()
	stop := context.AfterFunc(ctx, func() { _ = c.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	tcp, pidfd, err := askDial(ctx, c, wire.Ref{ID: id, Port: port})
	if _, coded := errors.AsType[*errs.Error](err); coded {
		return nil, err
	}
	if err != nil {
		return nil, d.broken(ctx, err)
	}
	return d.mortal(id, tcp, pidfd), nil
}

func askDial(ctx context.Context, c *net.UnixConn, ref wire.Ref) (*net.TCPConn, *os.File, error) {
	body, err := json.Marshal(ref)
	if err != nil {
		return nil, nil, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://berth-runtime"+wire.PathDial, bytes.NewReader(body))
	if err != nil {
		return nil, nil, err
	}
	if err := req.Write(c); err != nil {
		return nil, nil, err
	}
	first, rights := make([]byte, 4096), make([]byte, unix.CmsgSpace(4*wire.DialDescriptors))
	n, rn, _, _, err := c.ReadMsgUnix(first, rights)
	if err != nil {
		return nil, nil, err
	}
	fds, err := descriptors(rights[:rn])
	if err != nil {
		return nil, nil, err
	}
	resp, err := http.ReadResponse(bufio.NewReader(io.MultiReader(bytes.NewReader(first[:n]), c)), req)
	if err != nil {
		closeAll(fds)
		return nil, nil, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusSwitchingProtocols {
		closeAll(fds)
		return nil, nil, readError(resp.Body)
	}
	if len(fds) != wire.DialDescriptors {
		closeAll(fds)
		return nil, nil, errors.New("the answer to a dial came without its descriptors")
	}
	f, pidfd := os.NewFile(uintptr(fds[0]), "dialed"), os.NewFile(uintptr(fds[1]), "pidfd")
	conn, err := net.FileConn(f)
	f.Close()
	tcp, ok := conn.(*net.TCPConn)
	if err == nil && !ok {
		err = errors.New("the answer to a dial is no TCP connection")
		conn.Close()
	}
	if err != nil {
		pidfd.Close()
		return nil, nil, err
	}
	return tcp, pidfd, nil
}

// descriptors takes them out of ancillary data. Like any in Go, they end at an execution.
func descriptors(b []byte) ([]int, error) {
	msgs, err := unix.ParseSocketControlMessage(b)
	if err != nil {
		return nil, err
	}
	var out []int
	for i := range msgs {
		fds, err := unix.ParseUnixRights(&msgs[i])
		if err != nil {
			closeAll(out)
			return nil, err
		}
		out = append(out, fds...)
	}
	for _, fd := range out {
		unix.CloseOnExec(fd)
	}
	return out, nil
}

func closeAll(fds []int) {
	for _, fd := range fds {
		_ = unix.Close(fd)
	}
}

// death waits for the end of one boot of a sandbox, and then breaks the connections into it: a dead peer would not.
type death struct {
	pidfd *os.File
	conns map[*mortalConn]bool // under the driver's mu; the last one gone, the death is not waited for any more
}

// mortalConn is a connection that fails once its sandbox has died.
type mortalConn struct {
	*net.TCPConn
	d    *Driver
	id   string
	of   *death
	died atomic.Bool
}

// mortal ties a connection to the life of its sandbox.
func (d *Driver) mortal(id string, tcp *net.TCPConn, pidfd *os.File) net.Conn {
	d.mu.Lock()
	defer d.mu.Unlock()
	of := d.deaths[id]
	if of != nil && !proc.Ended(of.pidfd) {
		pidfd.Close() // of the same boot: two cannot live at once
	} else {
		of = &death{pidfd: pidfd, conns: map[*mortalConn]bool{}}
		d.deaths[id] = of
		go d.await(id, of) // ends with the last connection, or with the sandbox
	}
	m := &mortalConn{TCPConn: tcp, d: d, id: id, of: of}
	of.conns[m] = true
	return m
}

func (d *Driver) await(id string, of *death) {
	if proc.Wait(of.pidfd) != nil {
		return // closed, with the last connection
	}
	d.mu.Lock()
	conns := of.conns
	of.conns = nil
	if d.deaths[id] == of {
		delete(d.deaths, id)
	}
	d.mu.Unlock()
	_ = of.pidfd.Close()
	for c := range conns {
		c.died.Store(true)
		_ = c.TCPConn.Close()
	}
}

// Close closes the connection.
func (m *mortalConn) Close() error {
	m.d.mu.Lock()
	if m.of.conns != nil {
		delete(m.of.conns, m)
		if len(m.of.conns) == 0 {
			if m.d.deaths[m.id] == m.of {
				delete(m.d.deaths, m.id)
			}
			_ = m.of.pidfd.Close()
		}
	}
	m.d.mu.Unlock()
	return m.TCPConn.Close()
}

// Read fails with HostUnavailable, reason sandbox_died, once the sandbox has died.
func (m *mortalConn) Read(b []byte) (int, error) {
	n, err := m.TCPConn.Read(b)
	return n, m.why(err)
}

// Write fails with HostUnavailable, reason sandbox_died, once the sandbox has died.
func (m *mortalConn) Write(b []byte) (int, error) {
	n, err := m.TCPConn.Write(b)
	return n, m.why(err)
}

func (m *mortalConn) why(err error) error {
	if err != nil && m.died.Load() {
		return errs.Wrap(errs.HostUnavailable, err, "the sandbox ended").Because("sandbox_died")
	}
	return err
}
