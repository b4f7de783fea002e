// Package api is the contract of Berth: for every operation its input, its output and its definition, one file a product area.
//
// It is public. It holds no behaviour: services in internal/ bind the definitions, faces and the client show them.
package api

// The toolsets that group operations.
const (
	SetSandboxes = "sandboxes"
	SetProcesses = "processes"
	SetFiles     = "files"
	SetAccount   = "account"
	SetTemplates = "templates"
	SetVolumes   = "volumes"
	SetDocs      = "docs"
)

// The sandbox states that callers see.
const (
	StateCreating = "creating"
	StateRunning  = "running"
	StatePausing  = "pausing"
	StatePaused   = "paused"
	StateWaking   = "waking"
	StateStopping = "stopping"
	StateStopped  = "stopped"
	StateStarting = "starting"
	StateFailed   = "failed"
	StateDeleting = "deleting"
	StateDeleted  = "deleted"
)

const wakesDoc = " It starts a stopped or paused sandbox, which may be billed; woke then says so."
