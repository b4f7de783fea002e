package sandbox

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/berthrun/berth/api"
	"github.com/berthrun/berth/internal/db"
	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/runtime"
)

// How long rows outlive what they stand for.
const (
	failedFor    = time.Hour
	tombstoneFor = 24 * time.Hour
	auditEvery   = 30 * time.Second
)

// Run carries every sandbox on until the context ends, and returns once all workers have stopped: what was interrupted goes on at the next Run.
func (s *Service) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	s.mu.Lock()
	s.ctx = ctx
	s.mu.Unlock()
	s.wg.Go(func() { s.watch(ctx) })
	s.wg.Go(func() { s.runSampler(ctx) })
	tick := time.NewTicker(s.Tick)
	defer tick.Stop()
	var audited, last time.Time
	for ctx.Err() == nil {
		if now := time.Now(); s.Observer != nil {
			if !last.IsZero() {
				s.Observer.Late(now.Sub(last) - s.Tick)
			}
			last = now
		}
		if time.Since(audited) >= auditEvery {
			if err := s.audit(ctx); err != nil && ctx.Err() == nil {
				s.Logger.Warn("sandboxes not compared with the node", "error", err)
			} else {
				audited = time.Now()
			}
		}
		if err := s.keepTime(ctx); err != nil && ctx.Err() == nil {
			s.Logger.Warn("expiry and idling not looked at", "error", err)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
		}
	}
	s.wg.Wait()
	s.dropGuests()
	return ctx.Err()
}

// audit compares the rows with the node: what moves is carried on, what died is stopped, what nobody owns is removed.
func (s *Service) audit(ctx context.Context) error {
	// The node is listed first: a sandbox made meanwhile has a row by the time the rows are read, and its own worker.
	statuses, err := s.Driver.List(ctx)
	if err != nil {
		return err
	}
	saves, err := s.listSaves(ctx)
	if err != nil {
		return err
	}
	// Those that are ready are read before the rows: one that is taken meanwhile has a row by then.
	var ready map[string]bool
	if s.Ready != nil {
		if ready, err = s.Ready.Owned(ctx); err != nil {
			return err
		}
	}
	rows, err := s.store.living(ctx, s.DB)
	if err != nil {
		return err
	}
	owned := map[string]*row{}
	for _, r := range rows {
		owned[r.ID] = r
		if moving(r.State) || r.Unsettled || r.switches() {
			s.nudge(r.ID)
		}
	}
	s.checkGuests(ctx, rows)
	onNode := map[string]bool{}
	for _, st := range statuses {
		onNode[st.ID] = true
		if owned[st.ID] == nil && ready[st.ID] {
			continue
		}
		if owned[st.ID] == nil {
			s.Logger.Warn("removing a sandbox that nobody owns", "sandbox", st.ID)
			if err := s.Driver.Delete(ctx, st.ID, st.Generation); err != nil {
				s.Logger.Warn("orphan not removed", "sandbox", st.ID, "error", err)
			}
			continue
		}
		if st.State == runtime.Running && owned[st.ID].State == api.StatePaused {
			if err := s.refreeze(ctx, owned[st.ID]); err != nil {
				s.Logger.Warn("a paused sandbox runs", "sandbox", st.ID, "error", err)
			}
		}
		s.report(ctx, st)
	}
	s.auditSaves(ctx, saves, rows)
	for _, r := range rows {
		if r.State == api.StateRunning && !onNode[r.ID] {
			// It may have been listed just before it was made: ask again.
			if _, err := s.Driver.Get(ctx, r.ID); errs.Is(err, errs.NotFound) {
				s.died(ctx, r, runtime.ReasonKilled, "its node no longer has it")
			}
		}
	}
	return nil
}

// watch takes the node's reports for as long as the context lives.
func (s *Service) watch(ctx context.Context) {
	for ctx.Err() == nil {
		events, err := s.Driver.Watch(ctx)
		if err == nil {
			s.lost.Store(false)
			for e := range events {
				s.report(ctx, e.Status)
			}
		}
		if ctx.Err() != nil {
			return
		}
		s.lost.Store(true)
		select {
		case <-time.After(500 * time.Millisecond):
		case <-ctx.Done():
		}
	}
}

// report takes one report of the node. Only the death of a running sandbox in its present boot means something: all else is the workers'.
func (s *Service) report(ctx context.Context, st runtime.Status) {
	if st.State != runtime.Stopped {
		return
	}
	r, err := s.store.get(ctx, s.DB, st.ID)
	if err != nil || r == nil || r.State != api.StateRunning || st.Generation < r.BootGeneration {
		return
	}
	reason := st.Reason
	if reason == "" || reason == runtime.ReasonRequested {
		reason = runtime.ReasonKilled
	}
	s.died(ctx, r, reason, "")
}

func (s *Service) died(ctx context.Context, r *row, reason, detail string) {
	r.StopReason, r.Error = reason, detail
	if err := s.move(ctx, r, api.StateStopped); err != nil {
		if !errors.Is(err, errLostRace) && ctx.Err() == nil {
			s.Logger.Warn("death of a sandbox not recorded", "sandbox", r.ID, "error", err)
		}
		return
	}
	s.dropGuest(r.ID)
	if err := s.Keeper.Lost(ctx, r.ID); err != nil {
		s.Logger.Warn("lost processes not marked", "sandbox", r.ID, "error", err)
	}
}

// keepTime carries out expiry, idling and the ends of failed and deleted rows.
func (s *Service) keepTime(ctx context.Context) error {
	now := s.Now()
	frozen := now.Add(-s.FrozenFor)
	if s.short(ctx) {
		frozen = now
	}
	rows, err := s.store.due(ctx, s.DB, db.Micros(now), db.Micros(frozen), db.Micros(now.Add(-failedFor)), db.Micros(now.Add(-s.KeepDeleted)),
		db.Micros(now.Add(-settleAfter)))
	if err != nil {
		return err
	}
	// At the same time, as a guest that hangs takes its time to be found so.
	var all sync.WaitGroup
	defer all.Wait()
	turn := make(chan struct{}, checksAtOnce)
	for _, r := range rows {
		select {
		case turn <- struct{}{}:
		case <-ctx.Done():
			return ctx.Err()
		}
		all.Go(func() {
			defer func() { <-turn }()
			if err := s.expire(ctx, r, now); err != nil && !errors.Is(err, errLostRace) && ctx.Err() == nil {
				s.Logger.Warn("sandbox not ended in time", "sandbox", r.ID, "error", err)
			}
		})
	}
	return nil
}

func (s *Service) expire(ctx context.Context, r *row, now time.Time) error {
	expired := r.ExpiresAt > 0 && r.ExpiresAt <= db.Micros(now)
	to := api.StateDeleting
	r.cause = endCause(r, expired)
	switch {
	case r.State == api.StateDeleted:
		return s.purge(ctx, r.ID)
	case r.State == api.StateRunning && expired && r.OnExpiry != "delete":
		to = s.lieDown(r, r.OnExpiry, pausedAtEnd)
	case r.State == api.StateRunning && !expired && r.Unsettled:
		s.nudge(r.ID) // whatever is next waits for that
		return nil
	case r.State == api.StateRunning && !expired:
		if s.active(ctx, r, now) {
			return nil
		}
		to = s.lieDown(r, r.OnIdle, pausedIdle)
	case r.State == api.StatePaused && !overdue(r, now):
		if timerDue(r, now) {
			return s.ring(ctx, r)
		}
		s.nudge(r.ID)
		return nil
	}
	if err := s.move(ctx, r, to); err != nil {
		return err
	}
	s.nudge(r.ID)
	return nil
}

// lieDown gives the state by which a sandbox is put to rest as it was asked for, and notes why.
func (s *Service) lieDown(r *row, how, why string) string {
	if how == "pause" && s.Driver.Capabilities().Memory {
		r.PauseReason = why
		return api.StatePausing
	}
	r.StopReason = why
	return api.StateStopping
}

// overdue reports whether time deletes a sandbox.
func overdue(r *row, now time.Time) bool {
	at := deletesAt(r)
	return at > 0 && at <= db.Micros(now)
}

// endCause says why time ends a sandbox.
func endCause(r *row, expired bool) string {
	switch {
	case r.State == api.StateFailed:
		return "failed"
	case expired && r.OnExpiry == "delete":
		return "expired"
	case r.State == api.StateStopped, r.State == api.StatePaused:
		return "retention"
	}
	return ""
}

// purge removes the tombstone of a deleted sandbox and everything that was kept with it: its readings and what its processes wrote.
func (s *Service) purge(ctx context.Context, id string) error {
	if err := s.Keeper.Forget(ctx, id); err != nil {
		return err
	}
	if err := s.store.dropReadings(ctx, s.DB, id); err != nil {
		return err
	}
	return s.store.purge(ctx, s.DB, id)
}

// active asks a sandbox's guest whether it is in use, and records the answer. A guest that does not answer is taken as idle: its time has come.
func (s *Service) active(ctx context.Context, r *row, now time.Time) bool {
	actx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	a, err := s.guest(r.ID, r.BootGeneration, r.GuestToken).Activity(actx)
	if err != nil {
		return errs.Is(err, errs.HostUnavailable)
	}
	last := a.Last
	if a.Foreground > 0 || last.After(now) { // a terminal counts by its bytes, which are in last
		last = now
	}
	if now.Sub(last) >= time.Duration(r.IdleSeconds)*time.Second {
		return false
	}
	if err := s.store.touch(ctx, s.DB, r.ID, db.Micros(last)); err != nil {
		s.Logger.Warn("activity not recorded", "sandbox", r.ID, "error", err)
	}
	return true
}
