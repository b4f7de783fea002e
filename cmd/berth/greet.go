package main

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
)

// greet prints what a person needs to begin: the address, the first key where one was just made, and a line for each client.
func greet(w io.Writer, r ready) error {
	url, mcp, secret := r.URL, r.MCPURL, r.Key
	key := secret
	var b strings.Builder
	fmt.Fprintf(&b, "\nBerth is ready at %s\n\n", url)
	if secret != "" {
		fmt.Fprintf(&b, "  key           %s\n                (shown this once; make more with: berth keys create --name NAME)\n\n", secret)
	} else {
		key = "YOUR_KEY"
		b.WriteString("  Keys          berth keys create --name NAME makes one\n\n")
	}
	auth := "Bearer " + key
	cursor := map[string]any{"mcpServers": map[string]any{"berth": map[string]any{"url": mcp, "headers": map[string]string{"Authorization": auth}}}}
	code := map[string]any{"name": "berth", "type": "http", "url": mcp, "headers": map[string]string{"Authorization": auth}}
	lines := []struct{ client, line string }{
		{"Claude Code", fmt.Sprintf("claude mcp add --transport http berth %s --header \"Authorization: %s\"", mcp, auth)},
		{"Cursor", "in ~/.cursor/mcp.json: " + compact(cursor)},
		{"VS Code", "code --add-mcp '" + compact(code) + "'"},
		{"Codex", fmt.Sprintf("export BERTH_API_KEY=%s; codex mcp add berth --url %s --bearer-token-env-var BERTH_API_KEY", key, mcp)},
		{"Read only", "the same with " + mcp + "/readonly"},
		{"Shell", fmt.Sprintf("export BERTH_URL=%s BERTH_API_KEY=%s; berth sandboxes list", url, key)},
		{"HTTP", fmt.Sprintf("curl -H \"Authorization: %s\" %s/v1/sandboxes", auth, url)},
	}
	if mcp == "" {
		lines = lines[len(lines)-2:]
	}
	for _, c := range lines {
		fmt.Fprintf(&b, "  %-13s %s\n", c.client, c.line)
	}
	b.WriteString("\n")
	_, err := io.WriteString(w, b.String())
	return err
}

func compact(v any) string {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err) // maps of strings always marshal
	}
	return string(b)
}
