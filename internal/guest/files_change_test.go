//go:build linux

package guest

import (
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/berthrun/berth/internal/errs"
	"github.com/google/go-cmp/cmp"
)

func TestDirectoriesMovesAndRemovals(t *testing.T) {
	r := newRig(t)
	ctx := t.Context()
	d, err := r.MakeDirectory(ctx, "", FileMkdir{Path: r.path("a/b/c"), Mode: "0750", User: other})
	if err != nil || d.Type != "directory" || d.Mode != "0750" || d.User != "nobody" {
		t.Fatalf("mkdir: %+v, %v", d, err)
	}
	if _, err := r.MakeDirectory(ctx, "", FileMkdir{Path: r.path("a/b/c")}); err != nil {
		t.Errorf("a directory that is there: %v", err)
	}
	r.put("file", "f", 0o644, 0)
	r.put("there", "t", 0o644, 0)
	_, err = r.MakeDirectory(ctx, "", FileMkdir{Path: r.path("file")})
	wantCode(t, err, errs.AlreadyExists, "")
	_, err = r.MakeDirectory(ctx, "", FileMkdir{Path: r.path("file/x")})
	wantCode(t, err, errs.InvalidInput, "not_directory")

	_, err = r.MoveFile(ctx, "", FileMove{From: r.path("file"), To: r.path("there")})
	wantCode(t, err, errs.AlreadyExists, "")
	if r.text("there") != "t" || r.text("file") != "f" {
		t.Error("a refused move changed something")
	}
	if m, err := r.MoveFile(ctx, "", FileMove{From: r.path("file"), To: r.path("there"), Overwrite: true}); err != nil || m.Path != r.path("there") || r.text("there") != "f" {
		t.Errorf("move: %+v, %v", m, err)
	}
	if _, err := r.MoveFile(ctx, "", FileMove{From: r.path("there"), To: r.path("new/dir/file")}); err != nil || r.text("new/dir/file") != "f" {
		t.Errorf("move into new directories: %v", err)
	}
	_, err = r.MoveFile(ctx, "", FileMove{From: r.path("none"), To: r.path("x")})
	wantCode(t, err, errs.NotFound, "")
	_, err = r.MoveFile(ctx, "", FileMove{From: r.path("a"), To: r.path("a/b/d")})
	wantCode(t, err, errs.InvalidInput, "")
	_, err = r.MoveFile(ctx, "", FileMove{From: r.path("a"), To: r.path("new"), Overwrite: true})
	wantCode(t, err, errs.InvalidState, "not_empty")

	_, err = r.RemoveFile(ctx, "", FileRemove{Path: r.path("a")})
	wantCode(t, err, errs.InvalidState, "not_empty")
	for _, want := range []bool{true, false} {
		if got, err := r.RemoveFile(ctx, "", FileRemove{Path: r.path("a"), Recursive: true}); err != nil || got != want {
			t.Errorf("remove = %v, %v, want %v", got, err, want)
		}
	}
	// A repeat of the same operation says what the first did.
	r.put("x", "x", 0o644, 0)
	for range 2 {
		if got, err := r.RemoveFile(ctx, "op", FileRemove{Path: r.path("x")}); err != nil || !got {
			t.Errorf("remove = %v, %v", got, err)
		}
	}
	_, err = r.RemoveFile(ctx, "", FileRemove{Path: "/", Recursive: true})
	wantCode(t, err, errs.InvalidInput, "")
}

// A move to another file system copies, with modes, times and links.
func TestMoveAcrossFileSystems(t *testing.T) {
	r := newRig(t)
	away, err := os.MkdirTemp("/dev/shm", "guest")
	if err != nil {
		t.Skip("no second file system")
	}
	t.Cleanup(func() { _ = os.RemoveAll(away) })
	r.put("tree/sub/f", "text", 0o751, 65534)
	then := time.Date(2021, 2, 3, 4, 5, 6, 0, time.UTC)
	if err := os.Chtimes(r.path("tree/sub/f"), then, then); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("sub/f", r.path("tree/link")); err != nil {
		t.Fatal(err)
	}
	if _, err := r.MoveFile(t.Context(), "", FileMove{From: r.path("tree"), To: away + "/moved", User: "root"}); err != nil {
		t.Fatal(err)
	}
	st, err := r.Stat(t.Context(), away+"/moved/sub/f", "")
	if err != nil || st.Mode != "0751" || st.User != "nobody" || !st.ModifiedAt.Equal(then) {
		t.Errorf("stat = %+v, %v", st, err)
	}
	if d, err := r.ReadFile(t.Context(), FileRead{Path: away + "/moved/link"}); err != nil || string(d.Data) != "text" {
		t.Errorf("through the link: %q, %v", d.Data, err)
	}
	if _, err := os.Lstat(r.path("tree")); !os.IsNotExist(err) {
		t.Error("the source is still there")
	}
	_, err = r.MoveFile(t.Context(), "", FileMove{From: away + "/moved/sub/f", To: r.put("taken", "", 0o644, 0)})
	wantCode(t, err, errs.AlreadyExists, "")
}

// A disk that is full is said, and what was there stays.
func TestDiskFull(t *testing.T) {
	r := newRig(t)
	if err := os.Mkdir(r.path("small"), 0o777); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mount("none", r.path("small"), "tmpfs", 0, "size=1m"); err != nil {
		t.Skipf("no tmpfs: %v", err)
	}
	t.Cleanup(func() { _ = syscall.Unmount(r.path("small"), 0) })
	r.put("small/f", "kept", 0o644, 0)
	for name, in := range map[string]FileWrite{
		"whole":  {Path: r.path("small/f"), Data: make([]byte, WriteBytes)},
		"append": {Path: r.path("small/f"), Data: make([]byte, WriteBytes), Append: true},
	} {
		_, err := r.WriteFile(t.Context(), "op-"+name, in)
		wantCode(t, err, errs.LimitExceeded, "disk_full")
		if got := r.text("small/f"); got != "kept" {
			t.Errorf("%s: %d bytes are left", name, len(got))
		}
	}
	if insideGvisor() { // whose tmpfs cannot grow
		return
	}
	// Tried again once there is room, the same operation is done.
	if err := syscall.Mount("none", r.path("small"), "tmpfs", syscall.MS_REMOUNT, "size=8m"); err != nil {
		t.Fatal(err)
	}
	if _, err := r.WriteFile(t.Context(), "op-whole", FileWrite{Path: r.path("small/f"), Data: make([]byte, WriteBytes)}); err != nil {
		t.Errorf("after there is room: %v", err)
	}
}

// A file may claim any time and any name.
func TestStrangeFiles(t *testing.T) {
	r := newRig(t)
	r.put("ok", "", 0o644, 0)
	r.put("bad\xff\xfename", "", 0o644, 0)
	r.put("new\nline", "", os.ModeSetuid|0o755, 0)
	far := time.Date(2400, 1, 1, 0, 0, 0, 0, time.UTC)
	_ = os.Chtimes(r.path("ok"), far, far)
	l, err := r.ListFiles(t.Context(), FileList{Path: r.root})
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range l.Entries {
		names = append(names, e.Name+" "+e.Mode)
	}
	if d := cmp.Diff([]string{"bad\uFFFD\uFFFDname 0644", "new\nline 4755", "ok 0644"}, names); d != "" {
		t.Error(d)
	}
}
