package docs

import (
	"context"
	"strings"
	"unicode/utf8"

	"github.com/berthrun/berth/api"
	"github.com/berthrun/berth/api/op"
	"github.com/berthrun/berth/internal/draft"
	"github.com/berthrun/berth/internal/errs"
)

const (
	defaultHits = 5
	// partSize is how many characters, escaped as JSON escapes them, the text of one read has: the whole answer stays below 16,000.
	partSize = 13_500
	// mostSections bounds the list of a long page's sections.
	mostSections = 60
)

// Register binds the operations.
func (l *Library) Register(r *op.Registry) {
	op.Handle(r, api.SearchDocs, op.Handler[api.SearchDocsIn, api.SearchDocsOut]{Draft: draft.OnOrganization[api.SearchDocsIn], Act: l.actSearch})
	op.Handle(r, api.ReadDoc, op.Handler[api.ReadDocIn, api.ReadDocOut]{Draft: draft.OnOrganization[api.ReadDocIn], Act: l.actRead})
	op.Handle(r, api.ListDocs, op.Handler[api.None, api.ListDocsOut]{Draft: draft.OnOrganization[api.None], Act: l.actList})
}

func (l *Library) actSearch(_ context.Context, in *api.SearchDocsIn, _ *op.Draft) (*api.SearchDocsOut, error) {
	limit := in.Limit
	if limit == 0 {
		limit = defaultHits
	}
	out := &api.SearchDocsOut{}
	for _, h := range l.Search(in.Query, limit) {
		title := h.Page.Title
		if h.Section.Anchor != "" {
			title += ": " + h.Section.Title
		}
		out.Items = append(out.Items, api.DocHit{Page: h.Page.ID, Section: h.Section.Anchor, Title: title, Excerpt: h.Excerpt})
	}
	return out, nil
}

func (l *Library) actRead(_ context.Context, in *api.ReadDocIn, _ *op.Draft) (*api.ReadDocOut, error) {
	name, section, _ := strings.Cut(in.Page, "#")
	if in.Section != "" {
		section = in.Section
	}
	p := l.Page(name)
	if p == nil {
		return nil, l.noPage(name)
	}
	s, ok := p.Section(section)
	if !ok {
		return nil, errs.E(errs.NotFound, "the page %s has no such section", p.ID).Because("unknown_section").
			Suggest("Read it without section, or use one of: %s.", strings.Join(p.anchors(), ", ")).With("path", "section")
	}
	text := p.Text[s.Start:s.Whole]
	if in.Offset > len(text) {
		return nil, errs.E(errs.InvalidInput, "the offset is behind the end, which is at %d", len(text)).
			Suggest("Use the nextOffset of the part before.").With("path", "offset")
	}
	shown, next := cutPart(text, in.Offset)
	out := &api.ReadDocOut{Page: p.ID, Title: p.Title, Text: shown, NextOffset: next}
	if next > 0 && in.Offset == 0 && section == "" {
		out.Sections = p.anchors()
	}
	return out, nil
}

// noPage says which pages look like the one that was asked for.
func (l *Library) noPage(name string) error {
	err := errs.E(errs.NotFound, "there is no page of that name").Because("unknown_page").With("path", "page")
	var near []string
	for _, h := range l.Search(name, 3) {
		near = append(near, h.Page.ID)
	}
	if len(near) == 0 {
		return err.Suggest("docs.list (list_docs) names every page.")
	}
	return err.Suggest("Perhaps %s. docs.list (list_docs) names every page.", strings.Join(near, " or "))
}

func (p *Page) anchors() []string {
	var all []string
	for _, s := range p.Sections {
		if s.Anchor != "" && len(all) < mostSections {
			all = append(all, s.Anchor)
		}
	}
	return all
}

// cutPart gives the part of a text that begins at an offset, cut at the end of a line, and where the next one begins, 0 where nothing is left.
func cutPart(text string, offset int) (string, int) {
	for offset > 0 && offset < len(text) && !utf8.RuneStart(text[offset]) {
		offset++
	}
	rest := text[offset:]
	size, line := 0, 0
	for i, r := range rest {
		if size++; r == '"' || r == '\\' || r == '\n' || r == '\t' {
			size++
		}
		if size > partSize {
			if line == 0 {
				line = i // one line that is longer than a part
			}
			return rest[:line], offset + line
		}
		if r == '\n' {
			line = i + 1
		}
	}
	return rest, 0
}

func (l *Library) actList(context.Context, *api.None, *op.Draft) (*api.ListDocsOut, error) {
	out := &api.ListDocsOut{}
	for _, p := range l.pages {
		if p.ID != Index {
			out.Items = append(out.Items, api.DocPage{Page: p.ID, Title: p.Title, Summary: p.Summary})
		}
	}
	return out, nil
}
