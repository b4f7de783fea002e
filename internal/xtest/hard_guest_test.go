package xtest

import (
	"context"
	"io"
	"net"
	goruntime "runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/berthrun/berth/api"
	"github.com/berthrun/berth/client"
	"github.com/berthrun/berth/internal/runtime/fake"
)

// turncoat stands between the host and a guest: at first it passes everything on, later it does what a bad guest does.
type turncoat struct {
	l net.Listener

	mu    sync.Mutex
	guest string
	bad   func(net.Conn) // nil while it is good
	conns map[net.Conn]bool
}

func newTurncoat(t *testing.T) *turncoat {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &turncoat{l: l, conns: map[net.Conn]bool{}}
	var all sync.WaitGroup
	all.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			all.Go(func() { p.serve(c) })
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		p.turn(nil)
		all.Wait()
	})
	return p
}

// turn changes how it behaves, and ends the connections there are.
func (p *turncoat) turn(bad func(net.Conn)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.bad = bad
	for c := range p.conns {
		_ = c.Close()
	}
}

func (p *turncoat) serve(c net.Conn) {
	defer c.Close()
	p.mu.Lock()
	p.conns[c] = true
	guest, bad := p.guest, p.bad
	p.mu.Unlock()
	defer func() {
		p.mu.Lock()
		delete(p.conns, c)
		p.mu.Unlock()
	}()
	if bad != nil {
		bad(c)
		return
	}
	to, err := net.Dial("tcp", guest)
	if err != nil {
		return
	}
	defer to.Close()
	p.mu.Lock()
	p.conns[to] = true
	p.mu.Unlock()
	go func() { _, _ = io.Copy(to, c); _ = to.Close() }()
	_, _ = io.Copy(c, to)
	p.mu.Lock()
	delete(p.conns, to)
	p.mu.Unlock()
}

// Symptom 32: a guest that is silent, stalls, answers garbage or without an end costs its own sandbox's callers a few seconds and a clear error, the server
// nothing, and others not even time. It is shown, it can be stopped, and it is well again once it answers.
func TestBadGuests(t *testing.T) {
	silent := func(c net.Conn) { _, _ = io.Copy(io.Discard, c) }
	answer := func(text string) func(net.Conn) {
		return func(c net.Conn) {
			if _, err := c.Read(make([]byte, 1)); err == nil {
				_, _ = io.WriteString(c, text)
				_, _ = io.Copy(io.Discard, c)
			}
		}
	}
	for name, tt := range map[string]struct {
		bad          func(net.Conn)
		code, reason string
	}{
		"silent":        {silent, "UNAVAILABLE", "guest_unresponsive"},
		"stalls midway": {answer("HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{"), "UNAVAILABLE", "guest_unresponsive"},
		"no HTTP":       {answer("SSH-2.0-OpenSSH_9.2\r\n\r\n"), "UPSTREAM_ERROR", "guest_protocol"},
		"no JSON":       {answer("HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 4\r\n\r\n<br>"), "UPSTREAM_ERROR", "guest_protocol"},
		"lies":          {answer("HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 18\r\n\r\n{\"processes\":[{}]}"), "UPSTREAM_ERROR", "guest_protocol"},
		"endless": {func(c net.Conn) {
			_, _ = c.Read(make([]byte, 1)) // what comes before the request is no answer to it
			_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
			for {
				if _, err := io.WriteString(c, "8000\r\n"+strings.Repeat("[", 0x8000)+"\r\n"); err != nil {
					return
				}
			}
		}, "UPSTREAM_ERROR", "guest_protocol"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newTurncoat(t)
			var victim string
			var mu sync.Mutex
			s := Start(t, Options{Fake: fake.Config{Instead: func(id, guest string) string {
				mu.Lock()
				defer mu.Unlock()
				if id != victim && victim != "" {
					return ""
				}
				victim = id
				p.mu.Lock()
				p.guest = guest
				p.mu.Unlock()
				return p.l.Addr().String()
			}}})
			id := Sandbox(t, s.Client, api.CreateSandboxIn{})
			other := Sandbox(t, s.Client, api.CreateSandboxIn{})
			Exec(t, s.Client, id, "true")
			var before, after goruntime.MemStats
			goruntime.ReadMemStats(&before)
			p.turn(tt.bad)

			ask := func(most time.Duration, call func(ctx context.Context) error) {
				t.Helper()
				begun := time.Now()
				e := fault(t, func(ctx context.Context) (struct{}, error) { return struct{}{}, call(ctx) })
				if e == nil || e.Code != tt.code || e.Reason != tt.reason || e.Suggestion == "" {
					t.Errorf("got %+v, want %s %s", e, tt.code, tt.reason)
				}
				if took := time.Since(begun); took > most {
					t.Errorf("it took %v, longer than %v", took, most)
				}
			}
			exec := func(ctx context.Context) error {
				_, err := client.Call(ctx, s.Client, api.Exec, api.ExecIn{SandboxIn: in(id), CommandIn: api.CommandIn{Command: "true"}})
				return err
			}
			// The first finds out, all others know.
			ask(20*time.Second, exec)
			for _, call := range []func(ctx context.Context) error{exec, func(ctx context.Context) error {
				_, err := client.Call(ctx, s.Client, api.ReadFile, api.ReadFileIn{FileIn: file(id, "x")})
				return err
			}, func(ctx context.Context) error {
				_, err := client.Call(ctx, s.Client, api.ListProcesses, api.ListProcessesIn{SandboxIn: in(id)})
				return err
			}} {
				ask(9*time.Second, call)
			}
			if tt.reason == "guest_unresponsive" {
				if sb := Must(t, s.Client, api.GetSandbox, in(id)).Sandbox; sb.State != api.StateRunning || sb.Ready || sb.Error == "" {
					t.Errorf("it is shown as %s, ready %v, error %q", sb.State, sb.Ready, sb.Error)
				}
			}
			begun := time.Now()
			if out := Exec(t, s.Client, other, "echo well"); out.Stdout != "well\n" || time.Since(begun) > 10*time.Second {
				t.Errorf("another sandbox, after %v: %+v", time.Since(begun), out)
			}
			goruntime.ReadMemStats(&after)
			if grown := int64(after.HeapInuse) - int64(before.HeapInuse); grown > 128<<20 {
				t.Errorf("the server's memory grew by %d bytes", grown)
			}

			// Well again.
			p.turn(nil)
			if out := Exec(t, s.Client, id, "echo back"); out.Stdout != "back\n" {
				t.Errorf("afterwards: %+v", out)
			}
			if sb := Must(t, s.Client, api.GetSandbox, in(id)).Sandbox; !sb.Ready || sb.Error != "" {
				t.Errorf("afterwards it is ready %v, error %q", sb.Ready, sb.Error)
			}

			// And bad for ever: it can be stopped, started and deleted.
			p.turn(tt.bad)
			begun = time.Now()
			if out := Must(t, s.Client, api.StopSandbox, api.SandboxWaitIn{SandboxIn: in(id), WaitIn: wait(30)}); out.Sandbox.State != api.StateStopped {
				t.Errorf("stop: %+v", out.Sandbox)
			}
			if took := time.Since(begun); took > 20*time.Second {
				t.Errorf("the stop took %v", took)
			}
			p.turn(nil)
			if out := Exec(t, s.Client, id, "echo again"); out.Stdout != "again\n" {
				t.Errorf("after a start: %+v", out)
			}
			p.turn(tt.bad)
			if out := Must(t, s.Client, api.DeleteSandbox, api.SandboxWaitIn{SandboxIn: in(id), WaitIn: wait(30)}); !out.Deleted {
				t.Error("it is not deleted")
			}
		})
	}
}

// A boot outlasts a node that nobody gets through to for a while, longer than a guest may take to say hello: a runtime that was killed and comes back slowly
// once failed such a boot.
func TestBootOutlastsNode(t *testing.T) {
	var mu sync.Mutex
	var since time.Time
	s := Start(t, Options{Fake: fake.Config{Instead: func(string, string) string {
		mu.Lock()
		defer mu.Unlock()
		if since.IsZero() {
			since = time.Now()
		}
		if time.Since(since) < 7*time.Second {
			return "127.0.0.1:1" // nobody listens
		}
		return ""
	}}})
	id := Sandbox(t, s.Client, api.CreateSandboxIn{WaitIn: wait(30)})
	if out := Exec(t, s.Client, id, "echo booted"); out.Stdout != "booted\n" {
		t.Errorf("%+v", out)
	}
}

// The same with a real one whose kernel is stopped, and with what a tenant can do to pid 1 from within.
func TestHardSilentGuest(t *testing.T) {
	t.Parallel() // it waits more than it works
	r := StartReal(t)
	watchCanary(t, r, 30*time.Second)
	t.Run("from within", func(t *testing.T) {
		id := Sandbox(t, r.Client, api.CreateSandboxIn{Resources: &api.ResourcesIn{MemoryMiB: 256}})
		_, _ = run(t, r.Client, id, api.CommandIn{Command: "kill -STOP 1; kill -SEGV 1; kill -TTIN 1; echo tried", User: "root"}, 10)
		// Whatever became of it, a call has an answer in time, and after a stop and a start it works.
		begun := time.Now()
		out, e := run(t, r.Client, id, api.CommandIn{Command: "echo on"}, 10)
		if e == nil && out.Stdout != "on\n" || e != nil && e.Reason != "guest_unresponsive" && e.Code != "INVALID_STATE" || time.Since(begun) > 30*time.Second {
			t.Errorf("after %v: %+v, %+v", time.Since(begun), out, e)
		}
		Must(t, r.Client, api.StopSandbox, api.SandboxWaitIn{SandboxIn: in(id), WaitIn: wait(30)})
		if out := Exec(t, r.Client, id, "echo back"); out.Stdout != "back\n" {
			t.Errorf("%+v", out)
		}
	})
	t.Run("its kernel", func(t *testing.T) {
		id := Sandbox(t, r.Client, api.CreateSandboxIn{Resources: &api.ResourcesIn{MemoryMiB: 256}})
		Exec(t, r.Client, id, "true")
		kernel := kernelOf(t, id)
		if err := syscall.Kill(kernel, syscall.SIGSTOP); err != nil {
			t.Fatal(err)
		}
		_, e := run(t, r.Client, id, api.CommandIn{Command: "true"}, 60)
		if e == nil || e.Code != "UNAVAILABLE" || e.Reason != "guest_unresponsive" {
			t.Errorf("the first call: %+v", e)
		}
		begun := time.Now()
		if _, e = run(t, r.Client, id, api.CommandIn{Command: "true"}, 60); e == nil || e.Reason != "guest_unresponsive" || time.Since(begun) > 9*time.Second {
			t.Errorf("the next call, after %v: %+v", time.Since(begun), e)
		}
		if sb := Must(t, r.Client, api.GetSandbox, in(id)).Sandbox; sb.Ready {
			t.Error("it is shown as ready")
		}
		if err := syscall.Kill(kernel, syscall.SIGCONT); err != nil {
			t.Fatal(err)
		}
		if out := Exec(t, r.Client, id, "echo back"); out.Stdout != "back\n" {
			t.Errorf("afterwards: %+v", out)
		}
		if err := syscall.Kill(kernel, syscall.SIGSTOP); err != nil {
			t.Fatal(err)
		}
		begun = time.Now()
		if out := Must(t, r.Client, api.StopSandbox, api.SandboxWaitIn{SandboxIn: in(id), WaitIn: wait(30)}); out.Sandbox.State != api.StateStopped {
			t.Errorf("stop of a stopped kernel, after %v: %+v", time.Since(begun), out.Sandbox)
		}
		if out := Exec(t, r.Client, id, "echo again"); out.Stdout != "again\n" {
			t.Errorf("after a start: %+v", out)
		}
	})
}

// kernelOf finds the process that is the kernel of a sandbox.
func kernelOf(t *testing.T, sandbox string) int {
	t.Helper()
	for _, p := range processes() {
		if strings.HasPrefix(p.args, "runsc-sandbox ") && strings.HasSuffix(strings.TrimSpace(p.args), sandbox) {
			return p.pid
		}
	}
	t.Fatalf("no kernel of %s", sandbox)
	return 0
}
