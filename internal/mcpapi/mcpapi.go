// Package mcpapi owns the MCP face: one stateless endpoint on which the operations that have a tool are tools of the caller, and addresses below it for
// other lists of them.
//
// HTTP, credentials, headers, tools/list and tools/call are handled here; the rest of the protocol, its five revisions and their differences, is the
// official SDK's. The package decides nothing and owns no operation: it asks Authenticate who is calling and Visible what to list, and every call goes down
// the path of a call as the caller.
package mcpapi

import (
	"context"
	"encoding/json"
	"log/slog"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/berthrun/berth/api/op"
	"github.com/berthrun/berth/internal/call"
	"github.com/berthrun/berth/internal/caller"
	"github.com/berthrun/berth/internal/catalog"
	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/id"
)

// Path carries a call out.
type Path interface {
	Do(ctx context.Context, o *op.Operation, input json.RawMessage, opts call.Options) (*call.Result, error)
}

// Config is what the endpoint needs. Registry, Path, Visible and Authenticate must be set.
type Config struct {
	Registry *op.Registry
	Path     Path
	// Visible reports whether a caller is shown an operation. It never decides about doing it.
	Visible func(*caller.Caller, op.Info) bool
	// Authenticate gives the caller of a bearer token. An errs.Unauthenticated is answered with 401 and the challenge, anything else with its own
	// status. The caller is copied before the face's own fields are set.
	Authenticate func(ctx context.Context, token string) (*caller.Caller, error)
	// Anonymous, where set, takes Authenticate's place and makes the endpoint a public one: nobody signs in, pages of any origin may call, and it gives
	// the caller of a request, or why it is refused, such as errs.RateLimited. The registry then holds only what everybody may see.
	Anonymous func(r *http.Request) (*caller.Caller, error)
	// Allow counts a message that is no tool call, which the path counts itself: errs.RateLimited for one too many. No limit where nil.
	Allow func(ctx context.Context, c *caller.Caller) error

	Base      string   // path of the endpoint, absolute; "/mcp" where empty
	PublicURL string   // scheme and host under which clients reach the server, without a path; from the request where empty
	Origins   []string // browser origins, scheme://host[:port], that may call although they are not the server's own
	Hosts     []string // Host headers accepted on a loopback address besides loopback names and the public URL's

	Name         string // of the server; "berth" where empty
	Version      string
	Instructions string // what a client reads when it connects; those for sandboxes where empty

	Deadline      time.Duration // of a call; 75 s where 0
	ShortDeadline time.Duration // for clients that give up after 60 s; 45 s where 0
	ProgressEvery time.Duration // between progress notifications; 5 s where 0
	MaxBody       int64         // bytes; 4 MiB where 0
	Patience      time.Duration // with a client that sends its body, or takes a part of an answer in; 30 s where 0

	Logger   *slog.Logger                 // discards where nil
	NewID    func() string                // of a request; random where nil
	SourceIP func(r *http.Request) string // the connection's address where nil
}

// Handler serves the endpoint. Routes lists where it wants to be mounted.
type Handler struct {
	cfg     Config
	origins *http.CrossOriginProtection
	hosts   map[string]bool
	ends    endpoints
	sdk     mcp.Implementation
	info    []byte // sdk as JSON
}

// New checks the configuration and builds the handler. A base path or public URL that is not absolute, and an origin that is none, is errs.InvalidConfig.
func New(cfg Config) (*Handler, error) {
	if cfg.Registry == nil || cfg.Path == nil || cfg.Visible == nil || (cfg.Authenticate == nil && cfg.Anonymous == nil) {
		return nil, errs.E(errs.InvalidConfig, "the MCP endpoint needs a registry, a path, visibility and authentication")
	}
	if err := normalize(&cfg); err != nil {
		return nil, err
	}
	h := &Handler{
		cfg: cfg, origins: http.NewCrossOriginProtection(), hosts: map[string]bool{},
		sdk: mcp.Implementation{Name: cfg.Name, Title: "Berth", Version: cfg.Version},
	}
	for _, o := range cfg.Origins {
		if err := h.origins.AddTrustedOrigin(o); err != nil {
			return nil, errs.Wrap(errs.InvalidConfig, err, "%q is not an origin such as https://app.example.com", o)
		}
	}
	for _, name := range cfg.Hosts {
		h.hosts[hostName(name)] = true
	}
	if u, err := url.Parse(cfg.PublicURL); err == nil && u.Host != "" {
		h.hosts[hostName(u.Host)] = true
	}
	h.info, h.ends.all = encode(&h.sdk), map[string]*endpoint{}
	return h, nil
}

func normalize(cfg *Config) error {
	if cfg.Base == "" {
		cfg.Base = "/mcp"
	}
	trimmed := strings.TrimRight(cfg.Base, "/")
	if !strings.HasPrefix(cfg.Base, "/") || trimmed == "" || strings.ContainsAny(cfg.Base, "?#{} ") || strings.Contains(cfg.Base, "//") {
		return errs.E(errs.InvalidConfig, "the MCP path %q is not an absolute path such as /mcp", cfg.Base)
	}
	cfg.Base = trimmed
	if cfg.PublicURL != "" {
		u, err := url.Parse(cfg.PublicURL)
		if err != nil || (u.Scheme != "http" && u.Scheme != "https") || u.Host == "" || u.RawQuery != "" || u.Fragment != "" {
			return errs.E(errs.InvalidConfig, "the public URL %q is not an absolute http or https URL", cfg.PublicURL)
		}
		cfg.PublicURL = strings.TrimRight(cfg.PublicURL, "/")
	}
	fallback(&cfg.Name, "berth")
	fallback(&cfg.Version, "0")
	fallback(&cfg.Deadline, 75*time.Second)
	fallback(&cfg.ShortDeadline, 45*time.Second)
	fallback(&cfg.ProgressEvery, 5*time.Second)
	fallback(&cfg.MaxBody, 4<<20)
	fallback(&cfg.Patience, 30*time.Second)
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	if cfg.NewID == nil {
		cfg.NewID = func() string { return id.New(id.Request) }
	}
	if cfg.SourceIP == nil {
		cfg.SourceIP = func(r *http.Request) string { return hostName(r.RemoteAddr) }
	}
	return nil
}

func fallback[T comparable](v *T, def T) {
	var zero T
	if *v == zero {
		*v = def
	}
}

// Routes are the patterns, for http.ServeMux, that belong to the handler.
func (h *Handler) Routes() []string {
	if h.cfg.Anonymous != nil {
		return []string{h.cfg.Base, h.cfg.Base + "/"} // a resource without sign-in has no metadata
	}
	return []string{h.cfg.Base, h.cfg.Base + "/", wellKnown, wellKnown + "/"}
}

// ServeHTTP answers one request. Every answer carries X-Request-Id.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	x := &exchange{h: h, w: newBounded(w, h.cfg.Patience), r: r, requestID: h.cfg.NewID()}
	defer x.w.finish()
	w.Header().Set("X-Request-Id", x.requestID)
	path := strings.TrimRight(r.URL.Path, "/")
	below, known := strings.CutPrefix(path, wellKnown)
	if !known {
		below = path
	}
	below, own := strings.CutPrefix(below, h.cfg.Base)
	var err error
	if own && (below == "" || below[0] == '/') {
		x.list, err = catalog.Parse(strings.TrimPrefix(below, "/"), r.URL.Query()["profile"])
	} else if path != wellKnown {
		_, err = catalog.Parse("/", nil) // names what there is
	}
	if h.cfg.Anonymous != nil && !x.list.Chosen() {
		x.list.All = true
	}
	switch {
	case err != nil:
		x.refuse(err)
	case known:
		h.serveMetadata(x.w, r)
	default:
		x.serve()
	}
}
