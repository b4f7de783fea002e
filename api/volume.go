package api

import (
	"time"

	"github.com/berthrun/berth/api/op"
)

// The states of a volume.
const (
	VolumeCreating = "creating"
	VolumeReady    = "ready"
	VolumeFailed   = "failed"
	VolumeDeleting = "deleting"
	VolumeDeleted  = "deleted"
)

// Volume is a disk that outlives the sandboxes that it is in.
type Volume struct {
	ID          string             `json:"id" doc:"vol_ and 20 characters."`
	Name        string             `json:"name" doc:"Unique in the organization."`
	State       string             `json:"state" doc:"creating, ready, failed or deleting."`
	Error       string             `json:"error,omitempty" doc:"Why it failed."`
	Reason      string             `json:"reason,omitempty" doc:"The same in a word."`
	PoolID      string             `json:"poolId" doc:"Where it lies."`
	WorkspaceID string             `json:"workspaceId" doc:"That it was made in."`
	SizeGiB     int64              `json:"sizeGiB"`
	UsedMiB     *float64           `json:"usedMiB,omitempty" doc:"As last measured."`
	MeasuredAt  *time.Time         `json:"measuredAt,omitempty"`
	Attachments []VolumeAttachment `json:"attachments" doc:"The sandboxes that have it."`
	FromBackup  string             `json:"fromBackup,omitempty" doc:"The backup that it was made of."`
	Progress    *CopyProgress      `json:"progress,omitempty" doc:"Of a restore under way."`
	Backups     *BackupPolicy      `json:"backups,omitempty" doc:"Its daily backups."`
	CreatedAt   time.Time          `json:"createdAt"`
	CreatedBy   op.CreatedBy       `json:"createdBy"`
}

// VolumeAttachment is a volume's place in one sandbox.
type VolumeAttachment struct {
	SandboxID string `json:"sandboxId"`
	Path      string `json:"path"`
	ReadOnly  bool   `json:"readOnly"`
}

// CopyProgress says how far a copy is.
type CopyProgress struct {
	DoneMiB  float64 `json:"doneMiB"`
	TotalMiB float64 `json:"totalMiB" doc:"About; 0 where unknown."`
	Percent  int     `json:"percent"`
}

// VolumeMount asks for a volume in a sandbox.
type VolumeMount struct {
	Volume   string `json:"volume" minlen:"1" maxlen:"63" doc:"Name or id."`
	Path     string `json:"path,omitempty" maxlen:"1024" doc:"/volumes/NAME where absent."`
	ReadOnly bool   `json:"readOnly,omitempty"`
}

// SandboxVolume is a volume as a sandbox has it.
type SandboxVolume struct {
	VolumeID string `json:"volumeId"`
	Name     string `json:"name"`
	Path     string `json:"path"`
	ReadOnly bool   `json:"readOnly"`
}

// VolumeIn names one volume.
type VolumeIn struct {
	VolumeID string `json:"volumeId" id:"vol"`
}

// CreateVolumeIn is the input of volumes.create.
type CreateVolumeIn struct {
	op.WriteIn
	op.WaitIn
	Name       string `json:"name" pattern:"^[a-z0-9][a-z0-9._-]{0,62}$" doc:"Unique in the organization, such as agent-notes."`
	SizeGiB    int64  `json:"sizeGiB,omitempty" min:"1" max:"16384" doc:"Needed, but with fromBackup: then as large as the volume was."`
	FromBackup string `json:"fromBackup,omitempty" id:"bak" doc:"Holds what this backup does."`
	PoolID     string `json:"poolId,omitempty" id:"pool" doc:"Where it lies for good; the only pool where absent."`
}

// VolumeOut is the output of writes that make or change one volume. Volume is there when status is done.
type VolumeOut struct {
	op.WriteOut
	Status string  `json:"status" doc:"done: carried out."`
	Ready  bool    `json:"ready" doc:"Sandboxes can have it."`
	Volume *Volume `json:"volume,omitempty"`
}

// ListVolumesIn is the input of volumes.list.
type ListVolumesIn struct {
	op.PageIn
	Name   string `json:"name,omitempty" maxlen:"63"`
	PoolID string `json:"poolId,omitempty" id:"pool" doc:"Only those there."`
	Scope  string `json:"scope,omitempty" enum:"mine,all" default:"mine" doc:"mine: made by this credential's principal. all: everything you may see."`
}

// ListVolumesOut is the output of volumes.list.
type ListVolumesOut struct {
	op.PageOut
	Items []Volume `json:"items"`
}

// GetVolumeOut is the output of volumes.get.
type GetVolumeOut struct {
	Volume Volume `json:"volume"`
}

// ResizeVolumeIn is the input of volumes.resize.
type ResizeVolumeIn struct {
	op.WriteIn
	VolumeIn
	SizeGiB int64 `json:"sizeGiB" min:"1" max:"16384" doc:"At least what it has."`
}

// AttachVolumeIn is the input of volumes.attach.
type AttachVolumeIn struct {
	op.WriteIn
	VolumeIn
	SandboxIn
	Path     string `json:"path,omitempty" maxlen:"1024" doc:"/volumes/NAME where absent."`
	ReadOnly bool   `json:"readOnly,omitempty" doc:"Others may have it too, if they only read as well."`
}

// DetachVolumeIn is the input of volumes.detach.
type DetachVolumeIn struct {
	op.WriteIn
	VolumeIn
	SandboxIn
}

// DeleteVolumeIn is the input of volumes.delete.
type DeleteVolumeIn struct {
	op.WriteIn
	op.WaitIn
	VolumeIn
}

// DeleteVolumeOut is the output of volumes.delete.
type DeleteVolumeOut struct {
	op.WriteOut
	VolumeID string `json:"volumeId"`
	Deleted  bool   `json:"deleted" doc:"False: it is still going away and needs no further call."`
}

// The operations on volumes.
var (
	ListVolumes = op.Def[ListVolumesIn, ListVolumesOut]{
		Name: "volumes.list", Route: "GET /v1/volumes", Action: "compute:volumes:read", Tool: "list_volumes",
		Hints: op.Read | op.Idempotent, Toolset: SetVolumes, Title: "List volumes",
		Doc: "Lists volumes, newest first, with how much of each is used and which sandboxes have it.",
	}
	GetVolume = op.Def[VolumeIn, GetVolumeOut]{
		Name: "volumes.get", Route: "GET /v1/volumes/{volumeId}", Action: "compute:volumes:read", Tool: "get_volume",
		Hints: op.Read | op.Idempotent, Toolset: SetVolumes, Title: "Read a volume",
		Doc: "Gives one volume with its size, use, sandboxes and daily backups.",
	}
	CreateVolume = op.Def[CreateVolumeIn, VolumeOut]{
		Name: "volumes.create", Route: "POST /v1/volumes", Action: "compute:volumes:create", Tool: "create_volume",
		Hints: op.Write | op.Idempotent | op.Creates, Toolset: SetVolumes, Title: "Create a volume", Status: 201,
		Doc: "Makes a disk that outlives sandboxes, such as an agent's memory, empty or from a backup. It counts in full until it is deleted. create_sandbox takes it in volumes.",
	}
	ResizeVolume = op.Def[ResizeVolumeIn, VolumeOut]{
		Name: "volumes.resize", Route: "PATCH /v1/volumes/{volumeId}", Action: "compute:volumes:update", Tool: "resize_volume",
		Hints: op.Write | op.Idempotent, Toolset: SetVolumes, Title: "Grow a volume",
		Doc: "Makes a volume larger, never smaller. Sandboxes see it at their next boot.",
	}
	AttachVolume = op.Def[AttachVolumeIn, VolumeOut]{
		Name: "volumes.attach", Route: "POST /v1/volumes/{volumeId}/sandboxes", Action: "compute:volumes:attach", Tool: "attach_volume",
		Hints: op.Write | op.Idempotent, Toolset: SetVolumes, Title: "Attach a volume",
		Doc: "Puts a volume into a stopped sandbox, which has it from its next boot on. One sandbox may write to it, or any number may read it.",
	}
	DetachVolume = op.Def[DetachVolumeIn, VolumeOut]{
		Name: "volumes.detach", Route: "DELETE /v1/volumes/{volumeId}/sandboxes/{sandboxId}", Action: "compute:volumes:attach", Tool: "detach_volume",
		Hints: op.Write | op.Idempotent, Toolset: SetVolumes, Title: "Detach a volume",
		Doc: "Takes a volume out of a stopped sandbox. What is on it stays.",
	}
	DeleteVolume = op.Def[DeleteVolumeIn, DeleteVolumeOut]{
		Name: "volumes.delete", Route: "DELETE /v1/volumes/{volumeId}", Action: "compute:volumes:delete", Tool: "delete_volume",
		Hints: op.Write | op.Idempotent | op.Destructive, Toolset: SetVolumes, Title: "Delete a volume",
		Doc: "Deletes a volume that no sandbox has and wipes what is on it. Its backups stay. Deleting it again succeeds.",
	}
)
