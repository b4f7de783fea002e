package api

import (
	"time"

	"github.com/berthrun/berth/api/op"
)

// The states of a confirmation.
const (
	ConfirmationPending  = "pending"
	ConfirmationApproved = "approved"
	ConfirmationDenied   = "denied"
	ConfirmationExpired  = "expired"
	ConfirmationConsumed = "consumed"
)

// ConfirmationResource is what a held call acts on.
type ConfirmationResource struct {
	Kind string `json:"kind"`
	ID   string `json:"id,omitempty"`
	Name string `json:"name,omitempty" doc:"Text of whoever named it; not to be trusted."`
}

// Confirmation is a call that a person is to approve first.
type Confirmation struct {
	ID         string               `json:"id"`
	State      string               `json:"state" doc:"pending, approved, denied, expired or consumed: carried out."`
	Operation  string               `json:"operation"`
	Title      string               `json:"title" doc:"What the operation does, in words."`
	Resource   ConfirmationResource `json:"resource"`
	Arguments  string               `json:"arguments" doc:"The input as canonical JSON. Text of whoever called; not to be trusted."`
	Reasons    []string             `json:"reasons" doc:"Why a person is asked."`
	AskedBy    op.CreatedBy         `json:"askedBy"`
	Client     string               `json:"client,omitempty" doc:"What the program that called names itself; not to be trusted."`
	Workspace  string               `json:"workspaceId"`
	CreatedAt  time.Time            `json:"createdAt"`
	ExpiresAt  time.Time            `json:"expiresAt" doc:"It is to be approved, and the call repeated, before that."`
	DecidedAt  *time.Time           `json:"decidedAt,omitempty"`
	DecidedBy  string               `json:"decidedBy,omitempty" doc:"The key of whoever decided."`
	Note       string               `json:"note,omitempty" doc:"Of the person who denied it."`
	Draft      string               `json:"draft" doc:"The canonical request (RFC 8785): exactly what is approved."`
	Digest     string               `json:"digest" doc:"SHA-256 of berth/confirm/v1, a NUL byte and the draft, in hexadecimal."`
	Approvable bool                 `json:"approvable" doc:"This credential may approve it now."`
}

// ConfirmationIn names one confirmation.
type ConfirmationIn struct {
	ConfirmationID string `json:"confirmationId" id:"cnf"`
}

// GetConfirmationOut is the output of confirmations.get.
type GetConfirmationOut struct {
	Confirmation Confirmation `json:"confirmation"`
}

// ListConfirmationsIn is the input of confirmations.list.
type ListConfirmationsIn struct {
	op.PageIn
	State string `json:"state,omitempty" enum:"pending,approved,denied,expired,consumed" doc:"Only those."`
}

// ListConfirmationsOut is the output of confirmations.list.
type ListConfirmationsOut struct {
	op.PageOut
	Items []Confirmation `json:"items"`
}

// ApproveConfirmationIn is the input of confirmations.approve.
type ApproveConfirmationIn struct {
	op.WriteIn
	ConfirmationIn
	Digest string `json:"digest" pattern:"^[0-9a-f]{64}$" doc:"Of the draft that was read: no other is approved."`
}

// RejectConfirmationIn is the input of confirmations.reject.
type RejectConfirmationIn struct {
	op.WriteIn
	ConfirmationIn
	Note string `json:"note,omitempty" maxlen:"500" doc:"Why, for whoever asked."`
}

// ConfirmationOut is the output of confirmations.approve and confirmations.reject.
type ConfirmationOut struct {
	op.WriteOut
	Confirmation Confirmation `json:"confirmation"`
}

// The operations on confirmations.
var (
	GetConfirmation = op.Def[ConfirmationIn, GetConfirmationOut]{
		Name: "confirmations.get", Route: "GET /v1/confirmations/{confirmationId}", Action: "account:confirmations:read", Tool: "get_confirmation",
		Hints: op.Read | op.Idempotent, Toolset: SetAccount, Title: "How an approval stands",
		Doc: "Shows a call that waits for a person's approval: of this credential's own, or of any where it may list them.",
	}
	ListConfirmations = op.Def[ListConfirmationsIn, ListConfirmationsOut]{
		Name: "confirmations.list", Route: "GET /v1/confirmations", Action: "identity:confirmations:read",
		Hints: op.Read | op.Idempotent, Toolset: SetAccount, Title: "List approvals",
		Doc: "Lists the organization's calls that wait for approval or did, the newest first.",
	}
	ApproveConfirmation = op.Def[ApproveConfirmationIn, ConfirmationOut]{
		Name: "confirmations.approve", Route: "POST /v1/confirmations/{confirmationId}/approve", Action: "identity:confirmations:decide",
		Hints: op.Write | op.Idempotent, Toolset: SetAccount, Title: "Approve a call",
		Doc: "Approves exactly the call whose digest was read. It is carried out when its caller repeats it, once. Nobody approves their own calls.",
	}
	RejectConfirmation = op.Def[RejectConfirmationIn, ConfirmationOut]{
		Name: "confirmations.reject", Route: "POST /v1/confirmations/{confirmationId}/reject", Action: "identity:confirmations:decide",
		Hints: op.Write | op.Idempotent, Toolset: SetAccount, Title: "Deny a call",
		Doc: "Denies a call for good: its caller is told to stop. One that was approved and not carried out yet is taken back.",
	}
)
