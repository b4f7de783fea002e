package api

import "github.com/berthrun/berth/api/op"

// The depths of a paused sandbox.
const (
	DepthFrozen = "frozen"
	DepthDisk   = "disk"
)

// ForkSandboxIn is the input of sandboxes.fork.
type ForkSandboxIn struct {
	op.WriteIn
	op.WaitIn
	SandboxIn
	Count int      `json:"count,omitempty" min:"1" max:"100" default:"1"`
	Names []string `json:"names,omitempty" maxitems:"100" pattern:"^[a-z0-9][a-z0-9._-]{0,62}$" doc:"Of each; else the sandbox's with -1, -2, …"`
}

// ForkSandboxOut is the output of sandboxes.fork. Items is there when status is done.
type ForkSandboxOut struct {
	op.WriteOut
	Status         string   `json:"status" doc:"done: carried out."`
	Ready          bool     `json:"ready" doc:"All copies answer commands."`
	Made           int      `json:"made" doc:"How many did not fail."`
	Items          []Copy   `json:"items,omitempty"`
	WithoutVolumes []string `json:"withoutVolumes,omitempty"`
	Message        string   `json:"message,omitempty"`
}

// Copy is one copy that a fork made.
type Copy struct {
	SandboxID string `json:"sandboxId"`
	Name      string `json:"name,omitempty"`
	State     string `json:"state"`
	Ready     bool   `json:"ready"`
	Error     string `json:"error,omitempty" doc:"Why it failed."`
}

// The operations that pause, wake and copy sandboxes.
var (
	PauseSandbox = op.Def[SandboxWaitIn, SandboxOut]{
		Name: "sandboxes.pause", Route: "POST /v1/sandboxes/{sandboxId}/pause", Action: "compute:sandboxes:pause", Tool: "pause_sandbox",
		Hints: op.Write | op.Idempotent, Toolset: SetSandboxes, Title: "Pause a sandbox",
		Doc: "Puts the sandbox to sleep with its files, memory and processes. Use it, or resume_sandbox, to go on.",
	}
	WakeSandbox = op.Def[SandboxWaitIn, SandboxOut]{
		Name: "sandboxes.wake", Route: "POST /v1/sandboxes/{sandboxId}/wake", Action: "compute:sandboxes:wake", Tool: "resume_sandbox",
		Hints: op.Write | op.Idempotent | op.Wakes, Toolset: SetSandboxes, Title: "Resume a sandbox",
		Doc: "Wakes a paused sandbox with its memory and processes, which may be billed. It never boots afresh instead: without the memory it refuses.",
	}
	ForkSandbox = op.Def[ForkSandboxIn, ForkSandboxOut]{
		Name: "sandboxes.fork", Route: "POST /v1/sandboxes/{sandboxId}/fork", Action: "compute:sandboxes:fork", Tool: "fork_sandbox",
		Hints: op.Write | op.Creates | op.OpenWorld, Toolset: SetSandboxes, Title: "Fork a sandbox",
		Doc: "Makes copies of a running or paused sandbox as it is now, with memory and processes, each with its own disk, address and name. The original stays as it is.",
	}
)
