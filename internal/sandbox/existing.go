package sandbox

import (
	"context"
	"errors"
	"maps"
	"time"

	"github.com/berthrun/berth/api"
	"github.com/berthrun/berth/internal/caller"
)

// startUntil boots a stopped or wakes a paused sandbox, says how, and waits for it until the given time.
func (s *Service) startUntil(ctx context.Context, r *row, until time.Time) (*row, string, error) {
	how, to := wokeByBoot, api.StateStarting
	if r.State == api.StatePaused {
		how, to = wokeByMemory, api.StateWaking
	}
	r.cause = causeUsed
	if err := s.move(ctx, r, to); err != nil && !errors.Is(err, errLostRace) {
		return nil, "", err
	}
	s.nudge(r.ID)
	after, err := s.settle(ctx, r.ID, time.Until(until))
	return after, how, err
}

// nudgeFailed has the failed sandboxes removed that made room for one of their name.
func (s *Service) nudgeFailed(ctx context.Context, name string) {
	rows, err := s.store.list(ctx, s.DB, filter{OrgID: caller.From(ctx).OrgID, Name: name, States: []string{api.StateDeleting}, Limit: 10})
	if err != nil {
		return // Run looks after them too
	}
	for _, r := range rows {
		s.nudge(r.ID)
	}
}

// differs names the arguments of a getOrCreate that the sandbox it found does not follow. What was left out is no wish.
func differs(in *api.CreateSandboxIn, asked, found *row) []string {
	var all []string
	check := func(name string, given, same bool) {
		if given && !same {
			all = append(all, name)
		}
	}
	check("snapshotId", in.SnapshotID != "", asked.SnapshotID == found.SnapshotID)
	check("template", in.Template != "", asked.Template == found.Template)
	res := in.Resources
	if res == nil {
		res = &api.ResourcesIn{}
	}
	size := in.Size != ""
	check("resources.vcpu", res.VCPU > 0 || size, asked.VCPUMilli == found.VCPUMilli)
	check("resources.memoryMiB", res.MemoryMiB > 0 || size, asked.MemoryMiB == found.MemoryMiB)
	check("resources.diskGiB", res.DiskGiB > 0, asked.DiskGiB == found.DiskGiB)
	check("network.internet", in.Network != nil && in.Network.Internet != nil, asked.Internet == found.Internet)
	check("env", in.Env != nil, maps.Equal(asked.Env, found.Env))
	check("metadata", in.Metadata != nil, maps.Equal(asked.Metadata, found.Metadata))
	check("idlePauseSeconds", in.IdlePauseSeconds != nil, asked.IdleSeconds == found.IdleSeconds)
	check("onIdle", in.OnIdle != "", asked.OnIdle == found.OnIdle)
	check("onExpiry", in.OnExpiry != "", asked.OnExpiry == found.OnExpiry)
	check("autoWake", in.AutoWake != nil, asked.AutoWake == found.AutoWake)
	check("wakeOnTimers", in.WakeOnTimers != nil, asked.WakeOnTimers == found.WakeOnTimers)
	check("ttlSeconds", in.TTLSeconds > 0, asked.TTLSeconds == found.TTLSeconds)
	return all
}
