package controlplane

import (
	"context"
	"sync"
	"time"

	"github.com/berthrun/berth/api/op"
	"github.com/berthrun/berth/internal/chunk/saves"
	"github.com/berthrun/berth/internal/nodeapi"
	"github.com/berthrun/berth/internal/runtime"
	"github.com/berthrun/berth/internal/sandbox"
	"github.com/berthrun/berth/internal/snapshot"
)

// openSnapshots makes the service of snapshots, which the sandboxes' service makes sandboxes of.
func (p *Plane) openSnapshots() {
	c := snapshot.Config{DB: p.db, Sandboxes: saved{p.sandboxes}, Node: p.node, Events: events{p.events}, Now: p.cfg.Now, Tick: p.cfg.Tick, Logger: p.cfg.Logger}
	if p.node.Known().Trees {
		c.Storage = stored{p.saves}
	}
	p.snapshots = snapshot.New(c)
	p.sandboxes.Snapshots = origins{p.snapshots}
}

// saved lets the snapshots' service save sandboxes.
type saved struct{ *sandbox.Service }

// Hold implements snapshot.Sandboxes.
func (s saved) Hold(ctx context.Context, tx op.Tx, id, snap string) (snapshot.Source, error) {
	h, err := s.HoldForSnapshot(ctx, tx, id, snap)
	return snapshot.Source(h), err
}

// origins lets the sandboxes' service make sandboxes of snapshots.
type origins struct{ *snapshot.Service }

// Source implements sandbox.Snapshots.
func (o origins) Source(ctx context.Context, id string) (sandbox.Snapshot, error) {
	src, err := o.Service.Source(ctx, id)
	return sandbox.Snapshot(src), err
}

// stored keeps snapshots off their node.
type stored struct{ *saves.Keeper }

func (k stored) save(s snapshot.Stored) saves.Save {
	return saves.Save{Name: s.ID, OrgID: s.OrgID, Line: s.SandboxID}
}

// Keep implements snapshot.Storage.
func (k stored) Keep(ctx context.Context, s snapshot.Stored) error {
	return k.Keeper.Keep(ctx, k.save(s))
}

// Fetch implements snapshot.Storage.
func (k stored) Fetch(ctx context.Context, s snapshot.Stored) error {
	return k.Keeper.Fetch(ctx, k.save(s))
}

// Drop implements snapshot.Storage.
func (k stored) Drop(ctx context.Context, s snapshot.Stored) error {
	return k.Keeper.Drop(ctx, k.save(s))
}

const (
	// askMemory is how often the node is asked how much memory it has left.
	askMemory = 5 * time.Second
	// leastMemory is the part of a node's memory that has to be left for sandboxes to stay in it while they are paused.
	leastMemory = 10
)

// short tells whether the node has little memory left. It asks no more often than is of use.
func short(node *nodeapi.Client) func(ctx context.Context) bool {
	var mu sync.Mutex
	var asked time.Time
	return func(ctx context.Context) bool {
		mu.Lock()
		defer mu.Unlock()
		if time.Since(asked) >= askMemory {
			asked = time.Now()
			if _, err := node.Info(ctx); err != nil {
				return false
			}
		}
		info := node.Known()
		return info.AvailableMiB > 0 && info.AvailableMiB*leastMemory < info.MemoryMiB
	}
}

var (
	_ snapshot.Node      = runtime.Driver(nil)
	_ snapshot.Sandboxes = saved{}
	_ snapshot.Storage   = stored{}
	_ sandbox.Snapshots  = origins{}
)
