package sandbox

import (
	"time"

	"github.com/berthrun/berth/api"
	"github.com/berthrun/berth/internal/db"
	"github.com/berthrun/berth/internal/errs"
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
	if r.State == api.StatePaused || r.State == api.StateWaking || r.State == api.StatePausing {
		sb.PauseReason = r.PauseReason
	}
	if r.State == api.StatePaused {
		sb.Depth = r.Depth
		if r.WakeError != "" {
			sb.WakeError = readFailure(r.WakeError).Message
		}
		if r.WakeOnTimers && r.PauseReason == pausedIdle {
			sb.WakesAt = timeOf(r.TimerAt)
		}
	}
	sb.ForkedFrom, sb.SnapshotID = r.ForkedFrom, r.SnapshotID
	if r.RetentionSeconds > 0 {
		sb.Retention = spell(time.Duration(r.RetentionSeconds) * time.Second)
	}
	sb.DeletesAt = timeOf(deletesAt(r))
	if r.ImageRef != "" {
		sb.Image = &api.SandboxImage{Reference: r.ImageRef, ImageID: r.ImageID, Digest: r.Image}
	}
	if err := s.unwell(r); err != nil {
		sb.Ready, sb.Error = false, errs.From(err).Message
	}
	return sb
}
