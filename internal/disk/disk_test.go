package disk

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// stores gives one store of every kind that can be had here. Image needs loop devices, mkfs.btrfs and root.
func stores(t *testing.T) map[string]*Store {
	t.Helper()
	if os.Geteuid() != 0 {
		if os.Getenv("CI") == "true" {
			t.Fatal("needs root")
		}
		t.Skip("needs root: disks are mounted")
	}
	out := map[string]*Store{}
	for _, kind := range []Kind{Plain, Image} {
		s, err := Open(t.TempDir(), kind)
		if err != nil {
			if _, missing := exec.LookPath("mkfs.btrfs"); kind == Image && missing != nil {
				t.Logf("not tried: %s: %v", kind, err)
				continue
			}
			t.Fatalf("Open %s: %v", kind, err)
		}
		t.Cleanup(func() {
			if err := s.Close(); err != nil {
				t.Errorf("close %s: %v", kind, err)
			}
		})
		if got := s.Describe(); got.Kind != kind || got.Quota != (kind == Image) || got.Snapshot != (kind == Image) {
			t.Errorf("Describe = %+v for %s", got, kind)
		}
		out[string(kind)] = s
	}
	return out
}

func layer(t *testing.T) string {
	t.Helper()
	// Names that mean something to overlayfs's options must not.
	dir := filepath.Join(t.TempDir(), `sha256:a,b\c`)
	if err := errors.Join(os.MkdirAll(filepath.Join(dir, "etc"), 0o755), os.WriteFile(filepath.Join(dir, "etc", "base"), []byte("base"), 0o644)); err != nil {
		t.Fatal(err)
	}
	return dir
}

func TestLife(t *testing.T) {
	for kind, s := range stores(t) {
		t.Run(kind, func(t *testing.T) {
			lower, target := layer(t), filepath.Join(t.TempDir(), "m")
			for _, id := range []string{"a", "b"} {
				if err := s.Create(id, 1<<30); err != nil {
					t.Fatal(err)
				}
			}
			if err := s.Create("a", 0); err == nil {
				t.Error("a second disk of the same id was made")
			}
			if err := s.Mount("a", target, lower); err != nil {
				t.Fatal(err)
			}
			if b, err := os.ReadFile(filepath.Join(target, "etc", "base")); err != nil || string(b) != "base" {
				t.Errorf("of the layer: %q, %v", b, err)
			}
			if err := os.WriteFile(filepath.Join(target, "etc", "base"), []byte("mine"), 0o644); err != nil {
				t.Fatal(err)
			}
			var st unix.Statfs_t
			if err := unix.Statfs(target, &st); err != nil || st.Flags&unix.ST_NOSUID == 0 || st.Flags&unix.ST_NODEV == 0 {
				t.Errorf("mounted with flags %#x, %v; want nosuid and nodev", st.Flags, err)
			}
			for range 2 {
				if err := Unmount(target); err != nil {
					t.Fatal(err)
				}
			}
			if b, _ := os.ReadFile(filepath.Join(lower, "etc", "base")); string(b) != "base" {
				t.Errorf("the layer was changed to %q", b)
			}
			if err := s.Mount("a", target, lower); err != nil {
				t.Fatal(err)
			}
			if b, _ := os.ReadFile(filepath.Join(target, "etc", "base")); string(b) != "mine" {
				t.Errorf("mounted again it has %q, want what was written", b)
			}
			if err := Unmount(target); err != nil {
				t.Fatal(err)
			}
			if !s.Has("a") || s.Has("c") {
				t.Errorf("Has(a) = %v, Has(c) = %v", s.Has("a"), s.Has("c"))
			}
			for range 2 {
				if err := s.Remove("a"); err != nil {
					t.Fatal(err)
				}
			}
			if got, err := s.List(); err != nil || fmt.Sprint(got) != "[b]" {
				t.Errorf("List = %v, %v; want [b]", got, err)
			}
			if err := s.Remove("b"); err != nil {
				t.Fatal(err)
			}
		})
	}
}

func TestIDsStayInside(t *testing.T) {
	for kind, s := range stores(t) {
		for _, id := range []string{"", ".", "..", "../x", "a/b"} {
			if err := s.Create(id, 0); err == nil {
				t.Errorf("%s: a disk %q was made", kind, id)
			}
			if err := s.Remove(id); err == nil {
				t.Errorf("%s: a disk %q was removed", kind, id)
			}
		}
	}
}

func TestUsageAndLimit(t *testing.T) {
	for kind, s := range stores(t) {
		t.Run(kind, func(t *testing.T) {
			const limit = 32 << 20
			if err := s.Create("a", limit); err != nil {
				t.Fatal(err)
			}
			target := filepath.Join(t.TempDir(), "m")
			if err := s.Mount("a", target, layer(t)); err != nil {
				t.Fatal(err)
			}
			defer Unmount(target)
			fill := func(name string, mib int) error {
				f, err := os.Create(filepath.Join(target, name))
				if err != nil {
					return err
				}
				defer f.Close()
				block := []byte(strings.Repeat("0123456789abcdef", 1<<16))
				for range mib {
					if _, err := f.Write(block); err != nil {
						return err
					}
				}
				return f.Sync()
			}
			if err := fill("small", 8); err != nil {
				t.Fatal(err)
			}
			if n, err := s.Usage("a"); err != nil || n < 8<<20 || n > 12<<20 {
				t.Errorf("Usage = %d, %v; want about 8 MiB", n, err)
			}
			err := fill("big", 64)
			if s.Describe().Quota != errors.Is(err, unix.EDQUOT) {
				t.Errorf("writing over the limit: %v, quota %v", err, s.Describe().Quota)
			}
			if !s.Describe().Quota {
				return
			}
			if err := s.Limit("a", 256<<20); err != nil {
				t.Fatal(err)
			}
			if err := fill("more", 64); err != nil {
				t.Errorf("after the limit was raised: %v", err)
			}
			s.SetHeld(true)
			if err := errors.Join(s.Sync(), s.Limit("a", 256<<20)); err != nil {
				t.Fatal(err)
			}
			if err := fill("held", 1); !errors.Is(err, unix.EDQUOT) {
				t.Errorf("held to what it has: %v, want %v", err, unix.EDQUOT)
			}
			for range 2 { // one that has no room left is held and let go of all the same
				if err := s.Limit("a", 0); err != nil {
					t.Errorf("Limit while held: %v", err)
				}
			}
			if err := s.Create("b", 0); !errors.Is(err, unix.ENOSPC) || s.Has("b") {
				t.Errorf("a new disk while held: %v, want %v", err, unix.ENOSPC)
			}
			s.SetHeld(false)
			if err := errors.Join(s.Limit("a", 256<<20), fill("again", 1)); err != nil {
				t.Errorf("let go of: %v", err)
			}
		})
	}
}

func TestRoom(t *testing.T) {
	for kind, s := range stores(t) {
		free, low, ok := s.Room()
		if ok != (s.Describe().Kind == Image) || ok && (free <= low || low < leastRoom || low > mostRoom) {
			t.Errorf("%s: Room = %d, %d, %v", kind, free, low, ok)
		}
		for range 2 {
			if err := s.Reserve(); err != nil {
				t.Error(err)
			}
			now, _, _ := s.Room()
			if info, err := os.Stat(s.reservePath()); ok && (err != nil || info.Size() != min(low/2, mostReserve) || now > free-info.Size()/2) {
				t.Errorf("%s: with a reserve of %v there is %d free of %d, %v", kind, info, now, free, err)
			}
		}
		if err := s.Release(); err != nil {
			t.Error(err)
		}
	}
}

// An image that is mounted already, or was by an earlier process, is used again.
func TestImageAgain(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	dir := t.TempDir()
	s, err := Open(dir, Image)
	if err != nil {
		t.Skipf("no image can be made here: %v", err)
	}
	if err := s.Create("a", 0); err != nil {
		t.Fatal(err)
	}
	for _, reopen := range []bool{false, true} {
		if reopen {
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
		}
		if s, err = Open(dir, Auto); err != nil || s.Describe().Kind != Image || !s.Has("a") {
			t.Fatalf("Open again (closed before: %v) = %v, %v", reopen, s, err)
		}
	}
	if err := errors.Join(s.Remove("a"), s.Close()); err != nil {
		t.Error(err)
	}
}

// A folder that holds plain disks stays plain.
func TestPlainStaysPlain(t *testing.T) {
	dir := t.TempDir()
	s, err := Open(dir, Plain)
	if err == nil {
		err = s.Create("a", 0)
	}
	if err != nil {
		t.Fatal(err)
	}
	s, err = Open(dir, Auto)
	if err != nil || s.Describe().Kind != Plain || !s.Has("a") {
		t.Fatalf("Open = %+v, %v", s, err)
	}
}

// A copy has all that the disk had, and from then on neither sees the other's writes.
func TestCopy(t *testing.T) {
	for kind, s := range stores(t) {
		t.Run(kind, func(t *testing.T) {
			if err := s.Create("a", 1<<30); err != nil {
				t.Fatal(err)
			}
			upper := s.Folder("a")
			write := func(name, text string) {
				t.Helper()
				if err := os.WriteFile(name, []byte(text), 0o640); err != nil {
					t.Fatal(err)
				}
			}
			write(filepath.Join(upper, "file"), "one")
			write(filepath.Join(upper, "odd \xff\n"), "two")
			sparse, err := os.Create(filepath.Join(upper, "sparse"))
			if err == nil {
				_, err = sparse.WriteAt([]byte("end"), 64<<20)
				err = errors.Join(err, sparse.Close())
			}
			err = errors.Join(err, os.Chown(filepath.Join(upper, "file"), 1000, 1001), os.Chmod(filepath.Join(upper, "file"), 0o4751),
				os.Link(filepath.Join(upper, "file"), filepath.Join(upper, "link")), os.Symlink("nowhere", filepath.Join(upper, "symlink")),
				unix.Mknod(filepath.Join(upper, "whiteout"), unix.S_IFCHR, 0), unix.Mkfifo(filepath.Join(upper, "pipe"), 0o600),
				os.Mkdir(filepath.Join(upper, "dir"), 0o711), unix.Setxattr(filepath.Join(upper, "dir"), "trusted.overlay.opaque", []byte("y"), 0),
				os.Chtimes(filepath.Join(upper, "dir"), time.Unix(1, 2), time.Unix(3, 4)))
			if err != nil {
				t.Fatal(err)
			}
			before := describe(t, upper)
			if err := s.Copy("a", "b", 1<<30); err != nil {
				t.Fatal(err)
			}
			if got := describe(t, s.Folder("b")); got != before {
				t.Errorf("the copy:\n%s\nwant:\n%s", got, before)
			}
			if err := s.Copy("a", "b", 0); !errors.Is(err, os.ErrExist) {
				t.Errorf("a copy over another disk: %v", err)
			}
			write(filepath.Join(s.Folder("b"), "file"), "changed")
			write(filepath.Join(s.Folder("b"), "new"), "new")
			if got := describe(t, upper); got != before {
				t.Errorf("the original after the copy was written to:\n%s\nwant:\n%s", got, before)
			}
			for range 2 { // interrupted and repeated it comes to the same
				if err := s.Replace("a", "b"); err != nil {
					t.Fatal(err)
				}
			}
			if got := describe(t, s.Folder("b")); got != before || s.Has("a") {
				t.Errorf("replaced:\n%s\nwant:\n%s", got, before)
			}
			if err := s.Remove("b"); err != nil {
				t.Fatal(err)
			}
			if all, err := s.List(); err != nil || len(all) != 0 {
				t.Errorf("left: %v, %v", all, err)
			}
		})
	}
}

// describe lists a tree with all that counts.
func describe(t *testing.T, dir string) string {
	t.Helper()
	var b strings.Builder
	err := filepath.WalkDir(dir, func(path string, e os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		var st unix.Stat_t
		if err := unix.Lstat(path, &st); err != nil {
			return err
		}
		fmt.Fprintf(&b, "%q %o %d %d %d %d %d", path[len(dir):], st.Mode, st.Uid, st.Gid, st.Nlink, st.Rdev, st.Mtim.Nano())
		switch {
		case e.Type().IsRegular():
			data, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			fmt.Fprintf(&b, " %d bytes, few blocks %t, %.9q", len(data), st.Blocks*512 < 1<<20, data)
		case e.Type() == os.ModeSymlink:
			to, _ := os.Readlink(path)
			b.WriteString(" -> " + to)
		case e.IsDir():
			value := make([]byte, 10)
			n, _ := unix.Lgetxattr(path, "trusted.overlay.opaque", value)
			fmt.Fprintf(&b, " opaque %q", value[:max(n, 0)])
		}
		b.WriteByte('\n')
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return b.String()
}
