package api

import (
	"time"

	"github.com/berthrun/berth/api/op"
)

// AuditRow is one call in the audit log. Its members, in this order, are what its hash is over.
type AuditRow struct {
	Number         int64     `json:"number" doc:"Its place in the organization's chain: 1, 2, 3 and so on, without gaps."`
	ID             string    `json:"id"`
	OrganizationID string    `json:"organizationId"`
	WorkspaceID    string    `json:"workspaceId,omitempty"`
	At             time.Time `json:"at" doc:"When the call began; of a row with endOf, when it ended."`
	PrincipalID    string    `json:"principalId" doc:"Who called: a key, a person or an agent."`
	PersonID       string    `json:"personId,omitempty" doc:"The person for whom."`
	AgentID        string    `json:"agentId,omitempty"`
	AppID          string    `json:"appId,omitempty" doc:"The connected app through which."`
	KeyID          string    `json:"keyId,omitempty"`
	Face           string    `json:"face" doc:"http or mcp."`
	Client         string    `json:"client,omitempty" doc:"What the caller's program calls itself."`
	SourceIP       string    `json:"sourceIp,omitempty" doc:"From where: the address of the connection, or what a trusted proxy says of it."`
	RequestID      string    `json:"requestId"`
	Operation      string    `json:"operation"`
	Action         string    `json:"action" doc:"What authorization was asked."`
	ResourceKind   string    `json:"resourceKind,omitempty"`
	ResourceID     string    `json:"resourceId,omitempty"`
	Result         string    `json:"result,omitempty" doc:"ok or an error's code; absent where the call had no end within three minutes."`
	DurationUS     int64     `json:"durationUs" doc:"In microseconds."`
	EndOf          string    `json:"endOf,omitempty" doc:"This is the late end of a call: the id of the row with its beginning."`
	Hash           string    `json:"hash" doc:"SHA-256, in hexadecimal, over the hash of the row before it and all of this one."`
	PreviousHash   string    `json:"previousHash,omitempty" doc:"In an export, the hash of the row before it."`
}

// ListAuditIn is the input of audit.list.
type ListAuditIn struct {
	op.PageIn
	Start     *time.Time `json:"start,omitempty" doc:"Calls from this time on."`
	End       *time.Time `json:"end,omitempty" doc:"Calls before this time."`
	Principal string     `json:"principal,omitempty" minlen:"1" maxlen:"128" doc:"The id of a key, person, agent or app that called or for whom or through which was called."`
	Operation string     `json:"operation,omitempty" minlen:"1" maxlen:"128" doc:"Such as sandboxes.create."`
	Result    string     `json:"result,omitempty" minlen:"1" maxlen:"64" doc:"ok or an error's code."`
	Resource  string     `json:"resource,omitempty" minlen:"1" maxlen:"512" doc:"The id of what was acted on."`
}

// ListAuditOut is the output of audit.list.
type ListAuditOut struct {
	op.PageOut
	Items []AuditRow `json:"items" doc:"A page may hold fewer than limit, or none: go on while there is a nextCursor."`
}

// ExportAuditIn is the input of audit.export.
type ExportAuditIn struct {
	After int64 `json:"after,omitempty" min:"0" max:"9007199254740991" doc:"The number of the last row that was had before; the first row that is kept where absent."`
}

// LinesType is the media type of JSON Lines.
const LinesType = "application/jsonl"

// The operations on the audit log.
var (
	ListAudit = op.Def[ListAuditIn, ListAuditOut]{
		Name: "audit.list", Route: "GET /v1/audit", Action: "audit:log:read", Tool: "list_audit",
		Hints: op.Read | op.Idempotent, Toolset: SetAccount, Title: "List the audit log",
		Doc: "Lists the organization's calls, the newest first: who, for whom, through what, from where, on what, with which result; never the values of arguments. A call is in it once it has ended.",
	}
	ExportAudit = op.StreamDef[ExportAuditIn]{
		Name: "audit.export", Route: "GET /v1/audit/export", Action: "audit:log:read", Kind: op.Download,
		Hints: op.Read | op.Idempotent, Toolset: SetAccount, Title: "Export the audit log", Media: LinesType,
		Doc: "Gives the organization's audit log as JSON Lines, the oldest row first, each with its hash and that of the row before it: berth audit verify FILE checks it without a server. " +
			"It is whole where it ends properly, and goes on with after.",
	}
)
