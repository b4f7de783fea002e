package sandbox

import (
	"context"
	"time"

	"github.com/berthrun/berth/api"
	"github.com/berthrun/berth/internal/db"
)

// show is a row as callers see it, without a reading.
func (s *Service) show(r *row) api.Sandbox {
	disk := r.DiskGiB
	sb := api.Sandbox{
		ID: r.ID, Name: r.Name, State: r.State, Ready: r.State == api.StateRunning, Reachable: !s.lost.Load(), Template: r.Template, WorkspaceID: r.WorkspaceID,
		Resources: api.Resources{VCPU: float64(r.VCPUMilli) / 1000, MemoryMiB: r.MemoryMiB, DiskGiB: &disk},
		Network:   api.Network{Internet: r.Internet}, Metadata: r.Metadata, CreatedAt: db.Time(r.CreatedAt),
		StartedAt: timeOf(r.StartedAt), EndedAt: timeOf(r.EndedAt), ExpiresAt: timeOf(r.ExpiresAt), IdlePauseSeconds: int(r.IdleSeconds),
		OnIdle: r.OnIdle, OnExpiry: r.OnExpiry, AutoWake: r.AutoWake, WakeOnTimers: r.WakeOnTimers, Persist: r.Persist,
		StopReason: r.StopReason, Error: r.Error, Generation: r.Generation, CreatedBy: r.CreatedBy,
	}
	if r.State == api.StateRunning {
		sb.EndedAt = nil
	}
	return sb
}

const mib = 1 << 20

// reading asks the node for a running sandbox's use of CPU, memory and disk; nil where there is none. CPU is the average since the reading before, or since
// the boot.
func (s *Service) reading(ctx context.Context, r *row) *api.Usage {
	if r.State != api.StateRunning {
		return nil
	}
	rctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	st, err := s.Driver.Stats(rctx, r.ID)
	if err != nil {
		return nil
	}
	now := s.Now()
	since, used := db.Time(r.StartedAt), 0.0
	s.mu.Lock()
	if last, ok := s.readings[r.ID]; ok && last.boot == r.BootGeneration && now.Sub(last.at) > 0 {
		since, used = last.at, last.cpu
	}
	if last, ok := s.readings[r.ID]; !ok || last.boot != r.BootGeneration || now.Sub(last.at) > 5*time.Second {
		s.readings[r.ID] = reading{boot: r.BootGeneration, at: now, cpu: st.CPUSeconds}
	}
	s.mu.Unlock()
	u := &api.Usage{At: now.UTC(), MemoryUsedMiB: float64(st.MemoryBytes) / mib, DiskUsedMiB: float64(st.DiskBytes) / mib}
	if span := now.Sub(since).Seconds(); span > 0 {
		u.CPUPercent = max(0, (st.CPUSeconds-used)/span*100)
	}
	return u
}

// reading is what was read last of a sandbox.
type reading struct {
	boot int64
	at   time.Time
	cpu  float64
}
