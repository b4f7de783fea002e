package image

import (
	"context"
	"database/sql"
	"time"

	"github.com/berthrun/berth/api"
	"github.com/berthrun/berth/api/op"
	"github.com/berthrun/berth/internal/db"
	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/id"
	"github.com/berthrun/berth/internal/image/registry"
	"github.com/berthrun/berth/internal/nodeapi"
)

// Owner is for whom an image is brought here.
type Owner struct {
	OrgID, WorkspaceID string
	By                 op.CreatedBy
}

// CheckReference refuses what is neither an image's id nor a reference.
func CheckReference(ref string) error {
	if id.Valid(id.Image, ref) {
		return nil
	}
	_, err := registry.Parse(ref)
	return err
}

// Resolve gives the id of the image that a reference or id means for an organization, and begins to pull it where it is not here. A digest and a tag that
// was set here mean what they mean. For any other tag the registry is asked, unless it was within Fresh; where it cannot be reached, the tag means what it
// meant. Errors are those of nodeapi.Images.Resolve.
func (s *Service) Resolve(ctx context.Context, o Owner, reference string) (imageID string, err error) {
	if id.Valid(id.Image, reference) {
		r, err := s.store.get(ctx, s.DB, reference)
		switch {
		case err != nil:
			return "", err
		case r == nil || r.OrgID != o.OrgID || gone(r):
			return "", errNotFound(reference)
		case r.State == api.ImageFailed:
			return "", failed(r)
		}
		return r.ID, nil
	}
	ref, err := registry.Parse(reference)
	if err != nil {
		return "", err
	}
	known, sure, err := s.known(ctx, o.OrgID, ref)
	if err != nil {
		return "", err
	}
	if sure {
		return known.ID, nil
	}
	auth, err := s.auth(ctx, o.OrgID, ref.Host)
	if err != nil {
		return "", err
	}
	rctx, cancel := context.WithTimeout(ctx, resolveTimeout)
	defer cancel()
	found, err := s.Node.Resolve(rctx, nodeapi.ImageRequest{Scope: o.OrgID, Ref: ref.String(), Auth: auth})
	if err != nil {
		if known != nil && passing(err) {
			s.Logger.Warn("a tag was not looked up again", "image", known.ID, "error", err)
			return known.ID, nil
		}
		return "", err
	}
	return s.record(ctx, o, ref, found)
}

// resolveTimeout bounds how long a registry may take to say what a tag means.
const resolveTimeout = 45 * time.Second

// passing reports whether a registry's error says nothing of the image: it was not reached.
func passing(err error) bool {
	e := errs.From(err)
	return e.Code == errs.HostUnavailable || e.Code == errs.Timeout || e.Reason == "registry" || e.Reason == "registry_rate"
}

// known gives what a reference meant last; sure says that it still does.
func (s *Service) known(ctx context.Context, org string, ref registry.Reference) (r *row, sure bool, err error) {
	if ref.Digest != "" {
		r, err := s.store.version(ctx, s.DB, org, ref.Name(), ref.Digest)
		return r, r != nil, err
	}
	r, local, checkedAt, err := s.store.tagged(ctx, s.DB, org, ref.Name(), ref.Tag)
	if err != nil || r == nil {
		return nil, false, err
	}
	return r, local || s.Now().Sub(db.Time(checkedAt)) < s.Fresh, nil
}

// record makes the row of what a registry has named, where there is none, and moves the tag.
func (s *Service) record(ctx context.Context, o Owner, ref registry.Reference, found nodeapi.ResolvedImage) (imageID string, err error) {
	now := db.Micros(s.Now())
	err = s.DB.Tx(ctx, func(tx *sql.Tx) error {
		r, err := s.store.version(ctx, tx, o.OrgID, ref.Name(), found.Digest)
		if err != nil {
			return err
		}
		if r == nil {
			r = &row{
				ID: id.New(id.Image), OrgID: o.OrgID, WorkspaceID: o.WorkspaceID, Name: ref.Name(), Source: "registry", Digest: found.Digest, IndexDigest: found.Index,
				State: api.ImagePulling, Phase: nodeapi.PhasePulling, Size: found.Size, CreatedBy: o.By, CreatedAt: now, StateAt: now,
			}
			made, err := s.store.insert(ctx, tx, r)
			if err != nil {
				return err
			}
			if !made {
				return errs.E(errs.Busy, "the image was just pulled by another call").After(time.Second).Suggest("Call again.")
			}
			if err := s.event(ctx, tx, r); err != nil {
				return err
			}
		}
		imageID = r.ID
		if ref.Tag == "" || ref.Digest != "" {
			return nil
		}
		return s.store.tag(ctx, tx, o.OrgID, ref.Name(), ref.Tag, r.ID, false, now)
	})
	if err != nil {
		return "", err
	}
	s.nudge(imageID)
	return imageID, nil
}

// Ready is an image that a sandbox can be booted of.
type Ready struct {
	Digest string
	Config nodeapi.ImageConfig
}

// Await waits until an image is ready. It gives the error of one that has failed, NOT_FOUND for one that is gone, and the context's.
func (s *Service) Await(ctx context.Context, imageID string) (out Ready, err error) {
	s.nudge(imageID)
	err = s.DB.Wait(ctx, Topic(imageID), func(ctx context.Context) (bool, error) {
		r, err := s.store.get(ctx, s.DB, imageID)
		switch {
		case err != nil:
			return false, err
		case r == nil || gone(r):
			return false, errNotFound(imageID)
		case r.State == api.ImageFailed:
			return false, failed(r)
		}
		out = Ready{Digest: r.Digest, Config: r.Config}
		return r.State == api.ImageReady, nil
	})
	return out, err
}

// Usable reports whether an image is there or on its way.
func (s *Service) Usable(ctx context.Context, tx op.Tx, imageID string) (bool, error) {
	r, err := s.store.get(ctx, tx, imageID)
	return r != nil && (r.State == api.ImageReady || r.State == api.ImagePulling), err
}

// Progress says how far an image is; nil where it is ready or gone.
func (s *Service) Progress(ctx context.Context, imageID string) (*api.ImageProgress, error) {
	r, err := s.store.get(ctx, s.DB, imageID)
	if err != nil || r == nil {
		return nil, err
	}
	return progressOf(r), nil
}

func progressOf(r *row) *api.ImageProgress {
	if r.State != api.ImagePulling {
		return nil
	}
	p := &api.ImageProgress{Phase: r.Phase}
	if r.Size > 0 {
		p.Percent = int(min(100*r.Done/r.Size, 100))
	}
	return p
}
