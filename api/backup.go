package api

import (
	"time"

	"github.com/berthrun/berth/api/op"
)

// The states of a backup.
const (
	BackupCreating = "creating"
	BackupReady    = "ready"
	BackupFailed   = "failed"
	BackupDeleting = "deleting"
	BackupDeleted  = "deleted"
)

// Backup is a moment of a volume that is kept off its node. What it holds never changes.
type Backup struct {
	ID          string        `json:"id" doc:"bak_ and 20 characters."`
	VolumeID    string        `json:"volumeId" doc:"It may be deleted."`
	VolumeName  string        `json:"volumeName"`
	WorkspaceID string        `json:"workspaceId"`
	State       string        `json:"state" doc:"creating, ready, failed or deleting."`
	Error       string        `json:"error,omitempty" doc:"Why it failed."`
	Reason      string        `json:"reason,omitempty" doc:"The same in a word."`
	Progress    *CopyProgress `json:"progress,omitempty" doc:"Of one under way."`
	Automatic   bool          `json:"automatic" doc:"Made by the volume's policy, which deletes it too."`
	SizeGiB     int64         `json:"sizeGiB" doc:"Of the volume then."`
	Files       int64         `json:"files" doc:"Folders and links too."`
	ContentMiB  float64       `json:"contentMiB" doc:"Of all files."`
	StoredMiB   float64       `json:"storedMiB" doc:"What this one added; the rest was there from others."`
	SHA256      string        `json:"sha256,omitempty" doc:"Of all that it holds: two with the same are the same."`
	TakenAt     *time.Time    `json:"takenAt,omitempty" doc:"The moment that it holds."`
	CreatedAt   time.Time     `json:"createdAt"`
	CreatedBy   op.CreatedBy  `json:"createdBy"`
}

// BackupPolicy says when a volume is backed up by itself, and what is kept of that. A backup is kept for as long as either rule keeps it, and the newest
// always.
type BackupPolicy struct {
	Hour     int        `json:"hour" doc:"Of the day, UTC."`
	KeepDays int        `json:"keepDays,omitempty" doc:"Days that a backup is kept."`
	KeepLast int        `json:"keepLast,omitempty" doc:"How many are kept, however old."`
	NextAt   *time.Time `json:"nextAt,omitempty"`
}

// BackupIn names one backup.
type BackupIn struct {
	BackupID string `json:"backupId" id:"bak"`
}

// CreateBackupIn is the input of backups.create.
type CreateBackupIn struct {
	op.WriteIn
	op.WaitIn
	VolumeIn
}

// BackupOut is the output of writes that make one backup. Backup is there when status is done.
type BackupOut struct {
	op.WriteOut
	Status string  `json:"status" doc:"done: carried out."`
	Ready  bool    `json:"ready" doc:"Volumes can be made of it."`
	Backup *Backup `json:"backup,omitempty"`
}

// ListBackupsIn is the input of backups.list.
type ListBackupsIn struct {
	op.PageIn
	VolumeID string `json:"volumeId,omitempty" id:"vol" doc:"Only those of it."`
	Scope    string `json:"scope,omitempty" enum:"mine,all" default:"mine" doc:"mine: made by this credential's principal. all: everything you may see."`
}

// ListBackupsOut is the output of backups.list.
type ListBackupsOut struct {
	op.PageOut
	Items []Backup `json:"items"`
}

// GetBackupOut is the output of backups.get.
type GetBackupOut struct {
	Backup Backup `json:"backup"`
}

// DeleteBackupIn is the input of backups.delete.
type DeleteBackupIn struct {
	op.WriteIn
	op.WaitIn
	BackupIn
}

// DeleteBackupOut is the output of backups.delete.
type DeleteBackupOut struct {
	op.WriteOut
	BackupID string `json:"backupId"`
	Deleted  bool   `json:"deleted" doc:"False: it is still going away and needs no further call."`
}

// BackupPolicyIn is the input of backups.policy.
type BackupPolicyIn struct {
	op.WriteIn
	VolumeIn
	Enabled  *bool `json:"enabled,omitempty" default:"true" doc:"False ends it; what was made stays."`
	Hour     int   `json:"hour,omitempty" min:"0" max:"23" default:"0" doc:"Of the day, UTC."`
	KeepDays int   `json:"keepDays,omitempty" min:"1" max:"3650" doc:"Days that a backup is kept; 7 where keepLast is absent too."`
	KeepLast int   `json:"keepLast,omitempty" min:"1" max:"1000" doc:"How many are kept, however old."`
}

// BackupPolicyOut is the output of backups.policy. Policy is there when status is done and there is one.
type BackupPolicyOut struct {
	op.WriteOut
	Status   string        `json:"status" doc:"done: carried out."`
	VolumeID string        `json:"volumeId"`
	Policy   *BackupPolicy `json:"policy,omitempty"`
}

// The operations on backups.
var (
	CreateBackup = op.Def[CreateBackupIn, BackupOut]{
		Name: "backups.create", Route: "POST /v1/volumes/{volumeId}/backups", Action: "compute:backups:create", Tool: "volume_backups", Verb: "create",
		Hints: op.Write | op.Idempotent | op.Creates, Toolset: SetVolumes, Title: "Back a volume up", Status: 201,
		Doc: "Keeps what is on a volume now, off its node. After the first only what changed is stored. Sandboxes that write to it stand still for a moment.",
	}
	ListBackups = op.Def[ListBackupsIn, ListBackupsOut]{
		Name: "backups.list", Route: "GET /v1/backups", Action: "compute:backups:read", Tool: "volume_backups", Verb: "list",
		Hints: op.Read | op.Idempotent, Toolset: SetVolumes, Title: "List backups",
		Doc: "Lists backups, newest first, those of deleted volumes too.",
	}
	GetBackup = op.Def[BackupIn, GetBackupOut]{
		Name: "backups.get", Route: "GET /v1/backups/{backupId}", Action: "compute:backups:read", Tool: "volume_backups", Verb: "get",
		Hints: op.Read | op.Idempotent, Toolset: SetVolumes, Title: "Read a backup",
		Doc: "Gives one backup with its state, sizes and checksum.",
	}
	DeleteBackup = op.Def[DeleteBackupIn, DeleteBackupOut]{
		Name: "backups.delete", Route: "DELETE /v1/backups/{backupId}", Action: "compute:backups:delete", Tool: "volume_backups", Verb: "delete",
		Hints: op.Write | op.Idempotent | op.Destructive, Toolset: SetVolumes, Title: "Delete a backup",
		Doc: "Deletes a backup for good. Volumes made of it and other backups stay whole. Deleting it again succeeds.",
	}
	SetBackupPolicy = op.Def[BackupPolicyIn, BackupPolicyOut]{
		Name: "backups.policy", Route: "PUT /v1/volumes/{volumeId}/backups/policy", Action: "compute:backups:policy", Tool: "volume_backups", Verb: "policy",
		Hints: op.Write | op.Idempotent, Toolset: SetVolumes, Title: "Back a volume up daily",
		Doc: "Has a volume backed up every day at an hour, and old backups of that deleted.",
	}
)
