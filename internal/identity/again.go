package identity

import (
	"context"

	"github.com/berthrun/berth/internal/caller"
	"github.com/berthrun/berth/internal/db"
)

// Again gives the caller of a key that was authenticated before, as the key is now: for what outlives the call that brought it. A key that is revoked or
// has expired since is errs.Unauthenticated.
func (s *Service) Again(ctx context.Context, org, keyID string) (*caller.Caller, error) {
	k, err := s.store.byID(ctx, s.cfg.DB, org, keyID)
	if err != nil {
		return nil, err
	}
	if k == nil || k.RevokedAt != 0 || k.ExpiresAt != 0 && k.ExpiresAt <= db.Micros(s.now(ctx)) {
		return nil, errUnauthenticated()
	}
	return callerOf(k), nil
}

func callerOf(k *keyRow) *caller.Caller {
	return &caller.Caller{
		OrgID: k.OrgID, WorkspaceID: k.WorkspaceID, PrincipalID: k.ID, KeyID: k.ID, PersonID: k.CreatedBy.Person, AgentID: k.CreatedBy.Agent,
		AppID: k.CreatedBy.App, Scopes: k.Scopes, Confirm: k.Confirm,
	}
}
