package sandbox

import (
	"context"
	"database/sql"
	"fmt"
	"time"

	"github.com/berthrun/berth/api"
	"github.com/berthrun/berth/api/op"
	"github.com/berthrun/berth/internal/db"
	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/guest"
	"github.com/berthrun/berth/internal/runtime"
)

// Why a sandbox is paused.
const (
	pausedByCall = "requested"
	pausedIdle   = "idle"
	pausedAtEnd  = "expired"
)

const (
	// restTime bounds what a guest gets to write everything to its disk and to tell of its processes before it is paused.
	restTime = 20 * time.Second
	// restAgain is how long a pause is tried that the node cannot be asked for.
	restAgain = 10 * time.Minute
)

func (s *Service) intentPause(ctx context.Context, tx op.Tx, in *api.SandboxWaitIn, _ *op.Draft) error {
	if !s.Driver.Capabilities().Memory {
		return unsupported("pausing with memory")
	}
	return decided(func() error {
		r, err := s.find(ctx, tx, in.SandboxID)
		if err != nil {
			return err
		}
		switch decide(verbPause, r.State) {
		case do:
			r.PauseReason = pausedByCall
			return s.moveTx(ctx, tx, r, api.StatePausing)
		case nothing:
			return s.store.stayPaused(ctx, tx, r)
		case join:
			return nil
		case busy:
			return errBusy(r)
		default:
			return errInvalidState(r, verbPause)
		}
	})
}

func (s *Service) actPause(ctx context.Context, in *api.SandboxWaitIn, _ *op.Draft) (*api.SandboxOut, error) {
	s.nudge(in.SandboxID) // one that is frozen goes deeper now
	r, err := s.settle(ctx, in.SandboxID, op.Remaining(ctx, time.Duration(in.Wait())*time.Second))
	switch {
	case err != nil:
		return nil, err
	case goes(r):
		return nil, errNotFound(r.ID)
	case r.State == api.StateRunning && r.Error != "":
		return nil, errs.E(errs.Upstream, "the sandbox could not be paused: %s", r.Error).Because("pause_failed").With("sandboxId", r.ID).
			Suggest("It runs on and nothing is lost. Try again with a new idempotencyKey, or stop it, which keeps its files.")
	}
	return s.out(r), nil
}

// rest brings a pausing sandbox to paused, or back to running where that cannot be.
func (s *Service) rest(ctx context.Context, r *row) error {
	st, err := s.Driver.Get(ctx, r.ID)
	switch {
	case errs.Is(err, errs.NotFound):
		return s.stayAwake(ctx, r, err)
	case err != nil:
		return s.restLater(ctx, r, err)
	case st.State == runtime.Stopped:
		return s.stayAwake(ctx, r, errs.E(errs.InvalidState, "it ended"))
	case st.State == runtime.Running:
		if r.PauseReason == pausedIdle && s.usedAgain(ctx, r) {
			r.cause = causeUsed
			return s.move(ctx, r, api.StateRunning)
		}
		s.tuckIn(ctx, r)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if r.Unsettled {
			if err := s.Driver.Settle(ctx, r.ID, r.Generation); err != nil {
				return s.restLater(ctx, r, err)
			}
		}
		s.dropGuest(r.ID)
		began := s.Now()
		st, err = s.lull(ctx, r)
		if s.Observer != nil && ctx.Err() == nil {
			s.Observer.Paused(string(st.Depth), err != nil, s.Now().Sub(began))
		}
	}
	switch {
	case err == nil:
	case ctx.Err() != nil:
		return ctx.Err() // interrupted: the sandbox goes another way
	case errs.Is(err, errs.HostUnavailable):
		return s.restLater(ctx, r, err)
	default:
		return s.stayAwake(ctx, r, err)
	}
	r.Depth = string(st.Depth)
	return s.move(ctx, r, api.StatePaused)
}

// lull has the node pause a running sandbox: an idle one stays in memory for a moment, where there is enough of it.
func (s *Service) lull(ctx context.Context, r *row) (runtime.Status, error) {
	if r.PauseReason == pausedIdle && s.FrozenFor > 0 && s.Driver.Capabilities().Pause && !s.short(ctx) {
		return s.Driver.Pause(ctx, r.ID, r.Generation)
	}
	return s.Driver.Suspend(ctx, r.ID, r.Generation)
}

// short reports whether the node has little memory left.
func (s *Service) short(ctx context.Context) bool { return s.Short != nil && s.Short(ctx) }

// tuckIn has a guest write everything to its disk, keeps what its processes wrote so that it can be read while they sleep, and asks when a timer is due.
// None of it keeps a sandbox from being paused: its memory has it all.
func (s *Service) tuckIn(ctx context.Context, r *row) {
	ctx, cancel := context.WithTimeout(ctx, restTime)
	defer cancel()
	g := s.guest(r.ID, r.BootGeneration, r.GuestToken)
	if !s.listens(ctx, r.ID, g) {
		return
	}
	if err := s.Keeper.Keep(ctx, r.OrgID, r.ID, func(visit func(guest.ExportRecord) error) error { return g.Export(ctx, visit) }); err != nil {
		s.Logger.Warn("processes of a pausing sandbox not kept", "sandbox", r.ID, "error", err)
	}
	if r.PauseReason == pausedIdle && r.WakeOnTimers {
		if at, err := s.nextTimer(ctx, g); err != nil {
			s.Logger.Warn("timers of a pausing sandbox not known", "sandbox", r.ID, "error", err)
		} else if !at.IsZero() {
			r.TimerAt = db.Micros(at)
			// Now, so that a server that ends before the node has answered does not forget it.
			if _, err := s.DB.ExecContext(ctx, `UPDATE sandboxes SET timer_at = $1 WHERE id = $2 AND generation = $3`, r.TimerAt, r.ID, r.Generation); err != nil {
				s.Logger.Warn("timer of a pausing sandbox not recorded", "sandbox", r.ID, "error", err)
			}
		}
	}
	if err := g.Sync(ctx); err != nil {
		s.Logger.Warn("disk of a pausing sandbox not synced", "sandbox", r.ID, "error", err)
	}
}

// usedAgain reports whether a sandbox that is paused for being idle was used since that was decided.
func (s *Service) usedAgain(ctx context.Context, r *row) bool {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	a, err := s.guest(r.ID, r.BootGeneration, r.GuestToken).Activity(ctx)
	if err != nil || (a.Foreground == 0 && s.Now().Sub(a.Last) >= time.Duration(r.IdleSeconds)*time.Second) {
		return false
	}
	r.ActiveAt = max(r.ActiveAt, db.Micros(a.Last))
	if a.Foreground > 0 {
		r.ActiveAt = db.Micros(s.Now())
	}
	return true
}

// restLater has a pause tried again, for as long as the node may come back.
func (s *Service) restLater(ctx context.Context, r *row, err error) error {
	if ctx.Err() != nil || errs.Is(err, errs.HostUnavailable) && s.Now().Before(db.Time(r.StateAt).Add(restAgain)) {
		return err
	}
	return s.stayAwake(ctx, r, err)
}

// stayAwake takes a sandbox back to running that could not be paused. Whether it still runs is looked at anew.
func (s *Service) stayAwake(ctx context.Context, r *row, why error) error {
	s.Logger.Warn("sandbox not paused", "sandbox", r.ID, "error", why)
	r.Error = errs.From(why).Message
	r.ActiveAt = db.Micros(s.Now())
	if err := s.move(ctx, r, api.StateRunning); err != nil {
		return err
	}
	switch st, err := s.Driver.Get(ctx, r.ID); {
	case err == nil:
		s.report(ctx, st)
	case errs.Is(err, errs.NotFound):
		s.died(ctx, r, runtime.ReasonKilled, "its node no longer has it")
	}
	return nil
}

// deepens reports whether a frozen sandbox is to be written to disk now.
func (s *Service) deepens(ctx context.Context, r *row) bool {
	if r.State != api.StatePaused || r.Depth != api.DepthFrozen {
		return false
	}
	return r.PauseReason != pausedIdle || !s.Now().Before(db.Time(r.StateAt).Add(s.FrozenFor)) || s.short(ctx)
}

// deepen writes the memory of a frozen sandbox to disk. Its state stays, and whoever wakes it meanwhile goes first.
func (s *Service) deepen(ctx context.Context, r *row) error {
	began := s.Now()
	st, err := s.Driver.Suspend(ctx, r.ID, r.Generation)
	if s.Observer != nil && ctx.Err() == nil {
		s.Observer.Paused(api.DepthDisk, err != nil, s.Now().Sub(began))
	}
	if err == nil {
		return s.store.setDepth(ctx, s.DB, r, string(st.Depth))
	}
	if ctx.Err() != nil || reasonOf(err) == "stale_generation" {
		return ctx.Err() // it goes another way
	}
	s.Logger.Warn("frozen sandbox not written to disk, will try again", "sandbox", r.ID, "error", err)
	r.StateAt = db.Micros(s.Now())
	if err := s.store.setDepth(ctx, s.DB, r, r.Depth); err != nil {
		return err
	}
	return s.refreeze(ctx, r)
}

// refreeze stops a paused sandbox that runs on its node: a failed attempt may have left it so.
func (s *Service) refreeze(ctx context.Context, r *row) error {
	st, err := s.Driver.Get(ctx, r.ID)
	if err != nil || st.State != runtime.Running || st.Generation > r.Generation {
		return nil
	}
	if s.Driver.Capabilities().Pause {
		_, err = s.Driver.Pause(ctx, r.ID, r.Generation)
	} else {
		_, err = s.Driver.Suspend(ctx, r.ID, r.Generation)
	}
	if reasonOf(err) == "stale_generation" {
		return nil
	}
	return err
}

// setDepth records how deep asleep a paused sandbox is. Of one that is no longer as r says nothing is recorded.
func (s store) setDepth(ctx context.Context, d *db.DB, r *row, depth string) error {
	return d.Tx(ctx, func(tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, `UPDATE sandboxes SET depth = $1, state_at = $2 WHERE id = $3 AND state = $4 AND generation = $5`,
			depth, r.StateAt, r.ID, api.StatePaused, r.Generation)
		if err != nil {
			return fmt.Errorf("record depth: %w", err)
		}
		d.NotifyAfter(tx, topic(r.ID))
		return nil
	})
}

// stayPaused records that a sandbox that paused by itself is wanted so: no timer wakes it, and its memory is let go of.
func (s store) stayPaused(ctx context.Context, tx op.Tx, r *row) error {
	if r.PauseReason == pausedByCall {
		return nil
	}
	res, err := tx.ExecContext(ctx, `UPDATE sandboxes SET pause_reason = $1, timer_at = 0 WHERE id = $2 AND generation = $3`, pausedByCall, r.ID, r.Generation)
	if err != nil {
		return fmt.Errorf("record pause: %w", err)
	}
	if n, _ := res.RowsAffected(); n == 0 {
		return errLostRace
	}
	return nil
}
