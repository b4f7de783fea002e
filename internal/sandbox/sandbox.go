// Package sandbox owns sandboxes: their rows, states and transitions, the workers that carry them out on nodes, idling and expiry, and the operations
// that make, change, list and end them.
//
// It does not own what happens inside one: commands and processes (internal/process) and files (internal/file) ask it for the guest.
package sandbox

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/berthrun/berth/api/op"
	"github.com/berthrun/berth/internal/caller"
	"github.com/berthrun/berth/internal/db"
	"github.com/berthrun/berth/internal/guest"
	"github.com/berthrun/berth/internal/runtime"
)

// Quota takes from an organization's limits inside a transaction; negative amounts give back.
type Quota interface {
	Take(ctx context.Context, tx op.Tx, scope string, delta map[string]int64) error
}

// Events records what happened to a sandbox in the transaction in which it happened, and gives it back.
type Events interface {
	Append(ctx context.Context, tx op.Tx, org, workspace, kind, resource string, data map[string]any) error
	// Of gives what happened to a resource, oldest first: the newest most of it.
	Of(ctx context.Context, resource string, most int) ([]Happening, error)
}

// Keeper keeps what a sandbox's processes wrote beyond its end.
type Keeper interface {
	// Keep saves the processes of a sandbox that stops, which export tells record by record.
	Keep(ctx context.Context, orgID, sandboxID string, export func(visit func(guest.ExportRecord) error) error) error
	// Lost marks what was not saved when a sandbox died.
	Lost(ctx context.Context, sandboxID string) error
	// Forget removes all that was kept of a deleted sandbox.
	Forget(ctx context.Context, sandboxID string) error
}

// Images names what a template boots.
type Images interface {
	// Image gives the id of a template's prepared image; errs.NotFound for an unknown template.
	Image(ctx context.Context, template string) (string, error)
}

// Observer is told how sandboxes fare, for metrics. Its methods must not wait.
type Observer interface {
	// Booted is told of the end of a boot or a wake; kind is create, start, wake, fork or snapshot.
	Booted(kind string, failed bool, took time.Duration)
	// Paused is told of a pause's end; depth is frozen or disk, empty where it failed.
	Paused(depth string, failed bool, took time.Duration)
	// Late is told how much later than planned expiry and idling are looked at.
	Late(by time.Duration)
	// Guest is told of a call of a guest.
	Guest(call string, failed bool, took time.Duration)
}

// Defaults are what a create leaves out.
type Defaults struct {
	Resources   runtime.Resources
	IdleSeconds int
	TTLSeconds  int
	Pids        int64 // tasks inside; by the memory where 0
}

// PidsOf is how many tasks a sandbox of so much memory may have: as given, or by its memory, since a copy of a program takes about 4 MiB of it.
func (d Defaults) PidsOf(memoryMiB int64) int64 {
	if d.Pids > 0 {
		return d.Pids
	}
	return min(max(memoryMiB/6, 128), 4096)
}

// Config is what the service is made of.
type Config struct {
	DB     *db.DB
	Driver runtime.Driver
	Quota  Quota
	Events Events
	Keeper Keeper
	Images Images
	Pulled Pulled // nil: sandboxes are made of templates only
	// Templates are those that organizations have built; nil: there are only prepared images.
	Templates Templates
	Ready     Ready // nil: none is kept ready
	Defaults  Defaults
	Observer  Observer // nil: nobody
	// MayWake reports whether a caller may start a sandbox by using it. Nil allows it to all but read-only callers.
	MayWake func(c *caller.Caller) bool
	// DiskBounds gives the least and the most GiB of one sandbox's disk. 10 to 30 where nil.
	DiskBounds func(ctx context.Context, orgID string) (least, most int64, err error)
	// Largest gives the cores and the MiB of memory of the largest node, 0 where unknown. May be nil.
	Largest func(ctx context.Context) (cores float64, memoryMiB int64, err error)
	// Snapshots gives what sandboxes are made of; nil: there are none.
	Snapshots Snapshots
	// Volumes are disks that sandboxes have beside their own; nil: there are none.
	Volumes Volumes
	// FrozenFor is how long a sandbox that paused for being idle stays in memory before it goes to disk; it goes at once where 0.
	FrozenFor time.Duration
	// Short reports whether the node has little memory left. Nil: never.
	Short func(ctx context.Context) bool
	// BootTimeout bounds a boot from the first step to the guest's answer. 120 s where 0.
	BootTimeout time.Duration
	// Grace is how long a stopping sandbox gets to end by itself. 5 s where 0.
	Grace time.Duration
	// Tick is how often idling and expiry are looked at. 1 s where 0.
	Tick time.Duration
	// SampleEvery is how often running sandboxes are read. 15 s where 0.
	SampleEvery time.Duration
	// KeepDeleted is how long what is kept of a deleted sandbox can be read. A day where 0.
	KeepDeleted time.Duration
	Now         func() time.Time
	Logger      *slog.Logger
}

// Service owns the sandboxes of a deployment.
type Service struct {
	Config
	store    store
	guests   guestPool
	samples  sampler
	lost     atomic.Bool // the node does not answer
	checking atomic.Bool // guests are being asked whether they are there
	mu       sync.Mutex
	working  map[string]*worker
	wg       sync.WaitGroup
	ctx      context.Context // of Run: workers end with it
	saving   map[string]*saving
	cloning  chan struct{} // holds one for each copy that is being made
}

// New makes the service. Run carries its sandboxes on.
func New(c Config) *Service {
	if c.BootTimeout == 0 {
		c.BootTimeout = 120 * time.Second
	}
	if c.Grace == 0 {
		c.Grace = 5 * time.Second
	}
	if c.Tick == 0 {
		c.Tick = time.Second
	}
	if c.SampleEvery == 0 {
		c.SampleEvery = sampleEvery
	}
	if c.KeepDeleted == 0 {
		c.KeepDeleted = tombstoneFor
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	if c.MayWake == nil {
		c.MayWake = func(*caller.Caller) bool { return true }
	}
	if c.DiskBounds == nil {
		c.DiskBounds = func(context.Context, string) (int64, int64, error) { return 10, 30, nil }
	}
	s := &Service{Config: c, working: map[string]*worker{}, saving: map[string]*saving{}, cloning: make(chan struct{}, clonesAtOnce)}
	s.samples.latest, s.samples.pending, s.samples.asking = map[string]reading{}, map[string][]sample{}, map[string]chan struct{}{}
	s.guests.clients = map[string]*guestEntry{}
	return s
}

func topic(id string) string { return "sandbox/" + id }
