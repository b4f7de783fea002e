package xtest

import (
	"context"
	"io"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/berthrun/berth/api"
	"github.com/berthrun/berth/client"
	"github.com/berthrun/berth/internal/controlplane"
	"github.com/berthrun/berth/internal/db/dbtest"
)

// uncovered fails a test where a draft has a kind of resource that the schema of policies does not know of its action.
type uncovered struct {
	slog.Handler
	t *testing.T
}

// Handle implements slog.Handler.
func (u uncovered) Handle(ctx context.Context, r slog.Record) error {
	if strings.HasPrefix(r.Message, "the schema of policies lacks") {
		r.Attrs(func(a slog.Attr) bool {
			u.t.Errorf("%s: %s", r.Message, a)
			return true
		})
	}
	return u.Handler.Handle(ctx, r)
}

// WithAttrs implements slog.Handler.
func (u uncovered) WithAttrs(attrs []slog.Attr) slog.Handler {
	return uncovered{u.Handler.WithAttrs(attrs), u.t}
}

// WithGroup implements slog.Handler.
func (u uncovered) WithGroup(name string) slog.Handler {
	return uncovered{u.Handler.WithGroup(name), u.t}
}

// covered makes a control plane's log watch over the schema of policies.
func covered(t *testing.T, c *controlplane.Config) {
	c.Logger = slog.New(uncovered{c.Logger.Handler(), t})
}

const guarded = `permit (principal, action, resource);
forbid (principal, action in [Action::"compute:sandboxes:exec", Action::"compute:files:read"], resource) when { resource.hasTag("sealed") };
@confirm("deletes are approved") forbid (principal, action == Action::"compute:sandboxes:delete", resource is Sandbox) when { resource.name == "kept" } unless { context.confirmed };
`

// TestPolicies: what an organization forbids is refused on every face and on another server, on exactly the resources it names, and another organization
// does not notice.
func TestPolicies(t *testing.T) {
	dbtest.EachURL(t, func(t *testing.T, url string) {
		s := Start(t, Options{Database: url, Change: func(c *controlplane.Config) {
			covered(t, c)
			c.Patience = time.Millisecond
		}})
		servers := []*client.Client{s.Client}
		if strings.HasPrefix(url, "postgres") { // one server has SQLite to itself
			servers = append(servers, s.Peer(t).With(t, s.Key))
		}
		sealed := Sandbox(t, s.Client, api.CreateSandboxIn{Name: "sealed", Metadata: map[string]string{"sealed": "yes"}})
		open := Sandbox(t, s.Client, api.CreateSandboxIn{Name: "open"})
		kept := Sandbox(t, s.Client, api.CreateSandboxIn{Name: "kept"})
		for _, id := range []string{sealed, open} {
			Must(t, s.Client, api.WriteFile, api.WriteFileIn{FileIn: file(id, "one"), Data: "text"})
		}
		exec := func(c *client.Client, id string) string {
			return Code(t, c, api.Exec, api.ExecIn{SandboxIn: in(id), CommandIn: api.CommandIn{Command: "true"}})
		}
		for _, c := range servers {
			if code := exec(c, sealed); code != "" {
				t.Fatalf("before: %s", code)
			}
		}
		Must(t, s.Client, api.PutPolicies, api.PutPoliciesIn{Text: guarded})
		put := time.Now()
		for i, c := range servers {
			for exec(c, sealed) != "FORBIDDEN" {
				if i == 0 || time.Since(put) > 10*time.Second {
					t.Fatalf("server %d still allows it", i)
				}
			}
			if code := exec(c, open); code != "" {
				t.Errorf("another sandbox: %s", code)
			}
		}
		session := agent(t, &s.System, "/mcp", s.Key)
		for id, refused := range map[string]bool{sealed: true, open: false} {
			res, err := session.CallTool(t.Context(), &mcp.CallToolParams{Name: api.Exec.Tool, Arguments: map[string]any{"sandboxId": id, "command": "true"}})
			if err != nil || res.IsError != refused {
				t.Errorf("the tool, refused %v: got %+v, %v", refused, res, err)
			}
			want := map[bool]int{true: http.StatusForbidden, false: http.StatusOK}[refused]
			if got := download(t, &s.System, id); got != want {
				t.Errorf("the stream, refused %v: got %d", refused, got)
			}
		}
		// What asks for an approval is done once another person's key has approved exactly that.
		approver, _ := keyFor(t, &s.System, "admin")
		remove := api.SandboxWaitIn{SandboxIn: in(kept)}
		confirmation, again := asked(t, s.Client, api.DeleteSandbox, remove)
		if got := Must(t, s.Client, api.GetSandbox, in(kept)).Sandbox.State; got != api.StateRunning {
			t.Errorf("it is %s", got)
		}
		if got := Must(t, approver, api.GetConfirmation, api.ConfirmationIn{ConfirmationID: confirmation}).Confirmation.Reasons; !slices.Equal(got, []string{"deletes are approved"}) {
			t.Errorf("it asks because %v", got)
		}
		if got := approve(t, s, approver, confirmation); got != "" {
			t.Fatal(got)
		}
		remove.IdempotencyKey = again
		Must(t, s.Client, api.DeleteSandbox, remove)
		if code := Code(t, s.Client, api.GetSandbox, in(kept)); code != "NOT_FOUND" {
			t.Errorf("it is still there: %q", code)
		}
		// A key that is held back too asks once, for both.
		held := heldKey(t, s, nil, api.DeleteSandbox.Action)
		kept = Sandbox(t, s.Client, api.CreateSandboxIn{Name: "kept"})
		confirmation, _ = asked(t, held, api.DeleteSandbox, api.SandboxWaitIn{SandboxIn: in(kept)})
		if got := Must(t, approver, api.GetConfirmation, api.ConfirmationIn{ConfirmationID: confirmation}).Confirmation.Reasons; len(got) != 2 || got[1] != "deletes are approved" {
			t.Errorf("it asks because %v", got)
		}
		// A stream cannot wait.
		if _, code := Must(t, s.Client, api.PutPolicies, api.PutPoliciesIn{Text: guarded + `@confirm("read") forbid (principal, action == Action::"compute:files:read", resource) unless { context.confirmed };`}), download(t, &s.System, open); code != http.StatusForbidden {
			t.Errorf("a stream that asks: got %d", code)
		}
		secret, err := s.Plane.Found(t.Context(), "another")
		if err != nil {
			t.Fatal(err)
		}
		other := s.With(t, secret)
		theirs := Sandbox(t, other, api.CreateSandboxIn{Name: "sealed", Metadata: map[string]string{"sealed": "yes"}})
		if code := exec(other, theirs); code != "" {
			t.Errorf("another organization: %s", code)
		}
		if got := Must(t, other, api.GetPolicies, api.GetPoliciesIn{}); got.Policies.Version != 0 {
			t.Errorf("another organization has %+v", got.Policies)
		}
		// Scopes decide before: what they do not allow no policy permits.
		reader, _ := keyFor(t, &s.System, "read")
		if code := exec(reader, open); code != "FORBIDDEN" {
			t.Errorf("a reader: %q", code)
		}
		if code := Code(t, reader, api.GetPolicies, api.GetPoliciesIn{}); code != "FORBIDDEN" {
			t.Errorf("a reader reads policies: %q", code)
		}
		Must(t, s.Client, api.PutPolicies, api.PutPoliciesIn{Text: "permit (principal, action, resource);"})
	})
}

// download gets a file as a stream and gives the status.
func download(t *testing.T, s *System, sandbox string) int {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.URL+"/v1/sandboxes/"+sandbox+"/files/content?path=one", nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+s.Key)
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = res.Body.Close() }()
	_, _ = io.Copy(io.Discard, res.Body)
	return res.StatusCode
}
