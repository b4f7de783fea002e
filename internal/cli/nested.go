package cli

import (
	"fmt"
	"io"
	"strings"

	"github.com/berthrun/berth/api/op"
)

// nested is a list of things inside an output: no line holds it, so it is a table of its own.
type nested struct {
	title  string
	schema *op.Schema
	items  []any
}

// holdsThings reports whether a member is a list of objects.
func holdsThings(p *op.Schema) bool { return p != nil && p.Items != nil && len(p.Items.Properties) > 0 }

// listOfThings gives a member as a list of objects, where it is one.
func listOfThings(p *op.Schema, v any) ([]any, bool) {
	items, ok := v.([]any)
	return items, ok && holdsThings(p)
}

// printNested writes each list below its title.
func (a *app) printNested(lists []nested) error {
	for _, l := range lists {
		if len(l.items) == 0 {
			continue
		}
		if _, err := fmt.Fprintf(a.stdout, "\n%s:\n", plain(l.title)); err != nil {
			return err
		}
		if err := table(a.stdout, a.width(), rows(l.schema, shown(l.schema, l.items), l.items)); err != nil {
			return err
		}
	}
	return nil
}

// shown are the members that at least one of the items has, in the order of the schema.
func shown(s *op.Schema, items []any) (names []string) {
	for _, n := range s.Order {
		for _, item := range items {
			if members, _ := item.(map[string]any); members[n] != nil {
				names = append(names, n)
				break
			}
		}
	}
	return names
}

// rows are items as lines of a table with a head. The last column, which often holds a text, has the most room.
func rows(s *op.Schema, names []string, items []any) [][]string {
	heads := make([]string, len(names))
	for i, n := range names {
		heads[i] = head(n)
	}
	all := [][]string{heads}
	for _, item := range items {
		members, _ := item.(map[string]any)
		cells := make([]string, len(names))
		for i, n := range names {
			cells[i] = text(s.Properties[n], n, members[n])
			if i < len(names)-1 {
				cells[i] = clip(cells[i])
			}
			cells[i] = clipTo(cells[i], maxLast)
		}
		all = append(all, cells)
	}
	return all
}

// head names a column: MEMORY MiB of memoryMiB.
func head(name string) string {
	words := strings.ToUpper(strings.ReplaceAll(kebab(name), "-", " "))
	return strings.NewReplacer(" MIB", " MiB", " GIB", " GiB").Replace(words)
}

// printLog writes the lines of a log whole, one below the other.
func (a *app) printLog(s *op.Schema, items []any) error {
	for _, item := range items {
		m, _ := item.(map[string]any)
		var parts []string
		for _, n := range []string{"at", "level", "source"} {
			parts = append(parts, fmt.Sprintf("%-7s", text(s.Properties[n], n, m[n])))
		}
		line, _ := m["message"].(string)
		if _, err := io.WriteString(a.stdout, strings.Join(parts, "  ")+"  "+plain(line)+"\n"); err != nil {
			return err
		}
	}
	return nil
}
