package mcpapi

import (
	"bufio"
	"context"
	"encoding/json"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/berthrun/berth/api/op"
	"github.com/berthrun/berth/internal/caller"
	"github.com/berthrun/berth/internal/errs"
)

func visibleToAll(*caller.Caller, op.Info) bool { return true }

func nobody(context.Context, string) (*caller.Caller, error) {
	return nil, errs.E(errs.Unauthenticated, "nobody")
}

func TestErrorsOfTools(t *testing.T) {
	h := newHost(t, nil)
	for name, tt := range map[string]struct {
		path, tool string
		args       any
		key        string
		want       errorBody
		suggestion string // a part of it
	}{
		"from a service": {"/mcp", "add_note", map[string]any{"text": "conflict"}, keyAll, errorBody{
			Code: errs.Busy, Message: "the note is being written", Reason: "locked", RetryAfterMS: 1500, Details: map[string]any{"noteId": "n1"},
		}, "Wait and repeat."},
		"of the inside": {"/mcp", "add_note", map[string]any{"text": "plain"}, keyAll, errorBody{
			Code: errs.Internal, Message: "something failed inside the server",
		}, "requestId"},
		"a panic": {"/mcp", "add_note", map[string]any{"text": "panic"}, keyAll, errorBody{
			Code: errs.Internal, Message: "something failed inside the server",
		}, "requestId"},
		"bad input": {"/mcp", "add_note", map[string]any{"text": 3}, keyAll, errorBody{
			Code: errs.InvalidInput, Message: "text must be a string, not a number", Details: map[string]any{"path": "text"},
		}, "Correct"},
		"unknown": {"/mcp", "make_coffee", nil, keyAll, errorBody{
			Code: errs.NotFound, Message: `there is no tool "make_coffee"`, Reason: "unknown_tool",
		}, "tools/list"},
		"old name": {"/mcp", "command_run", nil, keyAll, errorBody{
			Code: errs.NotFound, Message: `there is no tool "command_run"`, Reason: "unknown_tool",
		}, "Call run_command instead"},
		"old name with action": {"/mcp", "runtime_sandboxes_process", map[string]any{"action": "read"}, keyAll, errorBody{
			Code: errs.NotFound, Message: `there is no tool "runtime_sandboxes_process"`, Reason: "unknown_tool",
		}, "Call read_process_output instead"},
		"old name, not on this deployment": {"/mcp", "runtime_sandboxes_process", map[string]any{"action": "signal"}, keyAll, errorBody{
			Code: errs.NotFound, Message: `there is no tool "runtime_sandboxes_process"`, Reason: "unknown_tool",
		}, "signal_process does this, which this deployment does not have"},
		"old name, compact": {"/mcp?profile=compact", "runtime_exec", nil, keyAll, errorBody{
			Code: errs.NotFound, Message: `there is no tool "runtime_exec"`, Reason: "unknown_tool",
		}, "Call processes with action exec instead"},
		"plain name, compact": {"/mcp?profile=compact", "read_file", nil, keyAll, errorBody{
			Code: errs.NotFound, Message: `there is no tool "read_file"`, Reason: "unknown_tool",
		}, "Call files with action read."},
		"old name, other toolset": {"/mcp/x/files", "command_run", nil, keyAll, errorBody{
			Code: errs.NotFound, Message: `there is no tool "command_run"`, Reason: "unknown_tool",
		}, "Call run_command instead. This connection does not list it; /mcp/x/processes does."},
		"other toolset": {"/mcp/x/files", "run_command", nil, keyAll, errorBody{
			Code: errs.NotFound, Message: "this connection has the toolsets files only, without run_command", Reason: "not_in_toolset",
		}, "/mcp/x/processes"},
		"no action": {"/mcp?profile=compact", "files", map[string]any{"path": "x"}, keyAll, errorBody{
			Code: errs.InvalidInput, Message: "action: is missing or not a string", Reason: "missing", Details: map[string]any{"path": "action"},
		}, "one of read."},
		"unknown action": {"/mcp?profile=compact", "files", map[string]any{"action": "burn"}, keyAll, errorBody{
			Code: errs.InvalidInput, Message: `action: files has no action "burn"`, Reason: "unknown_action", Details: map[string]any{"path": "action"},
		}, "The actions are read."},
		"action twice": {"/mcp?profile=compact", "notes", json.RawMessage(`{"action":"list","action":"burn"}`), keyAll, errorBody{
			Code: errs.InvalidInput, Message: "action is not known; known are: cursor, limit, tag", Details: map[string]any{"path": "action"},
		}, "notes with action list takes, beside action, {"},
		"wrong argument of an action": {"/mcp?profile=compact", "notes", map[string]any{"action": "create", "text": 3}, keyAll, errorBody{
			Code: errs.InvalidInput, Message: "text must be a string, not a number", Details: map[string]any{"path": "text"},
		}, "notes with action create takes, beside action, {"},
		"action of a wider key": {"/mcp?profile=compact", "notes", map[string]any{"action": "burn"}, keyRead, errorBody{
			Code: errs.Forbidden, Message: "this credential may not use notes with action burn", Reason: "insufficient_scope",
		}, "notes:burn"},
		"action that writes, read-only": {"/mcp/readonly?profile=compact", "notes", map[string]any{"action": "burn"}, keyAll, errorBody{
			Code: errs.Forbidden, Message: "this connection is read-only, and notes with action burn changes something", Reason: "read_only",
		}, "/mcp instead"},
		"old name of nothing here": {"/mcp", "reserve_gpus", nil, keyAll, errorBody{
			Code: errs.NotFound, Message: `there is no tool "reserve_gpus"`, Reason: "unknown_tool",
		}, "Berth has no tool for this here"},
		"an operation without a tool": {"/mcp", "notes.hidden", nil, keyAll, errorBody{
			Code: errs.NotFound, Message: `there is no tool "notes.hidden"`, Reason: "unknown_tool",
		}, "tools/list"},
		"not visible": {"/mcp", "burn_notes", nil, keyRead, errorBody{
			Code: errs.Forbidden, Message: "this credential may not use burn_notes", Reason: "insufficient_scope",
		}, "notes:burn"},
		"not here": {"/mcp/readonly", "burn_notes", nil, keyAll, errorBody{
			Code: errs.Forbidden, Message: "this connection is read-only, and burn_notes changes something", Reason: "read_only",
		}, "/mcp instead"},
	} {
		t.Run(name, func(t *testing.T) {
			got := toolError(t, h.tool(tt.path, tt.tool, tt.args, "Authorization", "Bearer "+tt.key))
			if d := cmp.Diff(tt.want, got, cmpopts.IgnoreFields(errorBody{}, "RequestID", "Suggestion")); d != "" {
				t.Error(d)
			}
			if !strings.Contains(got.Suggestion, tt.suggestion) {
				t.Errorf("suggestion %q, want %q in it", got.Suggestion, tt.suggestion)
			}
		})
	}
}

func TestRefusedCallsRunNothing(t *testing.T) {
	h := newHost(t, nil)
	h.tool("/mcp/readonly", "burn_notes", nil)
	h.tool("/mcp", "burn_notes", nil, "Authorization", "Bearer "+keyRead)
	h.tool("/mcp", "kill_sandbox", nil)
	if calls, _, _ := h.seen(); len(calls) != 0 {
		t.Errorf("%d calls went down the path", len(calls))
	}
}

func TestWhoCalls(t *testing.T) {
	h := newHost(t, nil)
	modernCall := `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{` + modernMeta + `,"name":"list_notes"}}`
	for name, tt := range map[string]struct {
		path, body string
		headers    []string
		client     string
		deadline   time.Duration
		readOnly   bool
	}{
		"full": {
			"/mcp", `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"list_notes"}}`,
			[]string{"User-Agent", "claude-code/2.1 (cli)"},
			"claude-code/2.1 (cli)", 75 * time.Second, false,
		},
		"of the SDK": {
			"/mcp", `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"list_notes"}}`,
			[]string{"User-Agent", "node"},
			"node", 45 * time.Second, false,
		},
		"read-only": {
			"/mcp/readonly", `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"list_notes"}}`,
			[]string{"User-Agent", "Cursor/3.0\x7f"},
			"Cursor/3.0", 45 * time.Second, true,
		},
		"names itself": {"/mcp", modernCall, append(modern("tools/call", "list_notes"), "User-Agent", "node"), "probe/3", 75 * time.Second, false},
	} {
		t.Run(name, func(t *testing.T) {
			ua := tt.headers
			if name == "read-only" {
				ua = []string{"User-Agent", "Cursor/3.0"}
			}
			res := h.request(tt.path, tt.body, ua...)
			result[listOut](t, read(t, res))
			calls, callers, _ := h.seen()
			got, opts := callers[len(callers)-1], calls[len(calls)-1]
			want := caller.Caller{
				OrgID: "org_1", PrincipalID: keyAll, KeyID: keyAll, Face: caller.FaceMCP, Client: tt.client, ReadOnly: tt.readOnly,
				SourceIP: "127.0.0.1", RequestID: res.Header.Get("X-Request-Id"),
			}
			if d := cmp.Diff(want, got); d != "" {
				t.Error(d)
			}
			if opts.Deadline != tt.deadline || !opts.InFlight {
				t.Errorf("options %+v, want a deadline of %v", opts, tt.deadline)
			}
		})
	}
}

func waitBody(token string) string {
	return `{"jsonrpc":"2.0","id":5,"method":"tools/call","params":{"name":"wait_note","_meta":{"progressToken":` + token + `}}}`
}

func TestProgress(t *testing.T) {
	h := newHost(t, func(c *Config) { c.ProgressEvery = time.Millisecond })
	res := h.request("/mcp", waitBody(`"tok"`)) // returns with the first event
	if kind := res.Header.Get("Content-Type"); kind != "text/event-stream" || res.Header.Get("X-Accel-Buffering") != "no" {
		t.Fatalf("headers %v", res.Header)
	}
	lines := bufio.NewScanner(res.Body)
	var events []string
	for lines.Scan() {
		data, ok := strings.CutPrefix(lines.Text(), "data: ")
		if !ok {
			continue
		}
		if events = append(events, data); len(events) == 3 {
			h.release <- nil
		}
	}
	for i, want := range []string{`"progress":1,`, `"progress":2,`, `"progress":3,`} {
		if !strings.Contains(events[i], want) || !strings.Contains(events[i], `"progressToken":"tok"`) {
			t.Errorf("event %d is %s", i, events[i])
		}
	}
	if last := events[len(events)-1]; !strings.HasPrefix(last, `{"jsonrpc":"2.0","id":5,"result":`) || !strings.Contains(last, `"waited":true`) {
		t.Errorf("the last event is %s", last)
	}
}

func TestNoProgressWithoutAskingOrForQuickCalls(t *testing.T) {
	h := newHost(t, func(c *Config) { c.ProgressEvery = time.Hour })
	for name, tt := range map[string]struct {
		body    string
		headers []string
	}{
		"quick":                 {waitBody("4"), nil},
		"token is an object":    {waitBody("{}"), nil},
		"stream is not allowed": {waitBody("4"), []string{"Accept", "application/json"}},
		"no token":              {`{"jsonrpc":"2.0","id":5,"method":"tools/call","params":{"name":"wait_note"}}`, nil},
	} {
		t.Run(name, func(t *testing.T) {
			go func() { <-h.entered; h.release <- nil }()
			res := h.request("/mcp", tt.body, tt.headers...)
			if kind := res.Header.Get("Content-Type"); kind != "application/json" {
				t.Errorf("Content-Type %q", kind)
			}
			result[waitOut](t, read(t, res))
		})
	}
}

func TestDisconnectEndsTheWaiting(t *testing.T) {
	h := newHost(t, func(c *Config) { c.ProgressEvery = time.Millisecond })
	for name, body := range map[string]string{
		"plain":         `{"jsonrpc":"2.0","id":5,"method":"tools/call","params":{"name":"wait_note"}}`,
		"with progress": waitBody("1"),
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			req, _ := http.NewRequestWithContext(ctx, http.MethodPost, h.url+"/mcp", strings.NewReader(body))
			req.Header.Set("Authorization", "Bearer "+keyAll)
			req.Header.Set("Content-Type", "application/json")
			go func() {
				if res, err := http.DefaultClient.Do(req); err == nil {
					_ = res.Body.Close()
				}
			}()
			<-h.entered
			cancel()
			select {
			case err := <-h.left:
				if err != context.Canceled {
					t.Errorf("the context ended with %v", err)
				}
			case <-time.After(10 * time.Second):
				t.Fatal("the call went on")
			}
		})
	}
}
