package nodeagent

import (
	"context"
	"encoding/json"
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berthrun/berth/internal/blob"
	"github.com/berthrun/berth/internal/chunk/saves"
	"github.com/berthrun/berth/internal/chunk/vault"
	"github.com/berthrun/berth/internal/db/dbtest"
	"github.com/berthrun/berth/internal/disk"
	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/runtime"
)

func TestMain(m *testing.M) { dbtest.Main(m) }

// node is a node's trees, and the saves as berth-runtime finds them when it starts.
type node struct{ *trees }

func (n node) Saves(context.Context) ([]runtime.Save, error) {
	found, err := filepath.Glob(filepath.Join(n.dir, savesFolder, "snap_*", saveFile))
	var all []runtime.Save
	for _, f := range found {
		all = append(all, runtime.Save{Name: filepath.Base(filepath.Dir(f))})
	}
	return all, err
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func noise(seed byte, n int) []byte {
	b := make([]byte, n)
	_, _ = rand.NewChaCha8([32]byte{seed}).Read(b)
	return b
}

// A save that one node made is whole on another one, after the first is gone, and of the next save of the line only the change is kept.
func TestSaveMovesToAnotherNode(t *testing.T) {
	if os.Geteuid() != 0 {
		if os.Getenv("CI") == "true" {
			t.Fatal("needs root")
		}
		t.Skip("needs root: disks are mounted")
	}
	const first, second = "snap_aaaaaaaaaaaaaaaaaaaa", "snap_bbbbbbbbbbbbbbbbbbbb"
	ctx := t.Context()
	blobs, err := blob.Open(ctx, t.TempDir())
	must(t, err)
	defer blobs.Close()
	v := vault.New(vault.Config{DB: dbtest.Open(t, dbtest.SQLite(t)), Blobs: blobs, Grace: -1})
	open := func() (node, *disk.Store) {
		dir := t.TempDir()
		d, err := disk.Open(filepath.Join(dir, "disks"), disk.Auto)
		must(t, err)
		t.Cleanup(func() {
			if err := d.Close(); err != nil {
				t.Error(err)
			}
		})
		return node{newTrees(Config{Dir: dir})}, d
	}
	a, disks := open()
	must(t, disks.Create("sbx", 0))
	upper := disks.Folder("sbx")
	must(t, os.WriteFile(filepath.Join(upper, "data"), noise(1, 4<<20), 0o640))
	must(t, os.WriteFile(filepath.Join(upper, "still"), noise(2, 4<<20), 0o640))
	must(t, unix.Mknod(filepath.Join(upper, "gone"), unix.S_IFCHR, 0))
	// As berth-runtime saves it.
	save := func(name string) {
		must(t, disks.Copy("sbx", saveDisk+name, 0))
		must(t, os.MkdirAll(a.save(name), 0o700))
		must(t, os.WriteFile(filepath.Join(a.save(name), "pages.img"), noise(3, 1<<20), 0o600))
		b, err := json.Marshal(runtime.Save{Name: name, Memory: true, At: time.Now()})
		must(t, errors.Join(err, os.WriteFile(filepath.Join(a.save(name), saveFile), b, 0o600)))
	}
	here := saves.Keeper{Vault: v, Node: a}
	s1, s2 := saves.Save{Name: first, OrgID: "org_a", Line: "sbx_1"}, saves.Save{Name: second, OrgID: "org_a", Line: "sbx_1"}
	if err := here.Keep(ctx, s1); !errs.Is(err, errs.NotFound) {
		t.Errorf("Keep of no save = %v", err)
	}
	save(first)
	for range 2 {
		must(t, here.Keep(ctx, s1))
	}
	must(t, os.WriteFile(filepath.Join(upper, "data"), noise(4, 4<<20), 0o640))
	save(second)
	must(t, here.Keep(ctx, s2))
	st, err := v.Stat(ctx, "org_a", "saves/"+second+"/disk")
	if err != nil || st.Stats.Stored < 4<<20 || st.Stats.Stored > 5<<20 {
		t.Errorf("of the second save: %+v, %v; want the changed file", st.Stats, err)
	}
	must(t, here.Drop(ctx, s1))
	_, err = v.Collect(ctx)
	must(t, err)

	b, others := open()
	there := saves.Keeper{Vault: v, Node: b}
	if err := there.Fetch(ctx, s1); !errs.Is(err, errs.NotFound) {
		t.Errorf("Fetch of what was dropped = %v", err)
	}
	for range 2 {
		must(t, there.Fetch(ctx, s2))
	}
	got := others.Folder(saveDisk + second)
	for name, want := range map[string][]byte{
		filepath.Join(got, "data"): noise(4, 4<<20), filepath.Join(got, "still"): noise(2, 4<<20), filepath.Join(b.save(second), "pages.img"): noise(3, 1<<20),
	} {
		if have, err := os.ReadFile(name); err != nil || string(have) != string(want) {
			t.Errorf("%s is another, %v", name, err)
		}
	}
	var wh unix.Stat_t
	if err := unix.Lstat(filepath.Join(got, "gone"), &wh); err != nil || wh.Mode&unix.S_IFMT != unix.S_IFCHR || wh.Rdev != 0 {
		t.Errorf("the whiteout is %o %d, %v", wh.Mode, wh.Rdev, err)
	}
	if !others.Has(saveDisk + second) {
		t.Error("the disk is not whole")
	}
	if all, err := b.Saves(ctx); err != nil || len(all) != 1 {
		t.Errorf("Saves = %v, %v", all, err)
	}
	must(t, there.Drop(ctx, s2))
	_, err = v.Collect(ctx)
	must(t, err)
	if left, err := blobs.List(ctx, ""); err != nil || len(left) != 0 {
		t.Errorf("%d objects are left, %v", len(left), err)
	}
}
