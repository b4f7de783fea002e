package gvisor

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/guest"
	"github.com/berthrun/berth/internal/id"
	"github.com/berthrun/berth/internal/runtime"
)

// boot is when the guest's process began: it tells a memory that came back from a boot.
func (r *rig) boot(id string) string {
	r.t.Helper()
	var out struct{ BootID string }
	if _, err := r.ask(id, "GET", "/hello", nil, &out); err != nil {
		r.t.Fatal(err)
	}
	return out.BootID
}

// disks are the kinds that pauses and copies are tried on.
func disks(t *testing.T, run func(t *testing.T, r *rig)) {
	for _, kind := range []string{"plain", "btrfs-image"} {
		t.Run(kind, func(t *testing.T) { run(t, newRig(t, func(c *Config) { c.Disk = kind })) })
	}
}

// running reports whether anything of a sandbox runs.
func (r *rig) lives(id string) bool {
	for _, l := range r.leftovers() {
		if len(l) > 8 && l[:8] == "process " {
			return true
		}
	}
	return false
}

func TestSuspend(t *testing.T) {
	disks(t, func(t *testing.T, r *rig) {
		spec := r.create()
		r.write(spec.ID, "/root/file", "one")
		boot := r.boot(spec.ID)
		for i := range int64(3) {
			began := time.Now()
			st, err := r.Suspend(r.ctx(), spec.ID, 2+2*i)
			if err != nil || st.State != runtime.Paused || st.Depth != runtime.OnDisk {
				t.Fatalf("Suspend = %+v, %v", st, err)
			}
			t.Logf("suspended in %s", time.Since(began))
			if r.lives(spec.ID) {
				t.Errorf("of a suspended sandbox there is: %v", r.leftovers())
			}
			spec.Generation = 3 + 2*i
			began = time.Now()
			if st, err = r.Wake(r.ctx(), spec); err != nil || st.State != runtime.Running {
				t.Fatalf("Wake = %+v, %v", st, err)
			}
			r.awaitGuest(spec.ID)
			t.Logf("awake in %s", time.Since(began))
			if got := r.boot(spec.ID); got != boot {
				t.Errorf("the guest was booted again")
			}
			if got, err := r.read(spec.ID, "/root/file"); err != nil || got != "one" {
				t.Errorf("the file is %q, %v", got, err)
			}
			if i == 1 {
				if err := r.Settle(r.ctx(), spec.ID, spec.Generation); err != nil {
					t.Fatal(err)
				}
			}
		}
	})
}

// TestBrokenConnections: connections over which much comes while the memory is written break with the wake. A program that has not closed them is paused
// again, and closes them after the second wake.
func TestBrokenConnections(t *testing.T) {
	r := newRig(t, func(c *Config) { c.Disk = "btrfs-image" })
	spec := r.create()
	boot := r.boot(spec.ID)
	if _, err := r.ask(spec.ID, "POST", "/processes", guest.Start{Argv: []string{guestPath, "hold", "end"}, Cwd: "/tmp"}, nil); err != nil {
		t.Fatal(err)
	}
	var writers sync.WaitGroup
	defer writers.Wait()
	for range 16 {
		var conn net.Conn
		for began := time.Now(); conn == nil; {
			var err error
			if conn, err = r.Dial(r.ctx(), spec.ID, 8000); err != nil && time.Since(began) > patience {
				t.Fatal(err)
			}
		}
		defer conn.Close()
		writers.Go(func() {
			for b := []byte{1}; ; {
				if _, err := conn.Write(b); err != nil {
					return
				}
			}
		})
	}
	for range 2 {
		spec.Generation++
		if _, err := r.Suspend(r.ctx(), spec.ID, spec.Generation); err != nil {
			t.Fatal(err)
		}
		spec.Generation++
		if _, err := r.Wake(r.ctx(), spec); err != nil {
			t.Fatal(err)
		}
	}
	r.write(spec.ID, "/tmp/end", "")
	for range 20 {
		if got := r.boot(spec.ID); got != boot {
			t.Fatal("the guest was booted again")
		}
		time.Sleep(10 * time.Millisecond) // its kernel has to outlive the end of the program
	}
}

func TestRewind(t *testing.T) {
	r := newRig(t, func(c *Config) { c.Disk = "btrfs-image" })
	spec := r.create()
	r.write(spec.ID, "/root/file", "one")
	boot := r.boot(spec.ID)
	_, err := r.Rewind(r.ctx(), spec.ID, 1)
	if e := errs.From(err); e == nil || e.Reason != "settled" {
		t.Errorf("Rewind of one that was never suspended: %v", err)
	}
	if _, err := r.Suspend(r.ctx(), spec.ID, 2); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if _, err := r.Wake(r.ctx(), spec2(spec, 2)); err != nil {
			t.Fatal(err)
		}
		r.awaitGuest(spec.ID)
		r.write(spec.ID, "/root/file", "two")
		if st, err := r.Rewind(r.ctx(), spec.ID, 2); err != nil || st.Depth != runtime.OnDisk {
			t.Fatalf("Rewind = %+v, %v", st, err)
		}
	}
	if _, err := r.Wake(r.ctx(), spec2(spec, 2)); err != nil {
		t.Fatal(err)
	}
	r.awaitGuest(spec.ID)
	if got, _ := r.read(spec.ID, "/root/file"); got != "one" || r.boot(spec.ID) != boot {
		t.Errorf("after the rewind the file is %q", got)
	}
}

func spec2(s runtime.Spec, generation int64) runtime.Spec {
	s.Generation = generation
	return s
}

func TestDamagedMemory(t *testing.T) {
	r := newRig(t)
	spec := r.create()
	if _, err := r.Suspend(r.ctx(), spec.ID, 2); err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(r.cfg.Root, "sandboxes", spec.ID, "memory")
	for name, tt := range map[string]struct {
		damage func(path string) error
		reason string
	}{
		"pages.img":      {flip, "memory_damaged"},
		"pages_meta.img": {flip, "memory_damaged"},
		"checkpoint.img": {func(p string) error { return os.Truncate(p, 100) }, "memory_damaged"},
		"memory.json":    {os.Remove, "memory_missing"},
	} {
		path := filepath.Join(dir, name)
		whole, err := os.ReadFile(path)
		if err := errors.Join(err, tt.damage(path)); err != nil {
			t.Fatal(err)
		}
		_, err = r.Wake(r.ctx(), spec2(spec, 3))
		if e := errs.From(err); e == nil || e.Reason != tt.reason {
			t.Errorf("%s damaged: %v, want %s", name, err, tt.reason)
		}
		if st, err := r.Get(r.ctx(), spec.ID); err != nil || st.Depth != runtime.OnDisk || r.lives(spec.ID) {
			t.Errorf("%s damaged: it is %+v, %v", name, st, err)
		}
		if err := os.WriteFile(path, whole, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := r.Wake(r.ctx(), spec2(spec, 3)); err != nil {
		t.Errorf("whole again: %v", err)
	}
}

func flip(path string) error {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	b, at := make([]byte, 1), info.Size()/2
	if _, err := f.ReadAt(b, at); err != nil {
		return err
	}
	b[0] ^= 1
	_, err = f.WriteAt(b, at)
	return err
}

func TestClones(t *testing.T) {
	disks(t, func(t *testing.T, r *rig) {
		spec := r.create()
		r.write(spec.ID, "/root/file", "one")
		boot := r.boot(spec.ID)
		began := time.Now()
		save, err := r.Save(r.ctx(), spec.ID, 2, "snap_a", runtime.SaveOptions{Memory: true})
		if err != nil || save.MemoryBytes == 0 || save.Image != tiny {
			t.Fatalf("Save = %+v, %v", save, err)
		}
		t.Logf("saved in %s: %d bytes of memory", time.Since(began), save.MemoryBytes)
		r.write(spec.ID, "/root/file", "two")
		if got := r.boot(spec.ID); got != boot {
			t.Error("the original was booted again")
		}
		for _, from := range []bool{false, true} {
			copied := spec
			copied.ID, copied.Generation, copied.Hostname = id.New(id.Sandbox), 1, "copy"
			began := time.Now()
			if _, err := r.Clone(r.ctx(), copied, "snap_a", runtime.CloneOptions{FromDisk: from}); err != nil {
				t.Fatalf("Clone (from disk %t): %v", from, err)
			}
			r.awaitGuest(copied.ID)
			t.Logf("cloned (from disk %t) in %s", from, time.Since(began))
			if got := r.boot(copied.ID); (got == boot) == from {
				t.Errorf("from disk %t: booted again %t", from, got != boot)
			}
			if got, _ := r.read(copied.ID, "/root/file"); got != "one" {
				t.Errorf("the copy's file is %q", got)
			}
			r.write(copied.ID, "/root/file", "three")
			if err := r.Delete(r.ctx(), copied.ID, 2); err != nil {
				t.Error(err)
			}
		}
		if got, _ := r.read(spec.ID, "/root/file"); got != "two" {
			t.Errorf("the original's file is %q", got)
		}
		if err := r.Forget(r.ctx(), "snap_a"); err != nil {
			t.Error(err)
		}
		if all, err := r.Saves(r.ctx()); err != nil || len(all) != 0 {
			t.Errorf("Saves = %v, %v", all, err)
		}
	})
}

// TestStandsStill: while a sandbox is saved for its copies it stands still no longer than the save takes, and while they are made of it, it goes on.
func TestStandsStill(t *testing.T) {
	disks(t, func(t *testing.T, r *rig) {
		spec := r.create()
		var mu sync.Mutex
		var answers []time.Time
		ctx, cancel := context.WithCancel(r.ctx())
		var asking sync.WaitGroup
		defer asking.Wait()
		defer cancel()
		asking.Go(func() {
			for ctx.Err() == nil {
				began := time.Now()
				if _, err := r.ask(spec.ID, "GET", "/hello", nil, nil); err != nil {
					continue
				}
				// One that is made again and again by TCP, and not heard, takes 25 s: the host asks the sandbox only after 15 whether it is still there.
				if took := time.Since(began); took > 10*time.Second {
					t.Errorf("a call during a save was answered after %v", took)
				}
				mu.Lock()
				answers = append(answers, time.Now())
				mu.Unlock()
			}
		})
		// during gives how often the sandbox answered while something went on.
		during := func(do func() error) int {
			began := time.Now()
			if err := do(); err != nil {
				t.Fatal(err)
			}
			ended := time.Now()
			mu.Lock()
			defer mu.Unlock()
			n := 0
			for _, at := range answers {
				if at.After(began) && at.Before(ended) {
					n++
				}
			}
			return n
		}
		saved := during(func() error {
			_, err := r.Save(r.ctx(), spec.ID, 2, "fork_a", runtime.SaveOptions{Memory: true, Brief: true})
			return err
		})
		for i := range 3 {
			copied := spec
			copied.ID, copied.Generation, copied.Hostname = id.New(id.Sandbox), 1, "copy"
			n := during(func() error {
				_, err := r.Clone(r.ctx(), copied, "fork_a", runtime.CloneOptions{})
				return err
			})
			t.Logf("copy %d: %d answers of the original, %d while it was saved", i, n, saved)
			if n < 3 {
				t.Errorf("the original answered %d times while copy %d was made", n, i)
			}
			if err := r.Delete(r.ctx(), copied.ID, 2); err != nil {
				t.Error(err)
			}
		}
		if err := r.Forget(r.ctx(), "fork_a"); err != nil {
			t.Error(err)
		}
	})
}
