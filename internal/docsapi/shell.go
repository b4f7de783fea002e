package docsapi

import (
	"bytes"
	"crypto/sha256"
	_ "embed" // the template and its style
	"encoding/base64"
	"html/template"
	"net/http"
	"sync"

	"github.com/berthrun/berth/internal/docs"
	"github.com/berthrun/berth/internal/errs"
)

//go:embed page.html
var pageHTML string

//go:embed page.css
var pageCSS string

var layout = sync.OnceValue(func() *template.Template {
	return template.Must(template.New("page").Funcs(template.FuncMap{
		"path":  Path,
		"style": func() template.HTML { return template.HTML("<style>" + pageCSS + "</style>") }, //nolint:gosec // it is ours
	}).Parse(pageHTML))
})

// styleHash names the one style that the pages' policy allows.
var styleHash = sync.OnceValue(func() string {
	sum := sha256.Sum256([]byte(pageCSS))
	return "sha256-" + base64.StdEncoding.EncodeToString(sum[:])
})

// view is what the template shows.
type view struct {
	Title, Summary string
	Body           template.HTML
	Page           *docs.Page // nil for a page that is none of the documentation's
	Groups         []group
	Before, After  *docs.Page
	Markdown       string
	Query          string
	Hits           []docs.Hit
	Searched       bool
}

// group is a part of the navigation.
type group struct {
	Title string
	Pages []*docs.Page
	Open  bool
}

func shell(v *view) ([]byte, error) {
	var b bytes.Buffer
	err := layout().Execute(&b, v)
	return b.Bytes(), err
}

// groups is the navigation as one page shows it.
func (s *server) groups(at *docs.Page) []group {
	var all []group
	for _, p := range s.cfg.Library.Pages() {
		if p.ID == docs.Index {
			continue
		}
		if len(all) == 0 || all[len(all)-1].Title != p.Group {
			all = append(all, group{Title: p.Group})
		}
		g := &all[len(all)-1]
		g.Pages = append(g.Pages, p)
		g.Open = g.Open || at == p
	}
	return all
}

func (s *server) neighbours(p *docs.Page) (before, after *docs.Page) {
	pages := s.cfg.Library.Pages()
	for i, other := range pages {
		if other != p {
			continue
		}
		if i > 0 {
			before = pages[i-1]
		}
		if i+1 < len(pages) {
			after = pages[i+1]
		}
	}
	return before, after
}

const (
	mostHits  = 12
	longQuery = 400
)

// search shows what fits the query q.
func (s *server) search(w http.ResponseWriter, r *http.Request) {
	query := r.URL.Query().Get("q")
	if len(query) > longQuery {
		s.fail(w, r, http.StatusBadRequest, "That is too long", "Search with fewer words.")
		return
	}
	if err := s.searches.allow(s.cfg.SourceIP(r)); err != nil {
		w.Header().Set("Retry-After", "1")
		s.fail(w, r, errs.CodeOf(err).Status(), "Too many searches", "Wait a moment.")
		return
	}
	v := &view{Title: "Search", Groups: s.groups(nil), Query: query, Searched: query != ""}
	if v.Searched {
		v.Hits = s.cfg.Library.Search(query, mostHits)
	}
	s.write(w, r, http.StatusOK, v)
}

// fail shows what is wrong.
func (s *server) fail(w http.ResponseWriter, r *http.Request, status int, title, text string) {
	s.write(w, r, status, &view{Title: title, Summary: text, Groups: s.groups(nil)})
}

func (s *server) write(w http.ResponseWriter, r *http.Request, status int, v *view) {
	out, err := shell(v)
	if err != nil {
		http.Error(w, v.Title+": "+v.Summary, status)
		return
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	if r.Method != http.MethodHead {
		_, _ = w.Write(out) // a reader that has gone needs no answer
	}
}
