package call

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"sync"
	"time"

	"github.com/berthrun/berth/api/op"
	"github.com/berthrun/berth/internal/audit"
	"github.com/berthrun/berth/internal/caller"
	"github.com/berthrun/berth/internal/db"
	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/id"
)

const (
	defaultDeadline = 75 * time.Second
	defaultInFlight = 4
	// grace is how long an act may take to come back once its deadline has passed.
	grace = 5 * time.Second
)

// Config says what a Path works with. DB, Authorizer, Limiter and Auditor are needed.
type Config struct {
	DB         *db.DB
	Authorizer Authorizer
	Limiter    Limiter
	Auditor    Auditor
	Confirmer  Confirmer            // nil: what a person is to approve first is refused
	Observer   Observer             // nil: nobody
	InFlight   int                  // calls of one caller at the same time, of those that count; 0: 4
	Patience   time.Duration        // how long a call waits for a person, at most; 0: 25 seconds
	Streams    int                  // of one caller that are open at the same time; 0: 64
	Now        func() time.Time     // nil: time.Now
	NewID      func(id.Kind) string // nil: id.New
	Logger     *slog.Logger         // nil: discards
}

// Path is the path of every call.
type Path struct {
	cfg      Config
	server   string // begins the owner of each of its leases
	inflight *inflight
	streams  *streams
	rows     rows
	turned   turned
	acting   sync.WaitGroup // acts go on when their callers go away

	// crash stops a call where it stands, as if the server were killed there. Only tests set it.
	crash func(step string) bool
}

// errCrashed ends a call that crash stopped.
var errCrashed = errors.New("stopped by a test")

// New makes a Path.
func New(cfg Config) *Path {
	if cfg.InFlight == 0 {
		cfg.InFlight = defaultInFlight
	}
	if cfg.Patience == 0 {
		cfg.Patience = defaultPatience
	}
	if cfg.Streams == 0 {
		cfg.Streams = defaultStreams
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if cfg.NewID == nil {
		cfg.NewID = id.New
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	if cfg.Observer == nil {
		cfg.Observer = nobody{}
	}
	return &Path{
		cfg: cfg, server: cfg.NewID(kindServer), inflight: newInflight(cfg.InFlight), streams: newStreams(cfg.Streams), rows: rows{cfg.DB, leaseFor},
		crash: func(string) bool { return false },
	}
}

// Close waits for the effects of calls whose callers have gone and for the streams, or for the context; then the streams are broken off.
func (p *Path) Close(ctx context.Context) error {
	p.EndStreams()
	done := make(chan struct{})
	go func() {
		defer close(done)
		p.acting.Wait()
		p.streams.wait.Wait()
	}()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		p.streams.end(op.Download, op.Upload)
		return ctx.Err()
	}
}

// Run removes what has expired, until the context ends; it gives its error. With SQLite, which has one server, it first gives back the leases of the
// server before it, so that repeated calls need not wait for them to run out.
func (p *Path) Run(ctx context.Context) error {
	if p.cfg.DB.Dialect() == db.SQLite {
		if err := p.rows.giveBack(ctx, p.server); err != nil && ctx.Err() == nil {
			p.cfg.Logger.Error("leases of the server before were not given back", "error", err)
		}
	}
	tick := time.NewTicker(10 * time.Minute)
	defer tick.Stop()
	for {
		if err := p.rows.purge(ctx); err != nil && ctx.Err() == nil {
			p.cfg.Logger.Error("expired retry keys were not removed", "error", err)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
	}
}

// one is one call on its way.
type one struct {
	op     *op.Operation
	caller *caller.Caller
	raw    json.RawMessage
	in     any
	draft  *op.Draft
	why    []string // a person is to approve it
	stream bool
	there  bool // what a create acts on is there already
	begun  time.Time
	until  time.Time // its deadline
}

// Do takes a call along the path. The caller comes from the context. Every error carries a code (errs.From); a result that was kept for the caller's
// retry key is a replay. The caller may go away: that ends its waiting, never an effect that has begun.
func (p *Path) Do(ctx context.Context, o *op.Operation, raw json.RawMessage, opts Options) (*Result, error) {
	from := caller.From(ctx)
	if from == nil {
		return nil, errs.E(errs.Unauthenticated, "no valid credential was given").Suggest("Send a key as Authorization: Bearer.")
	}
	who := *from
	if who.RequestID == "" {
		who.RequestID = p.cfg.NewID(id.Request)
	}
	if opts.Deadline <= 0 {
		opts.Deadline = defaultDeadline
	}
	c := &one{op: o, caller: &who, raw: raw, begun: p.cfg.Now(), until: time.Now().Add(opts.Deadline)}
	ctx, cancel := context.WithDeadline(caller.With(ctx, &who), c.until)
	defer cancel()
	p.cfg.Observer.Begun(o.Name, who.Face)
	res, err := p.do(ctx, c, opts)
	if cause, ok := errors.AsType[*errs.Error](context.Cause(ctx)); ok && err != nil {
		err = cause // it was cut off, and the caller is told by what
	}
	p.ended(c, res, err)
	return res, err
}

// ended tells the observer and the log how a call ended: who made it and what came of it, never what was in it.
func (p *Path) ended(c *one, res *Result, err error) {
	result, reason := audit.OK, ""
	if err != nil {
		e := errs.From(err)
		result, reason = string(e.Code), e.Reason
	}
	took := p.cfg.Now().Sub(c.begun)
	p.cfg.Observer.Ended(c.op.Name, c.caller.Face, result, reason, took)
	resource := ""
	if c.draft != nil {
		resource = c.draft.Resource.ID
	}
	p.cfg.Logger.LogAttrs(context.Background(), slog.LevelInfo, "call",
		slog.String("request_id", c.caller.RequestID), slog.String("operation", c.op.Name), slog.String("face", string(c.caller.Face)),
		slog.String("org_id", c.caller.OrgID), slog.String("principal_id", c.caller.PrincipalID), slog.String("resource_id", resource),
		slog.String("code", result), slog.String("reason", reason), slog.Bool("replayed", res != nil && res.Replayed),
		slog.Duration("duration", took), slog.String("source_ip", c.caller.SourceIP))
}

func (p *Path) do(ctx context.Context, c *one, opts Options) (*Result, error) {
	o, who := c.op, c.caller
	if err := p.cfg.Limiter.Allow(ctx, who); err != nil {
		return nil, p.turnAway(c, err)
	}
	if opts.InFlight {
		s, err := p.inflight.enter(who.PrincipalID)
		if err != nil {
			return nil, p.turnAway(c, err)
		}
		defer s.leave()
		ctx = op.WithYield(ctx, s.yield)
	}
	if err := p.prepare(ctx, c); err != nil {
		return nil, p.refuse(c, err)
	}
	if o.Hints.Has(op.Write) {
		return p.write(ctx, c)
	}
	return p.read(ctx, c)
}

// prepare is everything up to authorization: it changes nothing.
func (p *Path) prepare(ctx context.Context, c *one) (err error) {
	if c.caller.ReadOnly && c.op.Hints.Has(op.Write) {
		return errs.E(errs.Forbidden, "this connection is read-only").Because("read_only").Suggest("Use the endpoint that may write.")
	}
	if c.in, err = c.op.Decode(c.raw); err != nil {
		return err
	}
	return safely(func() error {
		if c.draft, err = c.op.Draft(ctx, c.in); err != nil {
			return err
		}
		if c.draft == nil {
			return fmt.Errorf("%s has made no draft", c.op.Name)
		}
		decision, err := p.cfg.Authorizer.Authorize(ctx, c.caller, c.op, c.draft)
		if err != nil {
			return err
		}
		if c.why = decision.Confirm; len(c.why) > 0 && !decision.Allowed && p.waits(c) {
			return nil
		}
		if !decision.Allowed {
			return errs.E(errs.Forbidden, "%s", decision.Message).Because("not_allowed").
				Suggest("Use a credential that may do this, or ask an administrator for one.").With("action", c.op.Action)
		}
		return nil
	})
}

func (p *Path) read(ctx context.Context, c *one) (*Result, error) {
	var res *Result
	err := safely(func() error {
		out, err := c.op.Act(ctx, c.in, c.draft)
		if err != nil {
			return err
		}
		res, err = encode(out)
		return err
	})
	if err != nil {
		return nil, p.refuse(c, err)
	}
	p.record(c, audit.OK)
	return res, nil
}

func encode(out any) (*Result, error) {
	b, err := op.Encode(out)
	if err != nil {
		return nil, err
	}
	return &Result{Value: out, JSON: b}, nil
}

// refuse records a call that ends without an intent and gives its error as it is shown.
func (p *Path) refuse(c *one, err error) error {
	shown := p.shown(c, err)
	p.record(c, string(shown.Code))
	return shown
}

func (p *Path) record(c *one, result string) {
	e := p.entry(c)
	e.Result, e.Duration = result, p.cfg.Now().Sub(c.begun)
	p.cfg.Auditor.Record(e)
}

func (p *Path) entry(c *one) audit.Entry {
	e := audit.Entry{At: c.begun, Caller: *c.caller, Operation: c.op.Name, Action: c.op.Action}
	if c.draft != nil {
		e.ResourceKind, e.ResourceID = c.draft.Resource.Kind, c.draft.Resource.ID
	}
	return e
}

// shown turns any error into one with a code. What callers are not told is logged.
func (p *Path) shown(c *one, err error) *errs.Error {
	if errors.Is(err, context.Canceled) && errs.CodeOf(err) == errs.Internal {
		return errs.Wrap(errs.Timeout, err, "the caller went away").Suggest("Read the resource to see how far it came.")
	}
	e := errs.From(err)
	if e.Code == errs.Internal {
		p.cfg.Logger.Error("a call failed", "operation", c.op.Name, "request_id", c.caller.RequestID, "error", err)
	}
	return e
}

// safely turns a panic of a service into an error.
func safely(fn func() error) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = fmt.Errorf("panic: %v\n%s", v, debug.Stack())
		}
	}()
	return fn()
}
