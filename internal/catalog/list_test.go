package catalog

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/berthrun/berth/api"
	"github.com/berthrun/berth/api/op"
	"github.com/berthrun/berth/internal/errs"
)

func TestParse(t *testing.T) {
	for name, tt := range map[string]struct {
		path     string
		profiles []string
		want     List
		code     errs.Code
		again    string
	}{
		"first session":   {"", nil, List{}, "", ""},
		"read-only":       {"readonly", nil, List{ReadOnly: true}, "", "/readonly"},
		"toolsets":        {"x/files,sandboxes,files", nil, List{Toolsets: []string{"sandboxes", "files"}}, "", "/x/sandboxes,files"},
		"toolset, reads":  {"x/docs/readonly", nil, List{Toolsets: []string{"docs"}, ReadOnly: true}, "", "/x/docs/readonly"},
		"all":             {"x/all", []string{""}, List{All: true}, "", "/x/all"},
		"all and another": {"x/jobs,all", []string{"compact"}, List{All: true, Profile: Compact}, "", "/x/all?profile=compact"},
		"chatgpt":         {"", []string{"chatgpt"}, List{Profile: ChatGPT}, "", "?profile=chatgpt"},
		"unknown toolset": {"x/nope", nil, List{}, errs.NotFound, ""},
		"unknown path":    {"x", nil, List{}, errs.NotFound, ""},
		"upper case":      {"x/Files", nil, List{}, errs.NotFound, ""},
		"unknown profile": {"", []string{"x"}, List{}, errs.InvalidInput, ""},
		"to come":         {"", []string{"code"}, List{}, errs.Unavailable, ""},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := Parse(tt.path, tt.profiles)
			if errs.CodeOf(err) != tt.code {
				t.Fatalf("error %v, want %s", err, tt.code)
			}
			if err != nil {
				return
			}
			if d := cmp.Diff(tt.want, got); d != "" {
				t.Error(d)
			}
			if got.Path() != tt.again {
				t.Errorf("path %q, want %q", got.Path(), tt.again)
			}
		})
	}
}

// Every operation's toolset can be asked for, and no two operations have one place in a list.
func TestEveryOperationHasItsPlace(t *testing.T) {
	names := map[string]bool{}
	for _, s := range Toolsets() {
		names[s.Name] = true
		if s.Doc == "" || s.Missing == "" {
			t.Errorf("%s is not described", s.Name)
		}
	}
	for _, l := range []List{{All: true}, {Profile: Compact}} {
		seen := map[[2]string]string{}
		for _, info := range api.All() {
			if info.Tool == "" {
				continue
			}
			if !names[info.Toolset] {
				t.Errorf("%s is of the toolset %s, which no address names", info.Name, info.Toolset)
			}
			tool, verb := l.Place(info)
			if other := seen[[2]string{tool, verb}]; other != "" {
				t.Errorf("%s and %s are both %s %s", info.Name, other, tool, verb)
			}
			seen[[2]string{tool, verb}] = info.Name
			if !l.Holds(info) {
				t.Errorf("%s is in no list", info.Name)
			}
		}
	}
}

// A session can begin and come to an end with what /mcp lists.
func TestFirstSession(t *testing.T) {
	var listed []string
	for _, info := range api.All() {
		if (List{}).Holds(info) {
			listed = append(listed, info.Tool)
		}
	}
	for _, need := range strings.Fields("create_sandbox list_sandboxes get_sandbox delete_sandbox run_command start_process read_process_output read_file write_file edit_file list_files get_account") {
		if !slices.Contains(listed, need) {
			t.Errorf("%s is not in the list of a first session", need)
		}
	}
	for _, info := range api.All() {
		if (List{ReadOnly: true}).Holds(info) != (info.Tool != "" && info.Hints.Has(op.Read)) {
			t.Errorf("%s in the read-only list", info.Name)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add("x/files,sandboxes/readonly", "compact")
	f.Add("readonly", "")
	f.Add("x/all", "chatgpt")
	f.Add("x/\xff", "code")
	f.Fuzz(func(t *testing.T, path, profile string) {
		l, err := Parse(path, []string{profile})
		if err != nil {
			if errs.CodeOf(err) == errs.Internal || len(err.Error()) > 400 {
				t.Errorf("%v", err)
			}
			return
		}
		again, query, _ := strings.Cut(l.Path(), "?profile=")
		same, err := Parse(strings.TrimPrefix(again, "/"), []string{query})
		if err != nil || cmp.Diff(l, same) != "" {
			t.Errorf("%q became %q, which is %+v, not %+v: %v", path, l.Path(), same, l, err)
		}
	})
}
