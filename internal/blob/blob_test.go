package blob

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/iotest"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/berthrun/berth/internal/errs"
)

func open(t *testing.T) *Store {
	t.Helper()
	s, err := Open(t.Context(), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

func get(t *testing.T, s *Store, key string) string {
	t.Helper()
	r, err := s.Get(t.Context(), key)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	b, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func TestPutGetDelete(t *testing.T) {
	s, ctx := open(t), t.Context()
	big := strings.Repeat("0123456789", 1<<20)
	for key, data := range map[string]string{"a/one": "first", "a/two": "", "b/big": big} {
		if err := s.Put(ctx, key, strings.NewReader(data)); err != nil {
			t.Fatal(err)
		}
		if got := get(t, s, key); got != data {
			t.Errorf("%s holds %d bytes, want %d", key, len(got), len(data))
		}
	}
	if err := s.Put(ctx, "a/one", strings.NewReader("second")); err != nil {
		t.Fatal(err)
	}
	list, err := s.List(ctx, "a/")
	if diff := cmp.Diff([]Object{{"a/one", 6}, {"a/two", 0}}, list); err != nil || diff != "" {
		t.Errorf("List: %v\n%s", err, diff)
	}
	if err := s.DeletePrefix(ctx, "a/"); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Get(ctx, "a/one"); !errs.Is(err, errs.NotFound) {
		t.Errorf("Get of a deleted one: %v", err)
	}
	if err := s.Delete(ctx, "a/one"); err != nil {
		t.Errorf("Delete again: %v", err)
	}
	if get(t, s, "b/big") != big {
		t.Error("another prefix was touched")
	}
}

// Directories go with their last object, and never from under one that is being stored.
func TestNoEmptyDirectories(t *testing.T) {
	s, ctx := open(t), t.Context()
	var all sync.WaitGroup
	for n := range 4 {
		all.Go(func() {
			for i := range 25 {
				key := fmt.Sprintf("a/%d/%d", i%2, n)
				if err := errors.Join(s.Put(ctx, key, strings.NewReader("x")), s.Delete(ctx, key)); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	if err := errors.Join(s.Put(ctx, "a/kept/deep/one", strings.NewReader("x")), s.Put(ctx, "a/kept/two", strings.NewReader("x")), s.Delete(ctx, "a/kept/deep/one")); err != nil {
		t.Fatal(err)
	}
	var dirs []string
	err := filepath.WalkDir(s.folder, func(path string, d fs.DirEntry, err error) error {
		if d.IsDir() && path != s.folder {
			dirs = append(dirs, strings.TrimPrefix(path, s.folder+"/"))
		}
		return err
	})
	if diff := cmp.Diff([]string{"a", "a/kept"}, dirs); err != nil || diff != "" {
		t.Errorf("directories, %v:\n%s", err, diff)
	}
}

func TestABrokenPutLeavesTheOld(t *testing.T) {
	s := open(t)
	if err := s.Put(t.Context(), "k", strings.NewReader("old")); err != nil {
		t.Fatal(err)
	}
	broken := io.MultiReader(bytes.NewReader(make([]byte, 1<<20)), iotest.ErrReader(errors.New("torn")))
	if err := s.Put(t.Context(), "k", broken); err == nil {
		t.Fatal("a broken stream was stored")
	}
	if got := get(t, s, "k"); got != "old" {
		t.Errorf("it holds %d bytes", len(got))
	}
	if list, err := s.List(t.Context(), ""); err != nil || len(list) != 1 {
		t.Errorf("left behind: %v, %v", list, err)
	}
}

// What a killed program was writing is no object, and goes when the folder is next opened with nobody else at work in it.
func TestPartsOfTheKilled(t *testing.T) {
	s, ctx := open(t), t.Context()
	if err := s.Put(ctx, "a/one", strings.NewReader("x")); err != nil {
		t.Fatal(err)
	}
	in, out := io.Pipe()
	put := make(chan error, 1)
	go func() { put <- s.Put(ctx, "a/two", in) }()
	if _, err := out.Write([]byte("begun")); err != nil {
		t.Fatal(err)
	}
	other, err := Open(ctx, s.folder) // beside one that writes
	if err != nil {
		t.Fatal(err)
	}
	if list, err := other.List(ctx, ""); err != nil || len(list) != 1 {
		t.Errorf("objects beside a part: %v, %v", list, err)
	}
	parts, _ := filepath.Glob(filepath.Join(s.folder, "a", "two.*.tmp"))
	if len(parts) != 1 {
		t.Fatalf("parts: %q", parts)
	}
	left := filepath.Join(s.folder, "a", "three"+filepath.Ext(strings.TrimSuffix(parts[0], ".tmp"))+".tmp")
	if err := errors.Join(out.Close(), <-put, other.Close(), s.Close(), os.WriteFile(left, []byte("half"), 0o600)); err != nil {
		t.Fatal(err)
	}
	alone, err := Open(ctx, s.folder)
	if err != nil {
		t.Fatal(err)
	}
	defer alone.Close()
	if list, err := alone.List(ctx, ""); err != nil || len(list) != 2 {
		t.Errorf("objects: %v, %v", list, err)
	}
	if _, err := os.Lstat(left); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the part is still there: %v", err)
	}
}

func TestNotAFolder(t *testing.T) {
	for _, name := range []string{"", "s3://bucket"} {
		if _, err := Open(t.Context(), name); !errs.Is(err, errs.InvalidConfig) {
			t.Errorf("Open(%q) = %v", name, err)
		}
	}
}

// TestFull: a disk without room is said to be full, whatever is stored, and leaves what was there.
func TestFull(t *testing.T) {
	s := open(t)
	if err := s.Put(t.Context(), "a", strings.NewReader("old")); err != nil {
		t.Fatal(err)
	}
	for _, cause := range []error{unix.ENOSPC, unix.EDQUOT} {
		err := s.Put(t.Context(), "a", io.MultiReader(strings.NewReader("new"), iotest.ErrReader(&fs.PathError{Op: "write", Path: "a", Err: cause})))
		if e := errs.From(err); e.Code != errs.NoCapacity || e.Reason != "disk_full" {
			t.Errorf("%v: %v", cause, err)
		}
	}
	r, err := s.Get(t.Context(), "a")
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if b, err := io.ReadAll(r); err != nil || string(b) != "old" {
		t.Errorf("read %q, %v", b, err)
	}
}
