package clients

import (
	"bytes"
	"encoding/json"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/berthrun/berth/api"
	"github.com/berthrun/berth/internal/catalog"
	"github.com/berthrun/berth/internal/mcpapi"
)

// listed is what lists.mjs prints.
type listed struct {
	Error   string
	Tools   []string
	Results map[string]struct {
		IsError                          bool
		Code, Reason, Suggestion, Stdout string
		Deleted                          bool
		Details                          map[string]any
	}
}

func inList(t *testing.T, kind, url, key, form string) listed {
	t.Helper()
	stdout, stderr, code := node(t, []string{"BERTH_API_KEY=" + key}, "lists.mjs", kind, url, form)
	var r listed
	if err := json.Unmarshal([]byte(stdout), &r); err != nil || code != 0 || r.Error != "" {
		t.Fatalf("exit %d: %s\n%s", code, r.Error, stderr)
	}
	return r
}

// Every SDK works with a toolset and with the compact list as with the endpoint's own list.
func TestListsOfTools(t *testing.T) {
	needNode(t)
	for name, start := range hosts {
		t.Run(name, func(t *testing.T) {
			url, key := start(t)
			for _, kind := range []string{"v1", "v2", "v2-modern"} {
				t.Run(kind+", toolset", func(t *testing.T) {
					r := inList(t, kind, url+"/x/files/readonly", key, "toolset")
					if !slices.Contains(r.Tools, "read_file") || slices.Contains(r.Tools, "write_file") || slices.Contains(r.Tools, "create_sandbox") {
						t.Errorf("tools %v", r.Tools)
					}
					if got := r.Results["outside"]; !got.IsError || got.Reason != "read_only" {
						t.Errorf("outside of the list: %+v", got)
					}
					if got := r.Results["oldName"]; got.Code != "NOT_FOUND" || !strings.Contains(got.Suggestion, "create_sandbox") {
						t.Errorf("old name: %+v", got)
					}
				})
				t.Run(kind+", compact", func(t *testing.T) {
					r := inList(t, kind, url+"?profile=compact", key, "compact")
					if !slices.Contains(r.Tools, "sandboxes") || !slices.Contains(r.Tools, "files") || slices.Contains(r.Tools, "read_file") {
						t.Errorf("tools %v", r.Tools)
					}
					if got := r.Results["exec"]; got.IsError || got.Stdout != "one\n" {
						t.Errorf("exec: %+v", got)
					}
					if got := r.Results["noAction"]; got.Code != "INVALID_INPUT" || got.Details["path"] != "action" || !strings.Contains(got.Suggestion, "exec") {
						t.Errorf("no action: %+v", got)
					}
					if got := r.Results["wrongInput"]; got.Code != "INVALID_INPUT" || got.Details["path"] != "comand" || !strings.Contains(got.Suggestion, "command?: string") {
						t.Errorf("wrong input: %+v", got)
					}
					if got := r.Results["oldName"]; !strings.Contains(got.Suggestion, "sandboxes with action delete") {
						t.Errorf("old name: %+v", got)
					}
					if got := r.Results["delete"]; got.IsError || !got.Deleted {
						t.Errorf("delete: %+v", got)
					}
				})
			}
		})
	}
}

// The Inspector finds nothing to object to in any list, in either era.
func TestInspectorLists(t *testing.T) {
	needNode(t)
	url, key := startBinary(t)
	for _, path := range []string{"", "/readonly", "/x/all", "/x/files,account", "?profile=compact", "/readonly?profile=compact", "?profile=chatgpt"} {
		for _, era := range []string{"legacy", "modern"} {
			t.Run(path+" "+era, func(t *testing.T) {
				got := inspector[struct{ Tools []struct{ Name string } }](t, url+path, key, "--method", "tools/list", "--strict", "--protocol-era", era)
				if len(got.Tools) == 0 {
					t.Error("no tools")
				}
			})
		}
	}
}

// mcp-remote is how clients that only start programs reach a server.
func TestMCPRemote(t *testing.T) {
	needNode(t)
	url, key := startBinary(t)
	for path, want := range map[string]string{"": `"create_sandbox"`, "/x/files": `"read_file"`, "?profile=compact": `"sandboxes"`} {
		t.Run(path, func(t *testing.T) {
			open, done, err := os.Pipe() // it ends when there is nothing more to read
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _, _ = open.Close(), done.Close() }()
			stdout, stderr, code := nodeWith(t, open, []string{"HOME=" + t.TempDir()}, "node_modules/mcp-remote/dist/client.js", url+path,
				"--allow-http", "--transport", "http-only", "--header", "Authorization: Bearer "+key)
			if all := stdout + stderr; code != 0 || !strings.Contains(all, want) || !strings.Contains(all, "Exiting OK") || strings.Contains(all, "Error requesting tools") {
				t.Errorf("exit %d: %s", code, tail(all, 3000))
			}
		})
	}
}

// The tokens that the documentation states are an estimate; a real tokenizer must not count more.
func TestTokens(t *testing.T) {
	needNode(t)
	lists := []catalog.List{{}, {ReadOnly: true}, {All: true}, {Profile: catalog.Compact}, {Profile: catalog.ChatGPT}}
	var texts []string
	for _, l := range lists {
		texts = append(texts, string(mcpapi.ListJSON(l, api.All())))
	}
	in, err := json.Marshal(texts)
	if err != nil {
		t.Fatal(err)
	}
	stdout, stderr, code := nodeWith(t, bytes.NewReader(in), nil, "tokens.mjs")
	var counted []int
	if err := json.Unmarshal([]byte(stdout), &counted); err != nil || code != 0 || len(counted) != len(lists) {
		t.Fatalf("exit %d: %v %s", code, err, stderr)
	}
	for i, l := range lists {
		tools, tokens := mcpapi.Cost(l, api.All())
		t.Logf("/mcp%s: %d tools, %d tokens, estimated %d", l.Path(), tools, counted[i], tokens)
		if counted[i] > tokens || counted[i] < tokens*7/10 {
			t.Errorf("/mcp%s has %d tokens and is estimated at %d", l.Path(), counted[i], tokens)
		}
	}
}
