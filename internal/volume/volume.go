// Package volume owns volumes, the disks that outlive sandboxes: their rows and states, which sandbox has which, their backups and the policies by which
// those are made and deleted, and the operations on all of these.
//
// It does not own sandboxes, which internal/sandbox boots with what is attached to them, nor how content is kept off its node, which a Storage does.
package volume

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/berthrun/berth/api/op"
	"github.com/berthrun/berth/internal/db"
	"github.com/berthrun/berth/internal/id"
	"github.com/berthrun/berth/internal/runtime"
)

// Sandboxes are what volumes are attached to.
type Sandboxes interface {
	// Resource gives a sandbox of the caller's organization as authorization sees it, or errs.NotFound.
	Resource(ctx context.Context, id string) (op.Resource, error)
	// Stopped refuses, in the transaction that changes what it has, a sandbox that is not stopped. A start at the same moment comes before or after.
	Stopped(ctx context.Context, tx op.Tx, id string) error
	// Flush has a sandbox that runs write everything to its disks. What cannot be reached is left as it is.
	Flush(ctx context.Context, id string)
}

// Node holds the volumes and the copies that backups are made of. It is a part of runtime.Driver.
type Node interface {
	Capabilities() runtime.Capabilities
	MakeVolume(ctx context.Context, id string, sizeGiB int64) error
	RemoveVolume(ctx context.Context, id string) error
	Volumes(ctx context.Context) ([]runtime.Volume, error)
	CopyVolume(ctx context.Context, id, name string) error
	ForgetCopy(ctx context.Context, name string) error
	Copies(ctx context.Context) ([]string, error)
}

// Stored is a backup as a Storage keeps it. Its copy on the node has its id as its name.
type Stored struct{ ID, OrgID, VolumeID string }

// Kept is what a Storage says of what it keeps.
type Kept struct {
	Files   int64  // entries of the tree
	Content int64  // bytes of files
	Added   int64  // bytes that were not there before
	SHA256  string // of all that it holds
}

// Storage keeps backups off their node. Every method may be repeated. tell is told of bytes that have gone so far.
type Storage interface {
	// Keep copies a backup's copy from the node. After the first of a volume only what changed is stored.
	Keep(ctx context.Context, b Stored, tell func(done int64)) (Kept, error)
	// Load makes the content of a volume that is not there yet. Each part is checked; after an error there is no such volume.
	Load(ctx context.Context, b Stored, volume string, tell func(done int64)) error
	// Drop removes what is kept. What others share with it stays.
	Drop(ctx context.Context, b Stored) error
}

// Quota takes from an organization's limits inside a transaction; negative amounts give back.
type Quota interface {
	Take(ctx context.Context, tx op.Tx, scope string, delta map[string]int64) error
}

// Events records what happened to a volume or a backup in the transaction in which it happened.
type Events interface {
	Append(ctx context.Context, tx op.Tx, org, workspace, kind, resource string, data map[string]any) error
}

// Config is what the service is made of.
type Config struct {
	DB        *db.DB
	Sandboxes Sandboxes
	Node      Node
	Storage   Storage // nil: there are no backups
	Quota     Quota
	Events    Events
	Pool      string // the one that volumes lie in
	Now       func() time.Time
	Tick      time.Duration // how often all are looked at; a second where 0
	Measure   time.Duration // how often the node is asked what is used; 15 seconds where 0
	Logger    *slog.Logger
}

// Service owns the volumes of a deployment.
type Service struct {
	Config
	store store
	me    string // among servers

	mu      sync.Mutex
	working map[string]*work
	rests   map[string]time.Time // until when what failed is not tried again
	unknown map[string]bool      // volumes of the node that were told of
	wg      sync.WaitGroup
	ctx     context.Context // of Run: workers end with it
}

// New makes the service. Run carries its volumes on.
func New(c Config) *Service {
	if c.Now == nil {
		c.Now = time.Now
	}
	if c.Tick == 0 {
		c.Tick = time.Second
	}
	if c.Measure == 0 {
		c.Measure = 15 * time.Second
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return &Service{Config: c, me: id.New("server"), working: map[string]*work{}, rests: map[string]time.Time{}, unknown: map[string]bool{}}
}

func topic(id string) string { return "volume/" + id }

// Count counts what an organization's volumes take from its quotas.
func (s *Service) Count(ctx context.Context, q db.Querier, orgID string) (map[string]int64, error) {
	return s.store.used(ctx, q, orgID)
}
