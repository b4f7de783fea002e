package controlplane

import (
	"context"

	"github.com/berthrun/berth/api"
	"github.com/berthrun/berth/api/op"
	"github.com/berthrun/berth/internal/image"
	"github.com/berthrun/berth/internal/sandbox"
	"github.com/berthrun/berth/internal/secret"
)

// openImages makes the service of images; who uses them is set once the sandboxes' service is there.
func (p *Plane) openImages() error {
	var wrapper secret.Wrapper
	if p.cfg.KeyFile != "" {
		var err error
		if wrapper, err = secret.File(p.cfg.KeyFile); err != nil {
			return err
		}
	}
	p.box = secret.New(wrapper, p.cfg.Now)
	p.images = image.New(image.Config{
		DB: p.db, Node: p.node.Images(), Box: p.box, Events: events{p.events}, Now: p.cfg.Now, Logger: p.cfg.Logger,
	})
	return nil
}

// pulled lets the sandboxes' service use images.
type pulled struct{ images *image.Service }

// CheckReference implements sandbox.Pulled.
func (p pulled) CheckReference(ref string) error { return image.CheckReference(ref) }

// Resolve implements sandbox.Pulled.
func (p pulled) Resolve(ctx context.Context, orgID, workspaceID string, by op.CreatedBy, ref string) (string, error) {
	return p.images.Resolve(ctx, image.Owner{OrgID: orgID, WorkspaceID: workspaceID, By: by}, ref)
}

// Await implements sandbox.Pulled.
func (p pulled) Await(ctx context.Context, imageID string) (sandbox.PulledImage, error) {
	img, err := p.images.Await(ctx, imageID)
	return sandbox.PulledImage{Digest: img.Digest, Env: img.Config.Env, WorkingDir: img.Config.WorkingDir, User: img.Config.User}, err
}

// Usable implements sandbox.Pulled.
func (p pulled) Usable(ctx context.Context, tx op.Tx, imageID string) (bool, error) {
	return p.images.Usable(ctx, tx, imageID)
}

// Progress implements sandbox.Pulled.
func (p pulled) Progress(ctx context.Context, imageID string) (*api.ImageProgress, error) {
	return p.images.Progress(ctx, imageID)
}
