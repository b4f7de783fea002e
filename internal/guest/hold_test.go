//go:build linux

package guest

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"
)

// stateOf is the letter that the kernel has for a process: R, S, T …
func stateOf(t *testing.T, pid int) string {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		t.Fatal(err)
	}
	return strings.Fields(string(b[strings.LastIndexByte(string(b), ')')+1:]))[0]
}

func (r *rig) awaitState(pid int, stopped bool) {
	r.t.Helper()
	for deadline := time.Now().Add(10 * time.Second); (stateOf(r.t, pid) == "T") != stopped; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			r.t.Fatalf("process %d is %s", pid, stateOf(r.t, pid))
		}
	}
}

// A frozen guest's processes stand still, children too, and go on afterwards; one that somebody had stopped before stays so.
func TestFreeze(t *testing.T) {
	r := newRig(t)
	busy := r.start(Start{Command: "while :; do :; done & echo $!; wait"})
	var child int
	if _, err := fmt.Sscan(r.until(busy.ID, "\n"), &child); err != nil {
		t.Fatal(err)
	}
	halted := r.start(Start{Argv: []string{"sleep", "60"}})
	if _, err := r.Signal(t.Context(), "op", halted.ID, "STOP"); err != nil {
		t.Fatal(err)
	}
	r.awaitState(halted.PID, true)
	thaw := r.server.Freeze()
	for _, pid := range []int{busy.PID, child, halted.PID} {
		if got := stateOf(t, pid); got != "T" {
			t.Errorf("process %d of a frozen guest is %s", pid, got)
		}
	}
	thaw()
	r.awaitState(busy.PID, false)
	r.awaitState(child, false)
	if got := stateOf(t, halted.PID); got != "T" {
		t.Errorf("a process that was stopped before goes on: %s", got)
	}
	r.server.Freeze() // the end of the guest ends them all the same
}

// A guest that begins with another's state is that guest: its boot, its token, its environment, and the answers that it gave.
func TestState(t *testing.T) {
	old := newRig(t)
	if _, err := old.Configure(t.Context(), Configure{Token: "second", Env: map[string]string{"COLOUR": "blue"}}); err != nil {
		t.Fatal(err)
	}
	old.token.Store("second")
	hello, err := old.Hello(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	file := FileWrite{Path: old.path("f"), Data: []byte("first"), User: "root"}
	if _, err := old.WriteFile(t.Context(), "op_1", file); err != nil {
		t.Fatal(err)
	}
	state := old.server.State()

	r := newRig(t, func(c *Config) { c.State = state })
	r.token.Store("second")
	if got, err := r.Hello(t.Context()); err != nil || got.BootID != hello.BootID {
		t.Errorf("hello = %+v, %v; want the boot id %s", got, err, hello.BootID)
	}
	if got := r.exec(Start{Command: "echo $COLOUR"}); string(got.Stdout.Head) != "blue\n" {
		t.Errorf("its environment: %q", got.Stdout.Head)
	}
	if err := os.Remove(file.Path); err != nil {
		t.Fatal(err)
	}
	if _, err := r.WriteFile(t.Context(), "op_1", file); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(file.Path); err == nil {
		t.Error("a call that was answered before had its effect again")
	}
	// From here on they are two.
	if _, err := r.Configure(t.Context(), Configure{Token: "third", Env: map[string]string{}}); err != nil {
		t.Fatal(err)
	}
	if got := old.exec(Start{Command: "echo $COLOUR"}); string(got.Stdout.Head) != "blue\n" {
		t.Errorf("the first one's environment: %q", got.Stdout.Head)
	}
}
