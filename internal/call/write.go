package call

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/berthrun/berth/api/op"
	"github.com/berthrun/berth/internal/audit"
	"github.com/berthrun/berth/internal/confirmation"
	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/id"
)

// The kinds of ids that only this package makes.
const (
	kindKey   id.Kind = "idem"
	kindOnce  id.Kind = "once"
	kindLease id.Kind = "lease"

	kindServer id.Kind = "server"
)

// effect is a write between its intent and its end.
type effect struct {
	*one
	key      string
	recorded bool
	name     name
	row      *row
	owner    string // of the lease
	again    bool   // it had its end before, which was too large to keep
	audit    string // the row that End completes

	confirmation confirmation.Confirmation // that it waits for
}

func (p *Path) write(ctx context.Context, c *one) (*Result, error) {
	e := &effect{one: c}
	if keyed, ok := c.in.(op.Keyed); ok {
		e.key = keyed.RetryKey()
	}
	e.recorded = e.key != "" || c.op.Hints.Has(op.Creates) || len(c.why) > 0
	if e.key == "" {
		e.key = p.cfg.NewID(kindKey)
	}
	if !e.recorded {
		c.draft.Once = p.cfg.NewID(kindOnce)
		if err := p.cfg.DB.Tx(ctx, func(tx *sql.Tx) error { return p.intend(ctx, tx, e, *c.draft) }); err != nil {
			return nil, p.refuse(c, err)
		}
		return p.act(ctx, e)
	}
	sum, err := inputSHA256(c.raw)
	if err == nil && len(c.why) > 0 && c.op.Hints.Has(op.Creates) {
		err = p.look(ctx, c)
	}
	if err != nil {
		return nil, p.refuse(c, err)
	}
	e.name = name{c.caller.OrgID, c.caller.PrincipalID, c.op.Name, e.key}
	e.owner = p.server + "/" + p.cfg.NewID(kindLease)
	for {
		mine, err := p.claim(ctx, e, sum)
		switch {
		case err != nil:
			return nil, p.refuse(c, err)
		case mine:
			c.caller.Approved = len(c.why) > 0 && e.row.confirmed != ""
			return p.act(ctx, e)
		case e.row.kept():
			return p.replay(e)
		case e.row.state == stateHeld:
			if !p.decided(ctx, e) {
				return p.heldBack(e)
			}
			continue
		}
		if err := p.join(ctx, e); err != nil {
			return nil, p.refuse(c, err)
		}
	}
}

// claim makes the call's row together with the intent, or takes over one that nobody works on. Where neither is done, e.row is what stands.
func (p *Path) claim(ctx context.Context, e *effect, sum string) (mine bool, err error) {
	drafted := *e.draft
	err = p.cfg.DB.Tx(ctx, func(tx *sql.Tx) error {
		mine = false
		now, err := p.cfg.DB.Now(ctx, tx)
		if err != nil {
			return err
		}
		fresh := row{
			inputSHA256: sum, state: statePending, once: p.cfg.NewID(kindOnce), resourceID: drafted.Resource.ID, processID: drafted.Process,
		}
		if len(e.why) > 0 {
			fresh.state = stateHeld
		}
		if mine, err = p.rows.insert(ctx, tx, e.name, fresh, e.owner, now); err != nil {
			return err
		}
		if mine {
			e.row = &fresh
			if fresh.state == stateHeld {
				mine = false
				return p.ask(ctx, tx, e)
			}
			begun := drafted
			begun.Once = fresh.once
			return p.intend(ctx, tx, e, begun)
		}
		if e.row, err = p.rows.get(ctx, tx, e.name); err != nil {
			return err
		}
		if e.row == nil {
			return errs.E(errs.Busy, "the retry key was just removed").After(time.Second)
		}
		if e.row.inputSHA256 != sum {
			return errs.E(errs.IdempotencyConflict, "the idempotencyKey was used with other input").
				Suggest("Use a new idempotencyKey for a new call, or repeat the first call exactly.")
		}
		if e.row.kept() {
			return nil
		}
		if e.row.state == stateHeld {
			*e.draft = drafted
			mine, err = p.release(ctx, tx, e, now)
			return err
		}
		if mine, err = p.rows.takeOver(ctx, tx, e.name, e.owner, now); err != nil || !mine {
			return err
		}
		e.again = e.row.state == stateDone
		*e.draft = drafted
		e.draft.Once = e.row.once
		if e.row.resourceID != "" {
			e.draft.Resource.ID = e.row.resourceID
		}
		if e.row.processID != "" {
			e.draft.Process = e.row.processID
		}
		e.audit, err = p.cfg.Auditor.Begin(ctx, tx, p.entry(e.one))
		return err
	})
	return mine, err
}

// intend writes the service's rows and the audit row. It begins with the draft as it was made, because the transaction may run again.
func (p *Path) intend(ctx context.Context, tx *sql.Tx, e *effect, begun op.Draft) error {
	*e.draft = begun
	if err := safely(func() error { return e.op.Intent(ctx, tx, e.in, e.draft) }); err != nil {
		return err
	}
	if e.recorded && (e.draft.Resource.ID != begun.Resource.ID || e.draft.Process != begun.Process) {
		if err := p.rows.setIDs(ctx, tx, e.name, e.draft.Resource.ID, e.draft.Process); err != nil {
			return err
		}
	}
	var err error
	e.audit, err = p.cfg.Auditor.Begin(ctx, tx, p.entry(e.one))
	return err
}

// join waits until the call that holds the lease ends, gives it back or loses it.
func (p *Path) join(ctx context.Context, e *effect) error {
	defer op.Yield(ctx)()
	err := p.cfg.DB.Wait(ctx, e.row.topic(), func(ctx context.Context) (bool, error) {
		r, err := p.rows.get(ctx, p.cfg.DB, e.name)
		if err != nil || r == nil || r.state != statePending {
			return true, err
		}
		now, err := p.cfg.DB.Now(ctx, p.cfg.DB)
		return !now.Before(r.leaseUntil), err
	})
	if errors.Is(err, context.DeadlineExceeded) {
		return errs.E(errs.Busy, "an earlier call with this idempotencyKey is still being worked on").After(2 * time.Second).
			Suggest("Repeat the call with the same idempotencyKey and input to get its result.")
	}
	return err
}

// replay gives the kept end of an earlier call.
func (p *Path) replay(e *effect) (*Result, error) {
	if e.row.err.Valid {
		return nil, p.refuse(e.one, keptAgain(e))
	}
	out, err := e.op.Result([]byte(e.row.result.String))
	if err != nil {
		return nil, p.refuse(e.one, err)
	}
	e.draft.Resource.ID = e.row.resourceID
	res, err := stamp(out, e.key, true)
	if err != nil {
		return nil, p.refuse(e.one, err)
	}
	p.record(e.one, audit.OK)
	return res, nil
}

// keptAgain gives the error of an earlier call with the same key, and says so.
func keptAgain(e *effect) error {
	err := kept(e.row.err.String)
	if k, ok := errors.AsType[*errs.Error](err); ok {
		return k.With("replayed", true).With("idempotencyKey", e.key)
	}
	return err
}

func stamp(out any, key string, replayed bool) (*Result, error) {
	if s, ok := out.(op.Stamped); ok {
		s.SetWrite(key, replayed)
	}
	res, err := encode(out)
	if err != nil {
		return nil, err
	}
	res.Replayed = replayed
	return res, nil
}

type outcome struct {
	res *Result
	err error
}

// act carries out the effect and waits for it as long as the caller does.
func (p *Path) act(ctx context.Context, e *effect) (*Result, error) {
	if p.crash("intended") {
		return nil, errCrashed
	}
	ended := make(chan outcome, 1)
	p.acting.Go(func() {
		acting, cancel := context.WithDeadline(context.WithoutCancel(ctx), e.until)
		defer cancel()
		res, err := p.effect(acting, cancel, e)
		ended <- outcome{res, err}
	})
	late := time.NewTimer(time.Until(e.until) + grace)
	defer late.Stop()
	gone := ctx.Done()
	for {
		select {
		case o := <-ended:
			return o.res, o.err
		case <-gone:
			if errors.Is(ctx.Err(), context.Canceled) {
				return nil, p.shown(e.one, ctx.Err())
			}
			gone = nil // the deadline: the act has it too and comes back
		case <-late.C:
			return nil, p.shown(e.one, context.DeadlineExceeded)
		}
	}
}

// effect runs the service's act under the lease and keeps its end.
func (p *Path) effect(ctx context.Context, cancel func(), e *effect) (*Result, error) {
	stop := func() {}
	if e.recorded {
		stop = p.hold(ctx, cancel, e)
	}
	defer stop()
	var res *Result
	err := safely(func() error {
		out, err := e.op.Act(ctx, e.in, e.draft)
		if err != nil {
			return err
		}
		res, err = stamp(out, e.key, e.again)
		return err
	})
	if p.crash("acted") {
		return nil, errCrashed
	}
	stop()
	if e.recorded {
		p.finish(ctx, e, res, err)
		if p.crash("finished") {
			return nil, errCrashed
		}
	}
	took := p.cfg.Now().Sub(e.begun)
	if err != nil {
		shown := p.shown(e.one, err)
		p.cfg.Auditor.End(e.audit, string(shown.Code), took)
		return nil, shown
	}
	p.cfg.Auditor.End(e.audit, audit.OK, took)
	return res, nil
}

// hold renews the lease until stop. An act whose lease went to another server is cancelled.
func (p *Path) hold(ctx context.Context, cancel func(), e *effect) (stop func()) {
	var t *time.Timer
	started := make(chan struct{})
	t = time.AfterFunc(p.rows.lease/3, func() {
		<-started
		ours, err := p.rows.renew(ctx, e.name, e.owner)
		switch {
		case err != nil && ctx.Err() == nil:
			p.cfg.Logger.Warn("a lease was not renewed", "operation", e.op.Name, "request_id", e.caller.RequestID, "error", err)
		case err == nil && !ours:
			cancel()
			return
		}
		if ctx.Err() == nil {
			t.Reset(p.rows.lease / 3)
		}
	})
	close(started)
	return func() { t.Stop() }
}

// finish keeps the end. Where that fails the effect stands and the caller learns it; the same key would act again and find it done.
func (p *Path) finish(ctx context.Context, e *effect, res *Result, failed error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	var err error
	switch {
	case failed != nil && transient(failed):
		err = p.rows.finish(ctx, e.name, e.row, e.owner, nil, nil)
	case failed != nil:
		err = p.rows.finish(ctx, e.name, e.row, e.owner, nil, errs.From(failed))
	default:
		stored := res.JSON
		if r, ok := res.Value.(op.Redactor); ok {
			if stored, err = op.Encode(r.Redacted()); err != nil {
				err = fmt.Errorf("redact output: %w", err)
				break
			}
		}
		err = p.rows.finish(ctx, e.name, e.row, e.owner, stored, nil)
	}
	if err != nil {
		p.cfg.Logger.Error("the end of a call was not kept", "operation", e.op.Name, "request_id", e.caller.RequestID, "error", err)
	}
}
