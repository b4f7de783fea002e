// Package snapshot owns snapshots of sandboxes: their rows and states, the work that makes and removes them, and the operations on them.
//
// It does not own sandboxes: one is held and saved by internal/sandbox, which also makes sandboxes of snapshots.
package snapshot

import (
	"context"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/berthrun/berth/api"
	"github.com/berthrun/berth/api/op"
	"github.com/berthrun/berth/internal/db"
	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/runtime"
)

// Source is what is kept of a sandbox beside its disk and memory.
type Source struct {
	Template, Image, ImageRef, ImageID string
	BuildID                            string // of the template's build
	Resources                          runtime.Resources
	Memory                             bool // there is memory, not a disk alone
	Internet                           bool
	Env                                map[string]string
	GuestToken                         string   // of the guest in it
	Volumes                            []string // names of those that the sandbox had; they are not in it
}

// Sandboxes gives the sandboxes that snapshots are made of.
type Sandboxes interface {
	// Resource gives a sandbox of the caller's organization as authorization sees it, or errs.NotFound.
	Resource(ctx context.Context, id string) (op.Resource, error)
	// Hold holds one for a snapshot, in the transaction that makes it: another one, or a fork, is errs.Busy meanwhile.
	Hold(ctx context.Context, tx op.Tx, id, snapshot string) (Source, error)
	// Save has the node keep one under the snapshot's id. Errors with HOST_UNAVAILABLE may pass.
	Save(ctx context.Context, id, snapshot string, memory bool) (runtime.Save, error)
	// Release ends what Hold began.
	Release(ctx context.Context, id, snapshot string) error
	// MadeOf counts those that are being made of a snapshot.
	MadeOf(ctx context.Context, tx op.Tx, snapshot string) (int, error)
}

// Node holds the saves that snapshots are. It is a part of runtime.Driver.
type Node interface {
	Capabilities() runtime.Capabilities
	Saves(ctx context.Context) ([]runtime.Save, error)
	Forget(ctx context.Context, name string) error
}

// Stored is a snapshot as a Storage keeps it. Its save has its id as its name.
type Stored struct {
	ID, OrgID, SandboxID string
	Image                string // that the disk lies above
	Memory               bool
}

// Storage keeps snapshots off their node, so that they outlive it and others can use them. Every method may be repeated.
type Storage interface {
	// Keep copies a snapshot from the node.
	Keep(ctx context.Context, s Stored) error
	// Fetch brings one to the node that is to use it, where it is not there yet.
	Fetch(ctx context.Context, s Stored) error
	// Drop removes the copy. What others share with it stays.
	Drop(ctx context.Context, s Stored) error
}

// Events records what happened to a snapshot in the transaction in which it happened.
type Events interface {
	Append(ctx context.Context, tx op.Tx, org, workspace, kind, resource string, data map[string]any) error
}

// Config is what the service is made of.
type Config struct {
	DB        *db.DB
	Sandboxes Sandboxes
	Node      Node
	Storage   Storage // nil: snapshots stay on their node
	Events    Events
	Now       func() time.Time
	Tick      time.Duration // how often all are looked at; a second where 0
	Logger    *slog.Logger
}

// Service owns the snapshots of a deployment.
type Service struct {
	Config
	store   store
	mu      sync.Mutex
	working map[string]bool      // and whether it was nudged while it worked
	rests   map[string]time.Time // until when a copy off its node that failed is not tried again
	wg      sync.WaitGroup
	ctx     context.Context // of Run: workers end with it
}

// New makes the service. Run carries its snapshots on.
func New(c Config) *Service {
	if c.Now == nil {
		c.Now = time.Now
	}
	if c.Tick == 0 {
		c.Tick = time.Second
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return &Service{Config: c, working: map[string]bool{}, rests: map[string]time.Time{}}
}

func topic(id string) string { return "snapshot/" + id }

// row is a snapshot in the database. Times are microseconds UTC, 0 where there is none.
type row struct {
	ID, OrgID, WorkspaceID, Name string
	State, Error                 string
	Mode, SandboxID              string
	Source
	Metadata              map[string]string
	DiskBytes, MemBytes   int64
	Stored                bool
	TakenAt               int64
	CreatedBy             op.CreatedBy
	PrincipalID           string
	CreatedAt, StateAt    int64
	vcpu, memory, diskGiB int64 // of Resources, as they are stored
}

// transitions says which states follow each state.
var transitions = map[string][]string{
	api.SnapshotCreating: {api.SnapshotReady, api.SnapshotFailed, api.SnapshotDeleting},
	api.SnapshotReady:    {api.SnapshotDeleting},
	api.SnapshotFailed:   {api.SnapshotDeleting},
	api.SnapshotDeleting: {api.SnapshotDeleted},
	api.SnapshotDeleted:  {},
}

func moving(state string) bool { return state == api.SnapshotCreating || state == api.SnapshotDeleting }

func goes(r *row) bool { return r.State == api.SnapshotDeleting || r.State == api.SnapshotDeleted }

func (r *row) resource() op.Resource {
	return op.Resource{Kind: "snapshot", ID: r.ID, OrgID: r.OrgID, WorkspaceID: r.WorkspaceID, Name: r.Name, CreatedBy: r.CreatedBy, Labels: r.Metadata}
}

func (r *row) stored() Stored {
	return Stored{ID: r.ID, OrgID: r.OrgID, SandboxID: r.SandboxID, Image: r.Image, Memory: r.Mode == api.ModeMemory}
}

// show is a row as callers see it.
func (r *row) show() api.Snapshot {
	disk := r.Resources.DiskGiB
	return api.Snapshot{
		ID: r.ID, Name: r.Name, State: r.State, Error: r.Error, Mode: r.Mode, SandboxID: r.SandboxID, Template: r.Template, Image: r.ImageRef, WorkspaceID: r.WorkspaceID,
		Resources: api.Resources{VCPU: r.Resources.VCPU, MemoryMiB: r.Resources.MemoryMiB, DiskGiB: &disk}, Network: api.Network{Internet: r.Internet},
		Metadata: r.Metadata, DiskMiB: float64(r.DiskBytes) / (1 << 20), MemoryMiB: float64(r.MemBytes) / (1 << 20), Stored: r.Stored, WithoutVolumes: r.Volumes,
		CreatedAt: db.Time(r.CreatedAt), TakenAt: timeOf(r.TakenAt), CreatedBy: r.CreatedBy,
	}
}

func timeOf(us int64) *time.Time {
	if us == 0 {
		return nil
	}
	t := db.Time(us)
	return &t
}

func out(r *row) *api.SnapshotOut {
	sn := r.show()
	out := &api.SnapshotOut{Status: "done", Ready: r.State == api.SnapshotReady, Snapshot: &sn}
	if len(r.Volumes) > 0 {
		out.Message = "it holds the sandbox's own disk alone, without its memory and without what is on its volumes: " + strings.Join(r.Volumes, ", ") + "; back a volume up to keep that"
	}
	return out
}

func errNotFound(id string) error {
	return errs.E(errs.NotFound, "there is no snapshot %s", id).Suggest("Check the id; list_snapshots shows which exist.")
}

func errNotReady(r *row) error {
	if r.State == api.SnapshotFailed {
		return errs.E(errs.InvalidState, "the snapshot failed: %s", r.Error).Because(r.State).Suggest("Delete it and take another.").With("state", r.State)
	}
	return errs.E(errs.Busy, "the snapshot is %s", r.State).Because(r.State).After(2*time.Second).
		Suggest("Call again in a few seconds with the same idempotencyKey.").With("state", r.State)
}

func errNameTaken(name string) error {
	return errs.E(errs.AlreadyExists, "a snapshot named %s exists", name).Suggest("Choose another name, or delete the one that exists.").With("path", "name")
}

// errLostRace says that a row changed between its reading and its writing: read it again.
var errLostRace = errs.E(errs.Busy, "the snapshot changed at the same moment").Because("changed").After(200 * time.Millisecond).
	Suggest("Read it and call again.")
