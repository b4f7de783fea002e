package api

import "github.com/berthrun/berth/api/op"

// SearchDocsIn is the input of docs.search.
type SearchDocsIn struct {
	Query string `json:"query" minlen:"1" maxlen:"400" doc:"A question or keywords."`
	Limit int    `json:"limit,omitempty" min:"1" max:"20" default:"5"`
}

// DocHit is a part of a page that fits a query.
type DocHit struct {
	Page    string `json:"page"`
	Section string `json:"section,omitempty"`
	Title   string `json:"title"`
	Excerpt string `json:"excerpt"`
}

// SearchDocsOut is the output of docs.search: the best first.
type SearchDocsOut struct {
	Items []DocHit `json:"items"`
}

// ReadDocIn is the input of docs.read.
type ReadDocIn struct {
	Page    string `json:"page" minlen:"1" maxlen:"200" doc:"Such as files or reference/sandboxes."`
	Section string `json:"section,omitempty" maxlen:"200" doc:"Only this one."`
	Offset  int    `json:"offset,omitempty" min:"0" max:"10000000" doc:"nextOffset of the part before."`
}

// ReadDocOut is the output of docs.read.
type ReadDocOut struct {
	Page       string   `json:"page"`
	Title      string   `json:"title"`
	Text       string   `json:"text" doc:"Markdown."`
	NextOffset int      `json:"nextOffset,omitempty" doc:"There is more."`
	Sections   []string `json:"sections,omitempty" doc:"Of a page that is not whole here."`
}

// DocPage is one page.
type DocPage struct {
	Page    string `json:"page"`
	Title   string `json:"title"`
	Summary string `json:"summary,omitempty"`
}

// ListDocsOut is the output of docs.list.
type ListDocsOut struct {
	Items []DocPage `json:"items"`
}

// The operations on the documentation.
var (
	SearchDocs = op.Def[SearchDocsIn, SearchDocsOut]{
		Name: "docs.search", Route: "GET /v1/docs/search", Action: "docs:read", Tool: "search_docs",
		Hints: op.Read | op.Idempotent, Toolset: SetDocs, Title: "Search the documentation",
		Doc: "Finds parts of Berth's documentation. Read them with read_doc.",
	}
	ReadDoc = op.Def[ReadDocIn, ReadDocOut]{
		Name: "docs.read", Route: "GET /v1/docs/read", Action: "docs:read", Tool: "read_doc",
		Hints: op.Read | op.Idempotent, Toolset: SetDocs, Title: "Read documentation",
		Doc: "Reads a page of the documentation, or one section.",
	}
	ListDocs = op.Def[None, ListDocsOut]{
		Name: "docs.list", Route: "GET /v1/docs", Action: "docs:read", Tool: "list_docs",
		Hints: op.Read | op.Idempotent, Toolset: SetDocs, Title: "List the documentation",
		Doc: "Lists the pages of the documentation.",
	}
)
