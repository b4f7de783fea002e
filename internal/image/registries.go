package image

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/berthrun/berth/api"
	"github.com/berthrun/berth/api/op"
	"github.com/berthrun/berth/internal/caller"
	"github.com/berthrun/berth/internal/db"
	"github.com/berthrun/berth/internal/draft"
	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/image/registry"
	"github.com/berthrun/berth/internal/nodeapi"
)

// splitName gives the host and the repository of an image's name.
func splitName(name string) (host, repository string) {
	host, repository, _ = strings.Cut(name, "/")
	return host, repository
}

// sealedFor is what credentials are bound to.
func sealedFor(host string) string { return "registry/" + host }

// auth gives an organization's credentials of a registry; nil where it has none.
func (s *Service) auth(ctx context.Context, org, host string) (*nodeapi.ImageAuth, error) {
	var sealed string
	err := s.DB.QueryRowContext(ctx, `SELECT sealed FROM registries WHERE org_id = $1 AND host = $2`, org, host).Scan(&sealed)
	if errors.Is(err, sql.ErrNoRows) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read credentials: %w", err)
	}
	plain, err := s.Box.Open(ctx, s.DB, org, sealedFor(host), sealed)
	if err != nil {
		return nil, fmt.Errorf("open credentials: %w", err)
	}
	var a nodeapi.ImageAuth
	if err := json.Unmarshal(plain, &a); err != nil {
		return nil, errors.New("stored credentials cannot be read")
	}
	return &a, nil
}

func (s *Service) draftSetRegistry(ctx context.Context, in *api.SetRegistryIn) (*op.Draft, error) {
	if err := registry.CheckHost(in.Host); err != nil {
		return nil, err
	}
	if (in.Token == "") == (in.Username == "" && in.Password == "") || (in.Token == "" && (in.Username == "" || in.Password == "")) {
		return nil, errs.E(errs.InvalidInput, "give username and password, or a token").With("path", "password")
	}
	if strings.ContainsAny(in.Username+in.Password+in.Token, "\x00\r\n") || strings.Contains(in.Username, ":") {
		return nil, errs.E(errs.InvalidInput, "credentials hold a character that no registry takes").With("path", "username")
	}
	return registryDraft(ctx, registry.HostName(in.Host)), nil
}

func registryDraft(ctx context.Context, host string) *op.Draft {
	c := caller.From(ctx)
	return &op.Draft{Resource: op.Resource{Kind: "registry", ID: host, OrgID: c.OrgID, WorkspaceID: c.WorkspaceID, Name: host}}
}

func (s *Service) intentSetRegistry(ctx context.Context, tx op.Tx, in *api.SetRegistryIn, d *op.Draft) error {
	host, org := d.Resource.ID, d.Resource.OrgID
	plain, err := json.Marshal(nodeapi.ImageAuth{Username: in.Username, Password: in.Password, Token: in.Token})
	if err != nil {
		return errors.New("credentials cannot be encoded")
	}
	sealed, err := s.Box.Seal(ctx, tx, org, sealedFor(host), plain)
	if err != nil {
		return err
	}
	c := caller.From(ctx)
	by, err := json.Marshal(draft.By(c))
	if err != nil {
		return fmt.Errorf("encode creator: %w", err)
	}
	_, err = tx.ExecContext(ctx, `INSERT INTO registries (org_id, host, username, sealed, created_by, created_at, updated_at) VALUES ($1, $2, $3, $4, $5, $6, $6)
		ON CONFLICT (org_id, host) DO UPDATE SET username = excluded.username, sealed = excluded.sealed, updated_at = excluded.updated_at`,
		org, host, in.Username, sealed, string(by), db.Micros(s.Now()))
	if err != nil {
		return fmt.Errorf("store credentials: %w", err)
	}
	return nil
}

func (s *Service) actSetRegistry(ctx context.Context, _ *api.SetRegistryIn, d *op.Draft) (*api.RegistryOut, error) {
	all, err := s.listRegistries(ctx, d.Resource.OrgID, d.Resource.ID, "", 1)
	if err != nil {
		return nil, err
	}
	out := &api.RegistryOut{Status: "done"}
	if len(all) == 1 {
		out.Registry = &all[0]
	}
	return out, nil
}

// listRegistries gives registries in the order of their hosts: one, or those after a host.
func (s *Service) listRegistries(ctx context.Context, org, only, after string, limit int) ([]api.RegistryCredentials, error) {
	rows, err := s.DB.QueryContext(ctx, `SELECT host, username, created_by, created_at, updated_at FROM registries
		WHERE org_id = $1 AND (host = $2 OR $2 = '') AND host > $3 ORDER BY host LIMIT $4`, org, only, after, limit)
	if err != nil {
		return nil, fmt.Errorf("list registries: %w", err)
	}
	defer rows.Close()
	var all []api.RegistryCredentials
	for rows.Next() {
		var r api.RegistryCredentials
		var by string
		var created, updated int64
		if err := rows.Scan(&r.Host, &r.Username, &by, &created, &updated); err != nil {
			return nil, fmt.Errorf("read registry: %w", err)
		}
		if err := json.Unmarshal([]byte(by), &r.CreatedBy); err != nil {
			return nil, fmt.Errorf("read registry: %w", err)
		}
		r.CreatedAt, r.UpdatedAt = db.Time(created), db.Time(updated)
		all = append(all, r)
	}
	return all, rows.Err()
}

func (s *Service) actListRegistries(ctx context.Context, in *api.ListRegistriesIn, _ *op.Draft) (*api.ListRegistriesOut, error) {
	after, err := op.DecodeCursor(in.Cursor, nil, 1)
	if err != nil {
		return nil, err
	}
	from := ""
	if after != nil {
		from = after[0]
	}
	limit := in.Size()
	all, err := s.listRegistries(ctx, caller.From(ctx).OrgID, "", from, limit+1)
	if err != nil {
		return nil, err
	}
	out := &api.ListRegistriesOut{Items: all}
	if len(all) > limit {
		out.Items = all[:limit]
		out.NextCursor = op.EncodeCursor(nil, all[limit-1].Host)
	}
	return out, nil
}

func (s *Service) intentDeleteRegistry(ctx context.Context, tx op.Tx, _ *api.DeleteRegistryIn, d *op.Draft) error {
	res, err := tx.ExecContext(ctx, `DELETE FROM registries WHERE org_id = $1 AND host = $2`, d.Resource.OrgID, d.Resource.ID)
	if err != nil {
		return fmt.Errorf("forget credentials: %w", err)
	}
	n, err := res.RowsAffected()
	d.Data = n > 0
	return err
}
