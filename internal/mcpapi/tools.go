package mcpapi

import (
	"regexp"
	"slices"
	"strings"
	"unicode"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/berthrun/berth/api/op"
	"github.com/berthrun/berth/internal/catalog"
)

// tool is one name of a list: an operation, or several that its argument action chooses between.
type tool struct {
	name    string
	actions []action
}

// action is one operation of a tool. Its verb is empty where the tool has no other.
type action struct {
	verb string
	info op.Info
}

// grouped reports whether the tool takes an action.
func (t *tool) grouped() bool { return t.actions[0].verb != "" }

// toolsOf gives the tools of a list in the order of the operations.
func toolsOf(l catalog.List, infos []op.Info, visible func(op.Info) bool) []*tool {
	var tools []*tool
	byName := map[string]*tool{}
	for _, info := range infos {
		if !l.Holds(info) || !visible(info) {
			continue
		}
		name, verb := l.Place(info)
		t := byName[name]
		if t == nil {
			t = &tool{name: name}
			byName[name] = t
			tools = append(tools, t)
		}
		t.actions = append(t.actions, action{verb, info})
	}
	return tools
}

// listed gives tools as tools/list shows them. rename puts the names of the list into texts.
func listed(l catalog.List, tools []*tool, rename func(string) string) []*mcp.Tool {
	all := make([]*mcp.Tool, 0, len(tools))
	spelled := map[string]string{}
	for _, t := range tools {
		m := &mcp.Tool{Name: t.name, Annotations: annotations(t)}
		if t.grouped() {
			in := mergeInputs(t.actions)
			if l.Profile == catalog.Compact {
				in = &op.Schema{Type: "object", Properties: terse(in).Properties, Required: in.Required, AdditionalProperties: false}
			}
			m.Title, m.Description = titleOf(t.name), rename(describe(l, t))
			m.InputSchema, m.OutputSchema = raw(in), raw(&op.Schema{Type: "object"})
		} else {
			info := t.actions[0].info
			conceals := func(member string) bool { return l.Conceals(info.Name, member) }
			m.Title, m.Description = info.Title, info.Doc
			m.InputSchema, m.OutputSchema = raw(info.In), raw(lean(info.Out, t.name, spelled, conceals))
		}
		all = append(all, m)
	}
	return all
}

// describe says what each action does and takes.
func describe(l catalog.List, t *tool) string {
	var b strings.Builder
	if l.Profile == catalog.Compact {
		for _, s := range catalog.Toolsets() {
			if s.Name == t.name {
				b.WriteString(s.Doc + " ")
			}
		}
	}
	b.WriteString("Actions:")
	for _, a := range t.actions {
		b.WriteString("\n" + a.verb + "(" + takes(a.info.In) + "): ")
		if l.Profile == catalog.Compact {
			b.WriteString(a.info.Title)
		} else {
			b.WriteString(a.info.Doc)
		}
	}
	return b.String()
}

// takes names the members of an input, the optional ones with a question mark. Those that every write has are left out.
func takes(s *op.Schema) string {
	var names []string
	for _, name := range s.Order {
		switch {
		case name == "idempotencyKey", name == "waitSeconds", name == "cursor":
		case slices.Contains(s.Required, name):
			names = append(names, name)
		default:
			names = append(names, name+"?")
		}
	}
	return strings.Join(names, ", ")
}

func titleOf(name string) string {
	r := []rune(strings.ReplaceAll(name, "_", " "))
	r[0] = unicode.ToUpper(r[0])
	return string(r)
}

// annotations are what all operations of a tool have in common, or that one of them is destructive or reaches out.
func annotations(t *tool) *mcp.ToolAnnotations {
	a := &mcp.ToolAnnotations{ReadOnlyHint: true, IdempotentHint: true}
	destructive, open := false, false
	for _, one := range t.actions {
		h := one.info.Hints
		a.ReadOnlyHint = a.ReadOnlyHint && h.Has(op.Read)
		a.IdempotentHint = a.IdempotentHint && h.Has(op.Idempotent)
		destructive = destructive || h.Has(op.Destructive)
		open = open || h.Has(op.OpenWorld)
	}
	a.DestructiveHint, a.OpenWorldHint = &destructive, &open
	return a
}

var toolName = regexp.MustCompile(`\b[a-z]+(_[a-z]+)+\b`)

// renaming gives a function that puts the names of a list where a text names tools by their own. In a plain list it changes nothing.
func renaming(l catalog.List, infos []op.Info) func(string) string {
	if l.Profile != catalog.Compact {
		return func(s string) string { return s }
	}
	places := map[string]string{}
	for _, info := range infos {
		switch place, verb := l.Place(info); {
		case info.Tool == "":
		case info.Verb == "":
			places[info.Tool] = called(place, verb)
		default: // a text that names a shared tool says itself which action it means
			places[info.Tool] = place
		}
	}
	return func(s string) string {
		return toolName.ReplaceAllStringFunc(s, func(word string) string {
			if place, ok := places[word]; ok {
				return place
			}
			return word
		})
	}
}

// called says how a tool is called.
func called(name, verb string) string {
	if verb == "" {
		return name
	}
	return name + " with action " + verb
}
