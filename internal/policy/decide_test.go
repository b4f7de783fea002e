package policy

import (
	"fmt"
	"iter"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	cedar "github.com/cedar-policy/cedar-go"
	"github.com/cedar-policy/cedar-go/types"
	"github.com/google/go-cmp/cmp"

	"github.com/berthrun/berth/api"
	"github.com/berthrun/berth/api/op"
	"github.com/berthrun/berth/internal/caller"
)

var now = time.Date(2026, 11, 30, 20, 0, 0, 0, time.UTC)

func registered(t testing.TB) *Schema {
	t.Helper()
	s, err := Registered()
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func load(t testing.TB, s *Schema, text string) *Set {
	t.Helper()
	if problems := s.Check(text); len(problems) > 0 {
		t.Fatalf("%s\n%+v", text, problems)
	}
	set, err := s.Load(text)
	if err != nil {
		t.Fatal(err)
	}
	return set
}

const permitAll = "permit(principal, action, resource);\n"

func TestDecide(t *testing.T) {
	s := registered(t)
	own := op.Resource{Kind: "sandbox", ID: "sbx_1", OrgID: "org_a", WorkspaceID: "ws_a", Name: "prod-db", Labels: map[string]string{"team": "data"}, CreatedBy: op.CreatedBy{Key: "key_1", Agent: "agent_1"}}
	key := caller.Caller{OrgID: "org_a", WorkspaceID: "ws_a", PrincipalID: "key_1", KeyID: "key_1", Face: caller.FaceMCP, SourceIP: "10.1.2.3"}
	with := func(change func(*caller.Caller)) *caller.Caller {
		c := key
		change(&c)
		return &c
	}
	agent := with(func(c *caller.Caller) { c.PrincipalID, c.KeyID, c.AgentID = "agent_1", "", "agent_1" })
	agentKey := with(func(c *caller.Caller) { c.AgentID = "agent_1" })
	app := with(func(c *caller.Caller) {
		c.PrincipalID, c.KeyID, c.AppID, c.AgentID, c.PersonID = "agent_1", "", "app_1", "agent_1", "user_1"
	})
	person := with(func(c *caller.Caller) { c.PrincipalID, c.KeyID, c.PersonID = "user_1", "", "user_1" })
	personKey := with(func(c *caller.Caller) { c.PersonID = "user_1" })
	foreign := own
	foreign.OrgID = "org_b"
	org := op.Resource{Kind: "organization", ID: "org_a", OrgID: "org_a"}
	self := op.Resource{Kind: "key", ID: "key_1", OrgID: "org_a", Name: "mine"}
	const del, get, put = "compute:sandboxes:delete", "compute:sandboxes:read", "identity:policies:write"
	for _, tt := range []struct {
		name, text string
		who        *caller.Caller
		action     string
		resource   op.Resource
		confirmed  bool
		want       Effect
		reason     string
	}{
		{"default", Default(), &key, del, own, false, Allow, ""},
		{"nothing permits", "", &key, del, own, false, Deny, "no policy permits compute:sandboxes:delete"},
		{"tenant wall", Default(), &key, get, foreign, false, Deny, "berth:tenant-wall"},
		{"tenant wall, whatever permits it", `permit(principal == Key::"key_1", action, resource == Sandbox::"sbx_1");`, &key, get, foreign, true, Deny, "berth:tenant-wall"},
		{"tenant wall for a person", Default(), person, get, foreign, false, Deny, "berth:tenant-wall"},
		{"an agent's policies", Default(), agent, put, org, false, Deny, "berth:agent-guardrails"},
		{"an agent's key", Default(), agentKey, put, org, false, Deny, "berth:agent-guardrails"},
		{"an agent's key revokes itself", Default(), agentKey, "identity:keys:revoke", self, false, Deny, "berth:agent-guardrails"},
		{"an agent makes keys", permitAll + `permit(principal is Agent, action == Action::"identity:keys:create", resource);`, agent, "identity:keys:create", self, true, Deny, "berth:agent-guardrails"},
		{"an app", Default(), app, put, org, false, Deny, "berth:agent-guardrails"},
		{"an agent may read identity", Default(), agent, "identity:policies:read", org, false, Allow, ""},
		{"an agent works", Default(), agent, del, own, false, Allow, ""},
		{"a person's policies", Default(), person, put, org, false, Allow, ""},
		{"a key's policies", Default(), &key, put, org, false, Allow, ""},
		{"a key revokes itself", permitAll + `forbid(principal, action == Action::"identity:keys:revoke", resource) unless { resource == principal };`, &key, "identity:keys:revoke", self, false, Allow, ""},
		{"read alone", `permit(principal, action in Action::"read", resource);`, &key, get, own, false, Allow, ""},
		{"read alone, write", `permit(principal, action in Action::"read", resource);`, &key, del, own, false, Deny, "no policy permits"},
		{"write holds read", `permit(principal, action in Action::"write", resource);`, &key, get, own, false, Allow, ""},
		{"write is not identity", `permit(principal, action in Action::"write", resource);`, &key, put, org, false, Deny, "no policy permits"},
		{"admin is all", `permit(principal, action in Action::"admin", resource);`, &key, put, org, false, Allow, ""},
		{"a pattern", `permit(principal, action in Action::"compute:sandboxes:*", resource);`, &key, del, own, false, Allow, ""},
		{"another pattern", `permit(principal, action in [Action::"compute:volumes:*", Action::"compute:images:*"], resource);`, &key, del, own, false, Deny, "no policy permits"},
		{"label", permitAll + `@id("data") forbid(principal, action == Action::"compute:sandboxes:delete", resource) when { resource.hasTag("team") && resource.getTag("team") == "data" };`, &key, del, own, false, Deny, "policy data in line 2"},
		{"name", permitAll + `forbid(principal, action, resource is Sandbox) when { resource.name like "prod-*" };`, &key, get, own, false, Deny, "policy1"},
		{"creator", permitAll + `forbid(principal, action, resource is Sandbox) unless { resource.createdBy has agent && resource.createdBy.agent == Agent::"agent_1" };`, &key, get, own, false, Allow, ""},
		{"workspace", `permit(principal in Workspace::"ws_a", action, resource in Workspace::"ws_a");`, &key, del, own, false, Allow, ""},
		{"another workspace", `permit(principal, action, resource in Workspace::"ws_b");`, &key, del, own, false, Deny, "no policy"},
		{"address", permitAll + `forbid(principal, action, resource) unless { context has sourceAddress && context.sourceAddress.isInRange(ip("10.0.0.0/8")) };`, &key, del, own, false, Allow, ""},
		{"another address", permitAll + `forbid(principal, action, resource) unless { context has sourceAddress && context.sourceAddress.isInRange(ip("192.168.0.0/16")) };`, &key, del, own, false, Deny, "policy1"},
		{"time", permitAll + `forbid(principal, action, resource) when { context.time.toTime() >= duration("20h") };`, &key, del, own, false, Deny, "policy1"},
		{"face", permitAll + `forbid(principal, action in Action::"write", resource) when { context.face == "mcp" && !context.readOnly };`, &key, del, own, false, Deny, "policy1"},
		{"an agent's forbid reaches its keys", permitAll + `forbid(principal in Agent::"agent_1", action in Action::"write", resource);`, agentKey, del, own, false, Deny, "policy1"},
		{"a person's forbid reaches the app", permitAll + `forbid(principal == Person::"user_1", action == Action::"compute:sandboxes:delete", resource);`, app, del, own, false, Deny, "policy1"},
		{"a person's forbid reaches the key", permitAll + `forbid(principal is Person, action == Action::"compute:sandboxes:delete", resource);`, personKey, del, own, false, Deny, "policy1"},
		{"an app alone is not enough", `permit(principal is App, action, resource);`, app, del, own, false, Deny, "no policy permits"},
		{"both", `permit(principal in Person::"user_1", action, resource);`, app, del, own, false, Allow, ""},
		{"organization", permitAll + `forbid(principal, action, resource) unless { context.organization == resource.org && principal in resource.org };`, &key, del, own, false, Allow, ""},

		{"confirm", permitAll + `@confirm("ask first") forbid(principal, action == Action::"compute:sandboxes:delete", resource) unless { context.confirmed };`, &key, del, own, false, Confirm, "ask first"},
		{"confirmed", permitAll + `@confirm("ask first") forbid(principal, action == Action::"compute:sandboxes:delete", resource) unless { context.confirmed };`, &key, del, own, true, Allow, ""},
		{"confirm beside a forbid", permitAll + `@confirm("ask first") forbid(principal, action, resource) unless { context.confirmed };` + "\n" + `forbid(principal, action == Action::"compute:sandboxes:delete", resource);`, &key, del, own, false, Deny, "line 3"},
		{"confirm where nothing permits", `@confirm("ask first") forbid(principal, action, resource) unless { context.confirmed };`, &key, del, own, false, Deny, ""},
		{"two confirms", permitAll + `@confirm("one") forbid(principal, action, resource) unless { context.confirmed };` + "\n" + `@confirm("two") forbid(principal, action, resource) when { principal is Key } unless { context.confirmed };`, &key, del, own, false, Confirm, "one|two"},
		{"confirm lifts no guardrail", permitAll + `@confirm("one") forbid(principal, action, resource) unless { context.confirmed };`, agent, put, org, false, Deny, "berth:agent-guardrails"},
		{"confirm of the person", permitAll + `@confirm("mine") forbid(principal == Person::"user_1", action, resource) unless { context.confirmed };`, app, del, own, false, Confirm, "mine"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			set := load(t, s, tt.text)
			sv := &Service{cfg: Config{Now: func() time.Time { return now }}, schema: s}
			got := set.Decide(sv.asked(tt.who, tt.action, &op.Draft{Resource: tt.resource, Confirmed: tt.confirmed}))
			if got.Effect != tt.want || !strings.Contains(strings.Join(got.Reasons, "|"), tt.reason) {
				t.Errorf("got %+v, want %s (%s)", got, tt.want, tt.reason)
			}
		})
	}
}

// TestErrorsDeny: the engine leaves out a forbid that cannot be evaluated, which would forbid nothing.
func TestErrorsDeny(t *testing.T) {
	s := registered(t)
	for _, text := range []string{
		permitAll + `forbid(principal, action, resource) when { resource.nothing == "x" };`,
		permitAll + `permit(principal, action, resource) when { context.nothing };`,
		permitAll + `@confirm("x") forbid(principal, action, resource) unless { context.confirmed };` + "\n" + `forbid(principal, action, resource) when { context.confirmed && resource.nothing == "x" };`,
		permitAll + `forbid(principal, action, resource) when { 9223372036854775807 + 1 == 0 };`,
	} {
		set, err := s.Load(text) // what no check has seen, such as text of another version
		if err != nil {
			t.Fatal(err)
		}
		got := set.Decide(&Ask{Actors: actors(&caller.Caller{OrgID: "org_a", KeyID: "key_1"}), Action: "account:read", Resource: op.Resource{Kind: "organization", ID: "org_a", OrgID: "org_a"}, Time: now})
		if got.Effect != Deny || !strings.Contains(strings.Join(got.Reasons, " "), "could not be evaluated") {
			t.Errorf("%s: got %+v", text, got)
		}
	}
	if got := load(t, s, permitAll).Decide(&Ask{Action: "account:read"}); got.Effect != Deny {
		t.Errorf("nobody: got %+v", got)
	}
}

// random makes policies of every form of scope, some of which fail when they are evaluated.
func random(r *rand.Rand, s *Schema) string {
	pick := func(of ...string) string { return of[r.IntN(len(of))] }
	var actions []string
	for _, uid := range slices.SortedFunc(maps.Keys(s.groups), func(a, b types.EntityUID) int { return strings.Compare(string(a.ID), string(b.ID)) }) {
		actions = append(actions, uid.String())
	}
	var b strings.Builder
	for range 1 + r.IntN(40) {
		b.WriteString(pick("permit", "permit", "forbid", `@confirm("x") forbid`))
		b.WriteString(pick("(principal, ", "(principal, ", `(principal == Key::"key_1", `, `(principal in Agent::"agent_1", `, `(principal in Organization::"org_a", `, `(principal == Person::"user_1", `,
			"(principal is Key, ", "(principal is App, ", "(principal is Person, ", `(principal is Key in Workspace::"ws_a", `, `(principal is App in Person::"user_1", `))
		b.WriteString(pick("action, ", "action == "+pick(actions...)+", ", "action in "+pick(actions...)+", ", "action in ["+pick(actions...)+", "+pick(actions...)+", "+pick(actions...)+"], "))
		b.WriteString(pick("resource)", "resource)", "resource is Sandbox)", `resource in Workspace::"ws_a")`, `resource == Volume::"vol_1")`))
		b.WriteString(pick("", "", ` when { resource has name && resource.name like "a*" }`, " unless { context.confirmed }", ` when { resource.hasTag("team") }`, ` when { resource.getTag("none") == "x" }`, ` when { context.readOnly }`))
		b.WriteString(";\n")
	}
	return b.String()
}

// whole is every policy of a set, as the engine would go through them without an index.
type whole struct{ *index }

func (w whole) All() iter.Seq2[types.PolicyID, *cedar.Policy] {
	return func(yield func(types.PolicyID, *cedar.Policy) bool) {
		for _, e := range w.all {
			if !yield(e.id, e.policy) {
				return
			}
		}
	}
}

// TestIndexIsTheFullScan: what the index leaves out never changes a decision, its reasons or its errors.
func TestIndexIsTheFullScan(t *testing.T) {
	s := registered(t)
	r := rand.New(rand.NewPCG(6, 15)) //nolint:gosec // the same ones each time
	var names []string
	for name := range s.actions {
		names = append(names, name)
	}
	slices.Sort(names)
	seen := map[string]int{}
	for range 300 {
		text := random(r, s)
		set, err := s.Load(text)
		if err != nil {
			t.Fatalf("%s\n%v", text, err)
		}
		for range 30 {
			c := &caller.Caller{OrgID: "org_a", WorkspaceID: pickOf(r, "", "ws_a", "ws_b"), PrincipalID: "key_1", PersonID: pickOf(r, "", "user_1"), AgentID: pickOf(r, "", "agent_1"), KeyID: pickOf(r, "key_1", "key_2", ""), AppID: pickOf(r, "", "app_1")}
			res := op.Resource{Kind: pickOf(r, "sandbox", "volume", "key", "organization"), ID: pickOf(r, "vol_1", "key_1", "org_a", ""), OrgID: pickOf(r, "org_a", "org_a", "org_b"), WorkspaceID: pickOf(r, "", "ws_a"), Name: pickOf(r, "", "abc", "bcd")}
			if r.IntN(2) == 0 {
				res.Labels = map[string]string{"team": "data"}
			}
			ask := &Ask{Action: pickOf(r, names...), Resource: res, Time: now, Face: "http", ReadOnly: r.IntN(2) == 0, Confirmed: r.IntN(2) == 0}
			for _, p := range actors(c) {
				req := s.request(ask, p)
				d1, g1 := cedar.Authorize(set.index.find(s, req), req, req.Request)
				d2, g2 := cedar.Authorize(whole{&set.index}, req, req.Request)
				if diff := cmp.Diff(sortedDiagnostic(g2), sortedDiagnostic(g1)); d1 != d2 || diff != "" {
					t.Fatalf("%s\n%+v\nby index %v, of all %v (-all +index):\n%s", text, req.Request, d1, d2, diff)
				}
				seen[fmt.Sprint(d1, len(g1.Errors) > 0, len(g1.Reasons) > 0)]++
			}
		}
	}
	for _, want := range []string{"allow false true", "deny false true", "deny false false", "deny true true"} {
		if seen[want] < 20 {
			t.Errorf("only %d decisions were %s: %v", seen[want], want, seen)
		}
	}
}

func pickOf(r *rand.Rand, of ...string) string { return of[r.IntN(len(of))] }

func sortedDiagnostic(g cedar.Diagnostic) (all []string) {
	for _, r := range g.Reasons {
		all = append(all, "reason "+string(r.PolicyID))
	}
	for _, e := range g.Errors {
		all = append(all, "error "+e.String())
	}
	slices.Sort(all)
	return all
}

func TestCheck(t *testing.T) {
	s := registered(t)
	for _, tt := range []struct {
		name, text string
		want       []api.PolicyProblem // a reason that begins so
	}{
		{"fine", permitAll, nil},
		{"empty", "// nothing\n", nil},
		{"no semicolon", "permit(principal, action, resource)\n", []api.PolicyProblem{{Line: 2, Column: 1, Reason: `"": exact got  want ;`}}},
		{"not Cedar", "permit(principal, action, resource);\nallow all\n", []api.PolicyProblem{{Line: 2, Column: 7, Reason: `"all": unexpected effect`}}},
		{"a string without an end", "permit(principal == Key::\"a, action, resource);", []api.PolicyProblem{{Line: 1, Column: 26, Reason: "literal not terminated"}}},
		{"no such action", "\n  permit(principal, action == Action::\"compute:sandboxes:destroy\", resource);", []api.PolicyProblem{{Line: 2, Column: 3, Policy: "policy0", Reason: "unrecognized action"}}},
		{"no such type", `permit(principal is User, action, resource);`, []api.PolicyProblem{{Line: 1, Column: 1, Policy: "policy0", Reason: "unrecognized entity type"}}},
		{"never applies", `permit(principal, action == Action::"compute:sandboxes:delete", resource is Volume);`, []api.PolicyProblem{{Line: 1, Column: 1, Policy: "policy0", Reason: "unable to find an applicable action"}}},
		{"no such attribute", `@id("a") permit(principal, action, resource) when { resource.nam == "x" };`, []api.PolicyProblem{{Line: 1, Column: 1, Policy: "a", Reason: "attribute `nam` on entity type `Backup` not found (nor of "}}},
		{"perhaps not there", `permit(principal, action == Action::"compute:sandboxes:delete", resource) when { resource.workspace == Workspace::"a" };`, []api.PolicyProblem{{Line: 1, Column: 1, Policy: "policy0", Reason: "unable to guarantee safety"}}},
		{"compares two types", `permit(principal, action == Action::"compute:sandboxes:delete", resource) when { resource.name == 1 };`, []api.PolicyProblem{{Line: 1, Column: 1, Policy: "policy0", Reason: "the types"}}},
		{"a condition that is none", `permit(principal, action, resource) when { context.face };`, []api.PolicyProblem{{Line: 1, Column: 1, Policy: "policy0", Reason: "unexpected type"}}},
		{"the same @id", "@id(\"a\") " + permitAll + "@id(\"a\") " + permitAll, []api.PolicyProblem{{Line: 2, Column: 1, Policy: "a", Reason: "there is another policy"}}},
		{"a shipped @id", "@id(\"berth:tenant-wall\") " + permitAll, []api.PolicyProblem{{Line: 1, Column: 1, Policy: "berth:tenant-wall", Reason: "an @id that begins with berth:"}}},
		{"confirm at a permit", "@confirm(\"a\") " + permitAll, []api.PolicyProblem{{Line: 1, Column: 1, Policy: "policy0", Reason: "@confirm stands at a forbid"}}},
		{"confirm without a reason", `@confirm forbid(principal, action, resource) unless { context.confirmed };`, []api.PolicyProblem{{Line: 1, Column: 1, Policy: "policy0", Reason: "@confirm needs a text"}}},
		{"confirm that nothing lifts", `@confirm("a") forbid(principal, action, resource) when { context.confirmed };`, []api.PolicyProblem{{Line: 1, Column: 1, Policy: "policy0", Reason: "a forbid with @confirm needs unless"}}},
		{"confirmed without @confirm", `forbid(principal, action, resource) unless { context.confirmed };`, []api.PolicyProblem{{Line: 1, Column: 1, Policy: "policy0", Reason: "context.confirmed is read"}}},
		{"deep", "permit(principal, action, resource) when { // (((((\n \"((((\" == \"\" && " + strings.Repeat("(", 70) + "true" + strings.Repeat(")", 70) + " };", []api.PolicyProblem{{Line: 2, Column: 81, Reason: "brackets are nested more than 64 deep"}}},
		{"many", strings.Repeat(permitAll, mostPolicies+1), []api.PolicyProblem{{Line: mostPolicies + 1, Column: 1, Reason: "there are more than 2000 policies"}}},
		{"two problems", "permit(principal is User, action, resource);\n" + `permit(principal, action == Action::"x", resource);`, []api.PolicyProblem{
			{Line: 1, Column: 1, Policy: "policy0", Reason: "unrecognized entity type"}, {Line: 2, Column: 1, Policy: "policy1", Reason: "unrecognized action"},
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got := s.Check(tt.text)
			want := slices.Clone(tt.want)
			for i := range min(len(got), len(want)) {
				if strings.Contains(got[i].Reason, want[i].Reason) {
					want[i].Reason = got[i].Reason
				}
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// TestShipped: what is shipped is as strict as what is put, and can be shown.
func TestShipped(t *testing.T) {
	s := registered(t)
	for _, e := range s.shipped() {
		if reasons := s.strict(e.policy); reasons != nil {
			t.Errorf("%s: %v", e.id, reasons)
		}
	}
	if text := s.Shipped(); strings.Count(text, "forbid") != 2 || !strings.Contains(text, "identity:policies:write") || !strings.Contains(text, "identity:keys:create") {
		t.Errorf("got %s", text)
	}
	if problems := s.Check(Default()); problems != nil {
		t.Errorf("got %+v", problems)
	}
}

// TestSchema: every action is there, with the named sets as the scopes of keys have them.
func TestSchema(t *testing.T) {
	s := registered(t)
	for _, info := range api.All() {
		a := s.actions[info.Action]
		if a == nil || len(a.kinds) == 0 {
			t.Errorf("%s: got %+v", info.Action, a)
			continue
		}
		up := s.above[a.uid]
		own := strings.HasPrefix(info.Action, "identity:")
		if !slices.Contains(up, actionUID("admin")) || slices.Contains(up, actionUID("write")) == own || slices.Contains(up, actionUID("read")) != (!own && info.Hints.Has(op.Read)) && !a.write {
			t.Errorf("%s is in %v", info.Action, up)
		}
		if info.Hints.Has(op.Read) && !own && a.write {
			t.Errorf("%s is the action of a read and of a write: the set read would not hold it", info.Action)
		}
	}
	text := s.Text()
	for _, want := range []string{"entity Sandbox", "entity Key", `action "compute:sandboxes:delete"`, "confirmed: Bool", "sourceAddress?: "} {
		if !strings.Contains(text, want) {
			t.Errorf("the schema lacks %s:\n%s", want, text)
		}
	}
}

// thousand are a thousand policies as organizations write them: for single principals, for types, for actions, and a few for all.
func thousand() string {
	var b strings.Builder
	b.WriteString(permitAll)
	for i := range 10 {
		fmt.Fprintf(&b, "forbid(principal, action, resource) when { resource has name && resource.name == \"locked-%d\" };\n", i)
	}
	for i := range 989 {
		switch i % 3 {
		case 0:
			fmt.Fprintf(&b, "forbid(principal == Key::\"key_%d\", action in Action::\"write\", resource);\n", i)
		case 1:
			fmt.Fprintf(&b, "forbid(principal in Agent::\"agent_%d\", action == Action::\"compute:sandboxes:delete\", resource) when { resource.hasTag(\"team\") };\n", i)
		case 2:
			fmt.Fprintf(&b, "@confirm(\"why\") forbid(principal == Person::\"user_%d\", action in [Action::\"compute:sandboxes:*\", Action::\"compute:volumes:*\"], resource) unless { context.confirmed };\n", i)
		}
	}
	return b.String()
}

func BenchmarkDecide(b *testing.B) {
	s := registered(b)
	set := load(b, s, thousand())
	ask := func(c *caller.Caller) *Ask {
		return &Ask{
			Actors: actors(c), Action: "compute:sandboxes:delete", Time: now, Source: "10.1.2.3", Face: "mcp",
			Resource: op.Resource{Kind: "sandbox", ID: "sbx_1", OrgID: "org_a", WorkspaceID: "ws_a", Name: "a", Labels: map[string]string{"team": "data"}, CreatedBy: op.CreatedBy{Key: "key_1"}},
		}
	}
	for name, c := range map[string]*caller.Caller{
		"key":    {OrgID: "org_a", WorkspaceID: "ws_a", KeyID: "key_1"},
		"app":    {OrgID: "org_a", WorkspaceID: "ws_a", AppID: "app_1", AgentID: "agent_x", PersonID: "user_x"},
		"asking": {OrgID: "org_a", WorkspaceID: "ws_a", PersonID: "user_2"},
	} {
		b.Run(name, func(b *testing.B) {
			a := ask(c)
			if got := set.Decide(a); got.Effect == Deny {
				b.Fatalf("got %+v", got)
			}
			b.ReportAllocs()
			for b.Loop() {
				set.Decide(a)
			}
		})
	}
}

// BenchmarkScan is the same without the index.
func BenchmarkScan(b *testing.B) {
	s := registered(b)
	set := load(b, s, thousand())
	a := &Ask{Action: "compute:sandboxes:delete", Time: now, Face: "mcp", Resource: op.Resource{Kind: "sandbox", ID: "sbx_1", OrgID: "org_a", Name: "a"}}
	for b.Loop() {
		r := s.request(a, actors(&caller.Caller{OrgID: "org_a", KeyID: "key_1"})[0])
		cedar.Authorize(whole{&set.index}, r, r.Request)
	}
}

func BenchmarkCheck(b *testing.B) {
	s := registered(b)
	for b.Loop() {
		if problems := s.Check(thousand()); problems != nil {
			b.Fatal(problems[0])
		}
	}
}

func BenchmarkSchema(b *testing.B) {
	for b.Loop() {
		registered(b)
	}
}
