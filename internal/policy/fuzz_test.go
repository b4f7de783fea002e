package policy

import (
	"strings"
	"testing"

	"github.com/berthrun/berth/api/op"
	"github.com/berthrun/berth/internal/caller"
)

// FuzzCheck: no text breaks the check, what it says has a place in the text, and what it lets through can be decided by, never beyond the shipped rules.
func FuzzCheck(f *testing.F) {
	s := registered(f)
	for _, text := range []string{
		"", permitAll, permitAll + `@confirm("a") forbid(principal, action, resource) unless { context.confirmed };`,
		`@id("a") forbid(principal in Agent::"a", action in [Action::"read", Action::"compute:*"], resource is Sandbox) when { resource.name like "a*\*" && ip("10.0.0.1").isLoopback() };`,
		"permit(principal, action, resource) when { if context.readOnly then -1 < 2 else [1, 2].contains(3) };", "@a(", "permit(principal == ?principal, action, resource);",
		"// \x00\n/* */", "\x9eb\xa6", `permit(principal, action, resource) when { {"a": 1}["a"] == 1 };`, strings.Repeat("(", 1000), strings.Repeat("if ", 1000), strings.Repeat("!", 1000),
	} {
		f.Add(text)
	}
	foreign := &Ask{Actors: actors(&caller.Caller{OrgID: "org_a", KeyID: "key_1"}), Action: "compute:sandboxes:read", Resource: op.Resource{Kind: "sandbox", OrgID: "org_b"}, Time: now}
	agent := &Ask{Actors: actors(&caller.Caller{OrgID: "org_a", AgentID: "agent_1"}), Action: "identity:policies:write", Resource: op.Resource{Kind: "organization", ID: "org_a", OrgID: "org_a"}, Time: now, Confirmed: true}
	f.Fuzz(func(t *testing.T, text string) {
		if len(text) > 1<<12 {
			return
		}
		problems := s.Check(text)
		for _, p := range problems {
			if p.Line < 1 || p.Line > strings.Count(text, "\n")+1 || p.Column < 1 || p.Reason == "" {
				t.Errorf("%q: got %+v", text, p)
			}
		}
		if len(problems) > 0 {
			return
		}
		set, err := s.Load(text)
		if err != nil {
			t.Fatalf("%q passes the check and cannot be loaded: %v", text, err)
		}
		if got := set.Decide(foreign); got.Effect != Deny {
			t.Errorf("%q: another organization's resource: %+v", text, got)
		}
		if got := set.Decide(agent); got.Effect != Deny {
			t.Errorf("%q: an agent changes policies: %+v", text, got)
		}
	})
}

// TestLong: what is nested or chained as deep as a text can be ends, whatever it comes to.
func TestLong(t *testing.T) {
	s := registered(t)
	const most = 131072
	for _, part := range []string{"if ", "!", "-", "a.", "true && ", "if true then true else ", "true ? ", `{"a": `, "principal.org."} {
		text := permitAll + "forbid(principal, action == Action::\"account:read\", resource) when { " + strings.Repeat(part, (most-100)/len(part)) + "true };"
		if len(s.Check(text)) == 0 {
			if _, err := s.Load(text); err != nil {
				t.Errorf("%s: %v", part, err)
			}
		}
	}
}
