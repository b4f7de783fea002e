// Package caller owns who is calling: the identity that a face has established and that the context carries down.
//
// It does not authenticate and does not decide anything.
package caller

import "context"

// Face is the way a call came in.
type Face string

// The faces.
const (
	FaceHTTP Face = "http"
	FaceMCP  Face = "mcp"
	FaceCLI  Face = "cli"
	FaceNone Face = "internal"
)

// Caller is who is calling and through what. Every field but OrgID and PrincipalID may be empty.
type Caller struct {
	OrgID       string
	WorkspaceID string // the workspace that the credential acts in
	PrincipalID string // the key, agent or person that idempotency, limits and ownership count
	PersonID    string
	AgentID     string
	AppID       string
	KeyID       string
	Scopes      []string // action patterns and the named sets read, write, admin
	Confirm     []string // patterns as of scopes: of its writes, those that a person is to approve first
	Approved    bool     // a person approved this very call; only the path of a call sets it
	ReadOnly    bool     // through a read-only endpoint: nothing changes and nothing wakes
	Face        Face
	Client      string // what the caller's program calls itself; untrusted
	SourceIP    string
	RequestID   string
}

type key struct{}

// With puts the caller into the context.
func With(ctx context.Context, c *Caller) context.Context { return context.WithValue(ctx, key{}, c) }

// From gives the caller of the context, or nil where there is none.
func From(ctx context.Context) *Caller {
	c, _ := ctx.Value(key{}).(*Caller)
	return c
}
