package docsapi

import (
	"bytes"
	"fmt"
	"net/http"
	"strings"

	"github.com/berthrun/berth/internal/docs"
)

const summary = "Compute for AI agents on machines you own: isolated Linux sandboxes, commands, processes and files over MCP, an HTTP API and a command line. " +
	"One program to install; every call is made as the caller."

// llms is the list of pages in the form of llms.txt: title, summary, sections of links, each with a line on what it says.
func (s *server) llms(r *http.Request) []byte {
	base := s.url(r)
	var b bytes.Buffer
	fmt.Fprintf(&b, "# Berth\n\n> %s\n\nEvery page is Markdown. Without sign-in, an agent can also search and read them as tools: the MCP endpoint is %s/mcp. "+
		"All pages in one file: %s/llms-full.txt\n", summary, base, base)
	group := ""
	for _, p := range s.cfg.Library.Pages() {
		if p.ID == docs.Index {
			continue
		}
		if p.Group != group || group == "" {
			group = p.Group
			name := group
			if name == "" {
				name = "More"
				group = name
			}
			fmt.Fprintf(&b, "\n## %s\n\n", name)
		}
		fmt.Fprintf(&b, "- [%s](%s/%s): %s\n", p.Title, base, p.File, p.Summary)
	}
	return b.Bytes()
}

// llmsFull is every page in one text, each under the address of its Markdown.
func (s *server) llmsFull(r *http.Request) []byte {
	base := s.url(r)
	var b bytes.Buffer
	fmt.Fprintf(&b, "# Berth\n\n> %s\n", summary)
	for _, p := range s.cfg.Library.Pages() {
		if p.ID != docs.Index {
			fmt.Fprintf(&b, "\n---\n\nSource: %s/%s\n\n%s\n", base, p.File, strings.TrimSpace(p.Text))
		}
	}
	return b.Bytes()
}

// url is where the documentation is reached.
func (s *server) url(r *http.Request) string {
	if s.cfg.PublicURL != "" {
		return strings.TrimSuffix(s.cfg.PublicURL, "/") + Base
	}
	scheme := "http"
	if r.TLS != nil {
		scheme = "https"
	}
	return scheme + "://" + r.Host + Base
}
