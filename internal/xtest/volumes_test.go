package xtest

import (
	"context"
	"crypto/rand"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/berthrun/berth/api"
	"github.com/berthrun/berth/internal/controlplane"
	"github.com/berthrun/berth/internal/db/dbtest"
	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/runtime/fake"
)

// withVolumes runs a system whose node can do everything.
func withVolumes(t *testing.T, url string, before func(ctx context.Context, method, id string) error) *InProcess {
	t.Helper()
	return Start(t, Options{Database: url, Backups: true, Fake: fake.Config{Can: fake.Everything(), Before: before}, Change: func(c *controlplane.Config) {
		c.ReadyMemoryMiB = 4096
		c.SampleEvery = 50 * 1e6
	}})
}

// TestVolumesOfCopies: forks and snapshots of a sandbox with volumes come up on the disk alone, and everything that shows them says so.
func TestVolumesOfCopies(t *testing.T) {
	dbtest.EachURL(t, func(t *testing.T, url string) {
		s := withVolumes(t, url, nil)
		c := s.Client
		volume(t, c, api.CreateVolumeIn{Name: "one", SizeGiB: 1})
		volume(t, c, api.CreateVolumeIn{Name: "two", SizeGiB: 1})
		id := Sandbox(t, c, api.CreateSandboxIn{Name: "box", Volumes: []api.VolumeMount{{Volume: "two", Path: "/b", ReadOnly: true}, {Volume: "one", Path: "/a"}}})
		want := []string{"one", "two"}
		if got := Must(t, c, api.GetSandbox, in(id)).Volumes; len(got) != 2 || got[0].Name != "one" || got[0].Path != "/a" || !got[1].ReadOnly {
			t.Errorf("the sandbox shows %+v", got)
		}

		fork := Must(t, c, api.ForkSandbox, api.ForkSandboxIn{SandboxIn: in(id), Count: 2})
		if fork.Made != 2 || !slices.Equal(fork.WithoutVolumes, want) || !strings.Contains(fork.Message, "one, two") {
			t.Errorf("forked: %+v", fork)
		}
		for _, cp := range fork.Items {
			if got := Must(t, c, api.GetSandbox, in(cp.SandboxID)); len(got.Volumes) != 0 || !slices.Equal(got.WithoutVolumes, want) || got.Sandbox.State != api.StateRunning {
				t.Errorf("the copy shows %+v", got)
			}
		}

		_, err := within(c, api.SnapshotSandbox, api.SnapshotSandboxIn{SandboxIn: in(id), Mode: api.ModeMemory})
		if e := refusedFor(t, err, "INVALID_STATE", "volumes"); e != nil && !strings.Contains(e.Suggestion, "disk") {
			t.Errorf("the refusal suggests %q", e.Suggestion)
		}
		snap := Must(t, c, api.SnapshotSandbox, api.SnapshotSandboxIn{SandboxIn: in(id)})
		if snap.Snapshot.Mode != api.ModeDisk || !slices.Equal(snap.Snapshot.WithoutVolumes, want) || !strings.Contains(snap.Message, "one, two") {
			t.Errorf("snapshot: %+v %+v", snap, snap.Snapshot)
		}
		made := Sandbox(t, c, api.CreateSandboxIn{SnapshotID: snap.Snapshot.ID})
		if got := Must(t, c, api.GetSandbox, in(made)).WithoutVolumes; !slices.Equal(got, want) {
			t.Errorf("of the snapshot: %v", got)
		}
		// A snapshot with memory does not come up with volumes, unless it boots.
		plain := Sandbox(t, c, api.CreateSandboxIn{})
		memory := Must(t, c, api.SnapshotSandbox, api.SnapshotSandboxIn{SandboxIn: in(plain), Mode: api.ModeMemory}).Snapshot.ID
		volume(t, c, api.CreateVolumeIn{Name: "three", SizeGiB: 1})
		with := api.CreateSandboxIn{SnapshotID: memory, Volumes: []api.VolumeMount{{Volume: "three"}}}
		_, err = within(c, api.CreateSandbox, with)
		refusedFor(t, err, "INVALID_INPUT", "volumes")
		with.FromDisk = true
		if got := Must(t, c, api.GetSandbox, in(Sandbox(t, c, with))).Volumes; len(got) != 1 {
			t.Errorf("from disk it has %+v", got)
		}
	})
}

// TestVolumesOfCreates: one with volumes is never one that was kept ready; by its name it is found and what differs is said; one that failed has nothing.
func TestVolumesOfCreates(t *testing.T) {
	var mu sync.Mutex
	var fails bool
	booted := map[string]bool{}
	s := withVolumes(t, "", func(_ context.Context, method, id string) error {
		mu.Lock()
		defer mu.Unlock()
		if method != "create" {
			return nil
		}
		if fails {
			return errs.E(errs.Upstream, "no kernel")
		}
		booted[id] = true
		return nil
	})
	set := func(f bool) {
		mu.Lock()
		defer mu.Unlock()
		fails = f
	}
	c := s.Client
	v := volume(t, c, api.CreateVolumeIn{Name: "one", SizeGiB: 1})
	for range 3 { // so that some are kept ready
		Sandbox(t, c, api.CreateSandboxIn{})
	}
	eventually(t, func() bool {
		for _, k := range Must(t, c, api.ListPools, api.ListPoolsIn{}).Items[0].Ready {
			if k.Ready > 0 && k.Seed {
				return true
			}
		}
		return false
	})
	taken := ready(t, s)
	in1 := api.CreateSandboxIn{Name: "box", GetOrCreate: true, Volumes: []api.VolumeMount{{Volume: "one"}}}
	id := Sandbox(t, c, in1)
	mu.Lock()
	if !booted[id] {
		t.Error("it did not boot with its volumes")
	}
	mu.Unlock()
	if now := ready(t, s); now < taken {
		t.Errorf("of %d ready sandboxes %d are left", taken, now)
	}
	if again := Must(t, c, api.CreateSandbox, in1); again.Sandbox.ID != id || len(again.Differs) > 0 {
		t.Errorf("by its name: %+v", again)
	}
	in1.Volumes[0].ReadOnly = true
	if again := Must(t, c, api.CreateSandbox, in1); !slices.Equal(again.Differs, []string{"volumes"}) {
		t.Errorf("by its name: differs %v", again.Differs)
	}
	Must(t, c, api.DeleteSandbox, api.SandboxWaitIn{SandboxIn: in(id)})
	set(true)
	if code := Code(t, c, api.CreateSandbox, api.CreateSandboxIn{Volumes: []api.VolumeMount{{Volume: "one"}}}); code != "UPSTREAM_ERROR" {
		t.Errorf("a boot that fails: %q", code)
	}
	set(false)
	if got := Must(t, c, api.GetVolume, vol(v.ID)).Volume.Attachments; len(got) != 0 {
		t.Errorf("what failed still has it: %+v", got)
	}
	for _, bad := range []api.VolumeMount{{Volume: "none"}, {Volume: "one", Path: "relative"}, {Volume: "one", Path: "/"}} {
		before := len(Must(t, c, api.ListSandboxes, api.ListSandboxesIn{}).Items)
		if code := Code(t, c, api.CreateSandbox, api.CreateSandboxIn{Volumes: []api.VolumeMount{bad}}); code != "NOT_FOUND" && code != "INVALID_INPUT" {
			t.Errorf("%+v: %q", bad, code)
		}
		if now := len(Must(t, c, api.ListSandboxes, api.ListSandboxesIn{}).Items); now != before {
			t.Errorf("%+v left a sandbox", bad)
		}
	}
}

// ready counts the sandboxes that are kept ready.
func ready(t *testing.T, s *InProcess) (n int) {
	t.Helper()
	for _, k := range Must(t, s.Client, api.ListPools, api.ListPoolsIn{}).Items[0].Ready {
		n += k.Ready
	}
	return n
}

// TestStartOrAttach: of a start and an attach at the same moment one comes first: what runs has what it shows.
func TestStartOrAttach(t *testing.T) {
	dbtest.EachURL(t, func(t *testing.T, url string) {
		s := withVolumes(t, url, nil)
		c := s.Client
		v := volume(t, c, api.CreateVolumeIn{Name: "one", SizeGiB: 1})
		id := Sandbox(t, c, api.CreateSandboxIn{})
		for range 10 {
			Must(t, c, api.StopSandbox, api.SandboxWaitIn{SandboxIn: in(id)})
			var both sync.WaitGroup
			var attached, started error
			both.Go(func() {
				_, attached = within(c, api.AttachVolume, api.AttachVolumeIn{VolumeIn: vol(v.ID), SandboxIn: in(id), Path: "/data"})
			})
			both.Go(func() { _, started = within(c, api.StartSandbox, api.SandboxWaitIn{SandboxIn: in(id)}) })
			both.Wait()
			if started != nil {
				t.Fatal(started)
			}
			_, err := os.Readlink(filepath.Join(s.Dir, id, "data"))
			if mounted := err == nil; mounted != (attached == nil) {
				t.Errorf("attached: %v, mounted: %v", attached, mounted)
			}
			Must(t, c, api.StopSandbox, api.SandboxWaitIn{SandboxIn: in(id)})
			Must(t, c, api.DetachVolume, api.DetachVolumeIn{VolumeIn: vol(v.ID), SandboxIn: in(id)})
		}
	})
}

// TestDamagedBackup: a backup whose bytes have changed, or are gone, makes no volume, and says why.
func TestDamagedBackup(t *testing.T) {
	s := withVolumes(t, "", nil)
	c := s.Client
	v := volume(t, c, api.CreateVolumeIn{Name: "one", SizeGiB: 1})
	if err := os.WriteFile(filepath.Join(s.Driver.VolumeFolder(v.ID), "text"), []byte(strings.Repeat("what was there ", 10000)), 0o600); err != nil {
		t.Fatal(err)
	}
	b := backup(t, c, v.ID)
	whole := volume(t, c, api.CreateVolumeIn{Name: "whole", FromBackup: b.ID})
	if text, err := os.ReadFile(filepath.Join(s.Driver.VolumeFolder(whole.ID), "text")); err != nil || len(text) != 150000 {
		t.Fatalf("restored %d bytes, %v", len(text), err)
	}
	packs := files(t, filepath.Join(filepath.Dir(s.Dir), "blobs"))
	if len(packs) == 0 {
		t.Fatal("nothing is kept")
	}
	for _, harm := range []func(name string, content []byte) error{
		func(name string, content []byte) error {
			content[len(content)/2] ^= 1
			return os.WriteFile(name, content, 0o600)
		},
		func(name string, _ []byte) error { return os.Remove(name) },
	} {
		for _, name := range packs {
			content, err := os.ReadFile(name)
			if err == nil {
				err = harm(name, content)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		_, err := within(c, api.CreateVolume, api.CreateVolumeIn{Name: "broken", FromBackup: b.ID})
		e := refusedFor(t, err, "UPSTREAM_ERROR", "damaged")
		if e == nil {
			continue
		}
		id, _ := e.Details["volumeId"].(string)
		if got := Must(t, c, api.GetVolume, vol(id)).Volume; got.State != api.VolumeFailed || got.Reason != "damaged" {
			t.Errorf("the volume is %+v", got)
		}
		if _, err := os.Stat(s.Driver.VolumeFolder(id)); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("something of it is there: %v", err)
		}
		Must(t, c, api.DeleteVolume, api.DeleteVolumeIn{VolumeIn: vol(id)})
	}
}

// files lists the regular files below a folder.
func files(t *testing.T, dir string) (all []string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() {
			all = append(all, path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// TestBackupsFullDisk: where the server's objects have no room, beside the 512 MiB that they leave free, a backup fails and says so; those that were there, and the volume, stay as they were.
func TestBackupsFullDisk(t *testing.T) {
	room := t.TempDir()
	if err := unix.Mount("tmpfs", room, "tmpfs", 0, "size=536m"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(room, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	s := Start(t, Options{Backups: true, Fake: fake.Config{Can: fake.Everything()}, Change: func(c *controlplane.Config) { c.Blobs = filepath.Join(room, "blobs") }})
	c := s.Client
	v := volume(t, c, api.CreateVolumeIn{Name: "one", SizeGiB: 1})
	write := func(name string, size int) {
		t.Helper()
		content := make([]byte, size)
		if _, err := rand.Read(content); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(s.Driver.VolumeFolder(v.ID), name), content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("small", 300<<10)
	good := backup(t, c, v.ID)
	write("large", 40<<20)
	_, err := within(c, api.CreateBackup, api.CreateBackupIn{VolumeIn: vol(v.ID), WaitIn: wait(30)})
	e := refusedFor(t, err, "UPSTREAM_ERROR", "disk_full")
	if e == nil {
		return
	}
	id, _ := e.Details["backupId"].(string)
	if code := Code(t, c, api.CreateVolume, api.CreateVolumeIn{Name: "half", FromBackup: id}); code != "INVALID_STATE" {
		t.Errorf("a volume of what failed: %q", code)
	}
	again := volume(t, c, api.CreateVolumeIn{Name: "again", FromBackup: good.ID})
	if entries, err := os.ReadDir(s.Driver.VolumeFolder(again.ID)); err != nil || len(entries) != 1 || entries[0].Name() != "small" {
		t.Errorf("restored %v, %v", entries, err)
	}
	if err := unix.Mount("tmpfs", room, "tmpfs", unix.MS_REMOUNT, "size=800m"); err != nil {
		t.Fatal(err)
	}
	if b := backup(t, c, v.ID); b.Files != good.Files+1 || b.ContentMiB < 40 {
		t.Errorf("with room again: %+v", b)
	}
}
