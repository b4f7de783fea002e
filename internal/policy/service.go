package policy

import (
	"context"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/berthrun/berth/api"
	"github.com/berthrun/berth/api/op"
	"github.com/berthrun/berth/internal/caller"
	"github.com/berthrun/berth/internal/db"
	"github.com/berthrun/berth/internal/draft"
	"github.com/berthrun/berth/internal/errs"
)

// topic is notified when policies of an organization change.
const topic = "identity/policies"

const (
	// believeFor is how long policies are believed without a look at their version. A change is told at once; this is what is left where that is lost.
	believeFor = time.Second
	mostHeld   = 1000
)

// Events records what happened in the transaction in which it happened.
type Events interface {
	Emit(ctx context.Context, tx op.Tx, org, workspace, kind, resource string, data any) error
}

// Config is what the service is made of. DB is required.
type Config struct {
	DB     *db.DB
	Schema *Schema // nil: of all that the api package defines
	Events Events  // nil: none
	Now    func() time.Time
	Logger *slog.Logger
}

// Service keeps the policies of organizations and decides by them.
type Service struct {
	cfg    Config
	schema *Schema
	store  store
	check  chan struct{} // holds one: a check of the longest texts takes a core for seconds

	mu      sync.Mutex
	held    map[string]*held
	changes int // how often held was cleared
}

// held are the policies of one organization as they were read.
type held struct {
	set     *Set
	version int64
	until   time.Time // when the version is looked at again
}

// New makes the service. Run keeps what it remembers right.
func New(c Config) (*Service, error) {
	if c.Now == nil {
		c.Now = time.Now
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.Schema == nil {
		var err error
		if c.Schema, err = Registered(); err != nil {
			return nil, err
		}
	}
	return &Service{cfg: c, schema: c.Schema, check: make(chan struct{}, 1), held: map[string]*held{}}, nil
}

// Register binds the operations.
func (s *Service) Register(r *op.Registry) {
	op.Handle(r, api.GetPolicies, op.Handler[api.GetPoliciesIn, api.GetPoliciesOut]{Draft: draft.OnOrganization[api.GetPoliciesIn], Act: s.actGet})
	op.Handle(r, api.PutPolicies, op.Handler[api.PutPoliciesIn, api.PutPoliciesOut]{Draft: s.draftPut, Intent: s.intentPut, Act: s.actPut})
	op.Handle(r, api.ValidatePolicies, op.Handler[api.ValidatePoliciesIn, api.ValidatePoliciesOut]{Draft: draft.OnOrganization[api.ValidatePoliciesIn], Act: s.actValidate})
	op.Handle(r, api.TestPolicies, op.Handler[api.TestPoliciesIn, api.TestPoliciesOut]{Draft: draft.OnOrganization[api.TestPoliciesIn], Act: s.actTest})
}

// alone runs a check of a text when no other is on its way.
func (s *Service) alone(ctx context.Context, check func()) error {
	select {
	case s.check <- struct{}{}:
	case <-ctx.Done():
		return errs.Wrap(errs.Timeout, ctx.Err(), "the policies could not be checked in time").Suggest("Try again in a moment.")
	}
	defer func() { <-s.check }()
	check()
	return nil
}

// checked makes a set of a text that has no problems.
func (s *Service) checked(ctx context.Context, text string) (set *Set, err error) {
	busy := s.alone(ctx, func() { set, err = s.schema.Checked(text) })
	if busy != nil {
		return nil, busy
	}
	return set, err
}

// Authorize decides on a draft by the policies of the caller's organization.
func (s *Service) Authorize(ctx context.Context, c *caller.Caller, o *op.Operation, d *op.Draft) (op.Decision, error) {
	set, err := s.of(ctx, c.OrgID)
	if err != nil {
		return op.Decision{}, err
	}
	if !s.schema.Covers(o.Action, d.Resource.Kind) {
		// It is decided all the same, but no check of a policy had it in mind. A test finds it.
		s.cfg.Logger.Error("the schema of policies lacks a kind of resource", "action", o.Action, "kind", d.Resource.Kind)
	}
	return decision(set.Decide(s.asked(c, o.Action, d)), o.Action), nil
}

func (s *Service) asked(c *caller.Caller, action string, d *op.Draft) *Ask {
	return &Ask{
		Actors: actors(c), Action: action, Resource: d.Resource, Time: s.cfg.Now(), Source: c.SourceIP, Face: string(c.Face),
		ReadOnly: c.ReadOnly, Confirmed: d.Confirmed,
	}
}

func decision(out Outcome, action string) op.Decision {
	switch out.Effect {
	case Allow:
		return op.Decision{Allowed: true}
	case Confirm:
		return op.Decision{Confirm: out.Reasons, Message: "a person is to approve " + action + " first: " + strings.Join(out.Reasons, "; ")}
	}
	return op.Decision{Message: "the organization's policies do not allow " + action + ": " + strings.Join(out.Reasons, "; ")}
}

// of gives the policies of an organization as they are now, or were a second ago at most.
func (s *Service) of(ctx context.Context, org string) (*Set, error) {
	now := time.Now()
	s.mu.Lock()
	h := s.held[org]
	changes := s.changes
	s.mu.Unlock()
	if h != nil && now.Before(h.until) {
		return h.set, nil
	}
	next := &held{until: now.Add(believeFor)}
	if h != nil {
		version, err := s.store.version(ctx, s.cfg.DB, org)
		if err != nil {
			return nil, err
		}
		if version == h.version {
			next.version, next.set = version, h.set
		}
	}
	if next.set == nil {
		row, err := s.store.newest(ctx, s.cfg.DB, org)
		if err != nil {
			return nil, err
		}
		if next.set, err = s.schema.Load(row.Text); err != nil {
			return nil, err
		}
		next.version = row.Version
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if changes == s.changes { // else it may have been read before a change
		if len(s.held) >= mostHeld {
			clear(s.held)
		}
		s.held[org] = next
	}
	return next.set, nil
}

// Run forgets policies that were changed elsewhere, until the context ends.
func (s *Service) Run(ctx context.Context) error {
	signals, stop := s.cfg.DB.Subscribe(topic)
	defer stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-signals:
			s.forget()
		}
	}
}

// forget makes every organization's policies be looked at again. What is unchanged is not read again.
func (s *Service) forget() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.changes++
	for org, h := range s.held {
		old := *h
		old.until = time.Time{}
		s.held[org] = &old
	}
}
