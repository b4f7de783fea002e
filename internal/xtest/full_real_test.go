package xtest

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/berthrun/berth/api"
)

// TestRealFullDisk: on a machine without room a build and a restore fail and say so, nothing half made is used, what was there stays, and both succeed once there is
// room again.
func TestRealFullDisk(t *testing.T) {
	need(t, "BERTH_BIN")
	room, err := os.MkdirTemp("", "f") // sockets' paths are short
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
	fill := func() {
		t.Helper()
		var st unix.Statfs_t
		f, err := os.Create(filler)
		if err == nil {
			err = unix.Statfs(room, &st)
		}
		if err == nil {
			err = unix.Fallocate(int(f.Fd()), 0, 0, int64(st.Bavail)*st.Bsize-48<<20)
		}
		if err == nil {
			err = f.Close()
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	fill()
	more := in1
	more.Steps = append(append([]api.TemplateStep{}, in1.Steps...), api.TemplateStep{Type: "RUN", Command: "head -c 300M /dev/urandom > big && sync"})
	if out, b := build(t, c, more); b.Status != api.BuildError || b.Reason == "" {
		t.Errorf("a build without room: %+v\n%s", b, buildLog(t, c, out.BuildID))
	}
	if code := Code(t, c, api.CreateVolume, api.CreateVolumeIn{Name: "again", FromBackup: saved.ID, WaitIn: wait(20)}); code == "" || code == "INTERNAL_ERROR" {
		t.Errorf("a restore without room: %q", code)
	}
	if tm := Must(t, c, api.GetTemplate, api.TemplateIn{TemplateID: first.TemplateID}).Template; tm.BuildID != first.BuildID {
		t.Errorf("after a build without room the template is %+v", tm)
	}
	if got := Exec(t, c, writer, "sha256sum -c /data/sum"); got.ExitCode == nil || *got.ExitCode != 0 {
		t.Errorf("what was on the volume: %q, %q", got.Stdout, got.Stderr)
	}

	if err := os.Remove(filler); err != nil {
		t.Fatal(err)
	}
	if _, b := build(t, c, more); b.Status != api.BuildReady {
		t.Errorf("a build with room again: %+v", b)
	}
	volume(t, c, api.CreateVolumeIn{Name: "later", FromBackup: saved.ID, WaitIn: wait(20)})
	reader := Sandbox(t, c, api.CreateSandboxIn{Template: "full", Volumes: []api.VolumeMount{{Volume: "later", Path: "/data", ReadOnly: true}}})
	if got := Exec(t, c, reader, "cd /data && sed 's|/data/||' sum | sha256sum -c && cd && cat /workspace/file"); got.Stdout != "random: OK\none\n" {
		t.Errorf("restored: %q, %q", got.Stdout, got.Stderr)
	}
}
