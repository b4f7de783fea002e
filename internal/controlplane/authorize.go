package controlplane

import (
	"context"
	"slices"

	"github.com/berthrun/berth/api/op"
	"github.com/berthrun/berth/internal/caller"
	"github.com/berthrun/berth/internal/identity"
	"github.com/berthrun/berth/internal/policy"
)

// authorizer decides on calls: the scopes of the credential have to allow it, and then the policies of the organization.
type authorizer struct {
	scopes   *identity.Service
	policies *policy.Service
}

// Authorize implements call.Authorizer. Where both would have a person approve, one approval is for both.
func (a authorizer) Authorize(ctx context.Context, c *caller.Caller, o *op.Operation, d *op.Draft) (op.Decision, error) {
	scopes, err := a.scopes.Authorize(ctx, c, o, d)
	if err != nil || !scopes.Allowed && len(scopes.Confirm) == 0 {
		return scopes, err
	}
	policies, err := a.policies.Authorize(ctx, c, o, d)
	if err != nil || scopes.Allowed || !policies.Allowed && len(policies.Confirm) == 0 {
		return policies, err
	}
	scopes.Confirm = append(slices.Clip(scopes.Confirm), policies.Confirm...)
	return scopes, nil
}

// Visible implements call.Authorizer: what is shown depends on scopes alone, for a policy decides on what is done to a single resource.
func (a authorizer) Visible(c *caller.Caller, info op.Info) bool { return a.scopes.Visible(c, info) }
