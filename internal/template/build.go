package template

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/berthrun/berth/api"
	"github.com/berthrun/berth/api/op"
	"github.com/berthrun/berth/internal/db"
	"github.com/berthrun/berth/internal/runtime"
	"github.com/berthrun/berth/internal/template/recipe"
)

// build is a build in the database. Times are microseconds UTC, 0 where there is none.
type build struct {
	ID, OrgID, WorkspaceID, TemplateID string
	Version                            int64
	Status, Reason                     string
	Cancelled                          bool
	Tag                                string
	Recipe                             api.BuildTemplateIn
	Result                             result
	Parent, ContextID, ImageID         string
	Step, Steps, Cached                int64
	CreatedBy                          op.CreatedBy
	PrincipalID                        string
	Owner                              string
	LeaseUntil                         int64
	CreatedAt, StartedAt, FinishedAt   int64
	UsedAt                             int64
	name                               string // of the template, where it was asked for
}

// result is what came of a build.
type result struct {
	Config   recipe.Config     `json:"config"`
	Prepared bool              `json:"prepared,omitempty"` // whoever is not named is the image's own user, not root
	Key      string            `json:"key,omitempty"`      // of its files
	Image    string            `json:"image,omitempty"`    // that they lie above
	ImageID  string            `json:"imageId,omitempty"`
	Disk     string            `json:"disk,omitempty"`   // the layer of its files; empty: the image is all that there is
	Booted   string            `json:"booted,omitempty"` // the layer with its start command running
	Built    runtime.Resources `json:"built"`
	Internet bool              `json:"internet"`
	StartCmd string            `json:"startCmd,omitempty"`
	ReadyCmd string            `json:"readyCmd,omitempty"`
}

const buildColumns = `b.id, b.org_id, b.workspace_id, b.template_id, b.version, b.status, b.reason, b.cancelled, b.tag, b.recipe, b.result, b.parent, b.context_id,
	b.image_id, b.step, b.steps, b.cached, b.created_by, b.principal_id, b.owner, b.lease_until, b.created_at, b.started_at, b.finished_at, b.used_at, t.name`

const fromBuilds = ` FROM template_builds b JOIN templates t ON t.id = b.template_id `

func scanBuild(s scanner) (*build, error) {
	var b build
	var rec, res, by string
	err := s.Scan(&b.ID, &b.OrgID, &b.WorkspaceID, &b.TemplateID, &b.Version, &b.Status, &b.Reason, &b.Cancelled, &b.Tag, &rec, &res, &b.Parent, &b.ContextID,
		&b.ImageID, &b.Step, &b.Steps, &b.Cached, &by, &b.PrincipalID, &b.Owner, &b.LeaseUntil, &b.CreatedAt, &b.StartedAt, &b.FinishedAt, &b.UsedAt, &b.name)
	if err != nil {
		return nil, err
	}
	for into, text := range map[any]string{&b.Recipe: rec, &b.Result: res, &b.CreatedBy: by} {
		if err := json.Unmarshal([]byte(text), into); err != nil {
			return nil, fmt.Errorf("read build %s: %w", b.ID, err)
		}
	}
	return &b, nil
}

// build finds a build by id, nil where there is none.
func (store) build(ctx context.Context, q op.Tx, id string) (*build, error) {
	b, err := scanBuild(q.QueryRowContext(ctx, `SELECT `+buildColumns+fromBuilds+`WHERE b.id = $1`, id))
	return one(b, err, "build")
}

// insertBuild makes the row of a build that waits.
func (store) insertBuild(ctx context.Context, tx op.Tx, b *build) error {
	rec, err := json.Marshal(b.Recipe)
	if err != nil {
		return fmt.Errorf("encode build: %w", err)
	}
	by, err := json.Marshal(b.CreatedBy)
	if err != nil {
		return fmt.Errorf("encode build: %w", err)
	}
	_, err = tx.ExecContext(ctx, `INSERT INTO template_builds (id, org_id, workspace_id, template_id, version, status, tag, recipe, parent, context_id, created_by,
		principal_id, created_at) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13)`,
		b.ID, b.OrgID, b.WorkspaceID, b.TemplateID, b.Version, b.Status, b.Tag, string(rec), b.Parent, b.ContextID, string(by), b.PrincipalID, b.CreatedAt)
	if err != nil {
		return fmt.Errorf("insert build: %w", err)
	}
	return nil
}

// lease takes a build that has not ended for this server, for some time from the database's now on. It is false where another server has it.
func (store) lease(ctx context.Context, tx op.Tx, b *build, server string, now, until int64) (bool, error) {
	res, err := tx.ExecContext(ctx, `UPDATE template_builds SET owner = $1, lease_until = $2, status = 'building', started_at = CASE WHEN started_at = 0 THEN $3 ELSE started_at END
		WHERE id = $4 AND status IN ('waiting', 'building') AND (owner = $1 OR lease_until < $3)`, server, until, now, b.ID)
	if err != nil {
		return false, fmt.Errorf("lease build: %w", err)
	}
	n, _ := res.RowsAffected()
	return n == 1, nil
}

// progress records how far a build is.
func (store) progress(ctx context.Context, tx op.Tx, b *build) error {
	_, err := tx.ExecContext(ctx, `UPDATE template_builds SET step = $1, steps = $2, cached = $3 WHERE id = $4`, b.Step, b.Steps, b.Cached, b.ID)
	if err != nil {
		return fmt.Errorf("record progress: %w", err)
	}
	return nil
}

// finish ends a build that this server has. It is false where it has it no more.
func (store) finish(ctx context.Context, tx op.Tx, b *build, server string) (bool, error) {
	res, err := json.Marshal(b.Result)
	if err != nil {
		return false, fmt.Errorf("encode build: %w", err)
	}
	done, err := tx.ExecContext(ctx, `UPDATE template_builds SET status = $1, reason = $2, result = $3, layer = $4, disk = $5, image_id = $6, step = $7, steps = $8, cached = $9,
		finished_at = $10, used_at = $10, owner = '', lease_until = 0 WHERE id = $11 AND owner = $12 AND status = 'building'`,
		b.Status, b.Reason, string(res), b.Result.Booted, b.Result.Disk, b.Result.ImageID, b.Step, b.Steps, b.Cached, b.FinishedAt, b.ID, server)
	if err != nil {
		return false, fmt.Errorf("finish build: %w", err)
	}
	n, _ := done.RowsAffected()
	return n == 1, nil
}

// unfinished gives builds that somebody has to work on, the oldest of each organization first.
func (store) unfinished(ctx context.Context, q op.Tx) ([]*build, error) {
	return collect(scanBuild)(q.QueryContext(ctx, `SELECT `+buildColumns+fromBuilds+`WHERE b.status IN ('waiting', 'building')
		ORDER BY ROW_NUMBER() OVER (PARTITION BY b.org_id ORDER BY b.created_at), b.created_at LIMIT 200`))
}

// buildFilter is what a list of builds asks for.
type buildFilter struct {
	OrgID, TemplateID string
	Status            []string
	AfterTime         int64
	AfterID           string
	Limit             int
}

func (store) builds(ctx context.Context, q op.Tx, f buildFilter) ([]*build, error) {
	where, args := `b.org_id = $1`, []any{f.OrgID}
	add := func(cond string, values ...any) {
		for _, v := range values {
			args = append(args, v)
			cond = strings.Replace(cond, "?", fmt.Sprintf("$%d", len(args)), 1)
		}
		where += " AND " + cond
	}
	if f.TemplateID != "" {
		add("b.template_id = ?", f.TemplateID)
	}
	if len(f.Status) > 0 {
		values := make([]any, len(f.Status))
		for i, st := range f.Status {
			values[i] = st
		}
		add("b.status IN (?"+strings.Repeat(", ?", len(values)-1)+")", values...)
	}
	if f.AfterID != "" {
		add("(b.created_at < ? OR (b.created_at = ? AND b.id < ?))", f.AfterTime, f.AfterTime, f.AfterID)
	}
	return collect(scanBuild)(q.QueryContext(ctx, fmt.Sprintf(`SELECT %s%s WHERE %s ORDER BY b.created_at DESC, b.id DESC LIMIT %d`, buildColumns, fromBuilds, where, f.Limit), args...))
}

// idsOf gives the ids of a template's builds.
func (store) idsOf(ctx context.Context, q op.Tx, templateID string) ([]string, error) {
	ids, err := collect(func(s scanner) (*string, error) {
		var id string
		return &id, s.Scan(&id)
	})(q.QueryContext(ctx, `SELECT id FROM template_builds WHERE template_id = $1`, templateID))
	out := make([]string, len(ids))
	for i, id := range ids {
		out[i] = *id
	}
	return out, err
}

// show is a build as callers see it.
func (b *build) show() api.Build {
	t := b.Tag
	if t == latest {
		t = ""
	}
	return api.Build{
		ID: b.ID, TemplateID: b.TemplateID, Name: b.name, Version: b.Version, Tag: t, Status: b.Status, Reason: b.Reason, Step: b.Step, Steps: b.Steps, Cached: b.Cached,
		CreatedAt: db.Time(b.CreatedAt), StartedAt: timeOf(b.StartedAt), FinishedAt: timeOf(b.FinishedAt), CreatedBy: b.CreatedBy,
	}
}

func (b *build) resource() op.Resource {
	return op.Resource{Kind: "template", ID: b.TemplateID, OrgID: b.OrgID, WorkspaceID: b.WorkspaceID, Name: b.name, CreatedBy: b.CreatedBy}
}
