package xtest

import (
	"context"
	"testing"
	"time"

	"github.com/berthrun/berth/api"
	"github.com/berthrun/berth/api/op"
	"github.com/berthrun/berth/client"
)

// Must calls an operation that has to succeed.
func Must[In, Out any](t testing.TB, c *client.Client, def op.Def[In, Out], in In) Out {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	out, err := client.Call(ctx, c, def, in)
	if err != nil {
		t.Fatalf("%s: %v", def.Name, err)
	}
	return out
}

// Code calls an operation and gives the code of its error, empty where it succeeds.
func Code[In, Out any](t testing.TB, c *client.Client, def op.Def[In, Out], in In) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	_, err := client.Call(ctx, c, def, in)
	if err == nil {
		return ""
	}
	return client.CodeOf(err)
}

// Sandbox creates a sandbox and deletes it when the test ends.
func Sandbox(t testing.TB, c *client.Client, in api.CreateSandboxIn) string {
	t.Helper()
	if in.Resources == nil {
		in.Resources = &api.ResourcesIn{MemoryMiB: 512}
	}
	out := Must(t, c, api.CreateSandbox, in)
	if !out.Ready || out.Sandbox == nil {
		t.Fatalf("create: not ready: %+v", out)
	}
	id := out.Sandbox.ID
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if _, err := client.Call(ctx, c, api.DeleteSandbox, api.SandboxWaitIn{SandboxIn: api.SandboxIn{SandboxID: id}}); err != nil && client.CodeOf(err) != "NOT_FOUND" {
			t.Errorf("delete: %v", err)
		}
	})
	return id
}

// Exec runs a shell command that has to end by itself.
func Exec(t testing.TB, c *client.Client, sandbox, command string) api.ExecOut {
	t.Helper()
	return Must(t, c, api.Exec, api.ExecIn{SandboxIn: in(sandbox), CommandIn: api.CommandIn{Command: command}})
}

func in(sandbox string) api.SandboxIn { return api.SandboxIn{SandboxID: sandbox} }

func file(sandbox, path string) api.FileIn { return api.FileIn{SandboxIn: in(sandbox), Path: path} }

func wait(seconds int) op.WaitIn { return op.WaitIn{WaitSeconds: &seconds} }
