package docs

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/berthrun/berth/api"
	"github.com/berthrun/berth/api/op"
	"github.com/berthrun/berth/internal/errs"
)

const root = "../.."

// A page that the index does not name is not found by who reads; only the generated reference has an index of its own.
func TestEveryPageIsInTheIndex(t *testing.T) {
	l := library(t)
	named := map[string]bool{}
	for _, e := range entries(l.Page(Index).Text) {
		named[e.id] = true
		if e.summary == "" || e.group == "" {
			t.Errorf("the index says nothing of %s", e.id)
		}
		if l.Page(e.id) == nil {
			t.Errorf("the index names %s, which is not there", e.id)
		}
	}
	for _, p := range l.Pages() {
		if p.ID != Index && !named[p.ID] && !strings.HasPrefix(p.ID, "reference/") {
			t.Errorf("docs/README.md does not link %s", p.File)
		}
	}
}

var links = regexp.MustCompile(`\]\(([^)\s]+)\)`)

// Every link of the pages, of the project's own README and of the TypeScript client's leads to a file and a heading that are there.
func TestLinks(t *testing.T) {
	anchors := map[string]map[string]bool{}
	anchorsOf := func(file string) map[string]bool {
		if anchors[file] == nil {
			anchors[file] = map[string]bool{}
			b, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			for _, s := range parse("x.md", string(b)).Sections {
				anchors[file][s.Anchor] = true
			}
		}
		return anchors[file]
	}
	for _, file := range markdownFiles(t) {
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range links.FindAllStringSubmatch(prose(string(b)), -1) {
			to, fragment, _ := strings.Cut(m[1], "#")
			if strings.Contains(to, "://") {
				if rest, own := strings.CutPrefix(to, "https://github.com/berthrun/berth/blob/main/"); own {
					if _, err := os.Stat(filepath.Join(root, rest)); err != nil {
						t.Errorf("%s links %s, which is not there", file, m[1])
					}
				}
				continue
			}
			target := file
			if to != "" {
				target = filepath.Join(filepath.Dir(file), to)
			}
			info, err := os.Stat(target)
			switch {
			case err != nil:
				t.Errorf("%s links %s, which is not there", file, m[1])
			case fragment != "" && info.IsDir():
				t.Errorf("%s links a heading of a folder: %s", file, m[1])
			case fragment != "" && !anchorsOf(target)[fragment]:
				t.Errorf("%s links %s, but the page has no such heading", file, m[1])
			}
		}
	}
}

func markdownFiles(t *testing.T) []string {
	t.Helper()
	files := []string{filepath.Join(root, "README.md"), filepath.Join(root, "clients/typescript/README.md")}
	for _, p := range library(t).Pages() {
		files = append(files, filepath.Join(root, "docs", p.File))
	}
	return files
}

// prose is a text without its blocks of code.
func prose(text string) string {
	var b strings.Builder
	fence := ""
	for line := range strings.Lines(text) {
		mark := fenceOf(line)
		switch {
		case fence == "" && mark != "":
			fence = mark
		case fence != "" && strings.TrimSpace(line) == fence:
			fence = ""
		case fence == "":
			b.WriteString(line)
		}
	}
	return b.String()
}

// block is code on a page.
type block struct{ page, kind, code string }

func blocks(t *testing.T) []block {
	t.Helper()
	var all []block
	for _, p := range library(t).Pages() {
		fence, kind := "", ""
		var code strings.Builder
		for line := range strings.Lines(p.Text) {
			mark := fenceOf(line)
			switch {
			case fence == "" && mark != "":
				fence, kind = mark, strings.TrimSpace(strings.TrimLeft(strings.TrimSpace(line), "`~"))
				code.Reset()
			case fence != "" && strings.TrimSpace(line) == fence:
				all = append(all, block{p.ID, kind, code.String()})
				fence = ""
			case fence != "":
				code.WriteString(line)
			}
		}
		if fence != "" {
			t.Errorf("%s: a block of code has no end", p.ID)
		}
	}
	return all
}

func TestBlocksAreWellFormed(t *testing.T) {
	for _, b := range blocks(t) {
		var v any
		var err error
		switch b.kind {
		case "json":
			err = json.Unmarshal([]byte(b.code), &v)
		case "yaml":
			err = yaml.UnmarshalStrict([]byte(b.code), &v)
		case "sh":
			cmd := exec.CommandContext(t.Context(), "sh", "-n")
			cmd.Stdin = strings.NewReader(strings.ReplaceAll(b.code, "…", "x"))
			var out []byte
			if out, err = cmd.CombinedOutput(); err != nil {
				err = fmt.Errorf("%w: %s", err, out)
			}
		case "":
			err = errors.New("the kind is missing")
		}
		if err != nil {
			t.Errorf("%s: a block of %q: %v\n%s", b.page, b.kind, err, b.code)
		}
	}
}

// The code on the page of the Go client is that of its examples, which run.
func TestGoPageIsTheExamples(t *testing.T) {
	b, err := os.ReadFile(filepath.Join(root, "client/example_test.go"))
	if err != nil {
		t.Fatal(err)
	}
	examples := "\n" + strings.ReplaceAll(string(b), "\n\t", "\n")
	found := 0
	for _, bl := range blocks(t) {
		if bl.kind != "go" {
			continue
		}
		found++
		if !strings.Contains(examples, "\n"+bl.code) {
			t.Errorf("%s: no example of client/example_test.go is\n%s", bl.page, bl.code)
		}
	}
	if found < 5 {
		t.Errorf("%d blocks of Go", found)
	}
}

var (
	codeSpan  = regexp.MustCompile("`([^`\n]+)`")
	snake     = regexp.MustCompile(`^[a-z]+(_[a-z0-9]+)+$`)
	camel     = regexp.MustCompile(`^[a-z]+([A-Z][A-Za-z0-9]*)+$`)
	dotted    = regexp.MustCompile(`^([a-z][A-Za-z]+)\.([a-z][A-Za-z]+)$`)
	shouted   = regexp.MustCompile(`^[A-Z]+(_[A-Z]+)+$`)
	routeSpan = regexp.MustCompile(`^(GET|POST|PUT|PATCH|DELETE) (/v1/[^ ?]*)`)
)

// Every name that a page gives in code is one: of a tool, an operation, a member, an error's code or reason, a variable, a route. What is none of those in
// the contract has to stand, as a string, in the program's source.
func TestNamesExist(t *testing.T) {
	known := contract()
	source := sources(t)
	settings := library(t).Page("reference/configuration").Text // generated from the configuration itself
	inSource := func(name string) bool {
		return strings.Contains(settings, "`"+name+"`") || strings.Contains(source, `"`+name+`"`) || strings.Contains(source, "`"+name+"`") || strings.Contains(source, `json:"`+name) || strings.Contains(source, " "+name+":")
	}
	for _, p := range library(t).Pages() {
		if strings.HasPrefix(p.ID, "reference") || p.ID == "go" || p.ID == "typescript" {
			continue // generated, compiled
		}
		for _, m := range codeSpan.FindAllStringSubmatch(prose(p.Text), -1) {
			name := strings.TrimRight(m[1], ":")
			name, _, _ = strings.Cut(name, ": ")
			switch {
			case snake.MatchString(name), camel.MatchString(name), shouted.MatchString(name):
				if !known[name] && !inSource(name) {
					t.Errorf("%s names %s, which is not there", p.ID, name)
				}
			case strings.HasPrefix(name, "details."):
				if part := strings.TrimPrefix(name, "details."); !known[part] && !inSource(part) {
					t.Errorf("%s names %s, which is not there", p.ID, name)
				}
			case dotted.MatchString(name):
				if ext := path.Ext(name); !known[name] && !inSource(name) && !slices.Contains([]string{".txt", ".json", ".md", ".toml", ".yaml", ".py", ".ts", ".go", ".com"}, ext) {
					t.Errorf("%s names %s, which is not there", p.ID, name)
				}
			}
			if r := routeSpan.FindStringSubmatch(name); r != nil && !known[r[1]+" "+anyParam(r[2])] && !strings.Contains(source, r[2]) {
				t.Errorf("%s names the route %s, which is not there", p.ID, m[1])
			}
		}
	}
}

var param = regexp.MustCompile(`\{[^}]*\}|/ID`)

func anyParam(route string) string {
	return param.ReplaceAllStringFunc(route, func(s string) string {
		if s[0] == '/' {
			return "/{}"
		}
		return "{}"
	})
}

// contract gives every name of the API.
func contract() map[string]bool {
	known := map[string]bool{}
	for _, c := range errs.Codes() {
		known[string(c)] = true
	}
	var members func(s *op.Schema)
	members = func(s *op.Schema) {
		if s == nil {
			return
		}
		for name, p := range s.Properties {
			known[name] = true
			members(p)
		}
		members(s.Items)
	}
	add := func(i op.Info) {
		known[i.Name], known[i.Tool], known[i.Action], known[i.Method+" "+anyParam(i.Path)] = true, true, true, true
		members(i.In)
		members(i.Out)
	}
	for _, i := range api.All() {
		add(i)
	}
	for _, i := range api.AllStreams() {
		add(i.Info)
	}
	return known
}

// sources is the program's own source, without its tests.
func sources(t *testing.T) string {
	t.Helper()
	var b strings.Builder
	for _, dir := range []string{"api", "internal", "cmd", "client"} {
		err := filepath.WalkDir(filepath.Join(root, dir), func(file string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() || filepath.Ext(file) != ".go" || strings.HasSuffix(file, "_test.go") {
				return err
			}
			text, err := os.ReadFile(file)
			b.Write(text)
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return b.String()
}

// Every error code has its section on the page of errors, under its status.
func TestEveryErrorIsExplained(t *testing.T) {
	p := library(t).Page("errors")
	for _, c := range errs.Codes() {
		s, ok := p.Section(string(c))
		if !ok {
			t.Errorf("docs/errors.md does not explain %s", c)
			continue
		}
		text := p.Text[s.Start:s.End]
		if !strings.Contains(text, fmt.Sprintf("HTTP %d", c.Status())) || len(text) < 100 {
			t.Errorf("docs/errors.md says too little of %s: %q", c, text)
		}
	}
}
