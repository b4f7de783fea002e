package identity

import (
	"context"
	"slices"
	"strings"
	"testing"

	"github.com/berthrun/berth/api"
	"github.com/berthrun/berth/api/op"
	"github.com/berthrun/berth/internal/caller"
	"github.com/berthrun/berth/internal/errs"
)

type none struct{}

// operations are those of the deployment that tell scopes apart.
func operations() []*op.Operation {
	r := op.NewRegistry()
	for _, info := range api.All() {
		op.Handle(r, op.Def[none, none]{Name: info.Name, Route: info.Method + " " + info.Path, Action: info.Action, Hints: info.Hints, Doc: info.Doc}, op.Handler[none, none]{
			Draft: func(context.Context, *none) (*op.Draft, error) { return &op.Draft{}, nil },
			Act:   func(context.Context, *none, *op.Draft) (*none, error) { return &none{}, nil },
		})
	}
	return r.All()
}

func TestScopes(t *testing.T) {
	byName := map[string]*op.Operation{}
	for _, o := range operations() {
		byName[o.Name] = o
	}
	tests := []struct {
		scopes []string
		want   string // the operations that are allowed
	}{
		{nil, ""},
		{[]string{"read"}, "account.get sandboxes.get"},
		{[]string{"write"}, "account.get sandboxes.get sandboxes.create"},
		{[]string{"admin"}, "account.get sandboxes.get sandboxes.create keys.list keys.create"},
		{[]string{"compute:*"}, "sandboxes.get sandboxes.create"},
		{[]string{"compute:sandboxes:*"}, "sandboxes.get sandboxes.create"},
		{[]string{"compute:*:create"}, "sandboxes.create"},
		{[]string{"compute:sandboxes:read", "identity:keys:create"}, "sandboxes.get keys.create"},
		{[]string{"account:read"}, "account.get"},
		{[]string{"account:*"}, "account.get"},
		{[]string{"compute:sandboxes"}, ""},
		{[]string{"account:read:more"}, ""},
		{[]string{"Read", "", "compute"}, ""},
	}
	for _, tt := range tests {
		got := ""
		for _, name := range []string{"account.get", "sandboxes.get", "sandboxes.create", "keys.list", "keys.create"} {
			c := &caller.Caller{OrgID: "org_a", Scopes: tt.scopes}
			o := byName[name]
			decision, err := new(Service).Authorize(t.Context(), c, o, &op.Draft{Resource: op.Resource{OrgID: "org_a"}})
			if err != nil || (!decision.Allowed && decision.Message == "") {
				t.Errorf("%v on %s: got %+v, %v", tt.scopes, name, decision, err)
			}
			if decision.Allowed {
				if got != "" {
					got += " "
				}
				got += name
			}
			if visible := new(Service).Visible(c, o.Info); visible != decision.Allowed {
				t.Errorf("%v on %s: visible %v", tt.scopes, name, visible)
			}
			c.ReadOnly = true
			if visible := new(Service).Visible(c, o.Info); visible != (decision.Allowed && o.Hints.Has(op.Read)) {
				t.Errorf("%v on %s read-only: visible %v", tt.scopes, name, visible)
			}
		}
		if got != tt.want {
			t.Errorf("%v allows %q, want %q", tt.scopes, got, tt.want)
		}
	}
}

func TestTenantWall(t *testing.T) {
	o := operations()[0]
	admin := &caller.Caller{OrgID: "org_a", Scopes: []string{"admin"}}
	if _, err := new(Service).Authorize(t.Context(), admin, o, &op.Draft{Resource: op.Resource{OrgID: "org_b"}}); !errs.Is(err, errs.NotFound) {
		t.Errorf("another organization: got %v", err)
	}
	if d, err := new(Service).Authorize(t.Context(), admin, o, &op.Draft{}); err == nil || d.Allowed {
		t.Errorf("no organization: got %+v, %v", d, err)
	}
	// Without the right even the existence of another organization's resource stays unknown.
	if d, err := new(Service).Authorize(t.Context(), &caller.Caller{OrgID: "org_a"}, o, &op.Draft{Resource: op.Resource{OrgID: "org_b"}}); err != nil || d.Allowed {
		t.Errorf("no right: got %+v, %v", d, err)
	}
}

func TestCovers(t *testing.T) {
	tests := []struct {
		have  string
		asked string
		want  bool
	}{
		{"admin", "admin", true},
		{"admin", "identity:*", true},
		{"write", "admin", false},
		{"write", "write", true},
		{"write", "read", true},
		{"write", "compute:*", true},
		{"write", "account:*", true},
		{"write", "identity:keys:read", false},
		{"write", "audit:log:read", false},
		{"write", "audit:*", false},
		{"audit:*", "audit:log:read", true},
		{"write", "identity:*", false},
		{"read", "read", true},
		{"read", "write", false},
		{"read", "compute:sandboxes:read", true},
		{"read", "account:read", true},
		{"read", "compute:sandboxes:create", false},
		{"read", "compute:sandboxes:*", false},
		{"read", "identity:keys:read", false},
		{"read", "audit:log:read", false},
		{"read", "compute:unknown:read", false},
		{"compute:*", "read", false},
		{"compute:* account:*", "read", false}, // read reaches areas that later versions add
		{"compute:* account:*", "write", false},
		{"compute:* account:*", "account:read", true},
		{"compute:*", "compute:*", true},
		{"compute:*", "compute:sandboxes:*", true},
		{"compute:*", "compute:*:create", true},
		{"compute:*", "computer:sandboxes:create", false},
		{"compute:sandboxes:*", "compute:sandboxes:create", true},
		{"compute:sandboxes:*", "compute:*", false},
		{"compute:sandboxes:*", "compute:*:create", false},
		{"compute:sandboxes:create", "compute:sandboxes:*", false},
		{"compute:*:create", "compute:sandboxes:create", true},
		{"compute:*:create", "compute:*:*", false},
		{"compute:*:create", "compute:*", false},
		{"compute:*:*", "compute:*:create", true},
		{"compute:*:*", "compute:*", false},
		{"identity:keys:*", "identity:keys:create", true},
		{"identity:keys:*", "admin", false},
	}
	all := operations()
	for _, tt := range tests {
		if got := covers(strings.Fields(tt.have), tt.asked); got != tt.want {
			t.Errorf("%s covers %s: got %v", tt.have, tt.asked, got)
		}
		if tt.want { // then everything that the asked scope allows is allowed already
			for _, o := range all {
				if grants(tt.asked, o.Info) && !slices.ContainsFunc(strings.Fields(tt.have), func(h string) bool { return grants(h, o.Info) }) {
					t.Errorf("%s allows %s, which %s does not", tt.asked, o.Name, tt.have)
				}
			}
		}
	}
}

func FuzzWellFormed(f *testing.F) {
	f.Add(newSecret())
	f.Add("berth_sk_")
	f.Fuzz(func(t *testing.T, s string) {
		if !wellFormed(s) {
			return
		}
		for i := range len(s) { // one wrong character is always seen
			if c := s[i] ^ 1; wellFormed(s[:i] + string(c) + s[i+1:]) {
				t.Errorf("%q with another character at %d is well-formed too", s, i)
			}
		}
	})
}
