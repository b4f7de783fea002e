package gvisor

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berthrun/berth/internal/runtime"
)

// A sandbox whose disk is more than half full can write its files anew once it has a snapshot, and is held to its size in the end.
func TestDiskRewrittenAfterSave(t *testing.T) {
	r := newRig(t, func(c *Config) { c.Disk = "btrfs-image" })
	spec := r.create(func(s *runtime.Spec) { s.Resources.DiskGiB = 1 })
	content := make([]byte, 1<<20)
	_, _ = rand.NewChaCha8([32]byte{2}).Read(content)
	// By the host, below the sandbox: what is counted is the same.
	write := func(name string, mib int) error {
		f, err := os.Create(filepath.Join(r.trees(), spec.ID, "upper", name))
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
	if err := write("a", 600); err != nil {
		t.Fatal(err)
	}
	var names []string
	for i := range 3 {
		name := fmt.Sprintf("snap_%d", i)
		save, err := r.Save(r.ctx(), spec.ID, spec.Generation, name, runtime.SaveOptions{})
		if err != nil || save.DiskBytes < 600<<20 {
			t.Fatalf("Save = %+v, %v; want at least 600 MiB", save, err)
		}
		names = append(names, name)
		if i > 0 {
			continue
		}
		r.killRuntime()
		if err := write("a", 600); err != nil {
			t.Errorf("write it anew: %v", err)
		}
	}
	if err := r.Update(r.ctx(), spec.ID, spec.Generation, spec.Resources); err != nil {
		t.Fatal(err)
	}
	// Snapshots do not make the disk larger and larger.
	if err := write("b", 1600); !errors.Is(err, unix.EDQUOT) {
		t.Errorf("write more than twice the size: %v, want %v", err, unix.EDQUOT)
	}
	if err := os.Remove(filepath.Join(r.trees(), spec.ID, "upper", "b")); err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		if err := r.Forget(r.ctx(), name); err != nil {
			t.Fatal(err)
		}
	}
	// What they had is let go of in the background; meanwhile its programs are not refused.
	if err := write("c", 10); err != nil {
		t.Errorf("write a little once no snapshot is left: %v", err)
	}
	for deadline := time.Now().Add(4 * patience); ; {
		r.syncDisks()
		if st, err := r.Stats(r.ctx(), spec.ID); err == nil && st.DiskBytes < 700<<20 {
			if err := write("d", 500); errors.Is(err, unix.EDQUOT) {
				break
			}
			if err := os.Remove(filepath.Join(r.trees(), spec.ID, "upper", "d")); err != nil {
				t.Fatal(err)
			}
		}
		if time.Now().After(deadline) {
			t.Fatal("it holds more than its size without snapshots")
		}
		time.Sleep(time.Second)
	}
	if err := r.Delete(r.ctx(), spec.ID, 1<<40); err != nil {
		t.Fatal(err)
	}
}
