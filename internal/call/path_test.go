package call

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/berthrun/berth/api/op"
	"github.com/berthrun/berth/internal/audit"
	"github.com/berthrun/berth/internal/caller"
	"github.com/berthrun/berth/internal/db"
	"github.com/berthrun/berth/internal/db/dbtest"
	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/id"
)

func TestMain(m *testing.M) { dbtest.Main(m) }

type makeIn struct {
	op.WriteIn
	op.WaitIn
	Name string `json:"name" doc:"Its name."`
	Size int    `json:"size,omitempty" doc:"Of the result."`
}

type makeOut struct {
	op.WriteOut
	ID     string `json:"id"`
	Name   string `json:"name"`
	Secret string `json:"secret,omitempty"`
	Bulk   string `json:"bulk"`
}

func (o makeOut) Redacted() any { o.Secret = ""; return o }

type getIn struct {
	ID string `json:"id" doc:"Which."`
}

type getOut struct {
	Tags []string `json:"tags"`
}

var (
	makeDef = op.Def[makeIn, makeOut]{Name: "things.make", Route: "POST /v1/things", Action: "test:things:make", Hints: op.Write | op.Creates, Doc: "Makes one."}
	pokeDef = op.Def[makeIn, makeOut]{Name: "things.poke", Route: "POST /v1/things/poke", Action: "test:things:poke", Hints: op.Write, Doc: "Pokes one."}
	getDef  = op.Def[getIn, getOut]{Name: "things.get", Route: "GET /v1/things/{id}", Action: "test:things:read", Hints: op.Read, Doc: "Reads one."}
)

// world is what calls have an effect on: outside of the database, and knowing an effect by its Once, as a guest does.
type world struct {
	mu      sync.Mutex
	effects map[string]string // Once → resource
	acts    int
	drafts  atomic.Int32
	act     func(ctx context.Context, in *makeIn, d *op.Draft) error // may be nil
	intent  func() error                                             // may be nil
}

func (w *world) registry() *op.Registry {
	r := op.NewRegistry()
	h := op.Handler[makeIn, makeOut]{
		Draft: func(ctx context.Context, in *makeIn) (*op.Draft, error) {
			w.drafts.Add(1)
			return &op.Draft{Resource: op.Resource{Kind: "thing", ID: id.New("thing"), OrgID: caller.From(ctx).OrgID, Name: in.Name}, Process: id.New(id.Process)}, nil
		},
		Intent: func(ctx context.Context, tx op.Tx, in *makeIn, d *op.Draft) error {
			if d.Once == "" {
				return errors.New("no once")
			}
			if _, err := tx.ExecContext(ctx, `INSERT INTO things (id, name, process, once) VALUES ($1, $2, $3, $4)`, d.Resource.ID, in.Name, d.Process, d.Once); err != nil {
				return err
			}
			if w.intent != nil {
				return w.intent()
			}
			return nil
		},
		Act: func(ctx context.Context, in *makeIn, d *op.Draft) (*makeOut, error) {
			w.mu.Lock()
			w.acts++
			act := w.act
			w.mu.Unlock()
			if act != nil {
				if err := act(ctx, in, d); err != nil {
					return nil, err
				}
			}
			w.mu.Lock()
			defer w.mu.Unlock()
			w.effects[d.Once] = d.Resource.ID + " " + d.Process
			return &makeOut{ID: d.Resource.ID, Name: in.Name, Secret: "s3cret", Bulk: strings.Repeat("x", in.Size)}, nil
		},
	}
	op.Handle(r, makeDef, h)
	op.Handle(r, pokeDef, h)
	op.Handle(r, getDef, op.Handler[getIn, getOut]{
		Draft: func(ctx context.Context, in *getIn) (*op.Draft, error) {
			if in.ID == "panic" {
				panic("with a secret")
			}
			return &op.Draft{Resource: op.Resource{Kind: "thing", ID: in.ID, OrgID: caller.From(ctx).OrgID}}, nil
		},
		Act: func(ctx context.Context, in *getIn, d *op.Draft) (*getOut, error) {
			if in.ID == "none" {
				return nil, fmt.Errorf("read thing: %w", errs.E(errs.NotFound, "there is no such thing"))
			}
			return &getOut{}, nil
		},
	})
	return r
}

// rule allows everything but what it names.
type rule struct{ denied string }

func (r rule) Authorize(_ context.Context, _ *caller.Caller, o *op.Operation, d *op.Draft) (Decision, error) {
	return Decision{Allowed: o.Name != r.denied, Message: "not you"}, nil
}
func (r rule) Visible(*caller.Caller, op.Info) bool { return true }

type noLimit struct{}

func (noLimit) Allow(context.Context, *caller.Caller) error { return nil }

type bench struct {
	t     *testing.T
	db    *db.DB
	world *world
	reg   *op.Registry
	audit *audit.Log
	logs  *strings.Builder
	log   *slog.Logger // one for all servers: it writes to logs one line at a time
}

func newBench(t *testing.T, d *db.DB) *bench {
	t.Helper()
	if _, err := d.ExecContext(t.Context(), `CREATE TABLE things (id TEXT PRIMARY KEY, name TEXT, process TEXT, once TEXT)`); err != nil {
		t.Fatal(err)
	}
	b := &bench{t: t, db: d, world: &world{effects: map[string]string{}}, audit: audit.New(audit.Config{DB: d}), logs: &strings.Builder{}}
	b.log = slog.New(slog.NewTextHandler(b.logs, nil))
	b.reg = b.world.registry()
	return b
}

func (b *bench) path() *Path {
	p := New(Config{DB: b.db, Authorizer: rule{}, Limiter: noLimit{}, Auditor: b.audit, Logger: b.log})
	b.t.Cleanup(func() {
		if err := p.Close(context.Background()); err != nil {
			b.t.Error(err)
		}
	})
	return p
}

func as(ctx context.Context, principal string) context.Context {
	return caller.With(ctx, &caller.Caller{OrgID: "org_a", PrincipalID: principal, RequestID: "req_1", Face: caller.FaceHTTP})
}

func (b *bench) do(p *Path, operation, raw string) (*Result, error) {
	return p.Do(as(b.t.Context(), "key_a"), b.reg.Get(operation), json.RawMessage(raw), Options{})
}

func (b *bench) made(raw string, p *Path) *makeOut {
	b.t.Helper()
	res, err := b.do(p, "things.make", raw)
	if err != nil {
		b.t.Fatal(err)
	}
	return res.Value.(*makeOut)
}

func (b *bench) count(query string, args ...any) int {
	b.t.Helper()
	var n int
	if err := b.db.QueryRowContext(b.t.Context(), query, args...).Scan(&n); err != nil {
		b.t.Fatal(err)
	}
	return n
}

func (b *bench) exec(query string, args ...any) {
	b.t.Helper()
	if _, err := b.db.ExecContext(b.t.Context(), query, args...); err != nil {
		b.t.Fatal(err)
	}
}

// one checks that there is one row, one effect, and that they are of the same first draft.
func (b *bench) one(acts int) {
	b.t.Helper()
	b.world.mu.Lock()
	defer b.world.mu.Unlock()
	if n := b.count(`SELECT COUNT(*) FROM things`); n != 1 || len(b.world.effects) != 1 || b.world.acts != acts {
		b.t.Fatalf("got %d rows, %d effects, %d acts; want 1, 1, %d", n, len(b.world.effects), b.world.acts, acts)
	}
	var thing, process, once string
	if err := b.db.QueryRowContext(b.t.Context(), `SELECT id, process, once FROM things`).Scan(&thing, &process, &once); err != nil {
		b.t.Fatal(err)
	}
	if got := b.world.effects[once]; got != thing+" "+process {
		b.t.Errorf("the effect is on %q, the row is %s %s", got, thing, process)
	}
}

func TestRefusals(t *testing.T) {
	dbtest.Each(t, func(t *testing.T, d *db.DB) {
		b := newBench(t, d)
		p := b.path()
		readOnly := caller.With(t.Context(), &caller.Caller{OrgID: "org_a", PrincipalID: "key_a", ReadOnly: true})
		tests := []struct {
			name   string
			ctx    context.Context
			op     string
			raw    string
			denied string
			want   errs.Code
			drafts int32
		}{
			{name: "no caller", ctx: t.Context(), op: "things.get", raw: `{"id":"x"}`, want: errs.Unauthenticated},
			{name: "read-only", ctx: readOnly, op: "things.make", raw: `{"name":"x"}`, want: errs.Forbidden},
			{name: "unknown member", op: "things.make", raw: `{"name":"x","nam":"x"}`, want: errs.InvalidInput},
			{name: "bad key", op: "things.make", raw: `{"name":"x","idempotencyKey":"a b"}`, want: errs.InvalidInput},
			{name: "not allowed", op: "things.make", raw: `{"name":"x"}`, denied: "things.make", want: errs.Forbidden, drafts: 1},
			{name: "not found", op: "things.get", raw: `{"id":"none"}`, want: errs.NotFound},
			{name: "panic", op: "things.get", raw: `{"id":"panic"}`, want: errs.Internal},
		}
		for _, tt := range tests {
			t.Run(tt.name, func(t *testing.T) {
				ctx := tt.ctx
				if ctx == nil {
					ctx = as(t.Context(), "key_a")
				}
				p.cfg.Authorizer = rule{tt.denied}
				b.world.drafts.Store(0)
				_, err := p.Do(ctx, b.reg.Get(tt.op), json.RawMessage(tt.raw), Options{})
				if errs.CodeOf(err) != tt.want {
					t.Errorf("got %v, want %s", err, tt.want)
				}
				if n := b.world.drafts.Load(); n != tt.drafts {
					t.Errorf("got %d drafts, want %d", n, tt.drafts)
				}
			})
		}
		if n := b.count(`SELECT COUNT(*) FROM things`) + b.count(`SELECT COUNT(*) FROM idempotency`) + b.world.acts; n != 0 {
			t.Error("a refused call left something")
		}
		if e := errs.From(func() error { _, err := b.do(p, "things.get", `{"id":"panic"}`); return err }()); strings.Contains(e.Message, "secret") {
			t.Errorf("the caller is told %q", e.Message)
		}
		if !strings.Contains(b.logs.String(), "request_id=req_1") || !strings.Contains(b.logs.String(), "with a secret") {
			t.Errorf("the log says %s", b.logs)
		}
		if err := b.audit.Flush(t.Context()); err != nil {
			t.Fatal(err)
		}
		want := map[string]int{"FORBIDDEN": 2, "INVALID_INPUT": 2, "NOT_FOUND": 1, "INTERNAL_ERROR": 2}
		got := map[string]int{}
		for code := range want {
			got[code] = b.count(`SELECT COUNT(*) FROM audit WHERE result = $1`, code)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("audit (-want +got):\n%s", diff)
		}
	})
}

func TestReplay(t *testing.T) {
	dbtest.Each(t, func(t *testing.T, d *db.DB) {
		b := newBench(t, d)
		p := b.path()
		first := b.made(`{"name":"n","waitSeconds":1,"idempotencyKey":"k"}`, p)
		if first.IdempotencyKey != "k" || first.Replayed || first.Secret != "s3cret" {
			t.Errorf("first: got %+v", first)
		}
		again := b.made(` {"idempotencyKey":"k", "waitSeconds":30, "name":"\u006e"}`, p)
		want := &makeOut{WriteOut: op.WriteOut{IdempotencyKey: "k", Replayed: true}, ID: first.ID, Name: "n"}
		if diff := cmp.Diff(want, again); diff != "" {
			t.Errorf("replay (-want +got):\n%s", diff)
		}
		b.one(1)
		if n := b.count(`SELECT COUNT(*) FROM idempotency WHERE result LIKE '%s3cret%'`); n != 0 {
			t.Error("the secret is kept")
		}
		if _, err := b.do(p, "things.make", `{"name":"other","idempotencyKey":"k"}`); !errs.Is(err, errs.IdempotencyConflict) {
			t.Errorf("other input: got %v", err)
		}
		p.cfg.Authorizer = rule{"things.make"}
		if _, err := b.do(p, "things.make", `{"name":"n","idempotencyKey":"k"}`); !errs.Is(err, errs.Forbidden) {
			t.Errorf("a replay without the right: got %v", err)
		}
		p.cfg.Authorizer = rule{}
		b.one(1)

		// The key of another principal, of another operation, and an expired one are others.
		if _, err := p.Do(as(t.Context(), "key_b"), b.reg.Get("things.make"), json.RawMessage(`{"name":"other","idempotencyKey":"k"}`), Options{}); err != nil {
			t.Error(err)
		}
		if _, err := b.do(p, "things.poke", `{"name":"other","idempotencyKey":"k"}`); err != nil {
			t.Error(err)
		}
		b.exec(`UPDATE idempotency SET expires_at = 1 WHERE principal_id = 'key_a' AND operation = 'things.make'`)
		if out := b.made(`{"name":"other","idempotencyKey":"k"}`, p); out.Replayed || out.ID == first.ID {
			t.Errorf("after its time: got %+v", out)
		}
		if got := len(b.world.effects); got != 4 {
			t.Errorf("got %d effects, want 4", got)
		}
		b.exec(`UPDATE idempotency SET expires_at = 1 WHERE principal_id = 'key_b'`)
		if err := p.rows.purge(t.Context()); err != nil {
			t.Fatal(err)
		}
		if n := b.count(`SELECT COUNT(*) FROM idempotency`); n != 2 {
			t.Errorf("got %d rows after the purge, want 2", n)
		}
	})
}

func TestMadeKeys(t *testing.T) {
	dbtest.Each(t, func(t *testing.T, d *db.DB) {
		b := newBench(t, d)
		p := b.path()
		out := b.made(`{"name":"n"}`, p)
		if again := b.made(fmt.Sprintf(`{"name":"n","idempotencyKey":%q}`, out.IdempotencyKey), p); !again.Replayed || again.ID != out.ID {
			t.Errorf("a create with the key that was made: got %+v", again)
		}
		res, err := b.do(p, "things.poke", `{"name":"n"}`)
		if err != nil {
			t.Fatal(err)
		}
		if key := res.Value.(*makeOut).IdempotencyKey; key == "" {
			t.Error("no key was made")
		}
		if n := b.count(`SELECT COUNT(*) FROM idempotency WHERE operation = 'things.poke'`); n != 0 {
			t.Error("a key that was made for no create is recorded")
		}
	})
}

func TestJoin(t *testing.T) {
	dbtest.Each(t, func(t *testing.T, d *db.DB) {
		b := newBench(t, d)
		paths := []*Path{b.path(), b.path()}
		begun, release := make(chan struct{}), make(chan struct{})
		b.world.act = func(context.Context, *makeIn, *op.Draft) error {
			close(begun)
			<-release
			return nil
		}
		const calls = 12
		ids := make(chan string, calls)
		var wg sync.WaitGroup
		call := func(p *Path) {
			wg.Go(func() {
				res, err := b.do(p, "things.make", `{"name":"n","idempotencyKey":"k"}`)
				if err != nil {
					t.Error(err)
					ids <- "none"
					return
				}
				ids <- fmt.Sprint(res.Value.(*makeOut).ID, " ", res.Replayed)
			})
		}
		call(paths[0])
		<-begun
		for i := range calls - 1 {
			call(paths[i%2])
		}
		// One that may not wait is told to come back.
		_, err := paths[1].Do(as(t.Context(), "key_a"), b.reg.Get("things.make"), json.RawMessage(`{"name":"n","idempotencyKey":"k"}`), Options{Deadline: 2 * time.Second})
		if !errs.Is(err, errs.Busy) || errs.From(err).RetryAfter != 2*time.Second {
			t.Errorf("out of time: got %v", err)
		}
		close(release)
		wg.Wait()
		got := map[string]int{}
		for range calls {
			got[(<-ids)]++
		}
		b.one(1)
		var thing string
		if err := d.QueryRowContext(t.Context(), `SELECT id FROM things`).Scan(&thing); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(map[string]int{thing + " false": 1, thing + " true": calls - 1}, got); diff != "" {
			t.Errorf("results (-want +got):\n%s", diff)
		}
	})
}

func TestCrash(t *testing.T) {
	tests := []struct {
		step     string
		acts     int
		replayed bool
	}{{"intended", 1, false}, {"acted", 2, false}, {"finished", 1, true}}
	for _, tt := range tests {
		t.Run(tt.step, func(t *testing.T) {
			dbtest.Each(t, func(t *testing.T, d *db.DB) {
				b := newBench(t, d)
				killed := b.path()
				killed.crash = func(step string) bool { return step == tt.step }
				const raw = `{"name":"n","idempotencyKey":"k"}`
				if _, err := b.do(killed, "things.make", raw); !errors.Is(err, errCrashed) {
					t.Fatalf("got %v, want the crash", err)
				}
				next := b.path()
				if tt.step != "finished" {
					// Until its lease runs out the dead server's call is waited for.
					_, err := next.Do(as(t.Context(), "key_a"), b.reg.Get("things.make"), json.RawMessage(raw), Options{Deadline: 2 * time.Second})
					if !errs.Is(err, errs.Busy) {
						t.Errorf("under the lease: got %v", err)
					}
					b.exec(`UPDATE idempotency SET lease_until = 1`)
				}
				out := b.made(raw, next)
				if out.Replayed != tt.replayed {
					t.Errorf("got replayed %v, want %v", out.Replayed, tt.replayed)
				}
				b.one(tt.acts)
				if again := b.made(raw, next); again.ID != out.ID || !again.Replayed {
					t.Errorf("repeated: got %+v, want %s", again, out.ID)
				}
			})
		})
	}
}

// With SQLite a new server need not wait for the leases of the one that was killed, and keeps its own.
func TestRestart(t *testing.T) {
	d := dbtest.Open(t, dbtest.SQLite(t))
	b := newBench(t, d)
	killed := b.path()
	killed.crash = func(step string) bool { return step == "intended" }
	if _, err := b.do(killed, "things.make", `{"name":"n","idempotencyKey":"k"}`); !errors.Is(err, errCrashed) {
		t.Fatal(err)
	}
	next := b.path()
	begun, release := make(chan struct{}), make(chan struct{})
	b.world.act = func(context.Context, *makeIn, *op.Draft) error {
		close(begun)
		<-release
		return nil
	}
	var own sync.WaitGroup
	own.Go(func() {
		if _, err := b.do(next, "things.poke", `{"name":"n","idempotencyKey":"own"}`); err != nil {
			t.Error(err)
		}
	})
	<-begun
	b.world.mu.Lock()
	b.world.act = nil
	b.world.mu.Unlock()
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { _ = next.Run(ctx) })
	b.made(`{"name":"n","idempotencyKey":"k"}`, next)
	if n := b.count(`SELECT COUNT(*) FROM idempotency WHERE idem_key = 'own' AND lease_until > 0`); n != 1 {
		t.Error("the server gave back its own lease")
	}
	cancel()
	running.Wait()
	close(release)
	own.Wait()
}

// An intent that fails leaves nothing, and its key is free.
func TestIntentFails(t *testing.T) {
	dbtest.Each(t, func(t *testing.T, d *db.DB) {
		b := newBench(t, d)
		p := b.path()
		b.world.intent = func() error { return errs.E(errs.LimitExceeded, "no more things") }
		if _, err := b.do(p, "things.make", `{"name":"n","idempotencyKey":"k"}`); !errs.Is(err, errs.LimitExceeded) {
			t.Fatalf("got %v", err)
		}
		if n := b.count(`SELECT COUNT(*) FROM things`) + b.count(`SELECT COUNT(*) FROM idempotency`) + b.count(`SELECT COUNT(*) FROM audit`); n != 0 {
			t.Errorf("%d rows are left", n)
		}
		b.world.intent = nil
		b.made(`{"name":"other","idempotencyKey":"k"}`, p)
		b.one(1)
	})
}

func TestErrorsOfAct(t *testing.T) {
	boom := errors.New("boom")
	tests := []struct {
		name string
		err  error
		kept bool
		want errs.Code
	}{
		{"final", errs.E(errs.AlreadyExists, "the name is taken").Suggest("Take another.").With("name", "n").Because("name"), true, errs.AlreadyExists},
		{"busy", errs.E(errs.Busy, "wait").After(time.Second), false, errs.Busy},
		{"no capacity", errs.E(errs.NoCapacity, "full"), false, errs.NoCapacity},
		{"host away", errs.E(errs.HostUnavailable, "away"), false, errs.HostUnavailable},
		{"unknown", boom, false, errs.Internal},
		{"timeout", context.DeadlineExceeded, false, errs.Timeout},
		{"cancelled", context.Canceled, false, errs.Timeout},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			dbtest.Each(t, func(t *testing.T, d *db.DB) {
				b := newBench(t, d)
				p := b.path()
				failing := true
				b.world.act = func(context.Context, *makeIn, *op.Draft) error {
					if failing {
						return tt.err
					}
					return nil
				}
				const raw = `{"name":"n","idempotencyKey":"k"}`
				_, first := b.do(p, "things.make", raw)
				if !errs.Is(first, tt.want) {
					t.Fatalf("got %v, want %s", first, tt.want)
				}
				failing = false
				res, err := b.do(p, "things.make", raw)
				if !tt.kept {
					if err != nil || res.Replayed {
						t.Fatalf("repeated: got %+v, %v", res, err)
					}
					b.one(2)
					return
				}
				got, want := errs.From(err), errs.From(first)
				if got.Details["replayed"] != true || got.Details["idempotencyKey"] != "k" || want.Details["replayed"] != nil {
					t.Errorf("of its being a replay it says %v, the first said %v", got.Details, want.Details)
				}
				delete(got.Details, "replayed")
				delete(got.Details, "idempotencyKey")
				if diff := cmp.Diff([]any{want.Code, want.Message, want.Suggestion, want.Reason, want.Details}, []any{got.Code, got.Message, got.Suggestion, got.Reason, got.Details}); diff != "" {
					t.Errorf("kept (-want +got):\n%s", diff)
				}
				if b.world.acts != 1 {
					t.Errorf("acted %d times", b.world.acts)
				}
			})
		})
	}
}

func TestCallerGoesAway(t *testing.T) {
	dbtest.Each(t, func(t *testing.T, d *db.DB) {
		b := newBench(t, d)
		p := b.path()
		begun, release := make(chan struct{}), make(chan struct{})
		b.world.act = func(ctx context.Context, _ *makeIn, _ *op.Draft) error {
			close(begun)
			<-release
			return ctx.Err() // which must not be there
		}
		ctx, leave := context.WithCancel(as(t.Context(), "key_a"))
		ended := make(chan error)
		const raw = `{"name":"n","idempotencyKey":"k"}`
		go func() {
			_, err := p.Do(ctx, b.reg.Get("things.make"), json.RawMessage(raw), Options{InFlight: true})
			ended <- err
		}()
		<-begun
		leave()
		if err := <-ended; !errs.Is(err, errs.Timeout) {
			t.Errorf("got %v", err)
		}
		if len(p.inflight.now) != 0 {
			t.Error("the caller that has gone is still counted")
		}
		close(release)
		if out := b.made(raw, p); !out.Replayed {
			t.Errorf("got %+v", out)
		}
		b.one(1)
	})
}

func TestDeadline(t *testing.T) {
	dbtest.Each(t, func(t *testing.T, d *db.DB) {
		b := newBench(t, d)
		p := b.path()
		b.world.act = func(ctx context.Context, _ *makeIn, _ *op.Draft) error {
			<-ctx.Done()
			return ctx.Err()
		}
		const raw = `{"name":"n","idempotencyKey":"k"}`
		_, err := p.Do(as(t.Context(), "key_a"), b.reg.Get("things.make"), json.RawMessage(raw), Options{Deadline: 2 * time.Second})
		if !errs.Is(err, errs.Timeout) {
			t.Fatalf("got %v", err)
		}
		b.world.act = nil
		b.made(raw, p)
		b.one(2)
	})
}

// A result that is too large to keep is made again, from the same ids.
func TestLargeResult(t *testing.T) {
	dbtest.Each(t, func(t *testing.T, d *db.DB) {
		b := newBench(t, d)
		p := b.path()
		raw := fmt.Sprintf(`{"name":"n","idempotencyKey":"k","size":%d}`, maxResult)
		first := b.made(raw, p)
		again := b.made(raw, p)
		if again.ID != first.ID || again.Bulk != first.Bulk || !again.Replayed {
			t.Errorf("got %s, replayed %v; want %s", again.ID, again.Replayed, first.ID)
		}
		b.one(2)
	})
}

func TestLease(t *testing.T) {
	dbtest.Each(t, func(t *testing.T, d *db.DB) {
		b := newBench(t, d)
		p := b.path()
		p.rows.lease = 300 * time.Millisecond
		begun := make(chan struct{})
		b.world.act = func(ctx context.Context, _ *makeIn, _ *op.Draft) error {
			close(begun)
			<-ctx.Done()
			return ctx.Err()
		}
		ended := make(chan error)
		go func() {
			_, err := b.do(p, "things.make", `{"name":"n","idempotencyKey":"k"}`)
			ended <- err
		}()
		<-begun
		lease := func() (until int64) {
			if err := d.QueryRowContext(t.Context(), `SELECT lease_until FROM idempotency`).Scan(&until); err != nil {
				t.Error(err)
			}
			return until
		}
		// Renewed for more than a second, which is more than three leases.
		first := lease()
		err := d.Wait(t.Context(), "nothing", func(context.Context) (bool, error) { return lease() > first+time.Second.Microseconds(), nil })
		if err != nil {
			t.Fatal(err)
		}
		// Another server has it now: this one's act is cancelled and changes nothing more.
		b.exec(`UPDATE idempotency SET lease_owner = 'another'`)
		if err := <-ended; !errs.Is(err, errs.Timeout) {
			t.Errorf("got %v", err)
		}
		if n := b.count(`SELECT COUNT(*) FROM idempotency WHERE lease_owner = 'another' AND lease_until > 0 AND state = 'pending'`); n != 1 {
			t.Error("the other server's lease was touched")
		}
	})
}

func TestInFlight(t *testing.T) {
	d := dbtest.Open(t, dbtest.SQLite(t))
	b := newBench(t, d)
	p := b.path()
	begun, release := make(chan struct{}), make(chan struct{})
	yielding := make(chan struct{})
	b.world.act = func(ctx context.Context, in *makeIn, _ *op.Draft) error {
		if in.Name == "waits" {
			back := op.Yield(ctx)
			defer back()
			close(yielding)
		} else {
			begun <- struct{}{}
		}
		<-release
		return nil
	}
	var wg sync.WaitGroup
	do := func(principal, thing string, opts Options) error {
		_, err := p.Do(as(t.Context(), principal), b.reg.Get("things.poke"), json.RawMessage(fmt.Sprintf(`{"name":%q}`, thing)), opts)
		return err
	}
	start := func(principal, thing string, opts Options) {
		wg.Go(func() {
			if err := do(principal, thing, opts); err != nil {
				t.Error(err)
			}
		})
	}
	start("key_a", "waits", Options{InFlight: true})
	<-yielding // and takes no place any more
	for range 4 {
		start("key_a", "works", Options{InFlight: true})
		<-begun
	}
	err := do("key_a", "works", Options{InFlight: true})
	if !errs.Is(err, errs.RateLimited) || errs.From(err).RetryAfter != 2*time.Second {
		t.Errorf("the fifth: got %v", err)
	}
	start("key_b", "works", Options{InFlight: true})
	<-begun
	start("key_a", "works", Options{})
	<-begun
	close(release)
	wg.Wait()
	if len(p.inflight.now) != 0 {
		t.Errorf("still counted: %v", p.inflight.now)
	}
}

// Concurrent calls over two servers with few keys: every key has one effect.
func TestManyAtOnce(t *testing.T) {
	dbtest.Each(t, func(t *testing.T, d *db.DB) {
		b := newBench(t, d)
		paths := []*Path{b.path(), b.path()}
		var fails atomic.Int32
		b.world.act = func(context.Context, *makeIn, *op.Draft) error {
			if fails.Add(1)%3 == 0 {
				return errs.E(errs.Busy, "once more")
			}
			return nil
		}
		var wg sync.WaitGroup
		for w := range 8 {
			wg.Go(func() {
				for i := range 10 {
					raw := fmt.Sprintf(`{"name":"n","idempotencyKey":"k%d"}`, i)
					for {
						_, err := b.do(paths[w%2], "things.make", raw)
						if err == nil {
							break
						}
						if !errs.Is(err, errs.Busy) {
							t.Error(err)
							return
						}
					}
				}
			})
		}
		wg.Wait()
		if n := b.count(`SELECT COUNT(*) FROM things`); n != 10 || len(b.world.effects) != 10 {
			t.Errorf("got %d rows and %d effects, want 10", n, len(b.world.effects))
		}
		if n := b.count(`SELECT COUNT(*) FROM idempotency WHERE state = 'done'`); n != 10 {
			t.Errorf("got %d ends, want 10", n)
		}
	})
}

func TestAuditOfWrites(t *testing.T) {
	dbtest.Each(t, func(t *testing.T, d *db.DB) {
		b := newBench(t, d)
		p := b.path()
		p.crash = func(step string) bool { return step == "acted" }
		_, _ = b.do(p, "things.make", `{"name":"crashed"}`)
		p.crash = func(string) bool { return false }
		out := b.made(`{"name":"n"}`, p)
		b.world.act = func(context.Context, *makeIn, *op.Draft) error { return errs.E(errs.NoCapacity, "full") }
		_, _ = b.do(p, "things.poke", `{"name":"n"}`)
		if err := b.audit.Flush(t.Context()); err != nil {
			t.Fatal(err)
		}
		rows, err := d.QueryContext(t.Context(), `SELECT operation, action, resource_kind, result, resource_id FROM audit ORDER BY at, id`)
		if err != nil {
			t.Fatal(err)
		}
		defer rows.Close()
		var got []string
		for rows.Next() {
			var o, a, k, r, thing string
			if err := rows.Scan(&o, &a, &k, &r, &thing); err != nil {
				t.Fatal(err)
			}
			got = append(got, strings.Join([]string{o, a, k, r, fmt.Sprint(thing == out.ID)}, " "))
		}
		want := []string{
			"things.make test:things:make thing  false",
			"things.make test:things:make thing ok true",
			"things.poke test:things:poke thing NO_CAPACITY false",
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("audit (-want +got):\n%s", diff)
		}
	})
}

// The intent may settle which resource it is: a repetition acts on that one.
func TestIntentSetsID(t *testing.T) {
	dbtest.Each(t, func(t *testing.T, d *db.DB) {
		b := newBench(t, d)
		reg := op.NewRegistry()
		var acted []string
		op.Handle(reg, makeDef, op.Handler[makeIn, makeOut]{
			Draft: func(ctx context.Context, in *makeIn) (*op.Draft, error) {
				return &op.Draft{Resource: op.Resource{ID: id.New("thing"), OrgID: "org_a"}}, nil
			},
			Intent: func(ctx context.Context, tx op.Tx, in *makeIn, d *op.Draft) error {
				d.Resource.ID, d.Process = "thing_there", "proc_there"
				return nil
			},
			Act: func(ctx context.Context, in *makeIn, d *op.Draft) (*makeOut, error) {
				acted = append(acted, d.Resource.ID+" "+d.Process)
				return nil, errs.E(errs.Busy, "wait")
			},
		})
		p := b.path()
		for range 2 {
			_, _ = p.Do(as(t.Context(), "key_a"), reg.Get("things.make"), json.RawMessage(`{"name":"n","idempotencyKey":"k"}`), Options{})
		}
		if diff := cmp.Diff([]string{"thing_there proc_there", "thing_there proc_there"}, acted); diff != "" {
			t.Errorf("acted on (-want +got):\n%s", diff)
		}
	})
}
