package template

import (
	"context"
	"database/sql"
	"time"

	"github.com/berthrun/berth/api"
	"github.com/berthrun/berth/api/op"
	"github.com/berthrun/berth/internal/caller"
	"github.com/berthrun/berth/internal/db"
	"github.com/berthrun/berth/internal/draft"
	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/id"
)

func (s *Service) registerBuilds(r *op.Registry) {
	op.Handle(r, api.BuildTemplate, op.Handler[api.BuildTemplateIn, api.BuildTemplateOut]{Draft: s.draftBuild, Intent: s.intentBuild, Act: s.actBuild})
	op.Handle(r, api.GetBuild, op.Handler[api.GetBuildIn, api.GetBuildOut]{
		Draft: func(ctx context.Context, in *api.GetBuildIn) (*op.Draft, error) {
			return s.draftOf(ctx, in.BuildID, in.TemplateID)
		},
		Act: func(ctx context.Context, in *api.GetBuildIn, _ *op.Draft) (*api.GetBuildOut, error) {
			b, err := s.findBuild(ctx, s.DB, in.BuildID)
			if err != nil {
				return nil, err
			}
			return &api.GetBuildOut{Build: b.show()}, nil
		},
	})
	op.Handle(r, api.BuildLogs, op.Handler[api.BuildLogsIn, api.BuildLogsOut]{
		Draft: func(ctx context.Context, in *api.BuildLogsIn) (*op.Draft, error) {
			return s.draftOf(ctx, in.BuildID, in.TemplateID)
		}, Act: s.actLogs,
	})
	op.Handle(r, api.ListBuilds, op.Handler[api.ListBuildsIn, api.ListBuildsOut]{
		Draft: func(ctx context.Context, in *api.ListBuildsIn) (*op.Draft, error) {
			if in.TemplateID != "" {
				return s.draft(ctx, in.TemplateID)
			}
			return collection(ctx, in)
		}, Act: s.actBuilds,
	})
	op.Handle(r, api.CancelBuild, op.Handler[api.CancelBuildIn, api.BuildOut]{
		Draft: func(ctx context.Context, in *api.CancelBuildIn) (*op.Draft, error) {
			return s.draftOf(ctx, in.BuildID, "")
		},
		Intent: s.intentCancel, Act: s.actCancel,
	})
}

// findBuild gives a build of the caller's organization, errs.NotFound for another's and for one of a deleted template.
func (s *Service) findBuild(ctx context.Context, q op.Tx, id string) (*build, error) {
	b, err := s.store.build(ctx, q, id)
	if err != nil {
		return nil, err
	}
	if c := caller.From(ctx); b == nil || c == nil || b.OrgID != c.OrgID {
		return nil, errNoBuild(id)
	}
	return b, nil
}

func (s *Service) draftOf(ctx context.Context, buildID, templateID string) (*op.Draft, error) {
	b, err := s.findBuild(ctx, s.DB, buildID)
	if err != nil {
		return nil, err
	}
	if templateID != "" && templateID != b.TemplateID {
		if _, err := s.findTemplate(ctx, s.DB, templateID); err != nil {
			return nil, err
		}
		return nil, errs.E(errs.NotFound, "the build %s is of another template", buildID).Suggest("Leave templateId out.").With("path", "templateId")
	}
	return &op.Draft{Resource: b.resource()}, nil
}

func (s *Service) draftBuild(ctx context.Context, in *api.BuildTemplateIn) (*op.Draft, error) {
	c := caller.From(ctx)
	rec, err := read(in)
	if err != nil {
		return nil, err
	}
	if err := s.checkSources(ctx, c, in, rec); err != nil {
		return nil, err
	}
	if !s.Node.Capabilities().Saves {
		return nil, errs.E(errs.Unavailable, "templates cannot be built in this deployment").Because("not_supported").
			Suggest("list_capabilities says what is on and what the rest needs.")
	}
	name, _ := nameAndTag(in.Name)
	if image, err := s.Images.Prepared(ctx, name); err != nil || image != "" {
		if err == nil {
			err = errs.E(errs.AlreadyExists, "%s is built in", name).Suggest("Choose another name; fromTemplate: %s builds on it.", name).With("path", "name")
		}
		return nil, err
	}
	r, err := s.store.named(ctx, s.DB, c.WorkspaceID, name)
	if err != nil {
		return nil, err
	}
	if r != nil {
		return &op.Draft{Resource: r.resource()}, nil
	}
	return &op.Draft{Resource: op.Resource{Kind: "template", OrgID: c.OrgID, WorkspaceID: c.WorkspaceID, Name: name}}, nil
}

func (s *Service) intentBuild(ctx context.Context, tx op.Tx, in *api.BuildTemplateIn, d *op.Draft) error {
	c, now := caller.From(ctx), db.Micros(s.Now())
	by := draft.By(c)
	name, tag := nameAndTag(in.Name)
	r, err := s.store.named(ctx, tx, c.WorkspaceID, name)
	if err != nil {
		return err
	}
	if r == nil {
		r = &row{
			ID: idOf(id.Template, d), OrgID: c.OrgID, WorkspaceID: c.WorkspaceID, Name: name, State: living, CreatedBy: by, PrincipalID: c.PrincipalID, CreatedAt: now, UpdatedAt: now,
		}
		if err := s.store.insert(ctx, tx, r); err != nil {
			return err
		}
	}
	b := &build{
		ID: idOf(id.Build, d), OrgID: r.OrgID, WorkspaceID: r.WorkspaceID, TemplateID: r.ID, Status: api.BuildWaiting, Tag: tag, Recipe: *in, ContextID: in.ContextID,
		CreatedBy: by, PrincipalID: c.PrincipalID, CreatedAt: now,
	}
	b.Recipe.IdempotencyKey = ""
	if b.Version, err = s.store.number(ctx, tx, r.ID, now); err != nil {
		return err
	}
	if in.FromTemplate != "" {
		p, err := s.resolveIn(ctx, tx, c.OrgID, c.WorkspaceID, in.FromTemplate)
		if err != nil {
			return err
		}
		if p != nil {
			b.Parent = p.ID
			// What the tag means now is what is built from, and nobody deletes it meanwhile.
			b.Recipe.FromTemplate = p.ID
			if err := s.usable(ctx, tx, p); err != nil {
				return err
			}
		}
	}
	if in.ContextID != "" {
		if err := s.useContext(ctx, tx, in.ContextID); err != nil {
			return err
		}
	}
	if err := s.store.insertBuild(ctx, tx, b); err != nil {
		return err
	}
	d.Resource = r.resource()
	return s.Events.Append(ctx, tx, r.OrgID, r.WorkspaceID, "template.waiting", r.ID, map[string]any{"buildId": b.ID, "version": b.Version})
}

func (s *Service) actBuild(ctx context.Context, _ *api.BuildTemplateIn, d *op.Draft) (*api.BuildTemplateOut, error) {
	b, err := s.store.build(ctx, s.DB, idOf(id.Build, d))
	if err != nil {
		return nil, err
	}
	if b == nil {
		return nil, errNoBuild(idOf(id.Build, d))
	}
	s.nudge(b.ID)
	return &api.BuildTemplateOut{Status: "done", TemplateID: b.TemplateID, BuildID: b.ID, Name: b.name, Version: b.Version}, nil
}

func (s *Service) actBuilds(ctx context.Context, in *api.ListBuildsIn, _ *op.Draft) (*api.ListBuildsOut, error) {
	limit := in.Size()
	bound := *in
	bound.Cursor, bound.Limit = "", 0
	at, afterID, err := op.DecodeMoment(in.Cursor, bound)
	if err != nil {
		return nil, err
	}
	builds, err := s.store.builds(ctx, s.DB, buildFilter{OrgID: caller.From(ctx).OrgID, TemplateID: in.TemplateID, Status: in.Status, AfterTime: at, AfterID: afterID, Limit: limit + 1})
	if err != nil {
		return nil, err
	}
	out := &api.ListBuildsOut{}
	if len(builds) > limit {
		builds = builds[:limit]
		out.NextCursor = op.EncodeMoment(bound, builds[limit-1].CreatedAt, builds[limit-1].ID)
	}
	for _, b := range builds {
		out.Items = append(out.Items, b.show())
	}
	return out, nil
}

func (s *Service) actLogs(ctx context.Context, in *api.BuildLogsIn, _ *op.Draft) (*api.BuildLogsOut, error) {
	limit, offset := in.Limit, in.Offset
	if limit == 0 {
		limit = 100
	}
	if offset < 0 {
		n, err := s.store.written(ctx, s.DB, in.BuildID)
		if err != nil {
			return nil, err
		}
		offset = max(n+offset, 0)
	}
	most := time.Duration(in.WaitSeconds) * time.Second
	if deadline, ok := ctx.Deadline(); ok {
		most = min(most, time.Until(deadline)-2*time.Second)
	}
	return db.Settled(ctx, s.DB, topic(in.BuildID), most, op.Yield, func(ctx context.Context) (*api.BuildLogsOut, error) {
		// The status first: what is written once it has ended was there before.
		b, err := s.findBuild(ctx, s.DB, in.BuildID)
		if err != nil {
			return nil, err
		}
		lines, err := s.store.lines(ctx, s.DB, in.BuildID, offset, limit)
		if err != nil {
			return nil, err
		}
		return &api.BuildLogsOut{
			Lines: lines, NextOffset: offset + int64(len(lines)), End: ended(b.Status) && len(lines) < limit, Status: b.Status, Reason: b.Reason,
		}, nil
	}, func(out *api.BuildLogsOut) bool { return len(out.Lines) > 0 || out.End })
}

func (s *Service) intentCancel(ctx context.Context, tx op.Tx, in *api.CancelBuildIn, _ *op.Draft) error {
	_, err := tx.ExecContext(ctx, `UPDATE template_builds SET cancelled = 1 WHERE id = $1 AND status IN ('waiting', 'building')`, in.BuildID)
	if t, ok := tx.(*sql.Tx); ok {
		s.DB.NotifyAfter(t, topic(in.BuildID))
	}
	return err
}

// cancelWait is how long a cancel waits for the build's end.
const cancelWait = 5 * time.Second

func (s *Service) actCancel(ctx context.Context, in *api.CancelBuildIn, _ *op.Draft) (*api.BuildOut, error) {
	s.DB.Notify(ctx, topic(in.BuildID))
	s.wake(in.BuildID)
	b, err := db.Settled(ctx, s.DB, topic(in.BuildID), cancelWait, op.Yield, func(ctx context.Context) (*build, error) { return s.findBuild(ctx, s.DB, in.BuildID) },
		func(b *build) bool { return ended(b.Status) })
	if err != nil {
		return nil, err
	}
	shown := b.show()
	return &api.BuildOut{Status: "done", Build: &shown}, nil
}
