// Package terminal owns terminals over WebSocket: the tickets with which browsers open them, and what goes over one.
//
// It does not own processes: a terminal is a process of the sandbox's guest, which outlives its connection, and internal/process keeps what is kept of it.
package terminal

import (
	"context"
	"log/slog"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/berthrun/berth/api"
	"github.com/berthrun/berth/api/op"
	"github.com/berthrun/berth/internal/caller"
	"github.com/berthrun/berth/internal/db"
	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/guest"
	"github.com/berthrun/berth/internal/id"
)

// Sandboxes gives the guests of sandboxes of the caller's organization.
type Sandboxes interface {
	// Resource gives the sandbox as authorization sees it, or errs.NotFound.
	Resource(ctx context.Context, id string) (op.Resource, error)
	// Awake gives the guest of a sandbox, which is started where it must and may be; woke says how.
	Awake(ctx context.Context, id string) (g *guest.Client, woke string, err error)
	// Explain gives the error of a call on a guest a better one where the sandbox died under it.
	Explain(ctx context.Context, id string, err error) error
}

// Processes keeps what is kept of a sandbox's processes.
type Processes interface {
	// Started notes a process that outlives the call that started it.
	Started(ctx context.Context, orgID, sandboxID string, p guest.Process) error
}

// Callers tells whether a key is still good.
type Callers interface {
	Again(ctx context.Context, org, keyID string) (*caller.Caller, error)
}

// Config is what the service is made of. DB, Sandboxes, Processes and Callers are required.
type Config struct {
	DB        *db.DB
	Sandboxes Sandboxes
	Processes Processes
	Callers   Callers
	PublicURL string        // web pages of this address may connect
	Linger    time.Duration // how long a terminal goes on without anybody; 30 minutes where 0
	Recheck   time.Duration // how often an open terminal's key and sandbox are looked at again; 10 s where 0
	Now       func() time.Time
	Logger    *slog.Logger
}

// Service opens terminals.
type Service struct {
	Config
	origin string
}

// New makes the service.
func New(c Config) *Service {
	if c.Linger == 0 {
		c.Linger = 30 * time.Minute
	}
	if c.Recheck == 0 {
		c.Recheck = 10 * time.Second
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	s := &Service{Config: c}
	if u, err := url.Parse(c.PublicURL); err == nil && u.Host != "" {
		s.origin = u.Scheme + "://" + u.Host
	}
	return s
}

// Register binds the operations on terminals.
func (s *Service) Register(r *op.Registry) {
	op.Handle(r, api.TerminalTicket, op.Handler[api.SandboxWriteIn, api.TerminalTicketOut]{
		Draft: func(ctx context.Context, in *api.SandboxWriteIn) (*op.Draft, error) {
			return s.draft(ctx, in.SandboxID)
		}, Act: s.actTicket,
	})
	op.HandleStream(r, api.Terminal, op.StreamHandler[api.TerminalIn]{
		Draft: func(ctx context.Context, in *api.TerminalIn) (*op.Draft, error) {
			d, err := s.draft(ctx, in.SandboxID)
			if err == nil {
				d.Process = id.New(id.Process)
			}
			return d, err
		}, Serve: s.serve,
	})
}

func (s *Service) draft(ctx context.Context, sandboxID string) (*op.Draft, error) {
	r, err := s.Sandboxes.Resource(ctx, sandboxID)
	if err != nil {
		return nil, err
	}
	return &op.Draft{Resource: r}, nil
}

// admit refuses a connection that is no WebSocket, or that another site's page asks a browser for: a handshake is a GET, which nothing else stops.
func (s *Service) admit(r *http.Request) error {
	if !strings.EqualFold(r.Header.Get("Upgrade"), "websocket") {
		return errs.E(errs.InvalidInput, "this is a WebSocket").Because("not_websocket").Suggest("Connect with a WebSocket client, or with: berth sandboxes shell.")
	}
	origin := r.Header.Get("Origin")
	if origin == "" || s.origin != "" && strings.EqualFold(origin, s.origin) {
		return nil
	}
	if u, err := url.Parse(origin); err == nil && u.Host != "" && strings.EqualFold(u.Host, r.Host) {
		return nil
	}
	return errs.E(errs.Forbidden, "this connection comes from a page of another origin").Because("cross_origin").
		Suggest("Connect from a program, or from a page of this server.")
}
