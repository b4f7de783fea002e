// Package policy owns what an organization decides beyond the scopes of its keys: its policies in Cedar, the schema that is generated from the registry, the
// index by which a decision stays cheap, the rules that are shipped, the versions in the database, and the operations on them.
//
// It does not own scopes, keys or the wall around what is listed: the control plane asks identity first and this package then. The parts of cedar-go that are
// experimental are used in experimental.go alone.
package policy

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	cedar "github.com/cedar-policy/cedar-go"
	"github.com/cedar-policy/cedar-go/ast"
	"github.com/cedar-policy/cedar-go/types"

	"github.com/berthrun/berth/api"
)

const (
	mostPolicies = 2000
	// deepest is how far brackets may be nested: the parser goes down with them.
	deepest = 64

	annotationID      = "id"
	annotationConfirm = "confirm"
)

// Set is the policies of an organization and those that are shipped, ready to decide.
type Set struct {
	schema *Schema
	index  index
}

// entry is one policy of a set.
type entry struct {
	id      types.PolicyID
	policy  *cedar.Policy
	number  int // in the order of the text; shipped ones come first, below 0
	confirm string
	shipped bool
}

// Default is the text of an organization that has put no policies: scopes alone decide.
func Default() string {
	return string(cedar.NewPolicyFromAST(ast.Permit()).MarshalCedar()) + "\n"
}

// Load makes a set of a text that was checked when it was put. It fails only where the text cannot be read.
func (s *Schema) Load(text string) (*Set, error) {
	all, problems := s.read(text)
	if len(problems) > 0 {
		return nil, fmt.Errorf("read policies: line %d: %s", problems[0].Line, problems[0].Reason)
	}
	set := &Set{schema: s}
	for _, e := range s.shipped() {
		set.index.add(s, e)
	}
	for _, e := range all {
		set.index.add(s, e)
	}
	return set, nil
}

// Check says what is wrong with a text: that it cannot be read, or what is not as the schema has it. What is written wrong hides all other problems.
func (s *Schema) Check(text string) []api.PolicyProblem {
	all, problems := s.read(text)
	if len(problems) > 0 {
		return problems
	}
	ids := map[types.PolicyID]bool{}
	for _, e := range all {
		at := e.policy.Position()
		add := func(reason string) {
			p := api.PolicyProblem{Line: at.Line, Column: at.Column, Policy: string(e.id), Reason: reason}
			if !slices.Contains(problems, p) {
				problems = append(problems, p)
			}
		}
		if ids[e.id] {
			add("there is another policy with this @id")
		}
		ids[e.id] = true
		if strings.HasPrefix(string(e.id), shippedPrefix) {
			add("an @id that begins with " + shippedPrefix + " is for policies that are shipped")
		}
		for _, reason := range s.confirms(e) {
			add(reason)
		}
		for _, reason := range s.strict(e.policy) {
			add(reason)
		}
	}
	return problems
}

// confirms says what is wrong with how a policy asks for a person's approval.
func (s *Schema) confirms(e *entry) (reasons []string) {
	why, annotated := e.policy.Annotations()[annotationConfirm]
	lifted, read := confirmedIn(e.policy)
	switch {
	case !annotated && read:
		reasons = append(reasons, "context.confirmed is read, but nobody will be asked: only a forbid with @confirm(\"why\") may read it")
	case !annotated:
	case e.policy.Effect() == cedar.Permit:
		reasons = append(reasons, "@confirm stands at a forbid, not at a permit")
	default:
		if strings.TrimSpace(string(why)) == "" {
			reasons = append(reasons, "@confirm needs a text that says why a person is to approve, such as @confirm(\"deletes are approved\")")
		}
		if !lifted {
			reasons = append(reasons, "a forbid with @confirm needs unless { context.confirmed }, else no approval lifts it")
		}
	}
	return reasons
}

// onType is the part of what the validator says that it says again for every type that a policy may be about.
var onType = regexp.MustCompile(` on entity type ` + "`([A-Za-z]+)`")

// summary gives errors of one policy sorted, each once: what is wrong with many types is told of the first of them, and what only follows from
// another error is left out.
func summary(all []error) (reasons []string) {
	types := map[string][]string{}
	for _, err := range all {
		text := err.Error()
		of := ""
		if m := onType.FindStringSubmatch(text); m != nil {
			of = m[1]
		}
		text = onType.ReplaceAllString(text, "\x00")
		if !slices.Contains(types[text], of) {
			types[text] = append(types[text], of)
		}
	}
	for text, of := range types {
		slices.Sort(of)
		text = strings.ReplaceAll(text, "\x00", " on entity type `"+of[0]+"`")
		if n := len(of) - 1; n > 0 {
			text += fmt.Sprintf(" (nor of %d other types)", n)
		}
		reasons = append(reasons, text)
	}
	slices.Sort(reasons)
	const follows = "unable to find an applicable action"
	rest := slices.DeleteFunc(slices.Clone(reasons), func(r string) bool { return strings.HasPrefix(r, follows) })
	if len(rest) > 0 {
		return rest
	}
	return reasons
}

// where finds the place in what the parser says of an error, and the rest of what it says.
var where = regexp.MustCompile(`(?:parse error at )?<input>:(\d+):(\d+):? ?`)

// read takes a text apart. Problems are those of its form.
func (s *Schema) read(text string) ([]*entry, []api.PolicyProblem) {
	if line, column, deep := tooDeep(text); deep {
		return nil, []api.PolicyProblem{{Line: line, Column: column, Reason: fmt.Sprintf("brackets are nested more than %d deep", deepest)}}
	}
	list, err := cedar.NewPolicyListFromBytes("", []byte(text))
	if err != nil {
		p := api.PolicyProblem{Line: 1, Column: 1, Reason: strings.TrimPrefix(err.Error(), "parser error: ")}
		if m := where.FindStringSubmatchIndex(p.Reason); m != nil {
			p.Line, _ = strconv.Atoi(p.Reason[m[2]:m[3]])
			p.Column, _ = strconv.Atoi(p.Reason[m[4]:m[5]])
			p.Line, p.Column = max(p.Line, 1), max(p.Column, 1) // of text that is no UTF-8 it is 0
			p.Reason = p.Reason[:m[0]] + p.Reason[m[1]:]
		}
		return nil, []api.PolicyProblem{p}
	}
	if len(list) > mostPolicies {
		at := list[mostPolicies].Position()
		return nil, []api.PolicyProblem{{Line: at.Line, Column: at.Column, Reason: fmt.Sprintf("there are more than %d policies", mostPolicies)}}
	}
	all := make([]*entry, len(list))
	for i, p := range list {
		notes := p.Annotations()
		e := &entry{id: types.PolicyID("policy" + strconv.Itoa(i)), policy: p, number: i, confirm: string(notes[annotationConfirm])}
		if id := notes[annotationID]; id != "" {
			e.id = types.PolicyID(id)
		}
		all[i] = e
	}
	return all, nil
}

// tooDeep says where brackets are nested too deep, outside of strings and comments.
func tooDeep(text string) (line, column int, deep bool) {
	depth, quoted, comment := 0, false, false
	line, column = 1, 0
	for i := 0; i < len(text); i++ {
		column++
		switch c := text[i]; {
		case c == '\n':
			line, column, comment = line+1, 0, false
		case comment:
		case quoted:
			if c == '\\' {
				i++
				column++
			}
			quoted = c != '"'
		case c == '"':
			quoted = true
		case c == '/' && i+1 < len(text) && text[i+1] == '/':
			comment = true
		case c == '(' || c == '[' || c == '{':
			if depth++; depth > deepest {
				return line, column, true
			}
		case c == ')' || c == ']' || c == '}':
			depth--
		}
	}
	return 0, 0, false
}
