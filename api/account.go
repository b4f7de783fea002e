package api

import (
	"time"

	"github.com/berthrun/berth/api/op"
)

// None is the input of operations that take nothing.
type None struct{}

// AccountOut is the output of account.get: who the credential is.
type AccountOut struct {
	OrganizationID   string   `json:"organizationId"`
	OrganizationName string   `json:"organizationName"`
	WorkspaceID      string   `json:"workspaceId"`
	WorkspaceName    string   `json:"workspaceName"`
	PrincipalID      string   `json:"principalId"`
	PersonID         string   `json:"personId,omitempty"`
	AgentID          string   `json:"agentId,omitempty"`
	AppID            string   `json:"appId,omitempty"`
	KeyID            string   `json:"keyId,omitempty"`
	KeyName          string   `json:"keyName,omitempty"`
	Scopes           []string `json:"scopes"`
}

// Workspace is one workspace.
type Workspace struct {
	ID        string    `json:"id"`
	Name      string    `json:"name"`
	CreatedAt time.Time `json:"createdAt"`
	Current   bool      `json:"current" doc:"The credential acts in it where no other is named."`
}

// ListWorkspacesIn is the input of workspaces.list.
type ListWorkspacesIn struct {
	op.PageIn
}

// ListWorkspacesOut is the output of workspaces.list.
type ListWorkspacesOut struct {
	op.PageOut
	Items []Workspace `json:"items"`
}

// Limit is one quota and how much of it is used.
type Limit struct {
	Key   string `json:"key" doc:"Such as sandboxes.running."`
	Limit *int64 `json:"limit" null:"true" doc:"Null: no limit."`
	Used  int64  `json:"used"`
	Unit  string `json:"unit" doc:"Such as count, mCPU, MiB or GiB."`
}

// LimitsOut is the output of account.limits.
type LimitsOut struct {
	Items          []Limit `json:"items"`
	CallsPerMinute int     `json:"callsPerMinute"`
	CallsInFlight  int     `json:"callsInFlight" doc:"MCP calls of one caller at the same time."`
}

// Capability is something that a deployment may have.
type Capability struct {
	Name    string `json:"name"`
	Enabled bool   `json:"enabled"`
	Missing string `json:"missing,omitempty" doc:"What it needs that is not there."`
}

// CapabilitiesOut is the output of capabilities.list.
type CapabilitiesOut struct {
	Version string       `json:"version"`
	Items   []Capability `json:"items"`
}

// Key is an API key without its secret.
type Key struct {
	ID        string       `json:"id"`
	Name      string       `json:"name"`
	Last4     string       `json:"last4" doc:"The last characters of the key."`
	Scopes    []string     `json:"scopes"`
	Confirm   []string     `json:"confirm,omitempty" doc:"Of its writes, those that a person is to approve first."`
	CreatedAt time.Time    `json:"createdAt"`
	ExpiresAt *time.Time   `json:"expiresAt,omitempty"`
	RevokedAt *time.Time   `json:"revokedAt,omitempty"`
	LastUsed  *time.Time   `json:"lastUsedAt,omitempty" doc:"To the minute."`
	CreatedBy op.CreatedBy `json:"createdBy"`
	Workspace string       `json:"workspaceId"`
}

// CreateKeyIn is the input of keys.create.
type CreateKeyIn struct {
	op.WriteIn
	Name       string   `json:"name" minlen:"1" maxlen:"100"`
	Scopes     []string `json:"scopes,omitempty" maxitems:"64" pattern:"^(read|write|admin|[a-z]+:([a-zA-Z]+|\\*)(:([a-zA-Z]+|\\*))?)$" doc:"read, write, admin or action patterns such as compute:sandboxes:*. Never more than the caller has. Default: read and write."`
	Confirm    []string `json:"confirm,omitempty" maxitems:"64" pattern:"^(read|write|admin|[a-z]+:([a-zA-Z]+|\\*)(:([a-zA-Z]+|\\*))?)$" doc:"Writes that a person is to approve first, by the same patterns: write holds back all. Those of the caller are added."`
	TTLSeconds int      `json:"ttlSeconds,omitempty" min:"60" max:"315360000" doc:"When it expires; never by default."`
}

// CreateKeyOut is the output of keys.create.
type CreateKeyOut struct {
	op.WriteOut
	Key    Key    `json:"key"`
	Secret string `json:"secret,omitempty" doc:"The key itself: shown this once, absent from a replay."`
}

// Redacted implements op.Redactor: no secret is kept.
func (o CreateKeyOut) Redacted() any {
	o.Secret = ""
	return o
}

// ListKeysIn is the input of keys.list.
type ListKeysIn struct {
	op.PageIn
	IncludeRevoked bool `json:"includeRevoked,omitempty"`
}

// ListKeysOut is the output of keys.list.
type ListKeysOut struct {
	op.PageOut
	Items []Key `json:"items"`
}

// RevokeKeyIn is the input of keys.revoke.
type RevokeKeyIn struct {
	op.WriteIn
	KeyID string `json:"keyId" id:"key"`
}

// KeyOut is the output of keys.revoke.
type KeyOut struct {
	op.WriteOut
	Key Key `json:"key"`
}

// The operations on the account and its keys.
var (
	GetAccount = op.Def[None, AccountOut]{
		Name: "account.get", Route: "GET /v1/account", Action: "account:read", Tool: "get_account",
		Hints: op.Read | op.Idempotent, Toolset: SetAccount, Title: "Who am I",
		Doc: "Gives the organization, workspace, person, agent, app and key that this credential stands for, and its scopes.",
	}
	ListWorkspaces = op.Def[ListWorkspacesIn, ListWorkspacesOut]{
		Name: "workspaces.list", Route: "GET /v1/workspaces", Action: "account:read", Tool: "list_workspaces",
		Hints: op.Read | op.Idempotent, Toolset: SetAccount, Title: "List workspaces",
		Doc: "Lists the workspaces that the credential can use.",
	}
	GetLimits = op.Def[None, LimitsOut]{
		Name: "account.limits", Route: "GET /v1/account/limits", Action: "account:read", Tool: "get_limits",
		Hints: op.Read | op.Idempotent, Toolset: SetAccount, Title: "Limits and their use",
		Doc: "Gives every quota of the organization with how much of it is used, and the limits on calls.",
	}
	ListCapabilities = op.Def[None, CapabilitiesOut]{
		Name: "capabilities.list", Route: "GET /v1/capabilities", Action: "account:read", Tool: "list_capabilities",
		Hints: op.Read | op.Idempotent, Toolset: SetAccount, Title: "What this deployment can do",
		Doc: "Says which capabilities are on, and what the others need.",
	}
	CreateKey = op.Def[CreateKeyIn, CreateKeyOut]{
		Name: "keys.create", Route: "POST /v1/keys", Action: "identity:keys:create",
		Hints: op.Write | op.Idempotent | op.Creates, Toolset: SetAccount, Title: "Create a key", Status: 201,
		Doc: "Makes an API key with scopes, never more than the caller has. Its secret is shown once.",
	}
	ListKeys = op.Def[ListKeysIn, ListKeysOut]{
		Name: "keys.list", Route: "GET /v1/keys", Action: "identity:keys:read",
		Hints: op.Read | op.Idempotent, Toolset: SetAccount, Title: "List keys",
		Doc: "Lists the API keys of the organization, without their secrets.",
	}
	RevokeKey = op.Def[RevokeKeyIn, KeyOut]{
		Name: "keys.revoke", Route: "DELETE /v1/keys/{keyId}", Action: "identity:keys:revoke",
		Hints: op.Write | op.Idempotent | op.Destructive, Toolset: SetAccount, Title: "Revoke a key",
		Doc: "Ends a key at once. Calls with it are refused from now on.",
	}
)
