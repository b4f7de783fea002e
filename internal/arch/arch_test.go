package arch

import (
	"flag"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "write the lists of what binaries are made of")

const root = "../.."

func load(t *testing.T) map[string]*Package {
	t.Helper()
	all, err := Load(root)
	if err != nil {
		t.Fatal(err)
	}
	if len(all) < 10 {
		t.Fatalf("only %d packages were found", len(all))
	}
	return all
}

func TestRanks(t *testing.T) {
	for _, b := range Broken(load(t)) {
		t.Error(b)
	}
}

// A rule that finds nothing may be one that cannot find anything.
func TestRanksFindABreak(t *testing.T) {
	all := map[string]*Package{
		"internal/errs":    {Path: "internal/errs", Imports: []string{Module + "/internal/db"}},
		"internal/sandbox": {Path: "internal/sandbox", Imports: []string{Module + "/internal/file"}},
		"internal/call":    {Path: "internal/call", Imports: []string{Module + "/internal/db/dbtest"}},
		"internal/stray":   {Path: "internal/stray"},
	}
	if got := Broken(all); len(got) != 4 {
		t.Errorf("found %d breaks, want 4: %v", len(got), got)
	}
}

func TestEveryPackageHasOneDoc(t *testing.T) {
	for _, p := range sorted(load(t)) {
		if len(p.Docs) != 1 {
			t.Errorf("%s has %d package docs, in %v", p.Path, len(p.Docs), p.Docs)
			continue
		}
		if want := "Package " + p.Name + " "; p.Name != "main" && !strings.HasPrefix(p.Doc, want) {
			t.Errorf("the doc of %s does not begin with %q", p.Path, want)
		}
	}
}

func TestOnlyTheRuntimeLinksGVisor(t *testing.T) {
	all := load(t)
	for dir, p := range all {
		if p.Name != "main" || dir == "cmd/berth-runtime" {
			continue
		}
		for _, ip := range External(all, dir) {
			if strings.HasPrefix(ip, "gvisor.dev/") {
				t.Errorf("%s links %s", dir, ip)
			}
		}
	}
}

func TestDependencyLists(t *testing.T) {
	all := load(t)
	for _, binary := range []string{"cmd/berth", "cmd/berth-runtime", "cmd/berth-guest"} {
		got := strings.Join(External(all, binary), "\n") + "\n"
		file := filepath.Join(root, "docs/deps", filepath.Base(binary)+".txt")
		if *update {
			if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
				t.Fatal(err)
			}
			continue
		}
		want, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(string(want), got); diff != "" {
			t.Errorf("%s is made of something else than %s says (-want +got); go test ./internal/arch -update writes it, with a line in docs/adr/dependencies.md:\n%s", binary, file, diff)
		}
	}
}

var direct = regexp.MustCompile(`(?m)^\t([^\s]+) v[^\s]+$`)

func TestEveryDirectModuleIsExplained(t *testing.T) {
	mod, err := os.ReadFile(filepath.Join(root, "go.mod"))
	if err != nil {
		t.Fatal(err)
	}
	doc, err := os.ReadFile(filepath.Join(root, "docs/adr/dependencies.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range direct.FindAllStringSubmatch(string(mod), -1) {
		if !strings.Contains(string(doc), m[1]) {
			t.Errorf("docs/adr/dependencies.md does not say why %s is used", m[1])
		}
	}
}
