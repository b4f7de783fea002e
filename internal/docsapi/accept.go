package docsapi

import (
	"mime"
	"strconv"
	"strings"
)

// prefersMarkdown reports whether Accept asks for Markdown rather than for HTML. One that has no preference, such as */*, is given HTML.
func prefersMarkdown(accept []string) bool {
	md, html := 0.0, 0.0
	for part := range strings.SplitSeq(strings.Join(accept, ","), ",") {
		kind, params, err := mime.ParseMediaType(part)
		if err != nil {
			continue
		}
		q := 1.0
		if given, ok := params["q"]; ok {
			if q, err = strconv.ParseFloat(given, 64); err != nil {
				continue
			}
		}
		switch kind {
		case "text/markdown", "text/x-markdown":
			md = max(md, q)
		case "text/html", "application/xhtml+xml":
			html = max(html, q)
		}
	}
	return md > html
}
