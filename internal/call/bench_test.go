package call

import (
	"context"
	"encoding/json"
	"fmt"
	"testing"

	"github.com/berthrun/berth/api/op"
	"github.com/berthrun/berth/internal/audit"
	"github.com/berthrun/berth/internal/caller"
	"github.com/berthrun/berth/internal/db"
)

// BenchmarkWrite is a write without a retry key and one with it, on SQLite with a real disk.
func BenchmarkWrite(b *testing.B) {
	for _, key := range []bool{false, true} {
		b.Run(fmt.Sprintf("key=%v", key), func(b *testing.B) { benchmarkWrite(b, key) })
	}
}

func benchmarkWrite(b *testing.B, keyed bool) {
	d, err := db.Open(b.Context(), db.Config{URL: b.TempDir() + "/berth.db"})
	if err != nil {
		b.Fatal(err)
	}
	defer d.Close()
	reg := op.NewRegistry()
	op.Handle(reg, pokeDef, op.Handler[makeIn, makeOut]{
		Draft: func(context.Context, *makeIn) (*op.Draft, error) {
			return &op.Draft{Resource: op.Resource{ID: "thing", OrgID: "org_a"}}, nil
		},
		Act: func(context.Context, *makeIn, *op.Draft) (*makeOut, error) { return &makeOut{}, nil },
	})
	log := audit.New(audit.Config{DB: d})
	ctx, cancel := context.WithCancel(b.Context())
	ended := make(chan error)
	go func() { ended <- log.Run(ctx) }()
	defer func() { cancel(); <-ended }()
	p := New(Config{DB: d, Authorizer: rule{}, Limiter: NewBuckets(BucketsConfig{DB: d, PerMinute: 1e9}), Auditor: log})
	who := caller.With(ctx, &caller.Caller{OrgID: "org_a", PrincipalID: "key_a"})
	i := 0
	for b.Loop() {
		raw := `{"name":"n"}`
		if keyed {
			raw = fmt.Sprintf(`{"name":"n","idempotencyKey":"k%d"}`, i)
			i++
		}
		if _, err := p.Do(who, reg.Get("things.poke"), json.RawMessage(raw), Options{}); err != nil {
			b.Fatal(err)
		}
	}
}
