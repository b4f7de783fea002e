package xtest

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/berthrun/berth/api"
	"github.com/berthrun/berth/client"
)

// answer is what the public endpoint says.
type docsAnswer struct {
	Result struct {
		ProtocolVersion string
		Instructions    string
		IsError         bool
		Tools           []struct{ Name string }
		Content         []struct{ Text string }
	}
	Error *struct{ Message string }
}

func askDocs(t *testing.T, url, revision, method, params string, headers ...string) (*http.Response, docsAnswer) {
	t.Helper()
	modern := revision == "2026-07-28"
	if modern {
		meta := fmt.Sprintf(`"_meta":{"io.modelcontextprotocol/protocolVersion":%q,"io.modelcontextprotocol/clientCapabilities":{},"io.modelcontextprotocol/clientInfo":{"name":"t","version":"1"}}`, revision)
		if params = strings.TrimSuffix(params, "}"); params != "{" {
			params += ","
		}
		params += meta + "}"
	}
	req, err := http.NewRequest(http.MethodPost, url+"/docs/mcp", strings.NewReader(`{"jsonrpc":"2.0","id":1,"method":"`+method+`","params":`+params+`}`))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Accept", "application/json, text/event-stream")
	if method != "initialize" {
		req.Header.Set("Mcp-Protocol-Version", revision)
	}
	if modern {
		req.Header.Set("Mcp-Method", method)
		var named struct{ Name string }
		_ = json.Unmarshal([]byte(params), &named)
		if named.Name != "" {
			req.Header.Set("Mcp-Name", named.Name)
		}
	}
	for i := 0; i < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	var a docsAnswer
	if err := json.Unmarshal(b, &a); err != nil {
		t.Fatalf("%s %s: %d %s", revision, method, res.StatusCode, b)
	}
	return res, a
}

// TestPublicDocs asks the endpoint that needs no sign-in in every revision: it has three tools, which read, and nothing else.
func TestPublicDocs(t *testing.T) {
	s := Start(t, Options{})
	for _, revision := range []string{"2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25", "2026-07-28"} {
		t.Run(revision, func(t *testing.T) {
			if revision != "2026-07-28" {
				_, a := askDocs(t, s.URL, revision, "initialize", `{"protocolVersion":"`+revision+`","capabilities":{},"clientInfo":{"name":"t","version":"1"}}`)
				if a.Result.ProtocolVersion != revision || !strings.Contains(a.Result.Instructions, "search_docs") {
					t.Errorf("initialize: %+v", a)
				}
			}
			_, list := askDocs(t, s.URL, revision, "tools/list", `{}`, "Origin", "https://elsewhere.example")
			var names []string
			for _, tool := range list.Result.Tools {
				names = append(names, tool.Name)
			}
			if got := strings.Join(names, " "); got != "search_docs read_doc list_docs" {
				t.Errorf("tools: %s", got)
			}
			for call, want := range map[string]string{
				`{"name":"search_docs","arguments":{"query":"why was my sandbox stopped"}}`: `"page":"life"`,
				`{"name":"read_doc","arguments":{"page":"life"}}`:                           "# A sandbox's life",
				`{"name":"list_docs","arguments":{}}`:                                       `"page":"reference/sandboxes"`,
			} {
				res, a := askDocs(t, s.URL, revision, "tools/call", call)
				if res.StatusCode != http.StatusOK || a.Result.IsError || len(a.Result.Content) != 1 || !strings.Contains(a.Result.Content[0].Text, want) {
					t.Errorf("%s: %d %.300v", call, res.StatusCode, a)
				}
			}
			for call, want := range map[string]string{
				`{"name":"create_sandbox","arguments":{}}`:             "NOT_FOUND",
				`{"name":"read_doc","arguments":{"page":"no/such"}}`:   "NOT_FOUND",
				`{"name":"read_doc","arguments":{"page":"../go.mod"}}`: "NOT_FOUND",
				`{"name":"search_docs","arguments":{}}`:                "INVALID_INPUT",
			} {
				if _, a := askDocs(t, s.URL, revision, "tools/call", call); !a.Result.IsError || !strings.Contains(a.Result.Content[0].Text, want) {
					t.Errorf("%s: %.300v", call, a)
				}
			}
		})
	}
	t.Run("limits", func(t *testing.T) {
		for i := range 200 {
			_, a := askDocs(t, s.URL, "2025-11-25", "tools/call", `{"name":"list_docs","arguments":{}}`)
			if a.Result.IsError {
				if !strings.Contains(a.Result.Content[0].Text, "RATE_LIMITED") || !strings.Contains(a.Result.Content[0].Text, "retryAfterMs") || i < 50 {
					t.Errorf("call %d: %+v", i, a)
				}
				return
			}
		}
		t.Error("200 calls in a moment are not too many")
	})
}

// TestDocsOperations reads the documentation through the HTTP API, as a caller, and in a browser, as nobody.
func TestDocsOperations(t *testing.T) {
	s := Start(t, Options{})
	hits := Must(t, s.Client, api.SearchDocs, api.SearchDocsIn{Query: "what does IDEMPOTENCY_CONFLICT mean", Limit: 3})
	if len(hits.Items) == 0 {
		t.Fatal("nothing is found")
	}
	page := Must(t, s.Client, api.ReadDoc, api.ReadDocIn{Page: hits.Items[0].Page, Section: hits.Items[0].Section})
	if !strings.Contains(page.Text, "IDEMPOTENCY_CONFLICT") {
		t.Errorf("read %+v", page)
	}
	if _, err := client.Call(t.Context(), s.With(t, ""), api.ListDocs, api.None{}); client.CodeOf(err) != "UNAUTHENTICATED" {
		t.Errorf("without a key: %v", err)
	}
	for path, want := range map[string]string{"/docs/": "<h1", "/docs/life.md": "# A sandbox's life", "/docs/llms.txt": s.URL + "/docs/life.md"} {
		res, err := http.Get(s.URL + path)
		if err != nil {
			t.Fatal(err)
		}
		b, err := io.ReadAll(res.Body)
		_ = res.Body.Close()
		if err != nil || res.StatusCode != http.StatusOK || !strings.Contains(string(b), want) {
			t.Errorf("%s: %d, %v", path, res.StatusCode, err)
		}
	}
}
