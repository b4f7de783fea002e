//go:build linux

package guest

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/berthrun/berth/internal/errs"
	"github.com/google/go-cmp/cmp"
)

// listed gives the paths of all pages below a directory.
func (r *rig) listed(in FileList) []string {
	r.t.Helper()
	dir := in.Path
	var all []string
	for page := 0; ; page++ {
		l, err := r.ListFiles(r.t.Context(), in)
		if err != nil {
			r.t.Fatalf("list %+v: %v", in, err)
		}
		for _, e := range l.Entries {
			all = append(all, strings.TrimPrefix(e.Path, dir+"/"))
		}
		if !l.More {
			return all
		}
		if page > 10000 {
			r.t.Fatal("the listing does not end")
		}
		in.After = l.Next
	}
}

func TestList(t *testing.T) {
	r := newRig(t)
	for _, name := range []string{"a/1", "a/b/2", "a/b/c/3.go", "a-b", "a.go", "z/deep/er/4.go", ".hidden"} {
		r.put(name, "", 0o644, 0)
	}
	if err := os.Symlink(".", r.path("a/loop")); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(r.path("closed"), 0o700); err != nil {
		t.Fatal(err)
	}
	everything := []string{".hidden", "a", "a/1", "a/b", "a/b/2", "a/b/c", "a/b/c/3.go", "a/loop", "a-b", "a.go", "closed", "z", "z/deep", "z/deep/er", "z/deep/er/4.go"}
	for name, tt := range map[string]struct {
		in   FileList
		want []string
	}{
		"one level":          {FileList{}, []string{".hidden", "a", "a-b", "a.go", "closed", "z"}},
		"two levels":         {FileList{Depth: 2}, []string{".hidden", "a", "a/1", "a/b", "a/loop", "a-b", "a.go", "closed", "z", "z/deep"}},
		"everything":         {FileList{Depth: 32}, everything},
		"page by page":       {FileList{Depth: 32, Limit: 1}, everything},
		"pages of four":      {FileList{Depth: 32, Limit: 4}, everything},
		"a pattern":          {FileList{Glob: "*.go"}, []string{"a.go"}},
		"at any depth":       {FileList{Glob: "**/*.go"}, []string{"a/b/c/3.go", "a.go", "z/deep/er/4.go"}},
		"page by page too":   {FileList{Glob: "**/*.go", Limit: 1}, []string{"a/b/c/3.go", "a.go", "z/deep/er/4.go"}},
		"in the middle":      {FileList{Glob: "a/**/[23]*"}, []string{"a/b/2", "a/b/c/3.go"}},
		"pattern and depth":  {FileList{Glob: "**/*.go", Depth: 2}, []string{"a.go"}},
		"all below":          {FileList{Glob: "z/**"}, []string{"z", "z/deep", "z/deep/er", "z/deep/er/4.go"}},
		"nothing":            {FileList{Glob: "**/*.rs"}, nil},
		"as one who may not": {FileList{Depth: 32, User: other}, everything},
		"after a page":       {FileList{Depth: 32, After: "a/b/2"}, everything[5:]},
		"after what is gone": {FileList{Depth: 32, After: "a/b/b"}, everything[5:]},
	} {
		t.Run(name, func(t *testing.T) {
			r := &rig{Client: r.Client, t: t, root: r.root}
			tt.in.Path = r.root
			if tt.in.After != "" {
				tt.in.After = r.path(tt.in.After)
			}
			if d := cmp.Diff(tt.want, r.listed(tt.in)); d != "" {
				t.Error(d)
			}
		})
	}
	for name, tt := range map[string]struct {
		in     FileList
		code   errs.Code
		reason string
	}{
		"missing":     {FileList{Path: r.path("none")}, errs.NotFound, ""},
		"a file":      {FileList{Path: r.path("a-b")}, errs.InvalidInput, "not_directory"},
		"not allowed": {FileList{Path: r.path("closed"), User: other}, errs.Forbidden, "file_permission"},
		"bad glob":    {FileList{Path: r.root, Glob: "[a"}, errs.InvalidInput, ""},
		"escaping":    {FileList{Path: r.root, Glob: "../*"}, errs.InvalidInput, ""},
		"depth":       {FileList{Path: r.root, Depth: 33}, errs.InvalidInput, ""},
		"after":       {FileList{Path: r.root, After: "/etc"}, errs.InvalidInput, ""},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := r.ListFiles(t.Context(), tt.in)
			wantCode(t, err, tt.code, tt.reason)
		})
	}
}

// A huge directory is paged through without holding it.
func TestListHugeDirectory(t *testing.T) {
	r := newRig(t)
	const n = 3*listBatch + 17
	if err := os.Mkdir(r.path("huge"), 0o755); err != nil {
		t.Fatal(err)
	}
	var want []string
	for i := range n {
		name := fmt.Sprintf("%05x", i*7919%(1<<20))
		if err := os.WriteFile(filepath.Join(r.path("huge"), name), nil, 0o644); err != nil {
			t.Fatal(err)
		}
		want = append(want, name)
	}
	slices.Sort(want)
	want = slices.Compact(want)
	if got := r.listed(FileList{Path: r.path("huge")}); !slices.Equal(got, want) {
		t.Errorf("%d entries, want %d", len(got), len(want))
	}
	// One that matches nothing of very much ends its page all the same, and the last page its listing.
	some := want[len(want)-1]
	if got := r.listed(FileList{Path: r.root, Glob: "huge/" + some}); !slices.Equal(got, []string{"huge/" + some}) {
		t.Errorf("got %v", got)
	}
}

// The order of a listing, and so of its cursors, is the one that walking a tree name by name gives.
func TestComparePaths(t *testing.T) {
	r := newRig(t)
	for _, name := range []string{"b/x/y", "b-/x", "b.x", "b/x-", "b/x/a", "c", "B", "b/é"} {
		r.put(name, "", 0o644, 0)
	}
	var walked []string
	_ = filepath.WalkDir(r.root, func(p string, _ fs.DirEntry, _ error) error {
		walked = append(walked, p)
		return nil
	})
	if !slices.IsSortedFunc(walked, comparePaths) {
		t.Errorf("not in order: %v", walked)
	}
	if comparePaths("/a", "/a") != 0 || comparePaths("/a/b", "/a-") >= 0 || comparePaths("/b", "/a/b") <= 0 {
		t.Error("the order is wrong")
	}
}
