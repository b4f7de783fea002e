package gvisor

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berthrun/berth/internal/disk"
	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/guest"
	"github.com/berthrun/berth/internal/id"
	"github.com/berthrun/berth/internal/runtime"
)

// volume makes one, which the test removes.
func (r *rig) volume() string {
	r.t.Helper()
	volume := id.New(id.Volume)
	if err := r.MakeVolume(r.ctx(), volume, 1); err != nil {
		r.t.Fatal(err)
	}
	return volume
}

func (r *rig) volumeFolder(volume string) string {
	return filepath.Join(r.trees(), "volume."+volume, "upper")
}

// unwhole are the disks that are neither a sandbox nor whole.
func (r *rig) unwhole() []string {
	entries, err := os.ReadDir(r.trees())
	if err != nil {
		r.t.Fatal(err)
	}
	var out []string
	for _, e := range entries {
		if n := e.Name(); strings.Count(n, ".") > 1 || strings.HasSuffix(n, ".partial") {
			out = append(out, n)
		}
	}
	return out
}

func (r *rig) link(sandbox, at, to string) {
	r.t.Helper()
	q := url.Values{"at": {at}, "to": {to}}
	if _, err := r.ask(sandbox, http.MethodPost, "/test/symlink?"+q.Encode(), nil, nil); err != nil {
		r.t.Fatal(err)
	}
}

// A sandbox whose own disk has links in the way of a mount gets its volume inside, where the link leads there, or not at all: nothing on the host is made or
// changed.
func TestVolumePlantedLinks(t *testing.T) {
	r := newRig(t)
	outside := t.TempDir()
	for name, tt := range map[string]struct {
		at, to, path string // a link, and where the volume is to be
		seen         string // where it is; empty where it is refused
	}{
		"absolute":       {"/data", "/etc", "/data/vol", "/etc/vol"},
		"out of it":      {"/data", "../../../../../../../.." + outside, "/data/vol", outside + "/vol"},
		"absolute out":   {"/data", outside, "/data", outside},
		"the last":       {"/var/data", "../home/inner", "/var/data", "/home/inner"},
		"the root":       {"/data", "/", "/data", ""},
		"the proc":       {"/data", "/proc", "/data", ""},
		"below the proc": {"/data", "../proc/self/root", "/data/vol", ""},
		"the guest":      {"/data", "/.berth", "/data", ""},
		"a file":         {"/data", "/etc/hostname", "/data", ""},
		"below a file":   {"/data", "/etc/hostname", "/data/vol", ""},
		"a loop":         {"/data", "/data", "/data/vol", ""},
		"the parent":     {"/data", "..", "/data/vol", "/vol"},
	} {
		t.Run(name, func(t *testing.T) {
			r.t = t
			volume := r.volume()
			spec := r.create()
			r.link(spec.ID, tt.at, tt.to)
			spec.Generation++
			if _, err := r.Stop(r.ctx(), spec.ID, spec.Generation, runtime.StopOptions{}); err != nil {
				t.Fatal(err)
			}
			spec.Generation++
			spec.Mounts = []runtime.Mount{{Volume: volume, Path: tt.path}}
			_, err := r.Start(r.ctx(), spec)
			if tt.seen == "" {
				if e := errs.From(err); err == nil || e.Code != errs.InvalidInput || e.Reason != "mount_path" {
					t.Errorf("Start = %v, want %s, mount_path", err, errs.InvalidInput)
				}
				spec.Generation++
				spec.Mounts = nil
				if _, err := r.Start(r.ctx(), spec); err != nil {
					t.Errorf("start without the volume: %v", err)
				}
			} else if err != nil {
				t.Fatal(err)
			} else {
				r.awaitGuest(spec.ID)
				r.write(spec.ID, tt.path+"/text", "text")
				if text, err := r.read(spec.ID, tt.seen+"/text"); err != nil || text != "text" {
					t.Errorf("inside, %s/text is %q, %v", tt.seen, text, err)
				}
				if text, err := os.ReadFile(filepath.Join(r.volumeFolder(volume), "text")); err != nil || string(text) != "text" {
					t.Errorf("the volume has %q, %v", text, err)
				}
			}
			if left, err := os.ReadDir(outside); err != nil || len(left) != 0 {
				t.Errorf("on the host there is %v, %v", left, err)
			}
			for _, path := range []string{"/etc/vol", "/vol", "/home/inner"} {
				if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
					t.Errorf("%s is on the host: %v", path, err)
				}
			}
			if err := errors.Join(r.Delete(r.ctx(), spec.ID, 1<<40), r.RemoveVolume(r.ctx(), volume)); err != nil {
				t.Error(err)
			}
		})
	}
	r.t = t
}

// One that changes the link by which its volume was mounted and is suspended does not get out either: it wakes as it was or stays suspended.
func TestVolumeLinkChangedWhileMounted(t *testing.T) {
	r := newRig(t)
	outside := t.TempDir()
	volume := r.volume()
	spec := r.create()
	r.link(spec.ID, "/data", "/var")
	spec.Generation++
	if _, err := r.Stop(r.ctx(), spec.ID, spec.Generation, runtime.StopOptions{}); err != nil {
		t.Fatal(err)
	}
	spec.Generation++
	spec.Mounts = []runtime.Mount{{Volume: volume, Path: "/data/vol"}}
	if _, err := r.Start(r.ctx(), spec); err != nil {
		t.Fatal(err)
	}
	r.awaitGuest(spec.ID)
	r.write(spec.ID, "/data/vol/text", "text")
	r.link(spec.ID, "/data", outside)
	spec.Generation++
	if _, err := r.Suspend(r.ctx(), spec.ID, spec.Generation); err != nil {
		t.Fatal(err)
	}
	spec.Generation++
	if _, err := r.Wake(r.ctx(), spec); err == nil {
		if text, err := r.read(spec.ID, "/var/vol/text"); err != nil || text != "text" {
			t.Errorf("after the wake: %q, %v", text, err)
		}
	} else {
		t.Logf("Wake: %v", err)
		if st, err := r.Get(r.ctx(), spec.ID); err != nil || st.Depth != runtime.OnDisk {
			t.Errorf("Get = %+v, %v", st, err)
		}
	}
	if left, err := os.ReadDir(outside); err != nil || len(left) != 0 {
		t.Errorf("on the host there is %v, %v", left, err)
	}
	if err := errors.Join(r.Delete(r.ctx(), spec.ID, 1<<40), r.RemoveVolume(r.ctx(), volume)); err != nil {
		t.Error(err)
	}
}

// Whenever the runtime is killed while it makes, grows, copies and removes volumes, what comes after it finds them whole or not at all, and a sandbox that
// writes to one goes on.
func TestVolumesKilled(t *testing.T) {
	disks(t, func(t *testing.T, r *rig) {
		volume := r.volume()
		spec := r.create(func(s *runtime.Spec) { s.Mounts = []runtime.Mount{{Volume: volume, Path: "/data"}} })
		boot := r.boot(spec.ID)
		if err := os.WriteFile(filepath.Join(r.volumeFolder(volume), "big"), bytes.Repeat([]byte("big!"), 4<<20), 0o600); err != nil {
			t.Fatal(err)
		}
		r.write(spec.ID, "/data/text", "text")
		other, name := id.New(id.Volume), id.New(id.Backup)
		calls := []struct {
			name  string
			call  func() error
			after func(done bool)
		}{
			{"make", func() error { return r.MakeVolume(r.ctx(), other, 2) }, func(done bool) {
				all, err := r.Volumes(r.ctx())
				i := slices.IndexFunc(all, func(v runtime.Volume) bool { return v.ID == other })
				if err != nil || done && i < 0 || i >= 0 && all[i].SizeGiB != 2 {
					t.Errorf("Volumes = %+v, %v; made: %v", all, err, done)
				}
			}},
			{"grow", func() error { return errors.Join(r.MakeVolume(r.ctx(), other, 2), r.MakeVolume(r.ctx(), other, 3)) }, func(bool) {
				if err := r.MakeVolume(r.ctx(), other, 3); err != nil {
					t.Error(err)
				}
			}},
			{"remove", func() error { return r.RemoveVolume(r.ctx(), other) }, func(done bool) {
				all, err := r.Volumes(r.ctx())
				if err != nil || done && len(all) != 1 {
					t.Errorf("Volumes = %+v, %v; removed: %v", all, err, done)
				}
				if err := r.RemoveVolume(r.ctx(), other); err != nil {
					t.Error(err)
				}
			}},
			{"copy", func() error { return r.CopyVolume(r.ctx(), volume, name) }, func(done bool) {
				all, err := r.Copies(r.ctx())
				if err != nil || done && len(all) != 1 {
					t.Fatalf("Copies = %v, %v; made: %v", all, err, done)
				}
				if len(all) == 1 {
					info, err := os.Stat(filepath.Join(r.trees(), "copy."+name, "upper", "big"))
					text, terr := os.ReadFile(filepath.Join(r.trees(), "copy."+name, "upper", "text"))
					if err != nil || terr != nil || info.Size() != 16<<20 || string(text) != "text" {
						t.Errorf("a copy that is not whole: %v, %q, %v", info, text, errors.Join(err, terr))
					}
				}
			}},
			{"forget", func() error { return r.ForgetCopy(r.ctx(), name) }, func(done bool) {
				if all, err := r.Copies(r.ctx()); err != nil || done && len(all) != 0 {
					t.Errorf("Copies = %v, %v; forgotten: %v", all, err, done)
				}
				if err := r.ForgetCopy(r.ctx(), name); err != nil {
					t.Error(err)
				}
			}},
		}
		took := make([]time.Duration, len(calls))
		for i, c := range calls { // undisturbed
			began := time.Now()
			if err := c.call(); err != nil {
				t.Fatal(err)
			}
			took[i] = time.Since(began)
		}
		const rounds = 6
		acknowledged := 0
		for round := range rounds {
			for i, c := range calls {
				result := make(chan error, 1)
				go func() { result <- c.call() }()
				time.Sleep(rand.N(took[i] + took[i]/4))
				r.killRuntime()
				err := <-result
				if err == nil {
					acknowledged++
				}
				if st, err := r.Get(r.ctx(), spec.ID); err != nil || st.State != runtime.Running {
					t.Fatalf("round %d, %s: the sandbox is %+v, %v", round, c.name, st, err)
				}
				c.after(err == nil)
				if left := r.unwhole(); len(left) > 0 {
					t.Errorf("round %d, %s: left: %v", round, c.name, left)
				}
				if got := r.boot(spec.ID); got != boot {
					t.Fatal("the sandbox was booted again")
				}
				if text, err := r.read(spec.ID, "/data/text"); err != nil || text != "text" {
					t.Errorf("round %d, %s: the sandbox reads %q, %v", round, c.name, text, err)
				}
			}
			if t.Failed() {
				return
			}
		}
		t.Logf("%d of %d were acknowledged; undisturbed they take %v", acknowledged, rounds*len(calls), took)
		err := errors.Join(r.Delete(r.ctx(), spec.ID, 1<<40), r.RemoveVolume(r.ctx(), volume), r.RemoveVolume(r.ctx(), other), r.ForgetCopy(r.ctx(), name))
		if err != nil {
			t.Error(err)
		}
	})
}

// A volume that another process is just bringing to the node is left alone by a runtime that starts, and is none; one that nobody brings any more goes.
func TestVolumeBeingLoaded(t *testing.T) {
	disks(t, func(t *testing.T, r *rig) {
		volume := id.New(id.Volume)
		store, err := disk.Open(filepath.Join(r.cfg.Root, "disks"), disk.Kind(r.cfg.Disk))
		if err != nil {
			t.Fatal(err)
		}
		name := "volume." + volume + ".load"
		if err := store.Create(name, 0); err != nil {
			t.Fatal(err)
		}
		held, err := os.Open(filepath.Join(r.trees(), name))
		if err == nil {
			err = unix.Flock(int(held.Fd()), unix.LOCK_EX)
		}
		if err != nil {
			t.Fatal(err)
		}
		for _, loaded := range []bool{true, false} {
			r.killRuntime()
			if all, err := r.Volumes(r.ctx()); err != nil || len(all) != 0 {
				t.Errorf("Volumes = %+v, %v; want none", all, err)
			}
			if store.Has(name) != loaded {
				t.Errorf("while it is loaded %v, it is there %v", loaded, !loaded)
			}
			if err := held.Close(); loaded && err != nil {
				t.Fatal(err)
			}
		}
	})
}

// On a full disk volumes are neither made nor copied, nothing half made is left, and the sandbox that writes goes on.
func TestVolumesFullDisk(t *testing.T) {
	r, fill := smallRig(t)
	volume, other, name := r.volume(), id.New(id.Volume), id.New(id.Backup)
	spec := r.create(func(s *runtime.Spec) { s.Mounts = []runtime.Mount{{Volume: volume, Path: "/data"}} })
	r.write(spec.ID, "/data/text", strings.Repeat("0123456789abcdef", 64<<10))
	for _, free := range []int64{0, 512 << 10} {
		undo := fill(free)
		if free == 0 {
			wantFull(t, "make", r.MakeVolume(r.ctx(), other, 1))
		}
		wantFull(t, "copy", r.CopyVolume(r.ctx(), volume, name))
		if all, err := r.Volumes(r.ctx()); err != nil || len(all) != 1 {
			t.Errorf("Volumes = %+v, %v; want one", all, err)
		}
		if all, err := r.Copies(r.ctx()); err != nil || len(all) != 0 {
			t.Errorf("Copies = %v, %v; want none", all, err)
		}
		if left := r.unwhole(); len(left) > 0 {
			t.Errorf("left: %v", left)
		}
		if text, err := r.read(spec.ID, "/data/text"); err != nil || len(text) != 1<<20 {
			t.Errorf("the sandbox reads %d bytes, %v", len(text), err)
		}
		undo()
	}
	if err := errors.Join(r.MakeVolume(r.ctx(), other, 1), r.CopyVolume(r.ctx(), volume, name)); err != nil {
		t.Errorf("with room: %v", err)
	}
	err := errors.Join(r.Delete(r.ctx(), spec.ID, 1<<40), r.RemoveVolume(r.ctx(), volume), r.RemoveVolume(r.ctx(), other), r.ForgetCopy(r.ctx(), name))
	if err != nil {
		t.Error(err)
	}
}

// A volume that is more than half full can be written anew while it is copied away, and is held to its size once no copy is left.
func TestVolumeRewrittenWhileCopied(t *testing.T) {
	r := newRig(t, func(c *Config) { c.Disk = "btrfs-image" })
	volume, names := r.volume(), []string{id.New(id.Backup), id.New(id.Backup)}
	content := make([]byte, 1<<20)
	_, _ = rand.NewChaCha8([32]byte{1}).Read(content)
	write := func(name string, mib int) error {
		f, err := os.Create(filepath.Join(r.volumeFolder(volume), name))
		if err != nil {
			t.Fatal(err)
		}
		for range mib {
			if err == nil {
				_, err = f.Write(content)
			}
		}
		return errors.Join(err, f.Sync(), f.Close())
	}
	if err := write("a", 640); err != nil {
		t.Fatal(err)
	}
	for i, name := range names {
		if err := r.CopyVolume(r.ctx(), volume, name); err != nil {
			t.Fatal(err)
		}
		if i == 1 {
			r.killRuntime() // whoever comes after it knows what the copies hold
			if all, err := r.Copies(r.ctx()); err != nil || len(all) != 2 {
				t.Fatalf("Copies = %v, %v", all, err)
			}
		}
		if err := write("a", 640); err != nil {
			t.Errorf("write it anew with %d copies: %v", i+1, err)
		}
	}
	for _, name := range names {
		info, err := os.Stat(filepath.Join(r.trees(), "copy."+name, "upper", "a"))
		if err != nil || info.Size() != 640<<20 {
			t.Errorf("the copy has %v, %v", info, err)
		}
		if err := r.ForgetCopy(r.ctx(), name); err != nil {
			t.Fatal(err)
		}
	}
	// Its old blocks are let go of in the background, and it holds 640 MiB of 1,024 then. Meanwhile its writer is not refused.
	if err := write("small", 10); err != nil {
		t.Errorf("write a little once no copy is left: %v", err)
	}
	for deadline := time.Now().Add(2 * patience); ; {
		r.syncDisks()
		all, err := r.Volumes(r.ctx())
		if err == nil && len(all) == 1 && all[0].UsedBytes < 700<<20 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("Volumes = %+v, %v", all, err)
		}
		time.Sleep(200 * time.Millisecond)
	}
	if err := write("b", 300); err != nil {
		t.Errorf("write what fits: %v", err)
	}
	for deadline := time.Now().Add(patience); ; {
		if err := write("c", 300); errors.Is(err, unix.EDQUOT) {
			break
		}
		if err := os.Remove(filepath.Join(r.volumeFolder(volume), "c")); err != nil || time.Now().After(deadline) {
			t.Fatalf("what does not fit can be written: %v", err)
		}
		time.Sleep(time.Second)
	}
	if err := r.RemoveVolume(r.ctx(), volume); err != nil {
		t.Error(err)
	}
}

// syncDisks brings all that disks hold to the disk.
func (r *rig) syncDisks() {
	r.t.Helper()
	d, err := os.Open(r.trees())
	if err != nil {
		r.t.Fatal(err)
	}
	defer d.Close()
	if err := unix.Syncfs(int(d.Fd())); err != nil {
		r.t.Fatal(err)
	}
}

// Where the host has next to no room for the image of disks, programs inside are refused more of it, and the file system in the image, which every disk is in,
// goes on. Once there is room so do they, and when the runtime was killed meanwhile too.
func TestHostFull(t *testing.T) {
	dir, err := os.MkdirTemp("", "brs")
	if err == nil {
		err = unix.Mount("tmpfs", dir, "tmpfs", 0, "size=2g")
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(unix.Unmount(dir, 0), os.Remove(dir)); err != nil {
			t.Error(err)
		}
	})
	r := newRig(t, func(c *Config) { c.Root, c.Disk = filepath.Join(dir, "r"), "btrfs-image" })
	volume := r.volume()
	spec := r.create(func(s *runtime.Spec) { s.Mounts = []runtime.Mount{{Volume: volume, Path: "/data"}} })
	places := []string{"/data/", "/root/"}
	for _, p := range places {
		r.write(spec.ID, p+"kept", "kept")
	}
	text := strings.Repeat("0123456789abcdef", 16<<10)
	tries := 0
	write := func(place string) error {
		tries++
		_, err := r.ask(spec.ID, http.MethodPost, "/files/write", guest.FileWrite{Path: fmt.Sprintf("%sfile%d", place, tries), Data: []byte(text)}, nil)
		r.syncDisks()
		return err
	}
	// until writes in both places come to what is wanted.
	until := func(what string, ok func(error) bool) {
		t.Helper()
		for _, p := range places {
			deadline := time.Now().Add(patience)
			for err := write(p); !ok(err); err = write(p) {
				if time.Now().After(deadline) {
					t.Fatalf("%s: write in %s: %v", what, p, err)
				}
				time.Sleep(50 * time.Millisecond)
			}
		}
	}
	refused := func(err error) bool { return err != nil && strings.Contains(err.Error(), "quota exceeded") }
	for _, killed := range []bool{false, true} {
		filler := filepath.Join(dir, "filler")
		f, err := os.Create(filler)
		var st unix.Statfs_t
		if err == nil {
			err = errors.Join(unix.Statfs(dir, &st), unix.Fallocate(int(f.Fd()), 0, 0, int64(st.Bavail)*st.Bsize-(96<<20)), f.Close())
		}
		if err != nil {
			t.Fatal(err)
		}
		until("without room", refused)
		for range 400 { // far more than there is room for
			if err := write("/data/"); !refused(err) {
				t.Fatalf("without room: %v", err)
			}
		}
		if killed {
			r.killRuntime()
		}
		for _, p := range places {
			if text, err := r.read(spec.ID, p+"kept"); err != nil || text != "kept" {
				t.Errorf("without room %skept is %q, %v", p, text, err)
			}
		}
		if err := os.Remove(filler); err != nil {
			t.Fatal(err)
		}
		until("with room", func(err error) bool { return err == nil })
		name := id.New(id.Backup)
		if err := errors.Join(r.CopyVolume(r.ctx(), volume, name), r.ForgetCopy(r.ctx(), name)); err != nil {
			t.Errorf("copy with room: %v", err)
		}
	}
	if err := errors.Join(r.Delete(r.ctx(), spec.ID, 1<<40), r.RemoveVolume(r.ctx(), volume)); err != nil {
		t.Error(err)
	}
}

// What was in a volume that is removed is not in the file any more that holds all disks.
func TestVolumeWiped(t *testing.T) {
	r := newRig(t, func(c *Config) { c.Disk = "btrfs-image" })
	volume := r.volume()
	spec := r.create(func(s *runtime.Spec) { s.Mounts = []runtime.Mount{{Volume: volume, Path: "/data"}} })
	mark := fmt.Sprintf("a secret that %s holds", volume)
	r.write(spec.ID, "/data/secret", strings.Repeat(mark+"\n", 64<<10/len(mark)*8))
	if err := r.Delete(r.ctx(), spec.ID, 1<<40); err != nil {
		t.Fatal(err)
	}
	r.syncDisks()
	image := filepath.Join(r.cfg.Root, "disks", "btrfs.img")
	if n := occurrences(t, image, mark); n == 0 {
		t.Fatal("what is in the volume is not found in the image: the test looks for nothing")
	}
	began := time.Now()
	if err := r.RemoveVolume(r.ctx(), volume); err != nil {
		t.Fatal(err)
	}
	t.Logf("removed in %v", time.Since(began))
	for deadline := time.Now().Add(2 * patience); occurrences(t, image, mark) > 0; {
		if time.Now().After(deadline) {
			t.Fatalf("after %v what was in the volume is still in the image", time.Since(began))
		}
		time.Sleep(time.Second)
		r.syncDisks()
	}
	t.Logf("nothing of it after %v", time.Since(began))
}

// occurrences counts a text in a file, whose holes are not read.
func occurrences(t *testing.T, path, text string) (n int) {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for at := int64(0); ; {
		data, err := unix.Seek(int(f.Fd()), at, unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) {
			return n
		}
		if err != nil {
			t.Fatal(err)
		}
		hole, err := unix.Seek(int(f.Fd()), data, unix.SEEK_HOLE)
		if err != nil {
			t.Fatal(err)
		}
		b, err := io.ReadAll(io.NewSectionReader(f, data, hole-data))
		if err != nil {
			t.Fatal(err)
		}
		n += bytes.Count(b, []byte(text))
		at = hole
	}
}
