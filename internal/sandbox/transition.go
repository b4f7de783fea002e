package sandbox

import (
	"context"
	"database/sql"
	"errors"
	"time"

	"github.com/berthrun/berth/api"
	"github.com/berthrun/berth/api/op"
	"github.com/berthrun/berth/internal/caller"
	"github.com/berthrun/berth/internal/db"
	"github.com/berthrun/berth/internal/errs"
)

// moveTx makes one transition in a transaction, with what it takes from or gives back to the quotas and the event that tells of it. Those who wait
// are told once it has committed.
func (s *Service) moveTx(ctx context.Context, tx op.Tx, r *row, to string) error {
	from := r.State
	r.StateAt = db.Micros(s.Now())
	switch to {
	case api.StateStopped, api.StateFailed:
		r.EndedAt = r.StateAt
		r.Depth, r.PauseReason, r.WakeError, r.TimerAt, r.Unsettled = "", "", "", 0, false
	case api.StatePausing:
		r.StopReason, r.Error, r.WakeError, r.TimerAt = "", "", "", 0
	case api.StatePaused:
		r.Unsettled = false
	case api.StateRunning:
		r.Depth, r.PauseReason, r.WakeError, r.TimerAt = "", "", "", 0
	case api.StateStarting, api.StateWaking:
		r.StopReason, r.Error, r.WakeError = "", "", ""
		if r.ExpiresAt != 0 && r.ExpiresAt <= r.StateAt {
			// A new life: without it what is started would expire at once.
			r.ExpiresAt = r.StateAt + r.TTLSeconds*int64(time.Second/time.Microsecond)
		}
	}
	// Nothing is taken before it is sure that this one moves it: whoever loses the race may look again in the same transaction.
	if err := s.store.move(ctx, tx, r, to); err != nil {
		return err
	}
	if err := s.Quota.Take(ctx, tx, r.OrgID, r.usageDelta(from, to)); err != nil {
		return err
	}
	if s.Volumes != nil && (to == api.StateDeleted || to == api.StateFailed) { // the node has nothing of it
		if err := s.Volumes.Release(ctx, tx, r.ID); err != nil {
			return err
		}
	}
	s.DB.NotifyAfter(tx, topic(r.ID))
	data := map[string]any{"from": from, "to": to, "generation": r.Generation}
	switch {
	case to == api.StatePausing, to == api.StatePaused:
		data["reason"] = r.PauseReason
	case r.StopReason != "":
		data["reason"] = r.StopReason
	}
	if to == api.StatePaused {
		data["depth"] = r.Depth
	}
	switch {
	case r.Error != "" && (to == api.StateStopped || to == api.StateFailed || from == api.StatePausing):
		data["error"] = r.Error
	case from == api.StateWaking && r.WakeError != "":
		data["error"] = readFailure(r.WakeError).Message
	}
	if r.cause != "" {
		data["cause"] = r.cause
		r.cause = ""
	}
	return s.Events.Append(ctx, tx, r.OrgID, r.WorkspaceID, "sandbox."+to, r.ID, data)
}

// move makes one transition in a transaction of its own.
func (s *Service) move(ctx context.Context, r *row, to string) error {
	before := *r
	err := s.DB.Tx(ctx, func(tx *sql.Tx) error {
		*r = before // the transaction may run more than once
		return s.moveTx(ctx, tx, r, to)
	})
	if err != nil {
		*r = before
	}
	return err
}

// decided runs what decides on a sandbox as it is and changes it, again where another changed it between the two: then something else is right.
func decided(decide func() error) error {
	for n := 1; ; n++ {
		if err := decide(); !errors.Is(err, errLostRace) || n == 5 {
			return err
		}
	}
}

// find gives a sandbox of the caller's organization, errs.NotFound for another's and for a deleted one.
func (s *Service) find(ctx context.Context, q op.Tx, id string) (*row, error) {
	r, err := s.findDeleted(ctx, q, id)
	if err == nil && r.State == api.StateDeleted {
		return nil, errNotFound(id)
	}
	return r, err
}

// findDeleted is find that gives deleted ones too.
func (s *Service) findDeleted(ctx context.Context, q op.Tx, id string) (*row, error) {
	r, err := s.store.get(ctx, q, id)
	if err != nil {
		return nil, err
	}
	c := caller.From(ctx)
	if r == nil || c == nil || r.OrgID != c.OrgID || r.Purpose != "" {
		return nil, errNotFound(id)
	}
	return r, nil
}

// settle waits until a sandbox is in none of the moving states, at most for the given time, and gives it as it is then.
func (s *Service) settle(ctx context.Context, id string, most time.Duration) (*row, error) {
	return db.Settled(ctx, s.DB, topic(id), most, op.Yield, func(ctx context.Context) (*row, error) {
		r, err := s.store.get(ctx, s.DB, id)
		if err == nil && r == nil {
			err = errNotFound(id)
		}
		return r, err
	}, func(r *row) bool { return !moving(r.State) })
}

// resource is a sandbox as authorization sees it.
func (r *row) resource() op.Resource {
	return op.Resource{
		Kind: "sandbox", ID: r.ID, OrgID: r.OrgID, WorkspaceID: r.WorkspaceID, Name: r.Name,
		Version: r.Generation, CreatedBy: r.CreatedBy, Labels: r.Metadata,
	}
}

// Resource gives a sandbox of the caller's organization as authorization sees it, or errs.NotFound.
func (s *Service) Resource(ctx context.Context, id string) (op.Resource, error) {
	r, err := s.find(ctx, s.DB, id)
	if err != nil {
		return op.Resource{}, err
	}
	return r.resource(), nil
}

// unsupported is the answer for what the driver cannot do.
func unsupported(what string) error {
	return errs.E(errs.Unavailable, "%s is not available in this deployment", what).Because("not_supported").
		Suggest("list_capabilities says what is on and what the rest needs.")
}
