package runtimetest

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/id"
	"github.com/berthrun/berth/internal/runtime"
)

// volumes proves Mounts, MakeVolume, RemoveVolume, Volumes, CopyVolume, ForgetCopy and Copies.
func (s *suite) volumes(t *testing.T) {
	s.each(t, []part{
		{"outlive sandboxes", s.volumeOutlives, false},
		{"made and removed", s.volumeRemoved, false},
		{"shared", s.volumeShared, false},
		{"two writers at once", s.volumeRace, false},
		{"refused", s.volumeRefused, false},
		{"size", s.volumeSize, false},
		{"suspend and wake", s.volumeSleeps, false},
		{"death and rewind", s.volumeRewound, false},
		{"saves", s.volumeSaves, false},
		{"copy while it is written to", s.copyMoment, false},
		{"copy in every state", s.copyStates, true},
		{"copies", s.copyAgain, false},
	})
	if left, err := s.Driver.Volumes(s.ctx(t)); err != nil || len(left) != 0 {
		t.Errorf("volumes left: %+v, %v; want none", left, err)
	}
	if left, err := s.Driver.Copies(s.ctx(t)); err != nil || len(left) != 0 {
		t.Errorf("copies left: %+v, %v; want none", left, err)
	}
}

// volume makes one of 1 GiB, which is removed at the end of the test: sandboxes that mount it are made later, and so deleted before.
func (s *suite) volume(t *testing.T) string {
	t.Helper()
	volume := id.New(id.Volume)
	if err := s.Driver.MakeVolume(s.ctx(t), volume, 1); err != nil {
		t.Fatalf("MakeVolume: %v", err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), s.Patience)
		defer cancel()
		if err := s.Driver.RemoveVolume(ctx, volume); err != nil {
			t.Errorf("remove the volume at the end: %v", err)
		}
	})
	return volume
}

// with is the spec of a new sandbox with mounts.
func (s *suite) with(t *testing.T, mounts ...runtime.Mount) runtime.Spec {
	t.Helper()
	spec := s.spec(t)
	spec.Mounts = mounts
	return spec
}

// mounted creates a sandbox with mounts, and waits for its guest.
func (s *suite) mounted(t *testing.T, mounts ...runtime.Mount) (runtime.Spec, *client) {
	t.Helper()
	spec := s.with(t, mounts...)
	if _, err := s.Driver.Create(s.ctx(t), spec); err != nil {
		t.Fatalf("Create with %v: %v", mounts, err)
	}
	g := s.guest(t, spec)
	g.hello()
	return spec, g
}

func (s *suite) stop(t *testing.T, spec *runtime.Spec) {
	t.Helper()
	spec.Generation++
	if _, err := s.Driver.Stop(s.ctx(t), spec.ID, spec.Generation, runtime.StopOptions{}); err != nil {
		t.Fatal(err)
	}
}

func (s *suite) start(t *testing.T, spec *runtime.Spec) *client {
	t.Helper()
	spec.Generation++
	if _, err := s.Driver.Start(s.ctx(t), *spec); err != nil {
		t.Fatalf("Start with %v: %v", spec.Mounts, err)
	}
	g := s.guest(t, *spec)
	g.hello()
	return g
}

func (s *suite) volumeOutlives(t *testing.T) {
	a, b := s.volume(t), s.volume(t)
	spec, g := s.mounted(t, runtime.Mount{Volume: a, Path: "/data/deep"})
	g.write("/data/deep/text", "first")
	g.write("/data/beside", "of the disk")
	s.stop(t, &spec)
	g = s.start(t, &spec)
	g.wantFile("/data/deep/text", "first")
	g.write("/data/deep/text", "second")
	// Stopped, it can have others: what the mount hid, which is nothing, is there again.
	s.stop(t, &spec)
	spec.Mounts = []runtime.Mount{{Volume: b, Path: "/other"}}
	g = s.start(t, &spec)
	g.wantFile("/data/deep/text", "")
	g.wantFile("/data/beside", "of the disk")
	g.write("/other/text", "of b")
	s.stop(t, &spec)
	spec.Mounts = nil
	g = s.start(t, &spec)
	g.wantFile("/other/text", "")
	// Beside the sandbox, and after it, others have them at other paths.
	other, o := s.mounted(t, runtime.Mount{Volume: b, Path: "/data"}, runtime.Mount{Volume: a, Path: "/a"})
	o.wantFile("/data/text", "of b")
	o.wantFile("/a/text", "second")
	for _, sp := range []runtime.Spec{spec, other} {
		if err := s.Driver.Delete(s.ctx(t), sp.ID, 1<<20); err != nil {
			t.Fatal(err)
		}
	}
	_, o = s.mounted(t, runtime.Mount{Volume: a, Path: "/workspace", ReadOnly: true}, runtime.Mount{Volume: b, Path: "/tmp"})
	o.wantFile("/workspace/text", "second")
	o.wantFile("/tmp/text", "of b")
}

func (s *suite) volumeRemoved(t *testing.T) {
	volume := s.volume(t)
	for _, gib := range []int64{1, 3, 2} { // it never shrinks
		if err := s.Driver.MakeVolume(s.ctx(t), volume, gib); err != nil {
			t.Fatal(err)
		}
	}
	want := func(gib int64) {
		t.Helper()
		all, err := s.Driver.Volumes(s.ctx(t))
		if err != nil || len(all) != 1 || all[0].ID != volume || all[0].SizeGiB != gib || all[0].UsedBytes < 0 || all[0].UsedBytes > 64<<20 {
			t.Errorf("Volumes = %+v, %v; want %s of %d GiB", all, err, volume, gib)
		}
	}
	want(3)
	spec, g := s.mounted(t, runtime.Mount{Volume: volume, Path: "/data"})
	g.write("/data/secret", "secret")
	refused := func(state string) {
		t.Helper()
		wantError(t, "remove the volume of one that is "+state, s.Driver.RemoveVolume(s.ctx(t), volume), errs.InvalidState, "mounted")
	}
	refused("running")
	if s.Driver.Capabilities().Memory {
		s.suspend(t, &spec)
		refused("suspended")
		g = s.wake(t, &spec)
	}
	g.wantFile("/data/secret", "secret")
	s.stop(t, &spec)
	for range 2 {
		if err := s.Driver.RemoveVolume(s.ctx(t), volume); err != nil {
			t.Fatal(err)
		}
	}
	if all, err := s.Driver.Volumes(s.ctx(t)); err != nil || len(all) != 0 {
		t.Errorf("Volumes = %+v, %v; want none", all, err)
	}
	spec.Generation++
	_, err := s.Driver.Start(s.ctx(t), spec)
	wantError(t, "start on a volume that is gone", err, errs.NotFound, "volume")
	// The same id is another volume, with a size of its own.
	if err := s.Driver.MakeVolume(s.ctx(t), volume, 1); err != nil {
		t.Fatal(err)
	}
	want(1)
	g = s.start(t, &spec)
	g.wantFile("/data/secret", "")
}

// readers are how many sandboxes share one volume in the test of that.
const readers = 10

func (s *suite) volumeShared(t *testing.T) {
	volume := s.volume(t)
	writes, reads := runtime.Mount{Volume: volume, Path: "/data"}, runtime.Mount{Volume: volume, Path: "/data", ReadOnly: true}
	spec, g := s.mounted(t, writes)
	g.write("/data/text", "shared")
	refused := func(m runtime.Mount) {
		t.Helper()
		other := s.with(t, m)
		_, err := s.Driver.Create(s.ctx(t), other)
		wantError(t, fmt.Sprintf("create with %+v", m), err, errs.InvalidState, "volume_in_use")
		_, err = s.Driver.Get(s.ctx(t), other.ID)
		wantError(t, "get what was refused", err, errs.NotFound, "")
	}
	refused(reads)
	refused(writes)
	if s.Driver.Capabilities().Memory {
		s.suspend(t, &spec)
		refused(reads) // its memory goes on writing once it wakes
		refused(writes)
		s.wake(t, &spec)
	}
	s.stop(t, &spec)

	guests, specs := make([]*client, readers), make([]runtime.Spec, readers)
	for i := range specs {
		specs[i], guests[i] = s.mounted(t, reads)
	}
	for i, r := range guests {
		r.wantFile("/data/text", "shared")
		if !s.ReadOnly {
			continue
		}
		if err := r.tryWrite("/data/text", "changed"); err == nil {
			t.Errorf("reader %d writes to a volume that it only reads", i)
		}
		if err := r.tryWrite("/data/new", "new"); err == nil {
			t.Errorf("reader %d makes a file in a volume that it only reads", i)
		}
		r.wantFile("/data/text", "shared")
	}
	refused(writes)
	spec.Generation++
	_, err := s.Driver.Start(s.ctx(t), spec)
	wantError(t, "start one that writes", err, errs.InvalidState, "volume_in_use")
	if st, err := s.Driver.Get(s.ctx(t), spec.ID); err != nil || st.State != runtime.Stopped {
		t.Errorf("Get = %+v, %v; want it stopped as before", st, err)
	}
	for i := range specs[1:] {
		s.stop(t, &specs[i+1])
	}
	refused(writes) // one is left
	s.stop(t, &specs[0])
	g = s.start(t, &spec)
	g.write("/data/text", "again")
}

// volumeRace creates two that write at once: one of them does.
func (s *suite) volumeRace(t *testing.T) {
	volume := s.volume(t)
	specs := []runtime.Spec{s.with(t, runtime.Mount{Volume: volume, Path: "/data"}), s.with(t, runtime.Mount{Volume: volume, Path: "/data"})}
	var wg sync.WaitGroup
	ctx, failed := s.ctx(t), make([]error, len(specs))
	for i, spec := range specs {
		wg.Go(func() { _, failed[i] = s.Driver.Create(ctx, spec) })
	}
	wg.Wait()
	if failed[1] == nil {
		slices.Reverse(failed)
		slices.Reverse(specs)
	}
	if failed[0] != nil {
		t.Fatalf("neither was made: %v", failed)
	}
	wantError(t, "the other one", failed[1], errs.InvalidState, "volume_in_use")
	g := s.guest(t, specs[0])
	g.hello()
	g.write("/data/text", "text")
}

func (s *suite) volumeRefused(t *testing.T) {
	volume := s.volume(t)
	for name, tt := range map[string]struct {
		mounts []runtime.Mount
		code   errs.Code
		reason string
	}{
		"no such volume": {[]runtime.Mount{{Volume: id.New(id.Volume), Path: "/data"}}, errs.NotFound, "volume"},
		"no id":          {[]runtime.Mount{{Volume: "../" + volume, Path: "/data"}}, errs.InvalidInput, "volume"},
		"the root":       {[]runtime.Mount{{Volume: volume, Path: "/"}}, errs.InvalidInput, "mount_path"},
		"/proc":          {[]runtime.Mount{{Volume: volume, Path: "/proc/1"}}, errs.InvalidInput, "mount_path"},
		"the guest":      {[]runtime.Mount{{Volume: volume, Path: "/.berth"}}, errs.InvalidInput, "mount_path"},
		"relative":       {[]runtime.Mount{{Volume: volume, Path: "data"}}, errs.InvalidInput, "mount_path"},
		"out":            {[]runtime.Mount{{Volume: volume, Path: "/../data"}}, errs.InvalidInput, "mount_path"},
		"twice":          {[]runtime.Mount{{Volume: volume, Path: "/a"}, {Volume: volume, Path: "/b"}}, errs.InvalidInput, "volume"},
	} {
		spec := s.with(t, tt.mounts...)
		_, err := s.Driver.Create(s.ctx(t), spec)
		wantError(t, name, err, tt.code, tt.reason)
		_, err = s.Driver.Get(s.ctx(t), spec.ID)
		wantError(t, name+", what was refused", err, errs.NotFound, "")
	}
	ctx := s.ctx(t)
	for name, err := range map[string]error{
		"make no volume":    s.Driver.MakeVolume(ctx, "../../etc", 1),
		"make it of 0":      s.Driver.MakeVolume(ctx, id.New(id.Volume), 0),
		"remove no volume":  s.Driver.RemoveVolume(ctx, "vol_"),
		"copy to no name":   s.Driver.CopyVolume(ctx, volume, "../copy"),
		"copy no volume":    s.Driver.CopyVolume(ctx, "..", id.New(id.Backup)),
		"forget no name":    s.Driver.ForgetCopy(ctx, volume),
		"copy to a volume":  s.Driver.CopyVolume(ctx, volume, id.New(id.Volume)),
		"forget a dot":      s.Driver.ForgetCopy(ctx, "."),
		"remove a sandbox":  s.Driver.RemoveVolume(ctx, id.New(id.Sandbox)),
		"make it of less":   s.Driver.MakeVolume(ctx, volume, -1),
		"remove everything": s.Driver.RemoveVolume(ctx, ""),
	} {
		wantError(t, name, err, errs.InvalidInput, "")
	}
	wantError(t, "copy what is not there", s.Driver.CopyVolume(ctx, id.New(id.Volume), id.New(id.Backup)), errs.NotFound, "volume")
	// A file is where the volume is to be: the sandbox stays as it was.
	spec, g := s.mounted(t)
	g.write("/data", "a file")
	s.stop(t, &spec)
	spec.Mounts = []runtime.Mount{{Volume: volume, Path: "/data"}}
	spec.Generation++
	_, err := s.Driver.Start(s.ctx(t), spec)
	wantError(t, "mount at a file", err, errs.InvalidInput, "mount_path")
	spec.Mounts = nil
	s.start(t, &spec).wantFile("/data", "a file")
}

// volumeSize fills a volume of 1 GiB, and one that has grown.
func (s *suite) volumeSize(t *testing.T) {
	if !s.Driver.Capabilities().Quota {
		t.Skip("the driver enforces no sizes")
	}
	volume := s.volume(t)
	spec, g := s.mounted(t, runtime.Mount{Volume: volume, Path: "/tmp/vol"})
	g.run("/exec", "fill", "vol/filled")
	said, err := g.read("/tmp/said")
	if err != nil || !strings.Contains(said, "no space") && !strings.Contains(said, "quota") {
		t.Errorf("1,280 MiB in 1 GiB: %q, %v; want that there is no space", said, err)
	}
	g.write("/root/text", "its own disk has room")
	s.stop(t, &spec)
	if err := s.Driver.MakeVolume(s.ctx(t), volume, 2); err != nil {
		t.Fatal(err)
	}
	g = s.start(t, &spec)
	g.run("/exec", "fill", "vol/filled")
	if said, err := g.read("/tmp/said"); err != nil || said != "1280 MiB" {
		t.Errorf("1,280 MiB in 2 GiB: %q, %v", said, err)
	}
	// What was written is counted once it is on the disk, which takes up to half a minute.
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(200 * time.Millisecond) {
		all, err := s.Driver.Volumes(s.ctx(t))
		if err == nil && len(all) == 1 && all[0].SizeGiB == 2 && all[0].UsedBytes >= 256<<20 && all[0].UsedBytes <= 2<<30 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("Volumes = %+v, %v; want 2 GiB, of which much is used", all, err)
		}
	}
}

func (s *suite) volumeSleeps(t *testing.T) {
	if !s.Driver.Capabilities().Memory {
		t.Skip("the driver keeps no memory")
	}
	volume, other := s.volume(t), s.volume(t)
	spec, g := s.mounted(t, runtime.Mount{Volume: volume, Path: "/tmp/vol"}, runtime.Mount{Volume: other, Path: "/other", ReadOnly: true})
	boot := g.hello().BootID
	g.write("/tmp/vol/text", "before")
	g.run("/processes", "pair", "vol/n")
	for i := range 2 {
		s.suspend(t, &spec)
		wrong := spec
		wrong.Mounts = []runtime.Mount{{Volume: other, Path: "/tmp/vol"}, {Volume: volume, Path: "/other", ReadOnly: true}}
		for _, mounts := range [][]runtime.Mount{nil, wrong.Mounts, spec.Mounts[:1]} {
			wrong.Mounts = mounts
			_, err := s.Driver.Wake(s.ctx(t), wrong)
			wantError(t, fmt.Sprintf("wake with %+v", mounts), err, errs.Unavailable, runtime.MemoryForeign)
		}
		slices.Reverse(spec.Mounts) // their order is nothing
		g = s.wake(t, &spec)
		if got := g.hello().BootID; got != boot {
			t.Error("the guest was booted anew")
		}
		g.wantFile("/tmp/vol/text", "before")
		g.paired("/tmp/vol/n", 3+3*i)
	}
	if s.ReadOnly {
		if err := g.tryWrite("/other/text", "new"); err == nil {
			t.Error("after a wake it writes to a volume that it only reads")
		}
	}
	if err := s.Driver.Delete(s.ctx(t), spec.ID, 1<<20); err != nil {
		t.Fatal(err)
	}
	_, g = s.mounted(t, runtime.Mount{Volume: volume, Path: "/tmp/vol"})
	g.wantFile("/tmp/vol/text", "before")
}

// paired waits until the program that counts into two files has come to a number at least, and checks that the second is at most one behind the first.
func (c *client) paired(path string, least int) {
	c.t.Helper()
	deadline, tick := time.After(c.s.Patience), time.NewTicker(5*time.Millisecond)
	defer tick.Stop()
	for {
		text, err := c.read(path + ".b")
		if err == nil && len(strings.Fields(text)) >= least {
			return
		}
		select {
		case <-tick.C:
		case <-deadline:
			c.t.Fatalf("the count is at %q, %v; want %d", text, err, least)
		}
	}
}

// volumeRewound goes back to a memory: the volume stays as it is.
func (s *suite) volumeRewound(t *testing.T) {
	if !s.Driver.Capabilities().Memory || !s.rewinds(t) {
		t.Skip("the driver does not rewind")
	}
	volume := s.volume(t)
	spec, g := s.mounted(t, runtime.Mount{Volume: volume, Path: "/data"})
	g.write("/data/text", "before")
	g.write("/root/text", "before")
	s.suspend(t, &spec)
	g = s.wake(t, &spec)
	g.write("/data/new", "after")
	g.write("/root/new", "after")
	events, err := s.Driver.Watch(s.ctx(t))
	if err != nil {
		t.Fatal(err)
	}
	s.await(t, events, spec.ID, in(runtime.Running))
	s.Kill(t, spec.ID)
	s.await(t, events, spec.ID, in(runtime.Stopped))
	// It still has a memory, which writes once it is woken.
	other := s.with(t, runtime.Mount{Volume: volume, Path: "/data"})
	_, err = s.Driver.Create(s.ctx(t), other)
	wantError(t, "create another that writes", err, errs.InvalidState, "volume_in_use")
	wantError(t, "remove the volume", s.Driver.RemoveVolume(s.ctx(t), volume), errs.InvalidState, "mounted")
	spec.Generation++
	if _, err := s.Driver.Rewind(s.ctx(t), spec.ID, spec.Generation); err != nil {
		t.Fatal(err)
	}
	g = s.wake(t, &spec)
	g.wantFile("/root/text", "before")
	g.wantFile("/root/new", "")
	g.wantFile("/data/text", "before")
	s.stop(t, &spec)
	g = s.start(t, &spec)
	g.wantFile("/data/text", "before")
	g.wantFile("/data/new", "after")
	s.stop(t, &spec)
	_, g = s.mounted(t, runtime.Mount{Volume: volume, Path: "/data"})
	g.wantFile("/data/new", "after")
}

// volumeSaves saves sandboxes with volumes: of the disk alone, and without what is on the volumes.
func (s *suite) volumeSaves(t *testing.T) {
	if !s.Driver.Capabilities().Saves {
		t.Skip("the driver has no saves")
	}
	volume := s.volume(t)
	mount := runtime.Mount{Volume: volume, Path: "/data"}
	spec, g := s.mounted(t, mount)
	boot := g.hello().BootID
	g.write("/data/text", "of the volume")
	g.write("/root/text", "of the disk")
	refused := func(state string) {
		t.Helper()
		if s.Driver.Capabilities().Memory {
			_, err := s.Driver.Save(s.ctx(t), spec.ID, spec.Generation, id.New(id.Snapshot), runtime.SaveOptions{Memory: true})
			wantError(t, "save the memory of one that is "+state, err, errs.InvalidState, "volumes")
		}
	}
	refused("running")
	name := s.save(t, spec, runtime.SaveOptions{})
	if got := g.hello().BootID; got != boot {
		t.Error("the sandbox that was saved was booted anew")
	}
	g.wantFile("/data/text", "of the volume")
	if s.Driver.Capabilities().Memory {
		s.suspend(t, &spec)
		refused("suspended")
		s.wake(t, &spec)
	}
	clone, _ := s.copied(t, spec, name, runtime.CloneOptions{})
	c := s.guest(t, clone)
	c.hello()
	c.wantFile("/root/text", "of the disk")
	c.wantFile("/data/text", "")
	c.write("/data/own", "of the copy")
	g.wantFile("/data/own", "")
	// A copy of a disk boots with volumes of its own.
	other := s.with(t, runtime.Mount{Volume: s.volume(t), Path: "/data"})
	if _, err := s.Driver.Clone(s.ctx(t), other, name, runtime.CloneOptions{}); err != nil {
		t.Fatal(err)
	}
	c = s.guest(t, other)
	c.hello()
	c.wantFile("/root/text", "of the disk")
	c.write("/data/own", "of its volume")
	other = s.with(t, mount)
	_, err := s.Driver.Clone(s.ctx(t), other, name, runtime.CloneOptions{})
	wantError(t, "clone with the volume of another", err, errs.InvalidState, "volume_in_use")
	if s.Driver.Capabilities().Memory {
		plain, _ := s.made(t)
		memory := s.save(t, plain, runtime.SaveOptions{Memory: true})
		other := s.with(t, runtime.Mount{Volume: s.volume(t), Path: "/data"})
		_, err := s.Driver.Clone(s.ctx(t), other, memory, runtime.CloneOptions{})
		wantError(t, "clone a memory with volumes", err, errs.InvalidState, "volumes")
		if _, err := s.Driver.Clone(s.ctx(t), other, memory, runtime.CloneOptions{FromDisk: true}); err != nil {
			t.Errorf("clone from its disk with volumes: %v", err)
		}
	}
}

// copyName is a name for a copy, which is forgotten at the end of the test.
func (s *suite) copyName(t *testing.T) string {
	name := id.New(id.Backup)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), s.Patience)
		defer cancel()
		if err := s.Driver.ForgetCopy(ctx, name); err != nil {
			t.Errorf("forget the copy at the end: %v", err)
		}
	})
	return name
}

func (s *suite) copy(t *testing.T, volume string) string {
	t.Helper()
	name := s.copyName(t)
	if err := s.Driver.CopyVolume(s.ctx(t), volume, name); err != nil {
		t.Fatalf("CopyVolume: %v", err)
	}
	return name
}

// copyMoment copies a volume while a program counts into two files of it, with what takes long to copy between them: a copy is of one moment.
func (s *suite) copyMoment(t *testing.T) {
	if s.Folder == nil {
		t.Skip("the harness shows no folders")
	}
	volume := s.volume(t)
	spec, g := s.mounted(t, runtime.Mount{Volume: volume, Path: "/tmp/vol"})
	boot := g.hello().BootID
	g.run("/exec", "some", "vol/n.aa")
	g.run("/processes", "pair", "vol/n")
	last := 0
	for range 3 {
		g.paired("/tmp/vol/n", last+2)
		name := s.copy(t, volume)
		a, b := numbers(t, filepath.Join(s.Folder(t, name), "n.a")), numbers(t, filepath.Join(s.Folder(t, name), "n.b"))
		if b < last+2 || a != b && a != b+1 {
			t.Errorf("the copy has counted to %d and %d, after %d: it is not of one moment", a, b, last)
		}
		last = b
		if info, err := os.Stat(filepath.Join(s.Folder(t, name), "n.aa")); err != nil || info.Size() != 32<<20 {
			t.Errorf("the copy lacks what was there: %v, %v", info, err)
		}
		g.paired("/tmp/vol/n", last+2) // it goes on
		if again := numbers(t, filepath.Join(s.Folder(t, name), "n.b")); again != b {
			t.Errorf("the copy went on to count from %d to %d", b, again)
		}
	}
	if got := g.hello().BootID; got != boot {
		t.Error("the guest was booted anew")
	}
	if st, err := s.Driver.Get(s.ctx(t), spec.ID); err != nil || st.State != runtime.Running {
		t.Errorf("Get = %+v, %v", st, err)
	}
}

// numbers reads a file of numbers from 1 on, a line each, and gives the last.
func numbers(t *testing.T, path string) int {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for line := range strings.Lines(string(b)) {
		if n++; line != strconv.Itoa(n)+"\n" {
			t.Fatalf("line %d of %s is %q", n, path, line)
		}
	}
	return n
}

// copyStates copies volumes that nobody mounts, that are only read, and whose sandbox does not run.
func (s *suite) copyStates(t *testing.T) {
	if s.Folder == nil {
		t.Skip("the harness shows no folders")
	}
	can := s.Driver.Capabilities()
	volume := s.volume(t)
	spec, g := s.mounted(t, runtime.Mount{Volume: volume, Path: "/data"})
	check := func(state, text string) {
		t.Helper()
		before, err := s.Driver.Get(s.ctx(t), spec.ID)
		if err != nil {
			t.Fatal(err)
		}
		name := s.copy(t, volume)
		if b, err := os.ReadFile(filepath.Join(s.Folder(t, name), "text")); err != nil || string(b) != text {
			t.Errorf("%s: the copy has %q, %v; want %q", state, b, err, text)
		}
		if after, err := s.Driver.Get(s.ctx(t), spec.ID); err != nil || after != before {
			t.Errorf("%s: after the copy %+v, %v; want as before, %+v", state, after, err, before)
		}
	}
	g.write("/data/text", "1")
	check("running", "1")
	if can.Pause {
		spec.Generation++
		if _, err := s.Driver.Pause(s.ctx(t), spec.ID, spec.Generation); err != nil {
			t.Fatal(err)
		}
		check("frozen", "1")
		spec.Generation++
		if _, err := s.Driver.Resume(s.ctx(t), spec.ID, spec.Generation); err != nil {
			t.Fatal(err)
		}
	}
	if can.Memory {
		g.write("/data/text", "2")
		s.suspend(t, &spec)
		check("suspended", "2")
		g = s.wake(t, &spec)
	}
	g.write("/data/text", "3")
	s.stop(t, &spec)
	check("stopped", "3")
	spec.Mounts[0].ReadOnly = true
	s.start(t, &spec)
	check("read", "3")
}

func (s *suite) copyAgain(t *testing.T) {
	volume, other := s.volume(t), s.volume(t)
	spec, g := s.mounted(t, runtime.Mount{Volume: volume, Path: "/data"})
	g.write("/data/text", "first")
	name := s.copy(t, volume)
	g.write("/data/text", "second")
	if err := s.Driver.CopyVolume(s.ctx(t), volume, name); err != nil {
		t.Errorf("copy it again: %v", err)
	}
	wantError(t, "another volume under its name", s.Driver.CopyVolume(s.ctx(t), other, name), errs.AlreadyExists, "")
	second := s.copy(t, volume)
	all, err := s.Driver.Copies(s.ctx(t))
	slices.Sort(all)
	if want := slices.Sorted(slices.Values([]string{name, second})); err != nil || !slices.Equal(all, want) {
		t.Errorf("Copies = %v, %v; want %v", all, err, want)
	}
	// Copies outlive the volume and the sandbox.
	if err := s.Driver.Delete(s.ctx(t), spec.ID, 1<<20); err != nil {
		t.Fatal(err)
	}
	if err := s.Driver.RemoveVolume(s.ctx(t), volume); err != nil {
		t.Fatal(err)
	}
	if s.Folder != nil {
		for name, text := range map[string]string{name: "first", second: "second"} {
			if b, err := os.ReadFile(filepath.Join(s.Folder(t, name), "text")); err != nil || string(b) != text {
				t.Errorf("the copy %s has %q, %v; want %q", name, b, err, text)
			}
		}
	}
	for range 2 {
		if err := s.Driver.ForgetCopy(s.ctx(t), name); err != nil {
			t.Fatal(err)
		}
	}
	if all, err := s.Driver.Copies(s.ctx(t)); err != nil || len(all) != 1 || all[0] != second {
		t.Errorf("Copies = %v, %v; want only %s", all, err, second)
	}
	// Many at once, of one volume: each is whole.
	names := make([]string, 4)
	for i := range names {
		names[i] = s.copyName(t)
	}
	var wg sync.WaitGroup
	ctx, failed := s.ctx(t), make([]error, len(names))
	for i, name := range names {
		wg.Go(func() { failed[i] = s.Driver.CopyVolume(ctx, other, name) })
	}
	wg.Wait()
	if all, err := s.Driver.Copies(s.ctx(t)); err != nil || len(all) != 1+len(names) {
		t.Errorf("Copies = %v, %v; %v", all, err, failed)
	}
}
