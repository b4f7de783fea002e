package gvisor

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/guest"
	"github.com/berthrun/berth/internal/id"
	"github.com/berthrun/berth/internal/runtime"
)

// count starts a process in a sandbox that writes one number after the other.
func (r *rig) count(id string) {
	r.t.Helper()
	if _, err := r.ask(id, "POST", "/processes", guest.Start{Argv: []string{guestPath, "count", "counted"}, Cwd: "/tmp"}, nil); err != nil {
		r.t.Fatalf("start a process: %v", err)
	}
	r.counted(id, 2)
}

// counted waits until the process that counts has come to a number at least. A number that is left out or written twice says that memory and disk
// are not of one moment.
func (r *rig) counted(id string, least int) int {
	r.t.Helper()
	deadline, tick := time.After(patience), time.NewTicker(5*time.Millisecond)
	defer tick.Stop()
	for {
		text, err := r.read(id, "/tmp/counted")
		n := 0
		for line := range strings.Lines(text) {
			if !strings.HasSuffix(line, "\n") {
				break // being written
			}
			if n++; line != strconv.Itoa(n)+"\n" {
				r.t.Fatalf("line %d of the count in %s is %q", n, id, line)
			}
		}
		if n >= least {
			return n
		}
		select {
		case <-tick.C:
		case <-deadline:
			r.t.Fatalf("the count in %s is at %d, %v; want %d", id, n, err, least)
		}
	}
}

// victim is a sandbox that something is done to while the runtime is killed, and what has to be true of it whatever came of that.
type victim struct {
	r    *rig
	spec runtime.Spec
	boot string
}

func (r *rig) victim() *victim {
	r.t.Helper()
	v := &victim{r: r, spec: r.create()}
	v.boot = r.boot(v.spec.ID)
	r.write(v.spec.ID, "/root/kept", "kept")
	r.count(v.spec.ID)
	return v
}

// whole brings the sandbox back from wherever it is, and looks whether all of it is there.
func (v *victim) whole() {
	v.r.t.Helper()
	v.spec.Generation++
	if st, err := v.r.Wake(v.r.ctx(), v.spec); err != nil || st.State != runtime.Running {
		v.r.t.Fatalf("Wake = %+v, %v", st, err)
	}
	v.r.awaitGuest(v.spec.ID)
	v.r.holds(v.spec.ID, v.boot)
}

// holds checks what a sandbox, or a copy of its memory, has.
func (r *rig) holds(id, boot string) {
	r.t.Helper()
	if got := r.boot(id); boot != "" && got != boot {
		r.t.Errorf("sandbox %s was booted again", id)
	}
	if text, err := r.read(id, "/root/kept"); err != nil || text != "kept" {
		r.t.Errorf("the file in %s is %q, %v", id, text, err)
	}
	if boot != "" {
		r.counted(id, r.counted(id, 0)+3)
	}
}

func (v *victim) suspend() error {
	v.spec.Generation++
	_, err := v.r.Suspend(v.r.ctx(), v.spec.ID, v.spec.Generation)
	return err
}

func (v *victim) must(err error) {
	v.r.t.Helper()
	if err != nil {
		v.r.t.Fatal(err)
	}
}

// crash is one operation to be interrupted.
type crash struct {
	name  string
	ready func(v *victim) // brings the sandbox to where the operation begins
	do    func(v *victim) error
	// after says what may be true afterwards; it is told whether the call was acknowledged.
	after func(v *victim, st runtime.Status, done bool)
}

func running(st runtime.Status) bool { return st.State == runtime.Running }
func frozen(st runtime.Status) bool  { return st.Depth == runtime.Frozen }
func onDisk(st runtime.Status) bool  { return st.Depth == runtime.OnDisk }

// oneOf checks that the sandbox is what it was or what it should become, and the latter where that was acknowledged.
func oneOf(before, after func(runtime.Status) bool) func(*victim, runtime.Status, bool) {
	return func(v *victim, st runtime.Status, done bool) {
		v.r.t.Helper()
		if !after(st) && (done || !before(st)) {
			v.r.t.Errorf("acknowledged %t, it is %+v", done, st)
		}
	}
}

func crashes() []crash {
	freeze := func(v *victim) {
		_, err := v.r.Pause(v.r.ctx(), v.spec.ID, v.spec.Generation)
		v.must(err)
	}
	sleep := func(v *victim) { v.must(v.suspend()) }
	wake := func(v *victim) error { _, err := v.r.Wake(v.r.ctx(), v.spec); return err }
	save := func(v *victim, opts runtime.SaveOptions) error {
		_, err := v.r.Save(v.r.ctx(), v.spec.ID, v.spec.Generation, "snap_crash", opts)
		return err
	}
	saved := func(before func(runtime.Status) bool, memory bool) func(*victim, runtime.Status, bool) {
		return func(v *victim, st runtime.Status, done bool) {
			v.r.t.Helper()
			oneOf(before, before)(v, st, done)
			v.wholeSave(done, memory)
		}
	}
	return []crash{
		{"pause", func(*victim) {}, func(v *victim) error {
			_, err := v.r.Pause(v.r.ctx(), v.spec.ID, v.spec.Generation)
			return err
		}, oneOf(running, frozen)},
		{"resume", freeze, func(v *victim) error {
			_, err := v.r.Resume(v.r.ctx(), v.spec.ID, v.spec.Generation)
			return err
		}, oneOf(frozen, running)},
		{"suspend", func(*victim) {}, (*victim).suspend, oneOf(running, onDisk)},
		{"suspend a frozen one", freeze, (*victim).suspend, oneOf(frozen, onDisk)},
		{"wake", sleep, wake, oneOf(onDisk, running)},
		{"rewind", func(v *victim) { sleep(v); v.must(wake(v)) }, func(v *victim) error {
			_, err := v.r.Rewind(v.r.ctx(), v.spec.ID, v.spec.Generation)
			return err
		}, oneOf(running, onDisk)},
		{"save memory", func(*victim) {}, func(v *victim) error { return save(v, runtime.SaveOptions{Memory: true}) }, saved(running, true)},
		{"save memory of a suspended one", sleep, func(v *victim) error { return save(v, runtime.SaveOptions{Memory: true}) }, saved(onDisk, true)},
		{"save disk", func(*victim) {}, func(v *victim) error { return save(v, runtime.SaveOptions{}) }, saved(running, false)},
		{"clone", func(v *victim) { v.must(save(v, runtime.SaveOptions{Memory: true})) }, func(v *victim) error {
			_, err := v.r.Clone(v.r.ctx(), v.copy(), "snap_crash", runtime.CloneOptions{})
			return err
		}, func(v *victim, st runtime.Status, done bool) {
			v.r.t.Helper()
			oneOf(running, running)(v, st, done)
			copied := v.copy()
			st, err := v.r.Get(v.r.ctx(), copied.ID)
			if done && err != nil || err == nil && st.State != runtime.Running || err != nil && !errs.Is(err, errs.NotFound) {
				v.r.t.Errorf("acknowledged %t, the copy is %+v, %v", done, st, err)
			}
			_, err = v.r.Clone(v.r.ctx(), copied, "snap_crash", runtime.CloneOptions{}) // the same again brings it to its end
			v.must(err)
			v.r.awaitGuest(copied.ID)
			v.r.holds(copied.ID, v.boot)
			v.must(v.r.Delete(v.r.ctx(), copied.ID, 2))
			v.wholeSave(true, true)
		}},
		{"forget", func(v *victim) { v.must(save(v, runtime.SaveOptions{Memory: true})) }, func(v *victim) error {
			return v.r.Forget(v.r.ctx(), "snap_crash")
		}, func(v *victim, st runtime.Status, done bool) {
			v.r.t.Helper()
			oneOf(running, running)(v, st, done)
			all, err := v.r.Saves(v.r.ctx())
			v.must(err)
			if done && len(all) > 0 {
				v.r.t.Errorf("an acknowledged forget came back: %+v", all)
			}
			if len(all) > 0 {
				v.wholeSave(true, true)
			}
		}},
	}
}

// copy is the sandbox that is made of the save.
func (v *victim) copy() runtime.Spec {
	spec := v.spec
	spec.ID, spec.Generation = v.spec.ID[:len(v.spec.ID)-4]+"copy", 1
	return spec
}

// wholeSave checks that there is a whole save or nothing of one, and removes it.
func (v *victim) wholeSave(must, memory bool) {
	r := v.r
	r.t.Helper()
	all, err := r.Saves(r.ctx())
	v.must(err)
	if len(all) == 0 {
		if must {
			r.t.Error("an acknowledged save is gone")
		}
		for _, l := range r.leftovers() {
			if strings.Contains(l, "snap_crash") {
				r.t.Errorf("of a save that is not there is left: %s", l)
			}
		}
		return
	}
	spec := v.spec
	spec.ID, spec.Generation = id.New(id.Sandbox), 1
	_, err = r.Clone(r.ctx(), spec, "snap_crash", runtime.CloneOptions{})
	v.must(err)
	r.awaitGuest(spec.ID)
	boot := ""
	if memory {
		boot = v.boot
	}
	r.holds(spec.ID, boot)
	v.must(r.Delete(r.ctx(), spec.ID, 2))
	v.must(r.Forget(r.ctx(), "snap_crash"))
}

// A runtime that is killed at any moment of a pause, a wake, a save or a copy: each has happened or has not, what was there before is still there, and
// nothing else is.
func TestKilledDuringLife(t *testing.T) {
	rounds := 4
	if testing.Short() {
		rounds = 2
	}
	r := newRig(t, func(c *Config) { c.Disk = "btrfs-image" })
	for _, c := range crashes() {
		t.Run(c.name, func(t *testing.T) {
			r.t = t
			v := r.victim()
			// Once undisturbed, to know how long it takes.
			c.ready(v)
			began := time.Now()
			v.must(c.do(v))
			took := time.Since(began)
			if _, err := r.Get(r.ctx(), v.copy().ID); err == nil {
				v.must(r.Delete(r.ctx(), v.copy().ID, 2))
			}
			v.must(r.Forget(r.ctx(), "snap_crash"))
			v.whole()
			happened := 0
			for i := range rounds {
				c.ready(v)
				delay := time.Duration(rand.Int64N(int64(took) + int64(took)/8))
				done := make(chan error, 1)
				go func() { done <- c.do(v) }()
				<-time.NewTimer(delay).C // the moment is the point of the test
				r.killRuntime()
				err := <-done
				if err != nil && !errs.Is(err, errs.HostUnavailable) {
					t.Errorf("round %d, killed after %v of %v: %v, want that the host is unavailable", i, delay, took, err)
				}
				if err == nil {
					happened++
				}
				st, gerr := r.Get(r.ctx(), v.spec.ID)
				if gerr != nil {
					t.Fatalf("round %d, killed after %v: %v", i, delay, gerr)
				}
				if onDisk(st) && len(r.tasks(v.spec.ID)) > 0 {
					t.Errorf("round %d: a suspended sandbox has processes", i)
				}
				c.after(v, st, err == nil)
				v.must(r.Forget(r.ctx(), "snap_crash"))
				v.whole()
				if t.Failed() {
					t.Fatalf("round %d, killed after %v of %v", i, delay, took)
				}
			}
			t.Logf("%d of %d were acknowledged; undisturbed it takes %v", happened, rounds, took)
			v.must(r.Delete(r.ctx(), v.spec.ID, 1<<40))
			for _, l := range r.leftovers() {
				if strings.Contains(l, v.spec.ID) || strings.Contains(l, "snap_crash") {
					t.Errorf("left: %s", l)
				}
			}
		})
	}
	r.t = t
}

// trees is where all disks are; on an image of btrfs it is a mount.
func (r *rig) trees() string { return filepath.Join(r.cfg.Root, "disks", "trees") }

// smallRig is a rig whose folder is a file system of its own, of a few hundred MiB. fill leaves so many bytes of it free, and gives a function that frees
// the rest again.
func smallRig(t *testing.T) (r *rig, fill func(free int64) (undo func())) {
	t.Helper()
	need(t, "BERTH_RUNTIME_BIN")
	dir, err := os.MkdirTemp("", "brs")
	if err == nil {
		err = unix.Mount("tmpfs", dir, "tmpfs", 0, "size=256m")
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(unix.Unmount(dir, 0), os.Remove(dir)); err != nil {
			t.Error(err)
		}
	})
	r = newRig(t, func(c *Config) { c.Root = filepath.Join(dir, "r") })
	return r, func(free int64) func() {
		t.Helper()
		var st unix.Statfs_t
		if err := unix.Statfs(dir, &st); err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(dir, "filler")
		f, err := os.Create(path)
		if err == nil {
			err = unix.Fallocate(int(f.Fd()), 0, 0, max(1, int64(st.Bavail)*st.Bsize-free))
		}
		if err := errors.Join(err, f.Close()); err != nil {
			t.Fatal(err)
		}
		return func() {
			t.Helper()
			if err := os.Remove(path); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// A node whose disk is full refuses to pause, save and copy, and wakes nothing; what was there goes on, nothing half made is left, and once there is
// room all of it works.
func TestFullDisk(t *testing.T) {
	r, fill := smallRig(t)
	spec := r.create()
	boot := r.boot(spec.ID)
	r.write(spec.ID, "/root/kept", "kept")
	// Once with room: it is known how much a memory takes, and the program is kept.
	first, err := r.Save(r.ctx(), spec.ID, spec.Generation, "snap_first", runtime.SaveOptions{Memory: true})
	if err != nil {
		t.Fatal(err)
	}
	copied := spec
	copied.ID = id.New(id.Sandbox)
	running := func() {
		t.Helper()
		if st, err := r.Get(r.ctx(), spec.ID); err != nil || st.State != runtime.Running {
			t.Fatalf("Get = %+v, %v", st, err)
		}
		if got := r.boot(spec.ID); got != boot {
			t.Fatal("it was booted again")
		}
		if text, err := r.read(spec.ID, "/root/kept"); err != nil || text != "kept" {
			t.Fatalf("its file: %q, %v", text, err)
		}
	}
	saves := func(want int) {
		t.Helper()
		if all, err := r.Saves(r.ctx()); err != nil || len(all) != want {
			t.Errorf("Saves = %+v, %v; want %d", all, err, want)
		}
		if entries, err := os.ReadDir(filepath.Join(r.cfg.Root, "saves")); err != nil || len(entries) != want {
			t.Errorf("folders of saves: %v, %v; want %d", entries, err, want)
		}
	}
	for _, free := range []int64{0, 16 << 10, 256 << 10, first.MemoryBytes / 2, first.MemoryBytes - 64<<10} {
		t.Run(fmt.Sprint(free), func(t *testing.T) {
			undo := fill(free)
			spec.Generation++
			_, suspend := r.Suspend(r.ctx(), spec.ID, spec.Generation)
			wantFull(t, "suspend", suspend)
			running()
			_, save := r.Save(r.ctx(), spec.ID, spec.Generation, "snap_full", runtime.SaveOptions{Memory: true})
			wantFull(t, "save", save)
			running()
			saves(1)
			if free < 16<<10 {
				_, clone := r.Clone(r.ctx(), copied, "snap_first", runtime.CloneOptions{})
				wantFull(t, "clone", clone)
				if all, err := r.List(r.ctx()); err != nil || len(all) != 1 {
					t.Errorf("List = %+v, %v; want one", all, err)
				}
			}
			// The runtime that is killed now comes back without room.
			r.killRuntime()
			if _, err := r.List(r.ctx()); err == nil {
				running()
			} else {
				t.Logf("without room the runtime does not start: %v", err)
			}
			undo()
			running()
			spec.Generation++
			if _, err := r.Suspend(r.ctx(), spec.ID, spec.Generation); err != nil {
				t.Fatalf("suspend with room: %v", err)
			}
			undo = fill(0)
			spec.Generation++
			if _, err := r.Wake(r.ctx(), spec); err == nil {
				t.Error("it woke without room for its record")
			}
			if st, err := r.Get(r.ctx(), spec.ID); err != nil || st.Depth != runtime.OnDisk || len(r.tasks(spec.ID)) > 0 {
				t.Errorf("after a wake without room: %+v, %v, processes %v", st, err, r.tasks(spec.ID))
			}
			undo()
			if _, err := r.Wake(r.ctx(), spec); err != nil {
				t.Fatalf("wake with room: %v", err)
			}
			r.awaitGuest(spec.ID)
			running()
		})
	}
	for _, name := range []string{"snap_full", "snap_first"} {
		if err := r.Forget(r.ctx(), name); err != nil {
			t.Fatal(err)
		}
	}
	saves(0)
}

func wantFull(t *testing.T, what string, err error) {
	t.Helper()
	if e := errs.From(err); err == nil || e.Code != errs.LimitExceeded || e.Reason != "disk_full" {
		t.Errorf("%s on a full disk: %v, want %s, disk_full", what, err, errs.LimitExceeded)
	}
}
