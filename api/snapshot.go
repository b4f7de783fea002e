package api

import (
	"time"

	"github.com/berthrun/berth/api/op"
)

// The states of a snapshot.
const (
	SnapshotCreating = "creating"
	SnapshotReady    = "ready"
	SnapshotFailed   = "failed"
	SnapshotDeleting = "deleting"
	SnapshotDeleted  = "deleted"
)

// What a snapshot keeps.
const (
	ModeMemory = "memory"
	ModeDisk   = "disk"
)

// Snapshot is a moment of a sandbox that is kept. What it holds never changes.
type Snapshot struct {
	ID             string            `json:"id" doc:"snap_ and 20 characters."`
	Name           string            `json:"name,omitempty" doc:"Unique in the workspace."`
	State          string            `json:"state" doc:"creating, ready, failed, deleting."`
	Error          string            `json:"error,omitempty" doc:"Why it failed."`
	Mode           string            `json:"mode" doc:"memory or disk."`
	SandboxID      string            `json:"sandboxId" doc:"It may be deleted."`
	Template       string            `json:"template"`
	Image          string            `json:"image,omitempty"`
	WorkspaceID    string            `json:"workspaceId"`
	Resources      Resources         `json:"resources"`
	Network        Network           `json:"network"`
	Metadata       map[string]string `json:"metadata" doc:"Your labels."`
	DiskMiB        float64           `json:"diskMiB"`
	MemoryMiB      float64           `json:"memoryMiB"`
	Stored         bool              `json:"stored" doc:"Off its node too."`
	WithoutVolumes []string          `json:"withoutVolumes,omitempty"`
	CreatedAt      time.Time         `json:"createdAt"`
	TakenAt        *time.Time        `json:"takenAt,omitempty"`
	CreatedBy      op.CreatedBy      `json:"createdBy"`
}

// SnapshotSandboxIn is the input of sandboxes.snapshot.
type SnapshotSandboxIn struct {
	op.WriteIn
	op.WaitIn
	SandboxIn
	Mode     string            `json:"mode,omitempty" enum:"memory,disk" doc:"memory keeps processes too, disk only files. memory by default, but of a stopped one."`
	Name     string            `json:"name,omitempty" pattern:"^[a-z0-9][a-z0-9._-]{0,62}$"`
	Metadata map[string]string `json:"metadata,omitempty" maxprops:"64" doc:"Your labels."`
}

// SnapshotOut is the output of writes that make or change one snapshot. Snapshot is there when status is done.
type SnapshotOut struct {
	op.WriteOut
	Status   string    `json:"status" doc:"done: carried out."`
	Ready    bool      `json:"ready" doc:"Sandboxes can be made of it."`
	Snapshot *Snapshot `json:"snapshot,omitempty"`
	Message  string    `json:"message,omitempty"`
}

// SnapshotIn names one snapshot.
type SnapshotIn struct {
	SnapshotID string `json:"snapshotId" id:"snap"`
}

// ListSnapshotsIn is the input of snapshots.list.
type ListSnapshotsIn struct {
	op.PageIn
	SandboxID string            `json:"sandboxId,omitempty" id:"sbx" doc:"Only those made of it."`
	Name      string            `json:"name,omitempty" maxlen:"63"`
	Mode      string            `json:"mode,omitempty" enum:"memory,disk" doc:"Of this kind."`
	Metadata  map[string]string `json:"metadata,omitempty" maxprops:"16" doc:"Labels that it must have, all of them."`
	Scope     string            `json:"scope,omitempty" enum:"mine,all" default:"mine" doc:"mine: made by this credential's principal. all: everything you may see."`
}

// ListSnapshotsOut is the output of snapshots.list.
type ListSnapshotsOut struct {
	op.PageOut
	Items []Snapshot `json:"items"`
}

// GetSnapshotOut is the output of snapshots.get.
type GetSnapshotOut struct {
	Snapshot Snapshot `json:"snapshot"`
}

// UpdateSnapshotIn is the input of snapshots.update. What is left out stays.
type UpdateSnapshotIn struct {
	op.WriteIn
	SnapshotIn
	Name     *string           `json:"name,omitempty" pattern:"^([a-z0-9][a-z0-9._-]{0,62})?$" doc:"Empty takes the name away."`
	Metadata map[string]string `json:"metadata,omitzero" maxprops:"64" doc:"Replaces all labels."`
}

// DeleteSnapshotIn is the input of snapshots.delete.
type DeleteSnapshotIn struct {
	op.WriteIn
	op.WaitIn
	SnapshotIn
}

// DeleteSnapshotOut is the output of snapshots.delete.
type DeleteSnapshotOut struct {
	op.WriteOut
	SnapshotID string `json:"snapshotId"`
	Deleted    bool   `json:"deleted" doc:"False: it is still going away and needs no further call."`
}

// The operations on snapshots.
var (
	SnapshotSandbox = op.Def[SnapshotSandboxIn, SnapshotOut]{
		Name: "sandboxes.snapshot", Route: "POST /v1/sandboxes/{sandboxId}/snapshots", Action: "compute:sandboxes:snapshot", Tool: "snapshot_sandbox",
		Hints: op.Write | op.Idempotent | op.Creates, Toolset: SetSandboxes, Title: "Take a snapshot", Status: 201,
		Doc: "Keeps a sandbox as it is now under an id of its own, which outlives the sandbox. create_sandbox with snapshotId makes sandboxes of it.",
	}
	ListSnapshots = op.Def[ListSnapshotsIn, ListSnapshotsOut]{
		Name: "snapshots.list", Route: "GET /v1/snapshots", Action: "compute:snapshots:read", Tool: "list_snapshots",
		Hints: op.Read | op.Idempotent, Toolset: SetTemplates, Title: "List snapshots",
		Doc: "Lists snapshots, newest first, those of deleted sandboxes too.",
	}
	GetSnapshot = op.Def[SnapshotIn, GetSnapshotOut]{
		Name: "snapshots.get", Route: "GET /v1/snapshots/{snapshotId}", Action: "compute:snapshots:read", Tool: "get_snapshot",
		Hints: op.Read | op.Idempotent, Toolset: SetTemplates, Title: "Read a snapshot",
		Doc: "Gives one snapshot with its state, mode, size and labels.",
	}
	UpdateSnapshot = op.Def[UpdateSnapshotIn, SnapshotOut]{
		Name: "snapshots.update", Route: "PATCH /v1/snapshots/{snapshotId}", Action: "compute:snapshots:update", Tool: "update_snapshot",
		Hints: op.Write | op.Idempotent, Toolset: SetTemplates, Title: "Change a snapshot",
		Doc: "Changes a snapshot's name and labels. What is left out stays as it is.",
	}
	DeleteSnapshot = op.Def[DeleteSnapshotIn, DeleteSnapshotOut]{
		Name: "snapshots.delete", Route: "DELETE /v1/snapshots/{snapshotId}", Action: "compute:snapshots:delete", Tool: "delete_snapshot",
		Hints: op.Write | op.Idempotent | op.Destructive, Toolset: SetTemplates, Title: "Delete a snapshot",
		Doc: "Deletes a snapshot for good. Sandboxes made of it go on. Deleting it again succeeds.",
	}
)
