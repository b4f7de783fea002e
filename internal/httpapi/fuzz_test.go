package httpapi

import (
	"encoding/json"
	"net/url"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/berthrun/berth/api"
	"github.com/berthrun/berth/api/op"
	"github.com/berthrun/berth/internal/errs"
)

// FuzzQuery holds every query to: an argument error, or a JSON object whose members have the types that the schema gives them.
func FuzzQuery(f *testing.F) {
	for _, q := range []string{
		"", "limit=5&big=true", "state=on&state=off", "labels.a=1&labels[b]=2", "size.width=1e3", "size[height]=007", "labels.=x", ".=1", "[]=1", "labels[=1",
		"size.width.x=1", "labels.a[b]=1", "limit=-0", "limit=99999999999999999999", "a;b=1", "%ff=1", "labels.a=%ff", "size=1", "size.size.size=2",
	} {
		f.Add(q)
	}
	schema := listThings.Info().In
	f.Fuzz(func(t *testing.T, query string) {
		raw, err := queryJSON(schema, query)
		if err != nil {
			if e := errs.From(err); e.Code != errs.InvalidInput || e.Suggestion == "" {
				t.Fatalf("%q is refused with %s", query, e.Code)
			}
			return
		}
		var members map[string]json.RawMessage
		if err := json.Unmarshal(raw, &members); err != nil {
			t.Fatalf("%q became %s: %v", query, raw, err)
		}
		var limit json.Number
		var big bool
		var state []string
		var labels map[string]string
		for name, into := range map[string]any{"limit": &limit, "big": &big, "state": &state, "labels": &labels} {
			if v, ok := members[name]; ok && json.Unmarshal(v, into) != nil {
				t.Fatalf("%q became %s: %s has the wrong type", query, raw, name)
			}
		}
		if err := op.Check(schema, raw); err != nil && errs.CodeOf(err) != errs.InvalidInput {
			t.Fatalf("%q became %s: %v", query, raw, err)
		}
		values, err := url.ParseQuery(query)
		if err != nil {
			t.Fatalf("%q cannot be read and is taken", query)
		}
		if want := values["state"]; len(want) > 0 && !cmp.Equal(want, state) {
			t.Fatalf("state is %q, want %q", state, want)
		}
		for name, vs := range values {
			if key, ok := strings.CutPrefix(name, "labels."); ok && labels[key] != vs[0] {
				t.Fatalf("label %q is %q, want %q", key, labels[key], vs[0])
			}
		}
	})
}

// FuzzSplice holds a spliced body to: invalid exactly where the body was, else the members of both.
func FuzzSplice(f *testing.F) {
	for _, s := range []string{"{}", " { } ", `{"a":1}`, `{"a":1} x`, "[1]", "", "{", `{,}`, `{"a":{"b":[]}}`, "null", `{"a":1}}`} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, body string) {
		var want map[string]any
		bad := json.Unmarshal([]byte(body), &want) != nil || want == nil
		raw, err := splice(map[string]string{"\x00path": "x\"}"}, []byte(body))
		var got map[string]any
		if err != nil || json.Unmarshal(raw, &got) != nil {
			if !bad {
				t.Fatalf("%q became %q: %v", body, raw, err)
			}
			return
		}
		if bad {
			t.Fatalf("%q is no object but became %q", body, raw)
		}
		if want["\x00path"] == nil {
			want["\x00path"] = "x\"}"
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Fatalf("%q became %q:\n%s", body, raw, diff)
		}
	})
}

// TestArgumentNames keeps names out of queries that would be refused as keys, or that a query cannot express.
func TestArgumentNames(t *testing.T) {
	for _, info := range api.All() {
		in := inputOf(info)
		if !in.query {
			continue
		}
		for name := range in.schema.Properties {
			if keyNames[strings.ToLower(name)] || strings.ContainsAny(name, ".[]") {
				t.Errorf("%s has the argument %s in its query", info.Name, name)
			}
		}
	}
}
