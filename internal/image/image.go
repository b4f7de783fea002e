// Package image owns images as organizations have them: versions and their tags, pulls and their progress, deletion, and the credentials of registries.
//
// The bytes are a node's (internal/image/store); this package tells it what to bring, keep and remove, and gives it credentials for one call at a time.
// Whose an image is is decided here: one organization's pull never serves another.
package image

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/berthrun/berth/api"
	"github.com/berthrun/berth/api/op"
	"github.com/berthrun/berth/internal/db"
	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/nodeapi"
	"github.com/berthrun/berth/internal/secret"
)

// Users tells who uses an image.
type Users interface {
	// UsingImage counts the sandboxes that are not deleted and were made of an image.
	UsingImage(ctx context.Context, tx op.Tx, imageID string) (int, error)
}

// Events records what happened to an image in the transaction in which it happened.
type Events interface {
	Append(ctx context.Context, tx op.Tx, org, workspace, kind, resource string, data map[string]any) error
}

// Config is what the service is made of.
type Config struct {
	DB     *db.DB
	Node   nodeapi.Images
	Box    *secret.Box
	Events Events
	Users  Users
	// Fresh is for how long a tag means what the registry last said. 15 minutes where 0.
	Fresh time.Duration
	// PullTimeout bounds one pull. An hour where 0.
	PullTimeout time.Duration
	Now         func() time.Time
	Logger      *slog.Logger
}

// Service owns the images of a deployment.
type Service struct {
	Config
	store store

	mu      sync.Mutex
	working map[string]bool // true: look again
	ctx     context.Context // of Run
	wg      sync.WaitGroup
}

// New makes the service. Run carries pulls on.
func New(c Config) *Service {
	if c.Fresh == 0 {
		c.Fresh = 15 * time.Minute
	}
	if c.PullTimeout == 0 {
		c.PullTimeout = time.Hour
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return &Service{Config: c, working: map[string]bool{}}
}

// Topic is notified when an image changes.
func Topic(id string) string { return "image/" + id }

// event records a change of an image and wakes those who wait for it.
func (s *Service) event(ctx context.Context, tx op.Tx, r *row) error {
	s.DB.NotifyAfter(tx, Topic(r.ID))
	data := map[string]any{"to": r.State, "digest": r.Digest, "name": r.Name}
	if r.Reason != "" {
		data["reason"] = r.Reason
	}
	return s.Events.Append(ctx, tx, r.OrgID, r.WorkspaceID, "image."+r.State, r.ID, data)
}

// gone reports whether an image is deleted or about to be: nothing new is made of it.
func gone(r *row) bool { return r.State == api.ImageDeleting || r.State == api.ImageDeleted }

func errNotFound(id string) error {
	return errs.E(errs.NotFound, "there is no image %s", id).Because("image").Suggest("Check the id; images.list shows which exist.")
}

// failed is the error of an image that cannot be used.
func failed(r *row) *errs.Error {
	return errs.E(errs.Upstream, "%s", r.Error).Because(r.Reason).With("imageId", r.ID)
}
