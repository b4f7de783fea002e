// Package controlplane assembles the control plane: database, services, the registry they are bound in, the path of a call, and the faces.
//
// It is one of the two places that know concrete services. It decides nothing that a service or a face does not.
package controlplane

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/berthrun/berth/api/op"
	"github.com/berthrun/berth/internal/audit"
	"github.com/berthrun/berth/internal/blob"
	"github.com/berthrun/berth/internal/call"
	"github.com/berthrun/berth/internal/caller"
	"github.com/berthrun/berth/internal/chunk/saves"
	"github.com/berthrun/berth/internal/confirmation"
	"github.com/berthrun/berth/internal/db"
	"github.com/berthrun/berth/internal/docs"
	"github.com/berthrun/berth/internal/event"
	"github.com/berthrun/berth/internal/file"
	"github.com/berthrun/berth/internal/httpapi"
	"github.com/berthrun/berth/internal/identity"
	"github.com/berthrun/berth/internal/image"
	"github.com/berthrun/berth/internal/mcpapi"
	"github.com/berthrun/berth/internal/metrics"
	"github.com/berthrun/berth/internal/nodeapi"
	"github.com/berthrun/berth/internal/policy"
	"github.com/berthrun/berth/internal/process"
	"github.com/berthrun/berth/internal/quota"
	"github.com/berthrun/berth/internal/ready"
	"github.com/berthrun/berth/internal/runtime"
	"github.com/berthrun/berth/internal/sandbox"
	"github.com/berthrun/berth/internal/secret"
	"github.com/berthrun/berth/internal/snapshot"
	"github.com/berthrun/berth/internal/template"
	"github.com/berthrun/berth/internal/terminal"
	"github.com/berthrun/berth/internal/volume"
)

// Config says what a control plane runs on. Useful zero values: only Database, Blobs and Node are needed.
type Config struct {
	Database      string // a path or URL, see db.Config
	DatabaseConns int    // the most connections; 16 where 0
	Blobs         string // a folder or URL, see blob.Open
	// Node connects to the node.
	Node func(ctx context.Context) (net.Conn, error)
	// Direct connects into sandboxes where the node is in this process, without a copy in between. May be nil.
	Direct nodeapi.DialSandbox
	// PublicURL is the address under which callers reach it; for MCP the request's own where empty.
	PublicURL      string
	TrustedProxies []netip.Prefix
	Defaults       sandbox.Defaults // what a create leaves out; see withDefaults
	ReadyMemoryMiB int64            // for sandboxes that are booted before anybody asks; none where 0
	Limits         map[string]int64 // of an organization, by quota key; none where absent
	CallsPerMinute int              // of one caller; 600 where 0
	CallsInFlight  int              // MCP calls of one caller at once; 4 where 0
	KeyFile        string           // wraps the keys of stored secrets, made where it is missing; without one there are none
	PublicMetrics  bool             // /metrics is served to everybody who reaches the faces
	MCPOff         bool             // no MCP endpoint
	MCPPath        string           // of the endpoint; /mcp where empty
	MCPOrigins     []string         // of web pages that may call it beside the server's own
	MCPHosts       []string         // names that it answers to on loopback beside its own
	SSHKeys        string           // the file of the keys that sign for SSH; of every control plane the same; kept nowhere where empty
	TerminalLinger time.Duration    // how long a terminal goes on without anybody; 30 minutes where 0
	Recheck        time.Duration    // how often an open terminal or SSH connection is held against its key again; 10 s where 0
	Version        string
	Now            func() time.Time
	Logger         *slog.Logger
	// FrozenFor is how long a sandbox that paused for being idle stays in memory; 30 seconds where 0, not at all where negative.
	FrozenFor time.Duration
	// Tick is how often idling and expiry are looked at; a second where 0.
	Tick time.Duration
	// SampleEvery is how often running sandboxes are read; 15 seconds where 0.
	SampleEvery time.Duration
	// How long what is kept of a deleted sandbox, events and the audit log are there; a day, 90 days and 400 days where 0.
	KeepDeleted, KeepEvents, KeepAudit time.Duration
	// Patience is how long a call waits for a person, ConfirmationLasts how long a person has; 0: 25 seconds and 10 minutes.
	Patience, ConfirmationLasts time.Duration
}

// The defaults of a sandbox, but for idling, which depends on the node; see idling.
func (c *Config) withDefaults() {
	d := &c.Defaults
	if d.Resources.VCPU == 0 {
		d.Resources.VCPU = 1
	}
	if d.Resources.MemoryMiB == 0 {
		d.Resources.MemoryMiB = 2048
	}
	if d.Resources.DiskGiB == 0 {
		d.Resources.DiskGiB = 10
	}
	if d.TTLSeconds == 0 {
		d.TTLSeconds = 24 * 3600
	}
	switch {
	case c.FrozenFor == 0:
		c.FrozenFor = 30 * time.Second
	case c.FrozenFor < 0:
		c.FrozenFor = 0
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
}

// idling sets how long a sandbox may be idle: five minutes before it is paused, half an hour where the node cannot do that and it is stopped.
func (c *Config) idling(pauses bool) {
	switch {
	case c.Defaults.IdleSeconds != 0:
	case pauses:
		c.Defaults.IdleSeconds = 300
	default:
		c.Defaults.IdleSeconds = 1800
	}
}

// Plane is a control plane.
type Plane struct {
	cfg       Config
	db        *db.DB
	blobs     *blob.Store
	node      *nodeapi.Client
	registry  *op.Registry
	path      *call.Path
	identity  *identity.Service
	confirms  *confirmation.Service
	policies  *policy.Service
	sandboxes *sandbox.Service
	readies   *ready.Pool
	terminals *terminal.Service
	images    *image.Service
	saves     *saves.Keeper
	snapshots *snapshot.Service
	volumes   *volume.Service
	templates *template.Service
	box       *secret.Box
	quota     *quota.Service
	events    *event.Log
	audit     *audit.Log
	limiter   *call.Buckets
	docs      *docs.Library
	handler   http.Handler
	gate      *gate
	metrics   *metrics.Metrics
}

// Open connects everything. The node must answer.
func Open(ctx context.Context, cfg Config) (_ *Plane, err error) {
	cfg.withDefaults()
	p := &Plane{cfg: cfg, gate: newGate(), metrics: metrics.New(cfg.Version)}
	defer func() {
		if err != nil {
			_ = p.Close(context.WithoutCancel(ctx))
		}
	}()
	if p.db, err = db.Open(ctx, db.Config{URL: cfg.Database, MaxConns: cfg.DatabaseConns, Logger: cfg.Logger}); err != nil {
		return nil, err
	}
	if p.blobs, err = blob.Open(ctx, cfg.Blobs); err != nil {
		return nil, err
	}
	p.node = nodeapi.NewClient(cfg.Node)
	p.openSaves()
	if cfg.Direct != nil {
		p.node.UseDirect(cfg.Direct)
	}
	if _, err = p.node.Info(ctx); err != nil {
		return nil, fmt.Errorf("ask the node: %w", err)
	}
	p.cfg.idling(p.node.Capabilities().Memory)
	if err = p.services(); err != nil {
		return nil, err
	}
	if err = p.faces(); err != nil {
		return nil, err
	}
	return p, nil
}

// services makes the services and binds their operations.
func (p *Plane) services() error {
	cfg := p.cfg
	p.events = event.New(event.Config{DB: p.db, Keep: cfg.KeepEvents, Now: cfg.Now})
	p.audit = audit.New(audit.Config{DB: p.db, Keep: cfg.KeepAudit, Now: cfg.Now, Logger: cfg.Logger})
	p.quota = quota.New(quota.Config{DB: p.db, Defaults: cfg.Limits, Logger: cfg.Logger})
	p.limiter = call.NewBuckets(call.BucketsConfig{DB: p.db, PerMinute: cfg.CallsPerMinute, Now: cfg.Now, Override: func(ctx context.Context, org string) (int64, error) {
		return p.quota.Limit(ctx, org, quota.CallsPerMinute)
	}})
	inFlight := cfg.CallsInFlight
	if inFlight == 0 {
		inFlight = 4
	}
	p.identity = identity.New(identity.Config{
		DB: p.db, Limits: p.quota, CallsPerMinute: p.limiter.PerMinute, CallsInFlight: inFlight, Events: p.events, Now: cfg.Now, Logger: cfg.Logger,
	})
	var err error
	if p.policies, err = policy.New(policy.Config{DB: p.db, Events: p.events, Now: cfg.Now, Logger: cfg.Logger}); err != nil {
		return err
	}
	processes := process.New(process.Config{DB: p.db, Blobs: p.blobs, Now: cfg.Now, Logger: cfg.Logger})
	if err := p.openImages(); err != nil {
		return err
	}
	p.readies = ready.New(ready.Config{DB: p.db, Driver: p.node, MemoryMiB: cfg.ReadyMemoryMiB, Pids: cfg.Defaults.PidsOf, Now: cfg.Now, Logger: cfg.Logger})
	p.sandboxes = sandbox.New(sandbox.Config{
		DB: p.db, Driver: p.node, Quota: p.quota, Events: events{p.events}, Keeper: processes, Images: images{p.node}, Pulled: pulled{p.images}, Ready: readies{p.readies}, Defaults: cfg.Defaults,
		Observer: p.metrics, MayWake: p.mayWake, DiskBounds: p.quota.Disk, Largest: largest(p.node), Now: cfg.Now, Logger: cfg.Logger, Tick: cfg.Tick, SampleEvery: cfg.SampleEvery,
		KeepDeleted: cfg.KeepDeleted,
		FrozenFor:   cfg.FrozenFor, Short: short(p.node),
	})
	processes.Sandboxes = p.sandboxes
	p.openSnapshots()
	p.openVolumes()
	p.openTemplates()
	p.quota.Count(p.sandboxes.Count)

	p.registry = op.NewRegistry()
	p.sandboxes.Register(p.registry)
	p.snapshots.Register(p.registry)
	p.volumes.Register(p.registry)
	p.templates.Register(p.registry)
	processes.Register(p.registry)
	file.New(p.sandboxes).Register(p.registry)
	p.images.Register(p.registry)
	if err := p.ways(processes); err != nil {
		return err
	}
	p.identity.Register(p.registry)
	p.confirms = confirmation.New(confirmation.Config{DB: p.db, Events: p.events, Visible: p.identity.Visible, Registry: p.registry.Get, Lasts: cfg.ConfirmationLasts, Logger: cfg.Logger})
	p.confirms.Register(p.registry)
	p.policies.Register(p.registry)
	p.audit.Register(p.registry)
	registerCapabilities(p.registry, p.node, cfg.Version)
	registerPools(p.registry, p.node, p.readies)
	if err := p.documentation(); err != nil {
		return err
	}
	p.path = call.New(call.Config{
		DB: p.db, Authorizer: authorizer{p.identity, p.policies}, Limiter: p.limiter, Auditor: p.audit, Confirmer: p.confirms, Patience: cfg.Patience, Observer: p.metrics, InFlight: inFlight, Now: cfg.Now, Logger: cfg.Logger,
	})
	return nil
}

// faces makes the handler of everything that is served.
func (p *Plane) faces() error {
	cfg := p.cfg
	source := httpapi.SourceIP(cfg.TrustedProxies)
	mcp, err := mcpapi.New(mcpapi.Config{
		Registry: p.registry, Path: p.path, Visible: p.identity.Visible, Authenticate: p.identity.Authenticate,
		Allow: p.limiter.Allow, PublicURL: cfg.PublicURL, Version: cfg.Version, Logger: cfg.Logger, SourceIP: source,
		Base: cfg.MCPPath, Origins: cfg.MCPOrigins, Hosts: cfg.MCPHosts,
	})
	if err != nil {
		return err
	}
	p.metrics.Read(p.readings()...)
	mux := http.NewServeMux()
	if cfg.PublicMetrics {
		mux.Handle("GET /metrics", p.metrics.Handler())
	}
	if !cfg.MCPOff {
		for _, route := range mcp.Routes() {
			mux.Handle(route, mcp)
		}
	}
	if err := p.serveDocs(mux, source); err != nil {
		return err
	}
	api := httpapi.New(httpapi.Config{
		Registry: p.registry, Path: p.path, Authenticate: p.identity.Authenticate, Ticket: p.terminals.Redeem, Ready: p.ready, PublicURL: cfg.PublicURL,
		TrustedProxies: cfg.TrustedProxies, Logger: cfg.Logger, Version: cfg.Version,
	})
	mux.Handle("/", api)
	base := cfg.MCPPath
	if base == "" {
		base = "/mcp"
	}
	p.handler = p.gate.guard(straight(mux, api), base)
	return nil
}

// Handler serves the HTTP API and MCP.
func (p *Plane) Handler() http.Handler { return p.handler }

// Registry holds the operations.
func (p *Plane) Registry() *op.Registry { return p.registry }

// Path is what every call takes.
func (p *Plane) Path() *call.Path { return p.path }

// Found makes another organization with an administrator's key, whose secret it gives.
func (p *Plane) Found(ctx context.Context, name string) (secret string, err error) {
	return p.identity.Found(ctx, name)
}

// Caller gives who a key stands for, or errs.Unauthenticated.
func (p *Plane) Caller(ctx context.Context, key string) (*caller.Caller, error) {
	return p.identity.Authenticate(ctx, key)
}

// Recount sets what every organization uses to what there is.
func (p *Plane) Recount(ctx context.Context) error { return p.quota.Recount(ctx) }

// EnsureRoot makes the first organization, workspace and administrator's key where there is none, and gives the key's secret then.
func (p *Plane) EnsureRoot(ctx context.Context) (secret string, err error) {
	_, secret, err = p.identity.EnsureRoot(ctx)
	return secret, err
}

// ready says whether calls can be served: the database and the node answer.
func (p *Plane) ready(ctx context.Context) error {
	if p.gate.isEnding() {
		return errEnding()
	}
	if _, err := p.db.Now(ctx, p.db); err != nil {
		return err
	}
	_, err := p.node.Info(ctx)
	return err
}

// Run does the work between calls until the context ends.
func (p *Plane) Run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	for _, run := range []func(context.Context) error{
		p.sandboxes.Run, p.readies.Run, p.snapshots.Run, p.volumes.Run, p.templates.Run, p.images.Run, p.events.Run, p.audit.Run, p.quota.Run, p.path.Run, p.identity.Run, p.confirms.Run, p.policies.Run,
		p.saves.Vault.Run,
	} {
		g.Go(func() error { return run(ctx) })
	}
	if err := g.Wait(); !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}

// EndStreams is called before the server is shut down: followers and terminals are told to connect again.
func (p *Plane) EndStreams() { p.path.EndStreams() }

// Drain waits, while Run goes on, for the effects of calls that have begun. What is still going when the context ends is carried on by the next server.
func (p *Plane) Drain(ctx context.Context) {
	if err := p.path.Close(ctx); err != nil {
		p.cfg.Logger.Warn("calls were cut off", "error", err)
	}
}

// Close lets go of everything, once Run has ended. Sandboxes go on.
func (p *Plane) Close(ctx context.Context) error {
	var err error
	if p.audit != nil {
		err = errors.Join(err, p.audit.Flush(ctx))
	}
	if p.node != nil {
		err = errors.Join(err, p.node.Close())
	}
	if p.blobs != nil {
		err = errors.Join(err, p.blobs.Close())
	}
	if p.db != nil {
		err = errors.Join(err, p.db.Close())
	}
	return err
}

var _ runtime.Driver = (*nodeapi.Client)(nil)
