package cli

import (
	"fmt"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/berthrun/berth/api"
)

// operation is a line of the registry's list.
type operation struct {
	Name    string   `json:"name"`
	Tool    string   `json:"tool,omitempty"`
	Route   string   `json:"route"`
	Action  string   `json:"action"`
	Hints   []string `json:"hints"`
	Toolset string   `json:"toolset"`
}

// operations lists what this program can call. It asks no server.
func (a *app) operations() *cobra.Command {
	return &cobra.Command{
		Use: "operations", Short: "List every operation: name, tool, route, action, hints, toolset", Args: NoArgs,
		RunE: func(*cobra.Command, []string) error {
			var list []operation
			for _, i := range api.All() {
				list = append(list, operation{i.Name, i.ShownTool(), i.Method + " " + i.Path, i.Action, i.Hints.Words(), i.Toolset})
			}
			if a.output == "json" {
				return writeJSON(a.stdout, list)
			}
			w := tabwriter.NewWriter(a.stdout, 0, 8, 2, ' ', 0)
			fmt.Fprintln(w, "NAME\tTOOL\tROUTE\tACTION\tHINTS\tTOOLSET")
			for _, o := range list {
				fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\n", o.Name, first(o.Tool, "-"), o.Route, o.Action, strings.Join(o.Hints, ","), o.Toolset)
			}
			return w.Flush()
		},
	}
}
