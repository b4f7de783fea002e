package fake

import (
	"net"
	"sync"
)

// gate holds what goes over a guest's connections while it is shut.
type gate struct {
	mu   sync.Mutex
	open chan struct{} // closed while the gate is open
}

func newGate() *gate {
	g := &gate{open: make(chan struct{})}
	close(g.open)
	return g
}

func (g *gate) shut() {
	g.mu.Lock()
	defer g.mu.Unlock()
	select {
	case <-g.open:
		g.open = make(chan struct{})
	default:
	}
}

func (g *gate) lift() {
	g.mu.Lock()
	defer g.mu.Unlock()
	select {
	case <-g.open:
	default:
		close(g.open)
	}
}

// pass waits until the gate is open or done is closed.
func (g *gate) pass(done <-chan struct{}) {
	g.mu.Lock()
	open := g.open
	g.mu.Unlock()
	select {
	case <-open:
	case <-done:
	}
}

// gated is a listener whose connections stand at a gate.
type gated struct {
	net.Listener
	gate *gate
}

// Accept implements net.Listener.
func (l gated) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return &held{Conn: c, gate: l.gate, done: make(chan struct{})}, nil
}

// held is the guest's side of a connection: it neither reads nor writes while the gate is shut.
type held struct {
	net.Conn
	gate *gate
	once sync.Once
	done chan struct{} // closed when it is
}

func (c *held) Read(b []byte) (int, error) {
	c.gate.pass(c.done)
	n, err := c.Conn.Read(b)
	c.gate.pass(c.done) // what came while it was shut is not seen before it is open
	return n, err
}

func (c *held) Write(b []byte) (int, error) {
	c.gate.pass(c.done)
	return c.Conn.Write(b)
}

func (c *held) CloseWrite() error {
	c.gate.pass(c.done)
	return c.Conn.(*net.TCPConn).CloseWrite()
}

func (c *held) Close() error {
	c.once.Do(func() { close(c.done) })
	return c.Conn.Close()
}

// calls are the connections that were dialed into one sandbox.
type calls struct {
	mu  sync.Mutex
	all map[*call]struct{}
}

func newCalls() *calls { return &calls{all: map[*call]struct{}{}} }

// call is the caller's side of a connection.
type call struct {
	*net.TCPConn
	calls *calls
}

func (s *calls) add(conn *net.TCPConn) *call {
	c := &call{conn, s}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.all[c] = struct{}{}
	return c
}

// reset breaks all of them, so that neither side waits for the other.
func (s *calls) reset() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for c := range s.all {
		_ = c.SetLinger(0)
		_ = c.TCPConn.Close()
	}
	clear(s.all)
}

// Close implements net.Conn.
func (c *call) Close() error {
	c.calls.mu.Lock()
	delete(c.calls.all, c)
	c.calls.mu.Unlock()
	return c.TCPConn.Close()
}
