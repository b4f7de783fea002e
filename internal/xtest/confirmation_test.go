package xtest

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/creack/pty"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/berthrun/berth/api"
	"github.com/berthrun/berth/api/op"
	"github.com/berthrun/berth/client"
	"github.com/berthrun/berth/internal/controlplane"
	"github.com/berthrun/berth/internal/db/dbtest"
)

// heldKey is a client with a key some of whose writes are held back.
func heldKey(t *testing.T, s *InProcess, scopes []string, confirm ...string) *client.Client {
	t.Helper()
	out := Must(t, s.Client, api.CreateKey, api.CreateKeyIn{Name: "agent", Scopes: scopes, Confirm: confirm})
	return clientOf(t, s, out.Secret)
}

func clientOf(t *testing.T, s *InProcess, key string) *client.Client {
	t.Helper()
	c, err := client.New(s.URL, key)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// asked makes a call that is held back, and gives what it was told.
func asked[In, Out any](t *testing.T, c *client.Client, def op.Def[In, Out], in In) (confirmation, key string) {
	t.Helper()
	_, err := client.Call(t.Context(), c, def, in)
	e, ok := errors.AsType[*client.Error](err)
	if !ok || e.Code != "CONFIRMATION_REQUIRED" || e.Details["status"] != "confirmation-required" {
		t.Fatalf("%s: %v, want that it is held back", def.Name, err)
	}
	confirmation, _ = e.Details["confirmationId"].(string)
	key, _ = e.Details["idempotencyKey"].(string)
	if confirmation == "" || key == "" {
		t.Fatalf("%s: details %v", def.Name, e.Details)
	}
	return confirmation, key
}

// refusedAs gives code and reason of a call.
func refusedAs[In, Out any](t *testing.T, c *client.Client, def op.Def[In, Out], in In) string {
	t.Helper()
	_, err := client.Call(t.Context(), c, def, in)
	if e, ok := errors.AsType[*client.Error](err); ok {
		return e.Code + " " + e.Reason
	}
	if err != nil {
		t.Fatal(err)
	}
	return ""
}

func approve(t *testing.T, s *InProcess, c *client.Client, id string) string {
	t.Helper()
	got := Must(t, s.Client, api.GetConfirmation, api.ConfirmationIn{ConfirmationID: id}).Confirmation
	return refusedAs(t, c, api.ApproveConfirmation, api.ApproveConfirmationIn{ConfirmationIn: api.ConfirmationIn{ConfirmationID: id}, Digest: got.Digest})
}

func confirmations(t *testing.T, test func(t *testing.T, s *InProcess), patience, lasts time.Duration) {
	t.Helper()
	dbtest.EachURL(t, func(t *testing.T, database string) {
		test(t, Start(t, Options{Database: database, Change: func(c *controlplane.Config) { c.Patience, c.ConfirmationLasts = patience, lasts }}))
	})
}

// A create and a delete wait for a person: once approved they happen once, with the key they were asked with, and again they are replays.
func TestConfirmation(t *testing.T) {
	confirmations(t, func(t *testing.T, s *InProcess) {
		agent := heldKey(t, s, nil, "write")
		in := api.CreateSandboxIn{Name: "box"}
		id, key := asked(t, agent, api.CreateSandbox, in)
		if all := Must(t, s.Client, api.ListSandboxes, api.ListSandboxesIn{Scope: "all"}).Items; len(all) != 0 {
			t.Fatalf("held back, and there: %+v", all)
		}
		in.IdempotencyKey = key
		if again, _ := asked(t, agent, api.CreateSandbox, in); again != id {
			t.Errorf("asked again it is another one: %s, %s", id, again)
		}
		list := Must(t, s.Client, api.ListConfirmations, api.ListConfirmationsIn{State: api.ConfirmationPending}).Items
		if len(list) != 1 || list[0].ID != id || list[0].Operation != "sandboxes.create" || !list[0].Approvable || list[0].Arguments != `{"name":"box"}` {
			t.Fatalf("the inbox: %+v", list)
		}
		var draft struct {
			Operation, Key, Principal, Nonce string
			Arguments                        map[string]any
			Resource                         struct{ ID, Kind string }
		}
		if err := json.Unmarshal([]byte(list[0].Draft), &draft); err != nil || draft.Operation != "sandboxes.create" || draft.Arguments["name"] != "box" ||
			draft.Resource.Kind != "sandbox" || draft.Nonce == "" || draft.Key == "" {
			t.Errorf("draft: %s, %v", list[0].Draft, err)
		}
		own := Must(t, agent, api.GetConfirmation, api.ConfirmationIn{ConfirmationID: id}).Confirmation
		if own.Approvable || own.State != api.ConfirmationPending {
			t.Errorf("to the one who asked: %+v", own)
		}
		if got := approve(t, s, s.Client, id); got != "" {
			t.Fatalf("approve: %s", got)
		}
		// Other input, another operation and another principal have nothing of it.
		if got := refusedAs(t, agent, api.CreateSandbox, api.CreateSandboxIn{Name: "other", WriteIn: in.WriteIn}); got != "IDEMPOTENCY_CONFLICT " {
			t.Errorf("other input with the key: %s", got)
		}
		made := Must(t, agent, api.CreateSandbox, in)
		if made.Sandbox == nil || made.Sandbox.Name != "box" {
			t.Fatalf("approved: %+v", made)
		}
		if again := Must(t, agent, api.CreateSandbox, in); !again.Replayed || again.Sandbox.ID != made.Sandbox.ID {
			t.Errorf("repeated: %+v", again)
		}
		if c := Must(t, s.Client, api.GetConfirmation, api.ConfirmationIn{ConfirmationID: id}).Confirmation; c.State != api.ConfirmationConsumed || c.DecidedBy == "" {
			t.Errorf("used up: %+v", c)
		}
		if got := approve(t, s, s.Client, id); got != "INVALID_STATE consumed" {
			t.Errorf("approved again: %s", got)
		}

		del := api.SandboxWaitIn{SandboxIn: api.SandboxIn{SandboxID: made.Sandbox.ID}}
		id, key = asked(t, agent, api.DeleteSandbox, del)
		del.IdempotencyKey = key
		if got := approve(t, s, s.Client, id); got != "" {
			t.Fatal(got)
		}
		Must(t, agent, api.DeleteSandbox, del)
		if got := Code(t, s.Client, api.GetSandbox, api.SandboxIn{SandboxID: made.Sandbox.ID}); got != "NOT_FOUND" {
			t.Errorf("deleted: %q", got)
		}
	}, time.Millisecond, 0)
}

// Whoever approves while the call waits has it go on inside that call.
func TestConfirmationWaits(t *testing.T) {
	confirmations(t, func(t *testing.T, s *InProcess) {
		agent := heldKey(t, s, nil, "compute:sandboxes:*")
		var wg sync.WaitGroup
		wg.Go(func() {
			eventually(t, func() bool {
				all := Must(t, s.Client, api.ListConfirmations, api.ListConfirmationsIn{State: api.ConfirmationPending}).Items
				return len(all) == 1 && approve(t, s, s.Client, all[0].ID) == ""
			})
		})
		began := time.Now()
		if made := Must(t, agent, api.CreateSandbox, api.CreateSandboxIn{Name: "box"}); made.Sandbox == nil || made.Replayed {
			t.Errorf("approved meanwhile: %+v", made)
		}
		if took := time.Since(began); took > 15*time.Second {
			t.Errorf("it took %v", took)
		}
		wg.Wait()
	}, 20*time.Second, 0)
}

// Denied and expired are final for their key; an approval that was not used is taken back or ends with its time.
func TestConfirmationEnds(t *testing.T) {
	confirmations(t, func(t *testing.T, s *InProcess) {
		agent := heldKey(t, s, nil, "write")
		in := api.CreateSandboxIn{Name: "box"}
		for _, approved := range []bool{false, true} {
			id, key := asked(t, agent, api.CreateSandbox, in)
			if approved && approve(t, s, s.Client, id) != "" {
				t.Fatal("not approved")
			}
			one := api.ConfirmationIn{ConfirmationID: id}
			if out := Must(t, s.Client, api.RejectConfirmation, api.RejectConfirmationIn{ConfirmationIn: one, Note: "not today"}); out.Confirmation.State != api.ConfirmationDenied {
				t.Errorf("denied: %+v", out)
			}
			with := in
			with.IdempotencyKey = key
			for range 2 {
				_, err := client.Call(t.Context(), agent, api.CreateSandbox, with)
				e, ok := errors.AsType[*client.Error](err)
				if !ok || e.Reason != "denied" || e.Details["status"] != "confirmation-denied" || e.Details["note"] != "not today" {
					t.Errorf("denied: %v %+v", err, e)
				}
			}
			if got := approve(t, s, s.Client, id); got != "INVALID_STATE denied" {
				t.Errorf("approved after all: %s", got)
			}
		}
	}, time.Millisecond, 0)
	confirmations(t, func(t *testing.T, s *InProcess) {
		agent := heldKey(t, s, nil, "write")
		in := api.CreateSandboxIn{Name: "box"}
		id, key := asked(t, agent, api.CreateSandbox, in)
		if got := approve(t, s, s.Client, id); got != "" {
			t.Fatal(got)
		}
		eventually(t, func() bool {
			return Must(t, s.Client, api.GetConfirmation, api.ConfirmationIn{ConfirmationID: id}).Confirmation.State == api.ConfirmationExpired
		})
		in.IdempotencyKey = key
		for range 2 {
			if got := refusedAs(t, agent, api.CreateSandbox, in); got != "CONFIRMATION_REQUIRED expired" {
				t.Errorf("approved and too late: %q", got)
			}
		}
		if all := Must(t, s.Client, api.ListConfirmations, api.ListConfirmationsIn{State: api.ConfirmationExpired}).Items; len(all) != 1 {
			t.Errorf("expired ones: %+v", all)
		}
	}, time.Millisecond, 2*time.Second)
}

// Nobody approves their own calls, nor does a key that is held back itself, a key without the right, or another organization; a wrong digest approves nothing.
func TestWhoMayApprove(t *testing.T) {
	confirmations(t, func(t *testing.T, s *InProcess) {
		agent := heldKey(t, s, []string{"admin"}, "compute:sandboxes:create")
		id, _ := asked(t, agent, api.CreateSandbox, api.CreateSandboxIn{Name: "box"})
		if got := approve(t, s, agent, id); got != "FORBIDDEN own_call" {
			t.Errorf("its own: %s", got)
		}
		// What it makes is held back as it is.
		child := Must(t, agent, api.CreateKey, api.CreateKeyIn{Name: "child", Scopes: []string{"admin"}})
		if len(child.Key.Confirm) != 1 || child.Key.Confirm[0] != "compute:sandboxes:create" {
			t.Errorf("its child: %+v", child.Key)
		}
		if got := approve(t, s, clientOf(t, s, child.Secret), id); got != "FORBIDDEN held_back" {
			t.Errorf("its child: %s", got)
		}
		secret, err := s.Plane.Found(t.Context(), "another")
		if err != nil {
			t.Fatal(err)
		}
		other := clientOf(t, s, secret)
		writer := Must(t, s.Client, api.CreateKey, api.CreateKeyIn{Name: "writer"})
		if got := approve(t, s, clientOf(t, s, writer.Secret), id); got != "FORBIDDEN not_allowed" {
			t.Errorf("without the right: %s", got)
		}
		if got := refusedAs(t, clientOf(t, s, writer.Secret), api.GetConfirmation, api.ConfirmationIn{ConfirmationID: id}); got != "NOT_FOUND " {
			t.Errorf("read by one who neither asked nor may list: %s", got)
		}
		if got := approve(t, s, other, id); !strings.HasPrefix(got, "NOT_FOUND") {
			t.Errorf("another organization: %s", got)
		}
		one := api.ConfirmationIn{ConfirmationID: id}
		if got := refusedAs(t, s.Client, api.ApproveConfirmation, api.ApproveConfirmationIn{ConfirmationIn: one, Digest: strings.Repeat("0", 64)}); got != "INVALID_INPUT digest" {
			t.Errorf("another digest: %s", got)
		}
		if c := Must(t, s.Client, api.GetConfirmation, one).Confirmation; c.State != api.ConfirmationPending {
			t.Errorf("after all of that: %+v", c)
		}
		// Reads are not held back, and a stream cannot wait.
		all := heldKey(t, s, nil, "admin")
		Must(t, all, api.ListSandboxes, api.ListSandboxesIn{})
	}, time.Millisecond, 0)
}

// Sixteen repetitions of an approved call at the same time: one effect.
func TestConfirmationRace(t *testing.T) {
	confirmations(t, func(t *testing.T, s *InProcess) {
		agent := heldKey(t, s, nil, "write")
		in := api.CreateSandboxIn{Name: "box"}
		id, key := asked(t, agent, api.CreateSandbox, in)
		in.IdempotencyKey = key
		if got := approve(t, s, s.Client, id); got != "" {
			t.Fatal(got)
		}
		var mu sync.Mutex
		fresh, ids := 0, map[string]bool{}
		var wg sync.WaitGroup
		for range 16 {
			wg.Go(func() {
				out, err := client.Call(t.Context(), agent, api.CreateSandbox, in)
				if err != nil {
					t.Errorf("repeated: %v", err)
					return
				}
				mu.Lock()
				defer mu.Unlock()
				if ids[out.Sandbox.ID] = true; !out.Replayed {
					fresh++
				}
			})
		}
		wg.Wait()
		if fresh != 1 || len(ids) != 1 {
			t.Errorf("%d effects, sandboxes %v", fresh, ids)
		}
	}, time.Millisecond, 0)
}

// What cannot wait is refused: a stream. Changed meanwhile, the call is not what was approved any more.
func TestConfirmationRefuses(t *testing.T) {
	confirmations(t, func(t *testing.T, s *InProcess) {
		box := in(Sandbox(t, s.Client, api.CreateSandboxIn{Name: "box"}))
		agent := heldKey(t, s, nil, "compute:files:*", "write")
		_, err := agent.Upload(t.Context(), upload(box.SandboxID, "a"), strings.NewReader("text"), client.UploadOptions{})
		if e, ok := errors.AsType[*client.Error](err); !ok || e.Code != "FORBIDDEN" {
			t.Errorf("an upload that is held back: %v", err)
		}
		del := api.SandboxWaitIn{SandboxIn: box}
		id, key := asked(t, agent, api.DeleteSandbox, del)
		if got := approve(t, s, s.Client, id); got != "" {
			t.Fatal(got)
		}
		renamed := "another"
		Must(t, s.Client, api.UpdateSandbox, api.UpdateSandboxIn{SandboxIn: box, Name: &renamed})
		del.IdempotencyKey = key
		for range 2 {
			if got := refusedAs(t, agent, api.DeleteSandbox, del); got != "CONFIRMATION_REQUIRED changed" {
				t.Errorf("changed meanwhile: %q", got)
			}
		}
		Must(t, s.Client, api.GetSandbox, box)
	}, time.Millisecond, 0)
}

// The command line shows what is approved, of the bytes that are approved, and asks; another answer than yes approves nothing.
func TestApproveOnTheCommandLine(t *testing.T) {
	bin := need(t, "BERTH_BIN")
	s := Start(t, Options{Change: func(c *controlplane.Config) { c.Patience = time.Millisecond }})
	agent := heldKey(t, s, nil, "write")
	id, _ := asked(t, agent, api.CreateSandbox, api.CreateSandboxIn{Name: "box", Metadata: map[string]string{"note": "\x1b[31mred"}})
	answer := func(args []string, line string) (string, int) {
		t.Helper()
		cmd := exec.Command(bin, append([]string{"confirmations", "approve", id}, args...)...) //nolint:gosec // the program under test
		cmd.Env = append(os.Environ(), "BERTH_URL="+s.URL, "BERTH_API_KEY="+s.Key)
		f, err := pty.Start(cmd)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		if line != "" {
			if _, err := f.WriteString(line + "\n"); err != nil {
				t.Fatal(err)
			}
		}
		out, _ := io.ReadAll(f) // a terminal whose program has ended gives an error
		_ = cmd.Wait()
		return string(out), cmd.ProcessState.ExitCode()
	}
	state := func() string {
		return Must(t, s.Client, api.GetConfirmation, api.ConfirmationIn{ConfirmationID: id}).Confirmation.State
	}
	out, code := answer(nil, "n")
	for _, part := range []string{"sandboxes.create", `"name": "box"`, "Approve exactly this? [y/N]", `\u001b[31mred`} {
		if !strings.Contains(out, part) {
			t.Errorf("%q is not shown: %q", part, out)
		}
	}
	if code == 0 || state() != api.ConfirmationPending || strings.Contains(out, "\x1b[31m") {
		t.Errorf("no: exit %d, %s, %q", code, state(), out)
	}
	if out, code := answer(nil, "y"); code != 0 || state() != api.ConfirmationApproved {
		t.Errorf("yes: exit %d, %s, %q", code, state(), out)
	}
}

// Over MCP a create answers a result that says that it waits, which the tool's schema allows; anything else an error. A caller may not fill the inbox.
func TestConfirmationOverMCP(t *testing.T) {
	confirmations(t, func(t *testing.T, s *InProcess) {
		box := Sandbox(t, s.Client, api.CreateSandboxIn{Name: "box"})
		key := Must(t, s.Client, api.CreateKey, api.CreateKeyIn{Name: "agent", Confirm: []string{"write"}}).Secret
		session := agent(t, &s.System, "/mcp", key)
		call := func(tool string, args map[string]any) (*mcp.CallToolResult, map[string]any) {
			t.Helper()
			res, err := session.CallTool(t.Context(), &mcp.CallToolParams{Name: tool, Arguments: args})
			if err != nil {
				t.Fatal(err)
			}
			said, _ := res.StructuredContent.(map[string]any)
			return res, said
		}
		args := map[string]any{"name": "asked", "idempotencyKey": "once"}
		res, said := call("create_sandbox", args)
		id, _ := said["confirmationId"].(string)
		if res.IsError || said["status"] != "confirmation-required" || id == "" || said["idempotencyKey"] != "once" || said["sandbox"] != nil {
			t.Fatalf("a create: %v %v", res.IsError, said)
		}
		if got := approve(t, s, s.Client, id); got != "" {
			t.Fatal(got)
		}
		if res, said := call("create_sandbox", args); res.IsError || said["status"] != "done" || said["sandbox"] == nil {
			t.Errorf("approved: %v %v", res.IsError, said)
		}
		res, _ = call("delete_sandbox", map[string]any{"sandboxId": box})
		text, _ := res.Content[0].(*mcp.TextContent)
		if !res.IsError || text == nil || !strings.Contains(text.Text, "CONFIRMATION_REQUIRED") || !strings.Contains(text.Text, "cnf_") || !strings.Contains(text.Text, "idempotencyKey") {
			t.Errorf("a delete: %v %+v", res.IsError, text)
		}

		held := clientOf(t, s, key)
		last := ""
		for n := range 101 {
			if last = refusedAs(t, held, api.CreateSandbox, api.CreateSandboxIn{Name: fmt.Sprintf("box-%d", n)}); last != "CONFIRMATION_REQUIRED held" {
				break
			}
		}
		if last != "LIMIT_EXCEEDED confirmations" {
			t.Errorf("a hundred and one: %s", last)
		}
	}, time.Millisecond, 0)
}
