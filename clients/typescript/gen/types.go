package main

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// names holds the object schemas that occur more than once, by their form.
type names struct {
	count map[string]int
	hint  map[string]map[string]int // how often each name was meant
	form  map[string]*schema
	named map[string]string // by form
}

// leastMembers is how many members an object has that is worth a name.
const leastMembers = 3

// taken are names of the language's own library.
var taken = map[string]bool{"File": true, "Event": true, "Request": true, "Response": true, "Error": true, "Record": true, "Date": true, "Map": true, "Set": true}

func nameTypes(calls []call) *names {
	n := &names{count: map[string]int{}, hint: map[string]map[string]int{}, form: map[string]*schema{}, named: map[string]string{}}
	for _, c := range calls {
		area, _, _ := strings.Cut(c.name, ".")
		for _, s := range []*schema{c.input, c.output} {
			if s != nil {
				n.collect(s, area)
			}
		}
	}
	used := map[string]bool{}
	for _, form := range slices.Sorted(maps.Keys(n.count)) {
		if n.count[form] < 2 {
			continue
		}
		name := n.best(form)
		if taken[name] {
			name += "Info"
		}
		for base, i := name, 2; used[name]; i++ {
			name = fmt.Sprint(base, i)
		}
		used[name] = true
		n.named[form] = name
	}
	return n
}

// collect looks at the objects inside of a schema; the schema itself has its operation's name.
func (n *names) collect(s *schema, area string) {
	for _, name := range slices.Sorted(maps.Keys(s.Properties)) {
		p := s.Properties[name]
		meant := upper(name)
		if p.Items != nil {
			if p = p.Items; name == "items" {
				meant = upper(area)
			}
			meant = singular(meant)
		}
		if len(p.Properties) >= leastMembers {
			form := formOf(p)
			n.count[form]++
			if n.hint[form] == nil {
				n.hint[form] = map[string]int{}
			}
			n.hint[form][meant]++
			n.form[form] = p
		}
		n.collect(p, area)
	}
}

func (n *names) best(form string) string {
	best := ""
	for _, name := range slices.Sorted(maps.Keys(n.hint[form])) {
		if best == "" || n.hint[form][name] > n.hint[form][best] {
			best = name
		}
	}
	return best
}

// formOf is an object without its descriptions.
func formOf(s *schema) string {
	b, err := json.Marshal(bare(s))
	if err != nil {
		panic(err) // it was read from JSON
	}
	return string(b)
}

func bare(s *schema) *schema {
	c := *s
	c.Description = ""
	if s.Items != nil {
		c.Items = bare(s.Items)
	}
	if len(s.Properties) > 0 {
		c.Properties = map[string]*schema{}
		for name, p := range s.Properties {
			c.Properties[name] = bare(p)
		}
	}
	return &c
}

// expr is the TypeScript of a schema, its members indented below at.
func (n *names) expr(s *schema, at string) string {
	if s.Null != "" {
		return n.expr(&schema{Type: s.Null}, at) + " | null"
	}
	if name := n.named[formOf(s)]; name != "" && len(s.Properties) >= leastMembers {
		return name
	}
	switch {
	case len(s.Enum) > 0:
		quoted := make([]string, len(s.Enum))
		for i, e := range s.Enum {
			quoted[i] = fmt.Sprintf("%q", e)
		}
		return strings.Join(quoted, " | ")
	case s.Type == "string", s.Type == "boolean":
		return s.Type
	case s.Type == "integer", s.Type == "number":
		return "number"
	case s.Type == "array":
		inner := n.expr(s.Items, at)
		if strings.Contains(inner, "|") {
			inner = "(" + inner + ")"
		}
		return inner + "[]"
	case s.Type == "object" && len(s.Properties) > 0:
		return "{\n" + n.members(s, at+"  ") + at + "}"
	case s.Type == "object":
		var values schema
		if len(s.Additional) > 0 && s.Additional[0] == '{' && json.Unmarshal(s.Additional, &values) == nil {
			return "Record<string, " + n.expr(&values, at) + ">"
		}
		return "Record<string, unknown>"
	}
	return "unknown"
}

// members writes what is required first, each by name.
func (n *names) members(s *schema, at string) string {
	var b strings.Builder
	all := slices.Sorted(maps.Keys(s.Properties))
	slices.SortStableFunc(all, func(x, y string) int {
		return rank(slices.Contains(s.Required, x)) - rank(slices.Contains(s.Required, y))
	})
	for _, name := range all {
		p := s.Properties[name]
		doc := p.Description
		if p.Default != nil {
			doc = strings.TrimSpace(fmt.Sprintf("%s Default: %v.", doc, p.Default))
		}
		if doc != "" {
			b.WriteString(at + "/** " + comment(doc) + " */\n")
		}
		if slices.Contains(s.Required, name) {
			fmt.Fprintf(&b, "%s%s: %s;\n", at, name, n.expr(p, at))
		} else {
			fmt.Fprintf(&b, "%s%s?: %s | undefined;\n", at, name, n.expr(p, at))
		}
	}
	return b.String()
}

func rank(required bool) int {
	if required {
		return 0
	}
	return 1
}

func comment(s string) string {
	return strings.ReplaceAll(strings.Join(strings.Fields(s), " "), "*/", "* /")
}

func upper(s string) string { return strings.ToUpper(s[:1]) + s[1:] }

func singular(s string) string {
	switch {
	case strings.HasSuffix(s, "sses"), strings.HasSuffix(s, "xes"):
		return strings.TrimSuffix(s, "es")
	case strings.HasSuffix(s, "ies"):
		return strings.TrimSuffix(s, "ies") + "y"
	}
	return strings.TrimSuffix(s, "s")
}
