package xtest

import (
	"context"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/berthrun/berth/api"
	"github.com/berthrun/berth/api/op"
	"github.com/berthrun/berth/internal/controlplane"
	"github.com/berthrun/berth/internal/db/dbtest"
	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/runtime"
	"github.com/berthrun/berth/internal/runtime/fake"
)

// eachSleeper runs a test on a system of its own on each database, whose node pauses, saves and copies.
func eachSleeper(t *testing.T, change func(*controlplane.Config), test func(t *testing.T, l *life)) {
	t.Helper()
	dbtest.EachURL(t, func(t *testing.T, url string) {
		test(t, newLifeOn(t, url, fake.Config{Can: fake.Everything()}, change))
	})
}

// asleep is how deep asleep a sandbox is on its node.
func (l *life) asleep(t testing.TB, id string) runtime.Depth {
	t.Helper()
	st, err := l.Driver.Get(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	return st.Depth
}

// deep waits until a paused sandbox is as deep asleep as that.
func (l *life) deep(t testing.TB, id, depth string) {
	t.Helper()
	eventually(t, func() bool {
		sb := l.get(t, id)
		return sb.State == api.StatePaused && sb.Depth == depth && l.asleep(t, id) == runtime.Depth(depth)
	})
}

func (l *life) pause(t testing.TB, id string) {
	t.Helper()
	if sb := Must(t, l.Client, api.PauseSandbox, waiting(id, 30)).Sandbox; sb.State != api.StatePaused || sb.Depth != api.DepthDisk {
		t.Fatalf("pause: %+v", sb)
	}
}

// echo starts a process that says what it is told, and answers only as long as it is the same process.
func echo(t testing.TB, l *life, id string) string {
	t.Helper()
	p := Must(t, l.Client, api.StartProcess, api.StartProcessIn{SandboxIn: in(id), CommandIn: api.CommandIn{Command: "echo ready; exec cat"}, OpenStdin: true}).Process.ID
	Must(t, l.Client, api.ProcessOutput, api.ProcessOutputIn{ProcessIn: proc(id, p), WaitSeconds: 30}) // what it says is use
	return p
}

func (l *life) echoes(t testing.TB, id, p, text string) {
	t.Helper()
	Must(t, l.Client, api.ProcessInput, api.ProcessInputIn{ProcessIn: proc(id, p), Data: text + "\n"})
	eventually(t, func() bool {
		return strings.HasSuffix(Must(t, l.Client, api.ProcessOutput, api.ProcessOutputIn{ProcessIn: proc(id, p)}).Data, text+"\n")
	})
}

func TestPauseAndWake(t *testing.T) {
	eachSleeper(t, nil, func(t *testing.T, l *life) {
		c := l.Client
		id := Sandbox(t, c, api.CreateSandboxIn{Name: "sleeper", Env: map[string]string{"A": "b"}, Metadata: map[string]string{"A": "b"}})
		if sb := l.get(t, id); sb.OnIdle != "pause" || sb.IdlePauseSeconds != 300 || sb.Metadata["A"] != "b" {
			t.Errorf("by default: %+v", sb)
		}
		p := echo(t, l, id)
		l.echoes(t, id, p, "one")
		running := used(t, c)
		l.pause(t, id)
		if sb := l.get(t, id); sb.PauseReason != "requested" || sb.Ready {
			t.Errorf("%+v", sb)
		}
		if got := used(t, c); got["memory.running"] != 0 || got["sandboxes.running"] != 0 || got["disk.total"] != running["disk.total"] || running["memory.running"] == 0 {
			t.Errorf("used while running %v, and paused %v", running, got)
		}
		t.Run("reading does not wake it", func(t *testing.T) {
			if got := Must(t, c, api.GetProcess, proc(id, p)).Process; got.State != "running" {
				t.Errorf("its process: %+v", got)
			}
			if all := Must(t, c, api.ListProcesses, api.ListProcessesIn{SandboxIn: in(id)}).Items; len(all) != 1 || all[0].ID != p {
				t.Errorf("its processes: %+v", all)
			}
			if got := read(t, c, id, p, 0); got != "ready\none\n" {
				t.Errorf("what it wrote: %q", got)
			}
			if all := Must(t, c, api.ListSandboxes, api.ListSandboxesIn{State: []string{api.StatePaused}}).Items; len(all) != 1 || all[0].Depth != api.DepthDisk {
				t.Errorf("listed: %+v", all)
			}
			Must(t, c, api.SandboxMetrics, api.SandboxMetricsIn{SandboxIn: in(id)})
			if lines := Must(t, c, api.SandboxLogs, api.SandboxLogsIn{SandboxIn: in(id), Search: "memory on disk"}).Items; len(lines) != 1 {
				t.Errorf("its log: %+v", lines)
			}
			if got := Must(t, c, api.GetSandbox, in(id)); got.RecoveryPoint == nil || got.RecoveryPoint.Kind != "memory" {
				t.Errorf("its recovery point: %+v", got.RecoveryPoint)
			}
			if l.asleep(t, id) != runtime.OnDisk {
				t.Errorf("it woke")
			}
		})
		generation := l.get(t, id).Generation
		if out := Must(t, c, api.PauseSandbox, waiting(id, 30)); out.Sandbox.Generation != generation {
			t.Errorf("paused again: %+v", out.Sandbox)
		}
		t.Run("use wakes it, with its memory", func(t *testing.T) {
			if out := Exec(t, c, id, "echo $A"); out.Stdout != "b\n" || out.Woke != "memory" {
				t.Errorf("%+v", out)
			}
			if out := Exec(t, c, id, "true"); out.Woke != "" {
				t.Errorf("again: %+v", out)
			}
			l.echoes(t, id, p, "two")
			if got := used(t, c); got["memory.running"] != running["memory.running"] {
				t.Errorf("used: %v", got)
			}
			eventually(t, func() bool { // the node has let go of what the wake would be undone with
				var n int
				if err := l.db.QueryRowContext(t.Context(), `SELECT COUNT(*) FROM sandboxes WHERE unsettled = 1`).Scan(&n); err != nil {
					t.Fatal(err)
				}
				return n == 0
			})
		})
		t.Run("input wakes it", func(t *testing.T) {
			l.pause(t, id)
			l.echoes(t, id, p, "three")
		})
		t.Run("resume and start", func(t *testing.T) {
			l.pause(t, id)
			if out := Must(t, c, api.WakeSandbox, waiting(id, 30)); !out.Ready || out.Woke != "memory" || out.Sandbox.PauseReason != "" || out.Sandbox.Depth != "" {
				t.Errorf("resume: %+v", out)
			}
			if out := Must(t, c, api.WakeSandbox, waiting(id, 30)); !out.Ready || out.Woke != "" {
				t.Errorf("resumed again: %+v", out)
			}
			l.pause(t, id)
			if out := Must(t, c, api.StartSandbox, waiting(id, 30)); !out.Ready || out.Woke != "memory" {
				t.Errorf("start: %+v", out)
			}
			l.pause(t, id)
			if out := Must(t, c, api.CreateSandbox, api.CreateSandboxIn{Name: "sleeper", GetOrCreate: true}); !out.Ready || !out.Existed || out.Woke != "memory" || out.Sandbox.ID != id {
				t.Errorf("getOrCreate: %+v", out)
			}
			l.echoes(t, id, p, "four")
		})
		t.Run("stop drops its memory", func(t *testing.T) {
			Exec(t, c, id, "echo kept > file")
			l.pause(t, id)
			l.stop(t, id)
			for name, e := range map[string]string{
				"wake": Code(t, c, api.WakeSandbox, waiting(id, 0)), "pause": Code(t, c, api.PauseSandbox, waiting(id, 0)),
				"fork": Code(t, c, api.ForkSandbox, api.ForkSandboxIn{SandboxIn: in(id)}),
			} {
				if e != "INVALID_STATE" {
					t.Errorf("%s of a stopped one: %q", name, e)
				}
			}
			if got := Must(t, c, api.GetProcess, proc(id, p)).Process; got.State != "lost" {
				t.Errorf("its process: %+v", got)
			}
			if out := Exec(t, c, id, "cat file"); out.Stdout != "kept\n" || out.Woke != "boot" {
				t.Errorf("booted: %+v", out)
			}
		})
		t.Run("deleted while paused", func(t *testing.T) {
			other := Sandbox(t, c, idling(0))
			l.pause(t, other)
			if out := Must(t, c, api.DeleteSandbox, waiting(other, 30)); !out.Deleted {
				t.Errorf("%+v", out)
			}
			l.gone(t, other)
		})
	})
}

func TestWhoMayWake(t *testing.T) {
	eachSleeper(t, nil, func(t *testing.T, l *life) {
		c, no := l.Client, false
		id := Sandbox(t, c, api.CreateSandboxIn{AutoWake: &no})
		l.pause(t, id)
		if e := refusal(t, c, api.Exec, api.ExecIn{SandboxIn: in(id), CommandIn: api.CommandIn{Command: "true"}}); e.Code != "INVALID_STATE" || e.Reason != "asleep" || !strings.Contains(e.Suggestion, "resume_sandbox") {
			t.Errorf("exec: %+v", e)
		}
		if out := Must(t, c, api.WakeSandbox, waiting(id, 30)); !out.Ready {
			t.Errorf("resume: %+v", out)
		}
		other := Sandbox(t, c, idling(0))
		Must(t, c, api.WriteFile, api.WriteFileIn{FileIn: file(other, "there"), Data: "x"})
		l.pause(t, other)
		reader := l.With(t, Must(t, c, api.CreateKey, api.CreateKeyIn{Name: "reader", Scopes: []string{"read"}}).Secret)
		if e := refusal(t, reader, api.ReadFile, api.ReadFileIn{FileIn: file(other, "there")}); e.Code != "INVALID_STATE" || e.Reason != "asleep" {
			t.Errorf("a key that only reads: %+v", e)
		}
		if l.asleep(t, other) != runtime.OnDisk {
			t.Error("it woke")
		}
	})
}

func TestIdlePause(t *testing.T) {
	eachSleeper(t, nil, func(t *testing.T, l *life) {
		c := l.Client
		t.Run("frozen for a moment, then on disk", func(t *testing.T) {
			id := Sandbox(t, c, idling(60))
			p := echo(t, l, id)
			l.pass(61 * time.Second)
			l.deep(t, id, api.DepthFrozen)
			if sb := l.get(t, id); sb.PauseReason != "idle" {
				t.Errorf("%+v", sb)
			}
			if out := Exec(t, c, id, "true"); out.Woke != "memory" {
				t.Errorf("from memory: %+v", out)
			}
			l.pass(61 * time.Second)
			l.deep(t, id, api.DepthFrozen)
			l.pass(31 * time.Second)
			l.deep(t, id, api.DepthDisk)
			l.echoes(t, id, p, "still here")
		})
		t.Run("a caller's pause goes deeper", func(t *testing.T) {
			id := Sandbox(t, c, idling(60))
			l.pass(61 * time.Second)
			l.deep(t, id, api.DepthFrozen)
			Must(t, c, api.PauseSandbox, waiting(id, 30))
			l.deep(t, id, api.DepthDisk)
			if sb := l.get(t, id); sb.PauseReason != "requested" {
				t.Errorf("%+v", sb)
			}
		})
		t.Run("a failed write to disk keeps it frozen", func(t *testing.T) {
			defer l.well()
			id := Sandbox(t, c, idling(60))
			p := echo(t, l, id)
			l.pass(61 * time.Second)
			l.deep(t, id, api.DepthFrozen)
			var tried atomic.Int32
			l.failing("suspend", errs.E(errs.LimitExceeded, "the disk is full").Because("disk_full"))
			old := *l.before.Load()
			l.on(func(ctx context.Context, m, id string) error {
				if m == "suspend" {
					tried.Add(1)
				}
				return old(ctx, m, id)
			})
			l.pass(31 * time.Second)
			eventually(t, func() bool { return tried.Load() > 0 })
			l.deep(t, id, api.DepthFrozen)
			l.well()
			l.pass(31 * time.Second)
			l.deep(t, id, api.DepthDisk)
			l.echoes(t, id, p, "nothing lost")
		})
		t.Run("onIdle stop stops", func(t *testing.T) {
			idle := 60
			id := Sandbox(t, c, api.CreateSandboxIn{IdlePauseSeconds: &idle, OnIdle: "stop"})
			l.pass(61 * time.Second)
			l.becomes(t, id, api.StateStopped)
		})
		t.Run("onExpiry pause pauses", func(t *testing.T) {
			never := 0
			id := Sandbox(t, c, api.CreateSandboxIn{IdlePauseSeconds: &never, TTLSeconds: 60, OnExpiry: "pause"})
			p := echo(t, l, id)
			l.pass(61 * time.Second)
			l.deep(t, id, api.DepthDisk)
			if sb := l.get(t, id); sb.PauseReason != "expired" {
				t.Errorf("%+v", sb)
			}
			l.echoes(t, id, p, "a new life")
			if sb := l.get(t, id); sb.State != api.StateRunning || sb.ExpiresAt == nil || !sb.ExpiresAt.After(l.now()) {
				t.Errorf("%+v", sb)
			}
		})
		t.Run("retention deletes a paused one", func(t *testing.T) {
			id, keep := Sandbox(t, c, idling(0)), "2m"
			Must(t, c, api.UpdateSandbox, api.UpdateSandboxIn{SandboxIn: in(id), Retention: &keep})
			l.pause(t, id)
			l.pass(3 * time.Minute)
			l.gone(t, id)
		})
	})
}

func TestTimersWake(t *testing.T) {
	eachSleeper(t, nil, func(t *testing.T, l *life) {
		c, no, idle := l.Client, false, 60
		id := Sandbox(t, c, idling(60))
		deaf := Sandbox(t, c, api.CreateSandboxIn{IdlePauseSeconds: &idle, WakeOnTimers: &no})
		asked := Sandbox(t, c, idling(0))
		for _, sb := range []string{id, deaf, asked} {
			start(t, c, sb, "exec sleep 7200")
		}
		l.pass(61 * time.Second)
		l.deep(t, id, api.DepthFrozen)
		l.deep(t, deaf, api.DepthFrozen)
		l.pause(t, asked)
		wakes := l.get(t, id).WakesAt
		if wakes == nil || wakes.Before(l.now().Add(7000*time.Second)) || wakes.After(l.now().Add(7200*time.Second)) {
			t.Fatalf("it wakes at %v", wakes)
		}
		l.pass(31 * time.Second)
		l.deep(t, id, api.DepthDisk)
		l.pass(7200 * time.Second)
		l.becomes(t, id, api.StateRunning)
		if lines := Must(t, c, api.SandboxLogs, api.SandboxLogsIn{SandboxIn: in(id), Search: "a timer in it is due"}).Items; len(lines) != 1 {
			t.Errorf("its log: %+v", lines)
		}
		for _, sb := range []string{deaf, asked} {
			if got := l.get(t, sb); got.State != api.StatePaused || got.WakesAt != nil {
				t.Errorf("%+v", got)
			}
		}
	})
}

func TestPauseFails(t *testing.T) {
	eachSleeper(t, nil, func(t *testing.T, l *life) {
		c := l.Client
		defer l.well()
		id := Sandbox(t, c, idling(0))
		p := echo(t, l, id)
		l.failing("suspend", errs.E(errs.LimitExceeded, "the disk is full").Because("disk_full"))
		want := api.SandboxWaitIn{WriteIn: op.WriteIn{IdempotencyKey: "full"}, SandboxIn: in(id), WaitIn: wait(30)}
		if e := refusal(t, c, api.PauseSandbox, want); e.Code != "UPSTREAM_ERROR" || e.Reason != "pause_failed" || !strings.Contains(e.Message, "the disk is full") {
			t.Errorf("%+v", e)
		}
		if sb := l.get(t, id); sb.State != api.StateRunning || !sb.Ready {
			t.Errorf("%+v", sb)
		}
		l.echoes(t, id, p, "nothing lost")
		l.well()
		l.pause(t, id)
		l.echoes(t, id, p, "woken")

		t.Run("a fork meanwhile", func(t *testing.T) {
			defer l.well()
			arrive, release := l.held("suspend")
			Must(t, c, api.PauseSandbox, waiting(id, 0))
			arrive(t)
			if e := refusal(t, c, api.ForkSandbox, api.ForkSandboxIn{SandboxIn: in(id)}); e.Code != "BUSY" {
				t.Errorf("%+v", e)
			}
			release()
			l.becomes(t, id, api.StatePaused)
		})
		t.Run("one that dies while it is frozen", func(t *testing.T) {
			other := Sandbox(t, c, idling(60))
			l.pass(61 * time.Second)
			l.deep(t, other, api.DepthFrozen)
			l.Driver.Kill(other, runtime.ReasonKilled)
			if e := refusal(t, c, api.WakeSandbox, waiting(other, 30)); e.Code != "UNAVAILABLE" || e.Reason != "memory_missing" {
				t.Errorf("%+v", e)
			}
			if sb := l.get(t, other); sb.State != api.StatePaused || sb.WakeError == "" {
				t.Errorf("%+v", sb)
			}
		})
	})
}

// listenSilent gives an address that takes connections and says nothing.
func listenSilent(t *testing.T) string {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = ln.Close() })
	return ln.Addr().String() // the kernel takes them
}

func TestWakeFails(t *testing.T) {
	var silent atomic.Bool
	hole := listenSilent(t)
	dbtest.EachURL(t, func(t *testing.T, url string) {
		l := newLifeOn(t, url, fake.Config{Can: fake.Everything(), Instead: func(string, string) string {
			if silent.Load() {
				return hole
			}
			return ""
		}}, func(c *controlplane.Config) { c.Limits = map[string]int64{"memory.running": 1024} })
		c := l.Client
		exec := func(id string) api.ExecIn {
			return api.ExecIn{SandboxIn: in(id), CommandIn: api.CommandIn{Command: "cat file"}}
		}
		for how, reason := range map[string]string{"missing": "memory_missing", "truncated": "memory_damaged", "foreign": "memory_foreign"} {
			t.Run(how+" memory", func(t *testing.T) {
				id := Sandbox(t, c, idling(0))
				Exec(t, c, id, "echo kept > file")
				l.pause(t, id)
				if err := l.Driver.Damage(id, how); err != nil {
					t.Fatal(err)
				}
				for range 2 {
					if e := refusal(t, c, api.Exec, exec(id)); e.Code != "UNAVAILABLE" || e.Reason != reason || !strings.Contains(e.Suggestion, "stop_sandbox") {
						t.Errorf("%+v", e)
					}
				}
				if sb := l.get(t, id); sb.State != api.StatePaused || sb.WakeError == "" || sb.Depth != api.DepthDisk {
					t.Errorf("%+v", sb)
				}
				if got := used(t, c); got["memory.running"] != 0 {
					t.Errorf("used: %v", got)
				}
				l.stop(t, id)
				if out := Exec(t, c, id, "cat file"); out.Stdout != "kept\n" || out.Woke != "boot" {
					t.Errorf("booted: %+v", out)
				}
			})
		}
		t.Run("no room on the node", func(t *testing.T) {
			defer l.well()
			id := Sandbox(t, c, idling(0))
			p := echo(t, l, id)
			l.pause(t, id)
			l.failing("wake", errs.E(errs.NoCapacity, "the node is full"))
			if e := refusal(t, c, api.WakeSandbox, waiting(id, 30)); e.Code != "NO_CAPACITY" || e.RetryAfter <= 0 {
				t.Errorf("%+v", e)
			}
			if got := used(t, c); got["memory.running"] != 0 {
				t.Errorf("used: %v", got)
			}
			l.well()
			l.echoes(t, id, p, "kept")
		})
		t.Run("no quota", func(t *testing.T) {
			id := Sandbox(t, c, idling(0))
			p := echo(t, l, id)
			l.pause(t, id)
			other := Sandbox(t, c, api.CreateSandboxIn{Resources: &api.ResourcesIn{MemoryMiB: 1024}})
			if e := refusal(t, c, api.WakeSandbox, waiting(id, 30)); e.Code != "LIMIT_EXCEEDED" {
				t.Errorf("%+v", e)
			}
			if sb := l.get(t, id); sb.State != api.StatePaused {
				t.Errorf("%+v", sb)
			}
			Must(t, c, api.DeleteSandbox, waiting(other, 30))
			l.echoes(t, id, p, "kept")
		})
		t.Run("a guest that does not answer", func(t *testing.T) {
			id := Sandbox(t, c, idling(0))
			Exec(t, c, id, "echo kept > file")
			l.pause(t, id)
			silent.Store(true)
			woken := make(chan struct{})
			l.on(func(_ context.Context, m, _ string) error {
				if m == "wake" {
					close(woken)
				}
				return nil
			})
			defer l.well()
			go func() {
				<-woken
				l.pass(20 * time.Second)
			}()
			e := refusal(t, c, api.WakeSandbox, waiting(id, 30))
			silent.Store(false)
			if e.Code != "UNAVAILABLE" || e.Reason != "guest_unresponsive" {
				t.Errorf("%+v", e)
			}
			l.well()
			if sb := l.get(t, id); sb.State != api.StatePaused || sb.WakeError == "" || l.asleep(t, id) != runtime.OnDisk {
				t.Errorf("%+v", sb)
			}
			if out := Exec(t, c, id, "cat file"); out.Stdout != "kept\n" || out.Woke != "memory" {
				t.Errorf("%+v", out)
			}
		})
	})
}
