package xtest

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/berthrun/berth/api"
	"github.com/berthrun/berth/api/op"
	"github.com/berthrun/berth/client"
	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/runtime"
)

func waiting(id string, seconds int) api.SandboxWaitIn {
	return api.SandboxWaitIn{SandboxIn: in(id), WaitIn: wait(seconds)}
}

// within calls an operation that another goroutine of the test waits for.
func within[In, Out any](c *client.Client, def op.Def[In, Out], in In) (Out, error) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	return client.Call(ctx, c, def, in)
}

// held has the node wait in a method until release. arrive waits until the first call is there.
func (l *life) held(method string) (arrive func(testing.TB), release func()) {
	there, open := make(chan struct{}), make(chan struct{})
	var once sync.Once
	l.on(func(ctx context.Context, m, _ string) error {
		if m != method {
			return nil
		}
		once.Do(func() { close(there) })
		select {
		case <-open:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	})
	return func(t testing.TB) {
		t.Helper()
		select {
		case <-there:
		case <-time.After(30 * time.Second):
			t.Fatalf("the node was never asked to %s", method)
		}
	}, sync.OnceFunc(func() { close(open) })
}

// failing has the node refuse a method.
func (l *life) failing(method string, err error) {
	l.on(func(_ context.Context, m, _ string) error {
		if m == method {
			return err
		}
		return nil
	})
}

func (l *life) well() { l.on(func(context.Context, string, string) error { return nil }) }

func TestRepeatedAndConcurrent(t *testing.T) {
	eachLife(t, nil, func(t *testing.T, l *life) {
		c := l.Client
		const callers = 8
		t.Run("stop, start and delete by many at once", func(t *testing.T) {
			id := Sandbox(t, c, idling(0))
			generation := l.get(t, id).Generation
			for _, step := range []struct {
				def   op.Def[api.SandboxWaitIn, api.SandboxOut]
				state string
			}{
				{api.StopSandbox, api.StateStopped},
				{api.StopSandbox, api.StateStopped},
				{api.StartSandbox, api.StateRunning},
				{api.StartSandbox, api.StateRunning},
			} {
				if l.get(t, id).State != step.state {
					generation += 2
				}
				together(callers, func(int) {
					out, err := within(c, step.def, waiting(id, 30))
					if err != nil || out.Sandbox.State != step.state {
						t.Errorf("%s: %+v, %v", step.def.Name, out.Sandbox, err)
					}
				})
				if got := l.get(t, id).Generation; got != generation {
					t.Errorf("%s: generation %d, want %d", step.def.Name, got, generation)
				}
			}
			together(callers, func(int) {
				if out, err := within(c, api.DeleteSandbox, waiting(id, 30)); err != nil || !out.Deleted {
					t.Errorf("delete: %+v, %v", out, err)
				}
			})
			if out := Must(t, c, api.DeleteSandbox, waiting(id, 0)); !out.Deleted {
				t.Errorf("deleted again: %+v", out)
			}
			for name, code := range map[string]string{
				"get": Code(t, c, api.GetSandbox, in(id)), "start": Code(t, c, api.StartSandbox, waiting(id, 0)), "stop": Code(t, c, api.StopSandbox, waiting(id, 0)),
				"exec": Code(t, c, api.Exec, api.ExecIn{SandboxIn: in(id), CommandIn: api.CommandIn{Command: "true"}}),
			} {
				if code != "NOT_FOUND" {
					t.Errorf("%s of a deleted one: %q", name, code)
				}
			}
		})
		t.Run("everything at once", func(t *testing.T) {
			id := Sandbox(t, c, idling(0))
			together(callers, func(i int) {
				for n := range 6 {
					var err error
					switch (i + n) % 4 {
					case 0:
						_, err = within(c, api.StopSandbox, waiting(id, 10))
					case 1:
						_, err = within(c, api.StartSandbox, waiting(id, 10))
					case 2:
						_, err = within(c, api.Exec, api.ExecIn{SandboxIn: in(id), CommandIn: api.CommandIn{Command: "echo x >> lines"}})
					case 3:
						_, err = within(c, api.WriteFile, api.WriteFileIn{FileIn: file(id, "file"), Data: "x"})
					}
					switch code := client.CodeOf(err); code {
					case "", "BUSY", "INVALID_STATE":
					default:
						t.Errorf("%v", err)
					}
				}
			})
			eventually(t, func() bool {
				sb := l.get(t, id)
				return sb.State == api.StateRunning || sb.State == api.StateStopped
			})
			if out := Exec(t, c, id, "echo well"); out.Stdout != "well\n" {
				t.Errorf("afterwards: %+v", out)
			}
		})
		t.Run("nothing is left", func(t *testing.T) {
			eventually(t, func() bool {
				all, err := l.Driver.List(t.Context())
				return err == nil && len(all) == 0
			})
			for _, limit := range Must(t, c, api.GetLimits, api.None{}).Items {
				if limit.Used != 0 {
					t.Errorf("%s: %d are used", limit.Key, limit.Used)
				}
			}
		})
	})
}

func TestWhileItMoves(t *testing.T) {
	eachLife(t, nil, func(t *testing.T, l *life) {
		c := l.Client
		t.Run("delete while creating", func(t *testing.T) {
			defer l.well()
			arrive, release := l.held("create")
			defer release()
			made := Must(t, c, api.CreateSandbox, api.CreateSandboxIn{Name: "early", WaitIn: wait(0)})
			if made.Ready || made.Sandbox.State != api.StateCreating {
				t.Fatalf("%+v", made.Sandbox)
			}
			arrive(t)
			id := made.Sandbox.ID
			if code := Code(t, c, api.StopSandbox, waiting(id, 0)); code != "BUSY" {
				t.Errorf("stop: %q", code)
			}
			if out := Must(t, c, api.DeleteSandbox, waiting(id, 30)); !out.Deleted {
				t.Errorf("%+v", out)
			}
			l.gone(t, id)
			if all := Must(t, c, api.ListSandboxes, api.ListSandboxesIn{Name: "early"}); len(all.Items) != 0 {
				t.Errorf("%+v", all)
			}
		})
		t.Run("a create whose sandbox is deleted meanwhile", func(t *testing.T) {
			defer l.well()
			arrive, release := l.held("create")
			defer release()
			ended := make(chan error, 1)
			go func() {
				_, err := within(c, api.CreateSandbox, api.CreateSandboxIn{Name: "meanwhile", WaitIn: wait(30)})
				ended <- err
			}()
			arrive(t)
			id := Must(t, c, api.ListSandboxes, api.ListSandboxesIn{Name: "meanwhile"}).Items[0].ID
			Must(t, c, api.DeleteSandbox, waiting(id, 30))
			if err := <-ended; client.CodeOf(err) != "NOT_FOUND" {
				t.Errorf("the create: %v", err)
			}
		})
		t.Run("while starting", func(t *testing.T) {
			defer l.well()
			id := Sandbox(t, c, idling(0))
			p := start(t, c, id, "exec sleep 600")
			l.stop(t, id)
			arrive, release := l.held("start")
			defer release()
			if out := Must(t, c, api.StartSandbox, waiting(id, 0)); out.Ready || out.Sandbox.State != api.StateStarting {
				t.Errorf("%+v", out.Sandbox)
			}
			arrive(t)
			if out := Must(t, c, api.StartSandbox, waiting(id, 0)); out.Ready || out.Sandbox.State != api.StateStarting {
				t.Errorf("start again: %+v", out.Sandbox)
			}
			if e := refusal(t, c, api.StopSandbox, waiting(id, 0)); e.Code != "BUSY" || e.Reason != "starting" || e.RetryAfter <= 0 || e.Suggestion == "" {
				t.Errorf("stop: %+v", e)
			}
			if code := Code(t, c, api.ProcessSignal, api.ProcessSignalIn{ProcessIn: proc(id, p), Signal: "TERM"}); code != "BUSY" {
				t.Errorf("signal: %q", code)
			}
			if got := Must(t, c, api.GetProcess, proc(id, p)).Process; got.State == "running" {
				t.Errorf("process: %+v", got)
			}
			ran := make(chan api.ExecOut, 1)
			go func() { // it waits for the boot
				out, err := within(c, api.Exec, api.ExecIn{SandboxIn: in(id), CommandIn: api.CommandIn{Command: "echo ran"}})
				if err != nil {
					t.Errorf("exec: %v", err)
				}
				ran <- out
			}()
			release()
			if out := <-ran; out.Stdout != "ran\n" || out.Woke != "" {
				t.Errorf("exec: %+v", out)
			}
		})
		t.Run("while stopping", func(t *testing.T) {
			defer l.well()
			id := Sandbox(t, c, idling(0))
			arrive, release := l.held("stop")
			defer release()
			Must(t, c, api.StopSandbox, waiting(id, 0))
			arrive(t)
			if out := Must(t, c, api.StopSandbox, waiting(id, 0)); out.Ready || out.Sandbox.State != api.StateStopping {
				t.Errorf("stop again: %+v", out.Sandbox)
			}
			started := make(chan api.SandboxOut, 1)
			go func() { // it waits for the stop and then goes on
				out, err := within(c, api.StartSandbox, waiting(id, 30))
				if err != nil {
					t.Errorf("start: %v", err)
				}
				started <- out
			}()
			release()
			if out := <-started; !out.Ready {
				t.Errorf("start: %+v", out.Sandbox)
			}
		})
		t.Run("delete while stopping", func(t *testing.T) {
			defer l.well()
			id := Sandbox(t, c, idling(0))
			arrive, release := l.held("stop")
			defer release()
			Must(t, c, api.StopSandbox, waiting(id, 0))
			arrive(t)
			if out := Must(t, c, api.DeleteSandbox, waiting(id, 30)); !out.Deleted {
				t.Errorf("%+v", out)
			}
			l.gone(t, id)
		})
	})
}

func TestBootFailure(t *testing.T) {
	eachLife(t, nil, func(t *testing.T, l *life) {
		c := l.Client
		broken := errs.E(errs.Unavailable, "the image is torn")
		t.Run("of a new one", func(t *testing.T) {
			defer l.well()
			l.failing("create", broken)
			want := api.CreateSandboxIn{WriteIn: op.WriteIn{IdempotencyKey: "never"}, WaitIn: wait(30)}
			e := refusal(t, c, api.CreateSandbox, want)
			if e.Code != "UPSTREAM_ERROR" || e.Reason != "boot_failed" || e.Suggestion == "" {
				t.Fatalf("%+v", e)
			}
			id := e.Details["sandboxId"].(string)
			if sb := l.get(t, id); sb.State != api.StateFailed || sb.Ready || sb.Error != "the image is torn" || sb.EndedAt == nil {
				t.Errorf("%+v", sb)
			}
			l.well()
			if again := refusal(t, c, api.CreateSandbox, want); again.Code != e.Code || again.Details["sandboxId"] != id {
				t.Errorf("with the same key: %+v", again)
			}
			for name, code := range map[string]string{
				"start": Code(t, c, api.StartSandbox, waiting(id, 0)), "extend": Code(t, c, api.ExtendSandbox, api.ExtendIn{SandboxIn: in(id), By: "1h"}),
				"exec": Code(t, c, api.Exec, api.ExecIn{SandboxIn: in(id), CommandIn: api.CommandIn{Command: "true"}}),
			} {
				if code != "INVALID_STATE" {
					t.Errorf("%s: %q", name, code)
				}
			}
			if out := Must(t, c, api.StopSandbox, waiting(id, 0)); out.Sandbox.State != api.StateFailed {
				t.Errorf("stop: %+v", out.Sandbox)
			}
			if got := used(t, c); got["sandboxes.running"] != 0 || got["sandboxes.total"] != 1 {
				t.Errorf("used: %v", got)
			}
			l.pass(58 * time.Minute)
			other := Sandbox(t, c, idling(60))
			l.pass(61 * time.Second)
			l.becomes(t, other, api.StateStopped) // so all were looked at
			if sb := l.get(t, id); sb.State != api.StateFailed {
				t.Errorf("before an hour has passed: %+v", sb)
			}
			l.pass(2 * time.Minute)
			l.gone(t, id)
		})
		t.Run("of a stopped one", func(t *testing.T) {
			defer l.well()
			id := Sandbox(t, c, idling(0))
			Exec(t, c, id, "echo kept > file")
			l.stop(t, id)
			l.failing("start", broken)
			if e := refusal(t, c, api.StartSandbox, waiting(id, 30)); e.Code != "UPSTREAM_ERROR" || e.Reason != "boot_failed" {
				t.Errorf("start: %+v", e)
			}
			if sb := l.get(t, id); sb.State != api.StateStopped || sb.StopReason != "boot_failed" || sb.Error != "the image is torn" {
				t.Errorf("%+v", sb)
			}
			if e := refusal(t, c, api.Exec, api.ExecIn{SandboxIn: in(id), CommandIn: api.CommandIn{Command: "true"}}); e.Code != "UPSTREAM_ERROR" || e.Reason != "boot_failed" {
				t.Errorf("exec: %+v", e)
			}
			l.well()
			if out := Must(t, c, api.StartSandbox, waiting(id, 30)); !out.Ready || out.Sandbox.StopReason != "" || out.Sandbox.Error != "" {
				t.Errorf("once it is well: %+v", out.Sandbox)
			}
			if out := Exec(t, c, id, "cat file"); out.Stdout != "kept\n" {
				t.Errorf("its disk: %+v", out)
			}
		})
		t.Run("start joins a boot that fails", func(t *testing.T) {
			defer l.well()
			fail, entered := make(chan struct{}), make(chan struct{})
			l.on(func(_ context.Context, m, _ string) error {
				if m != "create" {
					return nil
				}
				close(entered)
				<-fail
				return broken
			})
			made := Must(t, c, api.CreateSandbox, api.CreateSandboxIn{WaitIn: wait(0)})
			<-entered
			joined := make(chan error, 1)
			go func() {
				_, err := within(c, api.StartSandbox, waiting(made.Sandbox.ID, 30))
				joined <- err
			}()
			close(fail)
			if code := client.CodeOf(<-joined); code != "UPSTREAM_ERROR" && code != "INVALID_STATE" { // it may come too late to join
				t.Errorf("start: %q", code)
			}
		})
		t.Run("a node that comes back", func(t *testing.T) {
			defer l.well()
			var tries atomic.Int32
			l.on(func(_ context.Context, m, _ string) error {
				if m == "create" && tries.Add(1) < 3 {
					return errs.E(errs.HostUnavailable, "the node is away")
				}
				return nil
			})
			Sandbox(t, c, idling(0))
			if tries.Load() != 3 {
				t.Errorf("%d tries", tries.Load())
			}
		})
	})
}

// used is what the organization uses of its quotas.
func used(t testing.TB, c *client.Client) map[string]int64 {
	t.Helper()
	all := map[string]int64{}
	for _, limit := range Must(t, c, api.GetLimits, api.None{}).Items {
		all[limit.Key] = limit.Used
	}
	return all
}

func TestDeath(t *testing.T) {
	eachLife(t, nil, func(t *testing.T, l *life) {
		for _, reason := range []string{runtime.ReasonOutOfMemory, runtime.ReasonKilled, runtime.ReasonExited} {
			t.Run(reason, func(t *testing.T) { death(t, l, reason) })
		}
	})
}

func death(t *testing.T, l *life, reason string) {
	c := l.Client
	id := Sandbox(t, c, idling(0))
	Exec(t, c, id, "echo kept > file")
	p := start(t, c, id, "echo begun; exec sleep 600")
	ended := make(chan error, 1)
	go func() {
		_, err := within(c, api.Exec, api.ExecIn{SandboxIn: in(id), CommandIn: api.CommandIn{Command: "touch there; exec sleep 600"}})
		ended <- err
	}()
	eventually(t, func() bool { return Code(t, c, api.StatFile, api.FileStatIn{FileIn: file(id, "there")}) == "" })
	l.Driver.Kill(id, reason)
	if err := <-ended; client.CodeOf(err) != "INVALID_STATE" {
		t.Errorf("the command under which it died: %v", err)
	}
	if sb := l.becomes(t, id, api.StateStopped); sb.StopReason != reason || sb.EndedAt == nil || sb.Ready {
		t.Errorf("%+v", sb)
	}
	eventually(t, func() bool { return Must(t, c, api.GetProcess, proc(id, p)).Process.State == "lost" })
	if out := Must(t, c, api.ProcessOutput, api.ProcessOutputIn{ProcessIn: proc(id, p)}); !out.EOF {
		t.Errorf("output: %+v", out)
	}
	if code := Code(t, c, api.ProcessSignal, api.ProcessSignalIn{ProcessIn: proc(id, p), Signal: "TERM"}); code != "INVALID_STATE" {
		t.Errorf("signal: %q", code)
	}
	if out := Exec(t, c, id, "cat file"); out.Stdout != "kept\n" || out.Woke != "boot" {
		t.Errorf("used again: %+v", out)
	}
	if got := Must(t, c, api.GetProcess, proc(id, p)).Process; got.State != "lost" {
		t.Errorf("after the boot: %+v", got)
	}
	if code := Code(t, c, api.ProcessInput, api.ProcessInputIn{ProcessIn: proc(id, p), Data: "x"}); code != "INVALID_STATE" {
		t.Errorf("input after the boot: %q", code)
	}
}

func TestAutoWake(t *testing.T) {
	eachLife(t, nil, func(t *testing.T, l *life) {
		c := l.Client
		no := false
		id := Sandbox(t, c, api.CreateSandboxIn{AutoWake: &no})
		p := start(t, c, id, "echo said")
		read(t, c, id, p, 15)
		l.stop(t, id)
		for name, e := range map[string]*client.Error{
			"exec":  refusal(t, c, api.Exec, api.ExecIn{SandboxIn: in(id), CommandIn: api.CommandIn{Command: "true"}}),
			"start": refusal(t, c, api.StartProcess, api.StartProcessIn{SandboxIn: in(id), CommandIn: api.CommandIn{Command: "true"}}),
			"read":  refusal(t, c, api.ReadFile, api.ReadFileIn{FileIn: file(id, "file")}),
			"write": refusal(t, c, api.WriteFile, api.WriteFileIn{FileIn: file(id, "file")}),
		} {
			if e.Code != "INVALID_STATE" || e.Reason != "asleep" || e.Suggestion == "" {
				t.Errorf("%s: %+v", name, e)
			}
		}
		if got := read(t, c, id, p, 0); got != "said\n" {
			t.Errorf("what was kept: %q", got)
		}
		if all := Must(t, c, api.ListProcesses, api.ListProcessesIn{SandboxIn: in(id)}).Items; len(all) != 1 || all[0].ID != p {
			t.Errorf("its processes: %+v", all)
		}
		if sb := l.get(t, id); sb.State != api.StateStopped {
			t.Errorf("%+v", sb)
		}
		if out := Must(t, c, api.StartSandbox, waiting(id, 30)); !out.Ready {
			t.Errorf("started: %+v", out.Sandbox)
		}
	})
}
