package call

import (
	"context"
	"encoding/json"
	"testing"
	"time"

	"github.com/berthrun/berth/internal/caller"
	"github.com/berthrun/berth/internal/db"
	"github.com/berthrun/berth/internal/db/dbtest"
	"github.com/berthrun/berth/internal/errs"
)

// noCalls is a limiter that lets nobody call.
type noCalls struct{}

func (noCalls) Allow(context.Context, *caller.Caller) error { return limited(time.Second) }

// What is turned away is in the audit log: once a second a caller, however often it comes.
func TestTurnedAwayIsRecorded(t *testing.T) {
	dbtest.Each(t, func(t *testing.T, d *db.DB) {
		b := newBench(t, d)
		p := b.path()
		now := time.Now()
		p.cfg.Limiter, p.cfg.Now = noCalls{}, func() time.Time { return now }
		for range 3 {
			for _, who := range []string{"key_a", "key_b"} {
				for range 50 {
					if _, err := p.Do(as(t.Context(), who), b.reg.Get("things.get"), json.RawMessage(`{"id":"x"}`), Options{}); !errs.Is(err, errs.RateLimited) {
						t.Fatalf("got %v", err)
					}
				}
				if err := p.Refuse(as(t.Context(), who), b.reg.Get("things.make"), errs.E(errs.InvalidInput, "no JSON")); !errs.Is(err, errs.RateLimited) {
					t.Errorf("refused by the face, too often: got %v", err)
				}
			}
			now = now.Add(turnEvery)
		}
		if err := b.audit.Flush(t.Context()); err != nil {
			t.Fatal(err)
		}
		if n := b.count(`SELECT COUNT(*) FROM audit WHERE result = 'RATE_LIMITED'`); n != 6 {
			t.Errorf("%d rows of two callers in three seconds", n)
		}
	})
}

// What a face refuses is counted and recorded as a call, and keeps its error.
func TestRefuse(t *testing.T) {
	d := dbtest.Open(t, dbtest.SQLite(t))
	b := newBench(t, d)
	p := b.path()
	bad := errs.E(errs.InvalidInput, "no JSON")
	if err := p.Refuse(as(t.Context(), "key_a"), b.reg.Get("things.make"), bad); err != error(bad) {
		t.Errorf("got %v", err)
	}
	if err := p.Refuse(t.Context(), b.reg.Get("things.make"), bad); err != error(bad) {
		t.Errorf("without a caller: got %v", err)
	}
	if err := b.audit.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := b.count(`SELECT COUNT(*) FROM audit WHERE result = 'INVALID_INPUT' AND operation = 'things.make' AND principal_id = 'key_a' AND resource_id = ''`); n != 1 {
		t.Errorf("%d rows", n)
	}
}

func TestTurnedIsBounded(t *testing.T) {
	var seen turned
	now := time.Now()
	for i := range 3 * mostTurned {
		seen.due(string(rune(i)), now)
	}
	if len(seen.last) > mostTurned {
		t.Errorf("%d callers are remembered", len(seen.last))
	}
}
