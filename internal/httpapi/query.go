package httpapi

import (
	"encoding/json"
	"maps"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/berthrun/berth/api/op"
)

var (
	integerPattern = regexp.MustCompile(`^-?(0|[1-9][0-9]*)$`)
	numberPattern  = regexp.MustCompile(`^-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?$`)
)

// queryJSON turns a query into a JSON object as the schema of the input says: numbers and booleans become such, a repeated name becomes an array
// where the schema has one, name.key=value and name[key]=value become members of an object. Names that the schema does not know are kept as
// strings, so that decoding refuses them in its own words. Every problem is an errs.InvalidInput with the path of the argument.
func queryJSON(s *op.Schema, query string) (json.RawMessage, error) {
	values, err := url.ParseQuery(query)
	if err != nil {
		return nil, invalid("", "has a query that cannot be read: it must be percent-encoded")
	}
	object := map[string]any{}
	for _, name := range slices.Sorted(maps.Keys(values)) {
		if err := setArgument(object, s, "", name, values[name]); err != nil {
			return nil, err
		}
	}
	return json.Marshal(object)
}

// setArgument puts the values of one query name, or of what is left of it below prefix, into an object with that schema.
func setArgument(object map[string]any, s *op.Schema, prefix, name string, values []string) error {
	member, key, nested := splitName(s, name)
	at := prefix + member
	if !utf8.ValidString(at) {
		return invalid("", "has an argument whose name is not valid UTF-8")
	}
	p := memberOf(s, member)
	if nested && p != nil && p.Type == "object" {
		inner, ok := object[member].(map[string]any)
		if !ok {
			inner = map[string]any{}
			object[member] = inner
		}
		return setArgument(inner, p, at+".", key, values)
	}
	if nested {
		member, at = name, prefix+name
		p = nil
	}
	if _, twice := object[member]; twice {
		return invalid(quoted(at), "is given twice")
	}
	v, err := argument(p, at, values)
	if err != nil {
		return err
	}
	object[member] = v
	return nil
}

// splitName divides name.key and name[key] where name is an object in the schema. A map's keys are taken whole.
func splitName(s *op.Schema, name string) (member, key string, nested bool) {
	if _, free := s.AdditionalProperties.(*op.Schema); free {
		return name, "", false
	}
	i := strings.IndexAny(name, ".[")
	if i <= 0 {
		return name, "", false
	}
	if name[i] == '.' {
		return name[:i], name[i+1:], true
	}
	if !strings.HasSuffix(name, "]") {
		return name, "", false
	}
	return name[:i], name[i+1 : len(name)-1], true
}

func memberOf(s *op.Schema, name string) *op.Schema {
	if p, ok := s.Properties[name]; ok {
		return p
	}
	extra, _ := s.AdditionalProperties.(*op.Schema)
	return extra
}

func argument(p *op.Schema, at string, values []string) (any, error) {
	if p == nil {
		return scalar(nil, at, values[0])
	}
	switch p.Type {
	case "array":
		items := make([]any, len(values))
		for i, v := range values {
			item, err := scalar(p.Items, at+"["+strconv.Itoa(i)+"]", v)
			if err != nil {
				return nil, err
			}
			items[i] = item
		}
		return items, nil
	case "object":
		return nil, invalid(quoted(at), "has members: write it as %s.name=value", quoted(at))
	}
	if len(values) > 1 {
		return nil, invalid(quoted(at), "is given %d times; it takes one value", len(values))
	}
	return scalar(p, at, values[0])
}

func scalar(p *op.Schema, at, v string) (any, error) {
	if !utf8.ValidString(v) {
		return nil, invalid(quoted(at), "is not valid UTF-8")
	}
	kind := ""
	if p != nil {
		kind = p.Type
	}
	switch kind {
	case "integer":
		if !integerPattern.MatchString(v) {
			return nil, invalid(quoted(at), "must be a whole number")
		}
		return json.Number(v), nil
	case "number":
		if !numberPattern.MatchString(v) {
			return nil, invalid(quoted(at), "must be a number")
		}
		return json.Number(v), nil
	case "boolean":
		if v != "true" && v != "false" {
			return nil, invalid(quoted(at), "must be true or false")
		}
		return v == "true", nil
	}
	return v, nil
}

// quoted keeps a name from outside one short line.
func quoted(name string) string {
	if len(name) > 64 {
		name = strings.ToValidUTF8(name[:64], "") + "…"
	}
	if strings.ContainsFunc(name, isControl) {
		return strconv.Quote(name)
	}
	return name
}
