// Package httpapi owns the HTTP API: the routes that are derived from the registry, how a request becomes the input of an operation, how its
// result or error is written, and the OpenAPI document that says so.
//
// It holds no credential, decides nothing and keeps nothing: it finds out who calls and hands the call to the path of a call.
package httpapi

import (
	"context"
	"encoding/json"
	"log/slog"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/berthrun/berth/api/op"
	"github.com/berthrun/berth/internal/call"
	"github.com/berthrun/berth/internal/caller"
)

// Path is the path of a call, as this face needs it.
type Path interface {
	Do(ctx context.Context, o *op.Operation, raw json.RawMessage, opts call.Options) (*call.Result, error)
	Stream(ctx context.Context, o *op.StreamOperation, raw json.RawMessage, s *op.Stream) error
}

// Config is what the API needs. Registry, Path and Authenticate are required.
type Config struct {
	Registry *op.Registry
	Path     Path
	// Authenticate gives the caller whom a bearer token stands for. A token that is not good is errs.Unauthenticated.
	Authenticate func(ctx context.Context, token string) (*caller.Caller, error)
	// Ticket gives the caller of a single-use ticket for a socket of a sandbox, for browsers, which send no header. Nil takes none.
	Ticket func(ctx context.Context, ticket, sandboxID string) (*caller.Caller, error)
	// Ready says whether calls can be served, for /readyz; nil is always.
	Ready func(ctx context.Context) error
	// PublicURL is the address under which callers reach this server; it is named in the OpenAPI document and its origin is trusted.
	PublicURL string
	// TrustedProxies may name the caller's address in X-Forwarded-For.
	TrustedProxies []netip.Prefix
	Logger         *slog.Logger // nil logs nothing
	Version        string       // of the program, for /healthz
}

type server struct {
	Config
	mux      *http.ServeMux
	origins  *http.CrossOriginProtection
	spec     []byte
	stall    time.Duration
	sourceIP func(r *http.Request) string
}

// New makes the handler of the whole API. It panics when the routes of the registry contradict each other, or PublicURL is not a URL: both are
// programmers' errors that the assembly excludes.
func New(cfg Config) http.Handler {
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	infos := make([]op.Info, 0, len(cfg.Registry.All()))
	for _, o := range cfg.Registry.All() {
		infos = append(infos, o.Info)
	}
	var streams []op.StreamInfo
	for _, o := range cfg.Registry.Streams() {
		streams = append(streams, o.Stream)
	}
	spec, err := OpenAPI(infos, streams, cfg.PublicURL)
	if err != nil {
		panic(err)
	}
	s := &server{
		Config: cfg, mux: http.NewServeMux(), origins: http.NewCrossOriginProtection(), spec: spec, stall: stallTime, sourceIP: SourceIP(cfg.TrustedProxies),
	}
	if cfg.PublicURL != "" {
		if err := s.origins.AddTrustedOrigin(originOf(cfg.PublicURL)); err != nil {
			panic(err)
		}
	}
	s.route()
	return s
}

// route binds every path once, whatever its methods, so that a wrong method is told from an unknown path.
func (s *server) route() {
	paths := map[string]map[string]http.HandlerFunc{}
	add := func(method, path string, h http.HandlerFunc) {
		if paths[path] == nil {
			paths[path] = map[string]http.HandlerFunc{}
		}
		paths[path][method] = h
	}
	for _, o := range s.Registry.All() {
		add(o.Method, shape(o.Path), s.operation(o))
	}
	for _, o := range s.Registry.Streams() {
		h := s.stream(o)
		if o.Stream.When != "" {
			if h = paths[shape(o.Path)][o.Method]; h == nil {
				panic("httpapi: " + o.Name + " shares the route of no operation")
			}
			h = s.either(o, h)
		}
		add(o.Method, shape(o.Path), h)
	}
	add(http.MethodGet, "/v1/openapi.json", s.openapi)
	add(http.MethodGet, "/healthz", s.healthz)
	add(http.MethodGet, "/readyz", s.readyz)
	for path, methods := range paths {
		s.mux.HandleFunc(path, s.byMethod(methods))
	}
	s.mux.HandleFunc("/", s.unknown)
}

func (s *server) byMethod(methods map[string]http.HandlerFunc) http.HandlerFunc {
	var allow []string
	for m := range methods {
		allow = append(allow, m)
		if m == http.MethodGet {
			allow = append(allow, http.MethodHead)
		}
	}
	slices.Sort(allow)
	allowed := strings.Join(allow, ", ")
	return func(w http.ResponseWriter, r *http.Request) {
		h, ok := methods[r.Method]
		if !ok && r.Method == http.MethodHead {
			h, ok = methods[http.MethodGet]
		}
		if !ok {
			s.wrongMethod(w, r, allowed)
			return
		}
		h(w, r)
	}
}

// shape replaces the names between braces by their positions: routes that differ only in those names are one path.
func shape(path string) string {
	parts := strings.Split(path, "/")
	n := 0
	for i, p := range parts {
		if strings.HasPrefix(p, "{") {
			rest := ""
			if strings.HasSuffix(p, "...}") {
				rest = "..."
			}
			parts[i] = "{p" + strconv.Itoa(n) + rest + "}"
			n++
		}
	}
	return strings.Join(parts, "/")
}

func (s *server) openapi(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Cache-Control", "no-cache")
	s.write(w, http.StatusOK, s.spec)
}

func (s *server) healthz(w http.ResponseWriter, _ *http.Request) {
	body, err := json.Marshal(struct {
		Status  string `json:"status"`
		Version string `json:"version,omitempty"`
	}{"ok", s.Version})
	if err != nil {
		panic(err) // strings always marshal
	}
	s.write(w, http.StatusOK, body)
}

func (s *server) readyz(w http.ResponseWriter, r *http.Request) {
	if s.Ready != nil {
		if err := s.Ready(r.Context()); err != nil {
			s.notReady(w, r, err)
			return
		}
	}
	s.write(w, http.StatusOK, []byte(`{"status":"ok"}`))
}
