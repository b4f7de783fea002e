package xtest

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/berthrun/berth/api"
	"github.com/berthrun/berth/api/op"
	"github.com/berthrun/berth/client"
	"github.com/berthrun/berth/internal/controlplane"
	"github.com/berthrun/berth/internal/db"
	"github.com/berthrun/berth/internal/db/dbtest"
	"github.com/berthrun/berth/internal/runtime/fake"
)

// life is a system whose time a test sets and whose node it can make fail.
type life struct {
	*InProcess
	db     *db.DB
	ahead  atomic.Int64
	before atomic.Pointer[func(ctx context.Context, method, id string) error]
}

// eachLife runs a test on a system of its own on each database.
func eachLife(t *testing.T, change func(*controlplane.Config), test func(t *testing.T, l *life)) {
	t.Helper()
	dbtest.EachURL(t, func(t *testing.T, url string) { test(t, newLife(t, url, change)) })
}

func newLife(t *testing.T, url string, change func(*controlplane.Config)) *life {
	t.Helper()
	return newLifeOn(t, url, fake.Config{}, change)
}

// newLifeOn is newLife on a node that can do more.
func newLifeOn(t *testing.T, url string, node fake.Config, change func(*controlplane.Config)) *life {
	t.Helper()
	l := &life{}
	l.on(func(context.Context, string, string) error { return nil })
	node.Now = l.now
	node.Before = func(ctx context.Context, method, id string) error { return (*l.before.Load())(ctx, method, id) }
	l.InProcess = Start(t, Options{
		Database: url, Fake: node,
		Change: func(c *controlplane.Config) {
			c.Now = l.now
			if change != nil {
				change(c)
			}
		},
	})
	l.db = dbtest.Open(t, url)
	return l
}

func (l *life) now() time.Time { return time.Now().Add(time.Duration(l.ahead.Load())) }

// pass lets time pass.
func (l *life) pass(d time.Duration) { l.ahead.Add(int64(d)) }

// on sets what happens before the node changes a sandbox.
func (l *life) on(before func(ctx context.Context, method, id string) error) { l.before.Store(&before) }

func (l *life) get(t testing.TB, id string) api.Sandbox {
	t.Helper()
	return Must(t, l.Client, api.GetSandbox, in(id)).Sandbox
}

// becomes waits for a state.
func (l *life) becomes(t testing.TB, id, state string) api.Sandbox {
	t.Helper()
	var sb api.Sandbox
	eventually(t, func() bool {
		sb = l.get(t, id)
		return sb.State == state
	})
	return sb
}

// gone waits until a sandbox is found no more, and its disk neither.
func (l *life) gone(t testing.TB, id string) {
	t.Helper()
	eventually(t, func() bool { return Code(t, l.Client, api.GetSandbox, in(id)) == "NOT_FOUND" })
	eventually(t, func() bool {
		all, err := l.Driver.List(context.Background())
		for _, st := range all {
			if st.ID == id {
				return false
			}
		}
		return err == nil
	})
}

// looked waits until idling was looked at and the sandbox found in use.
func (l *life) looked(t testing.TB, id string, since time.Time) {
	t.Helper()
	eventually(t, func() bool {
		var at int64
		if err := l.db.QueryRowContext(context.Background(), `SELECT active_at FROM sandboxes WHERE id = $1`, id).Scan(&at); err != nil {
			t.Fatal(err)
		}
		return !db.Time(at).Before(since)
	})
}

func (l *life) stop(t testing.TB, id string) {
	t.Helper()
	if sb := Must(t, l.Client, api.StopSandbox, api.SandboxWaitIn{SandboxIn: in(id), WaitIn: wait(30)}).Sandbox; sb.State != api.StateStopped {
		t.Fatalf("stop: %+v", sb)
	}
}

// refusal is what is said of a call that has to fail.
func refusal[In, Out any](t testing.TB, c *client.Client, def op.Def[In, Out], in In) *client.Error {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	out, err := client.Call(ctx, c, def, in)
	e, ok := errors.AsType[*client.Error](err)
	if !ok {
		t.Fatalf("%s: %+v, %v; want a refusal", def.Name, out, err)
	}
	return e
}

// together runs n calls at the same time and waits for all.
func together(n int, do func(i int)) {
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() { do(i) })
	}
	wg.Wait()
}

func idling(seconds int) api.CreateSandboxIn { return api.CreateSandboxIn{IdlePauseSeconds: &seconds} }

func TestIdling(t *testing.T) {
	eachLife(t, nil, func(t *testing.T, l *life) {
		c := l.Client
		t.Run("an unused one is stopped and its files are kept", func(t *testing.T) {
			id := Sandbox(t, c, idling(60))
			Exec(t, c, id, "echo kept > file")
			l.pass(59 * time.Second)
			Exec(t, c, id, "true") // it is used again
			l.pass(59 * time.Second)
			if sb := l.get(t, id); sb.State != api.StateRunning {
				t.Fatalf("before its time: %+v", sb)
			}
			l.pass(2 * time.Second)
			if sb := l.becomes(t, id, api.StateStopped); sb.StopReason != "idle" || sb.EndedAt == nil {
				t.Errorf("%+v", sb)
			}
			if out := Exec(t, c, id, "cat file"); out.Stdout != "kept\n" || out.Woke != "boot" {
				t.Errorf("used again: %+v", out)
			}
			if sb := l.get(t, id); sb.State != api.StateRunning || sb.StopReason != "" {
				t.Errorf("used again: %+v", sb)
			}
		})
		t.Run("reading its state is no use", func(t *testing.T) {
			id := Sandbox(t, c, idling(60))
			p := start(t, c, id, "exec sleep 600")
			l.pass(61 * time.Second)
			Must(t, c, api.GetProcess, proc(id, p))
			Must(t, c, api.ListProcesses, api.ListProcessesIn{SandboxIn: in(id)})
			Must(t, c, api.ListSandboxes, api.ListSandboxesIn{})
			l.becomes(t, id, api.StateStopped)
		})
		t.Run("a running command is use", func(t *testing.T) {
			id := Sandbox(t, c, idling(60))
			ran := make(chan api.ExecOut, 1)
			go func() { ran <- Exec(t, c, id, "touch begun; until [ -e go ]; do sleep 0.02; done; echo went") }()
			eventually(t, func() bool { return Code(t, c, api.StatFile, api.FileStatIn{FileIn: file(id, "begun")}) == "" })
			for range 3 {
				l.pass(time.Hour)
				l.looked(t, id, l.now().Add(-time.Minute))
			}
			if sb := l.get(t, id); sb.State != api.StateRunning {
				t.Fatalf("while it ran: %+v", sb)
			}
			Must(t, c, api.WriteFile, api.WriteFileIn{FileIn: file(id, "go")})
			if out := <-ran; out.Stdout != "went\n" {
				t.Errorf("%+v", out)
			}
			l.pass(61 * time.Second)
			l.becomes(t, id, api.StateStopped)
		})
		t.Run("a silent process in the background is none", func(t *testing.T) {
			id := Sandbox(t, c, idling(60))
			p := start(t, c, id, "exec sleep 600")
			l.pass(61 * time.Second)
			l.becomes(t, id, api.StateStopped)
			if got := Must(t, c, api.GetProcess, proc(id, p)).Process; got.State == "running" {
				t.Errorf("%+v", got)
			}
		})
		t.Run("a silent terminal is none", func(t *testing.T) {
			id := Sandbox(t, c, idling(60))
			Must(t, c, api.StartProcess, api.StartProcessIn{SandboxIn: in(id), CommandIn: api.CommandIn{Command: "exec sleep 600"}, PTY: true})
			l.pass(61 * time.Second)
			l.becomes(t, id, api.StateStopped)
		})
		t.Run("a process that writes is use", func(t *testing.T) {
			id := Sandbox(t, c, idling(60))
			start(t, c, id, "while :; do echo tick; sleep 0.02; done")
			for range 3 {
				l.pass(50 * time.Second)
				// What it writes after this is of the new time.
				n := Must(t, c, api.ListProcesses, api.ListProcessesIn{SandboxIn: in(id)}).Items[0].StdoutBytes
				eventually(t, func() bool {
					return Must(t, c, api.ListProcesses, api.ListProcessesIn{SandboxIn: in(id)}).Items[0].StdoutBytes > n
				})
			}
			if sb := l.get(t, id); sb.State != api.StateRunning {
				t.Errorf("%+v", sb)
			}
		})
		t.Run("persist and 0 are never idle", func(t *testing.T) {
			other := Sandbox(t, c, idling(60))
			never := Sandbox(t, c, idling(0))
			persists := Sandbox(t, c, idling(60))
			yes := true
			if out := Must(t, c, api.UpdateSandbox, api.UpdateSandboxIn{SandboxIn: in(persists), Persist: &yes}); !out.Sandbox.Persist {
				t.Errorf("%+v", out.Sandbox)
			}
			l.pass(12 * time.Hour)
			l.becomes(t, other, api.StateStopped) // so all were looked at
			for _, id := range []string{never, persists} {
				if sb := l.get(t, id); sb.State != api.StateRunning {
					t.Errorf("%+v", sb)
				}
			}
		})
	})
}

func TestExpiry(t *testing.T) {
	eachLife(t, nil, func(t *testing.T, l *life) {
		c := l.Client
		expiring := func(onExpiry string) api.CreateSandboxIn {
			in := idling(0)
			in.TTLSeconds, in.OnExpiry = 60, onExpiry
			return in
		}
		t.Run("stop", func(t *testing.T) {
			id := Sandbox(t, c, expiring("stop"))
			Exec(t, c, id, "echo kept > file")
			l.pass(61 * time.Second)
			if sb := l.becomes(t, id, api.StateStopped); sb.StopReason != "expired" {
				t.Errorf("%+v", sb)
			}
			out := Must(t, c, api.StartSandbox, api.SandboxWaitIn{SandboxIn: in(id), WaitIn: wait(30)})
			if left := out.Sandbox.ExpiresAt.Sub(l.now()); !out.Ready || left < 50*time.Second || left > 60*time.Second {
				t.Errorf("started again it has %v: %+v", left, out.Sandbox)
			}
			if out := Exec(t, c, id, "cat file"); out.Stdout != "kept\n" {
				t.Errorf("%+v", out)
			}
			l.pass(61 * time.Second)
			l.becomes(t, id, api.StateStopped)
		})
		t.Run("use does not lengthen it", func(t *testing.T) {
			id := Sandbox(t, c, expiring("stop"))
			ran := make(chan error, 1)
			go func() {
				_, err := client.Call(context.Background(), c, api.Exec, api.ExecIn{SandboxIn: in(id), CommandIn: api.CommandIn{Command: "touch begun; exec sleep 600"}, TimeoutSeconds: 600})
				ran <- err
			}()
			eventually(t, func() bool { return Code(t, c, api.StatFile, api.FileStatIn{FileIn: file(id, "begun")}) == "" })
			l.pass(61 * time.Second)
			l.becomes(t, id, api.StateStopped)
			<-ran
		})
		t.Run("delete", func(t *testing.T) {
			id := Sandbox(t, c, expiring("delete"))
			l.pass(61 * time.Second)
			l.gone(t, id)
		})
		t.Run("delete of a stopped one", func(t *testing.T) {
			id := Sandbox(t, c, expiring("delete"))
			l.stop(t, id)
			if l.get(t, id).State != api.StateStopped {
				t.Error("it did not stay")
			}
			l.pass(61 * time.Second)
			l.gone(t, id)
		})
		t.Run("setTimeout", func(t *testing.T) {
			id := Sandbox(t, c, idling(0))
			for _, seconds := range []int{60, 2592000, 3600} {
				out := Must(t, c, api.SetSandboxTimeout, api.SetTimeoutIn{SandboxIn: in(id), TTLSeconds: seconds})
				if left := out.Sandbox.ExpiresAt.Sub(l.now()); left > time.Duration(seconds)*time.Second || left < time.Duration(seconds-10)*time.Second {
					t.Errorf("%d s were set, %v are left", seconds, left)
				}
			}
			for _, seconds := range []int{0, 59, 2592001} {
				if code := Code(t, c, api.SetSandboxTimeout, api.SetTimeoutIn{SandboxIn: in(id), TTLSeconds: seconds}); code != "INVALID_INPUT" {
					t.Errorf("%d: %q", seconds, code)
				}
			}
			l.pass(3601 * time.Second)
			l.becomes(t, id, api.StateStopped)
		})
		t.Run("extend", func(t *testing.T) {
			id := Sandbox(t, c, idling(0))
			was := *l.get(t, id).ExpiresAt
			for by, want := range map[string]time.Duration{"90s": 90 * time.Second, "30m": 30 * time.Minute, "8h": 8 * time.Hour, "3d": 72 * time.Hour} {
				out := Must(t, c, api.ExtendSandbox, api.ExtendIn{SandboxIn: in(id), By: by})
				if got := out.Sandbox.ExpiresAt.Sub(was); got != want {
					t.Errorf("by %s: %v", by, got)
				}
				was = *out.Sandbox.ExpiresAt
			}
			for _, by := range []string{"", "0s", "1w", "-1h", "1.5h", "h", "1 h", "9999999s"} {
				if code := Code(t, c, api.ExtendSandbox, api.ExtendIn{SandboxIn: in(id), By: by}); code != "INVALID_INPUT" {
					t.Errorf("by %q: %q", by, code)
				}
			}
			if e := refusal(t, c, api.ExtendSandbox, api.ExtendIn{SandboxIn: in(id), By: "30d"}); e.Code != "LIMIT_EXCEEDED" || e.Reason != "ttl" || e.Suggestion == "" {
				t.Errorf("too far: %+v", e)
			}
			again := api.ExtendIn{WriteIn: op.WriteIn{IdempotencyKey: "extend-once"}, SandboxIn: in(id), By: "1h"}
			Must(t, c, api.ExtendSandbox, again)
			if out := Must(t, c, api.ExtendSandbox, again); !out.Replayed || out.Sandbox.ExpiresAt.Sub(was) != time.Hour {
				t.Errorf("with one key twice: %+v", out)
			}
			if got := l.get(t, id).ExpiresAt.Sub(was); got != time.Hour {
				t.Errorf("with one key twice by %v", got)
			}
		})
		t.Run("a tombstone goes after a day", func(t *testing.T) {
			id := Sandbox(t, c, idling(0))
			deletion := api.SandboxWaitIn{SandboxIn: in(id), WaitIn: wait(30)}
			Must(t, c, api.DeleteSandbox, deletion)
			l.pass(23 * time.Hour)
			if out := Must(t, c, api.DeleteSandbox, deletion); !out.Deleted {
				t.Errorf("again: %+v", out)
			}
			l.pass(2 * time.Hour)
			eventually(t, func() bool { return Code(t, c, api.DeleteSandbox, deletion) == "NOT_FOUND" })
		})
	})
}

func TestEnvironment(t *testing.T) {
	eachLife(t, nil, func(t *testing.T, l *life) {
		c := l.Client
		id := Sandbox(t, c, api.CreateSandboxIn{Env: map[string]string{"ONE": "1", "BOTH": "old"}})
		show := "echo $ONE,$BOTH,$TWO"
		old := Must(t, c, api.StartProcess, api.StartProcessIn{SandboxIn: in(id), CommandIn: api.CommandIn{Command: "read x; " + show}, OpenStdin: true}).Process.ID
		if out := Exec(t, c, id, show); out.Stdout != "1,old,\n" {
			t.Errorf("at first: %q", out.Stdout)
		}
		Must(t, c, api.UpdateSandbox, api.UpdateSandboxIn{SandboxIn: in(id), Env: map[string]string{"BOTH": "new", "TWO": "2"}})
		if out := Exec(t, c, id, show); out.Stdout != ",new,2\n" {
			t.Errorf("a new command: %q", out.Stdout)
		}
		if out := Must(t, c, api.Exec, api.ExecIn{SandboxIn: in(id), CommandIn: api.CommandIn{Command: show, Env: map[string]string{"TWO": "own"}}}); out.Stdout != ",new,own\n" {
			t.Errorf("with its own: %q", out.Stdout)
		}
		Must(t, c, api.ProcessInput, api.ProcessInputIn{ProcessIn: proc(id, old), Data: "\n"})
		if got := read(t, c, id, old, 15); got != "1,old,\n" {
			t.Errorf("a process from before: %q", got)
		}
		l.stop(t, id)
		if out := Exec(t, c, id, show); out.Stdout != ",new,2\n" {
			t.Errorf("after a boot: %q", out.Stdout)
		}
		l.stop(t, id)
		Must(t, c, api.UpdateSandbox, api.UpdateSandboxIn{SandboxIn: in(id), Env: map[string]string{}})
		if l.get(t, id).State != api.StateStopped {
			t.Error("the change started it")
		}
		if out := Exec(t, c, id, show); strings.TrimSpace(out.Stdout) != ",," {
			t.Errorf("taken away while it was stopped: %q", out.Stdout)
		}
	})
}
