//go:build linux

package guest

import (
	"bufio"
	"context"
	"encoding/json"
	"net"
	"net/http"
	"sync"
	"time"
)

const (
	// hangupGrace is how long a process has to end after HUP.
	hangupGrace = 5 * time.Second
	// farewellTime is how long the host may take to read what was sent last.
	farewellTime = 10 * time.Second
)

// attach starts a process or finds one, and turns the connection into its streams.
func (s *Server) attach(w http.ResponseWriter, r *http.Request) {
	var in Attach
	err := decode(w, r, startBytes, &in)
	var p *process
	if err == nil {
		p, err = s.attachable(r.Context(), &in)
	}
	if err != nil {
		answer(w, nil, err)
		return
	}
	conn, buffered, err := upgraded(w, attachUpgrade)
	if err != nil {
		p.letGo()
		p.left(true) // what was started for this connection must not stay
		return
	}
	a := &attachment{
		server: s, process: p, conn: conn, done: make(chan struct{}), fed: make(chan struct{}, 1), more: make(chan struct{}, 1),
		credit: map[byte]int{frameStdout: WindowBytes, frameStderr: WindowBytes},
	}
	a.run(buffered, in.Stdout, in.Stderr)
}

// attachable gives the process to attach to.
func (s *Server) attachable(ctx context.Context, in *Attach) (*process, error) {
	if in.Stdout < 0 || in.Stderr < 0 {
		return nil, fail(CodeInvalid, "an offset is not negative")
	}
	s.touch()
	if in.Start == nil {
		p, err := s.processes.get(ctx, in.ID)
		if err != nil {
			return nil, err
		}
		p.joined()
		return p, nil
	}
	in.Start.held, in.Start.OpenStdin = true, len(in.Start.Stdin) == 0
	p, err := s.start(ctx, in.Start)
	if err != nil {
		return nil, err
	}
	p.joined()
	return p, nil
}

// upgraded takes a connection over and says so.
func upgraded(w http.ResponseWriter, protocol string) (net.Conn, *bufio.Reader, error) {
	conn, rw, err := http.NewResponseController(w).Hijack()
	if err != nil {
		answer(w, nil, fail(CodeInternal, "the connection cannot be taken over"))
		return nil, nil, err
	}
	_ = conn.SetWriteDeadline(time.Now().Add(10 * time.Second))
	if _, err := conn.Write([]byte("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: " + protocol + "\r\n\r\n")); err != nil {
		_ = conn.Close()
		return nil, nil, err
	}
	_ = conn.SetWriteDeadline(time.Time{})
	return conn, rw.Reader, nil
}

// attachment is one connection that follows a process. Three goroutines serve it: one reads what the host sends, one feeds standard input, one sends
// output. Each may wait without holding up the others.
type attachment struct {
	server  *Server
	process *process
	conn    net.Conn
	done    chan struct{} // closed when the connection is over
	over    sync.Once
	writing sync.Mutex
	fed     chan struct{} // there is something to feed
	more    chan struct{} // there is more credit

	mu       sync.Mutex
	stdin    []byte // to be fed
	feeding  int    // bytes that are taken from stdin and not yet written
	stdinEnd bool
	credit   map[byte]int // of output, by kind
}

// end closes the connection, once.
func (a *attachment) end() {
	a.over.Do(func() {
		close(a.done)
		_ = a.conn.Close()
	})
}

func (a *attachment) run(r *bufio.Reader, stdout, stderr int64) {
	p := a.process
	out, err := p.stdout.follow(stdout), p.stderr.follow(stderr)
	p.letGo()
	a.server.attachments.add(a)
	var wg sync.WaitGroup
	wg.Go(func() { a.read(r); a.end() })
	wg.Go(a.feed)
	ended := a.send(out, err)
	if ended {
		a.farewell()
	}
	a.end()
	p.stdout.unfollow(out)
	p.stderr.unfollow(err)
	wg.Wait()
	a.server.attachments.remove(a)
	p.left(!ended)
}

// farewell lets the host read to the end: a connection that is closed while something of its own is unread takes what it has not read yet with it.
func (a *attachment) farewell() {
	if w, ok := a.conn.(interface{ CloseWrite() error }); ok && w.CloseWrite() == nil {
		_ = a.conn.SetReadDeadline(time.Now().Add(farewellTime))
		<-a.done // the host closes it
	}
}

// read takes what the host sends until the connection ends or it breaks the protocol.
func (a *attachment) read(r *bufio.Reader) {
	in := frameReader{r: r}
	for {
		f, err := in.next()
		if err != nil {
			return
		}
		switch f.kind {
		case frameStdin:
			if !a.queue(f.data) {
				return
			}
		case frameSignal:
			if sig, ok := signals[string(f.data)]; ok {
				_ = a.process.signal(sig)
			}
		case frameResize:
			cols, rows := f.size()
			// A window that is not drawn yet has no size; the terminal keeps its own.
			if size, err := checkSize(Size{cols, rows}); err == nil && cols > 0 && rows > 0 && a.process.pty != nil {
				_ = a.process.pty.resize(size)
			}
		case frameCredit:
			a.mu.Lock()
			a.credit[f.creditKind()] = min(a.credit[f.creditKind()]+f.credit(), WindowBytes)
			a.mu.Unlock()
			poke(a.more)
		}
	}
}

// queue hands bytes to the goroutine that feeds them; none are the end. More than the window is against the protocol.
func (a *attachment) queue(data []byte) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.stdinEnd || len(a.stdin)+a.feeding+len(data) > WindowBytes {
		return false
	}
	a.stdin, a.stdinEnd = append(a.stdin, data...), len(data) == 0
	poke(a.fed)
	return true
}

// feed writes to the process. What it does not want is thrown away, so that the host goes on.
func (a *attachment) feed() {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() {
		select {
		case <-a.done:
			cancel()
		case <-ctx.Done():
		}
	}()
	in := a.process.input
	for {
		select {
		case <-a.fed:
		case <-a.done:
			return
		}
		a.mu.Lock()
		part, end := a.stdin, a.stdinEnd
		a.stdin, a.feeding = nil, len(part)
		a.mu.Unlock()
		a.server.touch()
		for n := len(part); len(part) > 0; n = len(part) {
			var err error
			took := n
			if in != nil {
				took, err = in.write(ctx, part[:min(n, FrameBytes)], false)
			}
			if err != nil {
				in, took = nil, n
			}
			if ctx.Err() != nil {
				return
			}
			part = part[took:]
			a.mu.Lock()
			a.feeding -= took
			a.mu.Unlock()
			if took > 0 && !a.write(creditFrame(frameStdin, took)) {
				return
			}
		}
		if end && in != nil {
			_, _ = in.write(ctx, nil, true)
			return
		}
	}
}

func poke(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// write sends a whole frame.
func (a *attachment) write(b []byte) bool {
	a.writing.Lock()
	defer a.writing.Unlock()
	if _, err := a.conn.Write(b); err != nil {
		a.end()
		return false
	}
	return true
}

// send sends output as far as the host takes it, and the exit once all was sent. It reports whether the exit was.
func (a *attachment) send(stdout, stderr *follower) bool {
	p := a.process
	var buf []byte
	for {
		outChanged, errChanged := p.stdout.changed(), p.stderr.changed()
		running := p.running() // asked first: what is read after the end is all there is
		var outMore, errMore, outSent, errSent bool
		buf, outSent, outMore = a.part(buf[:0], frameStdout, p.stdout, stdout)
		if outSent && !a.write(buf) {
			return false
		}
		buf, errSent, errMore = a.part(buf[:0], frameStderr, p.stderr, stderr)
		if errSent && !a.write(buf) {
			return false
		}
		if outSent || errSent {
			continue
		}
		if !running && !outMore && !errMore {
			return a.exit()
		}
		ended := p.ended
		if !running {
			ended = nil
		}
		select {
		case <-outChanged:
		case <-errChanged:
		case <-ended:
		case <-a.more:
		case <-a.done:
			return false
		}
	}
}

// part makes a frame of what a follower has not sent, as far as there is credit; more says that there is something left.
func (a *attachment) part(buf []byte, kind byte, s *spool, f *follower) (frame []byte, sent, more bool) {
	a.mu.Lock()
	credit := a.credit[kind]
	a.mu.Unlock()
	at := s.position(f)
	if credit == 0 {
		return buf, false, s.size() > at
	}
	data, from, _, total := s.read(at, min(credit, FrameBytes))
	if len(data) == 0 {
		return buf, false, total > from
	}
	a.mu.Lock()
	a.credit[kind] -= len(data)
	a.mu.Unlock()
	s.advance(f, from+int64(len(data)))
	return appendOutput(buf, kind, from, data), true, true
}

func (a *attachment) exit() bool {
	b, err := json.Marshal(a.process.state())
	return err == nil && a.write(appendFrame(nil, frameExit, b))
}

// attachments are the connections that follow processes, so that they can be ended.
type attachments struct {
	mu     sync.Mutex
	all    map[*attachment]struct{}
	closed bool
}

func (t *attachments) add(a *attachment) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.all == nil {
		t.all = map[*attachment]struct{}{}
	}
	t.all[a] = struct{}{}
	if t.closed {
		a.end()
	}
}

func (t *attachments) remove(a *attachment) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.all, a)
}

// close ends all of them, now and from now on.
func (t *attachments) close() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.closed = true
	for a := range t.all {
		a.end()
	}
}
