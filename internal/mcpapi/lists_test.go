package mcpapi

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/berthrun/berth/api"
	"github.com/berthrun/berth/api/op"
	"github.com/berthrun/berth/internal/caller"
	"github.com/berthrun/berth/internal/catalog"
	"github.com/berthrun/berth/internal/errs"
)

func TestAddressesThatAreNone(t *testing.T) {
	h := newHost(t, nil)
	for name, tt := range map[string]struct {
		path   string
		status int
		code   errs.Code
		reason string
		say    string
	}{
		"no such path":        {"/mcp/elsewhere", 404, errs.NotFound, "no_endpoint", "x/{toolset}"},
		"twice read-only":     {"/mcp/readonly/readonly", 404, errs.NotFound, "no_endpoint", "readonly"},
		"no toolset":          {"/mcp/x/", 404, errs.NotFound, "no_endpoint", "sandboxes, files"},
		"unknown toolset":     {"/mcp/x/files,teapots", 404, errs.NotFound, "unknown_toolset", "The toolsets are sandboxes, files, processes"},
		"empty toolset":       {"/mcp/x/files,,", 404, errs.NotFound, "unknown_toolset", "sandboxes"},
		"nothing of it here":  {"/mcp/x/jobs", 503, errs.Unavailable, "toolset_unavailable", "files"},
		"two of nothing":      {"/mcp/x/jobs,desktop", 503, errs.Unavailable, "toolset_unavailable", "processes"},
		"unknown profile":     {"/mcp?profile=tiny", 400, errs.InvalidInput, "unknown_profile", "compact and chatgpt"},
		"a profile to come":   {"/mcp?profile=code", 503, errs.Unavailable, "profile_unavailable", "compact"},
		"two profiles":        {"/mcp?profile=compact&profile=chatgpt", 400, errs.InvalidInput, "unknown_profile", "one of"},
		"long toolset":        {"/mcp/x/" + strings.Repeat("é", 4096), 404, errs.NotFound, "unknown_toolset", "sandboxes"},
		"not valid UTF-8":     {"/mcp/x/%ff%00", 404, errs.NotFound, "unknown_toolset", "sandboxes"},
		"of the metadata too": {"/.well-known/oauth-protected-resource/mcp/x/teapots", 404, errs.NotFound, "unknown_toolset", "sandboxes"},
	} {
		t.Run(name, func(t *testing.T) {
			res := h.request(tt.path, listBody)
			got := read(t, res)
			if got.Error == nil || res.StatusCode != tt.status || got.Error.Data["code"] != string(tt.code) || got.Error.Data["reason"] != tt.reason ||
				!strings.Contains(got.Error.Data["suggestion"].(string), tt.say) || len(got.Error.Message) > 400 {
				t.Errorf("status %d, %+v", res.StatusCode, got.Error)
			}
		})
	}
	if res := h.request("/.well-known/oauth-protected-resource/mcp/x/files/readonly", "", "Content-Type", ""); res.StatusCode != http.StatusMethodNotAllowed {
		t.Errorf("a POST to the metadata of a toolset: %d", res.StatusCode)
	}
	// What is missing beside something that is there is said, and the rest works.
	init := `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"p","version":"1"}}}`
	var b bytes.Buffer
	if _, err := b.ReadFrom(h.request("/mcp/x/files,jobs", init).Body); err != nil || !strings.Contains(b.String(), "Not here: scheduled jobs") {
		t.Errorf("instructions: %s %v", &b, err)
	}
}

// The same list is made once, however often and by however many it is asked for.
func TestListsAreMadeOnce(t *testing.T) {
	h := newHost(t, nil)
	first := read(t, h.request("/mcp/x/all", listBody)).Result.Tools
	again := read(t, h.request("/mcp/x/all", `{"jsonrpc":"2.0","id":"a \"b\"","method":"tools/list"}`))
	if d := cmp.Diff(first, again.Result.Tools); d != "" || string(again.ID) != `"a \"b\""` {
		t.Errorf("id %s\n%s", again.ID, d)
	}
}

func TestMessagesAreLimited(t *testing.T) {
	over := false
	h := newHost(t, func(c *Config) {
		c.Allow = func(_ context.Context, c *caller.Caller) error {
			if c.KeyID != keyAll {
				t.Errorf("who is counted: %+v", c)
			}
			if over {
				return errs.E(errs.RateLimited, "too many calls in a short time").After(1500 * time.Millisecond)
			}
			return nil
		}
	})
	if res := h.request("/mcp", pingBody); res.StatusCode != 200 {
		t.Errorf("within the limit: %d", res.StatusCode)
	}
	over = true
	for _, body := range []string{pingBody, listBody} {
		res := h.request("/mcp", body)
		got := read(t, res)
		if res.StatusCode != 429 || res.Header.Get("Retry-After") != "2" || got.Error.Data["retryAfterMs"] != 1500.0 {
			t.Errorf("status %d, %v, %+v", res.StatusCode, res.Header, got.Error)
		}
	}
	h.tool("/mcp", "list_notes", nil) // counted by the path
}

// secretOut is what no chat should read.
type secretOut struct {
	op.WriteOut
	Token string `json:"token"`
	Key   struct {
		Secret string `json:"secret"`
		Name   string `json:"name"`
	} `json:"key"`
}

func TestChatGPTConceals(t *testing.T) {
	mint := op.Def[noteIn, secretOut]{
		Name: "tokens.create", Route: "POST /v1/tokens", Action: "tokens:create", Tool: "mint_token", Hints: op.Write, Toolset: "account", Title: "Mint", Doc: "Mints.",
	}
	h := newHost(t, func(c *Config) {
		bind(c.Registry, mint, func(context.Context, *noteIn) (*secretOut, error) {
			out := &secretOut{Token: "tok"}
			out.Key.Secret, out.Key.Name = "sec", "n"
			return out, nil
		})
		bind(c.Registry, api.GetAccount, func(context.Context, *api.None) (*api.AccountOut, error) {
			return &api.AccountOut{OrganizationID: "org_1", OrganizationName: "Acme", WorkspaceName: "home", PrincipalID: "key_1", KeyName: "k", Scopes: []string{"read"}}, nil
		})
	})
	const path = "/mcp/x/all?profile=chatgpt"
	if _, text := result[map[string]any](t, h.tool(path, "mint_token", map[string]any{"text": "x"})); strings.Contains(text, "sec") || strings.Contains(text, "tok") || !strings.Contains(text, `"name":"n"`) {
		t.Errorf("result %s", text)
	}
	if _, text := result[map[string]any](t, h.tool(path, "get_account", nil)); text != `{"scopes":["read"]}` {
		t.Errorf("account %s", text)
	}
	if _, text := result[map[string]any](t, h.tool("/mcp/x/all", "get_account", nil)); !strings.Contains(text, "Acme") {
		t.Errorf("account without the profile: %s", text)
	}
	for _, tool := range read(t, h.request(path, listBody)).Result.Tools {
		if text := string(encode(tool["outputSchema"])); strings.Contains(text, `"token"`) || strings.Contains(text, "organizationName") {
			t.Errorf("%s promises %s", tool["name"], text)
		}
	}
}

// Operations that share a tool are told apart by action in every list.
func TestSharedTool(t *testing.T) {
	shared := func(name, verb string, hints op.Hints) op.Def[listIn, listOut] {
		return op.Def[listIn, listOut]{
			Name: "images." + name, Route: "GET /v1/" + name, Action: "images:read", Tool: "manage_images", Verb: verb, Hints: hints,
			Toolset: "templates", Title: "Images", Doc: "Does " + verb + ".",
		}
	}
	h := newHost(t, func(c *Config) {
		for _, d := range []op.Def[listIn, listOut]{shared("list", "list", op.Read|op.Idempotent), shared("drop", "delete", op.Write|op.Destructive)} {
			bind(c.Registry, d, func(_ context.Context, in *listIn) (*listOut, error) {
				return &listOut{Items: []thing{{d.Verb, in.Tag}}}, nil
			})
		}
	})
	list := read(t, h.request("/mcp/x/templates", listBody)).Result.Tools
	if len(list) != 1 || list[0]["name"] != "manage_images" || !strings.Contains(list[0]["description"].(string), "delete(limit?, tag?): Does delete.") {
		t.Fatalf("list %v", list)
	}
	want := map[string]any{"readOnlyHint": false, "destructiveHint": true, "idempotentHint": false, "openWorldHint": false}
	if d := cmp.Diff(want, list[0]["annotations"]); d != "" {
		t.Errorf("annotations: %s", d)
	}
	in := list[0]["inputSchema"].(map[string]any)
	if d := cmp.Diff([]any{"list", "delete"}, in["properties"].(map[string]any)["action"].(map[string]any)["enum"]); d != "" || in["additionalProperties"] != false {
		t.Errorf("input: %s %v", d, in)
	}
	got, _ := result[listOut](t, h.tool("/mcp/x/templates", "manage_images", map[string]any{"tag": "v1", "action": "delete"}))
	if d := cmp.Diff([]thing{{"delete", "v1"}}, got.Items); d != "" {
		t.Error(d)
	}
	got, _ = result[listOut](t, h.tool("/mcp?profile=compact", "templates", map[string]any{"action": "images_list"}))
	if d := cmp.Diff([]thing{{"list", ""}}, got.Items); d != "" {
		t.Error(d)
	}
	if e := toolError(t, h.tool("/mcp/readonly", "manage_images", map[string]any{"action": "delete"})); e.Reason != "read_only" {
		t.Errorf("%+v", e)
	}
}

// No result of an operation with a tool may hold a credential that the profile for ChatGPT would show.
func TestNoCredentialInChat(t *testing.T) {
	l := catalog.List{All: true, Profile: catalog.ChatGPT}
	suspicious := []string{"secret", "token", "password", "credential", "privatekey", "authorization"}
	var look func(info op.Info, path string, s *op.Schema)
	look = func(info op.Info, path string, s *op.Schema) {
		if s.Items != nil {
			look(info, path, s.Items)
		}
		for name, p := range s.Properties {
			for _, word := range suspicious {
				if strings.Contains(strings.ToLower(name), word) && p.Type == "string" && !l.Conceals(info.Name, name) {
					t.Errorf("%s shows %s%s", info.Name, path, name)
				}
			}
			look(info, path+name+".", p)
		}
	}
	for _, info := range api.All() {
		if l.Holds(info) {
			look(info, "", info.Out)
		}
	}
}

func FuzzTakeMember(f *testing.F) {
	for _, seed := range []string{
		`{"action":"x"}`, `{"a":1,"action":"x","b":[{}]}`, `{ "action" : "x" , "action":"y"}`, `{"Action":"x"}`, `{"action":3}`, `{"\u0061ction":"x"}`, `[]`, `{`, ``, `null`,
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		if !json.Valid([]byte(text)) && text != "" { // the face has checked the whole body
			return
		}
		value, rest, err := takeMember(json.RawMessage(text), "action")
		if err != nil || len(rest) == 0 {
			return
		}
		var before, after map[string]json.RawMessage
		if json.Unmarshal([]byte(text), &before) != nil {
			t.Fatalf("%q is no object, and was taken for one", text)
		}
		if err := json.Unmarshal(rest, &after); err != nil {
			t.Fatalf("%q became %q: %v", text, rest, err)
		}
		for k, v := range before {
			if k != "action" && !bytes.Equal(after[k], v) {
				t.Errorf("%q became %q", text, rest)
			}
		}
		if value != "" && len(rest) >= len(text) {
			t.Errorf("%q was taken from %q, which became %q", value, text, rest)
		}
	})
}
