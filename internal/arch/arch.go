// Package arch owns the rules of the house and the tests that prove them: which package may import which, that each has its doc, and what each binary
// is made of.
//
// It parses files instead of asking the go command, whose answers the test cache would keep.
package arch

import (
	"fmt"
	"go/ast"
	"go/build/constraint"
	"go/parser"
	"go/token"
	"io/fs"
	"path"
	"path/filepath"
	"slices"
	"sort"
	"strconv"
	"strings"
)

// Module is the path of the module whose rules these are.
const Module = "github.com/berthrun/berth"

// ranks gives the rank of an area: the folder and all below it, the longest match counts. A package imports only lower ranks and its own area.
var ranks = map[string]int{
	"internal/errs": 0, "internal/id": 0, "internal/caller": 0, "internal/tarball": 0,
	"internal/config": 1, "internal/metrics": 1, "internal/debug": 1, "docs": 1,
	"api/op": 1, "internal/db": 1, "internal/blob": 1, "internal/disk": 1, "internal/runtime": 1, "internal/guest": 1, "internal/bundle": 1,
	"api": 2, "internal/nodeapi": 2, "internal/draft": 2, "internal/secret": 2,
	"client": 3, "internal/runtime/gvisor": 3, "internal/runtime/fake": 3, "internal/sandbox": 3, "internal/snapshot": 3, "internal/process": 3, "internal/terminal": 3, "internal/sshd": 3, "internal/file": 3,
	"internal/volume": 3, "internal/image": 3, "internal/ready": 3, "internal/quota": 3, "internal/identity": 3, "internal/audit": 3, "internal/confirmation": 3, "internal/event": 3, "internal/docs": 3,
	"internal/policy":   3,
	"internal/template": 3, "internal/template/recipe": 1, "internal/template/inputs": 1,
	"internal/chunk": 1, "internal/chunk/vault": 2, "internal/chunk/saves": 3,
	"internal/catalog": 4, "internal/call": 4,
	"internal/httpapi": 5, "internal/mcpapi": 5, "internal/docsapi": 5, "internal/cli": 5,
	"internal/doctor":       4,
	"internal/controlplane": 6, "internal/nodeagent": 6,
	"internal/httpapi/gen": 7, "internal/config/gen": 7, "internal/bundle/pack": 7, "internal/image/bootstrap/prepare": 7, // programs that only make runs
	"cmd": 7, "internal/xtest": 7, "internal/arch": 7, "bench": 7, "test": 7, "clients": 7,
}

// Package is one package of the module, its test files left out.
type Package struct {
	Path    string   // below the module, such as internal/errs
	Name    string   // of the package clause
	Docs    []string // the files with a package doc
	Doc     string
	Imports []string // whole import paths, sorted
}

// IsTestKit reports whether the package only serves tests: its rules are theirs.
func (p *Package) IsTestKit() bool {
	base := path.Base(p.Path)
	return strings.HasSuffix(base, "test") || strings.Contains(p.Path, "testdata")
}

// Area is the longest folder in the table that holds the package, and its rank.
func (p *Package) Area() (string, int, bool) { return area(p.Path) }

func area(p string) (string, int, bool) {
	for dir := p; dir != "." && dir != "/"; dir = path.Dir(dir) {
		if r, ok := ranks[dir]; ok {
			return dir, r, true
		}
	}
	return "", 0, false
}

// Load parses every package below a module's root. Files with the given build tags count; others with constraints count as on Linux.
func Load(root string) (map[string]*Package, error) {
	all := map[string]*Package{}
	err := filepath.WalkDir(root, func(file string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name := d.Name()
		if d.IsDir() && file != root && (strings.HasPrefix(name, ".") || name == "node_modules" || name == "testdata" || name == "bin") {
			return fs.SkipDir
		}
		if d.IsDir() || !strings.HasSuffix(name, ".go") || strings.HasSuffix(name, "_test.go") {
			return nil
		}
		return add(all, root, file)
	})
	for _, p := range all {
		sort.Strings(p.Imports)
		p.Imports = slices.Compact(p.Imports)
	}
	return all, err
}

func add(all map[string]*Package, root, file string) error {
	f, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.ImportsOnly|parser.ParseComments)
	if err != nil {
		return fmt.Errorf("parse %s: %w", file, err)
	}
	if !counts(f) {
		return nil
	}
	dir, err := filepath.Rel(root, filepath.Dir(file))
	if err != nil {
		return err
	}
	dir = filepath.ToSlash(dir)
	p := all[dir]
	if p == nil {
		p = &Package{Path: dir, Name: f.Name.Name}
		all[dir] = p
	}
	if f.Doc != nil {
		p.Docs = append(p.Docs, filepath.Base(file))
		p.Doc = f.Doc.Text()
	}
	for _, i := range f.Imports {
		ip, err := strconv.Unquote(i.Path.Value)
		if err != nil {
			return err
		}
		p.Imports = append(p.Imports, ip)
	}
	return nil
}

// counts evaluates a file's build constraint for the programs that are shipped.
func counts(f *ast.File) bool {
	for _, group := range f.Comments {
		for _, c := range group.List {
			if !constraint.IsGoBuild(c.Text) {
				continue
			}
			expr, err := constraint.Parse(c.Text)
			if err != nil {
				return true
			}
			return expr.Eval(func(tag string) bool {
				return tag == "linux" || tag == "amd64" || tag == "bundle" || tag == "unix" || strings.HasPrefix(tag, "go1.")
			})
		}
	}
	return true
}

// Broken says which rule of the ranks each import breaks, in order.
func Broken(all map[string]*Package) []string {
	var out []string
	for _, p := range sorted(all) {
		if p.IsTestKit() {
			continue
		}
		home, rank, ok := p.Area()
		if !ok {
			out = append(out, fmt.Sprintf("%s has no rank: add its area to the table", p.Path))
			continue
		}
		for _, ip := range p.Imports {
			rel, ours := strings.CutPrefix(ip, Module+"/")
			if !ours {
				continue
			}
			other, r, known := area(rel)
			switch {
			case !known:
				out = append(out, fmt.Sprintf("%s imports %s, which has no rank", p.Path, rel))
			case (&Package{Path: rel}).IsTestKit():
				out = append(out, fmt.Sprintf("%s imports the test kit %s", p.Path, rel))
			case other != home && r >= rank:
				out = append(out, fmt.Sprintf("%s (rank %d) imports %s (rank %d)", p.Path, rank, rel, r))
			}
		}
	}
	return out
}

// External lists the packages of other modules that a binary's own packages import, directly or through each other.
func External(all map[string]*Package, binary string) []string {
	seen, out := map[string]bool{}, map[string]bool{}
	var visit func(dir string)
	visit = func(dir string) {
		p := all[dir]
		if p == nil || seen[dir] {
			return
		}
		seen[dir] = true
		for _, ip := range p.Imports {
			if rel, ours := strings.CutPrefix(ip, Module+"/"); ours {
				visit(rel)
			} else if first, _, _ := strings.Cut(ip, "/"); strings.Contains(first, ".") {
				out[ip] = true
			}
		}
	}
	visit(binary)
	list := make([]string, 0, len(out))
	for ip := range out {
		list = append(list, ip)
	}
	sort.Strings(list)
	return list
}

func sorted(all map[string]*Package) []*Package {
	list := make([]*Package, 0, len(all))
	for _, p := range all {
		list = append(list, p)
	}
	sort.Slice(list, func(i, j int) bool { return list[i].Path < list[j].Path })
	return list
}
