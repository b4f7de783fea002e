package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/pb33f/libopenapi"

	"github.com/berthrun/berth/api"
	"github.com/berthrun/berth/api/op"
	"github.com/berthrun/berth/internal/httpapi"
	"github.com/berthrun/berth/internal/httpapi/gen/growth"
)

const root = "../../.."

// TestGeneratedFiles holds the committed files against what is generated now. Run go generate ./internal/httpapi where it fails.
func TestGeneratedFiles(t *testing.T) {
	files, err := generate(api.All(), api.AllStreams())
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range files {
		got, err := os.ReadFile(filepath.Join(root, name))
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if diff := cmp.Diff(string(want), string(got)); diff != "" {
			t.Errorf("%s is not up to date (-generated +committed):\n%s", name, diff)
		}
	}
	stale, err := staleFiles(root, files)
	if err != nil || len(stale) > 0 {
		t.Errorf("pages without an operation: %v, %v", stale, err)
	}
}

// TestOpenAPIIsValid reads the document as a strict reader does: references resolve, and every operation is there with all its schemas.
func TestOpenAPIIsValid(t *testing.T) {
	raw, err := httpapi.OpenAPI(api.All(), api.AllStreams(), "https://berth.example/")
	if err != nil {
		t.Fatal(err)
	}
	doc, err := libopenapi.NewDocument(raw)
	if err != nil {
		t.Fatal(err)
	}
	model, err := doc.BuildV3Model()
	if err != nil {
		t.Fatal(err)
	}
	if errs := model.Index.GetReferenceIndexErrors(); len(errs) > 0 {
		t.Errorf("references: %v", errs)
	}
	if got := model.Model.Servers[0].URL; got != "https://berth.example" {
		t.Errorf("server is %q", got)
	}
	found := map[string]bool{}
	for path, item := range model.Model.Paths.PathItems.FromOldest() {
		for method, o := range item.GetOperations().FromOldest() {
			found[strings.ToUpper(method)+" "+path+" "+o.OperationId] = true
			for _, p := range o.Parameters {
				if p.Schema == nil || p.Schema.Schema() == nil {
					t.Errorf("%s: parameter %s has no schema", o.OperationId, p.Name)
				}
			}
			for status, r := range o.Responses.Codes.FromOldest() {
				for _, c := range r.Content.FromOldest() {
					if c.Schema == nil || c.Schema.Schema() == nil {
						t.Errorf("%s: answer %s has no schema", o.OperationId, status)
					}
				}
			}
		}
	}
	for _, info := range api.All() {
		if name := info.Method + " " + info.Path + " " + info.Name; !found[name] {
			t.Errorf("%s is missing", name)
		}
	}
	want := len(api.All()) + 3
	for _, s := range api.AllStreams() {
		if s.When != "" {
			continue // told with the operation of its route
		}
		want++
		if name := s.Method + " " + s.Path + " " + s.Name; !found[name] {
			t.Errorf("%s is missing", name)
		}
	}
	if len(found) != want {
		t.Errorf("%d operations, want %d", len(found), want)
	}
}

// TestLockIsKept fails where a caller of the committed contract would break.
func TestLockIsKept(t *testing.T) {
	lock, err := os.ReadFile(filepath.Join(root, lockFile))
	if err != nil {
		t.Fatal(err)
	}
	now, err := generate(api.All(), api.AllStreams())
	if err != nil {
		t.Fatal(err)
	}
	broken, err := growth.Breaks(lock, now[lockFile])
	if err != nil {
		t.Fatal(err)
	}
	for _, b := range broken {
		t.Errorf("breaks callers: %s", b)
	}
}

// TestBreaks proves that the comparison sees what breaks callers, and lets the API grow.
func TestBreaks(t *testing.T) {
	tests := []struct {
		name   string
		change func([]op.Info) []op.Info
		breaks bool
	}{
		{"nothing", func(all []op.Info) []op.Info { return all }, false},
		{"an operation less", func(all []op.Info) []op.Info { return all[1:] }, true},
		{"an operation moved", in("files.read", func(i *op.Info) { i.Path = "/v1/sandboxes/{sandboxId}/read" }), true},
		{"an operation more", func(all []op.Info) []op.Info {
			more := all[0]
			more.Name, more.Path = "sandboxes.copy", "/v1/copies"
			return append(all, more)
		}, false},
		{"a required argument in a body", in("sandboxes.create", func(i *op.Info) { i.In.Required = append(i.In.Required, "name") }), true},
		{"a required argument in a query", in("sandboxes.list", func(i *op.Info) { i.In.Required = append(i.In.Required, "name") }), true},
		{"an argument less", in("sandboxes.create", func(i *op.Info) { drop(i.In, "template") }), true},
		{"an argument more", in("sandboxes.create", func(i *op.Info) { add(i.In, "colour") }), false},
		{"an argument of another type", in("sandboxes.create", func(i *op.Info) { i.In.Properties["ttlSeconds"] = &op.Schema{Type: "string"} }), true},
		{"an output less", in("account.get", func(i *op.Info) { drop(i.Out, "organizationId") }), true},
		{"an output more", in("account.get", func(i *op.Info) { add(i.Out, "colour") }), false},
		{"an output of another type", in("account.get", func(i *op.Info) { i.Out.Properties["scopes"] = &op.Schema{Type: "string"} }), true},
		{"an output that is always there now", in("sandboxes.create", func(i *op.Info) { i.Out.Required = append(i.Out.Required, "sandbox") }), false},
		{"a member of an output that is always there now", in("sandboxes.get", func(i *op.Info) {
			inner := i.Out.Properties["sandbox"]
			inner.Required = append(inner.Required, "name")
		}), false},
		{"an output that may be absent now", in("sandboxes.get", func(i *op.Info) { i.Out.Required = nil }), true},
		{"another text", in("account.get", func(i *op.Info) { i.Doc = "Other words." }), false},
	}
	before, err := httpapi.OpenAPI(api.All(), api.AllStreams(), "")
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			after, err := httpapi.OpenAPI(tt.change(api.All()), api.AllStreams(), "")
			if err != nil {
				t.Fatal(err)
			}
			got, err := growth.Breaks(before, after)
			if err != nil {
				t.Fatal(err)
			}
			if (len(got) > 0) != tt.breaks {
				t.Errorf("breaking changes: %q", got)
			}
		})
	}
}

func in(name string, change func(*op.Info)) func([]op.Info) []op.Info {
	return func(all []op.Info) []op.Info {
		i := slices.IndexFunc(all, func(i op.Info) bool { return i.Name == name })
		change(&all[i])
		return all
	}
}

func drop(s *op.Schema, name string) {
	same := func(n string) bool { return n == name }
	delete(s.Properties, name)
	s.Order, s.Required = slices.DeleteFunc(s.Order, same), slices.DeleteFunc(s.Required, same)
}

func add(s *op.Schema, name string) {
	s.Properties[name] = &op.Schema{Type: "string"}
	s.Order = append(s.Order, name)
}

// TestRun proves that the generator keeps the lock unless told otherwise, and takes away pages of operations that are gone.
func TestRun(t *testing.T) {
	dir := t.TempDir()
	if err := run(dir, false); err != nil {
		t.Fatal(err)
	}
	lock, err := os.ReadFile(filepath.Join(dir, lockFile))
	if err != nil {
		t.Fatal(err)
	}
	older := strings.Replace(string(lock), `"/v1/account"`, `"/v1/former-account"`, 1)
	for name, content := range map[string]string{lockFile: older, pagesDir + "/gone.md": pageMark, pagesDir + "/kept.md": "# By hand\n"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := run(dir, false); err == nil || !strings.Contains(err.Error(), "would break") {
		t.Errorf("a break is written: %v", err)
	}
	if got, err := os.ReadFile(filepath.Join(dir, lockFile)); err != nil || string(got) != older {
		t.Error("the lock was touched")
	}
	if err := run(dir, true); err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(filepath.Join(dir, lockFile)); err != nil || string(got) != string(lock) {
		t.Error("the lock was not written with -break")
	}
	if _, err := os.Stat(filepath.Join(dir, pagesDir, "gone.md")); !os.IsNotExist(err) {
		t.Error("a page without an operation is left")
	}
	if _, err := os.Stat(filepath.Join(dir, pagesDir, "kept.md")); err != nil {
		t.Error("a page that was not generated is gone")
	}
}
