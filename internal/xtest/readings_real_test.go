package xtest

import (
	"errors"
	"strings"
	"testing"

	"github.com/berthrun/berth/api"
	"github.com/berthrun/berth/client"
)

// TestRealReadings: with real sandboxes the readings follow the load, the log outlives a stop, and a command that used up the memory is told there.
func TestRealReadings(t *testing.T) {
	r := StartReal(t)
	id := Sandbox(t, r.Client, api.CreateSandboxIn{Resources: &api.ResourcesIn{MemoryMiB: 512}})
	quiet := Must(t, r.Client, api.SandboxMetrics, api.SandboxMetricsIn{SandboxIn: in(id)})
	if quiet.Summary == nil || quiet.Summary.MemoryUsedMiB.Max <= 0 {
		t.Fatalf("a new one: %+v", quiet)
	}
	start(t, r.Client, id, "echo burning; exec timeout 60 python3 -c 'b = bytes([1]) * (150 << 20)\nwhile True: pass'")
	var m api.SandboxMetricsOut
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("metrics: %+v, %+v", m.Summary, m.Points)
		}
	})
	eventually(t, func() bool {
		m = Must(t, r.Client, api.SandboxMetrics, api.SandboxMetricsIn{SandboxIn: in(id)})
		return m.Summary.CPUPercent.Max > 5 && len(m.Points) > 1 && m.Summary.MemoryUsedMiB.Max > quiet.Summary.MemoryUsedMiB.Min+100
	})
	if len(m.Points) == 0 || m.Summary.CPUPercent.Max > 250 {
		t.Errorf("under load: %+v", m)
	}
	if u := Must(t, r.Client, api.ListSandboxes, api.ListSandboxesIn{}).Items[0].Usage; u == nil || u.MemoryUsedMiB < 100 {
		t.Errorf("the list says %+v", u)
	}

	_, err := within(r.Client, api.Exec, api.ExecIn{SandboxIn: in(id), CommandIn: api.CommandIn{Command: "echo greedy; python3 -c 'b = bytearray(900 << 20); print(len(b))'"}})
	if e, ok := errors.AsType[*client.Error](err); err != nil && (!ok || e.Reason != "out_of_memory") {
		t.Errorf("900 MiB in 512: %v", err)
	}
	Exec(t, r.Client, id, "echo after")
	Must(t, r.Client, api.StopSandbox, api.SandboxWaitIn{SandboxIn: in(id), WaitIn: wait(30)})
	var said []string
	for _, l := range logs(t, r.Client, api.SandboxLogsIn{SandboxIn: in(id), Direction: "forward"}) {
		said = append(said, l.Level+" "+l.Message)
	}
	text := strings.Join(said, "\n")
	for _, want := range []string{"info created from base", "info running", "info after", "info stopped: it was asked to"} {
		if !strings.Contains(text, want) {
			t.Errorf("the log lacks %q:\n%s", want, text)
		}
	}
	// The command alone was ended, or the sandbox was: either is told.
	if !strings.Contains(text, "exit code 137") && !strings.Contains(text, "signal KILL") && !strings.Contains(text, "used up") {
		t.Errorf("the log does not tell of the memory:\n%s", text)
	}
	if after := Must(t, r.Client, api.SandboxMetrics, api.SandboxMetricsIn{SandboxIn: in(id)}); after.Summary == nil || after.Summary.MemoryUsedMiB.Max < 100 {
		t.Errorf("once stopped: %+v", after)
	}
}
