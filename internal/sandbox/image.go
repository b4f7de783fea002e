package sandbox

import (
	"context"
	"database/sql"
	"fmt"
	"maps"
	"strings"
	"time"

	"github.com/berthrun/berth/api"
	"github.com/berthrun/berth/api/op"
	"github.com/berthrun/berth/internal/db"
	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/guest"
)

// PulledImage is an image as it is on the node.
type PulledImage struct {
	Digest           string
	Env              []string // name=value
	WorkingDir, User string
}

// Pulled are the images of registries and archives that an organization has or may get.
type Pulled interface {
	// CheckReference refuses what is neither an image's id nor a reference.
	CheckReference(ref string) error
	// Resolve gives the version that a reference means now, and begins to pull it where it is not here. Errors with HOST_UNAVAILABLE may pass.
	Resolve(ctx context.Context, orgID, workspaceID string, by op.CreatedBy, ref string) (imageID string, err error)
	// Await waits until a version is on the node; its error says why it never will be.
	Await(ctx context.Context, imageID string) (PulledImage, error)
	// Usable reports, in the transaction that takes it into use, whether a version is there or on its way.
	Usable(ctx context.Context, tx op.Tx, imageID string) (bool, error)
	// Progress says how far its pull is, nil where there is none under way.
	Progress(ctx context.Context, imageID string) (*api.ImageProgress, error)
}

// imageWait is how long a new sandbox waits for its image.
const imageWait = time.Hour

// setImage names what a new sandbox boots: the image of a template now, one of a registry once its worker has asked.
func (s *Service) setImage(ctx context.Context, r *row, in *api.CreateSandboxIn) error {
	if in.Image == "" {
		image, err := s.Images.Image(ctx, r.Template)
		r.Image = image
		return err
	}
	if in.Template != "" {
		return errs.E(errs.InvalidInput, "template and image exclude each other").Suggest("Give one of them.").With("path", "image")
	}
	if s.Pulled == nil {
		return unsupported("a sandbox of an image")
	}
	r.Template, r.ImageRef = "", in.Image
	return s.Pulled.CheckReference(in.Image)
}

// fetchImage brings a new sandbox's image to the node and fixes which version it is. done says that there is nothing to boot: the image cannot be had, and
// the sandbox has failed. A sandbox's time to boot begins once its image is there.
func (s *Service) fetchImage(ctx context.Context, r *row) (done bool, err error) {
	if r.ImageRef == "" || r.Image != "" {
		return false, nil
	}
	wctx, cancel := context.WithTimeout(ctx, max(db.Time(r.CreatedAt).Add(imageWait).Sub(s.Now()), time.Second))
	defer cancel()
	img, err := s.await(wctx, r)
	switch {
	case err == nil:
		r.Image = img.Digest
		return false, s.pin(ctx, r)
	case ctx.Err() != nil:
		return false, ctx.Err()
	case wctx.Err() == nil && (errs.Is(err, errs.HostUnavailable) || errs.Is(err, errs.Busy) || errs.Is(err, errs.Internal)):
		return false, err // again, until the time is over
	}
	s.Logger.Warn("a sandbox's image cannot be had", "sandbox", r.ID, "error", err)
	r.Error = "its image cannot be had: " + errs.From(err).Whole()
	return true, s.move(ctx, r, api.StateFailed)
}

func (s *Service) await(ctx context.Context, r *row) (PulledImage, error) {
	if r.ImageID == "" {
		id, err := s.Pulled.Resolve(ctx, r.OrgID, r.WorkspaceID, r.CreatedBy, r.ImageRef)
		if err != nil {
			return PulledImage{}, err
		}
		r.ImageID = id
		if err := s.pin(ctx, r); err != nil {
			return PulledImage{}, err
		}
	}
	return s.Pulled.Await(ctx, r.ImageID)
}

// pin records the version of the image that a creating sandbox is made of, so that it is not deleted meanwhile.
func (s *Service) pin(ctx context.Context, r *row) error {
	return s.DB.Tx(ctx, func(tx *sql.Tx) error {
		usable, err := s.Pulled.Usable(ctx, tx, r.ImageID)
		if err != nil {
			return err
		}
		if !usable {
			return errs.E(errs.NotFound, "the image %s was deleted", r.ImageID).Because("image")
		}
		at := db.Micros(s.Now())
		res, err := tx.ExecContext(ctx, `UPDATE sandboxes SET image_id = $1, image = $2, state_at = $3 WHERE id = $4 AND state = $5 AND generation = $6`,
			r.ImageID, r.Image, at, r.ID, r.State, r.Generation)
		if err != nil {
			return fmt.Errorf("fix image: %w", err)
		}
		if n, _ := res.RowsAffected(); n == 0 {
			return errLostRace
		}
		r.StateAt = at
		s.DB.NotifyAfter(tx, topic(r.ID))
		return nil
	})
}

// asImage gives a guest what the sandbox's image says about running it.
func (s *Service) asImage(ctx context.Context, r *row, c *guest.Configure) error {
	if r.BuildID != "" && r.Purpose == "" && s.Templates != nil {
		return s.asTemplate(ctx, r, c)
	}
	if r.ImageID == "" {
		return nil
	}
	img, err := s.Pulled.Await(ctx, r.ImageID)
	if err != nil {
		return err
	}
	c.Env = withDefaults(img.Env, r.Env)
	c.User, c.WorkDir = img.User, img.WorkingDir
	if c.User == "" {
		c.User = "root"
	}
	return nil
}

// environment is what every command in a sandbox has: its image's variables, and its own over them.
func (s *Service) environment(ctx context.Context, r *row) map[string]string {
	c := guest.Configure{Env: orEmpty(r.Env)}
	wctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	if err := s.asImage(wctx, r, &c); err != nil {
		s.Logger.Warn("the variables of a sandbox's image are not known", "sandbox", r.ID, "error", err)
	}
	return c.Env
}

// withDefaults puts variables over those of an image. What no process can take is left out.
func withDefaults(image []string, own map[string]string) map[string]string {
	env := map[string]string{}
	for _, kv := range image {
		if k, v, ok := strings.Cut(kv, "="); ok && k != "" {
			env[k] = v
		}
	}
	maps.Copy(env, own)
	return env
}

// showPull adds how far the pull of a new sandbox's image is.
func (s *Service) showPull(ctx context.Context, r *row, sb *api.Sandbox) {
	if r.State != api.StateCreating || r.ImageID == "" || r.Image != "" {
		return
	}
	if p, err := s.Pulled.Progress(ctx, r.ImageID); err == nil {
		sb.Image.Progress = p
	}
}

// UsingImage counts the sandboxes that are not deleted and are of an image, or are to be.
func (s *Service) UsingImage(ctx context.Context, tx op.Tx, imageID string) (n int, err error) {
	err = tx.QueryRowContext(ctx, `SELECT (SELECT COUNT(*) FROM sandboxes WHERE image_id = $1 AND state <> 'deleted')
		+ (SELECT COUNT(*) FROM sandbox_switches WHERE image_id = $1 AND state = 'pending')`, imageID).Scan(&n)
	if err != nil {
		return 0, fmt.Errorf("count sandboxes of image: %w", err)
	}
	return n, nil
}
