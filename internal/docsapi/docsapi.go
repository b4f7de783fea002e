// Package docsapi owns how the documentation is served: its pages as HTML and as Markdown, the two llms.txt files, searching for readers, and who may
// call the public MCP endpoint how often.
//
// It owns no page and no order of pages, which are those of package docs, and knows no credential: everything here is for everybody.
package docsapi

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"net/http"
	"regexp"
	"strings"
	"sync"
	"time"

	"github.com/berthrun/berth/internal/docs"
)

// Base is the path below which everything here is.
const Base = "/docs"

// Source is where the pages can be read that belong to the repository and not to the program.
const Source = "https://github.com/berthrun/berth/blob/main/"

// Config is what the pages need. Library must be set.
type Config struct {
	Library   *docs.Library
	PublicURL string // of the server; from the request where empty
	// SourceIP gives the address that a search counts for; the connection's where nil.
	SourceIP func(r *http.Request) string
	Now      func() time.Time // time.Now where nil
}

type server struct {
	cfg      Config
	searches *limiter
	mu       sync.Mutex
	rendered map[string]*document // by page id; made when first asked for
}

// document is something that is served as it is.
type document struct {
	kind string // media type
	body []byte
	etag string
}

func newDocument(kind string, body []byte) *document {
	sum := sha256.Sum256(body)
	return &document{kind: kind, body: body, etag: `"` + base64.RawURLEncoding.EncodeToString(sum[:12]) + `"`}
}

// searchesPerMinute is how often one address may search the pages.
const searchesPerMinute = 120

// New makes the handler of everything below Base, but for the MCP endpoint.
func New(cfg Config) http.Handler {
	if cfg.SourceIP == nil {
		cfg.SourceIP = func(r *http.Request) string { return r.RemoteAddr }
	}
	return &server{cfg: cfg, searches: newLimiter(searchesPerMinute, cfg.Now), rendered: map[string]*document{}}
}

// keyInURL finds a key in an address, where it ends up in logs.
var keyInURL = regexp.MustCompile(`berth_[a-z]+_[A-Za-z0-9]{20}`)

// ServeHTTP answers one request.
func (s *server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	secure(w.Header())
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		w.Header().Set("Allow", "GET, HEAD")
		s.fail(w, r, http.StatusMethodNotAllowed, "Only GET", "The documentation can only be read.")
		return
	}
	if keyInURL.MatchString(r.URL.RawQuery) || keyInURL.MatchString(r.URL.Path) {
		s.fail(w, r, http.StatusBadRequest, "A key in a URL", "It ends up in logs: revoke it. The documentation needs no key.")
		return
	}
	switch name := strings.TrimPrefix(r.URL.Path, Base); name {
	case "":
		http.Redirect(w, r, Base+"/", http.StatusMovedPermanently)
	case "/":
		s.page(w, r, s.cfg.Library.Page(docs.Index))
	case "/llms.txt":
		serve(w, r, newDocument("text/plain; charset=utf-8", s.llms(r)))
	case "/llms-full.txt":
		serve(w, r, newDocument("text/plain; charset=utf-8", s.llmsFull(r)))
	case "/search":
		s.search(w, r)
	default:
		s.named(w, r, strings.TrimPrefix(name, "/"))
	}
}

// named serves a page by its path, as Markdown where that has the file's ending.
func (s *server) named(w http.ResponseWriter, r *http.Request, name string) {
	if file, ok := strings.CutSuffix(name, ".md"); ok {
		if p := s.byFile(name); p != nil {
			serve(w, r, markdown(p))
			return
		}
		name = file
	}
	p := s.cfg.Library.Page(name)
	switch {
	case p == nil:
		s.fail(w, r, http.StatusNotFound, "No such page", "The index names every page.")
	case r.URL.Path != Path(p):
		to := Path(p)
		if r.URL.RawQuery != "" {
			to += "?" + r.URL.RawQuery
		}
		http.Redirect(w, r, to, http.StatusMovedPermanently)
	default:
		s.page(w, r, p)
	}
}

func (s *server) byFile(file string) *docs.Page {
	for _, p := range s.cfg.Library.Pages() {
		if p.File == file {
			return p
		}
	}
	return nil
}

// Path is where a page is served.
func Path(p *docs.Page) string {
	if p.ID == docs.Index {
		return Base + "/"
	}
	return Base + "/" + p.ID
}

func markdown(p *docs.Page) *document {
	return newDocument("text/markdown; charset=utf-8", []byte(p.Text))
}

// page serves a page as HTML, or as Markdown to who would rather have that.
func (s *server) page(w http.ResponseWriter, r *http.Request, p *docs.Page) {
	w.Header().Add("Vary", "Accept")
	file := Base + "/" + p.File
	w.Header().Set("Link", "<"+file+`>; rel="alternate"; type="text/markdown"`)
	if prefersMarkdown(r.Header.Values("Accept")) {
		w.Header().Set("Content-Location", file)
		serve(w, r, markdown(p))
		return
	}
	d, err := s.html(p)
	if err != nil {
		s.fail(w, r, http.StatusInternalServerError, "The page cannot be shown", "Its Markdown can: "+file)
		return
	}
	serve(w, r, d)
}

// html gives a page as it is shown. It is made once.
func (s *server) html(p *docs.Page) (*document, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if d := s.rendered[p.ID]; d != nil {
		return d, nil
	}
	body, err := render(p)
	if err != nil {
		return nil, err
	}
	before, after := s.neighbours(p)
	out, err := shell(&view{Title: p.Title, Summary: p.Summary, Body: body, Page: p, Groups: s.groups(p), Before: before, After: after, Markdown: Base + "/" + p.File})
	if err != nil {
		return nil, err
	}
	d := newDocument("text/html; charset=utf-8", out)
	s.rendered[p.ID] = d
	return d, nil
}

// serve writes a document, or that the reader has it already.
func serve(w http.ResponseWriter, r *http.Request, d *document) {
	head := w.Header()
	head.Set("Content-Type", d.kind)
	head.Set("Cache-Control", "no-cache")
	head.Set("ETag", d.etag)
	if !strings.HasPrefix(d.kind, "text/html") {
		head.Set("Access-Control-Allow-Origin", "*")
	}
	http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(d.body))
}

// secure lets a page do nothing but show itself: no scripts, nothing from elsewhere, no frames around it.
func secure(head http.Header) {
	head.Set("Content-Security-Policy", "default-src 'none'; style-src '"+styleHash()+"'; img-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'")
	head.Set("X-Content-Type-Options", "nosniff")
	head.Set("X-Frame-Options", "DENY")
	head.Set("Referrer-Policy", "no-referrer")
	head.Set("Cross-Origin-Opener-Policy", "same-origin")
}
