package mcpapi

import (
	"github.com/berthrun/berth/api/op"
	"github.com/berthrun/berth/internal/catalog"
)

// charsPerToken is the estimate that budgets are held against. Counted with o200k_base the lists come to 4.5 characters a token and more, so that it is on
// the safe side; test/clients holds it against that tokenizer.
const charsPerToken = 4

// Cost gives how many tools a list has for a caller who may use everything, and about how many tokens a model reads them at.
func Cost(l catalog.List, infos []op.Info) (tools, tokens int) {
	all := listed(l, toolsOf(l, infos, everyone), renaming(l, infos))
	return len(all), (chars(encode(all)) + charsPerToken - 1) / charsPerToken
}

// ToolNames gives the names of a list's tools in their order, for a caller who may use everything.
func ToolNames(l catalog.List, infos []op.Info) []string {
	var names []string
	for _, t := range toolsOf(l, infos, everyone) {
		names = append(names, t.name)
	}
	return names
}
