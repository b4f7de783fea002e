package xtest

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/berthrun/berth/api"
	"github.com/berthrun/berth/api/op"
	"github.com/berthrun/berth/client"
	"github.com/berthrun/berth/internal/id"
)

// chaosRounds is how often each operation is cut off by each death.
const chaosRounds = 20

// TestKilledAtAnyMoment kills the server or berth-runtime at random points of calls. What was acknowledged is there, a repeated call has one effect, nothing is
// left over, and a process that was started before goes on all the while.
func TestKilledAtAnyMoment(t *testing.T) {
	t.Parallel() // it waits more than it works
	if testing.Short() {
		t.Skip("it takes minutes")
	}
	r := StartReal(t)
	witness := Sandbox(t, r.Client, api.CreateSandboxIn{Name: "witness", TTLSeconds: 7200, IdlePauseSeconds: new(int)})
	clock := start(t, r.Client, witness, "i=0; while true; do i=$((i+1)); echo $i; sleep 0.2; done")

	for _, death := range []struct {
		of   string
		kill func()
	}{{"server", func() { r.Kill(); r.Serve() }}, {"runtime", r.KillRuntime}} {
		for _, c := range []struct {
			name string
			long time.Duration // the moment of death is anywhere in this time
			try  func(t *testing.T, r *Real, witness string, during func(call func() error))
		}{
			{"create", 900 * time.Millisecond, chaosCreate},
			{"exec", 150 * time.Millisecond, chaosExec},
			{"write", 60 * time.Millisecond, chaosWrite},
			{"delete", 400 * time.Millisecond, chaosDelete},
		} {
			t.Run(death.of+" during "+c.name, func(t *testing.T) {
				for range chaosRounds {
					c.try(t, r, witness, func(call func() error) {
						done := make(chan error, 1)
						go func() { done <- call() }()
						time.Sleep(rand.N(c.long)) //nolint:gosec // any moment will do
						death.kill()
						<-done
					})
					if t.Failed() {
						return
					}
				}
			})
		}
	}

	t.Run("the witness", func(t *testing.T) {
		p := Must(t, r.Client, api.GetProcess, proc(witness, clock)).Process
		if p.State != "running" {
			t.Fatalf("its process: %+v", p)
		}
		lines := strings.Fields(read(t, r.Client, witness, clock, 0))
		for i, line := range lines {
			if line != fmt.Sprint(i+1) {
				t.Fatalf("line %d of its output is %q", i+1, line)
			}
		}
		if len(lines) < 100 {
			t.Errorf("it wrote %d lines only", len(lines))
		}
	})
	t.Run("no orphan", func(t *testing.T) {
		var lived []string
		for _, sb := range Must(t, r.Client, api.ListSandboxes, api.ListSandboxesIn{PageIn: op.PageIn{Limit: 200}, Scope: "all"}).Items {
			lived = append(lived, sb.ID)
		}
		if len(lived) != 1 || lived[0] != witness {
			t.Errorf("sandboxes: %v, want only %s", lived, witness)
		}
		for _, p := range r.Processes() {
			if i := strings.Index(p, "sbx_"); i >= 0 && !strings.Contains(p, witness) {
				t.Errorf("a process of a deleted sandbox: %s", p)
			}
		}
	})
}

// settled repeats a call with its key until it is carried out: the server or the runtime may just be coming back.
func settled[In, Out any](t *testing.T, r *Real, def op.Def[In, Out], in In) Out {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	for {
		out, err := client.Call(ctx, r.Client, def, in)
		switch code := client.CodeOf(err); {
		case err == nil:
			return out
		case ctx.Err() == nil && (code == "HOST_UNAVAILABLE" || code == "UNAVAILABLE" || code == "BUSY" || code == "TIMEOUT"):
			time.Sleep(50 * time.Millisecond)
		default:
			t.Fatalf("%s again: %v", def.Name, err)
		}
	}
}

func once(c *client.Client, do func(ctx context.Context) error) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	return do(ctx)
}

func key() op.WriteIn { return op.WriteIn{IdempotencyKey: id.New("chaos")} }

func chaosCreate(t *testing.T, r *Real, _ string, during func(func() error)) {
	want := api.CreateSandboxIn{WriteIn: key(), WaitIn: wait(30), Resources: &api.ResourcesIn{MemoryMiB: 256}}
	want.Metadata = map[string]string{"key": want.IdempotencyKey}
	c := r.Client
	var first api.CreateSandboxOut
	var err error
	during(func() error {
		return once(c, func(ctx context.Context) error {
			first, err = client.Call(ctx, c, api.CreateSandbox, want)
			return err
		})
	})
	again := settled(t, r, api.CreateSandbox, want)
	if err == nil && first.Sandbox.ID != again.Sandbox.ID {
		t.Errorf("acknowledged %s, and then %s", first.Sandbox.ID, again.Sandbox.ID)
	}
	found := settled(t, r, api.ListSandboxes, api.ListSandboxesIn{Metadata: want.Metadata}).Items
	if len(found) != 1 {
		t.Errorf("%d sandboxes of one key", len(found))
	}
	out := settled(t, r, api.Exec, api.ExecIn{WriteIn: key(), SandboxIn: in(again.Sandbox.ID), CommandIn: api.CommandIn{Command: "echo alive"}})
	if out.Stdout != "alive\n" {
		t.Errorf("the sandbox does not work: %+v", out)
	}
	settled(t, r, api.DeleteSandbox, api.SandboxWaitIn{WriteIn: key(), WaitIn: wait(30), SandboxIn: in(again.Sandbox.ID)})
}

func chaosExec(t *testing.T, r *Real, witness string, during func(func() error)) {
	k := key()
	want := api.ExecIn{WriteIn: k, SandboxIn: in(witness), CommandIn: api.CommandIn{Command: "echo ran >> " + k.IdempotencyKey + "; echo said"}}
	c := r.Client
	during(func() error {
		return once(c, func(ctx context.Context) error {
			_, err := client.Call(ctx, c, api.Exec, want)
			return err
		})
	})
	if out := settled(t, r, api.Exec, want); out.Stdout != "said\n" || out.ExitCode == nil || *out.ExitCode != 0 {
		t.Errorf("the result: %+v", out)
	}
	got := settled(t, r, api.ReadFile, api.ReadFileIn{FileIn: file(witness, k.IdempotencyKey)})
	if got.Data != "ran\n" {
		t.Errorf("it ran %d times", strings.Count(got.Data, "ran"))
	}
}

func chaosWrite(t *testing.T, r *Real, witness string, during func(func() error)) {
	k := key()
	want := api.WriteFileIn{WriteIn: k, FileIn: file(witness, "w-"+k.IdempotencyKey), Data: "written\n", Append: true}
	c := r.Client
	during(func() error {
		return once(c, func(ctx context.Context) error {
			_, err := client.Call(ctx, c, api.WriteFile, want)
			return err
		})
	})
	settled(t, r, api.WriteFile, want)
	if got := settled(t, r, api.ReadFile, api.ReadFileIn{FileIn: want.FileIn}); got.Data != "written\n" {
		t.Errorf("the file holds %q", got.Data)
	}
}

func chaosDelete(t *testing.T, r *Real, _ string, during func(func() error)) {
	made := settled(t, r, api.CreateSandbox, api.CreateSandboxIn{WriteIn: key(), WaitIn: wait(30), Resources: &api.ResourcesIn{MemoryMiB: 256}})
	want := api.SandboxWaitIn{WriteIn: key(), WaitIn: wait(30), SandboxIn: in(made.Sandbox.ID)}
	c := r.Client
	during(func() error {
		return once(c, func(ctx context.Context) error {
			_, err := client.Call(ctx, c, api.DeleteSandbox, want)
			return err
		})
	})
	settled(t, r, api.DeleteSandbox, want)
	eventually(t, func() bool { return Code(t, r.Client, api.GetSandbox, in(made.Sandbox.ID)) == "NOT_FOUND" })
}
