package gvisor

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"golang.org/x/sys/unix"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/guest"
	"github.com/berthrun/berth/internal/runtime"
	"github.com/berthrun/berth/internal/runtime/gvisor/proc"
)

// A runtime that is killed takes its sandboxes back when it is started again, which the driver does by itself; nothing in them notices.
func TestReattachAfterSIGKILL(t *testing.T) {
	r := newRig(t)
	specs := []runtime.Spec{r.create(), r.create(), r.create(), r.create()}
	frozen, halted := specs[2], specs[3]
	if _, err := r.Pause(r.ctx(), frozen.ID, 2); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Stop(r.ctx(), halted.ID, 2, runtime.StopOptions{}); err != nil {
		t.Fatal(err)
	}
	before, err := r.List(r.ctx())
	if err != nil {
		t.Fatal(err)
	}
	open, err := r.Dial(r.ctx(), specs[0].ID, guest.Port)
	if err != nil {
		t.Fatal(err)
	}
	defer open.Close()
	old, err := r.runtimePID()
	if err != nil {
		t.Fatal(err)
	}
	events, err := r.Watch(r.ctx())
	if err != nil {
		t.Fatal(err)
	}
	r.killRuntime()

	if _, err := fmt.Fprintf(open, "GET /hello HTTP/1.1\r\nHost: g\r\nBerth-Token: token\r\n\r\n"); err != nil {
		t.Fatalf("a connection from before: %v", err)
	}
	if n, err := open.Read(make([]byte, 512)); err != nil || n == 0 {
		t.Fatalf("a connection from before: %d, %v", n, err)
	}
	began := time.Now()
	hello, err := r.Hello(r.ctx())
	if err != nil || hello.PID == old {
		t.Fatalf("Hello = %+v, %v; want another process than %d", hello, err, old)
	}
	t.Logf("back after %v with %d sandboxes", time.Since(began), len(before))
	after, err := r.List(r.ctx())
	if err != nil {
		t.Fatal(err)
	}
	byID := cmpopts.SortSlices(func(a, b runtime.Status) bool { return a.ID < b.ID })
	if diff := cmp.Diff(before, after, byID); diff != "" {
		t.Errorf("sandboxes before and after (-before +after):\n%s", diff)
	}
	r.write(specs[0].ID, "/root/f", "text")
	if _, err := r.Resume(r.ctx(), frozen.ID, 3); err != nil {
		t.Errorf("resume one that was paused before: %v", err)
	}
	if _, err := r.ask(frozen.ID, "GET", "/hello", nil, nil); err != nil {
		t.Errorf("one that was paused before: %v", err)
	}
	halted.Generation = 3
	if _, err := r.Start(r.ctx(), halted); err != nil {
		t.Errorf("start one that was stopped before: %v", err)
	}
	if st, err := r.Stats(r.ctx(), specs[0].ID); err != nil || st.Pids == 0 {
		t.Errorf("stats = %+v, %v", st, err)
	}
	// It is nobody's child now: its death is still noticed, and how it ended is known.
	_, _ = r.ask(specs[1].ID, "POST", "/test/exit?code=7", nil, nil)
	got := awaitState(t, events, specs[1].ID, runtime.Stopped)
	if got.Reason != runtime.ReasonExited {
		t.Errorf("reason = %s, want %s", got.Reason, runtime.ReasonExited)
	}
	if got.ExitStatus != 7 && got.ExitStatus != -1 {
		t.Errorf("exit status = %d, want 7, or -1 where the kernel does not tell", got.ExitStatus)
	}
	if st, err := r.Stop(r.ctx(), specs[0].ID, 9, runtime.StopOptions{Grace: 10 * time.Second}); err != nil || st.State != runtime.Stopped {
		t.Fatalf("Stop = %+v, %v", st, err)
	}
	specs[0].Generation = 10
	if _, err := r.Start(r.ctx(), specs[0]); err != nil {
		t.Fatal(err)
	}
	r.awaitGuest(specs[0].ID)
	for path, want := range map[string]string{"/root/f": "text", "/terminated": "yes"} {
		if text, err := r.read(specs[0].ID, path); err != nil || text != want {
			t.Errorf("%s = %q, %v; want %q", path, text, err, want)
		}
	}
}

func awaitState(t *testing.T, events <-chan runtime.Event, id string, state runtime.State) runtime.Status {
	t.Helper()
	deadline := time.After(patience)
	for {
		select {
		case e := <-events:
			if e.Status.ID == id && e.Status.State == state {
				return e.Status
			}
		case <-deadline:
			t.Fatalf("%s did not become %s", id, state)
		}
	}
}

// Why a sandbox ended is told.
func TestDeathReasons(t *testing.T) {
	r := newRig(t)
	for _, tt := range []struct {
		name   string
		end    func(id string)
		reason string
		status int
	}{
		{"the guest ends", func(id string) { _, _ = r.ask(id, "POST", "/test/exit?code=7", nil, nil) }, runtime.ReasonExited, 7},
		{"the guest ends well", func(id string) { _, _ = r.ask(id, "POST", "/test/exit?code=0", nil, nil) }, runtime.ReasonExited, 0},
		{"boot is killed", func(id string) { r.kill(t, id) }, runtime.ReasonKilled, -1},
		{"gofer is killed", func(id string) {
			_, gofer := r.processes(id)
			if err := unix.Kill(gofer.PID, unix.SIGKILL); err != nil {
				t.Fatal(err)
			}
		}, runtime.ReasonKilled, -1},
		{"memory runs out", func(id string) { _, _ = r.ask(id, "POST", "/test/hog", nil, nil) }, runtime.ReasonOutOfMemory, -1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			spec := r.create()
			events, err := r.Watch(r.ctx())
			if err != nil {
				t.Fatal(err)
			}
			awaitState(t, events, spec.ID, runtime.Running)
			began := time.Now()
			tt.end(spec.ID)
			got := awaitState(t, events, spec.ID, runtime.Stopped)
			t.Logf("told after %v", time.Since(began))
			if got.Reason != tt.reason {
				t.Errorf("reason %s, want %s", got.Reason, tt.reason)
			}
			if tt.reason == runtime.ReasonExited && got.ExitStatus != tt.status {
				t.Errorf("status %d, want %d", got.ExitStatus, tt.status)
			}
			if err := r.Delete(r.ctx(), spec.ID, 2); err != nil {
				t.Fatal(err)
			}
		})
	}
}

// A process that takes more memory than there is never ends in silence: it is killed alone, or the sandbox says that it ran out of memory.
// (Which of the two is the kernel's choice: what gVisor holds for a process is not mapped in it when the limit is hit.)
func TestMemoryHogIsTold(t *testing.T) {
	r := newRig(t)
	spec := r.create()
	var out struct{ Ended string }
	_, err := r.ask(spec.ID, "POST", "/test/childhog", nil, &out)
	if err == nil {
		if out.Ended != "signal: killed" {
			t.Errorf("the hog ended by %q, want killed", out.Ended)
		}
		r.awaitGuest(spec.ID)
		return
	}
	events, err := r.Watch(r.ctx())
	if err != nil {
		t.Fatal(err)
	}
	if st := awaitState(t, events, spec.ID, runtime.Stopped); st.Reason != runtime.ReasonOutOfMemory {
		t.Errorf("reason %s, want %s", st.Reason, runtime.ReasonOutOfMemory)
	}
}

// A runtime that is killed at any moment of a create leaves a whole sandbox or nothing; the next process cleans up.
func TestKilledDuringCreate(t *testing.T) {
	r := newRig(t)
	rounds := 20
	if testing.Short() {
		rounds = 5
	}
	began := time.Now()
	warm := r.create()
	took := time.Since(began)
	if err := r.Delete(r.ctx(), warm.ID, 2); err != nil {
		t.Fatal(err)
	}
	whole := 0
	for i := range rounds {
		spec := r.spec()
		delay := time.Duration(rand.Int64N(int64(took)))
		done := make(chan error, 1)
		go func() {
			_, err := r.Create(r.ctx(), spec)
			done <- err
		}()
		timer := time.NewTimer(delay) // the moment is the point of the test
		<-timer.C
		r.killRuntime()
		err := <-done
		if err != nil && !errs.Is(err, errs.HostUnavailable) {
			t.Errorf("round %d: Create = %v, want that the host is unavailable", i, err)
		}
		all, lerr := r.List(r.ctx())
		if lerr != nil {
			t.Fatalf("round %d: List: %v", i, lerr)
		}
		switch {
		case len(all) == 1 && all[0].ID == spec.ID && all[0].State == runtime.Running:
			whole++
			r.awaitGuest(spec.ID)
		case len(all) != 0:
			t.Errorf("round %d, killed after %v: List = %+v", i, delay, all)
		case err == nil:
			t.Errorf("round %d: an acknowledged create is gone", i)
		}
		if len(all) == 0 {
			if left := r.leftovers(); len(left) > 0 {
				t.Errorf("round %d, killed after %v, left:\n%s", i, delay, strings.Join(left, "\n"))
			}
		}
		// The same call again brings it to its end.
		if _, err := r.Create(r.ctx(), spec); err != nil {
			t.Fatalf("round %d: create again: %v", i, err)
		}
		r.awaitGuest(spec.ID)
		if err := r.Delete(r.ctx(), spec.ID, 2); err != nil {
			t.Fatalf("round %d: delete: %v", i, err)
		}
		if left := r.leftovers(); len(left) > 0 {
			t.Fatalf("round %d, after the delete:\n%s", i, strings.Join(left, "\n"))
		}
	}
	t.Logf("%d of %d were whole", whole, rounds)
}

// The same for a delete: it is finished.
func TestKilledDuringDelete(t *testing.T) {
	r := newRig(t)
	for i := range 8 {
		spec := r.create()
		done := make(chan error, 1)
		go func() { done <- r.Delete(r.ctx(), spec.ID, 2) }()
		timer := time.NewTimer(time.Duration(rand.IntN(60)) * time.Millisecond)
		<-timer.C
		r.killRuntime()
		err := <-done
		all, lerr := r.List(r.ctx())
		if lerr != nil {
			t.Fatal(lerr)
		}
		if err == nil && len(all) != 0 {
			t.Errorf("round %d: an acknowledged delete came back: %+v", i, all)
		}
		if err := r.Delete(r.ctx(), spec.ID, 3); err != nil {
			t.Fatal(err)
		}
		if left := r.leftovers(); len(left) > 0 {
			t.Fatalf("round %d left:\n%s", i, strings.Join(left, "\n"))
		}
	}
}

// Fifty creates and deletes leave nothing, neither in the machine nor in the runtime.
func TestNothingIsLeft(t *testing.T) {
	t.Setenv("GOGC", "10") // of the runtime, which this starts
	r := newRig(t)
	warm := r.create()
	if err := r.Delete(r.ctx(), warm.ID, 2); err != nil {
		t.Fatal(err)
	}
	self, err := r.runtimePID()
	if err != nil {
		t.Fatal(err)
	}
	r.http.CloseIdleConnections()
	filesBefore := len(openFiles(t, self))
	var wg sync.WaitGroup
	failed := make([]error, 4)
	for w := range failed {
		wg.Go(func() {
			for range 13 {
				spec := r.spec()
				_, err := r.Create(r.ctx(), spec)
				err = errors.Join(err, r.Delete(r.ctx(), spec.ID, 2))
				if failed[w] = err; err != nil {
					return
				}
			}
		})
	}
	wg.Wait()
	if err := errors.Join(failed...); err != nil {
		t.Fatal(err)
	}
	if left := r.leftovers(); len(left) > 0 {
		t.Errorf("left:\n%s", strings.Join(left, "\n"))
	}
	// gVisor leaves some descriptors, such as Go's own of a child process, to the garbage collector, which runs often here: in the end none is left.
	deadline, tick := time.After(10*time.Second), time.NewTicker(20*time.Millisecond)
	defer tick.Stop()
	for settled := false; !settled; {
		r.http.CloseIdleConnections()
		for range 20 { // what is collected has to be made first
			if _, err := r.List(r.ctx()); err != nil {
				t.Fatal(err)
			}
		}
		r.http.CloseIdleConnections()
		files := openFiles(t, self)
		settled = len(files) <= filesBefore
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("the runtime has %d open files, had %d: %v", len(files), filesBefore, files)
		}
	}
	for _, pid := range tree(t, self) {
		if pid != self {
			t.Errorf("process %d of the runtime is left", pid)
		}
	}
}

// A driver of another version of the guest or the runtime replaces the process, and the sandboxes go on.
func TestReplaced(t *testing.T) {
	r := newRig(t)
	spec := r.create()
	old, _ := r.Hello(r.ctx())
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	r.open()
	same, err := r.Hello(r.ctx())
	if err != nil || same.PID != old.PID {
		t.Errorf("the same version: process %d, %v; want the old one %d", same.PID, err, old.PID)
	}
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	other := filepath.Join(t.TempDir(), "guest")
	b, err := os.ReadFile(r.cfg.Guest)
	if err == nil {
		err = os.WriteFile(other, append(b, 0), 0o755)
	}
	if err != nil {
		t.Fatal(err)
	}
	r.cfg.Guest = other
	r.open()
	now, err := r.Hello(r.ctx())
	if err != nil || now.PID == old.PID || now.GuestSHA256 == old.GuestSHA256 {
		t.Errorf("another version: %+v, %v", now, err)
	}
	r.awaitGuest(spec.ID)
}

// SIGTERM ends the runtime alone.
func TestSIGTERMLeavesSandboxes(t *testing.T) {
	r := newRig(t)
	spec := r.create()
	pid, err := r.runtimePID()
	if err != nil {
		t.Fatal(err)
	}
	p, _ := proc.Identify(pid)
	f, err := p.Open()
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := unix.Kill(pid, unix.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := f.SetReadDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	if err := proc.Wait(f); err != nil {
		t.Fatalf("it does not end: %v", err)
	}
	boot, _ := r.processes(spec.ID)
	if _, err := boot.Open(); err != nil {
		t.Errorf("the sandbox ended too: %v", err)
	}
	r.awaitGuest(spec.ID)
}

// A call that waits for a runtime that cannot start gives up with its context.
func TestContextWhileDown(t *testing.T) {
	r := newRig(t)
	r.killRuntime()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := r.List(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("List = %v, want that it was cancelled", err)
	}
}
