package docsapi

import (
	"bytes"
	"fmt"
	"html/template"
	"path"
	"strings"

	"github.com/yuin/goldmark"
	"github.com/yuin/goldmark/ast"
	"github.com/yuin/goldmark/extension"
	"github.com/yuin/goldmark/parser"
	"github.com/yuin/goldmark/text"

	"github.com/berthrun/berth/internal/docs"
)

// render makes the HTML of a page's text. Raw HTML in it is left out, and so are addresses that would run something.
func render(p *docs.Page) (template.HTML, error) {
	md := goldmark.New(goldmark.WithExtensions(extension.Table, extension.Strikethrough), goldmark.WithParserOptions(parser.WithAutoHeadingID()))
	source := []byte(p.Text)
	doc := md.Parser().Parse(text.NewReader(source), parser.WithContext(parser.NewContext(parser.WithIDs(&ids{}))))
	err := ast.Walk(doc, func(n ast.Node, entering bool) (ast.WalkStatus, error) {
		if l, ok := n.(*ast.Link); ok && entering {
			l.Destination = []byte(target(p, string(l.Destination)))
		}
		return ast.WalkContinue, nil
	})
	if err != nil {
		return "", fmt.Errorf("walk %s: %w", p.File, err)
	}
	var b bytes.Buffer
	if err := md.Renderer().Render(&b, source, doc); err != nil {
		return "", fmt.Errorf("render %s: %w", p.File, err)
	}
	return template.HTML(b.String()), nil //nolint:gosec // it is goldmark's, without raw HTML
}

// target gives a link of a page the address under which the server has it, or the repository's where the program does not carry it.
func target(p *docs.Page, to string) string {
	file, fragment, _ := strings.Cut(to, "#")
	if file == "" || strings.Contains(file, ":") || strings.HasPrefix(file, "/") {
		return to
	}
	if fragment != "" {
		fragment = "#" + fragment
	}
	whole := path.Join(path.Dir(p.File), file)
	switch {
	case strings.HasSuffix(file, "/"), path.Ext(file) == "" && !strings.HasPrefix(whole, ".."):
		if !strings.HasPrefix(whole, "reference") {
			return Source + "docs/" + whole
		}
		return Base + "/" + whole + fragment
	case strings.HasPrefix(whole, "../"):
		return Source + strings.TrimPrefix(whole, "../") + fragment
	case path.Ext(whole) != ".md" || strings.HasPrefix(whole, "adr/") || strings.HasPrefix(whole, "plans/"):
		return Source + "docs/" + whole + fragment
	case whole == "README.md":
		return Base + "/" + fragment
	}
	return Base + "/" + strings.TrimSuffix(strings.TrimSuffix(whole, ".md"), "/README") + fragment
}

// ids gives headings the anchors that the library gives them.
type ids struct{ docs.Anchors }

// Generate implements parser.IDs.
func (i *ids) Generate(value []byte, kind ast.NodeKind) []byte {
	if kind != ast.KindHeading {
		return nil
	}
	return []byte(i.Next(docs.Plain(string(value))))
}

// Put implements parser.IDs.
func (i *ids) Put([]byte) {}
