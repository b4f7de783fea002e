package call

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"testing"
	"time"

	"github.com/berthrun/berth/api/op"
	"github.com/berthrun/berth/internal/caller"
	"github.com/berthrun/berth/internal/confirmation"
	"github.com/berthrun/berth/internal/db"
	"github.com/berthrun/berth/internal/db/dbtest"
	"github.com/berthrun/berth/internal/errs"
)

// holdsBack has a person approve every write.
type holdsBack struct{ rule }

func (holdsBack) Authorize(_ context.Context, _ *caller.Caller, o *op.Operation, _ *op.Draft) (Decision, error) {
	if o.Hints.Has(op.Write) {
		return Decision{Confirm: []string{"it writes"}, Message: "not without a person"}, nil
	}
	return Decision{Allowed: true}, nil
}

// broken is a Confirmer that cannot be asked how things stand.
type broken struct{ Confirmer }

func (broken) Get(context.Context, db.Querier, string) (confirmation.Confirmation, error) {
	return confirmation.Confirmation{}, errors.New("the check fails")
}

func (b *bench) heldPath() *Path {
	b.t.Helper()
	p := b.path()
	p.cfg.Authorizer, p.cfg.Patience = holdsBack{}, time.Millisecond
	p.cfg.Confirmer = confirmation.New(confirmation.Config{DB: b.db})
	return p
}

// approved marks all that wait as approved, as a person's call does.
func (b *bench) approved() {
	b.t.Helper()
	b.exec(`UPDATE confirmations SET state = 'approved' WHERE state = 'pending'`)
}

func (b *bench) heldBack(p *Path, raw string) {
	b.t.Helper()
	if _, err := b.do(p, "things.make", raw); !errs.Is(err, errs.ConfirmationRequired) || errs.From(err).Reason != "held" {
		b.t.Fatalf("got %v, want that it is held back", err)
	}
}

// A server that is killed at any step of an approved call: the next one finishes it, once, and the approval is used up.
func TestHeldAndKilled(t *testing.T) {
	for _, step := range []string{"intended", "acted", "finished"} {
		t.Run(step, func(t *testing.T) {
			dbtest.Each(t, func(t *testing.T, d *db.DB) {
				b := newBench(t, d)
				b.exec(`INSERT INTO organizations (id, name, created_at) VALUES ('org_a', 'a', 0)`)
				const raw = `{"name":"n","idempotencyKey":"k"}`
				killed := b.heldPath()
				b.heldBack(killed, raw)
				b.heldBack(killed, raw)
				if n := b.count(`SELECT COUNT(*) FROM things`) + b.world.acts; n != 0 || b.count(`SELECT COUNT(*) FROM confirmations`) != 1 {
					t.Fatalf("held back, and %d effects", n)
				}
				b.approved()
				killed.crash = func(at string) bool { return at == step }
				if _, err := b.do(killed, "things.make", raw); !errors.Is(err, errCrashed) {
					t.Fatalf("got %v, want the crash", err)
				}
				b.exec(`UPDATE idempotency SET lease_until = 1 WHERE state = 'pending'`)
				next := b.heldPath()
				out := b.made(raw, next)
				if again := b.made(raw, next); again.ID != out.ID || !again.Replayed {
					t.Errorf("repeated: %+v, want %s", again, out.ID)
				}
				acts := 1
				if step == "acted" || step == "intended" {
					acts = b.world.acts
				}
				b.one(acts)
				if n := b.count(`SELECT COUNT(*) FROM confirmations WHERE state = 'consumed'`); n != 1 {
					t.Errorf("%d approvals are used up, want 1", n)
				}
			})
		})
	}
}

// An intent that fails leaves the approval as it was: a later repetition has it.
func TestHeldAndRefused(t *testing.T) {
	dbtest.Each(t, func(t *testing.T, d *db.DB) {
		b := newBench(t, d)
		b.exec(`INSERT INTO organizations (id, name, created_at) VALUES ('org_a', 'a', 0)`)
		p := b.heldPath()
		const raw = `{"name":"n","idempotencyKey":"k"}`
		b.heldBack(p, raw)
		b.approved()
		b.world.intent = func() error { return errs.E(errs.LimitExceeded, "no more of them") }
		if _, err := b.do(p, "things.make", raw); !errs.Is(err, errs.LimitExceeded) {
			t.Errorf("got %v", err)
		}
		b.world.intent = nil
		b.made(raw, p)
		b.one(1)
	})
}

// Where the check fails the caller still learns what it waits for; without anybody to ask nothing is held back, but refused.
func TestHeldAndUnknown(t *testing.T) {
	dbtest.Each(t, func(t *testing.T, d *db.DB) {
		b := newBench(t, d)
		b.exec(`INSERT INTO organizations (id, name, created_at) VALUES ('org_a', 'a', 0)`)
		p := b.heldPath()
		p.cfg.Patience, p.cfg.Confirmer = time.Minute, broken{p.cfg.Confirmer}
		began := time.Now()
		b.heldBack(p, `{"name":"n"}`)
		if took := time.Since(began); took > 30*time.Second {
			t.Errorf("it took %v", took)
		}
		p.cfg.Confirmer = nil
		if _, err := b.do(p, "things.make", `{"name":"m"}`); !errs.Is(err, errs.Forbidden) {
			t.Errorf("nobody to ask: %v", err)
		}
		var state string
		if err := d.QueryRowContext(t.Context(), `SELECT state FROM idempotency`).Scan(&state); err != nil && !errors.Is(err, sql.ErrNoRows) || state != stateHeld {
			t.Errorf("state %q, %v", state, err)
		}
		if res, err := p.Do(as(t.Context(), "key_a"), b.reg.Get("things.get"), json.RawMessage(`{"id":"x"}`), Options{}); err != nil || res == nil {
			t.Errorf("a read: %v", err)
		}
	})
}
