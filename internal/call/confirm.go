package call

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"maps"
	"time"

	"github.com/berthrun/berth/api/op"
	"github.com/berthrun/berth/internal/confirmation"
	"github.com/berthrun/berth/internal/db"
	"github.com/berthrun/berth/internal/errs"
)

// defaultPatience is how long a call waits for a person before it says so.
const defaultPatience = 25 * time.Second

// Confirmer keeps the requests to people.
type Confirmer interface {
	// Ask records a request.
	Ask(ctx context.Context, tx op.Tx, r confirmation.Request) (confirmation.Confirmation, error)
	// Get reads one.
	Get(ctx context.Context, q db.Querier, id string) (confirmation.Confirmation, error)
	// Consume uses an approval up, where exactly that was approved and its time is not over: it is confirmation.Consumed then, and never again. Else it gives
	// what stands in the way.
	Consume(ctx context.Context, tx op.Tx, id string, r confirmation.Request) (confirmation.Confirmation, error)
	// Topic is notified when one was decided.
	Topic(id string) string
}

// waits reports whether a call can wait for a person: reads and streams cannot.
func (p *Path) waits(c *one) bool {
	return p.cfg.Confirmer != nil && c.op.Hints.Has(op.Write) && !c.stream
}

// look finds out whether what a held create acts on is there already, as what another one of that name has: it has the same id in each draft then.
func (p *Path) look(ctx context.Context, c *one) error {
	return safely(func() error {
		again, err := c.op.Draft(ctx, c.in)
		if err == nil {
			c.there = again.Resource.ID == c.draft.Resource.ID
		}
		return err
	})
}

// held is what a person is to approve. Values that are never shown again are in it by fingerprint.
func (e *effect) held() (confirmation.Request, error) {
	args, err := canonicalInput(e.raw)
	if err == nil {
		args, err = hide(e.op.In, args, e.row.once)
	}
	on := e.draft.Resource
	if e.op.Hints.Has(op.Creates) && !e.there {
		on.ID = "" // what is not there yet has another one in each draft
	}
	return confirmation.Request{
		Caller: e.caller, Operation: e.op.Name, Action: e.op.Action, Resource: on, Arguments: args, Cost: e.draft.Cost, Uses: e.draft.Uses, Why: e.why,
	}, err
}

// ask records the request of a call whose row was just made.
func (p *Path) ask(ctx context.Context, tx *sql.Tx, e *effect) error {
	h, err := e.held()
	if err != nil {
		return err
	}
	if e.confirmation, err = p.cfg.Confirmer.Ask(ctx, tx, h); err != nil {
		return err
	}
	e.row.confirmed = e.confirmation.ID
	return p.rows.hold(ctx, tx, e.name, e.confirmation.ID)
}

// release has a held call go on that was approved, or does not need it any more, and ends one that was not. The row is as it was read.
func (p *Path) release(ctx context.Context, tx *sql.Tx, e *effect, now time.Time) (mine bool, err error) {
	e.draft.Once = e.row.once
	if len(e.why) > 0 {
		h, err := e.held()
		if err != nil {
			return false, err
		}
		if e.confirmation, err = p.cfg.Confirmer.Consume(ctx, tx, e.row.confirmed, h); err != nil {
			return false, err
		}
		switch e.confirmation.State {
		case confirmation.Pending:
			return false, nil
		case confirmation.Consumed:
			e.draft.Confirmed = true
		default:
			text := keep(notApproved(e.confirmation))
			e.row.state, e.row.err = stateDone, sql.NullString{String: text, Valid: true}
			return false, p.rows.drop(ctx, tx, e.name, text)
		}
	}
	if mine, err = p.rows.begin(ctx, tx, e.name, e.owner, now); err != nil || !mine {
		return false, err
	}
	e.row.state, e.row.resourceID, e.row.processID = statePending, e.draft.Resource.ID, e.draft.Process
	if err := p.rows.setIDs(ctx, tx, e.name, e.row.resourceID, e.row.processID); err != nil {
		return false, err
	}
	return true, p.intend(ctx, tx, e, *e.draft)
}

// decided waits for the person, as long as it may, and reports whether there is something new. What cannot be asked is not decided.
func (p *Path) decided(ctx context.Context, e *effect) bool {
	defer op.Yield(ctx)()
	left := op.Remaining(ctx, p.cfg.Patience-p.cfg.Now().Sub(e.begun))
	if left <= 0 {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, left)
	defer cancel()
	err := p.cfg.DB.Wait(ctx, p.cfg.Confirmer.Topic(e.row.confirmed), func(ctx context.Context) (bool, error) {
		c, err := p.cfg.Confirmer.Get(ctx, p.cfg.DB, e.row.confirmed)
		if err == nil {
			e.confirmation = c
		}
		return c.State != confirmation.Pending, err
	})
	if err != nil && ctx.Err() == nil {
		p.cfg.Logger.Warn("it cannot be seen whether a call was approved", "operation", e.op.Name, "request_id", e.caller.RequestID, "error", err)
	}
	return err == nil
}

// heldBack answers a call that still waits: a create with a result that says so, any other with an error.
func (p *Path) heldBack(e *effect) (*Result, error) {
	message := fmt.Sprintf("a person is to approve this first: berth confirmations approve %s", e.confirmation.ID)
	said := map[string]any{
		"status": "confirmation-required", "confirmationId": e.confirmation.ID, "idempotencyKey": e.key,
		"expiresAt": e.confirmation.ExpiresAt.UTC().Format(time.RFC3339), "reasons": e.why,
	}
	if e.op.Hints.Has(op.Creates) && e.op.Out.Properties["status"] != nil {
		res, err := p.pending(e, message, said)
		if err == nil {
			p.record(e.one, string(errs.ConfirmationRequired))
			return res, nil
		}
		p.cfg.Logger.Error("a held call has no result", "operation", e.op.Name, "error", err)
	}
	err := errs.E(errs.ConfirmationRequired, "%s", message).Because("held").After(5 * time.Second).
		Suggest("Tell the person, wait, then repeat the call with the same idempotencyKey and input; get_confirmation shows how it stands.")
	for k, v := range said {
		err = err.With(k, v)
	}
	return nil, p.refuse(e.one, err)
}

// pending is the operation's result without what it would have made.
func (p *Path) pending(e *effect, message string, said map[string]any) (*Result, error) {
	out, err := e.op.Result([]byte("{}"))
	if err != nil {
		return nil, err
	}
	res, err := stamp(out, e.key, false)
	if err != nil {
		return nil, err
	}
	all := map[string]any{}
	if err := json.Unmarshal(res.JSON, &all); err != nil {
		return nil, fmt.Errorf("read result: %w", err)
	}
	maps.Copy(all, said)
	all["message"] = message
	if res.JSON, err = json.Marshal(all); err != nil {
		return nil, fmt.Errorf("encode result: %w", err)
	}
	return res, nil
}

// notApproved is how a call ends that was not approved. It is final for its key.
func notApproved(c confirmation.Confirmation) *errs.Error {
	var e *errs.Error
	switch c.State {
	case confirmation.Denied:
		e = errs.E(errs.ConfirmationRequired, "a person has denied this").Because("denied").With("status", "confirmation-denied").
			Suggest("Stop: do not ask again and do not work around it.")
		if c.Note != "" {
			e = e.With("note", c.Note)
		}
	case confirmation.Changed:
		e = errs.E(errs.ConfirmationRequired, "what the call would do has changed since a person was asked").Because("changed").With("status", "confirmation-expired").
			Suggest("Read the resource. If it is still wanted, call again with a new idempotencyKey.")
	default:
		e = errs.E(errs.ConfirmationRequired, "nobody has approved this in time").Because("expired").With("status", "confirmation-expired").
			Suggest("If it is still wanted, call again with a new idempotencyKey.")
	}
	return e.With("confirmationId", c.ID)
}

// isHeld is the condition of a held row.
const isHeld = `state = '` + stateHeld + `'`

// hold records what a held row waits for.
func (s rows) hold(ctx context.Context, tx op.Tx, n name, confirmation string) error {
	_, err := s.change(ctx, tx, n, isHeld, `confirmation_id = $5, lease_until = 0, lease_owner = ''`, confirmation)
	return err
}

// begin leases a held row to owner.
func (s rows) begin(ctx context.Context, tx op.Tx, n name, owner string, now time.Time) (bool, error) {
	return s.change(ctx, tx, n, isHeld, `state = 'pending', lease_owner = $5, lease_until = $6`, owner, db.Micros(now.Add(s.lease)))
}

// drop ends a held row.
func (s rows) drop(ctx context.Context, tx op.Tx, n name, failed string) error {
	_, err := s.change(ctx, tx, n, isHeld, `state = 'done', error = $5`, failed)
	return err
}
