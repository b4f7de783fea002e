package controlplane

import (
	"context"

	"github.com/berthrun/berth/api/op"
	"github.com/berthrun/berth/internal/blob"
	"github.com/berthrun/berth/internal/chunk/saves"
	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/guest"
	"github.com/berthrun/berth/internal/image"
	"github.com/berthrun/berth/internal/nodeapi"
	"github.com/berthrun/berth/internal/runtime"
	"github.com/berthrun/berth/internal/sandbox"
	"github.com/berthrun/berth/internal/snapshot"
	"github.com/berthrun/berth/internal/template"
)

// openTemplates makes the service of templates, which the sandboxes' service makes sandboxes of.
func (p *Plane) openTemplates() {
	c := template.Config{
		DB: p.db, Sandboxes: builders{p.sandboxes}, Images: bases{p.node, p.images}, Users: templateUsers{p.sandboxes, p.snapshots}, Node: p.node, Blobs: p.blobs, Box: p.box,
		Events: events{p.events}, Defaults: p.cfg.Defaults.Resources, Now: p.cfg.Now, Tick: p.cfg.Tick, Logger: p.cfg.Logger,
	}
	if p.node.Known().Trees {
		c.Storage = layers{p.saves}
	}
	p.templates = template.New(c)
	p.sandboxes.Templates = templates{p.templates}
	p.images.Users = imageUsers{p.sandboxes, p.snapshots, p.templates}
}

// builders lets the templates' service have the sandboxes that it builds in.
type builders struct{ sandboxes *sandbox.Service }

// Make implements template.Sandboxes.
func (b builders) Make(ctx context.Context, s template.Sandbox) error {
	return b.sandboxes.MakeForBuild(ctx, sandbox.BuildSandbox(s))
}

// Await implements template.Sandboxes.
func (b builders) Await(ctx context.Context, id string) (*guest.Client, string, error) {
	return b.sandboxes.AwaitForBuild(ctx, id)
}

// Save implements template.Sandboxes.
func (b builders) Save(ctx context.Context, id, layer string, memory bool) (runtime.Save, error) {
	return b.sandboxes.SaveForBuild(ctx, id, layer, memory)
}

// Explain implements template.Sandboxes.
func (b builders) Explain(ctx context.Context, id string, err error) error {
	return b.sandboxes.ExplainBuild(ctx, id, err)
}

// End implements template.Sandboxes.
func (b builders) End(ctx context.Context, id string) error { return b.sandboxes.EndForBuild(ctx, id) }

// All implements template.Sandboxes.
func (b builders) All(ctx context.Context) (map[string]string, error) {
	return b.sandboxes.ForBuilds(ctx)
}

// MadeOf implements template.Sandboxes.
func (b builders) MadeOf(ctx context.Context, tx op.Tx, layer string) (int, error) {
	return b.sandboxes.MadeOf(ctx, tx, layer)
}

// bases gives what builds begin with.
type bases struct {
	node   *nodeapi.Client
	images *image.Service
}

// Prepared implements template.Images.
func (b bases) Prepared(ctx context.Context, name string) (string, error) {
	image, err := images{b.node}.Image(ctx, name)
	if errs.Is(err, errs.NotFound) {
		return "", nil
	}
	return image, err
}

// CheckReference implements template.Images.
func (b bases) CheckReference(ref string) error { return image.CheckReference(ref) }

// Pull implements template.Images.
func (b bases) Pull(ctx context.Context, orgID, workspaceID string, by op.CreatedBy, ref string) (template.Image, error) {
	id, err := b.images.Resolve(ctx, image.Owner{OrgID: orgID, WorkspaceID: workspaceID, By: by}, ref)
	if err != nil {
		return template.Image{}, err
	}
	img, err := b.images.Await(ctx, id)
	return template.Image{ID: id, Digest: img.Digest, Env: img.Config.Env, WorkingDir: img.Config.WorkingDir, User: img.Config.User}, err
}

// templates lets the sandboxes' service make sandboxes of templates.
type templates struct{ *template.Service }

// Template implements sandbox.Templates.
func (t templates) Template(ctx context.Context, ref string) (*sandbox.Template, error) {
	u, err := t.Service.Template(ctx, ref)
	if err != nil || u == nil {
		return nil, err
	}
	return &sandbox.Template{
		Name: u.Name, BuildID: u.BuildID, ChangedAt: u.ChangedAt, Image: u.Image, ImageID: u.ImageID, Disk: u.Disk, Booted: u.Booted, Token: u.Token, Built: u.Built, Resources: u.Resources,
		Internet: u.Internet, TTL: u.TTL, MaxTTL: u.MaxTTL, IdleSeconds: u.IdleSeconds, OnIdle: u.OnIdle, OnExpiry: u.OnExpiry, Volumes: u.Volumes,
	}, nil
}

// Running implements sandbox.Templates.
func (t templates) Running(ctx context.Context, buildID string) (sandbox.TemplateRun, error) {
	r, err := t.Service.Running(ctx, buildID)
	return sandbox.TemplateRun(r), err
}

// layers keeps the layers of templates off their node.
type layers struct{ keeper *saves.Keeper }

func layerSave(orgID, layer string) saves.Save { return saves.Save{Name: layer, OrgID: orgID} }

// Keep implements template.Storage.
func (l layers) Keep(ctx context.Context, orgID, layer string) error {
	return l.keeper.Keep(ctx, layerSave(orgID, layer))
}

// Fetch implements template.Storage.
func (l layers) Fetch(ctx context.Context, orgID, layer string) error {
	return l.keeper.Fetch(ctx, layerSave(orgID, layer))
}

// Drop implements template.Storage.
func (l layers) Drop(ctx context.Context, orgID, layer string) error {
	return l.keeper.Drop(ctx, layerSave(orgID, layer))
}

// templateUsers are all that were made of templates.
type templateUsers struct {
	sandboxes *sandbox.Service
	snapshots *snapshot.Service
}

// UsingBuilds implements template.Users.
func (u templateUsers) UsingBuilds(ctx context.Context, tx op.Tx, builds []string) ([]string, error) {
	all, err := u.sandboxes.UsingBuilds(ctx, tx, builds)
	if err != nil {
		return nil, err
	}
	more, err := u.snapshots.UsingBuilds(ctx, tx, builds)
	return append(all, more...), err
}

// imageUsers are all that lie above images.
type imageUsers struct {
	sandboxes *sandbox.Service
	snapshots *snapshot.Service
	templates *template.Service
}

// UsingImage implements image.Users.
func (u imageUsers) UsingImage(ctx context.Context, tx op.Tx, imageID string) (total int, err error) {
	for _, using := range []func(context.Context, op.Tx, string) (int, error){u.sandboxes.UsingImage, u.snapshots.UsingImage, u.templates.UsingImage} {
		n, err := using(ctx, tx, imageID)
		if err != nil {
			return 0, err
		}
		total += n
	}
	return total, nil
}

var (
	_ template.Node      = runtime.Driver(nil)
	_ template.Blobs     = (*blob.Store)(nil)
	_ template.Sandboxes = builders{}
	_ template.Images    = bases{}
	_ template.Storage   = layers{}
	_ sandbox.Templates  = templates{}
	_ image.Users        = imageUsers{}
)
