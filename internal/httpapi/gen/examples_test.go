package main

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/jsonschema-go/jsonschema"

	"github.com/berthrun/berth/api"
	"github.com/berthrun/berth/api/op"
)

// Every operation's example is what the operation takes and gives, by its own schemas and by somebody else's reader of them.
func TestExamplesAreValid(t *testing.T) {
	names := map[string]bool{}
	for _, i := range api.All() {
		names[i.Name] = true
		in, out := exampleIn(i), exampleOut(i)
		if err := op.Check(i.In, in); err != nil {
			t.Errorf("%s: the request %s: %v", i.Name, in, err)
		}
		for _, tt := range []struct {
			kind   string
			schema *op.Schema
			value  []byte
		}{{"request", i.In, in}, {"answer", i.Out, out}} {
			if err := validate(tt.schema, tt.value); err != nil {
				t.Errorf("%s: the %s %s: %v", i.Name, tt.kind, tt.value, err)
			}
		}
		if strings.Contains(string(out), `"x_0123`) {
			t.Errorf("%s: an id of no kind in %s", i.Name, out)
		}
	}
	for name, members := range given {
		for _, i := range api.All() {
			for _, m := range members {
				if i.Name == name && i.In.Properties[m] == nil {
					t.Errorf("the example of %s gives %s, which it does not take", name, m)
				}
			}
		}
	}
}

func validate(s *op.Schema, value []byte) error {
	raw, err := json.Marshal(s)
	if err != nil {
		return err
	}
	var parsed jsonschema.Schema
	if err := json.Unmarshal(raw, &parsed); err != nil {
		return err
	}
	resolved, err := parsed.Resolve(nil)
	if err != nil {
		return err
	}
	var v any
	if err := json.Unmarshal(value, &v); err != nil {
		return err
	}
	return resolved.Validate(v)
}
