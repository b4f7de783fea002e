package xtest

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/berthrun/berth/api"
	"github.com/berthrun/berth/client"
)

// canary is a sandbox beside the one that a test mistreats: it has to answer all the while.
type canary struct {
	t    *testing.T
	r    *Real
	id   string
	stop chan struct{}
	over chan struct{}
	runs atomic.Int64
}

// watchCanary has a second sandbox run a command again and again until the test ends. Each has to succeed within the patience.
func watchCanary(t *testing.T, r *Real, patience time.Duration) *canary {
	t.Helper()
	c := &canary{t: t, r: r, id: Sandbox(t, r.Client, api.CreateSandboxIn{Resources: &api.ResourcesIn{MemoryMiB: 256}}), stop: make(chan struct{}), over: make(chan struct{})}
	boot := Must(t, r.Client, api.GetSandbox, in(c.id)).Sandbox.Generation
	go func() {
		defer close(c.over)
		for n := 0; ; n++ {
			if err := c.sing(n, patience); err != nil {
				t.Errorf("the canary: %v", err)
				return
			}
			c.runs.Add(1)
			select {
			case <-c.stop:
				return
			case <-time.After(200 * time.Millisecond):
			}
		}
	}()
	t.Cleanup(func() {
		close(c.stop)
		<-c.over
		if sb := Must(t, r.Client, api.GetSandbox, in(c.id)).Sandbox; sb.State != api.StateRunning || sb.Generation != boot {
			t.Errorf("the canary's sandbox is %s (%s), generation %d, was %d", sb.State, sb.StopReason, sb.Generation, boot)
		}
	})
	return c
}

func (c *canary) sing(n int, patience time.Duration) error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	want := fmt.Sprintf("song %d\n", n)
	out, err := client.Call(ctx, c.r.Client, api.Exec, api.ExecIn{SandboxIn: in(c.id), CommandIn: api.CommandIn{Command: "echo " + strings.TrimSpace(want)}})
	if err == nil && out.Stdout != want {
		err = fmt.Errorf("it said %q", out.Stdout)
	}
	return err
}

// fault calls an operation and gives its error as the client has it; nil where it succeeds.
func fault[T any](t testing.TB, call func(ctx context.Context) (T, error)) *client.Error {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	_, err := call(ctx)
	if err == nil {
		return nil
	}
	e, ok := errors.AsType[*client.Error](err)
	if !ok {
		t.Fatalf("not an error with a code: %v", err)
	}
	return e
}

// run runs a command as given and gives its result or the error.
func run(t testing.TB, c *client.Client, sandbox string, cmd api.CommandIn, timeout int) (api.ExecOut, *client.Error) {
	t.Helper()
	var out api.ExecOut
	e := fault(t, func(ctx context.Context) (api.ExecOut, error) {
		var err error
		out, err = client.Call(ctx, c, api.Exec, api.ExecIn{SandboxIn: in(sandbox), CommandIn: cmd, TimeoutSeconds: timeout})
		return out, err
	})
	return out, e
}

// writeFile writes a file and gives the error.
func writeFile(t testing.TB, r *Real, at api.FileIn, data string) (out api.WriteFileOut, e *client.Error) {
	t.Helper()
	e = fault(t, func(ctx context.Context) (api.WriteFileOut, error) {
		var err error
		out, err = client.Call(ctx, r.Client, api.WriteFile, api.WriteFileIn{FileIn: at, Data: data})
		return out, err
	})
	return out, e
}

// pid is the server's.
func (r *Real) pid() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.cmd.Process.Pid
}
