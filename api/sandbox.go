package api

import (
	"time"

	"github.com/berthrun/berth/api/op"
)

// Sandbox is one sandbox as callers see it.
type Sandbox struct {
	ID               string            `json:"id" doc:"sbx_ and 20 characters."`
	Name             string            `json:"name,omitempty" doc:"Unique in the workspace."`
	State            string            `json:"state" doc:"creating, running, pausing, paused, waking, stopping, stopped, starting, failed or deleting."`
	Depth            string            `json:"depth,omitempty" doc:"Of a paused one: frozen in memory, or disk."`
	Ready            bool              `json:"ready" doc:"Commands and files work now without waiting."`
	Reachable        bool              `json:"reachable" doc:"False while its node is lost."`
	Template         string            `json:"template" doc:"The template it was made from; empty where it was an image."`
	Image            *SandboxImage     `json:"image,omitempty" doc:"The image it was made from."`
	WorkspaceID      string            `json:"workspaceId"`
	Resources        Resources         `json:"resources"`
	Network          Network           `json:"network"`
	Metadata         map[string]string `json:"metadata" doc:"Your labels."`
	CreatedAt        time.Time         `json:"createdAt"`
	StartedAt        *time.Time        `json:"startedAt,omitempty" doc:"Of the last boot."`
	EndedAt          *time.Time        `json:"endedAt,omitempty" doc:"When it last stopped or failed."`
	ExpiresAt        *time.Time        `json:"expiresAt,omitempty" doc:"When onExpiry happens."`
	IdlePauseSeconds int               `json:"idlePauseSeconds" doc:"0 is for ever."`
	OnIdle           string            `json:"onIdle"`
	OnExpiry         string            `json:"onExpiry"`
	AutoWake         bool              `json:"autoWake"`
	WakeOnTimers     bool              `json:"wakeOnTimers"`
	Persist          bool              `json:"persist" doc:"It never idles."`
	StopReason       string            `json:"stopReason,omitempty" doc:"Why it last stopped: requested, idle, expired, out_of_memory, guest_exited, killed, host_restarted or boot_failed."`
	PauseReason      string            `json:"pauseReason,omitempty" doc:"requested, idle or expired."`
	WakeError        string            `json:"wakeError,omitempty" doc:"Why it could not be woken."`
	WakesAt          *time.Time        `json:"wakesAt,omitempty" doc:"When a timer in it is due."`
	ForkedFrom       string            `json:"forkedFrom,omitempty"`
	SnapshotID       string            `json:"snapshotId,omitempty"`
	Error            string            `json:"error,omitempty" doc:"Why it failed."`
	Generation       int64             `json:"generation" doc:"Grows with every change of state."`
	CreatedBy        op.CreatedBy      `json:"createdBy"`
	Retention        string            `json:"retention,omitempty" doc:"Of a stopped or paused one; absent: for ever."`
	DeletesAt        *time.Time        `json:"deletesAt,omitempty" doc:"When a stopped or paused one is deleted."`
	Usage            *Usage            `json:"usage,omitempty" doc:"The latest reading of a running one."`
}

// SandboxImage is the image that a sandbox was made from.
type SandboxImage struct {
	Reference string         `json:"reference" doc:"As the create named it."`
	ImageID   string         `json:"imageId,omitempty" doc:"The version, fixed for life; absent until the registry was asked."`
	Digest    string         `json:"digest,omitempty"`
	Progress  *ImageProgress `json:"progress,omitempty" doc:"Of its pull."`
}

// Usage is one reading.
type Usage struct {
	At            time.Time `json:"at"`
	CPUPercent    float64   `json:"cpuPercent" doc:"Of one core, averaged since the reading before."`
	MemoryUsedMiB float64   `json:"memoryUsedMiB"`
	DiskUsedMiB   float64   `json:"diskUsedMiB" doc:"Of its own writes."`
}

// Resources are the limits of a sandbox.
type Resources struct {
	VCPU      float64 `json:"vcpu" doc:"CPU time a second, in cores."`
	MemoryMiB int64   `json:"memoryMiB"`
	DiskGiB   *int64  `json:"diskGiB" null:"true" doc:"Fixed for life and counted in full while stopped; null where it is unknown."`
}

// ResourcesIn asks for limits; what is left out is the template's.
type ResourcesIn struct {
	VCPU      float64 `json:"vcpu,omitempty" min:"0.1" max:"64" doc:"CPU time a second, in cores."`
	MemoryMiB int64   `json:"memoryMiB,omitempty" min:"128" max:"1048576"`
	DiskGiB   int64   `json:"diskGiB,omitempty" min:"1" max:"16384" doc:"Within the organization's limits, 10 to 30 by default."`
}

// Network is what a sandbox may reach.
type Network struct {
	Internet bool `json:"internet" doc:"Whether it reaches the internet."`
}

// CreateSandboxIn is the input of sandboxes.create.
type CreateSandboxIn struct {
	op.WriteIn
	op.WaitIn
	Template         string            `json:"template,omitempty" pattern:"^[a-zA-Z0-9][a-zA-Z0-9._:-]{0,127}$" default:"base" doc:"A template's name or id."`
	Image            string            `json:"image,omitempty" minlen:"1" maxlen:"512" doc:"Instead of template: an image of a registry such as debian:12, or an imageId."`
	SnapshotID       string            `json:"snapshotId,omitempty" id:"snap" doc:"Instead of template: comes up as this snapshot was."`
	FromDisk         bool              `json:"fromDisk,omitempty" doc:"With snapshotId: boots on its files alone."`
	Name             string            `json:"name,omitempty" pattern:"^[a-z0-9][a-z0-9._-]{0,62}$" doc:"Unique in the workspace."`
	GetOrCreate      bool              `json:"getOrCreate,omitempty" doc:"With name: gives the sandbox that has the name already, started if it was stopped or paused; a failed one is replaced."`
	TTLSeconds       int               `json:"ttlSeconds,omitempty" min:"60" max:"2592000" default:"86400" doc:"How long it lives before onExpiry happens."`
	IdlePauseSeconds *int              `json:"idlePauseSeconds,omitempty" min:"0" max:"86400" doc:"How long it may be idle before onIdle happens: 60 to 86400, or 0 for ever."`
	OnIdle           string            `json:"onIdle,omitempty" enum:"pause,stop" doc:"Both keep the files; pause keeps memory too."`
	OnExpiry         string            `json:"onExpiry,omitempty" enum:"pause,stop,delete" default:"stop"`
	AutoWake         *bool             `json:"autoWake,omitempty" default:"true" doc:"Whether commands, files and previews wake or start it."`
	WakeOnTimers     *bool             `json:"wakeOnTimers,omitempty" default:"true"`
	Env              map[string]string `json:"env,omitempty" secret:"true" maxprops:"256" doc:"Variables of every command, process and terminal in it."`
	Metadata         map[string]string `json:"metadata,omitempty" maxprops:"64" doc:"Your labels."`
	Resources        *ResourcesIn      `json:"resources,omitempty"`
	Size             string            `json:"size,omitempty" enum:"small,large" doc:"Instead of resources: small is 0.5 vCPU and 1 GiB, large 1.5 vCPU and 3 GiB."`
	Network          *NetworkIn        `json:"network,omitempty"`
	Volumes          []VolumeMount     `json:"volumes,omitempty" maxitems:"16"`
	WorkspaceID      string            `json:"workspaceId,omitempty" id:"ws" doc:"The credential's own where absent."`
}

// NetworkIn asks for a network.
type NetworkIn struct {
	Internet *bool `json:"internet,omitempty" default:"true" doc:"Whether it reaches the internet."`
}

// SandboxOut is the output of writes that make or change one sandbox. Sandbox is there when status is done.
type SandboxOut struct {
	op.WriteOut
	Status  string   `json:"status" doc:"done: carried out."`
	Ready   bool     `json:"ready" doc:"It answers commands; until then they say BUSY."`
	Woke    string   `json:"woke,omitempty" doc:"boot or memory, where it started it."`
	Sandbox *Sandbox `json:"sandbox,omitempty"`
}

// CreateSandboxOut is the output of sandboxes.create.
type CreateSandboxOut struct {
	SandboxOut
	Existed bool     `json:"existed,omitempty" doc:"getOrCreate found it."`
	Differs []string `json:"differs,omitempty" doc:"Arguments that the one found does not follow."`
}

// SandboxIn names one sandbox.
type SandboxIn struct {
	SandboxID string `json:"sandboxId" id:"sbx"`
}

// SandboxWriteIn names one sandbox in a write.
type SandboxWriteIn struct {
	op.WriteIn
	SandboxIn
}

// SandboxWaitIn names one sandbox in a write that takes time.
type SandboxWaitIn struct {
	op.WriteIn
	op.WaitIn
	SandboxIn
}

// GetSandboxOut is the output of sandboxes.get.
type GetSandboxOut struct {
	Sandbox        Sandbox         `json:"sandbox"`
	Storage        *Storage        `json:"storage,omitempty"`
	Volumes        []SandboxVolume `json:"volumes,omitempty"`
	WithoutVolumes []string        `json:"withoutVolumes,omitempty" doc:"Left out of it as a copy."`
	Lifetime       *Lifetime       `json:"lifetime,omitempty"`
	RecoveryPoint  *RecoveryPoint  `json:"recoveryPoint,omitempty"`
}

// Storage is what a sandbox's disk holds.
type Storage struct {
	DiskUsedMiB *float64   `json:"diskUsedMiB,omitempty" doc:"As last measured."`
	MeasuredAt  *time.Time `json:"measuredAt,omitempty"`
	DiskGiB     int64      `json:"diskGiB"`
}

// Lifetime is how long a sandbox has lived and has left.
type Lifetime struct {
	AgeSeconds       int64  `json:"ageSeconds"`
	UpSeconds        int64  `json:"upSeconds" doc:"Since the last boot."`
	RemainingSeconds *int64 `json:"remainingSeconds,omitempty"`
	Next             string `json:"next,omitempty" doc:"What happens then: pause, stop or delete."`
}

// RecoveryPoint is what a sandbox would come back with if it ended now.
type RecoveryPoint struct {
	Kind string     `json:"kind" doc:"disk, or memory: with processes."`
	At   *time.Time `json:"at,omitempty" doc:"Absent: now."`
}

// ListSandboxesIn is the input of sandboxes.list.
type ListSandboxesIn struct {
	op.PageIn
	State        []string          `json:"state,omitempty" maxitems:"11" enum:"creating,running,pausing,paused,waking,stopping,stopped,starting,failed,deleting"`
	Template     string            `json:"template,omitempty" maxlen:"128"`
	Name         string            `json:"name,omitempty" maxlen:"63"`
	Metadata     map[string]string `json:"metadata,omitempty" maxprops:"16" doc:"Labels that it must have, all of them."`
	StartedAfter *time.Time        `json:"startedAfter,omitempty"`
	Order        string            `json:"order,omitempty" enum:"newest,oldest" default:"newest"`
	Scope        string            `json:"scope,omitempty" enum:"mine,all" default:"mine" doc:"mine: made by this credential's principal. all: everything you may see."`
}

// ListSandboxesOut is the output of sandboxes.list.
type ListSandboxesOut struct {
	op.PageOut
	Items        []Sandbox `json:"items"`
	TotalRunning int       `json:"totalRunning" doc:"Running sandboxes in the scope, whatever the filters."`
}

// UpdateSandboxIn is the input of sandboxes.update. What is left out stays; an empty map takes all labels or variables away.
type UpdateSandboxIn struct {
	op.WriteIn
	SandboxIn
	Name             *string           `json:"name,omitempty" pattern:"^([a-z0-9][a-z0-9._-]{0,62})?$" doc:"Empty takes the name away."`
	Metadata         map[string]string `json:"metadata,omitzero" maxprops:"64" doc:"Replaces all labels."`
	Env              map[string]string `json:"env,omitzero" secret:"true" maxprops:"256" doc:"Replaces all variables, for what is started from now on."`
	AutoWake         *bool             `json:"autoWake,omitempty"`
	WakeOnTimers     *bool             `json:"wakeOnTimers,omitempty"`
	IdlePauseSeconds *int              `json:"idlePauseSeconds,omitempty" min:"0" max:"86400" doc:"60 to 86400, or 0 for ever."`
	Persist          *bool             `json:"persist,omitempty" doc:"Never idles."`
	Retention        *string           `json:"retention,omitempty" pattern:"^([0-9]{1,6}(s|m|h|d)|never)$" doc:"How long it is kept once stopped or paused, then deleted: 1m to 3650d, or never."`
}

// SetTimeoutIn is the input of sandboxes.setTimeout.
type SetTimeoutIn struct {
	op.WriteIn
	SandboxIn
	TTLSeconds int `json:"ttlSeconds" min:"60" max:"2592000" doc:"How long it has left from now."`
}

// ExtendIn is the input of sandboxes.extend.
type ExtendIn struct {
	op.WriteIn
	SandboxIn
	By string `json:"by" pattern:"^[0-9]{1,6}(s|m|h|d)$" doc:"How much longer, such as 30m, 8h or 3d. Each call extends again."`
}

// DeleteSandboxOut is the output of sandboxes.delete.
type DeleteSandboxOut struct {
	op.WriteOut
	SandboxID string `json:"sandboxId"`
	Deleted   bool   `json:"deleted" doc:"False: it is still going away and needs no further call."`
}

// The operations on sandboxes.
var (
	CreateSandbox = op.Def[CreateSandboxIn, CreateSandboxOut]{
		Name: "sandboxes.create", Route: "POST /v1/sandboxes", Action: "compute:sandboxes:create", Tool: "create_sandbox",
		Hints: op.Write | op.Idempotent | op.Creates | op.OpenWorld, Toolset: SetSandboxes, Title: "Create a sandbox", Status: 201,
		Doc: "Creates an isolated Linux sandbox from a template or image and waits until it answers. Choose an idempotencyKey before the call and use the same one to retry after a lost reply. " +
			"It has Python, Node.js, git and build tools, a user with sudo, and /workspace for your files. Delete it when done.",
	}
	ListSandboxes = op.Def[ListSandboxesIn, ListSandboxesOut]{
		Name: "sandboxes.list", Route: "GET /v1/sandboxes", Action: "compute:sandboxes:read", Tool: "list_sandboxes",
		Hints: op.Read | op.Idempotent, Toolset: SetSandboxes, Title: "List sandboxes",
		Doc: "Lists sandboxes, newest first, by state, template, name, labels and start. Never starts one.",
	}
	GetSandbox = op.Def[SandboxIn, GetSandboxOut]{
		Name: "sandboxes.get", Route: "GET /v1/sandboxes/{sandboxId}", Action: "compute:sandboxes:read", Tool: "get_sandbox",
		Hints: op.Read | op.Idempotent, Toolset: SetSandboxes, Title: "Read a sandbox",
		Doc: "Gives one sandbox with its state, lifetime, limits and latest reading. Never starts it.",
	}
	UpdateSandbox = op.Def[UpdateSandboxIn, SandboxOut]{
		Name: "sandboxes.update", Route: "PATCH /v1/sandboxes/{sandboxId}", Action: "compute:sandboxes:update", Tool: "update_sandbox",
		Hints: op.Write | op.Idempotent, Toolset: SetSandboxes, Title: "Change a sandbox",
		Doc: "Changes a sandbox's name, labels, environment, idling, waking and retention. What is left out stays as it is.",
	}
	SetSandboxTimeout = op.Def[SetTimeoutIn, SandboxOut]{
		Name: "sandboxes.setTimeout", Route: "PUT /v1/sandboxes/{sandboxId}/timeout", Action: "compute:sandboxes:extend", Tool: "set_sandbox_timeout",
		Hints: op.Write | op.Idempotent, Toolset: SetSandboxes, Title: "Set the time left",
		Doc: "Sets how long the sandbox has left from now, longer or shorter than before.",
	}
	ExtendSandbox = op.Def[ExtendIn, SandboxOut]{
		Name: "sandboxes.extend", Route: "POST /v1/sandboxes/{sandboxId}/extend", Action: "compute:sandboxes:extend", Tool: "extend_sandbox",
		Hints: op.Write, Toolset: SetSandboxes, Title: "Extend a sandbox",
		Doc: "Adds time to the sandbox's life. Each call extends again: give an idempotencyKey when you may repeat it.",
	}
	StartSandbox = op.Def[SandboxWaitIn, SandboxOut]{
		Name: "sandboxes.start", Route: "POST /v1/sandboxes/{sandboxId}/start", Action: "compute:sandboxes:start", Tool: "start_sandbox",
		Hints: op.Write | op.Idempotent | op.Wakes, Toolset: SetSandboxes, Title: "Start a sandbox",
		Doc: "Boots a stopped sandbox on the disk that it kept, or wakes a paused one. Running it may be billed.",
	}
	StopSandbox = op.Def[SandboxWaitIn, SandboxOut]{
		Name: "sandboxes.stop", Route: "POST /v1/sandboxes/{sandboxId}/stop", Action: "compute:sandboxes:stop", Tool: "stop_sandbox",
		Hints: op.Write | op.Idempotent | op.Destructive, Toolset: SetSandboxes, Title: "Stop a sandbox",
		Doc: "Ends everything that runs in the sandbox and keeps its disk. Start it, or use it, to boot it again.",
	}
	DeleteSandbox = op.Def[SandboxWaitIn, DeleteSandboxOut]{
		Name: "sandboxes.delete", Route: "DELETE /v1/sandboxes/{sandboxId}", Action: "compute:sandboxes:delete", Tool: "delete_sandbox",
		Hints: op.Write | op.Idempotent | op.Destructive, Toolset: SetSandboxes, Title: "Delete a sandbox",
		Doc: "Ends the sandbox now and removes its disk for good. Save what you need first. Deleting it again succeeds.",
	}
)
