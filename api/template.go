package api

import (
	"time"

	"github.com/berthrun/berth/api/op"
)

// Template is what sandboxes are made from: a name, what they begin with, and the builds behind its tags.
type Template struct {
	ID               string        `json:"id" doc:"sbxt_ and 20 characters; base for the one that is built in."`
	Name             string        `json:"name"`
	BuiltIn          bool          `json:"builtIn,omitempty" doc:"It comes with the deployment and cannot be changed."`
	Ready            bool          `json:"ready" doc:"Sandboxes can be made of it."`
	BuildID          string        `json:"buildId,omitempty" doc:"That the tag latest means."`
	Version          int64         `json:"version,omitempty" doc:"Of that build."`
	Tags             []TemplateTag `json:"tags"`
	Resources        Resources     `json:"resources" doc:"Of a sandbox that asks for none."`
	Network          Network       `json:"network"`
	TTLSeconds       int           `json:"ttlSeconds,omitempty"`
	MaxTTLSeconds    int           `json:"maxTtlSeconds,omitempty" doc:"The longest that a sandbox of it may ask for."`
	IdlePauseSeconds *int          `json:"idlePauseSeconds,omitempty"`
	OnIdle           string        `json:"onIdle,omitempty"`
	OnExpiry         string        `json:"onExpiry,omitempty"`
	StartCmd         string        `json:"startCmd,omitempty"`
	ReadyCmd         string        `json:"readyCmd,omitempty"`
	Booted           bool          `json:"booted,omitempty" doc:"Its start command runs already in what sandboxes are made of."`
	Stored           bool          `json:"stored,omitempty" doc:"What its sandboxes are made of is kept off its node too."`
	Volumes          []VolumeMount `json:"volumes" doc:"That each of its sandboxes mounts."`
	WorkspaceID      string        `json:"workspaceId,omitempty"`
	CreatedAt        *time.Time    `json:"createdAt,omitempty"`
	UpdatedAt        *time.Time    `json:"updatedAt,omitempty"`
	CreatedBy        op.CreatedBy  `json:"createdBy"`
}

// TemplateTag is a name for one of a template's builds.
type TemplateTag struct {
	Tag     string `json:"tag"`
	BuildID string `json:"buildId"`
	Version int64  `json:"version"`
}

// BuildTemplateIn is the input of templates.build.
type BuildTemplateIn struct {
	op.WriteIn
	Name         string            `json:"name" pattern:"^[a-z0-9][a-z0-9._-]{0,62}(:[A-Za-z0-9_][A-Za-z0-9._-]{0,127})?$" doc:"One that exists gets a new version. With name:tag the tag means it too."`
	FromImage    string            `json:"fromImage,omitempty" minlen:"1" maxlen:"512" doc:"Exactly one of fromImage, fromTemplate and dockerfile."`
	FromTemplate string            `json:"fromTemplate,omitempty" pattern:"^[a-zA-Z0-9][a-zA-Z0-9._:-]{0,127}$" doc:"base, or one of yours: name, name:tag or id."`
	Dockerfile   string            `json:"dockerfile,omitempty" minlen:"1" maxlen:"262144" doc:"Its text. An instruction that is not supported is named with its line."`
	Steps        []TemplateStep    `json:"steps,omitempty" maxitems:"256" doc:"In order, after those of a Dockerfile."`
	ContextID    string            `json:"contextId,omitempty" id:"bctx" doc:"The archive that COPY takes from: builds.upload, or the CLI, gives it."`
	BuildArgs    map[string]string `json:"buildArgs,omitempty" maxprops:"64" doc:"Of a Dockerfile's ARG."`
	Target       string            `json:"target,omitempty" maxlen:"128" doc:"The stage of a Dockerfile; its last where absent."`
	StartCmd     string            `json:"startCmd,omitempty" maxlen:"65536" doc:"Started once built; sandboxes come up with it running."`
	ReadyCmd     string            `json:"readyCmd,omitempty" maxlen:"65536" doc:"Asked until it succeeds: what has started is ready."`
	CPUCount     float64           `json:"cpuCount,omitempty" min:"0.1" max:"64" doc:"Of the build and its sandboxes."`
	MemoryMiB    int64             `json:"memoryMiB,omitempty" min:"128" max:"1048576"`
	DiskGiB      int64             `json:"diskGiB,omitempty" min:"1" max:"16384"`
	Network      *NetworkIn        `json:"network,omitempty"`
	Force        bool              `json:"force,omitempty" doc:"Runs every step, cached or not."`
}

// BuildTemplateOut is the output of templates.build.
type BuildTemplateOut struct {
	op.WriteOut
	Status     string `json:"status" doc:"done: the build was taken on."`
	TemplateID string `json:"templateId,omitempty"`
	BuildID    string `json:"buildId,omitempty" doc:"get_build_status says how it goes."`
	Name       string `json:"name,omitempty"`
	Version    int64  `json:"version,omitempty"`
}

// The states of a build.
const (
	BuildWaiting  = "waiting"
	BuildBuilding = "building"
	BuildReady    = "ready"
	BuildError    = "error"
)

// Build is one build of a template.
type Build struct {
	ID         string       `json:"id" doc:"bld_ and 20 characters."`
	TemplateID string       `json:"templateId"`
	Name       string       `json:"name" doc:"Of the template."`
	Version    int64        `json:"version"`
	Tag        string       `json:"tag,omitempty" doc:"That means it once it is ready, beside latest."`
	Status     string       `json:"status" doc:"waiting, building, ready or error."`
	Reason     string       `json:"reason,omitempty" doc:"Why it ended in error, with the step, its exit code and what it wrote last."`
	Step       int64        `json:"step" doc:"Under way, from 1."`
	Steps      int64        `json:"steps"`
	Cached     int64        `json:"cached" doc:"Steps that were taken from earlier builds."`
	CreatedAt  time.Time    `json:"createdAt"`
	StartedAt  *time.Time   `json:"startedAt,omitempty"`
	FinishedAt *time.Time   `json:"finishedAt,omitempty"`
	CreatedBy  op.CreatedBy `json:"createdBy"`
}

// BuildLine is one piece of a build's log.
type BuildLine struct {
	Offset int64     `json:"offset" doc:"Its number, from 0."`
	At     time.Time `json:"at"`
	Step   int64     `json:"step" doc:"0: of the whole build."`
	Stream string    `json:"stream" doc:"build, stdout or stderr."`
	Text   string    `json:"text"`
}

// TemplateIn names one template.
type TemplateIn struct {
	TemplateID string `json:"templateId" id:"sbxt"`
}

// ListTemplatesIn is the input of templates.list.
type ListTemplatesIn struct {
	op.PageIn
	Name string `json:"name,omitempty" maxlen:"63"`
}

// ListTemplatesOut is the output of templates.list.
type ListTemplatesOut struct {
	op.PageOut
	Items []Template `json:"items"`
}

// GetTemplateOut is the output of templates.get.
type GetTemplateOut struct {
	Template Template `json:"template"`
}

// UpdateTemplateIn is the input of templates.update. What is left out stays.
type UpdateTemplateIn struct {
	op.WriteIn
	TemplateIn
	TTLSeconds       *int              `json:"ttlSeconds,omitempty" min:"0" max:"2592000" doc:"Of a sandbox that asks for none: 60 to 2592000, or 0 for the deployment's."`
	MaxTTLSeconds    *int              `json:"maxTtlSeconds,omitempty" min:"0" max:"2592000" doc:"The longest that may be asked for; 0: any."`
	IdlePauseSeconds *int              `json:"idlePauseSeconds,omitempty" min:"0" max:"86400"`
	OnIdle           string            `json:"onIdle,omitempty" enum:"pause,stop"`
	OnExpiry         string            `json:"onExpiry,omitempty" enum:"pause,stop,delete"`
	Resources        *ResourcesIn      `json:"resources,omitempty"`
	Network          *NetworkIn        `json:"network,omitempty"`
	Env              map[string]string `json:"env,omitzero" secret:"true" maxprops:"256" doc:"Replaces all variables of its sandboxes. Never shown again."`
	UserData         *string           `json:"userData,omitempty" secret:"true" maxlen:"65536" doc:"A script that each new sandbox runs once, as root. Never shown again."`
	Tag              string            `json:"tag,omitempty" pattern:"^[A-Za-z0-9_][A-Za-z0-9._-]{0,127}$" doc:"With buildId: this tag means that build; latest goes back to an earlier one."`
	BuildID          string            `json:"buildId,omitempty" id:"bld"`
}

// TemplateOut is the output of writes that change one template.
type TemplateOut struct {
	op.WriteOut
	Status   string    `json:"status" doc:"done: carried out."`
	Template *Template `json:"template,omitempty"`
}

// SetTemplateVolumesIn is the input of templates.setVolumes.
type SetTemplateVolumesIn struct {
	op.WriteIn
	TemplateIn
	Volumes []VolumeMount `json:"volumes" maxitems:"16"`
}

// DeleteTemplateIn is the input of templates.delete.
type DeleteTemplateIn struct {
	op.WriteIn
	TemplateIn
}

// DeleteTemplateOut is the output of templates.delete.
type DeleteTemplateOut struct {
	op.WriteOut
	TemplateID string `json:"templateId"`
	Deleted    bool   `json:"deleted"`
}

// BuildIn names one build.
type BuildIn struct {
	BuildID string `json:"buildId" id:"bld"`
}

// GetBuildIn is the input of builds.get.
type GetBuildIn struct {
	BuildIn
	TemplateID string `json:"templateId,omitempty" id:"sbxt" doc:"Not needed."`
}

// GetBuildOut is the output of builds.get.
type GetBuildOut struct {
	Build Build `json:"build"`
}

// BuildLogsIn is the input of builds.logs.
type BuildLogsIn struct {
	BuildIn
	TemplateID  string `json:"templateId,omitempty" id:"sbxt" doc:"Not needed."`
	Offset      int64  `json:"offset,omitempty" doc:"nextOffset of the read before. Negative: so many from the end."`
	Limit       int    `json:"limit,omitempty" min:"1" max:"1000" default:"100"`
	WaitSeconds int    `json:"waitSeconds,omitempty" min:"0" max:"30" doc:"For the first new line."`
}

// BuildLogsOut is the output of builds.logs.
type BuildLogsOut struct {
	Lines      []BuildLine `json:"lines"`
	NextOffset int64       `json:"nextOffset"`
	End        bool        `json:"end" doc:"The build has ended and this was all."`
	Status     string      `json:"status" doc:"Of the build."`
	Reason     string      `json:"reason,omitempty"`
}

// ListBuildsIn is the input of builds.list.
type ListBuildsIn struct {
	op.PageIn
	TemplateID string   `json:"templateId,omitempty" id:"sbxt"`
	Status     []string `json:"status,omitempty" maxitems:"4" enum:"waiting,building,ready,error"`
}

// ListBuildsOut is the output of builds.list.
type ListBuildsOut struct {
	op.PageOut
	Items []Build `json:"items"`
}

// CancelBuildIn is the input of builds.cancel.
type CancelBuildIn struct {
	op.WriteIn
	BuildIn
}

// BuildOut is the output of builds.cancel.
type BuildOut struct {
	op.WriteOut
	Status string `json:"status" doc:"done: carried out. The build may take a moment to end."`
	Build  *Build `json:"build,omitempty"`
}

// UploadContextIn is the input of builds.upload.
type UploadContextIn struct {
	SHA256 string `json:"sha256,omitempty" pattern:"^[0-9a-f]{64}$" doc:"Of the body. Without a body: gives the contextId of the same archive, where it was uploaded before and is still there, else NOT_FOUND."`
}

// BuildContext is an archive that COPY takes files from.
type BuildContext struct {
	ID        string    `json:"contextId" doc:"For templates.build."`
	Bytes     int64     `json:"bytes"`
	Entries   int64     `json:"entries"`
	SHA256    string    `json:"sha256"`
	ExpiresAt time.Time `json:"expiresAt" doc:"It is removed then unless it was used again."`
}

// UploadContextOut is the answer of builds.upload.
type UploadContextOut struct {
	Context BuildContext `json:"context"`
}

// BuildEndEvent is how a build ended.
type BuildEndEvent struct {
	Status string `json:"status" doc:"ready or error."`
	Reason string `json:"reason,omitempty"`
}

// FollowBuildIn is the input of builds.follow.
type FollowBuildIn struct {
	BuildIn
	Offset int64 `json:"offset,omitempty" min:"0" doc:"Where to begin."`
}

// The operations on templates and their builds.
var (
	ListTemplates = op.Def[ListTemplatesIn, ListTemplatesOut]{
		Name: "templates.list", Route: "GET /v1/templates", Action: "compute:templates:read", Tool: "list_templates",
		Hints: op.Read | op.Idempotent, Toolset: SetTemplates, Title: "List templates",
		Doc: "Lists what create_sandbox takes as template, newest first.",
	}
	GetTemplate = op.Def[TemplateIn, GetTemplateOut]{
		Name: "templates.get", Route: "GET /v1/templates/{templateId}", Action: "compute:templates:read", Tool: "get_template",
		Hints: op.Read | op.Idempotent, Toolset: SetTemplates, Title: "Read a template",
		Doc: "Gives one template with its tags and defaults; never its env and userData.",
	}
	BuildTemplate = op.Def[BuildTemplateIn, BuildTemplateOut]{
		Name: "templates.build", Route: "POST /v1/templates", Action: "compute:templates:create", Tool: "build_template",
		Hints: op.Write | op.Creates | op.OpenWorld, Toolset: SetTemplates, Title: "Build a template", Status: 201,
		Doc: "Builds a template, or a new version of one, from an image, a template or a Dockerfile. It answers at once: poll get_build_status until it is ready, then create_sandbox with its name. " +
			"Steps that were built before are not run again. A build that fails leaves the version before in use.",
	}
	UpdateTemplate = op.Def[UpdateTemplateIn, TemplateOut]{
		Name: "templates.update", Route: "PATCH /v1/templates/{templateId}", Action: "compute:templates:update", Tool: "update_template",
		Hints: op.Write | op.Idempotent, Toolset: SetTemplates, Title: "Change a template",
		Doc: "Changes what sandboxes of the template begin with, or what a tag means. What is left out stays.",
	}
	SetTemplateVolumes = op.Def[SetTemplateVolumesIn, TemplateOut]{
		Name: "templates.setVolumes", Route: "PUT /v1/templates/{templateId}/volumes", Action: "compute:templates:volumes",
		Hints: op.Write | op.Idempotent, Toolset: SetTemplates, Title: "Choose a template's volumes",
		Doc: "Sets the volumes that each new sandbox of the template mounts, all of them anew.",
	}
	DeleteTemplate = op.Def[DeleteTemplateIn, DeleteTemplateOut]{
		Name: "templates.delete", Route: "DELETE /v1/templates/{templateId}", Action: "compute:templates:delete", Tool: "delete_template",
		Hints: op.Write | op.Idempotent | op.Destructive, Toolset: SetTemplates, Title: "Delete a template",
		Doc: "Deletes a template that nothing uses, with all its versions. Deleting it again succeeds.",
	}
	GetBuild = op.Def[GetBuildIn, GetBuildOut]{
		Name: "builds.get", Route: "GET /v1/builds/{buildId}", Action: "compute:templates:read", Tool: "get_build_status",
		Hints: op.Read | op.Idempotent, Toolset: SetTemplates, Title: "Read a build's status",
		Doc: "Says how a build goes, and why it failed.",
	}
	BuildLogs = op.Def[BuildLogsIn, BuildLogsOut]{
		Name: "builds.logs", Route: "GET /v1/builds/{buildId}/logs", Action: "compute:templates:read", Tool: "get_build_logs",
		Hints: op.Read | op.Idempotent, Toolset: SetTemplates, Title: "Read a build's log",
		Doc: "Gives what a build wrote, while it goes on and afterwards.",
	}
	ListBuilds = op.Def[ListBuildsIn, ListBuildsOut]{
		Name: "builds.list", Route: "GET /v1/builds", Action: "compute:templates:read",
		Hints: op.Read | op.Idempotent, Toolset: SetTemplates, Title: "List builds",
		Doc: "Lists builds, newest first.",
	}
	CancelBuild = op.Def[CancelBuildIn, BuildOut]{
		Name: "builds.cancel", Route: "POST /v1/builds/{buildId}/cancel", Action: "compute:templates:create", Tool: "cancel_build",
		Hints: op.Write | op.Idempotent | op.Destructive, Toolset: SetTemplates, Title: "Cancel a build",
		Doc: "Ends a build that goes on. One that has ended stays as it is.",
	}
)

// The streams of builds.
var (
	UploadContext = op.StreamDef[UploadContextIn]{
		Name: "builds.upload", Route: "POST /v1/builds/context", Action: "compute:templates:create", Kind: op.Upload,
		Hints: op.Write, Toolset: SetTemplates, Title: "Upload a build's files", Media: TarType, Out: UploadContextOut{},
		Doc: "Takes what COPY takes files from as a tar archive, plain or compressed with gzip. It is removed a day after it was last used.",
	}
	FollowBuild = op.StreamDef[FollowBuildIn]{
		Name: "builds.follow", Route: "GET /v1/builds/{buildId}/logs", When: "follow", Action: "compute:templates:read", Kind: op.Events,
		Hints: op.Read | op.Idempotent, Toolset: SetTemplates, Title: "Follow a build",
		Doc:     "Follows a build's log as server-sent events until it ends: what there is first, then what comes. A stream that ends without the event end was broken: connect again with Last-Event-ID.",
		Headers: []op.Header{{Name: "Last-Event-ID", Doc: "The id of the last event that was read."}},
		Messages: []op.Message{
			{Name: "line", Doc: "A piece of the log.", Data: BuildLine{}},
			{Name: "status", Doc: "How far it is, when that changes.", Data: Build{}},
			{Name: "end", Doc: "The build has ended and all was sent; the last event.", Data: BuildEndEvent{}},
		},
	}
)
