package xtest

import (
	"context"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/berthrun/berth/api"
	"github.com/berthrun/berth/api/op"
	"github.com/berthrun/berth/client"
	"github.com/berthrun/berth/internal/runtime/fake"
)

// again repeats a call with its key until it is carried out.
func again[In, Out any](t *testing.T, c *client.Client, call func(ctx context.Context, c *client.Client) (Out, error)) Out {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	for {
		out, err := call(ctx, c)
		switch code := client.CodeOf(err); {
		case err == nil:
			return out
		case ctx.Err() == nil && (code == "HOST_UNAVAILABLE" || code == "UNAVAILABLE" || code == "BUSY" || code == "TIMEOUT"):
			select {
			case <-time.After(50 * time.Millisecond):
			case <-ctx.Done():
			}
		default:
			t.Fatalf("again: %v", err)
		}
	}
}

// lifeCall is a pause, a wake, a fork into two or a snapshot of a sandbox, repeatable by its key.
func lifeCall(operation, id string, k op.WriteIn, snapshot string) func(context.Context, *client.Client) (any, error) {
	return func(ctx context.Context, c *client.Client) (any, error) {
		switch operation {
		case "pause":
			return client.Call(ctx, c, api.PauseSandbox, api.SandboxWaitIn{WriteIn: k, WaitIn: wait(30), SandboxIn: in(id)})
		case "wake":
			return client.Call(ctx, c, api.WakeSandbox, api.SandboxWaitIn{WriteIn: k, WaitIn: wait(30), SandboxIn: in(id)})
		case "fork":
			return client.Call(ctx, c, api.ForkSandbox, api.ForkSandboxIn{WriteIn: k, WaitIn: wait(30), SandboxIn: in(id), Count: 2})
		}
		return client.Call(ctx, c, api.SnapshotSandbox, api.SnapshotSandboxIn{WriteIn: k, WaitIn: wait(30), SandboxIn: in(id), Name: snapshot})
	}
}

// A server that ends in the middle of a pause, a wake, a fork or a snapshot, before the node did something or just after: the next one carries it on. It has
// happened once, nothing is lost and nothing is left.
func TestServerEndsMidway(t *testing.T) {
	for _, tt := range []struct{ method, op string }{
		{"suspend", "pause"}, {"wake", "wake"}, {"settle", "wake"}, {"save", "fork"}, {"clone", "fork"}, {"forget", "fork"}, {"save", "snapshot"},
	} {
		for _, done := range []bool{false, true} {
			when := "before "
			if done {
				when = "after "
			}
			t.Run(tt.op+" "+when+tt.method, func(t *testing.T) { midway(t, filepath.Join(t.TempDir(), "berth.db"), tt.method, tt.op, done) })
		}
	}
}

func midway(t *testing.T, url, method, operation string, done bool) {
	l := newLifeOn(t, url, fake.Config{Can: fake.Everything()}, nil)
	id := Must(t, l.Client, api.CreateSandbox, api.CreateSandboxIn{Name: "it", Resources: &api.ResourcesIn{MemoryMiB: 512}}).Sandbox.ID
	Exec(t, l.Client, id, "echo kept > file")
	p := echo(t, l, id)
	l.echoes(t, id, p, "one")
	if operation == "wake" {
		l.pause(t, id)
	}

	there := make(chan struct{})
	var once sync.Once
	l.on(func(ctx context.Context, m, _ string) error {
		if m != method {
			return nil
		}
		first := false
		once.Do(func() { first = true; close(there) })
		if !first {
			return nil
		}
		<-ctx.Done() // the server is gone
		if done {
			return nil
		}
		return ctx.Err()
	})
	defer l.well()
	k := key()
	call := lifeCall(operation, id, k, "once")
	first := l.Client
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		_, _ = call(ctx, first)
	}()
	select {
	case <-there:
	case <-time.After(30 * time.Second):
		t.Fatalf("the node was never asked to %s", method)
	}
	l.Kill()
	<-ended
	l.Serve(t)
	removed(t, l, []api.Copy{{SandboxID: id}}) // by this server, as the one before is gone
	c := l.Client
	out := again[any](t, c, call)
	switch operation {
	case "pause":
		l.deep(t, id, api.DepthDisk)
	case "wake":
		l.becomes(t, id, api.StateRunning)
	case "fork":
		made := out.(api.ForkSandboxOut)
		removed(t, l, made.Items)
		if made.Made != 2 || len(made.Items) != 2 {
			t.Errorf("%+v", made)
		}
		for _, one := range made.Items {
			if ran := Exec(t, c, one.SandboxID, "cat file"); ran.Stdout != "kept\n" {
				t.Errorf("a copy: %+v", ran)
			}
		}
		if all := Must(t, c, api.ListSandboxes, api.ListSandboxesIn{}).Items; len(all) != 3 {
			t.Errorf("%d sandboxes", len(all))
		}
		l.noSaves(t)
	case "snapshot":
		if all := Must(t, c, api.ListSnapshots, api.ListSnapshotsIn{}).Items; len(all) != 1 || all[0].State != api.SnapshotReady || all[0].ID != out.(api.SnapshotOut).Snapshot.ID {
			t.Errorf("%+v", all)
		}
	}
	if ran := Exec(t, c, id, "cat file"); ran.Stdout != "kept\n" || ran.Woke == "boot" {
		t.Errorf("its file: %+v", ran)
	}
	l.echoes(t, id, p, "two")
	if code := Code(t, c, api.SnapshotSandbox, api.SnapshotSandboxIn{SandboxIn: in(id), Mode: api.ModeDisk}); code != "" {
		t.Errorf("it is still held: %s", code)
	}
}
