package mcpapi

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/berthrun/berth/api"
	"github.com/berthrun/berth/internal/catalog"
)

var update = flag.Bool("update", false, "write the golden files anew")

const listBody = `{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{}}`

func names(tools []map[string]any) []string {
	list := make([]string, 0, len(tools))
	for _, t := range tools {
		list = append(list, t["name"].(string))
	}
	return list
}

func TestWhatIsListed(t *testing.T) {
	h := newHost(t, nil)
	reads := []string{"list_notes", "wait_note", "read_process_output", "read_file"}
	for name, tt := range map[string]struct {
		path, key string
		want      []string
	}{
		"first session":       {"/mcp", keyAll, []string{"run_command", "read_process_output", "read_file"}},
		"everything":          {"/mcp/x/all", keyAll, []string{"add_note", "list_notes", "wait_note", "burn_notes", "run_command", "read_process_output", "read_file"}},
		"read-only endpoint":  {"/mcp/readonly", keyAll, reads},
		"read-only key":       {"/mcp/x/all", keyRead, reads},
		"read-only, both":     {"/mcp/readonly", keyRead, reads},
		"a toolset":           {"/mcp/x/files", keyAll, []string{"read_file"}},
		"toolsets, twice":     {"/mcp/x/processes,files,files", keyAll, []string{"run_command", "read_process_output", "read_file"}},
		"and read-only":       {"/mcp/x/processes,files/readonly", keyAll, []string{"read_process_output", "read_file"}},
		"with all":            {"/mcp/x/files,all/readonly", keyAll, reads},
		"chatgpt":             {"/mcp?profile=chatgpt", keyAll, []string{"run_command", "read_process_output", "read_file"}},
		"compact":             {"/mcp?profile=compact", keyAll, []string{"notes", "processes", "files"}},
		"compact, read-only":  {"/mcp/readonly?profile=compact", keyAll, []string{"notes", "processes", "files"}},
		"compact toolset":     {"/mcp/x/files?profile=compact", keyAll, []string{"files"}},
		"with a slash behind": {"/mcp/readonly/", keyAll, reads},
	} {
		t.Run(name, func(t *testing.T) {
			got := read(t, h.request(tt.path, listBody, "Authorization", "Bearer "+tt.key))
			if d := cmp.Diff(tt.want, names(got.Result.Tools)); d != "" {
				t.Error(d)
			}
			for _, tool := range got.Result.Tools {
				hints := tool["annotations"].(map[string]any)
				for _, hint := range []string{"readOnlyHint", "destructiveHint", "idempotentHint", "openWorldHint"} {
					if _, ok := hints[hint].(bool); !ok {
						t.Errorf("%s has no %s", tool["name"], hint)
					}
				}
			}
		})
	}
	modernList := `{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{` + modernMeta + `}}`
	if got := read(t, h.request("/mcp", modernList, modern("tools/list", "")...)); got.Result.CacheScope != "private" || got.Result.ResultType != "complete" {
		t.Errorf("cacheScope %q, resultType %q", got.Result.CacheScope, got.Result.ResultType)
	}
}

func TestGoldenList(t *testing.T) {
	h := newHost(t, nil)
	res := h.request("/mcp/x/all", listBody)
	var b, got bytes.Buffer
	if _, err := b.ReadFrom(res.Body); err != nil {
		t.Fatal(err)
	}
	if err := json.Indent(&got, b.Bytes(), "", "  "); err != nil {
		t.Fatal(err)
	}
	const file = "testdata/tools_list.json"
	if *update {
		if err := os.WriteFile(file, got.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(string(want), got.String()); d != "" {
		t.Errorf("the list has changed (run with -update when that is right):\n%s", d)
	}
}

// TestCostOfTheLists measures what a model pays for each list when all that there is is built.
func TestCostOfTheLists(t *testing.T) {
	for name, tt := range map[string]struct {
		list catalog.List
		most int
	}{
		"first session":      {catalog.List{}, 12_000},
		"read-only":          {catalog.List{ReadOnly: true}, 12_000},
		"compact":            {catalog.List{Profile: catalog.Compact}, 6_000},
		"compact, read-only": {catalog.List{Profile: catalog.Compact, ReadOnly: true}, 6_000},
		"chatgpt":            {catalog.List{Profile: catalog.ChatGPT}, 12_000},
	} {
		t.Run(name, func(t *testing.T) {
			tools, tokens := Cost(tt.list, api.All())
			t.Logf("%d tools, about %d tokens", tools, tokens)
			if tokens > tt.most || tools == 0 {
				t.Errorf("the list of %d tools costs about %d tokens, want at most %d", tools, tokens, tt.most)
			}
		})
	}
}

func TestInstructions(t *testing.T) {
	for _, l := range []catalog.List{{}, {ReadOnly: true}, {Profile: catalog.Compact}} {
		text := renaming(l, api.All())(instructions(l, nil))
		if n := len([]rune(text)); n > 2700 {
			t.Errorf("%s: the instructions have %d characters, want at most 2,700", l.Path(), n)
		}
	}
	for _, want := range []string{
		"idempotencyKey", "lost with its reply", "confirmation-required", "confirmation-denied", "confirmation-expired", "requestId", "delete_sandbox", "Leave out keys",
	} {
		if !strings.Contains(writing, want) {
			t.Errorf("the instructions do not speak of %s", want)
		}
	}
	// Every tool that they name exists.
	var tools []string
	for _, info := range api.All() {
		tools = append(tools, info.Tool)
	}
	for _, word := range toolName.FindAllString(writing+reading, -1) {
		if !slices.Contains(tools, word) {
			t.Errorf("the instructions name %s, which is no tool", word)
		}
	}
	// In a compact list they name what that has.
	compact := renaming(catalog.List{Profile: catalog.Compact}, api.All())(writing)
	if left := toolName.FindAllString(compact, -1); len(left) > 0 || !strings.Contains(compact, "sandboxes with action create") {
		t.Errorf("a compact list's instructions name %v", left)
	}
}

// A schema that is only named must be spelled out by the tool that it names, whichever tools a caller sees.
func TestReferencesLeadSomewhere(t *testing.T) {
	for name, l := range map[string]catalog.List{"first session": {}, "all": {All: true}, "read-only": {ReadOnly: true}} {
		spelled := map[string]bool{}
		n := 0
		for _, tool := range listed(l, toolsOf(l, api.All(), everyone), func(s string) string { return s }) {
			text := string(tool.OutputSchema.(json.RawMessage))
			for _, part := range strings.Split(text, `"As in `)[1:] {
				to, _, _ := strings.Cut(part, ".")
				n++
				if !spelled[to] {
					t.Errorf("%s: %s refers to %s, which is not listed before", name, tool.Name, to)
				}
			}
			spelled[tool.Name] = true
		}
		if n < 5 {
			t.Errorf("%s: only %d references", name, n)
		}
	}
}

func FuzzBody(f *testing.F) {
	f.Add([]byte(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"add_note","arguments":{"text":"x"}}}`), "2025-11-25")
	f.Add([]byte(`{"jsonrpc":"2.0","id":"a","method":"tools/list","params":{"_meta":{}}}`), "2026-07-28")
	f.Add([]byte(`[{"jsonrpc":"2.0"}]`), "")
	f.Add([]byte(`{"jsonrpc":"2.0","method":"notifications/x"}`), "2024-11-05")
	f.Add([]byte(`{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"","capabilities":null}}`), "")
	h := newFuzzHost(f)
	f.Fuzz(func(t *testing.T, body []byte, revision string) {
		status, answer := h(body, revision)
		switch {
		case status == 202 && len(answer) == 0:
		case status >= 200 && status < 500 && json.Valid(answer):
		default:
			t.Errorf("status %d, answer %q", status, answer)
		}
	})
}
