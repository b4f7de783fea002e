// Package docs owns the documentation as data: its pages and their sections, the order in which the index names them, searching and reading them,
// and the three operations that do so.
//
// It does not own the pages themselves, which are in the folder docs, nor how they look: faces render them.
package docs

import (
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"
	"sync"

	"github.com/berthrun/berth/internal/errs"
)

// Page is one page of the documentation.
type Page struct {
	ID       string // its path without the ending, such as files or reference/sandboxes; an index has the name of its folder, the first "index"
	File     string // its path below the root, such as reference/README.md
	Title    string
	Summary  string // one line, from the index; the page's first sentence where that has none
	Group    string // the heading of the index under which it is linked; empty for the index
	Text     string // Markdown
	Sections []Section
}

// Section is a heading and what follows it up to the next one. The first of a page begins with its title.
type Section struct {
	Anchor string // of the heading in the page, as Markdown readers make it; empty for the first
	Title  string
	Level  int // of the heading, from 1
	Start  int // bytes into the page's text
	End    int // of the text up to the next heading of any level
	Whole  int // of the text up to the next heading of the same or a higher level
}

// Library is the whole documentation. It is safe for concurrent use; its pages are never changed.
type Library struct {
	pages  []*Page
	byID   map[string]*Page
	search func() *index
}

// New reads the pages of a file system, README.md being the index. One without a title or an index is errs.InvalidConfig.
func New(files fs.FS) (*Library, error) {
	l := &Library{byID: map[string]*Page{}}
	err := fs.WalkDir(files, ".", func(file string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || path.Ext(file) != ".md" {
			return err
		}
		text, err := fs.ReadFile(files, file)
		if err != nil {
			return err
		}
		p := parse(file, string(text))
		if p.Title == "" {
			return errs.E(errs.InvalidConfig, "the page %s has no title", file)
		}
		l.pages = append(l.pages, p)
		l.byID[p.ID] = p
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read documentation: %w", err)
	}
	home := l.byID[Index]
	if home == nil {
		return nil, errs.E(errs.InvalidConfig, "the documentation has no README.md")
	}
	l.arrange(home)
	l.search = sync.OnceValue(func() *index { return newIndex(l.pages) })
	return l, nil
}

// Index is the id of the first page.
const Index = "index"

// arrange sorts the pages as the index names them; those that it does not name follow those of their folder's index, by their names.
func (l *Library) arrange(home *Page) {
	place := map[string]int{Index: -1}
	for _, e := range entries(home.Text) {
		p := l.byID[e.id]
		if p == nil {
			continue
		}
		if _, twice := place[e.id]; !twice {
			place[e.id] = len(place)
			p.Summary, p.Group = e.summary, e.group
		}
	}
	for _, p := range l.pages {
		if folder := l.byID[path.Dir(p.ID)]; p.Group == "" && folder != nil {
			p.Group = folder.Group
		}
		if p.Summary == "" {
			p.Summary = firstSentence(p)
		}
	}
	rank := func(p *Page) int {
		for id := p.ID; ; id = path.Dir(id) {
			if n, ok := place[id]; ok {
				return n
			}
			if id == "." {
				return len(place)
			}
		}
	}
	slices.SortStableFunc(l.pages, func(a, b *Page) int {
		if d := rank(a) - rank(b); d != 0 {
			return d
		}
		return strings.Compare(a.ID, b.ID)
	})
}

// Pages gives every page, in the order of the index.
func (l *Library) Pages() []*Page { return l.pages }

// Page finds a page by its id, or by what people write instead of it: a link, a file's name, a path of the server. It is nil where there is none.
func (l *Library) Page(name string) *Page {
	id := strings.Trim(strings.TrimSpace(name), "/") + "/"
	for _, prefix := range []string{"./", "docs/"} {
		id = strings.TrimPrefix(id, prefix)
	}
	id = idOf(strings.TrimSuffix(id, "/"))
	if p := l.byID[id]; p != nil {
		return p
	}
	return l.byID[strings.ToLower(id)]
}

// Section finds a section of a page by its anchor or its heading. The empty name is the whole page.
func (p *Page) Section(name string) (Section, bool) {
	name = strings.TrimPrefix(strings.TrimSpace(name), "#")
	if name == "" {
		return Section{Title: p.Title, Level: 1, Start: 0, End: len(p.Text), Whole: len(p.Text)}, true
	}
	for _, s := range p.Sections {
		if s.Anchor == name || strings.EqualFold(s.Title, name) || (s.Anchor != "" && s.Anchor == Anchor(name)) {
			return s, true
		}
	}
	return Section{}, false
}
