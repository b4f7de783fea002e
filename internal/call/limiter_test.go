package call

import (
	"context"
	"testing"
	"time"

	"github.com/berthrun/berth/internal/caller"
	"github.com/berthrun/berth/internal/db"
	"github.com/berthrun/berth/internal/db/dbtest"
	"github.com/berthrun/berth/internal/errs"
)

func TestBuckets(t *testing.T) {
	dbtest.Each(t, func(t *testing.T, d *db.DB) {
		start := time.Now()
		now := start
		override := map[string]int64{"org_small": 2, "org_closed": 0}
		newServer := func() *Buckets {
			return NewBuckets(BucketsConfig{DB: d, PerMinute: 60, Now: func() time.Time { return now }, Override: func(_ context.Context, org string) (int64, error) {
				if n, ok := override[org]; ok {
					return n, nil
				}
				return -1, nil
			}})
		}
		servers := []*Buckets{newServer(), newServer()}
		calls := func(org, who string, n int) (allowed int, last error) {
			for i := range n {
				if last = servers[i%2].Allow(t.Context(), &caller.Caller{OrgID: org, PrincipalID: who}); last == nil {
					allowed++
				} else if !errs.Is(last, errs.RateLimited) {
					t.Fatal(last)
				}
			}
			return allowed, last
		}
		// Two servers together keep to the limit; while this runs the bucket refills by one a second.
		allowed, last := calls("org_a", "key_a", 200)
		if most := 60 + int(time.Since(start)/time.Second) + 1; allowed < 60 || allowed > most {
			t.Errorf("allowed %d of 200, want 60 to %d", allowed, most)
		}
		if after := errs.From(last).RetryAfter; after <= 0 || after > 1100*time.Millisecond {
			t.Errorf("retry after %v, want up to a second", after)
		}
		if n, _ := calls("org_a", "key_b", 10); n != 10 {
			t.Errorf("another caller: allowed %d of 10", n)
		}
		if n, _ := calls("org_small", "key_small", 10); n != 2 {
			t.Errorf("an organization with a limit of its own: allowed %d, want 2", n)
		}
		if n, _ := calls("org_closed", "key_closed", 3); n != 0 {
			t.Errorf("an organization that may not call: allowed %d", n)
		}
		servers[0].cfg.PerMinute, servers[1].cfg.PerMinute = -1, -1
		if n, _ := calls("org_a", "key_free", 500); n != 500 {
			t.Errorf("without a limit: allowed %d of 500", n)
		}
		servers[0].cfg.PerMinute, servers[1].cfg.PerMinute = 60, 60
		// Half a minute later half of it is there again.
		if _, err := d.ExecContext(t.Context(), `UPDATE buckets SET milli = 0, updated_at = updated_at - 30000000 WHERE scope = 'key_a'`); err != nil {
			t.Fatal(err)
		}
		now = now.Add(30 * time.Second)
		again := time.Now()
		allowed, _ = calls("org_a", "key_a", 100)
		if most := 30 + int(time.Since(start)/time.Second) + 1; allowed < 30 || allowed > most {
			t.Errorf("half a minute later: allowed %d, want 30 to %d (%v)", allowed, most, time.Since(again))
		}
	})
}

func TestInputSHA256(t *testing.T) {
	sum := func(raw string) string {
		t.Helper()
		s, err := inputSHA256([]byte(raw))
		if err != nil {
			t.Errorf("%s: %v", raw, err)
		}
		return s
	}
	same := [][]string{
		{``, `{}`, ` { } `, `{"idempotencyKey":"k","waitSeconds":3}`},
		{`{"a":1,"b":{"y":[1,2],"x":"é"}}`, `{"b":{"x":"\u00e9","y":[1.0,2e0]},"a":1,"idempotencyKey":"k"}`},
		{`{"b":{"waitSeconds":1}}`},
		{`{"b":{"waitSeconds":2}}`},
		{`{"a":"9007199254740993"}`},
		{`{"a":9007199254740992}`},
	}
	seen := map[string]string{}
	for _, group := range same {
		first := sum(group[0])
		if other, ok := seen[first]; ok {
			t.Errorf("%s and %s are the same", group[0], other)
		}
		seen[first] = group[0]
		for _, raw := range group[1:] {
			if sum(raw) != first {
				t.Errorf("%s and %s differ", group[0], raw)
			}
		}
	}
	for _, raw := range []string{`{"a":9007199254740993}`, `{"a":[{"b":-123456789012345678901234567890}]}`, `[]`, `{"a":"\ud800"}`} {
		if s, err := inputSHA256([]byte(raw)); !errs.Is(err, errs.InvalidInput) {
			t.Errorf("%s: got %s, %v", raw, s, err)
		}
	}
}
