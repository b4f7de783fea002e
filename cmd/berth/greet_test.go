package main

import (
	"strings"
	"testing"
)

// TestGreet shows how the server that begins is reached: by each client, by a shell and by HTTP, with the key where there is a new one.
func TestGreet(t *testing.T) {
	const url, key = "http://127.0.0.1:7070", "berth_sk_x"
	for name, tt := range map[string]struct {
		ready   ready
		has, no []string
	}{
		"the first time": {
			ready{URL: url, MCPURL: url + "/mcp", Key: key},
			[]string{"shown this once", "claude mcp add --transport http berth " + url + "/mcp", "export BERTH_URL=" + url + " BERTH_API_KEY=" + key + ";", "curl -H \"Authorization: Bearer " + key},
			[]string{"YOUR_KEY"},
		},
		"again":       {ready{URL: url, MCPURL: url + "/mcp"}, []string{"berth keys create --name NAME", "BERTH_API_KEY=YOUR_KEY;"}, []string{key}},
		"without MCP": {ready{URL: url, Key: key}, []string{"export BERTH_URL=" + url, "curl "}, []string{"mcp"}},
	} {
		var b strings.Builder
		if err := greet(&b, tt.ready); err != nil {
			t.Fatal(err)
		}
		for _, s := range tt.has {
			if !strings.Contains(b.String(), s) {
				t.Errorf("%s: %q is missing:\n%s", name, s, &b)
			}
		}
		for _, s := range tt.no {
			if strings.Contains(b.String(), s) {
				t.Errorf("%s: there is %q:\n%s", name, s, &b)
			}
		}
	}
}
