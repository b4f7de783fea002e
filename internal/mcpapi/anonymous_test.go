package mcpapi

import (
	"net/http"
	"testing"
	"time"

	"github.com/berthrun/berth/api/op"
	"github.com/berthrun/berth/internal/caller"
	"github.com/berthrun/berth/internal/errs"
)

// A public endpoint asks for no credential, lets pages of any origin call, and says in HTTP when somebody calls too often.
func TestAnonymous(t *testing.T) {
	often := false
	h := newHost(t, func(cfg *Config) {
		cfg.Authenticate, cfg.Instructions = nil, "Only notes."
		cfg.Visible = func(*caller.Caller, op.Info) bool { return true }
		cfg.Anonymous = func(*http.Request) (*caller.Caller, error) {
			if often {
				return nil, errs.E(errs.RateLimited, "too many calls").After(1500 * time.Millisecond)
			}
			return &caller.Caller{PrincipalID: "anonymous"}, nil
		}
	})
	const origin = "https://elsewhere.example"
	for _, headers := range [][]string{{"Authorization", ""}, {"Authorization", "Bearer nonsense"}, {"Authorization", "", "Origin", origin, "Sec-Fetch-Site", "cross-site"}} {
		res := h.request("/mcp", listBody, headers...)
		if got := res.Header.Get("Access-Control-Allow-Origin"); got != "*" {
			t.Errorf("%v: allowed origin %q", headers, got)
		}
		if got := read(t, res); len(got.Result.Tools) != 7 {
			t.Errorf("%v: %d tools", headers, len(got.Result.Tools))
		}
	}
	init := read(t, h.request("/mcp", `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"x","version":"1"}}}`, "Origin", origin))
	if init.Result.Instructions != "Only notes." {
		t.Errorf("instructions %q", init.Result.Instructions)
	}
	often = true
	res := h.request("/mcp", listBody, "Authorization", "")
	if res.StatusCode != http.StatusTooManyRequests || res.Header.Get("Retry-After") != "2" || res.Header.Get("WWW-Authenticate") != "" {
		t.Errorf("called too often: %d, %v", res.StatusCode, res.Header)
	}
}

func TestAnonymousHasNoMetadata(t *testing.T) {
	h, err := New(Config{
		Registry: op.NewRegistry(), Path: &host{}, Visible: func(*caller.Caller, op.Info) bool { return true },
		Anonymous: func(*http.Request) (*caller.Caller, error) { return &caller.Caller{}, nil }, Base: "/docs/mcp",
	})
	if err != nil {
		t.Fatal(err)
	}
	if got := h.Routes(); len(got) != 2 {
		t.Errorf("routes %v", got)
	}
}
