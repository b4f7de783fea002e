package main

import (
	"bytes"
	"fmt"
	"strings"

	"github.com/berthrun/berth/api/op"
	"github.com/berthrun/berth/internal/catalog"
	"github.com/berthrun/berth/internal/mcpapi"
)

// toolsPage is the page of the lists of tools that an address can ask for.
const toolsPage = pagesDir + "/tools.md"

// lists writes the page: each list with its number of tools and what a model reads it at.
func lists(infos []op.Info) []byte {
	var b bytes.Buffer
	b.WriteString(pageMark + "\n# Lists of tools\n\nWhat a connection lists is chosen by its address. The tokens are what a model reads the list at, for a key that may use " +
		"everything: four characters of the list are counted as one, which is a little more than o200k_base counts.\n\n" +
		"| address | tools | tokens |\n|---|---|---|\n")
	row := func(l catalog.List) {
		tools, tokens := mcpapi.Cost(l, infos)
		if tools == 0 {
			return
		}
		fmt.Fprintf(&b, "| `/mcp%s` | %d | %s |\n", l.Path(), tools, thousands(tokens))
	}
	forms := []catalog.List{
		{},
		{ReadOnly: true},
		{All: true},
		{Profile: catalog.Compact},
		{Profile: catalog.Compact, ReadOnly: true},
		{Profile: catalog.ChatGPT},
	}
	for _, l := range forms {
		row(l)
	}
	for _, s := range catalog.Toolsets() {
		row(catalog.List{Toolsets: []string{s.Name}})
		row(catalog.List{Toolsets: []string{s.Name}, ReadOnly: true})
	}
	b.WriteString("\nToolsets can be put together: `/mcp/x/sandboxes,files`. `/readonly` behind any path leaves the tools that read; `?profile=` follows any path.\n")
	b.WriteString("\n## Toolsets\n\n| toolset | what it is about | tools |\n|---|---|---|\n")
	for _, s := range catalog.Toolsets() {
		names := mcpapi.ToolNames(catalog.List{Toolsets: []string{s.Name}}, infos)
		shown := "`" + strings.Join(names, "`, `") + "`"
		if len(names) == 0 {
			shown = "none in this version"
		}
		fmt.Fprintf(&b, "| %s | %s | %s |\n", s.Name, s.Doc, shown)
	}
	first := mcpapi.ToolNames(catalog.List{}, infos)
	fmt.Fprintf(&b, "\n## The list of `/mcp`\n\nThe verbs of an agent's first session: `%s`. The other tools can be called there too; they are only not listed.\n", strings.Join(first, "`, `"))
	b.WriteString("\n## The compact list\n\nOne tool a toolset; its argument `action` names the verb. The other arguments are those of the operation.\n\n| tool | actions |\n|---|---|\n")
	verbs := map[string][]string{}
	compact := catalog.List{Profile: catalog.Compact}
	for _, i := range infos {
		if compact.Holds(i) {
			tool, verb := compact.Place(i)
			verbs[tool] = append(verbs[tool], verb)
		}
	}
	for _, name := range mcpapi.ToolNames(compact, infos) {
		fmt.Fprintf(&b, "| `%s` | `%s` |\n", name, strings.Join(verbs[name], "`, `"))
	}
	return b.Bytes()
}

func thousands(n int) string {
	if n < 1000 {
		return fmt.Sprint(n)
	}
	return fmt.Sprintf("%d,%03d", n/1000, n%1000)
}
