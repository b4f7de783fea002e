package xtest

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/berthrun/berth/api"
)

// TestRealFullDisk: on a machine without room a build and a restore fail and say so, nothing half made is used, what was there stays, and both succeed once there is
// room again.
func TestRealFullDisk(t *testing.T) {
	need(t, "BERTH_BIN")
	room, err := os.MkdirTemp("", "f") // short, as there are sockets in it
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("tmpfs", room, "tmpfs", 0, "size=2g"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(unix.Unmount(room, unix.MNT_DETACH), os.Remove(room)); err != nil {
			t.Error(err)
		}
	})
	t.Setenv("TMPDIR", room)
	s := StartReal(t)
	c := s.Client
	in1 := api.BuildTemplateIn{Name: "full", FromTemplate: "base", Steps: []api.TemplateStep{{Type: "RUN", Command: "echo one > file"}}}
	first, b := build(t, c, in1)
	if b.Status != api.BuildReady {
		t.Fatalf("build: %+v\n%s", b, buildLog(t, c, first.BuildID))
	}
	v := volume(t, c, api.CreateVolumeIn{Name: "data", SizeGiB: 1})
	writer := Sandbox(t, c, api.CreateSandboxIn{Volumes: []api.VolumeMount{{Volume: "data", Path: "/data"}}})
	Exec(t, c, writer, "head -c 64M /dev/urandom > /data/random; sha256sum /data/random > /data/sum; sync")
	saved := backup(t, c, v.ID)

	filler := filepath.Join(room, "filler")
	fill := func(left int64) {
		t.Helper()
		var st unix.Statfs_t
		f, err := os.Create(filler)
		if err == nil {
			err = unix.Statfs(room, &st)
		}
		if err == nil {
			err = unix.Fallocate(int(f.Fd()), 0, 0, int64(st.Bavail)*st.Bsize-left)
		}
		if err == nil {
			err = f.Close()
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	empty := func() {
		t.Helper()
		if err := os.Remove(filler); err != nil {
			t.Fatal(err)
		}
		eventually(t, func() bool { return Code(t, c, api.CreateSandbox, api.CreateSandboxIn{}) == "" })
	}

	// It gets full by what sandboxes write, as fast as they can.
	fill(192 << 20)
	if got := Exec(t, c, writer, "(head -c 900M /dev/zero > /data/zero; head -c 900M /dev/zero > ~/zero; sync) 2>&1 | cat; rm -f /data/zero ~/zero"); !strings.Contains(got.Stdout, "quota exceeded") {
		t.Errorf("writing more than there is room for: %q", got.Stdout)
	}
	empty()
	if got := Exec(t, c, writer, "echo goes on > /data/more && sync && sha256sum -c /data/sum"); got.ExitCode == nil || *got.ExitCode != 0 {
		t.Errorf("after it was full: %q, %q", got.Stdout, got.Stderr)
	}

	// It gets full at once, by others.
	fill(48 << 20)
	more := in1
	more.Steps = append(append([]api.TemplateStep{}, in1.Steps...), api.TemplateStep{Type: "RUN", Command: "head -c 300M /dev/urandom > big && sync"})
	if out, b := build(t, c, more); b.Status != api.BuildError || b.Reason == "" {
		t.Errorf("a build without room: %+v\n%s", b, buildLog(t, c, out.BuildID))
	}
	eventually(t, func() bool { return Code(t, c, api.CreateSandbox, api.CreateSandboxIn{}) == "NO_CAPACITY" })
	if code := Code(t, c, api.CreateVolume, api.CreateVolumeIn{Name: "again", FromBackup: saved.ID, WaitIn: wait(20)}); code == "" || code == "INTERNAL_ERROR" {
		t.Errorf("a restore without room: %q", code)
	}
	if tm := Must(t, c, api.GetTemplate, api.TemplateIn{TemplateID: first.TemplateID}).Template; tm.BuildID != first.BuildID {
		t.Errorf("after a build without room the template is %+v", tm)
	}
	if got := Exec(t, c, writer, "sha256sum -c /data/sum"); got.ExitCode == nil || *got.ExitCode != 0 {
		t.Errorf("what was on the volume: %q, %q", got.Stdout, got.Stderr)
	}

	empty()
	if _, b := build(t, c, more); b.Status != api.BuildReady {
		t.Errorf("a build with room again: %+v", b)
	}
	volume(t, c, api.CreateVolumeIn{Name: "later", FromBackup: saved.ID, WaitIn: wait(20)})
	reader := Sandbox(t, c, api.CreateSandboxIn{Template: "full", Volumes: []api.VolumeMount{{Volume: "later", Path: "/data", ReadOnly: true}}})
	if got := Exec(t, c, reader, "cd /data && sed 's|/data/||' sum | sha256sum -c && cd && cat /workspace/file"); got.Stdout != "random: OK\none\n" {
		t.Errorf("restored: %q, %q", got.Stdout, got.Stderr)
	}
}
