// Package identity owns who may call: organizations, workspaces and keys, the authentication of keys, and authorization by their scopes.
//
// It does not own what is decided about a single resource beyond scopes and the wall between organizations: Cedar fills that behind the same interface.
package identity

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/berthrun/berth/api"
	"github.com/berthrun/berth/api/op"
	"github.com/berthrun/berth/internal/db"
	"github.com/berthrun/berth/internal/draft"
)

// Limits tells what an organization may use and does.
type Limits interface {
	List(ctx context.Context, org string) ([]api.Limit, error)
}

// Events records what happened in the transaction in which it happened.
type Events interface {
	Emit(ctx context.Context, tx op.Tx, org, workspace, kind, resource string, data any) error
}

// Config is what the service is made of. DB is required.
type Config struct {
	DB     *db.DB
	Limits Limits
	// CallsPerMinute gives how often a caller of an organization may call; negative is no limit.
	CallsPerMinute func(ctx context.Context, org string) (int64, error)
	CallsInFlight  int
	Events         Events // nil: none
	Now            func() time.Time
	Logger         *slog.Logger
}

// Service knows organizations, workspaces and keys.
type Service struct {
	cfg   Config
	store store

	mu      sync.Mutex
	known   map[string]*known // keys that were looked up, by hash
	changes int               // how often known was cleared since keys changed
	used    map[string]int64  // last use by key, not written yet

	clock clock
}

// New makes the service. Run keeps what it remembers right.
func New(c Config) *Service {
	if c.Now == nil {
		c.Now = time.Now
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return &Service{cfg: c, known: map[string]*known{}, used: map[string]int64{}}
}

// Register binds the operations on accounts and keys.
func (s *Service) Register(r *op.Registry) {
	op.Handle(r, api.GetAccount, op.Handler[api.None, api.AccountOut]{Draft: draft.OnOrganization[api.None], Act: s.actAccount})
	op.Handle(r, api.ListWorkspaces, op.Handler[api.ListWorkspacesIn, api.ListWorkspacesOut]{Draft: draft.OnOrganization[api.ListWorkspacesIn], Act: s.actWorkspaces})
	op.Handle(r, api.GetLimits, op.Handler[api.None, api.LimitsOut]{Draft: draft.OnOrganization[api.None], Act: s.actLimits})
	op.Handle(r, api.CreateKey, op.Handler[api.CreateKeyIn, api.CreateKeyOut]{Draft: s.draftCreateKey, Intent: s.intentCreateKey, Act: s.actCreateKey})
	op.Handle(r, api.ListKeys, op.Handler[api.ListKeysIn, api.ListKeysOut]{Draft: draft.OnOrganization[api.ListKeysIn], Act: s.actListKeys})
	op.Handle(r, api.RevokeKey, op.Handler[api.RevokeKeyIn, api.KeyOut]{Draft: s.draftRevoke, Intent: s.intentRevoke, Act: s.actRevoke})
}
