package identity

import (
	"context"
	"slices"
	"time"

	"github.com/berthrun/berth/api"
	"github.com/berthrun/berth/api/op"
	"github.com/berthrun/berth/internal/caller"
	"github.com/berthrun/berth/internal/db"
	"github.com/berthrun/berth/internal/draft"
	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/id"
)

func (s *Service) actAccount(ctx context.Context, _ *api.None, _ *op.Draft) (*api.AccountOut, error) {
	c := caller.From(ctx)
	org, workspace, err := s.store.names(ctx, s.cfg.DB, c.OrgID, c.WorkspaceID)
	if err != nil {
		return nil, err
	}
	out := &api.AccountOut{
		OrganizationID: c.OrgID, OrganizationName: org, WorkspaceID: c.WorkspaceID, WorkspaceName: workspace, PrincipalID: c.PrincipalID,
		PersonID: c.PersonID, AgentID: c.AgentID, AppID: c.AppID, KeyID: c.KeyID, Scopes: c.Scopes,
	}
	if c.KeyID != "" {
		k, err := s.store.byID(ctx, s.cfg.DB, c.OrgID, c.KeyID)
		if err != nil {
			return nil, err
		}
		if k != nil {
			out.KeyName = k.Name
		}
	}
	return out, nil
}

func (s *Service) actWorkspaces(ctx context.Context, in *api.ListWorkspacesIn, _ *op.Draft) (*api.ListWorkspacesOut, error) {
	c := caller.From(ctx)
	after, err := op.DecodeCursor(in.Cursor, nil, 1)
	if err != nil {
		return nil, err
	}
	from := ""
	if after != nil {
		from = after[0]
	}
	limit := in.Size()
	rows, err := s.store.workspaces(ctx, s.cfg.DB, c.OrgID, from, limit+1)
	if err != nil {
		return nil, err
	}
	out := &api.ListWorkspacesOut{}
	for i, w := range rows {
		if i == limit {
			out.NextCursor = op.EncodeCursor(nil, rows[i-1].ID)
			break
		}
		out.Items = append(out.Items, api.Workspace{ID: w.ID, Name: w.Name, CreatedAt: db.Time(w.CreatedAt), Current: w.ID == c.WorkspaceID})
	}
	return out, nil
}

func (s *Service) actLimits(ctx context.Context, _ *api.None, _ *op.Draft) (*api.LimitsOut, error) {
	c := caller.From(ctx)
	items, err := s.cfg.Limits.List(ctx, c.OrgID)
	if err != nil {
		return nil, err
	}
	perMinute, err := s.cfg.CallsPerMinute(ctx, c.OrgID)
	if err != nil {
		return nil, err
	}
	return &api.LimitsOut{Items: items, CallsPerMinute: int(perMinute), CallsInFlight: s.cfg.CallsInFlight}, nil
}

func (s *Service) draftCreateKey(ctx context.Context, in *api.CreateKeyIn) (*op.Draft, error) {
	c := caller.From(ctx)
	scopes := in.Scopes
	if len(scopes) == 0 {
		scopes = []string{scopeRead, scopeWrite}
	}
	for _, scope := range scopes {
		if !covers(c.Scopes, scope) {
			return nil, errs.E(errs.Forbidden, "a key cannot have the scope %s, which its creator lacks", scope).Because("scope").
				Suggest("Ask for scopes that this credential has; get_account lists them.").With("path", "scopes")
		}
	}
	// What is held back from a caller is held back from the keys that it makes.
	confirm := slices.Clone(c.Confirm)
	for _, pattern := range in.Confirm {
		if !holdsAny(pattern) {
			return nil, errs.E(errs.InvalidInput, "%s holds nothing back: no write has such an action", pattern).
				Suggest("Use write, or the action of a write such as compute:sandboxes:delete; reads are never held back.").With("path", "confirm")
		}
		if !slices.Contains(confirm, pattern) {
			confirm = append(confirm, pattern)
		}
	}
	now := s.now(ctx)
	k := &keyRow{
		ID: id.New(id.Key), OrgID: c.OrgID, WorkspaceID: c.WorkspaceID, Name: in.Name, Scopes: slices.Clone(scopes), Confirm: confirm,
		CreatedBy: draft.By(c), CreatedAt: db.Micros(now),
	}
	if in.TTLSeconds > 0 {
		k.ExpiresAt = db.Micros(now.Add(time.Duration(in.TTLSeconds) * time.Second))
	}
	return &op.Draft{Resource: op.Resource{Kind: "key", ID: k.ID, OrgID: c.OrgID, WorkspaceID: c.WorkspaceID, Name: in.Name}, Data: k}, nil
}

func (s *Service) intentCreateKey(ctx context.Context, tx op.Tx, _ *api.CreateKeyIn, d *op.Draft) error {
	k := *d.Data.(*keyRow)
	k.ID = d.Resource.ID
	if err := s.store.insert(ctx, tx, &k, nil); err != nil {
		return err
	}
	data := map[string]any{"name": k.Name, "scopes": k.Scopes}
	if k.ExpiresAt != 0 {
		data["expiresAt"] = db.Time(k.ExpiresAt).Format(time.RFC3339)
	}
	return s.emit(ctx, tx, &k, "key.created", data)
}

// actCreateKey gives the key its secret. Run again after a crash it gives another one: the first was never shown.
func (s *Service) actCreateKey(ctx context.Context, _ *api.CreateKeyIn, d *op.Draft) (*api.CreateKeyOut, error) {
	secret := newSecret()
	if err := s.store.arm(ctx, s.cfg.DB, d.Resource.ID, hash(secret), last4(secret)); err != nil {
		return nil, err
	}
	k, err := s.key(ctx, d.Resource.ID)
	if err != nil {
		return nil, err
	}
	return &api.CreateKeyOut{Key: show(k), Secret: secret}, nil
}

func (s *Service) key(ctx context.Context, keyID string) (*keyRow, error) {
	k, err := s.store.byID(ctx, s.cfg.DB, caller.From(ctx).OrgID, keyID)
	if err == nil && k == nil {
		err = errs.E(errs.NotFound, "there is no key %s", keyID).Suggest("keys.list shows which exist.")
	}
	return k, err
}

func show(k *keyRow) api.Key {
	return api.Key{
		ID: k.ID, Name: k.Name, Last4: k.Last4, Scopes: k.Scopes, Confirm: k.Confirm, CreatedAt: db.Time(k.CreatedAt), ExpiresAt: timeOf(k.ExpiresAt),
		RevokedAt: timeOf(k.RevokedAt), LastUsed: timeOf(k.LastUsedAt), CreatedBy: k.CreatedBy, Workspace: k.WorkspaceID,
	}
}

func timeOf(us int64) *time.Time {
	if us == 0 {
		return nil
	}
	t := db.Time(us)
	return &t
}

func (s *Service) actListKeys(ctx context.Context, in *api.ListKeysIn, _ *op.Draft) (*api.ListKeysOut, error) {
	before, beforeID, err := op.DecodeMoment(in.Cursor, in.IncludeRevoked)
	if err != nil {
		return nil, err
	}
	limit := in.Size()
	rows, err := s.store.list(ctx, s.cfg.DB, caller.From(ctx).OrgID, in.IncludeRevoked, before, beforeID, limit+1)
	if err != nil {
		return nil, err
	}
	out := &api.ListKeysOut{}
	for i, k := range rows {
		if i == limit {
			last := rows[i-1]
			out.NextCursor = op.EncodeMoment(in.IncludeRevoked, last.CreatedAt, last.ID)
			break
		}
		out.Items = append(out.Items, show(k))
	}
	return out, nil
}

func (s *Service) draftRevoke(ctx context.Context, in *api.RevokeKeyIn) (*op.Draft, error) {
	k, err := s.key(ctx, in.KeyID)
	if err != nil {
		return nil, err
	}
	return &op.Draft{Resource: op.Resource{Kind: "key", ID: k.ID, OrgID: k.OrgID, WorkspaceID: k.WorkspaceID, Name: k.Name, CreatedBy: k.CreatedBy}}, nil
}

func (s *Service) intentRevoke(ctx context.Context, tx op.Tx, in *api.RevokeKeyIn, _ *op.Draft) error {
	s.cfg.DB.NotifyAfter(tx, keysTopic)
	org := caller.From(ctx).OrgID
	revoked, err := s.store.revoke(ctx, tx, org, in.KeyID, db.Micros(s.now(ctx)))
	if err != nil || !revoked {
		return err // it was before
	}
	k, err := s.store.byID(ctx, tx, org, in.KeyID)
	if err != nil || k == nil {
		return err
	}
	return s.emit(ctx, tx, k, "key.revoked", map[string]any{"name": k.Name})
}

// emit records what happened to a key.
func (s *Service) emit(ctx context.Context, tx op.Tx, k *keyRow, kind string, data map[string]any) error {
	if s.cfg.Events == nil {
		return nil
	}
	return s.cfg.Events.Emit(ctx, tx, k.OrgID, k.WorkspaceID, kind, k.ID, data)
}

func (s *Service) actRevoke(ctx context.Context, in *api.RevokeKeyIn, _ *op.Draft) (*api.KeyOut, error) {
	s.forget()
	k, err := s.key(ctx, in.KeyID)
	if err != nil {
		return nil, err
	}
	return &api.KeyOut{Key: show(k)}, nil
}
