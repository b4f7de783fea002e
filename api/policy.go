package api

import (
	"time"

	"github.com/berthrun/berth/api/op"
)

// PolicyVersion is one version of an organization's policies without their text.
type PolicyVersion struct {
	Version   int64        `json:"version"`
	CreatedAt time.Time    `json:"createdAt"`
	CreatedBy op.CreatedBy `json:"createdBy"`
}

// Policies are one version of an organization's policies.
type Policies struct {
	Version   int64        `json:"version" doc:"0: the default, which nobody has changed."`
	Text      string       `json:"text" doc:"In Cedar."`
	CreatedAt *time.Time   `json:"createdAt,omitempty"`
	CreatedBy op.CreatedBy `json:"createdBy,omitzero"`
	Shipped   string       `json:"shipped" doc:"What holds besides them and cannot be removed, in Cedar."`
}

// GetPoliciesIn is the input of policies.get.
type GetPoliciesIn struct {
	Version int64 `json:"version,omitempty" min:"1" doc:"An earlier version; the newest where left out."`
	Schema  bool  `json:"schema,omitempty" doc:"Give the schema too, which policies are checked against."`
}

// GetPoliciesOut is the output of policies.get.
type GetPoliciesOut struct {
	Policies Policies        `json:"policies"`
	History  []PolicyVersion `json:"history" doc:"The last twenty versions, the newest first."`
	Schema   string          `json:"schema,omitempty" doc:"In Cedar's schema language."`
}

// PutPoliciesIn is the input of policies.put.
type PutPoliciesIn struct {
	op.WriteIn
	Text            string `json:"text" maxlen:"131072" doc:"All policies of the organization, in Cedar: what is not in it holds no longer."`
	ExpectedVersion *int64 `json:"expectedVersion,omitempty" min:"0" doc:"The version that was read before: refused where another one holds by now. 0: none was put yet."`
	Force           bool   `json:"force,omitempty" doc:"Also where the caller could not put policies afterwards."`
}

// PutPoliciesOut is the output of policies.put.
type PutPoliciesOut struct {
	op.WriteOut
	Policies Policies `json:"policies"`
}

// PolicyProblem is one thing that is wrong with policies.
type PolicyProblem struct {
	Line   int    `json:"line"`
	Column int    `json:"column"`
	Policy string `json:"policy,omitempty" doc:"Its @id, or policy and its number from 0."`
	Reason string `json:"reason"`
}

// ValidatePoliciesIn is the input of policies.validate.
type ValidatePoliciesIn struct {
	Text string `json:"text" maxlen:"131072" doc:"In Cedar."`
}

// ValidatePoliciesOut is the output of policies.validate.
type ValidatePoliciesOut struct {
	Valid    bool            `json:"valid"`
	Problems []PolicyProblem `json:"problems"`
}

// PolicyPrincipal is who acts in a case.
type PolicyPrincipal struct {
	Type        string `json:"type" enum:"key,person,agent,serviceAccount,app"`
	ID          string `json:"id,omitempty" maxlen:"128"`
	WorkspaceID string `json:"workspaceId,omitempty" maxlen:"128"`
	PersonID    string `json:"personId,omitempty" maxlen:"128" doc:"For whom it acts: what this person may not do, it may not either."`
	AgentID     string `json:"agentId,omitempty" maxlen:"128" doc:"The agent that it is of."`
	AppID       string `json:"appId,omitempty" maxlen:"128" doc:"The app that it is of."`
}

// PolicyResource is what is acted on in a case.
type PolicyResource struct {
	Kind           string            `json:"kind,omitempty" maxlen:"64" doc:"Such as sandbox; what the action acts on where left out."`
	ID             string            `json:"id,omitempty" maxlen:"256"`
	Name           string            `json:"name,omitempty" maxlen:"256"`
	WorkspaceID    string            `json:"workspaceId,omitempty" maxlen:"128"`
	OrganizationID string            `json:"organizationId,omitempty" maxlen:"128" doc:"The caller's own where left out."`
	Labels         map[string]string `json:"labels,omitempty" maxprops:"64"`
	CreatedBy      op.CreatedBy      `json:"createdBy,omitzero"`
}

// PolicyContext is how a call of a case comes in.
type PolicyContext struct {
	Time          *time.Time `json:"time,omitempty" doc:"Now where left out."`
	SourceAddress string     `json:"sourceAddress,omitempty" maxlen:"64" doc:"An IP address."`
	Face          string     `json:"face,omitempty" enum:"http,mcp,cli,internal" doc:"http where left out."`
	ReadOnly      bool       `json:"readOnly,omitempty"`
	Confirmed     bool       `json:"confirmed,omitempty" doc:"A person has approved exactly this call."`
}

// PolicyCase asks whether somebody could do something.
type PolicyCase struct {
	Name      string          `json:"name,omitempty" maxlen:"200"`
	Principal PolicyPrincipal `json:"principal"`
	Action    string          `json:"action" maxlen:"128" doc:"Such as compute:sandboxes:delete."`
	Resource  PolicyResource  `json:"resource,omitzero"`
	Context   PolicyContext   `json:"context,omitzero"`
	Want      string          `json:"want,omitempty" enum:"allow,deny,confirm" doc:"What it should come to; left out, it is only told."`
}

// TestPoliciesIn is the input of policies.test.
type TestPoliciesIn struct {
	Text  string       `json:"text,omitempty" maxlen:"131072" doc:"Policies to try; those that hold where left out."`
	Cases []PolicyCase `json:"cases" minitems:"1" maxitems:"500"`
}

// PolicyResult is what a case came to.
type PolicyResult struct {
	Name    string   `json:"name"`
	Want    string   `json:"want,omitempty"`
	Got     string   `json:"got" doc:"allow, deny or confirm."`
	Pass    bool     `json:"pass" doc:"It came to what was wanted, or nothing was."`
	Reasons []string `json:"reasons" doc:"Of a deny which policies forbid it, of a confirm why a person is to approve."`
}

// TestPoliciesOut is the output of policies.test.
type TestPoliciesOut struct {
	Failed int            `json:"failed" doc:"How many cases came to something else than was wanted."`
	Items  []PolicyResult `json:"items"`
}

// The operations on the policies of an organization.
var (
	GetPolicies = op.Def[GetPoliciesIn, GetPoliciesOut]{
		Name: "policies.get", Route: "GET /v1/policies", Action: "identity:policies:read",
		Hints: op.Read | op.Idempotent, Toolset: SetAccount, Title: "Get the policies",
		Doc: "Gives the policies of the organization, in Cedar, with who changed them and when.",
	}
	PutPolicies = op.Def[PutPoliciesIn, PutPoliciesOut]{
		Name: "policies.put", Route: "PUT /v1/policies", Action: "identity:policies:write",
		Hints: op.Write | op.Idempotent, Toolset: SetAccount, Title: "Change the policies",
		Doc: "Replaces the policies of the organization by others, which are checked against the schema first. They hold within a second on every server. What would lock the caller out is refused unless forced.",
	}
	ValidatePolicies = op.Def[ValidatePoliciesIn, ValidatePoliciesOut]{
		Name: "policies.validate", Route: "POST /v1/policies/validate", Action: "identity:policies:read",
		Hints: op.Read | op.Idempotent, Toolset: SetAccount, Title: "Check policies",
		Doc: "Checks policies as policies.put does, without changing anything.",
	}
	TestPolicies = op.Def[TestPoliciesIn, TestPoliciesOut]{
		Name: "policies.test", Route: "POST /v1/policies/test", Action: "identity:policies:read",
		Hints: op.Read | op.Idempotent, Toolset: SetAccount, Title: "Try policies",
		Doc: "Says of each case of a table whether policies allow it, and compares that with what was wanted. Scopes of keys are not looked at.",
	}
)
