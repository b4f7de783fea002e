package xtest

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/berthrun/berth/api"
	"github.com/berthrun/berth/api/op"
	"github.com/berthrun/berth/client"
	"github.com/berthrun/berth/internal/controlplane"
	"github.com/berthrun/berth/internal/errs"
)

func often(c *controlplane.Config) { c.SampleEvery = 30 * time.Millisecond }

func metrics(t testing.TB, l *life, id string) api.SandboxMetricsOut {
	t.Helper()
	return Must(t, l.Client, api.SandboxMetrics, api.SandboxMetricsIn{SandboxIn: in(id)})
}

// TestMetrics reads the series of a sandbox while it runs, across a gap, and after its end. The fake driver's sandboxes use one core.
func TestMetrics(t *testing.T) {
	eachLife(t, often, func(t *testing.T, l *life) {
		id := Sandbox(t, l.Client, api.CreateSandboxIn{Name: "read"})
		Exec(t, l.Client, id, "head -c 3145728 /dev/zero > big")
		l.pass(30 * time.Second)
		var m api.SandboxMetricsOut
		eventually(t, func() bool {
			m = metrics(t, l, id)
			if m.Summary == nil || m.Summary.DiskUsedMiB.Max < 3 {
				return false
			}
			c := m.Summary.CPUPercent // of one busy core, once the jump in time is in it
			return c.Average > 90 && c.Average < 110 && c.Min <= c.Average && c.Average <= c.Max
		})
		if len(m.Points) == 0 || m.StepSeconds != 15 || m.Resources.MemoryMiB != 512 {
			t.Errorf("series: %+v", m)
		}
		points := len(m.Points)

		// A gap of ten minutes is no row of zeros.
		l.pass(10 * time.Minute)
		eventually(t, func() bool { m = metrics(t, l, id); return len(m.Points) > points })
		if len(m.Points) > points+2 {
			t.Errorf("a gap has points: %+v", m.Points)
		}
		for i, p := range m.Points {
			if p.MemoryUsedMiB < 0 || p.CPUPercent == 0 || i > 0 && !p.At.After(m.Points[i-1].At) {
				t.Errorf("point %d: %+v", i, p)
			}
		}

		// A longer step, a window, and what makes no sense.
		start := m.Start
		one := Must(t, l.Client, api.SandboxMetrics, api.SandboxMetricsIn{SandboxIn: in(id), Start: &start, StepSeconds: 86400})
		if len(one.Points) != 1 || one.StepSeconds != 86400 {
			t.Errorf("one step: %+v", one)
		}
		future := l.now().Add(time.Hour)
		if code := Code(t, l.Client, api.SandboxMetrics, api.SandboxMetricsIn{SandboxIn: in(id), Start: &future}); code != "INVALID_INPUT" {
			t.Errorf("a start in the future: %q", code)
		}

		// The list has the reading of the sampler's memory, get a fresh one.
		list := Must(t, l.Client, api.ListSandboxes, api.ListSandboxesIn{Name: "read"})
		if len(list.Items) != 1 || list.Items[0].Usage == nil || list.Items[0].Usage.DiskUsedMiB < 3 || list.TotalRunning != 1 {
			t.Errorf("list: %+v", list)
		}

		// Stopped, then deleted: kept until the tombstone goes.
		l.stop(t, id)
		got := Must(t, l.Client, api.GetSandbox, in(id))
		if got.Sandbox.Usage != nil || got.Storage == nil || got.Storage.DiskUsedMiB == nil || *got.Storage.DiskUsedMiB < 3 || got.Storage.DiskGiB != 10 {
			t.Errorf("a stopped one's storage: %+v", got.Storage)
		}
		if got.RecoveryPoint == nil || got.RecoveryPoint.Kind != "disk" || got.RecoveryPoint.At == nil {
			t.Errorf("a stopped one's recovery point: %+v", got.RecoveryPoint)
		}
		if m := metrics(t, l, id); len(m.Points) < points || m.Summary == nil {
			t.Errorf("stopped: %+v", m)
		}
		Must(t, l.Client, api.DeleteSandbox, waiting(id, 30))
		if m := metrics(t, l, id); len(m.Points) < points {
			t.Errorf("deleted: %+v", m)
		}
		l.pass(25 * time.Hour)
		eventually(t, func() bool {
			return Code(t, l.Client, api.SandboxMetrics, api.SandboxMetricsIn{SandboxIn: in(id)}) == "NOT_FOUND"
		})
	})
}

// A list never waits for a guest or a node: the readings are the sampler's.
func TestListAsksNobody(t *testing.T) {
	eachLife(t, often, func(t *testing.T, l *life) {
		id := Sandbox(t, l.Client, api.CreateSandboxIn{})
		eventually(t, func() bool { return l.list(t).Items[0].Usage != nil })
		l.on(func(ctx context.Context, method, _ string) error {
			if method == "stats" {
				<-ctx.Done()
				return ctx.Err()
			}
			return nil
		})
		began := time.Now()
		for range 20 {
			if l.list(t).Items[0].Usage == nil {
				t.Fatal("the reading is gone because the node does not answer")
			}
		}
		if took := time.Since(began); took > 10*time.Second { // asking would take 3 s a list
			t.Errorf("20 lists took %s", took)
		}
		l.on(func(context.Context, string, string) error { return nil })
		Exec(t, l.Client, id, "true")
	})
}

func (l *life) list(t testing.TB) api.ListSandboxesOut {
	t.Helper()
	return Must(t, l.Client, api.ListSandboxes, api.ListSandboxesIn{Scope: "all"})
}

// TestRetention: a stopped sandbox is deleted once its retention is over, and says when.
func TestRetention(t *testing.T) {
	eachLife(t, nil, func(t *testing.T, l *life) {
		id := Sandbox(t, l.Client, api.CreateSandboxIn{TTLSeconds: 30 * 24 * 3600})
		set := func(text string) api.Sandbox {
			return *Must(t, l.Client, api.UpdateSandbox, api.UpdateSandboxIn{SandboxIn: in(id), Retention: &text}).Sandbox
		}
		if sb := set("120m"); sb.Retention != "2h" || sb.DeletesAt != nil {
			t.Errorf("while it runs: %q, %v", sb.Retention, sb.DeletesAt)
		}
		l.pass(3 * time.Hour) // it does not count while it runs, nor while it idles
		l.becomes(t, id, api.StateStopped)
		got := Must(t, l.Client, api.GetSandbox, in(id))
		at := got.Sandbox.DeletesAt
		if at == nil || at.Sub(l.now()) > 2*time.Hour || at.Sub(l.now()) < 119*time.Minute {
			t.Fatalf("stopped: %v, now is %v", at, l.now())
		}
		if lt := got.Lifetime; lt == nil || lt.Next != "delete" || lt.RemainingSeconds == nil || *lt.RemainingSeconds > 7200 || lt.AgeSeconds < 3*3600 || lt.UpSeconds != 0 {
			t.Errorf("lifetime: %+v", lt)
		}
		if sb := set("never"); sb.Retention != "" || sb.DeletesAt != nil {
			t.Errorf("never: %+v", sb)
		}
		l.pass(4 * time.Hour)
		if sb := set("5h"); sb.DeletesAt == nil {
			t.Errorf("longer than it has been stopped: %+v", sb)
		}
		l.pass(2 * time.Hour)
		l.gone(t, id)
		for _, bad := range []string{"59s", "4000d", "0m"} {
			other := Sandbox(t, l.Client, api.CreateSandboxIn{})
			e := refusal(t, l.Client, api.UpdateSandbox, api.UpdateSandboxIn{SandboxIn: in(other), Retention: &bad})
			if e.Code != "INVALID_INPUT" || e.Details["path"] != "retention" {
				t.Errorf("%s: %+v", bad, e)
			}
		}
	})
}

// TestGetOrCreate says what it found, and replaces what never came up.
func TestGetOrCreate(t *testing.T) {
	eachLife(t, nil, func(t *testing.T, l *life) {
		no := false
		first := Must(t, l.Client, api.CreateSandbox, api.CreateSandboxIn{Name: "one", GetOrCreate: true, AutoWake: &no, Metadata: map[string]string{"a": "b"}, WaitIn: wait(30)})
		if first.Existed || len(first.Differs) > 0 {
			t.Errorf("a new one: %+v", first)
		}
		id := first.Sandbox.ID
		l.stop(t, id)
		again := Must(t, l.Client, api.CreateSandbox, api.CreateSandboxIn{
			Name: "one", GetOrCreate: true, Resources: &api.ResourcesIn{MemoryMiB: 4096}, Metadata: map[string]string{"a": "c"}, WaitIn: wait(30),
		})
		if !again.Existed || !again.Ready || again.Sandbox.ID != id || len(again.Differs) != 2 || again.Differs[0] != "resources.memoryMiB" || again.Differs[1] != "metadata" {
			t.Errorf("the same, stopped: %+v", again)
		}
		e := refusal(t, l.Client, api.CreateSandbox, api.CreateSandboxIn{Name: "one"})
		if e.Code != "ALREADY_EXISTS" || e.Details["sandboxId"] != id || e.Details["state"] != api.StateRunning {
			t.Errorf("taken: %+v", e)
		}
		// A repeat of the first call is its result, not "existed".
		key := op.WriteIn{IdempotencyKey: "get-or-create"}
		made := Must(t, l.Client, api.CreateSandbox, api.CreateSandboxIn{WriteIn: key, Name: "two", GetOrCreate: true, WaitIn: wait(30)})
		if replay := Must(t, l.Client, api.CreateSandbox, api.CreateSandboxIn{WriteIn: key, Name: "two", GetOrCreate: true, WaitIn: wait(30)}); replay.Existed || !replay.Replayed || replay.Sandbox.ID != made.Sandbox.ID {
			t.Errorf("repeated: %+v", replay)
		}
		// One that failed makes room.
		l.failing("create", errs.E(errs.Upstream, "no"))
		failed := refusal(t, l.Client, api.CreateSandbox, api.CreateSandboxIn{Name: "three", GetOrCreate: true, WaitIn: wait(30)})
		if failed.Reason != "boot_failed" {
			t.Fatalf("a failed boot: %+v", failed)
		}
		l.on(func(context.Context, string, string) error { return nil })
		if e := refusal(t, l.Client, api.CreateSandbox, api.CreateSandboxIn{Name: "three"}); e.Code != "ALREADY_EXISTS" || e.Details["state"] != api.StateFailed {
			t.Errorf("the name of a failed one: %+v", e)
		}
		ids := make(chan string, 6)
		together(6, func(int) {
			out, err := within(l.Client, api.CreateSandbox, api.CreateSandboxIn{Name: "three", GetOrCreate: true, WaitIn: wait(30)})
			if err != nil || !out.Ready {
				t.Errorf("in place of a failed one: %+v, %v", out, err)
				return
			}
			ids <- out.Sandbox.ID
		})
		close(ids)
		old, _ := failed.Details["sandboxId"].(string)
		var got string
		for id := range ids {
			if got != "" && id != got || id == old {
				t.Errorf("got %s and %s, the failed one was %s", got, id, old)
			}
			got = id
		}
		l.gone(t, old)
		for _, id := range []string{id, made.Sandbox.ID, got} {
			Must(t, l.Client, api.DeleteSandbox, waiting(id, 30))
		}
	})
}

// TestTooLarge: more than a node has is refused at once, and says how much there is.
func TestTooLarge(t *testing.T) {
	s := Start(t, Options{})
	for want, res := range map[string]api.ResourcesIn{"resources.vcpu": {VCPU: 17}, "resources.memoryMiB": {MemoryMiB: 65 << 10}} {
		e := refusal(t, s.Client, api.CreateSandbox, api.CreateSandboxIn{Resources: &res})
		if e.Code != "INVALID_INPUT" || e.Reason != "larger_than_nodes" || e.Details["path"] != want || e.Details["most"] == nil || e.Suggestion == "" {
			t.Errorf("%+v: %+v", res, e)
		}
	}
}

// TestDeletedUnderACall: what is said is said of the sandbox, not of a node that no longer has it.
func TestDeletedUnderACall(t *testing.T) {
	eachLife(t, nil, func(t *testing.T, l *life) {
		id := Sandbox(t, l.Client, api.CreateSandboxIn{})
		done := make(chan error, 1)
		go func() {
			_, err := within(l.Client, api.Exec, api.ExecIn{SandboxIn: in(id), CommandIn: api.CommandIn{Command: "touch began; exec sleep 50"}})
			done <- err
		}()
		eventually(t, func() bool { return Code(t, l.Client, api.StatFile, api.FileStatIn{FileIn: file(id, "began")}) == "" })
		Must(t, l.Client, api.DeleteSandbox, waiting(id, 30))
		select {
		case err := <-done:
			e, ok := errors.AsType[*client.Error](err)
			if !ok || e.Code != "NOT_FOUND" || e.Reason != "deleted" || !strings.Contains(e.Message, id) || strings.Contains(e.Message, "node") || e.Suggestion == "" {
				t.Errorf("got %+v, %v", e, err)
			}
		case <-time.After(40 * time.Second):
			t.Error("the command goes on without its sandbox")
		}
	})
}
