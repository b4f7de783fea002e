package image

import (
	"context"
	"time"

	"github.com/berthrun/berth/api"
	"github.com/berthrun/berth/api/op"
	"github.com/berthrun/berth/internal/caller"
	"github.com/berthrun/berth/internal/db"
	"github.com/berthrun/berth/internal/draft"
	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/image/registry"
)

// Register binds the operations on images and registries.
func (s *Service) Register(r *op.Registry) {
	s.registerStreams(r)
	s.registerPush(r)
	op.Handle(r, api.ListImages, op.Handler[api.ListImagesIn, api.ListImagesOut]{Draft: collection[api.ListImagesIn]("image"), Act: s.actList})
	op.Handle(r, api.GetImage, op.Handler[api.ImageIn, api.GetImageOut]{
		Draft: func(ctx context.Context, in *api.ImageIn) (*op.Draft, error) { return s.draft(ctx, in.ImageID) }, Act: s.actGet,
	})
	op.Handle(r, api.PullImage, op.Handler[api.PullImageIn, api.ImageOut]{Draft: s.draftPull, Act: s.actPull})
	op.Handle(r, api.TagImage, op.Handler[api.TagImageIn, api.ImageOut]{Draft: s.draftTag, Intent: s.intentTag, Act: s.actTag})
	op.Handle(r, api.DeleteImage, op.Handler[api.DeleteImageIn, api.DeleteImageOut]{
		Draft: s.draftDelete, Intent: s.intentDelete, Act: s.actDelete,
	})
	op.Handle(r, api.SetRegistry, op.Handler[api.SetRegistryIn, api.RegistryOut]{Draft: s.draftSetRegistry, Intent: s.intentSetRegistry, Act: s.actSetRegistry})
	op.Handle(r, api.ListRegistries, op.Handler[api.ListRegistriesIn, api.ListRegistriesOut]{
		Draft: collection[api.ListRegistriesIn]("registry"), Act: s.actListRegistries,
	})
	op.Handle(r, api.DeleteRegistry, op.Handler[api.DeleteRegistryIn, api.DeleteRegistryOut]{
		Draft: func(ctx context.Context, in *api.DeleteRegistryIn) (*op.Draft, error) {
			if err := registry.CheckHost(in.Host); err != nil {
				return nil, err
			}
			return registryDraft(ctx, registry.HostName(in.Host)), nil
		},
		Intent: s.intentDeleteRegistry,
		Act: func(_ context.Context, _ *api.DeleteRegistryIn, d *op.Draft) (*api.DeleteRegistryOut, error) {
			deleted, _ := d.Data.(bool)
			return &api.DeleteRegistryOut{Host: d.Resource.ID, Deleted: deleted}, nil
		},
	})
}

// collection is the draft of a call on all of a kind that the caller's organization has.
func collection[In any](kind string) func(ctx context.Context, _ *In) (*op.Draft, error) {
	return func(ctx context.Context, _ *In) (*op.Draft, error) {
		c := caller.From(ctx)
		return &op.Draft{Resource: op.Resource{Kind: kind, OrgID: c.OrgID, WorkspaceID: c.WorkspaceID}}, nil
	}
}

// find gives an image of the caller's organization, NOT_FOUND for another's.
func (s *Service) find(ctx context.Context, q op.Tx, imageID string) (*row, error) {
	r, err := s.findDeleted(ctx, q, imageID)
	if err == nil && r.State == api.ImageDeleted {
		return nil, errNotFound(imageID)
	}
	return r, err
}

// findDeleted is find that gives deleted ones too.
func (s *Service) findDeleted(ctx context.Context, q op.Tx, imageID string) (*row, error) {
	r, err := s.store.get(ctx, q, imageID)
	if err != nil {
		return nil, err
	}
	if r == nil || r.OrgID != caller.From(ctx).OrgID {
		return nil, errNotFound(imageID)
	}
	return r, nil
}

func (r *row) resource() op.Resource {
	return op.Resource{Kind: "image", ID: r.ID, OrgID: r.OrgID, WorkspaceID: r.WorkspaceID, Name: r.Name, CreatedBy: r.CreatedBy}
}

func (s *Service) draft(ctx context.Context, imageID string) (*op.Draft, error) {
	r, err := s.find(ctx, s.DB, imageID)
	if err != nil {
		return nil, err
	}
	return &op.Draft{Resource: r.resource()}, nil
}

func (s *Service) actList(ctx context.Context, in *api.ListImagesIn, _ *op.Draft) (*api.ListImagesOut, error) {
	before, beforeID, err := op.DecodeMoment(in.Cursor, in.Name)
	if err != nil {
		return nil, err
	}
	name := in.Name
	if ref, err := registry.Parse(name); name != "" && err == nil {
		name = ref.Name()
	}
	limit := in.Size()
	rows, err := s.store.list(ctx, s.DB, caller.From(ctx).OrgID, name, before, beforeID, limit+1)
	if err != nil {
		return nil, err
	}
	out := &api.ListImagesOut{}
	for i, r := range rows {
		if i == limit {
			out.NextCursor = op.EncodeMoment(in.Name, rows[i-1].CreatedAt, rows[i-1].ID)
			break
		}
		img, err := s.show(ctx, r)
		if err != nil {
			return nil, err
		}
		img.Config = nil // images.get has it
		out.Items = append(out.Items, *img)
	}
	return out, nil
}

const mib = 1 << 20

func (s *Service) show(ctx context.Context, r *row) (*api.Image, error) {
	tags, err := s.store.tags(ctx, s.DB, r)
	if err != nil {
		return nil, err
	}
	img := &api.Image{
		ID: r.ID, Name: r.Name, Tags: tags, Digest: r.Digest, State: r.State, Error: r.Error, Reason: r.Reason, Progress: progressOf(r), Source: r.Source,
		SizeMiB: float64(r.Size) / mib, UnpackedMiB: float64(r.Unpacked) / mib, Layers: int(r.Layers), CreatedAt: db.Time(r.CreatedAt), CreatedBy: r.CreatedBy,
	}
	if r.BuiltAt != 0 {
		at := db.Time(r.BuiltAt)
		img.BuiltAt = &at
	}
	if r.State == api.ImageReady {
		c := r.Config
		img.Config = &api.ImageConfig{
			Env: c.Env, WorkingDir: c.WorkingDir, User: c.User, Entrypoint: c.Entrypoint, Cmd: c.Cmd, ExposedPorts: c.ExposedPorts, Labels: c.Labels,
		}
	}
	return img, nil
}

func (s *Service) actGet(ctx context.Context, in *api.ImageIn, _ *op.Draft) (*api.GetImageOut, error) {
	r, err := s.find(ctx, s.DB, in.ImageID)
	if err != nil {
		return nil, err
	}
	img, err := s.show(ctx, r)
	if err != nil {
		return nil, err
	}
	pushes, err := s.store.pushes(ctx, s.DB, `image_id = $1`, r.ID)
	if err != nil {
		return nil, err
	}
	for _, p := range pushes {
		img.Pushes = append(img.Pushes, p.show(r))
	}
	return &api.GetImageOut{Image: *img}, nil
}

func (s *Service) out(ctx context.Context, imageID string) (*api.ImageOut, error) {
	r, err := s.find(ctx, s.DB, imageID)
	if err != nil {
		return nil, err
	}
	img, err := s.show(ctx, r)
	if err != nil {
		return nil, err
	}
	return &api.ImageOut{Status: "done", Image: img}, nil
}

func (s *Service) draftPull(ctx context.Context, in *api.PullImageIn) (*op.Draft, error) {
	ref, err := registry.Parse(in.Image)
	if err != nil {
		return nil, err
	}
	c := caller.From(ctx)
	return &op.Draft{Resource: op.Resource{Kind: "image", OrgID: c.OrgID, WorkspaceID: c.WorkspaceID, Name: ref.String()}}, nil
}

// actPull asks the registry and has the image pulled. Repeated, it finds what the first time began.
func (s *Service) actPull(ctx context.Context, in *api.PullImageIn, d *op.Draft) (*api.ImageOut, error) {
	c := caller.From(ctx)
	imageID, err := s.Resolve(ctx, Owner{OrgID: c.OrgID, WorkspaceID: c.WorkspaceID, By: draft.By(c)}, in.Image)
	if err != nil {
		return nil, err
	}
	d.Resource.ID = imageID
	if wait := op.Remaining(ctx, time.Duration(in.Wait())*time.Second); wait > 0 {
		back := op.Yield(ctx)
		wctx, cancel := context.WithTimeout(ctx, wait)
		_, err := s.Await(wctx, imageID)
		cancel()
		back()
		if err != nil && wctx.Err() == nil {
			return nil, err
		}
	}
	return s.out(ctx, imageID)
}

func (s *Service) draftTag(ctx context.Context, in *api.TagImageIn) (*op.Draft, error) {
	d, err := s.draft(ctx, in.ImageID)
	if err != nil || in.Name == "" {
		return d, err
	}
	ref, err := registry.Parse(in.Name + ":" + in.Tag)
	if err != nil {
		return nil, err
	}
	d.Data = ref.Name()
	return d, nil
}

func (s *Service) intentTag(ctx context.Context, tx op.Tx, in *api.TagImageIn, d *op.Draft) error {
	r, err := s.find(ctx, tx, in.ImageID)
	if err != nil {
		return err
	}
	if r.State != api.ImageReady && r.State != api.ImagePulling {
		return errs.E(errs.InvalidState, "an image that is %s cannot be tagged", r.State).Because(r.State)
	}
	name, _ := d.Data.(string)
	if name == "" {
		name = r.Name
	}
	return s.store.tag(ctx, tx, r.OrgID, name, in.Tag, r.ID, true, db.Micros(s.Now()))
}

func (s *Service) actTag(ctx context.Context, in *api.TagImageIn, _ *op.Draft) (*api.ImageOut, error) {
	return s.out(ctx, in.ImageID)
}

func (s *Service) draftDelete(ctx context.Context, in *api.DeleteImageIn) (*op.Draft, error) {
	r, err := s.findDeleted(ctx, s.DB, in.ImageID)
	if err != nil {
		return nil, err
	}
	return &op.Draft{Resource: r.resource()}, nil
}

func (s *Service) intentDelete(ctx context.Context, tx op.Tx, in *api.DeleteImageIn, _ *op.Draft) error {
	r, err := s.findDeleted(ctx, tx, in.ImageID)
	if err != nil || gone(r) {
		return err
	}
	n, err := s.Users.UsingImage(ctx, tx, r.ID)
	if err != nil {
		return err
	}
	if pushes, err := s.store.pushing(ctx, tx, r.ID); err != nil {
		return err
	} else if pushes > 0 {
		return errs.E(errs.InvalidState, "the image is being pushed").Because("pushing").Suggest("Delete it once that has ended: images.get shows how far it is.")
	}
	if n > 0 {
		return errs.E(errs.InvalidState, "%d sandboxes use the image", n).Because("in_use").Suggest("Delete them first, the stopped ones too.").With("sandboxes", n)
	}
	from := r.State
	r.State, r.StateAt = api.ImageDeleting, db.Micros(s.Now())
	moved, err := s.store.move(ctx, tx, r, from)
	if err != nil {
		return err
	}
	if !moved {
		return errs.E(errs.Busy, "the image is just changing").After(time.Second).Suggest("Call again.")
	}
	if err := s.store.untag(ctx, tx, r.ID); err != nil {
		return err
	}
	return s.event(ctx, tx, r)
}

// deleteWait is how long a delete waits for the node.
const deleteWait = 20 * time.Second

func (s *Service) actDelete(ctx context.Context, in *api.DeleteImageIn, _ *op.Draft) (*api.DeleteImageOut, error) {
	s.nudge(in.ImageID)
	wctx, cancel := context.WithTimeout(ctx, op.Remaining(ctx, deleteWait))
	defer cancel()
	out := &api.DeleteImageOut{ImageID: in.ImageID}
	err := s.DB.Wait(wctx, Topic(in.ImageID), func(ctx context.Context) (bool, error) {
		r, err := s.store.get(ctx, s.DB, in.ImageID)
		out.Deleted = err == nil && (r == nil || r.State == api.ImageDeleted)
		return out.Deleted, err
	})
	if err != nil && wctx.Err() == nil {
		return nil, err
	}
	return out, nil
}
