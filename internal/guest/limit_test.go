//go:build linux

package guest

import (
	"strings"
	"testing"
	"time"

	"github.com/berthrun/berth/internal/errs"
)

// A fork bomb takes neither the sandbox nor the guest down, and is over once it is killed. Only a kernel of its own may be limited so.
func TestForkBomb(t *testing.T) {
	if !insideGvisor() {
		t.Skip("runs inside gVisor only")
	}
	r := newRig(t)
	if err := r.server.limiter.set(40); err != nil {
		t.Skipf("this gVisor has no control groups of version 2: %v", err)
	}
	r.exec(Start{Command: "true; true"})
	before := living()
	// Both are bounded, so that a machine survives a guest that does not limit them.
	bomb := r.start(Start{Command: "b() { if [ $1 -gt 0 ]; then b $(($1-1)) | b $(($1-1)) & wait; fi; sleep 1000; }; b 7", User: "root"})
	full := r.start(Start{Command: "for i in 1 2 3 4 5 6 7 8 9 10; do sh -c 'sleep 1000 & sleep 1000 & sleep 1000 & sleep 1000' & done; wait", User: "root"})
	refused := false
	for range 200 {
		_, err := r.Exec(t.Context(), Start{ID: r.id(), Command: "true", Cwd: "/"}, time.Minute)
		if refused = errs.From(err) != nil && errs.From(err).Reason == "processes"; refused {
			break
		}
	}
	if n := living() - before; n > 40 {
		t.Errorf("there are %d processes", n)
	}
	if !refused {
		t.Error("nothing was ever refused")
	}
	if _, err := r.Stat(t.Context(), "/", ""); err != nil {
		t.Errorf("the guest does not answer: %v", err)
	}
	for _, p := range []Process{bomb, full} {
		if _, err := r.Signal(t.Context(), "", p.ID, "KILL"); err != nil && errs.From(err).Reason != "process_ended" {
			t.Error(err)
		}
		r.ended(p.ID)
	}
	res := r.exec(Start{Command: "echo again | cat"})
	if !strings.Contains(string(res.Stdout.Head), "again") {
		t.Errorf("afterwards: %+v %q", res.Process, res.Stderr.Head)
	}
}

// living counts the processes that have not ended.
func living() int {
	n := 0
	for _, k := range tasks() {
		if !k.dead {
			n++
		}
	}
	return n
}
