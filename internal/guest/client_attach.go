package guest

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"sync"
	"time"
)

// attachWrite is how long a guest may take for what it has given credit for.
const attachWrite = time.Minute

// Attached is a process's streams as they are: what it writes waits for whoever reads Stdout and Stderr, and Write waits for it to read. Once it has
// ended and all was read, Wait gives how. Close leaves it; what becomes of it then is said by its Start's Linger.
type Attached struct {
	Stdout, Stderr *AttachedStream

	c       *Client
	id      string
	conn    net.Conn
	writing sync.Mutex
	over    chan struct{} // closed when the connection is over

	mu     sync.Mutex
	cond   *sync.Cond // credit, or the end
	credit int        // of standard input
	eof    bool       // standard input was ended
	closed bool
	exit   *Process
	err    error
}

// Attach starts in.Start's process, or finds the one of its id or of in.ID, and gives its streams. ctx bounds the start only.
func (c *Client) Attach(ctx context.Context, in Attach) (*Attached, error) {
	id := in.ID
	if in.Start != nil {
		id = in.Start.ID
	}
	conn, r, err := c.upgrade(ctx, call{method: http.MethodPost, path: "/attach", body: in}, attachUpgrade)
	if err != nil {
		return nil, err
	}
	a := &Attached{c: c, id: id, conn: conn, over: make(chan struct{}), credit: WindowBytes}
	a.cond = sync.NewCond(&a.mu)
	a.Stdout, a.Stderr = newAttachedStream(a, frameStdout, in.Stdout), newAttachedStream(a, frameStderr, in.Stderr)
	go a.run(r)
	return a, nil
}

// run reads what the guest sends until its end.
func (a *Attached) run(r *bufio.Reader) {
	defer close(a.over)
	exit, err := a.read(r)
	a.mu.Lock()
	if a.closed && exit == nil {
		err = net.ErrClosed
	}
	a.exit, a.err = exit, err
	a.cond.Broadcast()
	a.mu.Unlock()
	if exit != nil {
		err = io.EOF
	}
	a.Stdout.end(err)
	a.Stderr.end(err)
	_ = a.conn.Close()
}

func (a *Attached) read(r *bufio.Reader) (*Process, error) {
	in := frameReader{r: r, fromGuest: true}
	for {
		f, err := in.next()
		if err != nil {
			return nil, a.broken(err)
		}
		switch f.kind {
		case frameStdout:
			err = a.Stdout.put(&f)
		case frameStderr:
			err = a.Stderr.put(&f)
		case frameCredit:
			err = a.more(&f)
		case frameExit:
			return a.exited(f.data)
		}
		if err != nil {
			return nil, err
		}
	}
}

// broken is the error for a connection that ended before the process did.
func (a *Attached) broken(err error) error {
	if f, ok := errors.AsType[*errFrame](err); ok {
		return protocolError("%s", f.why)
	}
	return a.c.transportError(context.Background(), err)
}

func (a *Attached) more(f *frame) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if f.creditKind() != frameStdin || a.credit+f.credit() > WindowBytes {
		return protocolError("it gives credit for what it was not sent")
	}
	a.credit += f.credit()
	a.cond.Broadcast()
	return nil
}

func (a *Attached) exited(data []byte) (*Process, error) {
	var p Process
	if json.Unmarshal(data, &p) != nil || p.Running {
		return nil, protocolError("it ends without an exit")
	}
	if err := a.c.checkProcess(&p, a.id, time.Time{}); err != nil {
		return nil, err
	}
	return &p, nil
}

// Write implements io.Writer: it gives the process bytes, as fast as it takes them. Once the process has ended it fails.
func (a *Attached) Write(p []byte) (int, error) {
	done := 0
	for len(p) > 0 {
		n, err := a.take(min(len(p), FrameBytes))
		if err != nil {
			return done, err
		}
		if err := a.send(appendFrame(make([]byte, 0, frameHeader+n), frameStdin, p[:n])); err != nil {
			return done, err
		}
		done, p = done+n, p[n:]
	}
	return done, nil
}

// take waits for credit and takes at most n of it.
func (a *Attached) take(n int) (int, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for a.credit == 0 && !a.finished() && !a.eof {
		a.cond.Wait()
	}
	if a.finished() || a.eof {
		return 0, io.ErrClosedPipe
	}
	n = min(n, a.credit)
	a.credit -= n
	return n, nil
}

func (a *Attached) finished() bool { return a.closed || a.exit != nil || a.err != nil }

// CloseWrite ends the process's standard input; on a terminal it types the end-of-file character.
func (a *Attached) CloseWrite() error {
	a.mu.Lock()
	again := a.eof || a.finished()
	a.eof = true
	a.mu.Unlock()
	if again {
		return nil
	}
	return a.send(appendFrame(nil, frameStdin, nil))
}

// Signal sends a signal, named without SIG. One that the guest does not send is passed over.
func (a *Attached) Signal(name string) error {
	if len(name) > 16 {
		return nil
	}
	return a.send(appendFrame(nil, frameSignal, []byte(name)))
}

// Resize sets the terminal's size; none at all leaves it.
func (a *Attached) Resize(s Size) error { return a.send(resizeFrame(s)) }

func (a *Attached) send(b []byte) error {
	a.writing.Lock()
	defer a.writing.Unlock()
	_ = a.conn.SetWriteDeadline(time.Now().Add(attachWrite)) // a guest always takes what it has given credit for
	_, err := a.conn.Write(b)
	if err != nil {
		_ = a.conn.Close() // half a frame may be out
	}
	return err
}

// Done is closed once nothing more comes: the process has ended, or the connection is lost.
func (a *Attached) Done() <-chan struct{} { return a.over }

// Wait waits until nothing more comes and gives how the process ended, or why that is not known. What it wrote may not have been read yet.
func (a *Attached) Wait() (Process, error) {
	<-a.over
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.exit == nil {
		return Process{}, a.err
	}
	return *a.exit, nil
}

// Close leaves the process and ends all that waits.
func (a *Attached) Close() error {
	a.mu.Lock()
	a.closed = true
	a.cond.Broadcast()
	a.mu.Unlock()
	err := a.conn.Close()
	<-a.over
	return err
}

// AttachedStream is one output stream of an attached process. It has one reader.
type AttachedStream struct {
	a    *Attached
	kind byte

	mu    sync.Mutex
	cond  *sync.Cond
	data  []byte // not read yet
	owed  int    // bytes that were read and not yet given as credit
	space int    // what the guest may still send
	next  int64  // offset behind data
	err   error
}

func newAttachedStream(a *Attached, kind byte, offset int64) *AttachedStream {
	s := &AttachedStream{a: a, kind: kind, space: WindowBytes, next: offset}
	s.cond = sync.NewCond(&s.mu)
	return s
}

// put takes a frame of output and checks it against what the guest may send.
func (s *AttachedStream) put(f *frame) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	data := f.output()
	if len(data) > s.space {
		return protocolError("it sends more output than was asked for")
	}
	// After bytes that are gone the offset jumps. A guest that was asked for more than there is begins earlier: only then, and at the first frame.
	if f.offset() < s.next && (s.space != WindowBytes || len(s.data) > 0) {
		return protocolError("it repeats output")
	}
	s.space -= len(data)
	s.data = append(s.data, data...)
	s.next = f.offset() + int64(len(data))
	s.cond.Broadcast()
	return nil
}

// Read implements io.Reader. It ends with io.EOF only where the process has ended.
func (s *AttachedStream) Read(p []byte) (int, error) {
	s.mu.Lock()
	for len(s.data) == 0 && s.err == nil {
		s.cond.Wait()
	}
	n := copy(p, s.data)
	if s.data = s.data[n:]; len(s.data) == 0 {
		s.data = nil
	}
	s.owed += n
	give := 0
	if s.err == nil && s.owed >= WindowBytes/4 {
		give, s.owed = s.owed, 0
		s.space += give
	}
	err := s.err
	s.mu.Unlock()
	if give > 0 {
		_ = s.a.send(creditFrame(s.kind, give)) // a broken connection is told by what is read from it
	}
	if n > 0 || len(p) == 0 {
		return n, nil
	}
	return 0, err
}

// Offset is the offset of the next byte that Read gives; behind a Read of n bytes, less n it is that of the first of them, unless bytes were lost in between.
func (s *AttachedStream) Offset() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.next - int64(len(s.data))
}

func (s *AttachedStream) end(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.err = err
	s.cond.Broadcast()
}
