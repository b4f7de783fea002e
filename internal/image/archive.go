package image

import (
	"context"
	"database/sql"
	"fmt"

	"github.com/berthrun/berth/api"
	"github.com/berthrun/berth/api/op"
	"github.com/berthrun/berth/internal/caller"
	"github.com/berthrun/berth/internal/db"
	"github.com/berthrun/berth/internal/draft"
	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/id"
	"github.com/berthrun/berth/internal/image/registry"
	"github.com/berthrun/berth/internal/nodeapi"
)

// registerStreams binds the streams of images.
func (s *Service) registerStreams(r *op.Registry) {
	op.HandleStream(r, api.ImportImage, op.StreamHandler[api.ImportImageIn]{Draft: s.draftImport, Serve: s.serveImport})
	op.HandleStream(r, api.ExportImage, op.StreamHandler[api.ExportImageIn]{
		Draft: func(ctx context.Context, in *api.ExportImageIn) (*op.Draft, error) { return s.draft(ctx, in.ImageID) }, Serve: s.serveExport,
	})
}

func (s *Service) draftImport(ctx context.Context, in *api.ImportImageIn) (*op.Draft, error) {
	c := caller.From(ctx)
	d := &op.Draft{Resource: op.Resource{Kind: "image", OrgID: c.OrgID, WorkspaceID: c.WorkspaceID}}
	if in.Image == "" {
		return d, nil
	}
	ref, err := registry.Parse(in.Image)
	if err != nil {
		return nil, err
	}
	if ref.Digest != "" {
		return nil, errs.E(errs.InvalidInput, "an import is named by name:tag, without a digest").With("path", "image")
	}
	d.Resource.Name, d.Data = ref.String(), ref
	return d, nil
}

func (s *Service) serveImport(ctx context.Context, in *api.ImportImageIn, d *op.Draft, st *op.Stream) error {
	c := caller.From(ctx)
	img, err := s.Node.Import(ctx, c.OrgID, in.Select, st.R.Body)
	if err != nil {
		return err
	}
	ref, named := d.Data.(registry.Reference)
	for _, n := range img.Names {
		if named {
			break
		}
		if ref, err = registry.Parse(n); err == nil && ref.Digest == "" {
			named = true
		}
	}
	if !named {
		if err := s.Node.Remove(ctx, c.OrgID, img.ID); err != nil {
			s.Logger.Warn("an import without a name was not removed", "digest", img.ID, "error", err)
		}
		return errs.E(errs.InvalidInput, "the archive does not say what its image is called").Because("no_name").Suggest("Give image, such as app:1.").With("path", "image")
	}
	imageID, err := s.imported(ctx, c, ref, img)
	if err != nil {
		return err
	}
	r, err := s.find(ctx, s.DB, imageID)
	if err != nil {
		return err
	}
	shown, err := s.show(ctx, r)
	if err != nil {
		return err
	}
	b, err := op.Encode(&api.GetImageOut{Image: *shown})
	if err != nil {
		return err
	}
	st.W.Header().Set("Content-Type", "application/json")
	_, err = st.W.Write(b)
	return err
}

// imported makes the row of an image that an archive has brought, unless there is one, and gives it its tag.
func (s *Service) imported(ctx context.Context, c *caller.Caller, ref registry.Reference, img nodeapi.Image) (imageID string, err error) {
	now := db.Micros(s.Now())
	err = s.DB.Tx(ctx, func(tx *sql.Tx) error {
		r, err := s.store.version(ctx, tx, c.OrgID, ref.Name(), img.ID)
		if err != nil {
			return err
		}
		if r == nil {
			r = &row{
				ID: id.New(id.Image), OrgID: c.OrgID, WorkspaceID: c.WorkspaceID, Name: ref.Name(), Source: "import", Digest: img.ID, IndexDigest: img.ID,
				State: api.ImageReady, Done: img.Size, Size: img.Size, Unpacked: img.Unpacked, Layers: int64(img.Layers), Config: img.Config,
				CreatedBy: draft.By(c), CreatedAt: now, StateAt: now,
			}
			if !img.Created.IsZero() {
				r.BuiltAt = db.Micros(img.Created)
			}
			made, err := s.store.insert(ctx, tx, r)
			if err != nil {
				return err
			}
			if !made {
				return errs.E(errs.Busy, "the image was just brought by another call").Suggest("Call again.")
			}
			if err := s.event(ctx, tx, r); err != nil {
				return err
			}
		}
		imageID = r.ID
		return s.store.tag(ctx, tx, c.OrgID, ref.Name(), ref.Tag, r.ID, true, now)
	})
	if err != nil {
		return "", fmt.Errorf("record import: %w", err)
	}
	return imageID, nil
}

func (s *Service) serveExport(ctx context.Context, in *api.ExportImageIn, _ *op.Draft, st *op.Stream) error {
	r, err := s.find(ctx, s.DB, in.ImageID)
	if err != nil {
		return err
	}
	if r.State != api.ImageReady {
		return errs.E(errs.InvalidState, "an image that is %s cannot be exported", r.State).Because(r.State)
	}
	tags, err := s.store.tags(ctx, s.DB, &row{ID: r.ID}) // with no name of its own each tag has its name
	if err != nil {
		return err
	}
	return s.Node.Export(ctx, r.OrgID, r.Digest, tags, &typed{w: st})
}

// typed gives the answer its type with the first byte, so that an error before it is answered as one.
type typed struct {
	w     *op.Stream
	begun bool
}

// Write implements io.Writer.
func (t *typed) Write(p []byte) (int, error) {
	if !t.begun {
		t.begun = true
		t.w.W.Header().Set("Content-Type", api.TarType)
		t.w.W.Header().Set("Content-Disposition", `attachment; filename="image.tar"`)
	}
	return t.w.W.Write(p)
}
