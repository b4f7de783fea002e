package xtest

import (
	"bytes"
	"net/http"
	"net/netip"
	"slices"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/berthrun/berth/api"
	"github.com/berthrun/berth/internal/audit"
	"github.com/berthrun/berth/internal/controlplane"
)

// TestAuditLog reads the log as those may who need it and nobody else, and checks an export of it.
func TestAuditLog(t *testing.T) {
	eachLife(t, nil, func(t *testing.T, l *life) {
		secret, err := l.Plane.Found(t.Context(), "another")
		if err != nil {
			t.Fatal(err)
		}
		foreign := l.With(t, secret)
		writer, _ := keyFor(t, &l.System, "write")
		auditor, auditorKey := keyFor(t, &l.System, "audit:log:read")
		Must(t, writer, api.GetAccount, api.None{})
		Must(t, foreign, api.GetAccount, api.None{})

		if code := Code(t, writer, api.ListAudit, api.ListAuditIn{}); code != "FORBIDDEN" {
			t.Errorf("a key that may write gets %q", code)
		}
		var nothing bytes.Buffer
		if _, err := writer.ExportAudit(t.Context(), api.ExportAuditIn{}, &nothing); err == nil || nothing.Len() > 0 {
			t.Errorf("a key that may write exports %d bytes, %v", nothing.Len(), err)
		}
		if code := Code(t, auditor, api.GetAccount, api.None{}); code != "FORBIDDEN" {
			t.Errorf("a key for the log alone gets %q", code)
		}
		var rows []api.AuditRow
		eventually(t, func() bool {
			rows = Must(t, auditor, api.ListAudit, api.ListAuditIn{Operation: api.ListAudit.Name, Result: "FORBIDDEN"}).Items
			return len(rows) > 0
		})
		own := identify(t, l.InProcess, l.Key).OrgID
		if r := rows[0]; len(rows) != 1 || r.OrganizationID != own || r.SourceIP != "127.0.0.1" || r.Action != "audit:log:read" {
			t.Errorf("the refused call is recorded as %+v", rows)
		}
		for _, r := range Must(t, foreign, api.ListAudit, api.ListAuditIn{}).Items {
			if r.OrganizationID == own {
				t.Errorf("another organization sees %+v", r)
			}
		}
		chained(t, l.db, "audit")
		var text bytes.Buffer
		if _, err := auditor.ExportAudit(t.Context(), api.ExportAuditIn{}, &text); err != nil {
			t.Fatal(err)
		}
		if v, err := audit.VerifyExport(&text, audit.Mark{Number: rows[0].Number, Hash: rows[0].Hash}); err != nil || v.Wrong != nil || !v.Seen || v.Organization != own {
			t.Errorf("the export: %+v, %v", v, err)
		}
		// The tool is one of a toolset, for those who may.
		for path, want := range map[string]bool{"/mcp": false, "/mcp/x/account": true} {
			if got := slices.Contains(listed(t, &l.System, path, auditorKey), "list_audit"); got != want {
				t.Errorf("%s has list_audit: %v", path, got)
			}
		}
		if slices.Contains(listed(t, &l.System, "/mcp/x/account", writerKey(t, &l.System)), "list_audit") {
			t.Error("a key that may write is shown list_audit")
		}
	})
}

func writerKey(t *testing.T, s *System) string {
	t.Helper()
	_, key := keyFor(t, s, "write")
	return key
}

// listed gives the tools of an endpoint.
func listed(t *testing.T, s *System, path, key string) (names []string) {
	t.Helper()
	for tool, err := range agent(t, s, path, key).Tools(t.Context(), &mcp.ListToolsParams{}) {
		if err != nil {
			t.Fatal(err)
		}
		names = append(names, tool.Name)
	}
	return names
}

// TestAuditSource looks for the address in the log: what a header says counts only from a proxy that is trusted, over HTTP and MCP.
func TestAuditSource(t *testing.T) {
	for name, tt := range map[string]struct {
		trusted []netip.Prefix
		want    string
	}{
		"trusted":  {[]netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}, "203.0.113.9"},
		"anybody":  {nil, "127.0.0.1"},
		"another ": {[]netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}, "127.0.0.1"},
	} {
		t.Run(name, func(t *testing.T) {
			eachLife(t, func(c *controlplane.Config) { c.TrustedProxies = tt.trusted }, func(t *testing.T, l *life) {
				for _, r := range []struct{ method, path, body string }{
					{"GET", "/v1/account/limits", ""},
					{"POST", "/mcp", `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"get_limits","arguments":{}}}`},
				} {
					req, err := http.NewRequestWithContext(t.Context(), r.method, l.URL+r.path, bytes.NewReader([]byte(r.body)))
					if err != nil {
						t.Fatal(err)
					}
					req.Header.Set("Authorization", "Bearer "+l.Key)
					req.Header.Set("X-Forwarded-For", "198.51.100.1, 203.0.113.9")
					if r.body != "" {
						req.Header.Set("Content-Type", "application/json")
						req.Header.Set("Accept", "application/json, text/event-stream")
						req.Header.Set("MCP-Protocol-Version", "2025-06-18")
					}
					resp, err := http.DefaultClient.Do(req)
					if err != nil {
						t.Fatal(err)
					}
					_ = resp.Body.Close()
					if resp.StatusCode != http.StatusOK {
						t.Fatalf("%s: %s", r.path, resp.Status)
					}
				}
				var rows []api.AuditRow
				eventually(t, func() bool {
					rows = Must(t, l.Client, api.ListAudit, api.ListAuditIn{Operation: api.GetLimits.Name}).Items
					return len(rows) == 2
				})
				for _, r := range rows {
					if r.SourceIP != tt.want {
						t.Errorf("over %s it came from %s, want %s", r.Face, r.SourceIP, tt.want)
					}
				}
				if rows[0].Face == rows[1].Face {
					t.Errorf("both came over %s", rows[0].Face)
				}
			})
		})
	}
}
