package mcpapi

import (
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/berthrun/berth/internal/catalog"
)

const modernMeta = `"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{},"io.modelcontextprotocol/clientInfo":{"name":"probe","version":"3"}}`

func modern(method, name string) []string {
	return []string{"Mcp-Protocol-Version", "2026-07-28", "Mcp-Method", method, "Mcp-Name", name}
}

func TestRules(t *testing.T) {
	call := `{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"add_note","arguments":{"text":"x"}}}`
	modernCall := `{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{` + modernMeta + `,"name":"add_note","arguments":{"text":"x"}}}`
	h := newHost(t, func(c *Config) { c.MaxBody = 4096 })
	for name, tt := range map[string]struct {
		body    string
		headers []string
		status  int
		code    int // 0: no error
	}{
		"call":                     {call, nil, 200, 0},
		"no revision":              {call, []string{"Mcp-Protocol-Version", ""}, 200, 0},
		"oldest revision":          {call, []string{"Mcp-Protocol-Version", "2024-11-05"}, 200, 0},
		"string id":                {strings.Replace(call, `"id":7`, `"id":"a\"b"`, 1), nil, 200, 0},
		"not JSON":                 {`{"jsonrpc":`, nil, 400, codeParse},
		"empty":                    {``, nil, 400, codeParse},
		"not UTF-8":                {"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"\xff\"}", nil, 400, codeParse},
		"trailing data":            {call + "1", nil, 400, codeParse},
		"wrong content type":       {call, []string{"Content-Type", "text/plain"}, 415, codeParse},
		"no content type":          {call, []string{"Content-Type", ""}, 415, codeParse},
		"charset":                  {call, []string{"Content-Type", "application/json; charset=utf-8"}, 200, 0},
		"accepts anything":         {call, []string{"Accept", "*/*"}, 200, 0},
		"accepts only JSON":        {call, []string{"Accept", "application/json"}, 200, 0},
		"accepts only pictures":    {call, []string{"Accept", "image/png"}, 406, codeInvalidRequest},
		"too large":                {strings.Replace(call, "x", strings.Repeat("x", 5000), 1), nil, 413, codeInvalidRequest},
		"batch":                    {`[` + call + `]`, nil, 400, codeInvalidRequest},
		"batch of old":             {`[` + call + `]`, []string{"Mcp-Protocol-Version", "2025-03-26"}, 400, codeInvalidRequest},
		"no object":                {`"hello"`, nil, 400, codeInvalidRequest},
		"wrong version of RPC":     {strings.Replace(call, "2.0", "1.0", 1), nil, 400, codeInvalidRequest},
		"null id":                  {strings.Replace(call, `"id":7`, `"id":null`, 1), nil, 400, codeInvalidRequest},
		"fraction as id":           {strings.Replace(call, `"id":7`, `"id":7.5`, 1), nil, 400, codeInvalidRequest},
		"no method":                {`{"jsonrpc":"2.0","id":1}`, nil, 400, codeInvalidRequest},
		"method in capitals":       {`{"jsonrpc":"2.0","id":1,"Method":"ping"}`, nil, 400, codeInvalidRequest},
		"method is a number":       {`{"jsonrpc":"2.0","id":1,"method":3}`, nil, 400, codeInvalidRequest},
		"params is a list":         {`{"jsonrpc":"2.0","id":1,"method":"ping","params":[1]}`, nil, 400, codeInvalidParams},
		"meta is a list":           {`{"jsonrpc":"2.0","id":1,"method":"ping","params":{"_meta":[]}}`, nil, 400, codeInvalidParams},
		"unknown method":           {`{"jsonrpc":"2.0","id":1,"method":"tools/burn"}`, nil, 200, codeNotFound},
		"call without id":          {`{"jsonrpc":"2.0","method":"tools/list"}`, nil, 400, codeInvalidRequest},
		"notification with id":     {`{"jsonrpc":"2.0","id":1,"method":"notifications/initialized"}`, nil, 400, codeInvalidRequest},
		"no params":                {`{"jsonrpc":"2.0","id":1,"method":"tools/call"}`, nil, 200, codeInvalidParams},
		"no name":                  {`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{}}`, nil, 200, codeInvalidParams},
		"name is a number":         {`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":4}}`, nil, 200, codeInvalidParams},
		"arguments is a list":      {`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"list_notes","arguments":[]}}`, nil, 200, codeInvalidParams},
		"arguments is null":        {`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"list_notes","arguments":null}}`, nil, 200, 0},
		"foreign cursor of list":   {`{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{"cursor":"abc"}}`, nil, 200, codeInvalidParams},
		"initialize without":       {`{"jsonrpc":"2.0","id":1,"method":"initialize"}`, nil, 200, codeInvalidParams},
		"initialize, no revision":  {`{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"capabilities":{}}}`, nil, 200, codeInvalidParams},
		"ping":                     {`{"jsonrpc":"2.0","id":1,"method":"ping"}`, nil, 200, 0},
		"discover, old":            {`{"jsonrpc":"2.0","id":1,"method":"server/discover"}`, nil, 200, codeNotFound},
		"unsupported old revision": {call, []string{"Mcp-Protocol-Version", "2023-01-01"}, 400, codeVersion},
		"unsupported new revision": {modernCall, []string{"Mcp-Protocol-Version", "2099-01-01"}, 400, codeVersion},

		"new call":                 {modernCall, modern("tools/call", "add_note"), 200, 0},
		"new, header missing":      {modernCall, []string{"Mcp-Protocol-Version", ""}, 400, codeHeaderMismatch},
		"new, header older":        {modernCall, []string{"Mcp-Protocol-Version", "2025-11-25"}, 400, codeHeaderMismatch},
		"new, no method header":    {modernCall, []string{"Mcp-Protocol-Version", "2026-07-28", "Mcp-Name", "add_note"}, 400, codeHeaderMismatch},
		"new, other method header": {modernCall, modern("tools/list", "add_note"), 400, codeHeaderMismatch},
		"new, other name header":   {modernCall, modern("tools/call", "list_notes"), 400, codeHeaderMismatch},
		"new, no name header":      {modernCall, []string{"Mcp-Protocol-Version", "2026-07-28", "Mcp-Method", "tools/call"}, 400, codeHeaderMismatch},
		"new, no meta":             {call, modern("tools/call", "add_note"), 400, codeInvalidParams},
		"new, no capabilities":     {strings.Replace(modernCall, "clientCapabilities", "other", 1), modern("tools/call", "add_note"), 400, codeInvalidParams},
		"new, bad client":          {strings.Replace(modernCall, `{"name":"probe","version":"3"}`, `"probe"`, 1), modern("tools/call", "add_note"), 400, codeInvalidParams},
		"new, no name":             {`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{` + modernMeta + `}}`, modern("tools/call", "add_note"), 400, codeInvalidParams},
		"new, unknown method":      {`{"jsonrpc":"2.0","id":1,"method":"tools/burn","params":{` + modernMeta + `}}`, modern("tools/burn", ""), 404, codeNotFound},
		"new, removed method":      {`{"jsonrpc":"2.0","id":1,"method":"ping","params":{` + modernMeta + `}}`, modern("ping", ""), 404, codeNotFound},
		"new, initialize":          {`{"jsonrpc":"2.0","id":1,"method":"initialize","params":{` + modernMeta + `}}`, modern("initialize", ""), 404, codeNotFound},
		"new, prompts":             {`{"jsonrpc":"2.0","id":1,"method":"prompts/list","params":{` + modernMeta + `}}`, modern("prompts/list", ""), 404, codeNotFound}, // not announced
		"prompts":                  {`{"jsonrpc":"2.0","id":1,"method":"prompts/list"}`, nil, 200, codeNotFound},
		"new, no such resource":    {`{"jsonrpc":"2.0","id":1,"method":"resources/read","params":{` + modernMeta + `,"uri":"a:b"}}`, modern("resources/read", "a:b"), 404, codeNotFound},
		"new, discover":            {`{"jsonrpc":"2.0","id":1,"method":"server/discover","params":{` + modernMeta + `}}`, modern("server/discover", ""), 200, 0},
	} {
		t.Run(name, func(t *testing.T) {
			res := h.request("/mcp", tt.body, append([]string{"Mcp-Protocol-Version", "2025-11-25"}, tt.headers...)...)
			got := read(t, res)
			code := 0
			if got.Error != nil {
				code = got.Error.Code
			}
			if res.StatusCode != tt.status || code != tt.code {
				t.Errorf("status %d, code %d, want %d, %d: %+v", res.StatusCode, code, tt.status, tt.code, got.Error)
			}
			if (got.Error == nil) == (got.Result == nil) {
				t.Errorf("result %v, error %v", got.Result, got.Error)
			}
			if code == codeVersion && len(got.Error.Data["supported"].([]any)) != 5 {
				t.Errorf("supported versions: %v", got.Error.Data)
			}
			if strings.HasPrefix(name, "string id") && string(got.ID) != `"a\"b"` {
				t.Errorf("id %s", got.ID)
			}
			if id := res.Header.Get("X-Request-Id"); !strings.HasPrefix(id, "req_") {
				t.Errorf("X-Request-Id %q", id)
			}
			if strings.HasPrefix(name, "new") && res.StatusCode == 200 && got.Result.ResultType != "complete" {
				t.Errorf("resultType %q", got.Result.ResultType)
			}
		})
	}
}

func TestNotificationsAreAcceptedWithoutABody(t *testing.T) {
	h := newHost(t, nil)
	for name, tt := range map[string]struct {
		body    string
		headers []string
	}{
		"initialized": {`{"jsonrpc":"2.0","method":"notifications/initialized"}`, nil},
		"cancelled":   {`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}`, nil},
		"new":         {`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}`, modern("notifications/cancelled", "")},
		"answer":      {`{"jsonrpc":"2.0","id":3,"result":{}}`, nil},
	} {
		t.Run(name, func(t *testing.T) {
			res := h.request("/mcp", tt.body, tt.headers...)
			b, _ := io.ReadAll(res.Body)
			if res.StatusCode != 202 || len(b) != 0 {
				t.Errorf("status %d, body %q", res.StatusCode, b)
			}
		})
	}
}

func TestNegotiation(t *testing.T) {
	h := newHost(t, nil)
	for asked, want := range map[string]string{
		"2025-11-25": "2025-11-25", "2025-06-18": "2025-06-18", "2025-03-26": "2025-03-26", "2024-11-05": "2024-11-05",
		"2024-10-07": "2025-11-25", "2031-01-01": "2025-11-25",
	} {
		t.Run(asked, func(t *testing.T) {
			got := read(t, h.request("/mcp", `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"`+asked+
				`","capabilities":{},"clientInfo":{"name":"probe","version":"1"}}}`))
			if got.Result == nil || got.Result.ProtocolVersion != want {
				t.Errorf("got %+v %+v, want %s", got.Result, got.Error, want)
			}
		})
	}
}

func TestOtherMethodsOfHTTP(t *testing.T) {
	h := newHost(t, nil)
	for _, method := range []string{http.MethodGet, http.MethodDelete, http.MethodPut} {
		req, _ := http.NewRequest(method, h.url+"/mcp", nil)
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		_ = res.Body.Close()
		if res.StatusCode != 405 || res.Header.Get("Allow") != "POST, OPTIONS" {
			t.Errorf("%s: %d, Allow %q", method, res.StatusCode, res.Header.Get("Allow"))
		}
	}
	if res := h.request("/mcp/elsewhere", "{}"); res.StatusCode != 404 {
		t.Errorf("elsewhere: %d", res.StatusCode)
	}
	if res := h.request("/mcp/", `{"jsonrpc":"2.0","id":1,"method":"ping"}`); res.StatusCode != 200 {
		t.Errorf("with a slash at the end: %d", res.StatusCode)
	}
}

// TestEveryRevision holds a session of the SDK's own client in each revision.
func TestEveryRevision(t *testing.T) {
	h := newHost(t, nil)
	for _, revision := range mcp.SupportedProtocolVersions() {
		t.Run(revision, func(t *testing.T) {
			ctx := t.Context()
			client := mcp.NewClient(&mcp.Implementation{Name: "probe", Version: "9"}, nil)
			s, err := client.Connect(ctx, &mcp.StreamableClientTransport{Endpoint: h.url + "/mcp/x/all", HTTPClient: &http.Client{Transport: bearer(keyAll)}},
				&mcp.ClientSessionOptions{ProtocolVersion: revision})
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = s.Close() }()
			init := s.InitializeResult()
			if init.ProtocolVersion != revision || init.Instructions != instructions(catalog.List{All: true}, nil) {
				t.Errorf("version %q, instructions of %d characters", init.ProtocolVersion, len(init.Instructions))
			}
			if c, err := json.Marshal(init.Capabilities); err != nil || string(c) != `{"tools":{}}` {
				t.Errorf("capabilities %s, %v", c, err)
			}
			list, err := s.ListTools(ctx, nil)
			if err != nil || len(list.Tools) != 7 {
				t.Fatalf("list: %v, %d tools", err, len(list.Tools))
			}
			res, err := s.CallTool(ctx, &mcp.CallToolParams{Name: "add_note", Arguments: map[string]any{"text": "hello"}})
			if err != nil || res.IsError || res.StructuredContent.(map[string]any)["idempotencyKey"] != "key-1" {
				t.Errorf("call: %v %+v", err, res)
			}
			res, err = s.CallTool(ctx, &mcp.CallToolParams{Name: "add_note", Arguments: map[string]any{"txt": "hello"}})
			if err != nil || !res.IsError || !strings.Contains(res.Content[0].(*mcp.TextContent).Text, "INVALID_INPUT") {
				t.Errorf("wrong argument: %v %+v", err, res)
			}
		})
	}
}

type bearer string

func (b bearer) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("Authorization", "Bearer "+string(b))
	return http.DefaultTransport.RoundTrip(r)
}
