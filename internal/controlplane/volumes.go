package controlplane

import (
	"context"

	"github.com/berthrun/berth/internal/chunk/saves"
	"github.com/berthrun/berth/internal/runtime"
	"github.com/berthrun/berth/internal/sandbox"
	"github.com/berthrun/berth/internal/volume"
)

// openVolumes makes the service of volumes, which the sandboxes' service boots sandboxes with.
func (p *Plane) openVolumes() {
	c := volume.Config{
		DB: p.db, Sandboxes: p.sandboxes, Node: p.node, Quota: p.quota, Events: events{p.events}, Pool: localPool, Now: p.cfg.Now, Tick: p.cfg.Tick,
		Measure: p.cfg.SampleEvery, Logger: p.cfg.Logger,
	}
	if p.node.Known().Trees {
		c.Storage = backups{p.saves}
	}
	p.volumes = volume.New(c)
	p.sandboxes.Volumes = p.volumes
	p.quota.Count(p.volumes.Count)
}

// backups keeps backups of volumes off their node.
type backups struct{ *saves.Keeper }

func named(b volume.Stored) saves.Backup {
	return saves.Backup{Name: b.ID, OrgID: b.OrgID, Volume: b.VolumeID}
}

// Keep implements volume.Storage.
func (k backups) Keep(ctx context.Context, b volume.Stored, tell func(done int64)) (volume.Kept, error) {
	t, err := k.KeepVolume(ctx, named(b), tell)
	return volume.Kept{Files: t.Stats.Entries, Content: t.Stats.Bytes, Added: t.Stats.Stored, SHA256: t.Ref}, err
}

// Load implements volume.Storage.
func (k backups) Load(ctx context.Context, b volume.Stored, to string, tell func(done int64)) error {
	return k.LoadVolume(ctx, named(b), to, tell)
}

// Drop implements volume.Storage.
func (k backups) Drop(ctx context.Context, b volume.Stored) error {
	return k.DropVolume(ctx, named(b))
}

var (
	_ volume.Node      = runtime.Driver(nil)
	_ volume.Sandboxes = (*sandbox.Service)(nil)
	_ volume.Storage   = backups{}
	_ sandbox.Volumes  = (*volume.Service)(nil)
)
