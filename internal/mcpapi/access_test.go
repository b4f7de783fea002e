package mcpapi

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/berthrun/berth/internal/errs"
)

const pingBody = `{"jsonrpc":"2.0","id":1,"method":"ping"}`

func TestChallenge(t *testing.T) {
	h := newHost(t, func(c *Config) { c.PublicURL = "https://berth.example/" })
	base := `Bearer resource_metadata="https://berth.example/.well-known/oauth-protected-resource/mcp", scope="mcp:read mcp:write"`
	for name, tt := range map[string]struct {
		path, auth, origin string
		want, allow        string
	}{
		"none":          {"/mcp", "", "", base, "*"},
		"read-only":     {"/mcp/readonly", "", "", base, "*"},
		"not a bearer":  {"/mcp", "Basic eDp5", "", base, "*"},
		"empty bearer":  {"/mcp", "Bearer ", "", base, "*"},
		"not valid":     {"/mcp", "Bearer nonsense", "", base + `, error="invalid_token"`, "*"},
		"from own page": {"/mcp", "", "self", base, "self"},
	} {
		t.Run(name, func(t *testing.T) {
			if tt.origin == "self" {
				tt.origin, tt.allow = h.url, h.url
			}
			res := h.request(tt.path, pingBody, "Authorization", tt.auth, "Origin", tt.origin)
			if got := res.Header.Get("WWW-Authenticate"); res.StatusCode != 401 || got != tt.want {
				t.Errorf("status %d, challenge\n%s\nwant\n%s", res.StatusCode, got, tt.want)
			}
			if got := res.Header.Get("Access-Control-Allow-Origin"); got != tt.allow {
				t.Errorf("Access-Control-Allow-Origin %q, want %q", got, tt.allow)
			}
			if !strings.Contains(res.Header.Get("Access-Control-Expose-Headers"), "WWW-Authenticate") {
				t.Error("a page cannot read the challenge")
			}
			if got := read(t, res); got.Error == nil || got.Error.Data["code"] != "UNAUTHENTICATED" {
				t.Errorf("body %+v", got.Error)
			}
		})
	}
	if res := h.request("/mcp", pingBody, "Authorization", "Bearer broken"); res.StatusCode != 503 || res.Header.Get("WWW-Authenticate") != "" {
		t.Errorf("a key store that is away: %d", res.StatusCode)
	}
	if res := h.request("/mcp?key=berth_org_abc", pingBody); res.StatusCode != 400 {
		t.Errorf("a key in the URL: %d", res.StatusCode)
	}
}

func TestMetadata(t *testing.T) {
	fixed := newHost(t, func(c *Config) { c.PublicURL, c.Base = "https://berth.example", "/agents/mcp" })
	free := newHost(t, nil)
	for name, tt := range map[string]struct {
		h              *host
		path, resource string
	}{
		"of the path":   {fixed, "/.well-known/oauth-protected-resource/agents/mcp", "https://berth.example/agents/mcp"},
		"of readonly":   {fixed, "/.well-known/oauth-protected-resource/agents/mcp/readonly", "https://berth.example/agents/mcp"},
		"of the root":   {fixed, "/.well-known/oauth-protected-resource", "https://berth.example/agents/mcp"},
		"no public URL": {free, "/.well-known/oauth-protected-resource/mcp", free.url + "/mcp"},
	} {
		t.Run(name, func(t *testing.T) {
			res, err := http.Get(tt.h.url + tt.path)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = res.Body.Close() }()
			var got map[string]any
			if err := json.NewDecoder(res.Body).Decode(&got); err != nil {
				t.Fatal(err)
			}
			want := map[string]any{
				"resource": tt.resource, "resource_name": "Berth",
				"bearer_methods_supported": []any{"header"}, "scopes_supported": []any{"mcp:read", "mcp:write"},
			}
			if d := cmp.Diff(want, got); d != "" || res.Header.Get("Access-Control-Allow-Origin") != "*" {
				t.Errorf("metadata (CORS %q):\n%s", res.Header.Get("Access-Control-Allow-Origin"), d)
			}
		})
	}
}

func TestForeignPagesAreRefused(t *testing.T) {
	h := newHost(t, func(c *Config) {
		c.PublicURL, c.Origins, c.Hosts = "https://berth.example", []string{"https://app.example"}, []string{"inner"}
	})
	for name, tt := range map[string]struct {
		headers []string
		want    int
	}{
		"no origin":               {nil, 200},
		"own origin":              {[]string{"Origin", h.url}, 200},
		"trusted origin":          {[]string{"Origin", "https://app.example"}, 200},
		"foreign origin":          {[]string{"Origin", "https://evil.example"}, 403},
		"null origin":             {[]string{"Origin", "null"}, 403},
		"cross-site":              {[]string{"Sec-Fetch-Site", "cross-site"}, 403},
		"rebound name":            {[]string{"Host", "evil.example"}, 403},
		"rebound name and origin": {[]string{"Host", "evil.example", "Origin", "http://evil.example"}, 403},
		"behind a local proxy":    {[]string{"Host", "berth.example"}, 200},
		"listed name":             {[]string{"Host", "inner:8080"}, 200},
		"loopback name":           {[]string{"Host", "localhost:1"}, 200},
		"loopback IPv6":           {[]string{"Host", "[::1]:1"}, 200},
	} {
		t.Run(name, func(t *testing.T) {
			if res := h.request("/mcp", pingBody, tt.headers...); res.StatusCode != tt.want {
				t.Errorf("status %d, want %d", res.StatusCode, tt.want)
			}
		})
	}
}

func TestPreflight(t *testing.T) {
	h := newHost(t, func(c *Config) { c.Origins = []string{"https://app.example"} })
	for origin, want := range map[string]int{"https://app.example": 204, "https://evil.example": 403} {
		req, _ := http.NewRequest(http.MethodOptions, h.url+"/mcp", nil)
		req.Header.Set("Origin", origin)
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		_ = res.Body.Close()
		if allowed := res.Header.Get("Access-Control-Allow-Origin") == origin; res.StatusCode != want || allowed != (want == 204) {
			t.Errorf("%s: %d, allowed %v", origin, res.StatusCode, allowed)
		}
	}
}

func TestConfigIsChecked(t *testing.T) {
	good := newHost(t, nil)
	for name, change := range map[string]func(*Config){
		"no path":            func(c *Config) { c.Path = nil },
		"relative base":      func(c *Config) { c.Base = "mcp" },
		"base is the root":   func(c *Config) { c.Base = "/" },
		"base with a query":  func(c *Config) { c.Base = "/mcp?x" },
		"base with doubled":  func(c *Config) { c.Base = "/a//b" },
		"public URL no host": func(c *Config) { c.PublicURL = "/mcp" },
		"public URL of ftp":  func(c *Config) { c.PublicURL = "ftp://berth.example" },
		"bad origin":         func(c *Config) { c.Origins = []string{"app.example/path"} },
	} {
		t.Run(name, func(t *testing.T) {
			cfg := Config{Registry: good.registry(), Path: good, Visible: visibleToAll, Authenticate: nobody}
			if _, err := New(cfg); err != nil {
				t.Fatal(err)
			}
			change(&cfg)
			if _, err := New(cfg); !errs.Is(err, errs.InvalidConfig) {
				t.Errorf("New = %v", err)
			}
		})
	}
}
