package cli

import (
	"bytes"
	"strings"
	"testing"
)

const request = `{"action":"compute:sandboxes:delete","arguments":{"note":"a\u2028b"},"cost":{"b":2,"a":1},"expires":"2026-11-30T20:00:00Z","key":"key_a","nonce":"n",` +
	`"operation":"sandboxes.delete","organization":"org_a","principal":"key_a","resource":{"id":"sbx_a","kind":"sandbox","name":"safe\u202e\u3164","organization":"org_a",` +
	`"version":3,"workspace":"ws_a"},"uses":{"build":"bld_a"},"v":1,"workspace":"ws_a"}`

// A request is shown whole, or not at all; what is not seen in a name or an argument is.
func TestReadAsked(t *testing.T) {
	a, err := readAsked(request)
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	c := &command{app: &app{stderr: &out}}
	if err := c.renderAsked(a); err != nil {
		t.Fatal(err)
	}
	for _, part := range []string{"sandboxes.delete", "sbx_a", `safe\u202e\u3164`, `a\u2028b`, "1 of a", "build bld_a", "key_a"} {
		if !strings.Contains(out.String(), part) {
			t.Errorf("%q is not in %q", part, out.String())
		}
	}
	for name, other := range map[string]string{
		"another form":           strings.Replace(request, `"v":1`, `"v":2`, 1),
		"no form":                strings.Replace(request, `"v":1`, `"w":1`, 1),
		"more than is known":     strings.Replace(request, `"v":1`, `"v":1,"also":"delete all"`, 1),
		"more of the resource":   strings.Replace(request, `"version":3`, `"version":3,"and":"another"`, 1),
		"something other than a": `[]`,
	} {
		if a, err := readAsked(other); err == nil {
			t.Errorf("%s: %+v", name, a)
		}
	}
}
