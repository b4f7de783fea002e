package calltest

import (
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/berthrun/berth/api/op"
)

var (
	names   = regexp.MustCompile(`^[a-z][A-Za-z]*\.[a-z][A-Za-z]*$`)
	tools   = regexp.MustCompile(`^[a-z][a-z_]{0,62}$`)
	verbs   = regexp.MustCompile(`^[a-z][A-Za-z_]{0,30}$`)
	actions = regexp.MustCompile(`^[a-z]+(:[a-zA-Z]+){1,2}$`)
	ids     = regexp.MustCompile(`^\^([a-z]+)_\[a-z0-9\]\{20\}\$$`)
)

// idPrefix tells whether a pattern is that of an id, and of which kind.
func idPrefix(pattern string) (string, bool) {
	m := ids.FindStringSubmatch(pattern)
	if m == nil {
		return "", false
	}
	return m[1], true
}

// asksMuch are the reads whose question is too long for an address.
var asksMuch = map[string]bool{"policies.validate": true, "policies.test": true}

// problems are what is wrong with a definition.
func problems(i op.Info) (all []string) {
	bad := func(format string, args ...any) { all = append(all, fmt.Sprintf(format, args...)) }
	if !names.MatchString(i.Name) || !actions.MatchString(i.Action) || (i.Tool != "" && !tools.MatchString(i.Tool)) {
		bad("name %q, action %q or tool %q is malformed", i.Name, i.Action, i.Tool)
	}
	if i.Verb != "" && (i.Tool == "" || !verbs.MatchString(i.Verb) || i.In.Properties["action"] != nil) {
		bad("verb %q is malformed, has no tool, or the input has a member action", i.Verb)
	}
	if i.Title == "" || i.Toolset == "" || !strings.HasSuffix(i.Doc, ".") {
		bad("title, toolset or documentation is missing")
	}
	if i.Hints.Has(op.Read) && i.Method != "GET" && !asksMuch[i.Name] || i.Hints.Has(op.Write) && i.Method == "GET" {
		bad("%s does not fit what it does", i.Method)
	}
	for _, p := range i.PathParams() {
		if !slices.Contains(i.In.Required, p) {
			bad("{%s} of the route is no required member", p)
		}
	}
	if i.In.Type != "object" || i.Out.Type != "object" {
		bad("input and output are not objects")
	}
	_, keyed := i.In.Properties["idempotencyKey"]
	_, stamped := i.Out.Properties["idempotencyKey"]
	_, replayed := i.Out.Properties["replayed"]
	if write := i.Hints.Has(op.Write); keyed != write || stamped != write || replayed != write {
		bad("a write takes an idempotencyKey and gives it back with replayed, a read does neither")
	}
	all = append(all, inSchema(i.In, "input", false)...)
	all = append(all, inSchema(i.Out, "output", true)...)
	return append(all, written(i.In, "input")...)
}

// inSchema walks a schema. Outputs are open so that they can grow; inputs are closed.
func inSchema(s *op.Schema, at string, output bool) (all []string) {
	bad := func(format string, args ...any) { all = append(all, at+": "+fmt.Sprintf(format, args...)) }
	if s.Type == "" && !s.Nullable {
		bad("has no type")
	}
	if s.Nullable && !output {
		bad("may be null in an input")
	}
	if output && len(s.Enum) > 0 {
		bad("an output has an enum")
	}
	if output && s.AdditionalProperties == false {
		bad("an output is closed")
	}
	if !output && s.Type == "object" && s.AdditionalProperties != false {
		if _, isMap := s.AdditionalProperties.(*op.Schema); !isMap {
			bad("an input is open")
		}
	}
	if len(s.Order) != len(s.Properties) {
		bad("%d properties are declared, %d are there", len(s.Order), len(s.Properties))
	}
	for _, name := range slices.Sorted(maps.Keys(s.Properties)) {
		all = append(all, inSchema(s.Properties[name], at+"."+name, output)...)
	}
	if s.Items != nil {
		all = append(all, inSchema(s.Items, at+"[]", output)...)
	}
	if of, ok := s.AdditionalProperties.(*op.Schema); ok {
		all = append(all, inSchema(of, at+"{}", output)...)
	}
	return all
}

// written looks at the schema as clients get it: without the words that many of them do not understand.
func written(s *op.Schema, at string) (all []string) {
	b, err := json.Marshal(s)
	if err != nil {
		return []string{at + ": " + err.Error()}
	}
	for _, word := range []string{`"$ref"`, `"oneOf"`, `"anyOf"`, `"allOf"`, `"not":`, `"null"`, `"type":[`} {
		if strings.Contains(string(b), word) {
			all = append(all, at+": has "+word)
		}
	}
	return all
}

// spoiled makes inputs from a good one, each of which has one thing wrong.
func spoiled(t *testing.T, s *op.Schema, good string) (all []string) {
	t.Helper()
	members := object(t, good)
	with := func(name, value string) string {
		changed := maps.Clone(members)
		changed[name] = json.RawMessage(value)
		return text(t, changed)
	}
	all = append(all, with("noSuchMember", `1`), good+" 1", good[:len(good)-1], `[]`, `null`, `"text"`)
	for _, name := range sorted(members) {
		value := string(members[name])
		rest := strings.TrimSuffix(good, "}")
		all = append(all, rest+`,`+text(t, name)+`:`+value+`}`) // twice
		if variant := strings.ToUpper(name); variant != name {
			changed := maps.Clone(members)
			delete(changed, name)
			changed[variant] = members[name]
			all = append(all, text(t, changed))
		}
	}
	for _, name := range s.Required {
		changed := maps.Clone(members)
		delete(changed, name)
		all = append(all, text(t, changed))
	}
	for _, name := range s.Order {
		p := s.Properties[name]
		for _, value := range map[string][]string{
			"string":  {`1`, `true`, `{}`, `null`},
			"integer": {`"1"`, `1.5`, `[]`, `null`, `1e400`},
			"number":  {`"1"`, `[]`, `null`},
			"boolean": {`0`, `"true"`, `null`},
			"array":   {`{}`, `"a"`, `null`},
			"object":  {`[]`, `"a"`, `null`},
		}[p.Type] {
			all = append(all, with(name, value))
		}
		if p.Pattern != "" {
			all = append(all, with(name, `"\u0000 /../ \n"`))
		}
		if len(p.Enum) > 0 {
			all = append(all, with(name, `"noSuchWord"`))
		}
		if p.Minimum != nil {
			all = append(all, with(name, fmt.Sprint(*p.Minimum-1)))
		}
		if p.Maximum != nil {
			all = append(all, with(name, fmt.Sprintf("%.0f", *p.Maximum+1)))
		}
		if p.MaxLength != nil {
			all = append(all, with(name, text(t, strings.Repeat("a", *p.MaxLength+1))))
		}
	}
	return all
}
