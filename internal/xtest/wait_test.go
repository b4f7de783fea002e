package xtest

import (
	"testing"

	"github.com/berthrun/berth/api"
)

// A call that does not wait answers with the sandbox as it is: what it began goes on.
func TestNotWaiting(t *testing.T) {
	eachLife(t, nil, func(t *testing.T, l *life) {
		c := l.Client
		made := Must(t, c, api.CreateSandbox, api.CreateSandboxIn{Name: "now", WaitIn: wait(0)})
		if made.Sandbox == nil || made.Sandbox.Name != "now" {
			t.Fatalf("create: %+v", made)
		}
		id := made.Sandbox.ID
		l.becomes(t, id, api.StateRunning)
		if there := Must(t, c, api.CreateSandbox, api.CreateSandboxIn{Name: "now", GetOrCreate: true, WaitIn: wait(0)}); there.Sandbox == nil || there.Sandbox.ID != id {
			t.Errorf("getOrCreate: %+v", there)
		}
		Must(t, c, api.StopSandbox, api.SandboxWaitIn{SandboxIn: in(id), WaitIn: wait(0)})
		l.becomes(t, id, api.StateStopped)
		Must(t, c, api.StartSandbox, api.SandboxWaitIn{SandboxIn: in(id), WaitIn: wait(0)})
		l.becomes(t, id, api.StateRunning)
		Must(t, c, api.DeleteSandbox, api.SandboxWaitIn{SandboxIn: in(id), WaitIn: wait(0)})
		l.gone(t, id)
	})
}
