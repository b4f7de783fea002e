package template

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/berthrun/berth/api"
	"github.com/berthrun/berth/api/op"
	"github.com/berthrun/berth/internal/caller"
	"github.com/berthrun/berth/internal/db"
	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/id"
	"github.com/berthrun/berth/internal/runtime"
)

func (s *Service) registerTemplates(r *op.Registry) {
	op.Handle(r, api.ListTemplates, op.Handler[api.ListTemplatesIn, api.ListTemplatesOut]{Draft: collection[api.ListTemplatesIn], Act: s.actList})
	op.Handle(r, api.GetTemplate, op.Handler[api.TemplateIn, api.GetTemplateOut]{
		Draft: func(ctx context.Context, in *api.TemplateIn) (*op.Draft, error) { return s.draft(ctx, in.TemplateID) },
		Act: func(ctx context.Context, in *api.TemplateIn, _ *op.Draft) (*api.GetTemplateOut, error) {
			t, err := s.shown(ctx, in.TemplateID)
			if err != nil {
				return nil, err
			}
			return &api.GetTemplateOut{Template: *t}, nil
		},
	})
	op.Handle(r, api.UpdateTemplate, op.Handler[api.UpdateTemplateIn, api.TemplateOut]{
		Draft: s.draftUpdate, Intent: s.intentUpdate,
		Act: func(ctx context.Context, in *api.UpdateTemplateIn, _ *op.Draft) (*api.TemplateOut, error) {
			return s.out(ctx, in.TemplateID)
		},
	})
	op.Handle(r, api.SetTemplateVolumes, op.Handler[api.SetTemplateVolumesIn, api.TemplateOut]{
		Draft: func(ctx context.Context, in *api.SetTemplateVolumesIn) (*op.Draft, error) {
			return s.draft(ctx, in.TemplateID)
		},
		Intent: s.intentVolumes,
		Act: func(ctx context.Context, in *api.SetTemplateVolumesIn, _ *op.Draft) (*api.TemplateOut, error) {
			return s.out(ctx, in.TemplateID)
		},
	})
	op.Handle(r, api.DeleteTemplate, op.Handler[api.DeleteTemplateIn, api.DeleteTemplateOut]{
		Draft: s.draftDelete, Intent: s.intentDelete,
		Act: func(_ context.Context, in *api.DeleteTemplateIn, _ *op.Draft) (*api.DeleteTemplateOut, error) {
			return &api.DeleteTemplateOut{TemplateID: in.TemplateID, Deleted: true}, nil
		},
	})
}

// collection is the draft of a call on all templates of the caller's organization.
func collection[In any](ctx context.Context, _ *In) (*op.Draft, error) {
	c := caller.From(ctx)
	return &op.Draft{Resource: op.Resource{Kind: "template", OrgID: c.OrgID, WorkspaceID: c.WorkspaceID}}, nil
}

func (r *row) resource() op.Resource {
	return op.Resource{Kind: "template", ID: r.ID, OrgID: r.OrgID, WorkspaceID: r.WorkspaceID, Name: r.Name, Version: r.UpdatedAt, CreatedBy: r.CreatedBy}
}

// find gives a template of the caller's organization, errs.NotFound for another's and for a deleted one.
func (s *Service) findTemplate(ctx context.Context, q op.Tx, id string) (*row, error) {
	r, err := s.findDeleted(ctx, q, id)
	if err == nil && r.State == deleted {
		return nil, errNotFound(id)
	}
	return r, err
}

func (s *Service) findDeleted(ctx context.Context, q op.Tx, id string) (*row, error) {
	r, err := s.store.get(ctx, q, id)
	if err != nil {
		return nil, err
	}
	if c := caller.From(ctx); r == nil || c == nil || r.OrgID != c.OrgID {
		return nil, errNotFound(id)
	}
	return r, nil
}

func (s *Service) draft(ctx context.Context, id string) (*op.Draft, error) {
	r, err := s.findTemplate(ctx, s.DB, id)
	if err != nil {
		return nil, err
	}
	return &op.Draft{Resource: r.resource()}, nil
}

func (s *Service) out(ctx context.Context, id string) (*api.TemplateOut, error) {
	t, err := s.shown(ctx, id)
	if err != nil {
		return nil, err
	}
	return &api.TemplateOut{Status: "done", Template: t}, nil
}

func (s *Service) shown(ctx context.Context, id string) (*api.Template, error) {
	r, err := s.findTemplate(ctx, s.DB, id)
	if err != nil {
		return nil, err
	}
	return s.show(ctx, r)
}

// show is a template as callers see it: never its environment and user data.
func (s *Service) show(ctx context.Context, r *row) (*api.Template, error) {
	tags, err := s.store.tags(ctx, s.DB, r.ID)
	if err != nil {
		return nil, err
	}
	d := r.Defaults
	t := &api.Template{
		ID: r.ID, Name: r.Name, Tags: []api.TemplateTag{}, TTLSeconds: d.TTL, MaxTTLSeconds: d.MaxTTL, IdlePauseSeconds: d.IdleSeconds, OnIdle: d.OnIdle, OnExpiry: d.OnExpiry,
		Volumes: r.Volumes, WorkspaceID: r.WorkspaceID, CreatedAt: timeOf(r.CreatedAt), UpdatedAt: timeOf(r.UpdatedAt), CreatedBy: r.CreatedBy,
	}
	var built result
	for _, one := range tags {
		t.Tags = append(t.Tags, api.TemplateTag{Tag: one.Tag, BuildID: one.BuildID, Version: one.Version})
		if one.Tag != latest {
			continue
		}
		b, err := s.store.build(ctx, s.DB, one.BuildID)
		if err != nil {
			return nil, err
		}
		if b != nil {
			built, t.BuildID, t.Version, t.Ready = b.Result, b.ID, b.Version, true
		}
	}
	res := d.over(s.over(built.Built))
	t.Resources = api.Resources{VCPU: res.VCPU, MemoryMiB: res.MemoryMiB, DiskGiB: &res.DiskGiB}
	t.Network.Internet = t.Ready && built.Internet || !t.Ready
	if d.Internet != nil {
		t.Network.Internet = *d.Internet
	}
	t.StartCmd, t.ReadyCmd, t.Booted = built.StartCmd, built.ReadyCmd, built.Booted != ""
	t.Stored = t.Ready && s.Storage != nil
	for _, layer := range []string{built.Disk, built.Booted} {
		if layer == "" || !t.Stored {
			continue
		}
		l, err := s.store.layer(ctx, s.DB, layer)
		if err != nil {
			return nil, err
		}
		t.Stored = l != nil && l.Stored
	}
	return t, nil
}

// over gives resources, and the deployment's own where there are none.
func (s *Service) over(r runtime.Resources) runtime.Resources {
	if r.MemoryMiB == 0 {
		return s.Defaults
	}
	return r
}

// over puts a template's defaults over what it was built with.
func (d defaults) over(r runtime.Resources) runtime.Resources {
	if d.Resources == nil {
		return r
	}
	if d.Resources.VCPU > 0 {
		r.VCPU = d.Resources.VCPU
	}
	if d.Resources.MemoryMiB > 0 {
		r.MemoryMiB = d.Resources.MemoryMiB
	}
	if d.Resources.DiskGiB > 0 {
		r.DiskGiB = d.Resources.DiskGiB
	}
	return r
}

func (s *Service) actList(ctx context.Context, in *api.ListTemplatesIn, _ *op.Draft) (*api.ListTemplatesOut, error) {
	c := caller.From(ctx)
	limit := in.Size()
	bound := *in
	bound.Cursor, bound.Limit = "", 0
	at, afterID, err := op.DecodeMoment(in.Cursor, bound)
	if err != nil {
		return nil, err
	}
	rows, err := s.store.list(ctx, s.DB, c.OrgID, c.WorkspaceID, in.Name, at, afterID, limit+1)
	if err != nil {
		return nil, err
	}
	out := &api.ListTemplatesOut{}
	if len(rows) > limit {
		rows = rows[:limit]
		out.NextCursor = op.EncodeMoment(bound, rows[limit-1].CreatedAt, rows[limit-1].ID)
	}
	for _, r := range rows {
		t, err := s.show(ctx, r)
		if err != nil {
			return nil, err
		}
		out.Items = append(out.Items, *t)
	}
	if out.NextCursor == nil && (in.Name == "" || in.Name == builtIn) {
		image, err := s.Images.Prepared(ctx, builtIn)
		if err != nil {
			return nil, err
		}
		if image != "" { // the oldest of all
			disk := s.Defaults.DiskGiB
			out.Items = append(out.Items, api.Template{
				ID: builtIn, Name: builtIn, BuiltIn: true, Ready: true, Tags: []api.TemplateTag{}, Volumes: []api.VolumeMount{},
				Resources: api.Resources{VCPU: s.Defaults.VCPU, MemoryMiB: s.Defaults.MemoryMiB, DiskGiB: &disk}, Network: api.Network{Internet: true},
			})
		}
	}
	return out, nil
}

func (s *Service) draftUpdate(ctx context.Context, in *api.UpdateTemplateIn) (*op.Draft, error) {
	if in.BuildID != "" {
		if _, err := s.findBuild(ctx, s.DB, in.BuildID); err != nil {
			return nil, err
		}
	}
	d, err := s.draft(ctx, in.TemplateID)
	if err != nil {
		return nil, err
	}
	if (in.Tag == "") != (in.BuildID == "") {
		return nil, errs.E(errs.InvalidInput, "tag and buildId go together").Suggest("buildId says which build the tag is to mean: get_template shows those that have tags.").With("path", "tag")
	}
	for name, n := range map[string]*int{"ttlSeconds": in.TTLSeconds, "maxTtlSeconds": in.MaxTTLSeconds, "idlePauseSeconds": in.IdlePauseSeconds} {
		if n != nil && *n != 0 && *n < 60 {
			return nil, errs.E(errs.InvalidInput, "%s must be 0 or at least 60", name).With("path", name)
		}
	}
	if err := checkEnv(in.Env); err != nil {
		return nil, err
	}
	if in.UserData != nil && strings.ContainsRune(*in.UserData, 0) {
		return nil, errs.E(errs.InvalidInput, "userData must not hold NUL").With("path", "userData")
	}
	return d, nil
}

func checkEnv(env map[string]string) error {
	total := 0
	for k, v := range env {
		total += len(k) + len(v)
		if k == "" || strings.ContainsAny(k, "=\x00") || strings.ContainsRune(v, 0) {
			return errs.E(errs.InvalidInput, "env has a name or value that no process can take").With("path", "env")
		}
	}
	if total > api.MaxText {
		return errs.E(errs.InvalidInput, "env must hold at most %d bytes", api.MaxText).With("path", "env")
	}
	return nil
}

func (s *Service) intentUpdate(ctx context.Context, tx op.Tx, in *api.UpdateTemplateIn, _ *op.Draft) error {
	r, err := s.findTemplate(ctx, tx, in.TemplateID)
	if err != nil {
		return err
	}
	if err := s.store.hold(ctx, tx, r.ID); err != nil {
		return err
	}
	d := &r.Defaults
	set(&d.TTL, in.TTLSeconds)
	set(&d.MaxTTL, in.MaxTTLSeconds)
	if in.IdlePauseSeconds != nil {
		d.IdleSeconds = in.IdlePauseSeconds
	}
	if in.OnIdle != "" {
		d.OnIdle = in.OnIdle
	}
	if in.OnExpiry != "" {
		d.OnExpiry = in.OnExpiry
	}
	if in.Resources != nil {
		d.Resources = in.Resources
	}
	if in.Network != nil {
		d.Internet = in.Network.Internet
	}
	if d.MaxTTL > 0 && d.TTL > d.MaxTTL {
		return errs.E(errs.InvalidInput, "ttlSeconds is more than maxTtlSeconds").With("path", "ttlSeconds")
	}
	if in.Env != nil || in.UserData != nil {
		if err := s.seal(ctx, tx, r, in); err != nil {
			return err
		}
	}
	if in.BuildID != "" {
		b, err := s.findBuild(ctx, tx, in.BuildID)
		switch {
		case err != nil:
			return err
		case b.TemplateID != r.ID:
			return errs.E(errs.InvalidInput, "the build %s is of the template %s", b.ID, b.name).With("path", "buildId")
		case b.Status != api.BuildReady:
			return errs.E(errs.InvalidState, "the build is %s", b.Status).Because(b.Status).With("path", "buildId")
		}
		if err := s.usable(ctx, tx, b); err != nil {
			return err
		}
		if err := s.store.setTag(ctx, tx, r.ID, in.Tag, b.ID); err != nil {
			return err
		}
	}
	r.UpdatedAt = db.Micros(s.Now())
	return s.store.save(ctx, tx, r)
}

func set[T any](into *T, v *T) {
	if v != nil {
		*into = *v
	}
}

// seal changes what is secret of a template.
func (s *Service) seal(ctx context.Context, tx op.Tx, r *row, in *api.UpdateTemplateIn) error {
	now, err := s.open(ctx, tx, r)
	if err != nil {
		return err
	}
	if in.Env != nil {
		now.Env = in.Env
	}
	set(&now.UserData, in.UserData)
	if len(now.Env) == 0 && now.UserData == "" {
		r.Sealed = ""
		return nil
	}
	plain, err := json.Marshal(now)
	if err != nil {
		return fmt.Errorf("encode secrets: %w", err)
	}
	r.Sealed, err = s.Box.Seal(ctx, tx, r.OrgID, "template/"+r.ID, plain)
	return err
}

// open gives what is secret of a template.
func (s *Service) open(ctx context.Context, q op.Tx, r *row) (secrets, error) {
	var out secrets
	if r.Sealed == "" {
		return out, nil
	}
	plain, err := s.Box.Open(ctx, q, r.OrgID, "template/"+r.ID, r.Sealed)
	if err != nil {
		return out, err
	}
	if err := json.Unmarshal(plain, &out); err != nil {
		return out, fmt.Errorf("read secrets: %w", err)
	}
	return out, nil
}

func (s *Service) intentVolumes(ctx context.Context, tx op.Tx, in *api.SetTemplateVolumesIn, _ *op.Draft) error {
	r, err := s.findTemplate(ctx, tx, in.TemplateID)
	if err != nil {
		return err
	}
	for i, v := range in.Volumes {
		path := fmt.Sprintf("volumes[%d]", i)
		if v.Path == "" {
			continue
		}
		if err := runtime.CheckMountPath(v.Path); err != nil {
			return errs.From(err).With("path", path+".path")
		}
	}
	r.Volumes, r.UpdatedAt = in.Volumes, db.Micros(s.Now())
	return s.store.save(ctx, tx, r)
}

func (s *Service) draftDelete(ctx context.Context, in *api.DeleteTemplateIn) (*op.Draft, error) {
	r, err := s.findDeleted(ctx, s.DB, in.TemplateID)
	if err != nil {
		return nil, err
	}
	return &op.Draft{Resource: r.resource()}, nil
}

func (s *Service) intentDelete(ctx context.Context, tx op.Tx, in *api.DeleteTemplateIn, _ *op.Draft) error {
	r, err := s.findDeleted(ctx, tx, in.TemplateID)
	if err != nil || r.State == deleted {
		return err
	}
	// First, so that whoever takes it into use at this moment has come before, or finds it gone.
	if _, err := tx.ExecContext(ctx, `UPDATE templates SET state = 'deleted', updated_at = $1 WHERE id = $2 AND state = 'living'`, db.Micros(s.Now()), r.ID); err != nil {
		return fmt.Errorf("delete template: %w", err)
	}
	builds, err := s.store.idsOf(ctx, tx, r.ID)
	if err != nil {
		return err
	}
	users, err := s.Users.UsingBuilds(ctx, tx, builds)
	if err != nil {
		return err
	}
	below, err := s.store.builtFrom(ctx, tx, r.ID)
	if err != nil {
		return err
	}
	if users = append(users, below...); len(users) > 0 {
		return errs.E(errs.InvalidState, "the template is in use by %s", strings.Join(users, ", ")).Because("in_use").
			Suggest("Delete what uses it first.").With("users", users)
	}
	for _, query := range []string{
		`DELETE FROM template_tags WHERE template_id = $1`,
		`UPDATE template_builds SET cancelled = 1 WHERE template_id = $1 AND status IN ('waiting', 'building')`,
	} {
		if _, err := tx.ExecContext(ctx, query, r.ID); err != nil {
			return fmt.Errorf("delete template: %w", err)
		}
	}
	return s.Events.Append(ctx, tx, r.OrgID, r.WorkspaceID, "template.deleted", r.ID, map[string]any{"name": r.Name})
}

// builtFrom gives the ids of living templates of which a tag means, or will mean, a build that was made from this one.
func (store) builtFrom(ctx context.Context, q op.Tx, templateID string) ([]string, error) {
	ids, err := collect(func(s scanner) (*string, error) {
		var id string
		return &id, s.Scan(&id)
	})(q.QueryContext(ctx, `SELECT DISTINCT c.template_id FROM template_builds c JOIN templates t ON t.id = c.template_id AND t.state = 'living'
		WHERE c.template_id <> $1 AND c.parent IN (SELECT id FROM template_builds WHERE template_id = $1)
		AND (c.status IN ('waiting', 'building') OR EXISTS (SELECT 1 FROM template_tags g WHERE g.build_id = c.id)) LIMIT 10`, templateID))
	out := make([]string, len(ids))
	for i, id := range ids {
		out[i] = *id
	}
	return out, err
}

// nameAndTag takes name:tag apart.
func nameAndTag(ref string) (name, tag string) {
	name, tag, _ = strings.Cut(ref, ":")
	return name, tag
}

// templateOf is the id of the template of one effect: the same at every repetition.
func idOf(k id.Kind, d *op.Draft) string {
	_, rest, _ := strings.Cut(d.Once, "_")
	return string(k) + "_" + rest
}
