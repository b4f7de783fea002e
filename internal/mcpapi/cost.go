package mcpapi

import (
	"github.com/berthrun/berth/api/op"
	"github.com/berthrun/berth/internal/catalog"
)

// charsPerToken is the estimate that budgets are held against: four characters are a token. o200k_base counts 2 to 4 % fewer tokens in these lists;
// test/clients holds the estimate against it.
const charsPerToken = 4

// Cost gives how many tools a list has for a caller who may use everything, and about how many tokens a model reads them at.
func Cost(l catalog.List, infos []op.Info) (tools, tokens int) {
	return len(toolsOf(l, infos, everyone)), (chars(ListJSON(l, infos)) + charsPerToken - 1) / charsPerToken
}

// ListJSON gives the tools of a list as tools/list has them for a caller who may use everything.
func ListJSON(l catalog.List, infos []op.Info) []byte {
	return encode(listed(l, toolsOf(l, infos, everyone), renaming(l, infos)))
}

// ToolNames gives the names of a list's tools in their order, for a caller who may use everything.
func ToolNames(l catalog.List, infos []op.Info) []string {
	var names []string
	for _, t := range toolsOf(l, infos, everyone) {
		names = append(names, t.name)
	}
	return names
}
