// Package draft owns what the drafts of several product areas have in common: who makes something, and calls on the caller's own organization.
//
// It decides nothing and reads no database.
package draft

import (
	"context"

	"github.com/berthrun/berth/api/op"
	"github.com/berthrun/berth/internal/caller"
)

// By is who makes what a call makes.
func By(c *caller.Caller) op.CreatedBy {
	return op.CreatedBy{Person: c.PersonID, Agent: c.AgentID, App: c.AppID, Key: c.KeyID}
}

// OnOrganization is the draft of a call on the caller's own organization.
func OnOrganization[In any](ctx context.Context, _ *In) (*op.Draft, error) {
	c := caller.From(ctx)
	return &op.Draft{Resource: op.Resource{Kind: "organization", ID: c.OrgID, OrgID: c.OrgID, WorkspaceID: c.WorkspaceID}}, nil
}
