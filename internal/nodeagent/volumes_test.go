package nodeagent

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berthrun/berth/internal/blob"
	"github.com/berthrun/berth/internal/chunk"
	"github.com/berthrun/berth/internal/chunk/vault"
	"github.com/berthrun/berth/internal/db/dbtest"
	"github.com/berthrun/berth/internal/disk"
	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/id"
	"github.com/berthrun/berth/internal/nodeapi"
)

// volumes is a node's trees and disks, with what keeps copies elsewhere.
type volumes struct {
	*trees
	disks *disk.Store
	vault *vault.Store
}

func newVolumes(t *testing.T, dir string, kind disk.Kind) *volumes {
	t.Helper()
	if os.Geteuid() != 0 {
		if os.Getenv("CI") == "true" {
			t.Fatal("needs root")
		}
		t.Skip("needs root: disks are mounted")
	}
	blobs, err := blob.Open(t.Context(), t.TempDir())
	must(t, err)
	t.Cleanup(func() { must(t, blobs.Close()) })
	d, err := disk.Open(filepath.Join(dir, "disks"), kind)
	must(t, err)
	t.Cleanup(func() { must(t, d.Close()) })
	must(t, os.MkdirAll(filepath.Join(dir, copiesFolder), 0o700))
	return &volumes{
		trees: newTrees(Config{Dir: dir, Disk: string(kind)}), disks: d,
		vault: vault.New(vault.Config{DB: dbtest.Open(t, dbtest.SQLite(t)), Blobs: blobs, Grace: -1}),
	}
}

// copied makes a copy as berth-runtime does.
func (v *volumes) copied(t *testing.T, volume, name string) {
	t.Helper()
	b, err := json.Marshal(map[string]any{"volume": volume, "at": time.Now()})
	must(t, errors.Join(err, os.WriteFile(filepath.Join(v.dir, copiesFolder, name+".json"), b, 0o600)))
	must(t, v.disks.Copy(volumeDisk+volume, copyDisk+name, 0))
}

// keep brings a copy into the vault.
func (v *volumes) keep(t *testing.T, volume, name string) vault.Tree {
	t.Helper()
	kept, err := v.vault.Put(t.Context(), "org_a", name, volume, func(ctx context.Context, cv chunk.Vault, parent *chunk.Root) (*chunk.Root, chunk.Stats, error) {
		return v.SaveTree(ctx, nodeapi.TreeRequest{Save: name, Part: nodeapi.PartVolume}, cv, parent)
	})
	must(t, err)
	return kept
}

func (v *volumes) load(ctx context.Context, name, volume string) error {
	return v.vault.Get(ctx, "org_a", name, func(ctx context.Context, cv chunk.Vault, root *chunk.Root) error {
		return v.LoadTree(ctx, nodeapi.TreeRequest{Save: volume, Part: nodeapi.PartVolume}, cv, root)
	})
}

// names lists the disks, and fails where one is not whole.
func (v *volumes) names(t *testing.T) []string {
	t.Helper()
	all, err := v.disks.List()
	must(t, err)
	for _, n := range all {
		if strings.HasSuffix(n, loading) || !v.disks.Has(n) {
			t.Errorf("there is a disk %s that is not whole", n)
		}
	}
	return all
}

// A copy of a volume becomes another volume, with all that it holds. The second copy of a line is read only where it changed.
func TestVolumeTrees(t *testing.T) {
	for _, kind := range []disk.Kind{disk.Plain, disk.Image} {
		t.Run(string(kind), func(t *testing.T) {
			v := newVolumes(t, t.TempDir(), kind)
			volume, other := id.New(id.Volume), id.New(id.Volume)
			must(t, v.disks.Create(volumeDisk+volume, 1<<30))
			from := v.disks.Folder(volumeDisk + volume)
			must(t, errors.Join(os.Chmod(from, 0o777), os.WriteFile(filepath.Join(from, "data"), noise(1, 4<<20), 0o640)))
			must(t, errors.Join(os.WriteFile(filepath.Join(from, "still"), noise(2, 4<<20), 0o640), os.Chown(filepath.Join(from, "still"), 1000, 1001)))
			must(t, os.Symlink("/etc/passwd", filepath.Join(from, "link")))
			past := time.Now().Add(-time.Minute)
			must(t, os.Chtimes(filepath.Join(from, "still"), past, past))
			first, second := id.New(id.Backup), id.New(id.Backup)
			// What was changed in the two seconds before a copy is read again, as its times may be those of a later change.
			for deadline := time.Now().Add(2100 * time.Millisecond); kind == disk.Image && time.Now().Before(deadline); {
				time.Sleep(time.Until(deadline))
			}
			v.copied(t, volume, first)
			if kept := v.keep(t, volume, first); kept.Stats.Bytes != 8<<20 || kept.Stats.Read != 8<<20 {
				t.Errorf("the first: %+v", kept.Stats)
			}
			must(t, os.WriteFile(filepath.Join(from, "data"), noise(3, 4<<20), 0o640))
			v.copied(t, volume, second)
			kept := v.keep(t, volume, second)
			if kept.Stats.Stored < 4<<20 || kept.Stats.Stored > 5<<20 || kind == disk.Image && kept.Stats.Read != 4<<20 {
				t.Errorf("the second: %+v; want what changed", kept.Stats)
			}

			must(t, v.load(t.Context(), first, other))
			to := v.disks.Folder(volumeDisk + other)
			for name, want := range map[string][]byte{"data": noise(1, 4<<20), "still": noise(2, 4<<20)} {
				if have, err := os.ReadFile(filepath.Join(to, name)); err != nil || string(have) != string(want) {
					t.Errorf("%s is another, %v", name, err)
				}
			}
			var st unix.Stat_t
			if err := unix.Lstat(filepath.Join(to, "still"), &st); err != nil || st.Uid != 1000 || st.Gid != 1001 || st.Mode&0o777 != 0o640 || st.Mtim.Sec != past.Unix() {
				t.Errorf("still is %+v, %v", st, err)
			}
			if target, err := os.Readlink(filepath.Join(to, "link")); err != nil || target != "/etc/passwd" {
				t.Errorf("the link leads to %q, %v", target, err)
			}
			if info, err := os.Stat(to); err != nil || info.Mode().Perm() != 0o777 {
				t.Errorf("its root is %v, %v", info, err)
			}
			if err := v.load(t.Context(), second, other); !errs.Is(err, errs.AlreadyExists) {
				t.Errorf("load over a volume: %v, want %s", err, errs.AlreadyExists)
			}
			if have, err := os.ReadFile(filepath.Join(to, "data")); err != nil || string(have) != string(noise(1, 4<<20)) {
				t.Errorf("what was there is another, %v", err)
			}
			if names := v.names(t); len(names) != 4 {
				t.Errorf("disks: %v", names)
			}
		})
	}
}

func TestVolumeTreesRefused(t *testing.T) {
	v := newVolumes(t, t.TempDir(), disk.Plain)
	for _, name := range []string{"", "..", "bak_../../etc", id.New(id.Volume), id.New(id.Snapshot)} {
		_, _, err := v.SaveTree(t.Context(), nodeapi.TreeRequest{Save: name, Part: nodeapi.PartVolume}, nil, nil)
		if !errs.Is(err, errs.InvalidInput) {
			t.Errorf("SaveTree of %q = %v", name, err)
		}
	}
	for _, name := range []string{"", "..", "vol_../../etc", id.New(id.Backup), id.New(id.Snapshot)} {
		if err := v.LoadTree(t.Context(), nodeapi.TreeRequest{Save: name, Part: nodeapi.PartVolume}, nil, nil); !errs.Is(err, errs.InvalidInput) {
			t.Errorf("LoadTree of %q = %v", name, err)
		}
	}
	for _, part := range []string{"", nodeapi.PartDisk, nodeapi.PartMemory} {
		if _, _, err := v.SaveTree(t.Context(), nodeapi.TreeRequest{Save: id.New(id.Backup), Part: part}, nil, nil); !errs.Is(err, errs.InvalidInput) {
			t.Errorf("SaveTree of a copy's part %q = %v", part, err)
		}
	}
	if _, _, err := v.SaveTree(t.Context(), nodeapi.TreeRequest{Save: id.New(id.Backup), Part: nodeapi.PartVolume}, nil, nil); !errs.Is(err, errs.NotFound) {
		t.Errorf("SaveTree of no copy = %v", err)
	}
	// One without its disk, and one whose disk has no name yet, are none.
	name := id.New(id.Backup)
	must(t, os.WriteFile(filepath.Join(v.dir, copiesFolder, name+".json"), []byte("{}"), 0o600))
	must(t, v.disks.Create(copyDisk+name+".new", 0))
	if _, _, err := v.SaveTree(t.Context(), nodeapi.TreeRequest{Save: name, Part: nodeapi.PartVolume}, nil, nil); !errs.Is(err, errs.NotFound) {
		t.Errorf("SaveTree of half a copy = %v", err)
	}
}

// stopping is a vault that ends a load in the middle.
type stopping struct {
	chunk.Vault
	reads atomic.Int64
	stop  func()
}

func (s *stopping) of(v chunk.Vault) *stopping {
	s.Vault = v
	return s
}

// Read implements chunk.Vault.
func (s *stopping) Read(ctx context.Context, hashes []chunk.Hash) ([][]byte, error) {
	if s.reads.Add(-1) < 0 {
		s.stop()
	}
	return s.Vault.Read(ctx, hashes)
}

// A load that is ended, on a full disk too, leaves no volume; one that was killed is done again; one that is under way is left alone.
func TestVolumeTreeInterrupted(t *testing.T) {
	dir := t.TempDir()
	must(t, unix.Mount("tmpfs", dir, "tmpfs", 0, "size=64m"))
	t.Cleanup(func() { must(t, unix.Unmount(dir, 0)) })
	v := newVolumes(t, dir, disk.Plain)
	volume, other, name := id.New(id.Volume), id.New(id.Volume), id.New(id.Backup)
	must(t, v.disks.Create(volumeDisk+volume, 1<<30))
	for _, file := range []string{"a", "b", "c", "d"} {
		must(t, os.WriteFile(filepath.Join(v.disks.Folder(volumeDisk+volume), file), noise(file[0], 4<<20), 0o600))
	}
	v.copied(t, volume, name)
	v.keep(t, volume, name)
	must(t, errors.Join(v.disks.Remove(copyDisk+name), v.disks.Remove(volumeDisk+volume)))
	for reads := range int64(3) {
		ctx, cancel := context.WithCancel(t.Context())
		stops := &stopping{stop: cancel}
		stops.reads.Store(reads)
		err := v.vault.Get(ctx, "org_a", name, func(ctx context.Context, cv chunk.Vault, root *chunk.Root) error {
			return v.LoadTree(ctx, nodeapi.TreeRequest{Save: other, Part: nodeapi.PartVolume}, stops.of(cv), root)
		})
		if err == nil {
			t.Errorf("stopped after %d reads it is loaded all the same", reads)
		}
		if names := v.names(t); len(names) != 0 {
			t.Errorf("stopped after %d reads there are %v", reads, names)
		}
	}
	f, err := os.Create(filepath.Join(dir, "filler"))
	must(t, err)
	var st unix.Statfs_t
	must(t, errors.Join(unix.Statfs(dir, &st), unix.Fallocate(int(f.Fd()), 0, 0, int64(st.Bavail)*st.Bsize-(6<<20)), f.Close()))
	if err := v.load(t.Context(), name, other); !errs.Is(err, errs.NoCapacity) || errs.From(err).Reason != "disk_full" {
		t.Errorf("on a full disk: %v, want %s, disk_full", err, errs.NoCapacity)
	}
	if names := v.names(t); len(names) != 0 {
		t.Errorf("on a full disk there are %v", names)
	}
	must(t, os.Remove(f.Name()))
	temp := volumeDisk + other + loading
	must(t, v.disks.Create(temp, 0))
	must(t, os.WriteFile(filepath.Join(v.disks.Folder(temp), "left"), []byte("of one that was killed"), 0o600))
	held, err := lock(filepath.Dir(v.disks.Folder(temp)))
	must(t, err)
	if err := v.load(t.Context(), name, other); !errs.Is(err, errs.Busy) {
		t.Errorf("while another loads it: %v, want %s", err, errs.Busy)
	}
	must(t, held.Close())
	must(t, v.load(t.Context(), name, other))
	if names := v.names(t); len(names) != 1 {
		t.Errorf("there are %v, want the volume", names)
	}
	if entries, err := os.ReadDir(v.disks.Folder(volumeDisk + other)); err != nil || len(entries) != 4 {
		t.Errorf("the volume holds %v, %v", entries, err)
	}
}
