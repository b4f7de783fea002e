package catalog

import (
	"testing"

	"github.com/berthrun/berth/api"
	"github.com/berthrun/berth/api/op"
)

func tools() map[string]op.Info {
	all := map[string]op.Info{}
	for _, info := range api.All() {
		if info.Tool != "" {
			all[info.Tool] = info
		}
	}
	return all
}

func TestEveryTargetExists(t *testing.T) {
	known := tools()
	for _, o := range All() {
		if _, there := known[o.Tool]; o.Tool != "" && !there {
			t.Errorf("%s (%s) points at %s, which is no tool", o.Name, o.Action, o.Tool)
		}
		if o.Tool == "" && o.Note == "" {
			t.Errorf("%s (%s) says nothing", o.Name, o.Action)
		}
	}
}

// A name that is a tool here must lead to itself: a row that says that it is missing has become wrong.
func TestOwnNamesLeadToThemselves(t *testing.T) {
	for name := range tools() {
		if o, ok := Find(name, ""); ok && o.Tool != name {
			t.Errorf("%s is a tool, but the row says %q: %s", name, o.Tool, o.Note)
		}
	}
}

func TestNoRowIsHidden(t *testing.T) {
	seen := map[[2]string]bool{}
	for _, o := range All() {
		key := [2]string{o.Name, o.Action}
		if seen[key] {
			t.Errorf("%s (%s) has two rows", o.Name, o.Action)
		}
		seen[key] = true
	}
	if got, want := len(seen), 210; got < want {
		t.Errorf("there are %d rows, want at least %d", got, want)
	}
}

func TestFind(t *testing.T) {
	for name, tt := range map[string]struct {
		tool, action string
		want         string
		ok           bool
	}{
		"one word":       {"command_run", "", "run_command", true},
		"by action":      {"runtime_sandboxes_manage", "delete", "delete_sandbox", true},
		"unknown action": {"runtime_sandboxes_manage", "teleport", "update_sandbox", true},
		"killed":         {"kill_sandbox", "now", "delete_sandbox", true},
		"not here":       {"reserve_gpus", "", "", true},
		"never heard of": {"make_coffee", "", "", false},
	} {
		t.Run(name, func(t *testing.T) {
			got, ok := Find(tt.tool, tt.action)
			if got.Tool != tt.want || ok != tt.ok {
				t.Errorf("Find = %q, %v; want %q, %v", got.Tool, ok, tt.want, tt.ok)
			}
		})
	}
}
