package xtest

import (
	"database/sql"
	"errors"
	"maps"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/berthrun/berth/api"
	"github.com/berthrun/berth/client"
	"github.com/berthrun/berth/internal/controlplane"
	"github.com/berthrun/berth/internal/db"
	"github.com/berthrun/berth/internal/db/dbtest"
	"github.com/berthrun/berth/internal/runtime"
	"github.com/berthrun/berth/internal/runtime/fake"
)

// The pattern write holds back every write, those on keys too; a pattern that holds nothing back is refused rather than believed.
func TestConfirmHoldsAll(t *testing.T) {
	confirmations(t, func(t *testing.T, s *InProcess) {
		agent := heldKey(t, s, []string{"admin"}, "write")
		id, key := asked(t, agent, api.CreateKey, api.CreateKeyIn{Name: "child", Scopes: []string{"admin"}})
		if got := approve(t, s, s.Client, id); got != "" {
			t.Fatal(got)
		}
		again := api.CreateKeyIn{Name: "child", Scopes: []string{"admin"}}
		again.IdempotencyKey = key
		if child := Must(t, agent, api.CreateKey, again); strings.Join(child.Key.Confirm, " ") != "write" {
			t.Errorf("what it made is held back by %v", child.Key.Confirm)
		}
		if got := approve(t, s, agent, id); got != "FORBIDDEN own_call" {
			t.Errorf("its own: %s", got)
		}
		other, _ := asked(t, heldKey(t, s, nil, "write"), api.CreateSandbox, api.CreateSandboxIn{})
		if got := approve(t, s, agent, other); got != "FORBIDDEN held_back" {
			t.Errorf("another's, by one that is held back: %s", got)
		}
		for _, pattern := range []string{"read", "compute:sandboxs:delete", "identity:keys:read", "compute:sandboxes"} {
			if got := refusedAs(t, s.Client, api.CreateKey, api.CreateKeyIn{Name: "typo", Confirm: []string{"write", pattern}}); got != "INVALID_INPUT " {
				t.Errorf("%s: %q", pattern, got)
			}
		}
		for _, pattern := range []string{"admin", "compute:*", "compute:sandboxes:terminal", "identity:keys:create"} {
			Must(t, s.Client, api.CreateKey, api.CreateKeyIn{Name: "held", Confirm: []string{pattern}})
		}
	}, time.Millisecond, 0)
}

// Whoever may start nothing without a person wakes nothing by reading either; a call that was approved does.
func TestConfirmationAndSleep(t *testing.T) {
	change := func(c *controlplane.Config) { c.Patience = time.Millisecond }
	eachSleeper(t, change, func(t *testing.T, l *life) {
		box := Sandbox(t, l.Client, idling(0))
		Must(t, l.Client, api.WriteFile, api.WriteFileIn{FileIn: file(box, "there"), Data: "x"})
		l.pause(t, box)
		agent := heldKey(t, l.InProcess, nil, "write")
		if got := refusedAs(t, agent, api.ReadFile, api.ReadFileIn{FileIn: file(box, "there")}); got != "INVALID_STATE asleep" {
			t.Errorf("a read: %q", got)
		}
		if _, err := agent.Download(t.Context(), file(box, "there"), 0, ""); err == nil {
			t.Error("a download woke it")
		}
		run := api.ExecIn{SandboxIn: in(box), CommandIn: api.CommandIn{Command: "cat there"}}
		id, key := asked(t, agent, api.Exec, run)
		if l.asleep(t, box) != runtime.OnDisk {
			t.Fatal("it woke before anybody approved it")
		}
		if got := approve(t, l.InProcess, l.Client, id); got != "" {
			t.Fatal(got)
		}
		run.IdempotencyKey = key
		if out := Must(t, agent, api.Exec, run); out.Stdout != "x" || out.Woke != "memory" {
			t.Errorf("approved: %+v", out)
		}
		free := heldKey(t, l.InProcess, nil, "compute:sandboxes:delete")
		l.pause(t, box)
		if out := Must(t, free, api.ReadFile, api.ReadFileIn{FileIn: file(box, "there")}); out.Data != "x" {
			t.Errorf("by a key that may wake it: %+v", out)
		}
	})
}

// Passwords, variables and scripts with which a call is made are nowhere in what is kept and shown of it, and another of them is another call.
func TestConfirmationKeepsNoSecret(t *testing.T) {
	dbtest.EachURL(t, func(t *testing.T, url string) {
		s := Start(t, Options{Database: url, Change: func(c *controlplane.Config) { c.Patience = time.Millisecond }})
		d := dbtest.Open(t, url)
		agent := heldKey(t, s, nil, "write")
		const secret = "correct-horse"
		reg := api.SetRegistryIn{Host: "registry.example", Username: "u", Password: secret}
		id, key := asked(t, agent, api.SetRegistry, reg)
		asked(t, agent, api.CreateSandbox, api.CreateSandboxIn{Env: map[string]string{"TOKEN": secret}})
		box := in(Sandbox(t, s.Client, api.CreateSandboxIn{}))
		asked(t, agent, api.Exec, api.ExecIn{SandboxIn: box, CommandIn: api.CommandIn{Command: "true", Env: map[string]string{"TOKEN": secret}}})
		asked(t, agent, api.UpdateSandbox, api.UpdateSandboxIn{SandboxIn: box, Env: map[string]string{"TOKEN": secret}})
		for _, c := range Must(t, s.Client, api.ListConfirmations, api.ListConfirmationsIn{}).Items {
			if !strings.Contains(c.Arguments, `"secret":"`) || !strings.Contains(c.Draft, `"secret":"`) || strings.Contains(c.Arguments+c.Draft, secret) {
				t.Errorf("%s shows %s of %s", c.Operation, c.Arguments, c.Draft)
			}
		}
		var all strings.Builder
		for _, query := range []string{`SELECT * FROM confirmations`, `SELECT * FROM idempotency`, `SELECT * FROM events`} {
			dump(t, d, &all, query)
		}
		if strings.Contains(all.String(), secret) || !strings.Contains(all.String(), "TOKEN") {
			t.Errorf("kept: %s", all.String())
		}
		if got := approve(t, s, s.Client, id); got != "" {
			t.Fatal(got)
		}
		other := reg
		other.IdempotencyKey, other.Password = key, "another"
		if got := refusedAs(t, agent, api.SetRegistry, other); got != "IDEMPOTENCY_CONFLICT " {
			t.Errorf("another password: %q", got)
		}
		reg.IdempotencyKey = key
		Must(t, agent, api.SetRegistry, reg)
	})
}

// One key over two operations is two calls, each with a request of its own.
func TestConfirmationOfAnotherOperation(t *testing.T) {
	confirmations(t, func(t *testing.T, s *InProcess) {
		box := in(Sandbox(t, s.Client, api.CreateSandboxIn{}))
		agent := heldKey(t, s, nil, "write")
		stop := api.SandboxWaitIn{SandboxIn: box}
		stop.IdempotencyKey = "same"
		first, _ := asked(t, agent, api.StopSandbox, stop)
		if got := approve(t, s, s.Client, first); got != "" {
			t.Fatal(got)
		}
		if second, _ := asked(t, agent, api.DeleteSandbox, stop); second == first {
			t.Error("the approval of a stop is that of a delete")
		}
		if again := heldKey(t, s, nil, "write"); again != nil {
			if other, _ := asked(t, again, api.StopSandbox, stop); other == first {
				t.Error("another key has the approval")
			}
		}
		Must(t, s.Client, api.GetSandbox, box)
	}, time.Millisecond, 0)
}

// A create that acts on what is there already names it; where it came to be there meanwhile it is not what was approved.
func TestConfirmationOfWhatIsThere(t *testing.T) {
	dbtest.EachURL(t, func(t *testing.T, url string) {
		s := Start(t, Options{Database: url, Fake: fake.Config{Can: fake.Everything()}, Change: func(c *controlplane.Config) { c.Patience = time.Millisecond }})
		agent := heldKey(t, s, nil, "write")
		build := api.BuildTemplateIn{Name: "mine", FromTemplate: "base", Steps: []api.TemplateStep{{Type: "ENV", Key: "A", Value: "b"}}}
		id, _ := heldBuild(t, agent, build)
		fresh := Must(t, s.Client, api.GetConfirmation, api.ConfirmationIn{ConfirmationID: id}).Confirmation
		if fresh.Resource.ID != "" || fresh.Resource.Name != "mine" {
			t.Errorf("a new one: %+v", fresh.Resource)
		}
		if got := approve(t, s, s.Client, id); got != "" {
			t.Fatal(got)
		}
		there := Must(t, s.Client, api.BuildTemplate, build)
		built(t, s.Client, there.BuildID)
		build.IdempotencyKey = "one"
		if got := refusedAs(t, agent, api.BuildTemplate, build); got != "CONFIRMATION_REQUIRED changed" {
			t.Errorf("it would be another version of what somebody made meanwhile: %q", got)
		}
		build.IdempotencyKey = "two"
		id, _ = heldBuild(t, agent, build)
		if c := Must(t, s.Client, api.GetConfirmation, api.ConfirmationIn{ConfirmationID: id}).Confirmation; c.Resource.ID != there.TemplateID {
			t.Errorf("of one that is there: %+v", c.Resource)
		}
		if got := approve(t, s, s.Client, id); got != "" {
			t.Fatal(got)
		}
		if out := Must(t, agent, api.BuildTemplate, build); out.TemplateID != there.TemplateID {
			t.Errorf("approved: %+v", out)
		}
	})
}

// A sandbox of a template is approved as the template is: built anew or given another script it is not what was approved.
func TestConfirmationOfATemplate(t *testing.T) {
	dbtest.EachURL(t, func(t *testing.T, url string) {
		s := Start(t, Options{Database: url, Fake: fake.Config{Can: fake.Everything()}, Change: func(c *controlplane.Config) { c.Patience = time.Millisecond }})
		agent := heldKey(t, s, nil, "compute:sandboxes:*")
		build := api.BuildTemplateIn{Name: "mine", FromTemplate: "base", Steps: []api.TemplateStep{{Type: "ENV", Key: "A", Value: "b"}}}
		one := Must(t, s.Client, api.BuildTemplate, build)
		built(t, s.Client, one.BuildID)
		create := api.CreateSandboxIn{Template: "mine"}
		change := map[string]func(){
			"nothing": func() {},
			"script": func() {
				script := "echo evil"
				Must(t, agent, api.UpdateTemplate, api.UpdateTemplateIn{TemplateIn: api.TemplateIn{TemplateID: one.TemplateID}, UserData: &script})
			},
			"build": func() {
				build.Steps[0].Value = "c"
				built(t, s.Client, Must(t, agent, api.BuildTemplate, build).BuildID)
			},
		}
		for _, name := range []string{"nothing", "script", "nothing", "build", "nothing"} {
			create.IdempotencyKey = ""
			id, key := asked(t, agent, api.CreateSandbox, create)
			if c := Must(t, s.Client, api.GetConfirmation, api.ConfirmationIn{ConfirmationID: id}).Confirmation; !strings.Contains(c.Draft, `"uses":{"build":"bld_`) {
				t.Errorf("it does not say of which build: %s", c.Draft)
			}
			if got := approve(t, s, s.Client, id); got != "" {
				t.Fatal(got)
			}
			change[name]()
			want := "CONFIRMATION_REQUIRED changed"
			if name == "nothing" {
				want = ""
			}
			create.IdempotencyKey = key
			if got := refusedAs(t, agent, api.CreateSandbox, create); got != want {
				t.Errorf("%s changed: %q, want %q", name, got, want)
			}
		}
	})
}

// heldBuild asks for a build, which is answered by a result that says that it waits.
func heldBuild(t *testing.T, c *client.Client, build api.BuildTemplateIn) (id, key string) {
	t.Helper()
	if build.IdempotencyKey == "" {
		build.IdempotencyKey = "one"
	}
	return asked(t, c, api.BuildTemplate, build)
}

// Two servers that are asked to carry out one approval at the same time: one effect, and both say the same.
func TestConfirmationByTwoServers(t *testing.T) {
	l := newLife(t, dbtest.Postgres(t), func(c *controlplane.Config) { c.Patience = time.Millisecond })
	peer := l.Peer(t)
	for range 8 {
		key := Must(t, l.Client, api.CreateKey, api.CreateKeyIn{Name: "agent", Confirm: []string{"write"}}).Secret
		agents := []*client.Client{l.With(t, key), peer.With(t, key)}
		in := api.CreateSandboxIn{}
		in.IdempotencyKey = "one"
		id, _ := asked(t, agents[0], api.CreateSandbox, in)
		if other, _ := asked(t, agents[1], api.CreateSandbox, in); other != id {
			t.Fatalf("by the other it is %s, not %s", other, id)
		}
		if got := approve(t, l.InProcess, peer.Client, id); got != "" {
			t.Fatal(got)
		}
		var mu sync.Mutex
		fresh, ids := 0, map[string]bool{}
		together(8, func(i int) {
			out, err := within(agents[i%2], api.CreateSandbox, in)
			mu.Lock()
			defer mu.Unlock()
			if err != nil || out.Sandbox == nil {
				t.Errorf("approved: %+v, %v", out, err)
				return
			}
			if ids[out.Sandbox.ID] = true; !out.Replayed {
				fresh++
			}
		})
		if fresh != 1 || len(ids) != 1 {
			t.Errorf("%d effects, %v", fresh, ids)
		}
	}
}

// Approved, rejected and carried out at the same time: what was carried out stays, what was denied is not carried out, and the decision is one.
func TestConfirmationDecidedAtOnce(t *testing.T) {
	dbtest.EachURL(t, func(t *testing.T, url string) {
		s := Start(t, Options{Database: url, Change: func(c *controlplane.Config) { c.Patience = time.Millisecond }})
		d := dbtest.Open(t, url)
		agent := heldKey(t, s, nil, "write")
		for n := range 12 {
			in := api.CreateSandboxIn{}
			in.IdempotencyKey = "k" + string(rune('a'+n))
			id, _ := asked(t, agent, api.CreateSandbox, in)
			digest := Must(t, s.Client, api.GetConfirmation, api.ConfirmationIn{ConfirmationID: id}).Confirmation.Digest
			one := api.ConfirmationIn{ConfirmationID: id}
			var errs [3]error
			made := false
			together(3, func(i int) {
				switch i {
				case 0:
					_, errs[i] = within(s.Client, api.ApproveConfirmation, api.ApproveConfirmationIn{ConfirmationIn: one, Digest: digest})
				case 1:
					_, errs[i] = within(s.Client, api.RejectConfirmation, api.RejectConfirmationIn{ConfirmationIn: one})
				case 2:
					var out api.CreateSandboxOut
					out, errs[i] = within(agent, api.CreateSandbox, in)
					made = errs[i] == nil && out.Sandbox != nil
				}
			})
			state := Must(t, s.Client, api.GetConfirmation, one).Confirmation.State
			want := api.ConfirmationDenied
			if made {
				want = api.ConfirmationConsumed
			}
			if state != want || (errs[1] == nil) == made {
				t.Errorf("made %v, and it is %s: %v", made, state, errs)
			}
			for _, err := range errs[:2] {
				if e, ok := errors.AsType[*client.Error](err); ok && e.Reason == api.ConfirmationPending {
					t.Errorf("refused for being pending: %v", err)
				}
			}
			if n := count(t, d, `SELECT COUNT(*) FROM events WHERE type = 'confirmation.consumed' AND resource_id = $1`, id); (n == 1) != made {
				t.Errorf("made %v, and was used up %d times", made, n)
			}
		}
	})
}

func count(t *testing.T, d *db.DB, query string, args ...any) (n int) {
	t.Helper()
	if err := d.QueryRowContext(t.Context(), query, args...).Scan(&n); err != nil && !errors.Is(err, sql.ErrNoRows) {
		t.Fatal(err)
	}
	return n
}

// No list of tools is a way around: by whatever name an operation is called over MCP, it is held back.
func TestConfirmationOfEveryProfile(t *testing.T) {
	confirmations(t, func(t *testing.T, s *InProcess) {
		box := Sandbox(t, s.Client, api.CreateSandboxIn{Name: "box"})
		key := Must(t, s.Client, api.CreateKey, api.CreateKeyIn{Name: "agent", Confirm: []string{"write"}}).Secret
		for _, tt := range []struct {
			path, tool string
			args       map[string]any
		}{
			{"/mcp", "delete_sandbox", nil},
			{"/mcp?profile=chatgpt", "delete_sandbox", nil},
			{"/mcp?profile=compact", "sandboxes", map[string]any{"action": "delete"}},
			{"/mcp/x/sandboxes", "delete_sandbox", nil},
		} {
			args := map[string]any{"sandboxId": box}
			maps.Copy(args, tt.args)
			res, err := agent(t, &s.System, tt.path, key).CallTool(t.Context(), &mcp.CallToolParams{Name: tt.tool, Arguments: args})
			if err != nil {
				t.Errorf("%s %s: %v", tt.path, tt.tool, err)
				continue
			}
			if text, _ := res.Content[0].(*mcp.TextContent); !res.IsError || text == nil || !strings.Contains(text.Text, "CONFIRMATION_REQUIRED") {
				t.Errorf("%s %s: %v %+v", tt.path, tt.tool, res.IsError, text)
			}
		}
		Must(t, s.Client, api.GetSandbox, in(box))
	}, time.Millisecond, 0)
}

// confirmation is of a call that waits for a person.
func (g *registry) confirmation(t *testing.T) api.Confirmation {
	t.Helper()
	id, _ := asked(t, heldKey(t, g.s, nil, "write"), api.StopSandbox, api.SandboxWaitIn{SandboxIn: in(g.sandbox)})
	return Must(t, g.s.Client, api.GetConfirmation, api.ConfirmationIn{ConfirmationID: id}).Confirmation
}
