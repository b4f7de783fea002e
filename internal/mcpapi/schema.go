package mcpapi

import (
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/berthrun/berth/api/op"
)

func raw(s *op.Schema) json.RawMessage { return encode(s) }

// referFrom is how many characters of schema are worth a reference.
const referFrom = 200

// lean gives an output schema with what a model and a client's validation need of it, at a price for each word: types and descriptions, no bounds, and
// an object that an earlier tool of the list has spelled out is only named, and what a member is, is said once. What a client validates stays true, because outputs are open.
func lean(s *op.Schema, name string, spelled map[string]string, conceals func(string) bool) *op.Schema {
	c := op.Schema{Type: s.Type, Description: s.Description, AdditionalProperties: s.AdditionalProperties, ContentEncoding: s.ContentEncoding}
	if s.Items != nil {
		c.Items = leanMember(s.Items, name, spelled, conceals)
	}
	if values, ok := s.AdditionalProperties.(*op.Schema); ok {
		c.AdditionalProperties = leanMember(values, name, spelled, conceals)
	}
	if len(s.Properties) > 0 {
		c.Properties = make(map[string]*op.Schema, len(s.Properties))
		for _, member := range s.Order {
			if conceals(member) {
				continue
			}
			p := leanMember(s.Properties[member], name, spelled, conceals)
			// What a member of this name is was said by an earlier tool.
			if key := member + ": " + p.Description; p.Description != "" && p.Type != "object" {
				if first, ok := spelled[key]; ok && first != name {
					p.Description = ""
				} else {
					spelled[key] = name
				}
			}
			c.Properties[member] = p
		}
	}
	return &c
}

func leanMember(s *op.Schema, name string, spelled map[string]string, conceals func(string) bool) *op.Schema {
	if s.Type == "object" && len(s.Properties) > 0 {
		bare := *s
		bare.Description = ""
		key := string(raw(&bare))
		if first, ok := spelled[key]; ok && first != name {
			return &op.Schema{Type: "object", Description: "As in " + first + "."}
		}
		if len(key) >= referFrom {
			spelled[key] = name
		}
	}
	return lean(s, name, spelled, conceals)
}

// mergeInputs gives the input of a tool that does several operations: action, and every member that one of them takes. What a member may be is said as
// far as all of them agree; each operation's own schema decides.
func mergeInputs(actions []action) *op.Schema {
	s := &op.Schema{Type: "object", Properties: map[string]*op.Schema{}, Required: []string{"action"}, AdditionalProperties: false, Order: []string{"action"}}
	verb := &op.Schema{Type: "string"}
	s.Properties["action"] = verb
	for _, a := range actions {
		verb.Enum = append(verb.Enum, a.verb)
		for _, member := range a.info.In.Order {
			p := a.info.In.Properties[member]
			if have := s.Properties[member]; have != nil {
				p = merge(have, p)
			} else {
				s.Order = append(s.Order, member)
			}
			s.Properties[member] = p
		}
	}
	return s
}

// merge gives what two schemas of one member agree on.
func merge(a, b *op.Schema) *op.Schema {
	if reflect.DeepEqual(a, b) {
		return a
	}
	if a.Type != b.Type {
		return &op.Schema{}
	}
	c := &op.Schema{
		Type: a.Type, Description: agreed(a.Description, b.Description), Pattern: agreed(a.Pattern, b.Pattern), Format: agreed(a.Format, b.Format),
		ContentEncoding: agreed(a.ContentEncoding, b.ContentEncoding),
	}
	if len(a.Enum) > 0 && len(b.Enum) > 0 {
		c.Enum = slices.Clone(a.Enum)
		for _, v := range b.Enum {
			if !slices.Contains(c.Enum, v) {
				c.Enum = append(c.Enum, v)
			}
		}
	}
	if a.Items != nil && b.Items != nil {
		c.Items = merge(a.Items, b.Items)
	}
	return c
}

func agreed(a, b string) string {
	if a == b {
		return a
	}
	return ""
}

// terse leaves out what the members of a compact list can do without: descriptions of what their names say, bounds and patterns. The error of a call that
// breaks one names it.
func terse(s *op.Schema) *op.Schema {
	c := &op.Schema{Type: s.Type, Description: s.Description, Enum: s.Enum, ContentEncoding: s.ContentEncoding, Required: s.Required, Order: s.Order}
	if s.Items != nil {
		c.Items = terse(s.Items)
	}
	if len(s.Properties) > 0 {
		c.Properties = map[string]*op.Schema{}
		for name, p := range s.Properties {
			c.Properties[name] = terse(p)
		}
	}
	return c
}

// brief says in a line what an operation takes, such as {sandboxId: string, by: string, idempotencyKey?: string}.
func brief(s *op.Schema) string {
	parts := make([]string, 0, len(s.Order))
	for _, name := range s.Order {
		mark := "?"
		if slices.Contains(s.Required, name) {
			mark = ""
		}
		parts = append(parts, name+mark+": "+briefType(s.Properties[name]))
	}
	return "{" + strings.Join(parts, ", ") + "}"
}

func briefType(s *op.Schema) string {
	switch {
	case len(s.Enum) > 0:
		return strings.Join(s.Enum, "|")
	case s.Type == "array":
		return briefType(s.Items) + "[]"
	case len(s.Properties) > 0:
		return brief(s)
	case s.Minimum != nil && s.Maximum != nil:
		return fmt.Sprintf("%s %s to %s", s.Type, number(*s.Minimum), number(*s.Maximum))
	case s.Pattern != "" && len(s.Pattern) <= 40:
		return s.Type + " " + s.Pattern
	case s.Type == "":
		return "any"
	}
	return s.Type
}

func number(n float64) string { return strconv.FormatFloat(n, 'f', -1, 64) }
