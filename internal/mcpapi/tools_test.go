package mcpapi

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/berthrun/berth/api"
	"github.com/berthrun/berth/api/op"
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
		"everything":          {"/mcp", keyAll, []string{"add_note", "list_notes", "wait_note", "burn_notes", "run_command", "read_process_output", "read_file"}},
		"read-only endpoint":  {"/mcp/readonly", keyAll, reads},
		"read-only key":       {"/mcp", keyRead, reads},
		"read-only, both":     {"/mcp/readonly", keyRead, reads},
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
	res := h.request("/mcp", listBody)
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

// everything binds every operation to nothing, for what is listed.
func everything() *op.Registry {
	r := op.NewRegistry()
	add(r, api.CreateSandbox)
	add(r, api.ListSandboxes)
	add(r, api.GetSandbox)
	add(r, api.UpdateSandbox)
	add(r, api.SetSandboxTimeout)
	add(r, api.ExtendSandbox)
	add(r, api.StartSandbox)
	add(r, api.StopSandbox)
	add(r, api.DeleteSandbox)
	add(r, api.Exec)
	add(r, api.StartProcess)
	add(r, api.ListProcesses)
	add(r, api.GetProcess)
	add(r, api.ProcessOutput)
	add(r, api.ProcessInput)
	add(r, api.ProcessSignal)
	add(r, api.ReadFile)
	add(r, api.WriteFile)
	add(r, api.EditFile)
	add(r, api.ListFiles)
	add(r, api.StatFile)
	add(r, api.MakeDirectory)
	add(r, api.MoveFile)
	add(r, api.RemoveFile)
	add(r, api.SearchDocs)
	add(r, api.ReadDoc)
	add(r, api.ListDocs)
	add(r, api.GetAccount)
	add(r, api.ListWorkspaces)
	add(r, api.GetLimits)
	add(r, api.ListCapabilities)
	return r
}

func add[In, Out any](r *op.Registry, d op.Def[In, Out]) {
	bind(r, d, func(context.Context, *In) (*Out, error) { return new(Out), nil })
}

// TestCostOfTheList measures what a model pays for the list of the first storey.
func TestCostOfTheList(t *testing.T) {
	r := everything()
	for _, info := range api.All() {
		if info.Tool != "" && r.Get(info.Name) == nil {
			t.Fatalf("%s is not measured: add it above", info.Name)
		}
	}
	for _, readOnly := range []bool{false, true} {
		var listed []any
		in, all := 0, 0
		for _, tool := range toolsOf(r, readOnly) {
			listed = append(listed, tool.listed)
			in += len(tool.listed.InputSchema.(json.RawMessage)) + len(tool.listed.Description)
		}
		all = chars(encode(listed))
		t.Logf("read-only %v: %d tools, %d characters, about %d tokens; descriptions and inputs alone about %d", readOnly, len(listed), all, all/4, in/4)
		if all/4 > 12_000 {
			t.Errorf("the list costs about %d tokens, want at most 12,000", all/4)
		}
	}
}

func TestInstructions(t *testing.T) {
	for _, readOnly := range []bool{false, true} {
		text := instructions(readOnly)
		if n := len([]rune(text)); n > 2500 {
			t.Errorf("the instructions have %d characters, want at most 2,500", n)
		}
	}
	for _, want := range []string{
		"idempotencyKey", "lost with its reply", "confirmation-required", "confirmation-denied", "confirmation-expired", "requestId", "delete_sandbox", "Leave out keys",
	} {
		if !strings.Contains(instructions(false), want) {
			t.Errorf("the instructions do not speak of %s", want)
		}
	}
	// Every tool that they name exists.
	var tools []string
	for _, info := range api.All() {
		tools = append(tools, info.Tool)
	}
	for _, word := range regexp.MustCompile(`\b[a-z]+(_[a-z]+)+\b`).FindAllString(writing+reading, -1) {
		if !slices.Contains(tools, word) {
			t.Errorf("the instructions name %s, which is no tool", word)
		}
	}
}

// A schema that is only named must be spelled out by the tool that it names.
func TestReferencesLeadSomewhere(t *testing.T) {
	spelled := map[string]bool{}
	n := 0
	for _, tool := range toolsOf(everything(), false) {
		text := string(tool.listed.OutputSchema.(json.RawMessage))
		for _, part := range strings.Split(text, `"As in `)[1:] {
			name, _, _ := strings.Cut(part, ".")
			n++
			if !spelled[name] {
				t.Errorf("%s refers to %s, which is not listed before", tool.op.Tool, name)
			}
		}
		spelled[tool.op.Tool] = true
	}
	if n < 10 {
		t.Errorf("only %d references", n)
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
