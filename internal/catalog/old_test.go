package catalog

import (
	"bufio"
	"os"
	"strings"
	"testing"

	"github.com/berthrun/berth/api"
	"github.com/berthrun/berth/api/op"
)

// TestEveryOldNameIsKnown goes through the list of names from elsewhere: each leads to a tool that exists or says what there is instead, whichever
// action it is called with, in a plain list and in a compact one.
func TestEveryOldNameIsKnown(t *testing.T) {
	f, err := os.Open("testdata/old_names.txt")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	known := tools()
	places, verbs := map[string]bool{}, map[string]bool{}
	for _, info := range api.All() {
		verbs[info.Tool+" "+info.Verb] = true
	}
	for _, info := range known {
		tool, _ := List{Profile: Compact}.Place(info)
		places[tool] = true
	}
	n := 0
	for s := bufio.NewScanner(f); s.Scan(); {
		words := strings.Fields(s.Text())
		if len(words) == 0 || words[0] == "#" {
			continue
		}
		n++
		for _, action := range append([]string{""}, words[1:]...) {
			o, ok := Find(words[0], action)
			_, own := known[words[0]]
			switch {
			case !ok && !own:
				t.Errorf("%s (%s) is not known", words[0], action)
			case !ok:
			case o.Tool == "" && o.Note == "":
				t.Errorf("%s (%s) says nothing", words[0], action)
			case o.Tool != "":
				info, there := known[o.Tool]
				if info.Verb != "" && !verbs[o.Tool+" "+o.Verb] || info.Verb == "" && o.Verb != "" {
					t.Errorf("%s (%s) points at %s with action %q, which it does not have", words[0], action, o.Tool, o.Verb)
				}
				if tool, verb := (List{Profile: Compact}).Place(info); !there || !places[tool] || verb == "" {
					t.Errorf("%s (%s) points at %s, in a compact list %s %s", words[0], action, o.Tool, tool, verb)
				}
			}
		}
	}
	if n < 180 {
		t.Errorf("the list has %d names", n)
	}
}

// A name of another service that means something else here must not be a tool of ours by accident: where both have it, it does the same thing.
func TestSharedNamesReadOrWriteAlike(t *testing.T) {
	reads := []string{"list_sandboxes", "get_sandbox", "get_limits", "list_files", "read_file"}
	for _, name := range reads {
		if info, ok := tools()[name]; ok && !info.Hints.Has(op.Read) {
			t.Errorf("%s only reads elsewhere and changes something here", name)
		}
	}
}
