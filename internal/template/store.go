package template

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/berthrun/berth/api"
	"github.com/berthrun/berth/api/op"
	"github.com/berthrun/berth/internal/errs"
)

type store struct{}

// The states of a template's row.
const (
	living  = "living"
	deleted = "deleted"
)

// row is a template in the database. Times are microseconds UTC.
type row struct {
	ID, OrgID, WorkspaceID, Name string
	State                        string
	Versions                     int64
	Defaults                     defaults
	Volumes                      []api.VolumeMount
	Sealed                       string
	CreatedBy                    op.CreatedBy
	PrincipalID                  string
	CreatedAt, UpdatedAt         int64
}

// defaults are what a sandbox of a template begins with where its create says nothing.
type defaults struct {
	TTL         int              `json:"ttlSeconds,omitempty"`
	MaxTTL      int              `json:"maxTtlSeconds,omitempty"`
	IdleSeconds *int             `json:"idlePauseSeconds,omitempty"`
	OnIdle      string           `json:"onIdle,omitempty"`
	OnExpiry    string           `json:"onExpiry,omitempty"`
	Resources   *api.ResourcesIn `json:"resources,omitempty"`
	Internet    *bool            `json:"internet,omitempty"`
}

// secrets are what is sealed in a template's row.
type secrets struct {
	Env      map[string]string `json:"env,omitempty"`
	UserData string            `json:"userData,omitempty"`
}

const columns = `id, org_id, workspace_id, name, state, versions, defaults, volumes, sealed, created_by, principal_id, created_at, updated_at`

type scanner interface{ Scan(dest ...any) error }

func scan(s scanner) (*row, error) {
	var r row
	var def, volumes, by string
	if err := s.Scan(&r.ID, &r.OrgID, &r.WorkspaceID, &r.Name, &r.State, &r.Versions, &def, &volumes, &r.Sealed, &by, &r.PrincipalID, &r.CreatedAt, &r.UpdatedAt); err != nil {
		return nil, err
	}
	for into, text := range map[any]string{&r.Defaults: def, &r.Volumes: volumes, &r.CreatedBy: by} {
		if err := json.Unmarshal([]byte(text), into); err != nil {
			return nil, fmt.Errorf("read template %s: %w", r.ID, err)
		}
	}
	return &r, nil
}

func one[T any](r *T, err error, what string) (*T, error) {
	if errors.Is(err, sql.ErrNoRows) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", what, err)
	}
	return r, nil
}

// get finds a template by id, deleted ones too; nil where there is none.
func (store) get(ctx context.Context, q op.Tx, id string) (*row, error) {
	r, err := scan(q.QueryRowContext(ctx, `SELECT `+columns+` FROM templates WHERE id = $1`, id))
	return one(r, err, "template")
}

// named finds the living template of a name, nil where there is none.
func (store) named(ctx context.Context, q op.Tx, workspaceID, name string) (*row, error) {
	r, err := scan(q.QueryRowContext(ctx, `SELECT `+columns+` FROM templates WHERE workspace_id = $1 AND name = $2 AND state = 'living'`, workspaceID, name))
	return one(r, err, "template")
}

// insert makes a row. It is errLostRace where another one has the name.
func (store) insert(ctx context.Context, tx op.Tx, r *row) error {
	def, volumes, by, err := r.texts()
	if err != nil {
		return err
	}
	res, err := tx.ExecContext(ctx, `INSERT INTO templates (`+columns+`) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13) ON CONFLICT DO NOTHING`,
		r.ID, r.OrgID, r.WorkspaceID, r.Name, r.State, r.Versions, def, volumes, r.Sealed, by, r.PrincipalID, r.CreatedAt, r.UpdatedAt)
	if err != nil {
		return fmt.Errorf("insert template: %w", err)
	}
	if n, _ := res.RowsAffected(); n == 0 {
		return errLostRace
	}
	return nil
}

// save writes what may change of a living template.
func (store) save(ctx context.Context, tx op.Tx, r *row) error {
	def, volumes, _, err := r.texts()
	if err != nil {
		return err
	}
	res, err := tx.ExecContext(ctx, `UPDATE templates SET defaults = $1, volumes = $2, sealed = $3, updated_at = $4 WHERE id = $5 AND state = 'living'`,
		def, volumes, r.Sealed, r.UpdatedAt, r.ID)
	if err != nil {
		return fmt.Errorf("save template: %w", err)
	}
	if n, _ := res.RowsAffected(); n == 0 {
		return errNotFound(r.ID)
	}
	return nil
}

// hold orders what happens to a living template: whoever comes second waits for the end of this transaction.
func (store) hold(ctx context.Context, tx op.Tx, id string) error {
	res, err := tx.ExecContext(ctx, `UPDATE templates SET state = state WHERE id = $1 AND state = 'living'`, id)
	if err != nil {
		return fmt.Errorf("hold template: %w", err)
	}
	if n, _ := res.RowsAffected(); n == 0 {
		return errNotFound(id)
	}
	return nil
}

// number takes the next version of a living template.
func (store) number(ctx context.Context, tx op.Tx, id string, now int64) (n int64, err error) {
	err = tx.QueryRowContext(ctx, `UPDATE templates SET versions = versions + 1, updated_at = $2 WHERE id = $1 AND state = 'living' RETURNING versions`, id, now).Scan(&n)
	if errors.Is(err, sql.ErrNoRows) {
		return 0, errNotFound(id)
	}
	if err != nil {
		return 0, fmt.Errorf("number build: %w", err)
	}
	return n, nil
}

func (r *row) texts() (def, volumes, by string, err error) {
	if r.Volumes == nil {
		r.Volumes = []api.VolumeMount{}
	}
	for into, v := range map[*string]any{&def: r.Defaults, &volumes: r.Volumes, &by: r.CreatedBy} {
		b, err := json.Marshal(v)
		if err != nil {
			return "", "", "", fmt.Errorf("encode template: %w", err)
		}
		*into = string(b)
	}
	return def, volumes, by, nil
}

func (store) list(ctx context.Context, q op.Tx, orgID, workspaceID, name string, afterTime int64, afterID string, limit int) ([]*row, error) {
	where, args := `org_id = $1 AND workspace_id = $2 AND state = 'living'`, []any{orgID, workspaceID}
	add := func(cond string, values ...any) {
		for _, v := range values {
			args = append(args, v)
			cond = strings.Replace(cond, "?", fmt.Sprintf("$%d", len(args)), 1)
		}
		where += " AND " + cond
	}
	if name != "" {
		add("name = ?", name)
	}
	if afterID != "" {
		add("(created_at < ? OR (created_at = ? AND id < ?))", afterTime, afterTime, afterID)
	}
	return collect(scan)(q.QueryContext(ctx, fmt.Sprintf(`SELECT %s FROM templates WHERE %s ORDER BY created_at DESC, id DESC LIMIT %d`, columns, where, limit), args...))
}

// collect reads all rows of a query.
func collect[T any](scan func(scanner) (*T, error)) func(*sql.Rows, error) ([]*T, error) {
	return func(rows *sql.Rows, err error) ([]*T, error) {
		if err != nil {
			return nil, fmt.Errorf("list rows of templates: %w", err)
		}
		defer rows.Close()
		var all []*T
		for rows.Next() {
			r, err := scan(rows)
			if err != nil {
				return nil, fmt.Errorf("list rows of templates: %w", err)
			}
			all = append(all, r)
		}
		return all, rows.Err()
	}
}

// tag is what a tag means.
type tag struct {
	Tag, BuildID string
	Version      int64
}

func scanTag(s scanner) (*tag, error) {
	var t tag
	return &t, s.Scan(&t.Tag, &t.BuildID, &t.Version)
}

// tags gives the tags of a template, in their order.
func (store) tags(ctx context.Context, q op.Tx, templateID string) ([]*tag, error) {
	return collect(scanTag)(q.QueryContext(ctx, `SELECT t.tag, t.build_id, b.version FROM template_tags t JOIN template_builds b ON b.id = t.build_id
		WHERE t.template_id = $1 ORDER BY t.tag`, templateID))
}

// setTag makes a tag mean a build.
func (store) setTag(ctx context.Context, tx op.Tx, templateID, name, buildID string) error {
	_, err := tx.ExecContext(ctx, `INSERT INTO template_tags (template_id, tag, build_id) VALUES ($1, $2, $3)
		ON CONFLICT (template_id, tag) DO UPDATE SET build_id = excluded.build_id`, templateID, name, buildID)
	if err != nil {
		return fmt.Errorf("set tag: %w", err)
	}
	return nil
}

func errNotFound(id string) error {
	return errs.E(errs.NotFound, "there is no template %s", id).Suggest("Check the id; list_templates shows which exist.")
}

func errNoBuild(id string) error {
	return errs.E(errs.NotFound, "there is no build %s", id).Suggest("Check the id; build_template gave it.")
}

// errLostRace says that a row changed between its reading and its writing.
var errLostRace = errs.E(errs.Busy, "the template changed at the same moment").Because("changed").Suggest("Call again with the same idempotencyKey.")
