//go:build linux

package guest

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/berthrun/berth/internal/errs"
)

// attach attaches to a process that ends with the connection, until the test ends.
func (r *rig) attach(in Start) *Attached {
	r.t.Helper()
	if in.ID == "" {
		in.ID = r.id()
	}
	if in.Cwd == "" {
		in.Cwd = r.root
	}
	if in.Linger == nil {
		in.Linger = &Linger{}
	}
	a, err := r.Attach(r.t.Context(), Attach{Start: &in})
	if err != nil {
		r.t.Fatalf("attach: %v", err)
	}
	late := time.AfterFunc(time.Minute, func() { _ = a.Close() })
	r.t.Cleanup(func() {
		late.Stop()
		_ = a.Close()
	})
	return a
}

func wait(t *testing.T, a *Attached) Process {
	t.Helper()
	select {
	case <-a.Done():
	case <-time.After(30 * time.Second):
		t.Fatal("it does not end")
	}
	p, err := a.Wait()
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// read reads until the text has come.
func readUntil(t *testing.T, r io.Reader, text string) string {
	t.Helper()
	var all []byte
	buf := make([]byte, 4096)
	for !bytes.Contains(all, []byte(text)) {
		n, err := r.Read(buf)
		all = append(all, buf[:n]...)
		if err != nil {
			t.Fatalf("it ended with %v after %q, without %q", err, all, text)
		}
	}
	return string(all)
}

// Ten megabytes of anything go through a process both ways and arrive as they were, on both streams at once.
func TestAttachBinary(t *testing.T) {
	r := newRig(t)
	data := make([]byte, 10<<20)
	_, _ = rand.Read(data)
	a := r.attach(Start{Command: "tee /dev/stderr; exit 7"})
	go func() {
		_, _ = a.Write(data)
		_ = a.CloseWrite()
	}()
	stderr := make(chan []byte)
	go func() {
		b, _ := io.ReadAll(a.Stderr)
		stderr <- b
	}()
	got, err := io.ReadAll(a.Stdout)
	if err != nil {
		t.Fatal(err)
	}
	if sha256.Sum256(got) != sha256.Sum256(data) {
		t.Errorf("stdout has %d bytes, not the %d that were sent", len(got), len(data))
	}
	if e := <-stderr; sha256.Sum256(e) != sha256.Sum256(data) {
		t.Errorf("stderr has %d bytes, not the %d that were sent", len(e), len(data))
	}
	if p := wait(t, a); p.ExitCode != 7 || p.StdoutBytes != int64(len(data)) {
		t.Errorf("it ended as %+v", p)
	}
}

// A process that nobody reads waits, and loses nothing however long that takes; its neighbour goes on.
func TestAttachBackpressure(t *testing.T) {
	r := newRig(t)
	a := r.attach(Start{Command: "head -c 5000000 /dev/zero; echo end; echo wrote >&2"})
	other := r.attach(Start{Command: "head -c 3000000 /dev/zero | wc -c"})
	if got, err := io.ReadAll(other.Stdout); err != nil || string(got) != "3000000\n" {
		t.Fatalf("the neighbour wrote %q, %v", got, err)
	}
	if p, err := r.Process(t.Context(), a.id); err != nil || !p.Running || p.StdoutBytes > 1<<20 {
		t.Errorf("unread, it has written %d bytes, running %v, %v", p.StdoutBytes, p.Running, err)
	}
	got, err := io.ReadAll(a.Stdout)
	if err != nil || len(got) != 5000004 || !bytes.HasSuffix(got, []byte("\x00end\n")) {
		t.Errorf("%d bytes, %v", len(got), err)
	}
	if e, _ := io.ReadAll(a.Stderr); string(e) != "wrote\n" {
		t.Errorf("stderr %q", e)
	}
}

// Input that the process does not read waits too, and signals pass it by.
func TestAttachSignalPassesInput(t *testing.T) {
	r := newRig(t)
	a := r.attach(Start{Command: "trap 'echo got; exit 3' USR1; echo up; while :; do sleep 0.05; done"})
	readUntil(t, a.Stdout, "up\n")
	wrote := make(chan error, 1)
	go func() {
		_, err := a.Write(make([]byte, 64<<20)) // more than a connection's buffers take
		wrote <- err
	}()
	if err := a.Signal("USR1"); err != nil {
		t.Fatal(err)
	}
	if got, err := io.ReadAll(a.Stdout); err != nil || string(got) != "got\n" {
		t.Errorf("%q, %v", got, err)
	}
	if p := wait(t, a); p.ExitCode != 3 {
		t.Errorf("it ended as %+v", p)
	}
	if err := <-wrote; err == nil {
		t.Error("a process that has ended took 64 MiB")
	}
}

func TestAttachExits(t *testing.T) {
	r := newRig(t)
	for command, want := range map[string]Process{
		"exit 0": {}, "exit 255": {ExitCode: 255}, "kill -KILL $$": {ExitCode: 137, Signal: "KILL"}, "kill -TERM $$": {ExitCode: 143, Signal: "TERM"},
	} {
		p := wait(t, r.attach(Start{Command: command}))
		if p.ExitCode != want.ExitCode || p.Signal != want.Signal {
			t.Errorf("%s: %d %q", command, p.ExitCode, p.Signal)
		}
	}
	_, err := r.Attach(t.Context(), Attach{Start: &Start{ID: r.id(), Argv: []string{"/no/such/program"}, Cwd: r.root}})
	if e := errs.From(err); e == nil || e.Reason != "cannot_run" {
		t.Errorf("a missing program: %v", err)
	}
	if _, err = r.Attach(t.Context(), Attach{ID: "proc_nowhere"}); !errs.Is(err, errs.NotFound) {
		t.Errorf("a missing process: %v", err)
	}
}

// A terminal has its size before its program starts, and gets new ones; one that is not drawn has none and changes nothing.
func TestAttachTerminalSize(t *testing.T) {
	r := newRig(t)
	a := r.attach(Start{Command: "trap 'stty size' WINCH; stty size; while :; do read -r x; echo \"<$x>\"; done", PTY: &Size{Cols: 91, Rows: 33}})
	readUntil(t, a.Stdout, "33 91")
	for _, s := range []Size{{}, {Cols: 120, Rows: 40}} {
		if err := a.Resize(s); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := a.Write([]byte("\n")); err != nil {
		t.Fatal(err)
	}
	if got := readUntil(t, a.Stdout, "40 120"); strings.Contains(got, "24 80") {
		t.Errorf("no size became one: %q", got)
	}
	small := r.attach(Start{Command: "stty size; echo $TERM", PTY: &Size{}})
	readUntil(t, small.Stdout, "24 80\r\nxterm-256color")
}

// Characters of several bytes come whole, whatever frames they were split over, and a login shell is one.
func TestAttachTerminalBytes(t *testing.T) {
	r := newRig(t)
	a := r.attach(Start{Login: true, User: "root", PTY: &Size{Cols: 80, Rows: 24}, Env: map[string]string{"HOME": r.root}}) // nobody's own profile
	line := "printf '%s\\n' h\u00e9llo-\u4e16\u754c-\U0001f600; shopt -q login_shell && echo login=yes; exit 5\r"
	for i := range len(line) {
		if _, err := a.Write([]byte{line[i]}); err != nil {
			t.Fatal(err)
		}
	}
	got, err := io.ReadAll(a.Stdout)
	if err != nil || !strings.Contains(string(got), "\rh\u00e9llo-\u4e16\u754c-\U0001f600\r\nlogin=yes\r\n") {
		t.Errorf("%q, %v", got, err)
	}
	if p := wait(t, a); p.ExitCode != 5 || !p.PTY {
		t.Errorf("it ended as %+v", p)
	}
}

// A terminal outlives its connection, and whoever comes back gets what was written meanwhile.
func TestAttachAgain(t *testing.T) {
	r := newRig(t)
	a := r.attach(Start{Command: "stty -echo; echo one; read -r x; echo two; read -r x; echo three", PTY: &Size{Cols: 80, Rows: 24}, Linger: &Linger{AfterMS: 60_000}})
	got := readUntil(t, a.Stdout, "one\r\n")
	at := a.Stdout.Offset()
	_ = a.Close()
	if _, err := a.Wait(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("a connection that was closed has the end %v", err)
	}
	if _, err := r.Input(t.Context(), "", a.id, Input{Data: []byte("\n")}); err != nil {
		t.Fatal(err)
	}
	r.until(a.id, "two\r\n")
	b, err := r.Attach(t.Context(), Attach{ID: a.id, Stdout: at})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	if next := readUntil(t, b.Stdout, "two\r\n"); strings.Contains(next, "one") || !strings.HasSuffix(got, "one\r\n") {
		t.Errorf("%q, then %q", got, next)
	}
	if _, err := b.Write([]byte("\n")); err != nil {
		t.Fatal(err)
	}
	if p := wait(t, b); p.ExitCode != 0 {
		t.Errorf("it ended as %+v", p)
	}
}

// Whoever loses the connection ends what was started for it: by HUP, or by KILL where that does not.
func TestAttachHangsUp(t *testing.T) {
	r := newRig(t)
	for name, in := range map[string]Start{
		"pipe":     {Command: "trap 'exit 9' HUP; echo up; while :; do sleep 0.02; done"},
		"terminal": {Command: "trap 'exit 9' HUP; echo up; while :; do sleep 0.02; done", PTY: &Size{}},
		"later":    {Command: "trap 'exit 9' HUP; echo up; while :; do sleep 0.02; done", Linger: &Linger{AfterMS: 50}},
	} {
		a := r.attach(in)
		readUntil(t, a.Stdout, "up")
		_ = a.Close()
		if p := r.ended(a.id); p.ExitCode != 9 {
			t.Errorf("%s ended as %+v", name, p)
		}
	}
	a := r.attach(Start{Command: "trap '' HUP; echo up; while :; do sleep 0.1; done"})
	readUntil(t, a.Stdout, "up")
	_ = a.Close()
	if p := r.ended(a.id); p.Signal != "KILL" {
		t.Errorf("deaf, it ended as %+v", p)
	}
	// One that was started without any of this goes on.
	p := r.start(Start{Command: "cat", OpenStdin: true})
	b, err := r.Attach(t.Context(), Attach{ID: p.ID})
	if err != nil {
		t.Fatal(err)
	}
	_, _ = b.Write([]byte("x\n"))
	readUntil(t, b.Stdout, "x\n")
	_ = b.Close()
	if p, err := r.Process(t.Context(), p.ID); err != nil || !p.Running {
		t.Errorf("it ended with the connection: %+v, %v", p, err)
	}
}

func TestForward(t *testing.T) {
	r := newRig(t)
	for _, addr := range []string{"127.0.0.1:0", "[::1]:0"} {
		l, err := net.Listen("tcp", addr)
		if err != nil {
			t.Logf("no %s here: %v", addr, err)
			continue
		}
		go func() {
			c, err := l.Accept()
			if err != nil {
				return
			}
			defer c.Close()
			b, _ := io.ReadAll(c) // until the writing side is closed
			_, _ = fmt.Fprintf(c, "%d bytes", len(b))
		}()
		c, err := r.Forward(t.Context(), l.Addr().(*net.TCPAddr).Port)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = c.Write(make([]byte, 1<<20))
		_ = c.(interface{ CloseWrite() error }).CloseWrite()
		if got, err := io.ReadAll(c); err != nil || string(got) != "1048576 bytes" {
			t.Errorf("%s answered %q, %v", addr, got, err)
		}
		_ = c.Close()
		_ = l.Close()
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	port := l.Addr().(*net.TCPAddr).Port
	_ = l.Close()
	if _, err := r.Forward(t.Context(), port); errs.From(err).Reason != "connection_refused" {
		t.Errorf("a closed port: %v", err)
	}
	if _, err := r.Forward(t.Context(), 70000); !errs.Is(err, errs.InvalidInput) {
		t.Errorf("no port: %v", err)
	}
}

// A guest may say anything: what the protocol does not allow ends the attachment with an error, and no exit is made up.
func TestAttachLiars(t *testing.T) {
	out := func(offset int64, n int) []byte { return appendOutput(nil, frameStdout, offset, make([]byte, n)) }
	ended := `{"id":"proc_1","command":"x","cwd":"/","user":"u","pid":1,"running":false,"exitCode":%d,"startedAt":"2026-01-01T00:00:00Z","endedAt":"2026-01-01T00:00:01Z"}`
	huge := binary.BigEndian.AppendUint32([]byte{frameStdout}, 1<<31)
	for name, said := range map[string][]byte{
		"garbage":             []byte("garbage that is no frame at all"),
		"a huge frame":        huge,
		"more than a window":  bytes.Repeat(out(0, FrameBytes), 20),
		"the host's frame":    appendFrame(nil, frameStdin, []byte("x")),
		"credit for nothing":  creditFrame(frameStdin, 10),
		"an absurd credit":    appendFrame(nil, frameCredit, []byte{frameStdin, 255, 255, 255, 255}),
		"an absurd exit code": appendFrame(nil, frameExit, fmt.Appendf(nil, ended, 3000)),
		"an exit that runs":   appendFrame(nil, frameExit, []byte(`{"id":"proc_1","running":true}`)),
		"no JSON":             appendFrame(nil, frameExit, []byte(`]`)),
		"repeated output":     append(out(50, 10), out(20, 10)...),
		"a negative offset":   out(-1, 1),
		"half a frame":        out(0, 100)[:50],
		"nothing":             nil,
	} {
		c := attachLiar(t, said)
		a, err := c.Attach(t.Context(), Attach{Start: &Start{ID: "proc_1", Command: "x"}})
		if err != nil {
			t.Fatal(err)
		}
		p, err := a.Wait()
		if err == nil {
			t.Errorf("%s: it ended as %+v", name, p)
		}
		if _, err := io.ReadAll(a.Stdout); err == nil {
			t.Errorf("%s: its output ended as if all had come", name)
		}
		_ = a.Close()
	}
	c := attachLiar(t, appendFrame(out(7, 3), frameExit, fmt.Appendf(nil, ended, 4)))
	a, err := c.Attach(t.Context(), Attach{Start: &Start{ID: "proc_1", Command: "x"}})
	if err != nil {
		t.Fatal(err)
	}
	if p, err := a.Wait(); err != nil || p.ExitCode != 4 {
		t.Errorf("an honest one: %+v, %v", p, err)
	}
}

// attachLiar is a client of a guest that takes the connection over and then says something.
func attachLiar(t *testing.T, said []byte) *Client {
	t.Helper()
	return NewClient(func(ctx context.Context) (net.Conn, error) {
		ours, theirs := net.Pipe()
		go func() {
			defer theirs.Close()
			buf := make([]byte, 64<<10)
			_, _ = theirs.Read(buf)
			go func() { _, _ = io.Copy(io.Discard, theirs) }()
			_, _ = io.WriteString(theirs, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: "+attachUpgrade+"\r\n\r\n")
			_, _ = theirs.Write(said)
		}()
		return ours, nil
	}, func() string { return "" })
}

// Whatever comes, the decoder of frames gives only frames that the protocol allows, and none longer than its limit.
func FuzzFrames(f *testing.F) {
	f.Add(appendOutput(nil, frameStdout, 5, []byte("abc")), true)
	f.Add(appendFrame(creditFrame(frameStdout, 9), frameStdin, []byte("x")), false)
	f.Add(appendFrame(resizeFrame(Size{80, 24}), frameSignal, []byte("INT")), false)
	f.Add(binary.BigEndian.AppendUint32([]byte{frameExit}, 1<<30), true)
	f.Fuzz(func(t *testing.T, b []byte, fromGuest bool) {
		in := frameReader{r: bytes.NewReader(b), fromGuest: fromGuest}
		for {
			fr, err := in.next()
			if err != nil {
				return
			}
			if limit := frameLimit(fr.kind, fromGuest); limit < 0 || len(fr.data) > limit {
				t.Fatalf("%d bytes of kind %q", len(fr.data), fr.kind)
			}
			switch fr.kind {
			case frameStdout, frameStderr:
				if fr.offset() < 0 || len(fr.output()) == 0 || len(fr.output()) > FrameBytes {
					t.Fatalf("output at %d of %d bytes", fr.offset(), len(fr.output()))
				}
			case frameCredit:
				if fr.credit() < 1 || fr.credit() > WindowBytes {
					t.Fatalf("credit %d", fr.credit())
				}
			case frameExit:
				_ = json.Valid(fr.data)
			}
		}
	})
}
