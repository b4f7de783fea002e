package sandbox

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"time"

	"github.com/berthrun/berth/api"
	"github.com/berthrun/berth/api/op"
	"github.com/berthrun/berth/internal/db"
	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/runtime"
)

const (
	// greetFor is how long a guest that comes back with its memory is asked again before the wake is undone.
	greetFor = 15 * time.Second
	// noRoomAgain is when a timer that found no room tries again.
	noRoomAgain = time.Minute
)

// failure is why a wake came to nothing, as it is stored.
type failure struct {
	Code    errs.Code `json:"code"`
	Reason  string    `json:"reason,omitempty"`
	Message string    `json:"message"`
}

func readFailure(text string) failure {
	var f failure
	_ = json.Unmarshal([]byte(text), &f) // ours; empty where there is none
	return f
}

// reasonOf gives the reason of an error, empty where there is none.
func reasonOf(err error) string {
	if err == nil {
		return ""
	}
	return errs.From(err).Reason
}

// intentUp moves a sandbox that is to run: start boots and wakes, wake only wakes. The draft keeps how.
func (s *Service) intentUp(v verb) func(context.Context, op.Tx, *api.SandboxWaitIn, *op.Draft) error {
	return func(ctx context.Context, tx op.Tx, in *api.SandboxWaitIn, d *op.Draft) error {
		if v == verbWake && !s.Driver.Capabilities().Memory {
			return unsupported("pausing with memory")
		}
		return decided(func() error {
			r, err := s.find(ctx, tx, in.SandboxID)
			if err != nil {
				return err
			}
			switch decide(v, r.State) {
			case boot:
				d.Data = wokeByBoot
				return s.moveTx(ctx, tx, r, api.StateStarting)
			case wake:
				d.Data = wokeByMemory
				return s.moveTx(ctx, tx, r, api.StateWaking)
			case nothing, join, onward:
				return nil
			case busy:
				return errBusy(r)
			default:
				return errInvalidState(r, v)
			}
		})
	}
}

func (s *Service) actUp(v verb) func(context.Context, *api.SandboxWaitIn, *op.Draft) (*api.SandboxOut, error) {
	return func(ctx context.Context, in *api.SandboxWaitIn, d *op.Draft) (*api.SandboxOut, error) {
		until := time.Now().Add(op.Remaining(ctx, time.Duration(in.Wait())*time.Second))
		woke, _ := d.Data.(string)
		for tries := 0; ; tries++ {
			s.nudge(in.SandboxID)
			r, err := s.settle(ctx, in.SandboxID, time.Until(until))
			if err != nil {
				return nil, err
			}
			var to string
			switch {
			case goes(r):
				return nil, errNotFound(r.ID)
			case r.State == api.StateFailed, r.State == api.StateStopped && r.StopReason == bootFailed:
				return nil, errNoBoot(r)
			case r.State == api.StatePaused && r.WakeError != "":
				return nil, errNoWake(r)
			case r.State == api.StateStopped && v == verbWake:
				return nil, errInvalidState(r, v)
			case r.State == api.StateStopped: // it was stopping when this was asked for: now it can be started
				to, woke = api.StateStarting, wokeByBoot
			case r.State == api.StatePaused:
				to, woke = api.StateWaking, wokeByMemory
			}
			if to == "" || tries > 0 {
				out := s.out(r)
				out.Woke = woke
				return out, nil
			}
			if err := s.move(ctx, r, to); err != nil && !errs.Is(err, errs.Busy) {
				return nil, err
			}
		}
	}
}

// wakeUp brings a waking sandbox to its guest's first answer, or back to how it was paused.
func (s *Service) wakeUp(ctx context.Context, r *row) error {
	deadline := db.Time(r.StateAt).Add(s.BootTimeout)
	wctx, cancel := context.WithTimeout(ctx, max(deadline.Sub(s.Now()), time.Second))
	defer cancel()
	spec, err := s.specOf(ctx, r)
	if err != nil {
		return err
	}
	if _, err := s.Driver.Wake(wctx, spec); err != nil {
		switch {
		case ctx.Err() != nil:
			return ctx.Err() // interrupted: the sandbox goes another way
		case errs.Is(err, errs.HostUnavailable) && s.Now().Before(deadline):
			return err // the node comes back, or the deadline does
		}
		return s.sleepOn(ctx, r, err)
	}
	err = s.greet(wctx, r)
	switch {
	case err == nil:
	case ctx.Err() != nil:
		return ctx.Err()
	case errs.Is(err, errs.HostUnavailable) && s.Now().Before(deadline),
		reasonOf(err) == "guest_unresponsive" && s.Now().Before(db.Time(r.StateAt).Add(greetFor)):
		return err
	default:
		s.dropGuest(r.ID)
		st, rerr := s.Driver.Rewind(ctx, r.ID, r.Generation)
		if rerr == nil {
			r.Depth = string(st.Depth)
			return s.sleepOn(ctx, r, err)
		}
		if reasonOf(rerr) != "settled" {
			return fmt.Errorf("undo wake: %w", rerr)
		}
		// There is nothing to go back to: it runs, and its guest hangs as that of any running one may.
		s.Logger.Warn("a sandbox woke whose guest does not answer", "sandbox", r.ID, "error", err)
	}
	s.booted(r, false)
	r.BootGeneration, r.Unsettled = r.Generation, r.Depth != api.DepthFrozen
	r.ActiveAt = db.Micros(s.Now())
	return s.move(ctx, r, api.StateRunning)
}

// settleAfter is how long after a wake the node still keeps what it would be undone with: letting go of much memory takes the cores from the first commands.
const settleAfter = 2 * time.Second

// justWoken reports whether a wake is not to be settled yet. keepTime asks again.
func (s *Service) justWoken(r *row) bool { return s.Now().Sub(db.Time(r.StateAt)) < settleAfter }

// sleepOn takes a sandbox back to paused that could not be woken. What it was is kept.
func (s *Service) sleepOn(ctx context.Context, r *row, why error) error {
	s.Logger.Warn("sandbox not woken", "sandbox", r.ID, "error", why)
	s.booted(r, true)
	s.dropGuest(r.ID)
	e := errs.From(why)
	f := failure{Code: e.Code, Reason: e.Reason, Message: e.Message}
	if st, err := s.Driver.Get(ctx, r.ID); err == nil && st.State == runtime.Stopped || errs.Is(err, errs.NotFound) {
		f = failure{Code: errs.Unavailable, Reason: runtime.MemoryMissing, Message: "its memory is gone"}
	}
	text, err := json.Marshal(f)
	if err != nil {
		return fmt.Errorf("encode failure: %w", err)
	}
	r.WakeError = string(text)
	if r.TimerAt > 0 {
		r.TimerAt = 0
		if !runtime.MemoryUnusable(f.Reason) {
			r.TimerAt = db.Micros(s.Now().Add(noRoomAgain))
		}
	}
	return s.move(ctx, r, api.StatePaused)
}

// letGo has the node let go of what a wake would be undone with: the sandbox runs.
func (s *Service) letGo(ctx context.Context, r *row) error {
	if err := s.Driver.Settle(ctx, r.ID, r.Generation); err != nil {
		return err
	}
	if _, err := s.DB.ExecContext(ctx, `UPDATE sandboxes SET unsettled = 0 WHERE id = $1 AND generation = $2`, r.ID, r.Generation); err != nil {
		return fmt.Errorf("record settled wake: %w", err)
	}
	return nil
}

// errNoWake is the error of a call that a paused sandbox could not be woken for.
func errNoWake(r *row) error {
	f := readFailure(r.WakeError)
	e := errs.E(f.Code, "the sandbox could not be woken: %s", f.Message).Because(f.Reason).With("sandboxId", r.ID).With("state", r.State)
	switch {
	case runtime.MemoryUnusable(f.Reason):
		return e.Suggest("Nothing was changed. To go on without its memory stop_sandbox gives that up, and start_sandbox then boots it on its files.")
	case f.Code == errs.NoCapacity || f.Code == errs.LimitExceeded:
		return e.After(10 * time.Second).Suggest("It is paused as before. Try again later, or stop or pause others first.")
	case f.Code == errs.Internal:
		e = errs.E(errs.Unavailable, "the sandbox could not be woken").Because("wake_failed").With("sandboxId", r.ID).With("state", r.State)
	}
	return e.Suggest("It is paused as before and nothing is lost. Try again; if it fails again, stop_sandbox and start_sandbox boot it on its files, without its memory.")
}

// errNoMemory is the error of a create whose snapshot's memory cannot be restored, nil where that is not why it failed.
func errNoMemory(r *row) error {
	if r.State != api.StateFailed || !runtime.MemoryUnusable(r.StopReason) {
		return nil
	}
	e := errs.E(errs.Upstream, "the memory of what it is made of cannot be restored: %s", r.Error).Because(r.StopReason).With("sandboxId", r.ID)
	if r.SnapshotID == "" {
		return e.Suggest("Its files are there: take a snapshot with mode disk and create from that.")
	}
	return e.Suggest("Create it with fromDisk: true and a new idempotencyKey: it then boots on the snapshot's files, without its memory.")
}

// timerDue reports whether a timer inside is to wake a paused sandbox.
func timerDue(r *row, now time.Time) bool {
	return r.State == api.StatePaused && r.PauseReason == pausedIdle && r.WakeOnTimers && r.TimerAt > 0 && r.TimerAt <= db.Micros(now)
}

// ring wakes a sandbox in which a timer is due. Where there is no room for it, it is tried again.
func (s *Service) ring(ctx context.Context, r *row) error {
	r.cause = causeTimer
	err := s.move(ctx, r, api.StateWaking)
	if err == nil {
		s.nudge(r.ID)
		return nil
	}
	if !errs.Is(err, errs.LimitExceeded) {
		return err
	}
	return s.DB.Tx(ctx, func(tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, `UPDATE sandboxes SET timer_at = $1 WHERE id = $2 AND generation = $3`, db.Micros(s.Now().Add(noRoomAgain)), r.ID, r.Generation)
		return err
	})
}
