package api

import (
	"strings"
	"testing"

	"github.com/berthrun/berth/api/op"
)

// TestPatternsAreSaidInWords gives every member that has a pattern a value that does not match: no caller is answered with an expression.
func TestPatternsAreSaidInWords(t *testing.T) {
	tried := map[string]bool{}
	var walk func(where string, s *op.Schema)
	walk = func(where string, s *op.Schema) {
		if s == nil {
			return
		}
		if s.Pattern != "" {
			tried[s.Pattern] = true
			err := op.Check(&op.Schema{Type: "string", Pattern: s.Pattern}, []byte(`"no such value !"`))
			if err == nil || strings.ContainsAny(err.Error(), `^$\`) {
				t.Errorf("%s, which takes %s: %v", where, s.Pattern, err)
			}
		}
		for name, p := range s.Properties {
			walk(where+"."+name, p)
		}
		walk(where+"[]", s.Items)
	}
	for _, info := range All() {
		walk(info.Name, info.In)
	}
	for _, info := range AllStreams() {
		walk(info.Name, info.In)
	}
	if len(tried) < 10 {
		t.Errorf("%d patterns", len(tried))
	}
}
