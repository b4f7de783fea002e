package template

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/berthrun/berth/api"
	"github.com/berthrun/berth/api/op"
	"github.com/berthrun/berth/internal/caller"
	"github.com/berthrun/berth/internal/db"
	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/id"
	"github.com/berthrun/berth/internal/runtime"
)

// Use is a build of a template as whoever makes sandboxes of it sees it. What is 0 or empty is not said.
type Use struct {
	Name, BuildID    string
	ChangedAt        int64 // microseconds
	Image, ImageID   string
	Disk             string // the layer of its files; empty: the image is all that there is
	Booted, Token    string // the layer with its start command running, and the token of the guest in it
	Built            runtime.Resources
	Resources        runtime.Resources
	Internet         *bool
	TTL, MaxTTL      int
	IdleSeconds      *int
	OnIdle, OnExpiry string
	Volumes          []api.VolumeMount
}

// Run is how sandboxes of a build are run.
type Run struct {
	Env           []string          // name=value, of the build
	Own           map[string]string // of the template, over those
	User, WorkDir string            // empty: the guest's own default
	StartCmd      string
	UserData      string
	MaxTTL        int    // seconds that a sandbox may have left; 0: any
	Disk          string // the layer of its files
}

// resolve finds the build that a name, name:tag, name:version, template's or build's id means now; nil where there is no such template.
func (s *Service) resolve(ctx context.Context, orgID, workspaceID, ref string) (*build, error) {
	return s.resolveIn(ctx, s.DB, orgID, workspaceID, ref)
}

func (s *Service) resolveIn(ctx context.Context, q op.Tx, orgID, workspaceID, ref string) (*build, error) {
	if id.Valid(id.Build, ref) {
		b, err := s.store.build(ctx, q, ref)
		if err != nil || b == nil || b.OrgID != orgID {
			return nil, err
		}
		if b.Status != api.BuildReady {
			return nil, errs.E(errs.InvalidState, "the build %s is %s", b.ID, b.Status).Because(b.Status).With("path", "template")
		}
		return b, nil
	}
	name, want := nameAndTag(ref)
	if want == "" {
		want = latest
	}
	var r *row
	var err error
	if id.Valid(id.Template, name) {
		if r, err = s.store.get(ctx, q, name); r != nil && (r.OrgID != orgID || r.State != living) {
			r = nil
		}
	} else {
		r, err = s.store.named(ctx, q, workspaceID, name)
	}
	if err != nil || r == nil {
		return nil, err
	}
	tags, err := s.store.tags(ctx, q, r.ID)
	if err != nil {
		return nil, err
	}
	build := ""
	for _, t := range tags {
		if t.Tag == want {
			build = t.BuildID
		}
	}
	if n, nerr := strconv.ParseInt(want, 10, 64); build == "" && nerr == nil {
		builds, err := s.store.idsOf(ctx, q, r.ID)
		if err != nil {
			return nil, err
		}
		for _, one := range builds {
			b, err := s.store.build(ctx, q, one)
			if err != nil {
				return nil, err
			}
			if b != nil && b.Version == n && b.Status == api.BuildReady {
				build = b.ID
			}
		}
	}
	switch {
	case build != "":
		return s.store.build(ctx, q, build)
	case want == latest:
		return nil, errs.E(errs.InvalidState, "the template %s has no build that is ready", r.Name).Because("not_built").
			Suggest("get_build_status says how its build goes, and why it failed.").With("path", "template")
	}
	return nil, errs.E(errs.NotFound, "the template %s has no tag %s", r.Name, want).Suggest("get_template shows its tags.").With("path", "template")
}

// Template gives one of the caller's organization by name, name:tag or id; nil where it has none such.
func (s *Service) Template(ctx context.Context, ref string) (*Use, error) {
	c := caller.From(ctx)
	b, err := s.resolve(ctx, c.OrgID, c.WorkspaceID, ref)
	if err != nil || b == nil {
		if err == nil && (id.Valid(id.Template, ref) || id.Valid(id.Build, ref)) {
			err = errNotFound(ref)
		}
		return nil, err
	}
	r, err := s.store.get(ctx, s.DB, b.TemplateID)
	if err != nil || r == nil || r.State != living {
		return nil, err
	}
	d, res := r.Defaults, b.Result
	u := &Use{
		Name: r.Name, BuildID: b.ID, ChangedAt: r.UpdatedAt, Image: res.Image, ImageID: res.ImageID, Disk: res.Disk, Built: res.Built, Resources: d.over(res.Built), Internet: &res.Internet,
		TTL: d.TTL, MaxTTL: d.MaxTTL, IdleSeconds: d.IdleSeconds, OnIdle: d.OnIdle, OnExpiry: d.OnExpiry, Volumes: r.Volumes,
	}
	if d.Internet != nil {
		u.Internet = d.Internet
	}
	if res.Booted != "" {
		l, err := s.store.layer(ctx, s.DB, res.Booted)
		if err != nil {
			return nil, err
		}
		if l != nil && l.Memory && (l.State == layerReady || l.State == layerOld) {
			u.Booted, u.Token = l.ID, l.Token
		}
	}
	return u, nil
}

// Usable refuses, in the transaction that takes a build into use, one whose template or layer is not there any more. Whoever deletes it waits.
func (s *Service) Usable(ctx context.Context, tx op.Tx, buildID, layer string) error {
	b, err := s.store.build(ctx, tx, buildID)
	switch {
	case err != nil:
		return err
	case b == nil:
		return errNoBuild(buildID)
	}
	if err := s.store.hold(ctx, tx, b.TemplateID); err != nil {
		return err
	}
	now := db.Micros(s.Now())
	if _, err := tx.ExecContext(ctx, `UPDATE template_builds SET used_at = $1 WHERE id = $2`, now, buildID); err != nil {
		return fmt.Errorf("note use of build: %w", err)
	}
	return s.touchLayer(ctx, tx, b, layer, now)
}

func (s *Service) usable(ctx context.Context, tx op.Tx, b *build) error {
	return s.touchLayer(ctx, tx, b, b.Result.Disk, db.Micros(s.Now()))
}

func (s *Service) touchLayer(ctx context.Context, tx op.Tx, b *build, layer string, now int64) error {
	if layer == "" {
		return nil
	}
	there, err := s.store.touch(ctx, tx, layer, now)
	if err == nil && !there {
		err = errs.E(errs.NotFound, "version %d of the template %s is not kept any more", b.Version, b.name).Because("collected").Suggest("Build it again, or use the tag latest.")
	}
	return err
}

// Fetch brings a layer to the node, where it is kept elsewhere too.
func (s *Service) Fetch(ctx context.Context, layer string) error {
	if s.Storage == nil {
		return nil
	}
	l, err := s.store.layer(ctx, s.DB, layer)
	if err != nil || l == nil || !l.Stored {
		return err
	}
	return s.Storage.Fetch(ctx, l.OrgID, l.ID)
}

// Running says how sandboxes of a build are run.
func (s *Service) Running(ctx context.Context, buildID string) (Run, error) {
	b, err := s.store.build(ctx, s.DB, buildID)
	if err != nil {
		return Run{}, err
	}
	if b == nil {
		return Run{}, errNoBuild(buildID)
	}
	r, err := s.store.get(ctx, s.DB, b.TemplateID)
	if err != nil {
		return Run{}, err
	}
	res := b.Result
	run := Run{Env: res.Config.Env, User: res.Config.User, WorkDir: res.Config.Dir, StartCmd: res.StartCmd, Disk: res.Disk}
	if run.User == "" && !res.Prepared {
		run.User = "root"
	}
	if r != nil {
		own, err := s.open(ctx, s.DB, r)
		if err != nil {
			return Run{}, err
		}
		run.Own, run.UserData, run.MaxTTL = own.Env, own.UserData, r.Defaults.MaxTTL
	}
	return run, nil
}

// UsingImage counts the builds of living templates that lie above an image.
func (s *Service) UsingImage(ctx context.Context, tx op.Tx, imageID string) (n int, err error) {
	err = tx.QueryRowContext(ctx, `SELECT COUNT(*) FROM template_builds b JOIN templates t ON t.id = b.template_id AND t.state = 'living'
		WHERE b.image_id = $1 AND b.status = 'ready' AND (b.used_at >= $2 OR EXISTS (SELECT 1 FROM template_tags g WHERE g.build_id = b.id))`,
		imageID, db.Micros(s.Now().Add(-s.CacheTime))).Scan(&n)
	if err != nil {
		return 0, fmt.Errorf("count templates of image: %w", err)
	}
	return n, nil
}

// wake has a build looked at without waiting for the next tick.
func (s *Service) wake(build string) {
	s.mu.Lock()
	s.rests[build] = time.Time{}
	s.mu.Unlock()
	s.nudge(build)
}
