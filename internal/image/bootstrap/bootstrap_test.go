package bootstrap

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/berthrun/berth/internal/disk"
	"github.com/berthrun/berth/internal/errs"
)

// fill is a make function that leaves the smallest tree that can be sealed.
func fill(_ context.Context, _ *os.File, rootfs string) error {
	if err := os.MkdirAll(filepath.Join(rootfs, "var/lib/dpkg"), 0o755); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(rootfs, "var/lib/dpkg/status"), []byte("Package: a\nStatus: install ok installed\n\nPackage: b\nStatus: deinstall ok config-files\n"), 0o644)
}

func forbidden(t *testing.T) func(context.Context, *os.File, string) error {
	return func(context.Context, *os.File, string) error {
		t.Error("an image was made where none was to be")
		return errors.New("made twice")
	}
}

func TestPrepareCaches(t *testing.T) {
	opts, r := Options{Dir: t.TempDir()}, recipe{Version: 1, Suite: "s"}
	first, err := prepare(t.Context(), opts, r, fill)
	if err != nil {
		t.Fatalf("prepare: %v", err)
	}
	if first.Cached || first.ID != r.id() || first.Packages != 1 || first.Bytes == 0 || first.Rootfs != filepath.Join(opts.Dir, r.id(), "rootfs") {
		t.Errorf("prepare = %+v", first)
	}
	if info, err := os.Stat(filepath.Dir(first.Rootfs)); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("folder of the image: mode %v, error %v; want 0700", info.Mode(), err)
	}
	second, err := prepare(t.Context(), opts, r, forbidden(t))
	if err != nil {
		t.Fatalf("prepare again: %v", err)
	}
	want := first
	want.Cached = true
	if diff := cmp.Diff(want, second); diff != "" {
		t.Errorf("prepare again (-want +got):\n%s", diff)
	}
	loaded, err := Load(opts.Dir, r.id())
	if diff := cmp.Diff(want, loaded); err != nil || diff != "" {
		t.Errorf("Load: error %v (-want +got):\n%s", err, diff)
	}
}

func TestPrepareBeginsUnfinishedAnew(t *testing.T) {
	opts, r := Options{Dir: t.TempDir()}, recipe{Version: 1}
	left := filepath.Join(opts.Dir, r.id(), "rootfs", "left")
	if err := os.MkdirAll(left, 0o755); err != nil {
		t.Fatal(err)
	}
	if _, err := prepare(t.Context(), opts, r, fill); err != nil {
		t.Fatalf("prepare: %v", err)
	}
	if _, err := os.Stat(left); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("what an interrupted preparation left is still there: %v", err)
	}
}

func TestPrepareFailureLeavesNothing(t *testing.T) {
	opts, r := Options{Dir: t.TempDir()}, recipe{Version: 1}
	broken := errors.New("no network")
	_, err := prepare(t.Context(), opts, r, func(ctx context.Context, lock *os.File, rootfs string) error {
		return errors.Join(fill(ctx, lock, rootfs), broken)
	})
	if !errors.Is(err, broken) {
		t.Fatalf("prepare: %v, want %v", err, broken)
	}
	if _, err := os.Stat(filepath.Join(opts.Dir, r.id())); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the folder of the failed image is still there: %v", err)
	}
	if _, err := Load(opts.Dir, r.id()); !errs.Is(err, errs.NotFound) {
		t.Errorf("Load: %v, want NOT_FOUND", err)
	}
	if _, err := prepare(t.Context(), opts, r, fill); err != nil {
		t.Errorf("prepare after a failure: %v", err)
	}
}

func TestPrepareTwiceAtOnce(t *testing.T) {
	dir, r := t.TempDir(), recipe{Version: 1}
	making, waiting := make(chan struct{}), make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		_, err := prepare(t.Context(), Options{Dir: dir}, r, func(ctx context.Context, lock *os.File, rootfs string) error {
			close(making)
			<-waiting // until the other is seen to wait
			return fill(ctx, lock, rootfs)
		})
		if err != nil {
			t.Errorf("first: %v", err)
		}
	})
	<-making
	second := Options{Dir: dir, Progress: func(string, int64, int64) { close(waiting) }}
	res, err := prepare(t.Context(), second, r, forbidden(t))
	if err != nil || !res.Cached {
		t.Errorf("second: %+v, %v; want the first one's image", res, err)
	}
	wg.Wait()
}

func TestLockEndsWithContext(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	held, err := acquire(t.Context(), path, func() {})
	if err != nil {
		t.Fatal(err)
	}
	defer held.Close()
	ctx, cancel := context.WithCancel(t.Context())
	if _, err := acquire(ctx, path, cancel); !errors.Is(err, context.Canceled) {
		t.Errorf("acquire: %v, want %v", err, context.Canceled)
	}
}

func TestLockIsHeldByChild(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	lock, err := acquire(t.Context(), path, func() {})
	if err != nil {
		t.Fatal(err)
	}
	child := exec.CommandContext(t.Context(), "cat")
	child.ExtraFiles = []*os.File{lock}
	stdin, err := child.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	lock.Close() // as if the process that took it had been killed
	waited := false
	again, err := acquire(t.Context(), path, func() { waited = true; stdin.Close() })
	if err != nil {
		t.Fatal(err)
	}
	again.Close()
	if !waited {
		t.Error("the lock was free while a child that was given it lived")
	}
	if err := child.Wait(); err != nil {
		t.Error(err)
	}
}

func TestRemoveTreeStopsAtMounts(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("mounting needs root")
	}
	precious := t.TempDir()
	file := filepath.Join(precious, "file")
	if err := os.WriteFile(file, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	tree := filepath.Join(t.TempDir(), "tree")
	point := filepath.Join(tree, "a b")
	if err := os.MkdirAll(point, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount(precious, point, "", unix.MS_BIND, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(point, unix.MNT_DETACH) }) // only where the test failed
	if err := disk.RemoveTree(tree); err != nil {
		t.Fatalf("RemoveTree: %v", err)
	}
	if _, err := os.Stat(tree); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the tree is still there: %v", err)
	}
	if _, err := os.Stat(file); err != nil {
		t.Errorf("a file behind a mount went with the tree: %v", err)
	}
}

func TestMountsUnder(t *testing.T) {
	info := "1 0 8:1 / / rw - ext4 /dev/a rw\n2 1 0:1 / /d/x/rootfs/proc rw - proc proc rw\n3 1 0:1 / /d/xy rw - tmpfs t rw\n4 1 0:1 / /d/x/a\\040b\\134 rw - tmpfs t rw\nshort\n"
	if diff := cmp.Diff([]string{"/d/x/rootfs/proc", `/d/x/a b\`}, disk.MountsUnder([]byte(info), "/d/x")); diff != "" {
		t.Errorf("MountsUnder (-want +got):\n%s", diff)
	}
}

func TestRecipeID(t *testing.T) {
	h := host{id: "debian", codename: "bookworm"}
	ca := filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(ca, []byte("-----BEGIN CERTIFICATE-----\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	id := func(opts Options) string {
		t.Helper()
		r, err := newRecipe(h, opts)
		if err != nil {
			t.Fatal(err)
		}
		return r.id()
	}
	base := id(Options{})
	if !regexp.MustCompile(`^[0-9a-f]{32}$`).MatchString(base) {
		t.Errorf("id %q is not 32 hexadecimal digits", base)
	}
	for name, opts := range map[string]Options{
		"the host's suite named": {Suite: "bookworm"},
		"a package it has":       {ExtraPackages: []string{"git"}},
		"what is not content":    {Dir: "/elsewhere", Progress: func(string, int64, int64) {}},
	} {
		if got := id(opts); got != base {
			t.Errorf("%s: id %s, want %s", name, got, base)
		}
	}
	seen := map[string]string{base: "the plain one"}
	for name, opts := range map[string]Options{
		"another suite": {Suite: "trixie"},
		"one more":      {ExtraPackages: []string{"golang"}},
		"certificates":  {TrustHostCA: ca},
	} {
		got := id(opts)
		if other, ok := seen[got]; ok {
			t.Errorf("%s has the id of %s", name, other)
		}
		seen[got] = name
	}
	if a, b := id(Options{ExtraPackages: []string{"x1", "y1"}}), id(Options{ExtraPackages: []string{"y1", "x1", "x1"}}); a != b {
		t.Errorf("order and repetition of packages matter: %s, %s", a, b)
	}
}

func TestRecipeRefuses(t *testing.T) {
	for name, opts := range map[string]Options{
		"an option":         {ExtraPackages: []string{"--hook=sh"}},
		"two in one":        {ExtraPackages: []string{"a,b"}},
		"a missing ca file": {TrustHostCA: filepath.Join(t.TempDir(), "none.pem")},
	} {
		if _, err := newRecipe(host{id: "debian", codename: "bookworm"}, opts); !errs.Is(err, errs.InvalidConfig) {
			t.Errorf("%s: %v, want INVALID_CONFIG", name, err)
		}
	}
	if _, err := prepare(t.Context(), Options{}, recipe{}, forbidden(t)); !errs.Is(err, errs.InvalidConfig) {
		t.Errorf("no folder: %v, want INVALID_CONFIG", err)
	}
}
