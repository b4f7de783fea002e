// Package confirmation owns the requests to people: calls that are held back until a person approves exactly them.
//
// What is approved is the canonical request, by its digest; it is used up by the transaction in which the call takes effect. The package does not decide what is
// held back, and it carries nothing out.
package confirmation

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"log/slog"
	"time"

	"github.com/gowebpki/jcs"

	"github.com/berthrun/berth/api"
	"github.com/berthrun/berth/api/op"
	"github.com/berthrun/berth/internal/caller"
	"github.com/berthrun/berth/internal/db"
	"github.com/berthrun/berth/internal/draft"
	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/id"
)

// Request is a call that a person is to approve: all that it would do.
type Request struct {
	Caller    *caller.Caller
	Operation string
	Action    string
	Resource  op.Resource
	Arguments json.RawMessage  // canonical, without what does not change the effect
	Cost      map[string]int64 // as of the draft
	Uses      map[string]string
	Why       []string // a person is asked
}

// State is how a confirmation stands.
type State string

// The states. Changed is no state of a row: what would be done is not what was asked for any more.
const (
	Pending  State = api.ConfirmationPending
	Approved State = api.ConfirmationApproved
	Denied   State = api.ConfirmationDenied
	Expired  State = api.ConfirmationExpired
	Consumed State = api.ConfirmationConsumed
	Changed  State = "changed"
)

// Confirmation is what the path of a call is told of one.
type Confirmation struct {
	ID        string
	State     State
	ExpiresAt time.Time
	Note      string // of the person who denied it
}

const (
	// mostPending is how many calls of one caller wait for a person at the same time: an inbox is to be read.
	mostPending = 100

	// largest is how long the arguments of a call may be, in bytes: a person is to read them.
	largest = 32 << 10

	lasts   = 10 * time.Minute
	keepFor = 30 * 24 * time.Hour
	// keepUndecided is how long a request is kept that nobody decided on, of which a caller may make as many as it likes.
	keepUndecided = 24 * time.Hour
)

// Events records what happened in the transaction in which it happened.
type Events interface {
	Emit(ctx context.Context, tx op.Tx, org, workspace, kind, resource string, data any) error
}

// Config is what the service is made of. DB is required.
type Config struct {
	DB       *db.DB
	Events   Events                                    // nil: none
	Visible  func(c *caller.Caller, info op.Info) bool // whether a caller's rights reach an operation
	Registry func(operation string) *op.Operation      // for titles; nil of one that is not there
	Lasts    time.Duration                             // 0: 10 minutes
	Logger   *slog.Logger
}

// Service keeps the requests.
type Service struct {
	cfg   Config
	store store
}

// New makes the service.
func New(c Config) *Service {
	if c.Lasts == 0 {
		c.Lasts = lasts
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return &Service{cfg: c}
}

// draftVersion is the form of drafts.
const draftVersion = 1

// canonical is the canonical request. What is in it is what a person approves.
func canonical(r Request, nonce string, expires time.Time) (text, digest string, err error) {
	c := r.Caller
	all := map[string]any{
		"v": draftVersion, "organization": c.OrgID, "workspace": c.WorkspaceID, "principal": c.PrincipalID,
		"operation": r.Operation, "action": r.Action, "arguments": r.Arguments, "nonce": nonce, "expires": expires.UTC().Format(time.RFC3339Nano),
		"resource": map[string]any{
			"kind": r.Resource.Kind, "id": r.Resource.ID, "name": r.Resource.Name, "organization": r.Resource.OrgID, "workspace": r.Resource.WorkspaceID,
			"version": r.Resource.Version,
		},
	}
	for name, of := range map[string]string{"person": c.PersonID, "agent": c.AgentID, "app": c.AppID, "key": c.KeyID} {
		if of != "" {
			all[name] = of
		}
	}
	if len(r.Uses) > 0 {
		all["uses"] = r.Uses
	}
	if len(r.Cost) > 0 {
		all["cost"] = r.Cost
	}
	b, err := json.Marshal(all)
	if err == nil {
		b, err = jcs.Transform(b)
	}
	if err != nil {
		return "", "", fmt.Errorf("write draft: %w", err)
	}
	return string(b), digestOf(string(b)), nil
}

func digestOf(draft string) string {
	sum := sha256.Sum256([]byte("berth/confirm/v1\x00" + draft))
	return hex.EncodeToString(sum[:])
}

// Ask records a request, for ten minutes.
func (s *Service) Ask(ctx context.Context, tx op.Tx, r Request) (Confirmation, error) {
	if len(r.Arguments) > largest {
		return Confirmation{}, errs.E(errs.InvalidInput, "arguments of %d bytes are too long for a person to approve; at most %d", len(r.Arguments), largest).Because("confirmation_size").
			Suggest("Do it in smaller parts, or ask for a credential that need not wait for a person.")
	}
	now, err := s.cfg.DB.Now(ctx, tx)
	if err != nil {
		return Confirmation{}, err
	}
	c := r.Caller
	if n, err := s.store.pending(ctx, tx, c.OrgID, c.PrincipalID, db.Micros(now)); err != nil {
		return Confirmation{}, err
	} else if n >= mostPending {
		return Confirmation{}, errs.E(errs.LimitExceeded, "%d calls of this credential wait for a person already", n).Because("confirmations").After(time.Minute).
			Suggest("Wait until some of them are decided; do not ask for more.").With("limit", mostPending)
	}
	w := row{
		ID: id.New(id.Confirmation), OrgID: c.OrgID, WorkspaceID: c.WorkspaceID, PrincipalID: c.PrincipalID,
		AskedBy: draft.By(c), Client: c.Client,
		Operation: r.Operation, ResourceKind: r.Resource.Kind, ResourceID: r.Resource.ID, ResourceName: r.Resource.Name,
		Arguments: string(r.Arguments), Reasons: r.Why, Nonce: id.New("nonce"), State: Pending,
		CreatedAt: db.Micros(now), ExpiresAt: db.Micros(now.Add(s.cfg.Lasts)),
	}
	if w.Draft, w.Digest, err = canonical(r, w.Nonce, db.Time(w.ExpiresAt)); err != nil {
		return Confirmation{}, err
	}
	if err := s.store.insert(ctx, tx, &w); err != nil {
		return Confirmation{}, err
	}
	return w.told(now), s.emit(ctx, tx, &w, "confirmation.requested")
}

// Get reads one for the path of a call.
func (s *Service) Get(ctx context.Context, q db.Querier, confirmation string) (Confirmation, error) {
	now, err := s.cfg.DB.Now(ctx, q)
	if err != nil {
		return Confirmation{}, err
	}
	w, err := s.store.get(ctx, q, confirmation)
	if err != nil {
		return Confirmation{}, err
	}
	if w == nil {
		return Confirmation{ID: confirmation, State: Expired}, nil
	}
	return w.told(now), nil
}

// Consume uses an approval up, where exactly this was approved and its time is not over: it is Consumed then, and never again. Else it gives what stands in the way.
func (s *Service) Consume(ctx context.Context, tx op.Tx, confirmation string, r Request) (Confirmation, error) {
	now, err := s.cfg.DB.Now(ctx, tx)
	if err != nil {
		return Confirmation{}, err
	}
	w, err := s.store.get(ctx, tx, confirmation)
	if err != nil {
		return Confirmation{}, err
	}
	if w == nil || w.OrgID != r.Caller.OrgID || w.PrincipalID != r.Caller.PrincipalID {
		return Confirmation{ID: confirmation, State: Expired}, nil
	}
	out := w.told(now)
	if out.State == Consumed {
		out.State = Expired // by another call: it cannot be this one's, whose row would say so
		return out, nil
	}
	if out.State == Approved || out.State == Pending {
		_, digest, err := canonical(r, w.Nonce, db.Time(w.ExpiresAt))
		if err != nil {
			return Confirmation{}, err
		}
		if digest != w.Digest {
			out.State = Changed
			return out, nil
		}
	}
	if out.State != Approved {
		return out, nil
	}
	used, err := s.store.decide(ctx, tx, w.ID, w.Digest, Approved, Consumed, db.Micros(now), w.DecidedAt, w.DecidedBy, w.Note)
	if err != nil {
		return Confirmation{}, err
	}
	if out.State = Consumed; !used {
		out.State = Expired
		return out, nil
	}
	return out, s.emit(ctx, tx, w, "confirmation.consumed")
}

// Topic is notified when one was decided.
func (s *Service) Topic(confirmation string) string { return "confirmation/" + confirmation }

func (s *Service) emit(ctx context.Context, tx op.Tx, w *row, kind string) error {
	if s.cfg.Events == nil {
		return nil
	}
	return s.cfg.Events.Emit(ctx, tx, w.OrgID, w.WorkspaceID, kind, w.ID, map[string]any{"operation": w.Operation, "resourceId": w.ResourceID})
}

// purgeEvery is how often old requests are removed.
const purgeEvery = time.Hour

// Run removes requests a month after their time, those that nobody decided on after a day, until the context ends.
func (s *Service) Run(ctx context.Context) error {
	tick := time.NewTicker(purgeEvery)
	defer tick.Stop()
	for {
		if err := s.store.purge(ctx, s.cfg.DB); err != nil && ctx.Err() == nil {
			s.cfg.Logger.Warn("old confirmations not removed", "error", err)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
	}
}
