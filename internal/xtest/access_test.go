package xtest

import (
	"context"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/berthrun/berth/api"
	"github.com/berthrun/berth/api/op"
	"github.com/berthrun/berth/client"
	"github.com/berthrun/berth/internal/audit"
	"github.com/berthrun/berth/internal/db"
)

// bearer sends a key with every request.
type bearer string

// RoundTrip implements http.RoundTripper.
func (b bearer) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("Authorization", "Bearer "+string(b))
	return http.DefaultTransport.RoundTrip(r)
}

// agent connects an MCP client to an endpoint.
func agent(t testing.TB, s *System, path, key string) *mcp.ClientSession {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	c, err := mcp.NewClient(&mcp.Implementation{Name: "agent", Version: "1"}, nil).Connect(ctx,
		&mcp.StreamableClientTransport{Endpoint: s.URL + path, HTTPClient: &http.Client{Transport: bearer(key)}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// tools lists the tools of a session.
func tools(t testing.TB, s *mcp.ClientSession) (names []string) {
	t.Helper()
	list, err := s.ListTools(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, tool := range list.Tools {
		names = append(names, tool.Name)
	}
	slices.Sort(names)
	return names
}

// toolsFor gives the tools of the operations that a rule lets through.
func toolsFor(rule func(op.Info) bool) (names []string) {
	for _, info := range api.All() {
		if info.Tool != "" && rule(info) {
			names = append(names, info.Tool)
		}
	}
	slices.Sort(names)
	return slices.Compact(names) // of several operations one tool may be made
}

// keyFor makes a key with scopes and gives a client and the secret.
func keyFor(t testing.TB, s *System, scopes ...string) (*client.Client, string) {
	t.Helper()
	secret := Must(t, s.Client, api.CreateKey, api.CreateKeyIn{Name: strings.Join(scopes, " "), Scopes: scopes}).Secret
	return s.With(t, secret), secret
}

func TestScopes(t *testing.T) {
	eachLife(t, nil, func(t *testing.T, l *life) {
		id := Sandbox(t, l.Client, idling(0))
		exec := api.ExecIn{SandboxIn: in(id), CommandIn: api.CommandIn{Command: "true"}}
		for _, tt := range []struct {
			scopes  []string
			listed  func(op.Info) bool
			refused map[string]bool // of get, exec, keys
		}{
			{[]string{"admin"}, func(op.Info) bool { return true }, map[string]bool{}},
			{[]string{"write"}, func(i op.Info) bool { return i.Action != "audit:log:read" }, map[string]bool{"keys": true}},
			{[]string{"read"}, func(i op.Info) bool { return i.Hints.Has(op.Read) && i.Action != "audit:log:read" }, map[string]bool{"exec": true, "keys": true}},
			{[]string{"compute:sandboxes:read"}, func(i op.Info) bool { return i.Action == "compute:sandboxes:read" }, map[string]bool{"exec": true, "keys": true}},
			{
				[]string{"compute:sandboxes:*", "identity:keys:read"},
				func(i op.Info) bool { return strings.HasPrefix(i.Action, "compute:sandboxes:") },
				map[string]bool{},
			},
			{[]string{"compute:files:write"}, func(i op.Info) bool { return i.Action == "compute:files:write" }, map[string]bool{"get": true, "exec": true, "keys": true}},
		} {
			t.Run(strings.Join(tt.scopes, " "), func(t *testing.T) {
				c, secret := keyFor(t, &l.System, tt.scopes...)
				if diff := cmp.Diff(toolsFor(tt.listed), tools(t, agent(t, &l.System, "/mcp/x/all", secret))); diff != "" {
					t.Errorf("tools (-want +got):\n%s", diff)
				}
				for name, code := range map[string]string{
					"get": Code(t, c, api.GetSandbox, in(id)), "exec": Code(t, c, api.Exec, exec), "keys": Code(t, c, api.ListKeys, api.ListKeysIn{}),
				} {
					if want := map[bool]string{true: "FORBIDDEN"}[tt.refused[name]]; code != want {
						t.Errorf("%s: %q, want %q", name, code, want)
					}
				}
				session := agent(t, &l.System, "/mcp", secret)
				for _, info := range api.All() {
					if info.Tool == "" || tt.listed(info) {
						continue
					}
					if res, err := session.CallTool(t.Context(), &mcp.CallToolParams{Name: info.Tool, Arguments: map[string]any{"sandboxId": id}}); err == nil && !res.IsError {
						t.Errorf("%s is not listed and was done", info.Tool)
					}
				}
			})
		}
	})
}

func TestReadOnlyNeverWakes(t *testing.T) {
	s := Start(t, Options{})
	id := Sandbox(t, s.Client, idling(0))
	Exec(t, s.Client, id, "echo kept > file")
	Must(t, s.Client, api.StopSandbox, waiting(id, 30))
	reader, secret := keyFor(t, &s.System, "read")
	reads := toolsFor(func(i op.Info) bool { return i.Hints.Has(op.Read) })

	t.Run("a key that only reads", func(t *testing.T) {
		for name, e := range map[string]*client.Error{
			"read": refusal(t, reader, api.ReadFile, api.ReadFileIn{FileIn: file(id, "file")}),
			"list": refusal(t, reader, api.ListFiles, api.ListFilesIn{SandboxIn: in(id)}),
			"stat": refusal(t, reader, api.StatFile, api.FileStatIn{FileIn: file(id, "file")}),
		} {
			if e.Code != "INVALID_STATE" || e.Reason != "asleep" || e.Suggestion == "" {
				t.Errorf("%s: %+v", name, e)
			}
		}
	})
	for _, key := range []struct{ of, secret string }{{"an administrator", s.Key}, {"one that only reads", secret}} {
		t.Run("the read-only endpoint with the key of "+key.of, func(t *testing.T) {
			session := agent(t, &s.System, "/mcp/readonly", key.secret)
			want := reads
			if key.secret == secret { // the scope read leaves the audit log out
				want = toolsFor(func(i op.Info) bool { return i.Hints.Has(op.Read) && !strings.HasPrefix(i.Action, "audit:") })
			}
			if diff := cmp.Diff(want, tools(t, session)); diff != "" {
				t.Errorf("tools (-want +got):\n%s", diff)
			}
			for _, tool := range []string{"read_file", "stat_file"} {
				wantRefusal(t, session, tool, map[string]any{"sandboxId": id, "path": "file"}, "asleep")
			}
			for _, info := range api.All() {
				if info.Tool == "" || info.Hints.Has(op.Read) {
					continue
				}
				if res, err := session.CallTool(t.Context(), &mcp.CallToolParams{Name: info.Tool, Arguments: map[string]any{"sandboxId": id}}); err == nil && !res.IsError {
					t.Errorf("%s was done", info.Tool)
				}
			}
		})
	}
	sb := Must(t, s.Client, api.GetSandbox, in(id)).Sandbox
	if sb.State != api.StateStopped || sb.StopReason != "requested" {
		t.Fatalf("it was woken: %+v", sb)
	}
	Must(t, s.Client, api.StartSandbox, waiting(id, 30))
	if got := Must(t, reader, api.ReadFile, api.ReadFileIn{FileIn: file(id, "file")}); got.Data != "kept\n" {
		t.Errorf("while it runs: %+v", got)
	}
}

// wantRefusal calls a tool that must fail with a word in its error.
func wantRefusal(t testing.TB, s *mcp.ClientSession, tool string, args map[string]any, word string) {
	t.Helper()
	res, err := s.CallTool(t.Context(), &mcp.CallToolParams{Name: tool, Arguments: args})
	if err != nil {
		t.Errorf("%s: %v", tool, err)
		return
	}
	if text := res.Content[0].(*mcp.TextContent).Text; !res.IsError || !strings.Contains(text, word) || res.StructuredContent != nil {
		t.Errorf("%s: %s", tool, text)
	}
}

func TestKeys(t *testing.T) {
	eachLife(t, nil, func(t *testing.T, l *life) {
		c := l.Client
		t.Run("revoked at once", func(t *testing.T) {
			made := Must(t, c, api.CreateKey, api.CreateKeyIn{Name: "short"})
			k := l.With(t, made.Secret)
			session := agent(t, &l.System, "/mcp", made.Secret)
			if res, err := session.CallTool(t.Context(), &mcp.CallToolParams{Name: "get_account"}); err != nil || res.IsError {
				t.Errorf("MCP: %+v, %v", res, err)
			}
			Must(t, k, api.GetAccount, api.None{})
			if out := Must(t, c, api.RevokeKey, api.RevokeKeyIn{KeyID: made.Key.ID}); out.Key.RevokedAt == nil {
				t.Errorf("%+v", out)
			}
			if code := Code(t, k, api.GetAccount, api.None{}); code != "UNAUTHENTICATED" {
				t.Errorf("HTTP: %q", code)
			}
			if res, err := session.CallTool(t.Context(), &mcp.CallToolParams{Name: "get_account"}); err == nil && !res.IsError {
				t.Error("MCP: the session goes on")
			}
			for _, all := range []bool{false, true} {
				list := Must(t, c, api.ListKeys, api.ListKeysIn{IncludeRevoked: all, PageIn: op.PageIn{Limit: 200}}).Items
				if slices.ContainsFunc(list, func(k api.Key) bool { return k.ID == made.Key.ID }) != all {
					t.Errorf("listed with revoked ones %v: %+v", all, list)
				}
			}
		})
		t.Run("expired at once", func(t *testing.T) {
			made := Must(t, c, api.CreateKey, api.CreateKeyIn{Name: "hour", TTLSeconds: 3600})
			k := l.With(t, made.Secret)
			l.pass(3590 * time.Second)
			Must(t, k, api.GetAccount, api.None{})
			l.pass(11 * time.Second)
			if code := Code(t, k, api.GetAccount, api.None{}); code != "UNAUTHENTICATED" {
				t.Errorf("%q", code)
			}
		})
		t.Run("never more than its creator", func(t *testing.T) {
			for _, tt := range []struct {
				has, wants []string
				want       string
			}{
				{[]string{"identity:keys:create", "read"}, []string{"read"}, ""},
				{[]string{"identity:keys:create", "read"}, []string{"compute:sandboxes:read"}, ""},
				{[]string{"identity:keys:create", "read"}, []string{"write"}, "FORBIDDEN"},
				{[]string{"identity:keys:create", "read"}, []string{"admin"}, "FORBIDDEN"},
				{[]string{"identity:keys:create", "read"}, []string{"read", "compute:sandboxes:exec"}, "FORBIDDEN"},
				{[]string{"identity:keys:create", "read"}, []string{"compute:*"}, "FORBIDDEN"},
				{[]string{"identity:keys:create", "read"}, nil, "FORBIDDEN"}, // read and write
				{[]string{"identity:keys:create", "write"}, []string{"identity:keys:read"}, "FORBIDDEN"},
				{[]string{"identity:keys:*", "compute:files:*"}, []string{"identity:keys:revoke", "compute:files:read"}, ""},
				{[]string{"write"}, []string{"read"}, "FORBIDDEN"}, // it may not make keys
			} {
				k, _ := keyFor(t, &l.System, tt.has...)
				if code := Code(t, k, api.CreateKey, api.CreateKeyIn{Name: "child", Scopes: tt.wants}); code != tt.want {
					t.Errorf("with %v for %v: %q, want %q", tt.has, tt.wants, code, tt.want)
				}
			}
		})
		t.Run("a replay shows no secret", func(t *testing.T) {
			want := api.CreateKeyIn{WriteIn: op.WriteIn{IdempotencyKey: "once"}, Name: "shown"}
			first, again := Must(t, c, api.CreateKey, want), Must(t, c, api.CreateKey, want)
			if first.Secret == "" || again.Secret != "" || !again.Replayed || first.Key.ID != again.Key.ID {
				t.Errorf("first with a secret of %d, then %+v", len(first.Secret), again)
			}
			Must(t, l.With(t, first.Secret), api.GetAccount, api.None{})
			var rows int
			err := l.db.QueryRowContext(t.Context(), `SELECT COUNT(*) FROM idempotency WHERE result LIKE $1 OR error LIKE $1`, "%"+first.Secret+"%").Scan(&rows)
			if err != nil || rows != 0 {
				t.Errorf("the secret is kept in %d rows, %v", rows, err)
			}
		})
		t.Run("never in a URL", func(t *testing.T) {
			for _, path := range []string{"/v1/account?key=" + l.Key, "/v1/account?access_token=" + l.Key, "/v1/sandboxes/" + l.Key, "/mcp?key=" + l.Key} {
				for _, header := range []string{"", "Bearer " + l.Key} {
					method := http.MethodGet
					if strings.HasPrefix(path, "/mcp") {
						method = http.MethodPost
					}
					req, err := http.NewRequestWithContext(t.Context(), method, l.URL+path, strings.NewReader(`{"jsonrpc":"2.0","id":1,"method":"ping"}`))
					if err != nil {
						t.Fatal(err)
					}
					req.Header.Set("Content-Type", "application/json")
					req.Header.Set("Accept", "application/json, text/event-stream")
					if header != "" {
						req.Header.Set("Authorization", header)
					}
					res, err := http.DefaultClient.Do(req)
					if err != nil {
						t.Fatal(err)
					}
					body, err := io.ReadAll(res.Body)
					_ = res.Body.Close()
					if err != nil || res.StatusCode != http.StatusBadRequest || strings.Contains(string(body), l.Key) {
						t.Errorf("%s: %d %s %v", strings.ReplaceAll(path, l.Key, "KEY"), res.StatusCode, body, err)
					}
				}
			}
		})
	})
}

// TestAudit makes calls of every end and looks for each in the log.
func TestAudit(t *testing.T) {
	eachLife(t, nil, func(t *testing.T, l *life) {
		c := l.Client
		reader, _ := keyFor(t, &l.System, "read")
		secret, err := l.Plane.Found(t.Context(), "another")
		if err != nil {
			t.Fatal(err)
		}
		foreign := l.With(t, secret)
		root, other := identify(t, l.InProcess, l.Key), identify(t, l.InProcess, secret)
		const private = "a-value-that-nobody-else-may-see"

		id := Must(t, c, api.CreateSandbox, api.CreateSandboxIn{WriteIn: op.WriteIn{IdempotencyKey: "made"}, Env: map[string]string{"A": private}, Metadata: map[string]string{"a": private}}).Sandbox.ID
		Must(t, c, api.CreateSandbox, api.CreateSandboxIn{WriteIn: op.WriteIn{IdempotencyKey: "made"}, Env: map[string]string{"A": private}, Metadata: map[string]string{"a": private}})
		Must(t, c, api.GetSandbox, in(id))
		Exec(t, c, id, "echo "+private+"; exit 3")
		Must(t, c, api.WriteFile, api.WriteFileIn{FileIn: file(id, private), Data: private})
		Code(t, c, api.ReadFile, api.ReadFileIn{FileIn: file(id, "missing-"+private)})
		Code(t, reader, api.Exec, api.ExecIn{SandboxIn: in(id), CommandIn: api.CommandIn{Command: private}})
		Code(t, foreign, api.GetSandbox, in(id))
		Code(t, c, api.Exec, api.ExecIn{SandboxIn: in(id)})
		agentSession := agent(t, &l.System, "/mcp", l.Key)
		if _, err := agentSession.CallTool(t.Context(), &mcp.CallToolParams{Name: "run_command", Arguments: map[string]any{"sandboxId": id, "command": "echo " + private}}); err != nil {
			t.Error(err)
		}
		Must(t, c, api.DeleteSandbox, waiting(id, 30))

		type call struct{ Org, Face, Operation, Action, Kind, Resource, Result string }
		want := []call{
			{root.OrgID, "http", "sandboxes.create", "compute:sandboxes:create", "sandbox", id, "ok"},
			{root.OrgID, "http", "sandboxes.create", "compute:sandboxes:create", "sandbox", id, "ok"},
			{root.OrgID, "http", "sandboxes.get", "compute:sandboxes:read", "sandbox", id, "ok"},
			{root.OrgID, "http", "sandboxes.exec", "compute:sandboxes:exec", "sandbox", id, "ok"},
			{root.OrgID, "http", "files.write", "compute:files:write", "sandbox", id, "ok"},
			{root.OrgID, "http", "files.read", "compute:files:read", "sandbox", id, "NOT_FOUND"},
			{root.OrgID, "http", "sandboxes.exec", "compute:sandboxes:exec", "sandbox", id, "FORBIDDEN"},
			{other.OrgID, "http", "sandboxes.get", "compute:sandboxes:read", "", "", "NOT_FOUND"},
			{root.OrgID, "http", "sandboxes.exec", "compute:sandboxes:exec", "", "", "INVALID_INPUT"},
			{root.OrgID, "mcp", "sandboxes.exec", "compute:sandboxes:exec", "sandbox", id, "ok"},
			{root.OrgID, "http", "sandboxes.delete", "compute:sandboxes:delete", "sandbox", id, "ok"},
		}
		var got []call
		eventually(t, func() bool {
			got = nil
			rows, err := l.db.QueryContext(t.Context(), `SELECT org_id, face, operation, action, resource_kind, resource_id, result FROM audit
				WHERE operation NOT LIKE 'keys.%' AND principal_id <> '' AND key_id <> '' AND request_id <> '' AND source_ip = '127.0.0.1' AND client <> '' ORDER BY at, id`)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = rows.Close() }()
			for rows.Next() {
				var a call
				if err := rows.Scan(&a.Org, &a.Face, &a.Operation, &a.Action, &a.Kind, &a.Resource, &a.Result); err != nil {
					t.Fatal(err)
				}
				got = append(got, a)
			}
			return len(got) >= len(want) && !slices.ContainsFunc(got, func(a call) bool { return a.Result == "" })
		})
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("audit (-want +got):\n%s", diff)
		}
		var all strings.Builder
		for _, table := range []string{"audit", "events"} {
			count := numbered
			if table == "audit" {
				count = chained
			}
			if rows := count(t, l.db, table); rows < 3 {
				t.Errorf("%s has %d rows", table, rows)
			}
			dump(t, l.db, &all, `SELECT * FROM `+table)
		}
		if strings.Contains(all.String(), private) {
			t.Error("the value of an argument is in the audit log or in an event")
		}
		happened := strings.Builder{}
		dump(t, l.db, &happened, `SELECT type FROM events WHERE resource_id = '`+id+`' ORDER BY seq`)
		if got := strings.Fields(happened.String()); !slices.Equal(got, []string{`"sandbox.creating"`, `"sandbox.running"`, `"sandbox.deleting"`, `"sandbox.deleted"`}) {
			t.Errorf("events: %v", got)
		}
	})
}

// chained waits until every row of the audit log is in its organization's chain, and checks these.
func chained(t testing.TB, d *db.DB, _ string) (rows int) {
	t.Helper()
	eventually(t, func() bool {
		var waiting int
		if err := d.QueryRowContext(context.Background(), `SELECT COUNT(*) FROM audit WHERE seq IS NULL`).Scan(&waiting); err != nil {
			t.Fatal(err)
		}
		return waiting == 0
	})
	all, err := audit.Verify(context.Background(), d, "", audit.Mark{})
	if err != nil {
		t.Fatal(err)
	}
	for _, v := range all {
		if v.Wrong != nil {
			t.Errorf("the chain of %s: %v", v.Organization, v.Wrong)
		}
		rows += int(v.Rows)
	}
	return rows
}

// numbered waits until every row of a table has its number and checks that these are 1, 2, 3, ….
func numbered(t testing.TB, d *db.DB, table string) (rows int) {
	t.Helper()
	var waiting, least, most int
	eventually(t, func() bool {
		err := d.QueryRowContext(context.Background(), `SELECT COUNT(*), COUNT(*) - COUNT(seq), COALESCE(MIN(seq), 0), COALESCE(MAX(seq), 0) FROM `+table).
			Scan(&rows, &waiting, &least, &most)
		if err != nil {
			t.Fatal(err)
		}
		return waiting == 0
	})
	if least != 1 || most != rows {
		t.Errorf("%s: %d rows have the numbers %d to %d", table, rows, least, most)
	}
	return rows
}
