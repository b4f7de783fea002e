package gvisor

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/berthrun/berth/internal/runtime/runtimetest"
)

// guestPath is where the guest is inside.
const guestPath = "/.berth/guest"

func TestConformance(t *testing.T) {
	disks(t, func(t *testing.T, r *rig) {
		runtimetest.Run(t, runtimetest.Harness{
			Driver: r.Driver, Image: tiny, Kill: r.kill, Program: []string{guestPath}, Damage: r.damage, Forked: true, Brief: r.cfg.Disk == "plain",
			ReadOnly: true, Folder: func(_ *testing.T, name string) string { return filepath.Join(r.trees(), "copy."+name, "upper") },
			Tasks: func(t *testing.T, id string) int { return len(r.tasks(id)) },
			Left: func(t *testing.T) []string {
				return slices.DeleteFunc(r.leftovers(), func(l string) bool { return l == "mount "+r.trees() })
			},
		})
	})
}

// damage changes the kept memory of a sandbox or a save.
func (r *rig) damage(t *testing.T, what, how string) {
	t.Helper()
	dir := filepath.Join(r.cfg.Root, "sandboxes", what, "memory")
	if _, err := os.Stat(dir); err != nil {
		dir = filepath.Join(r.cfg.Root, "saves", what)
	}
	about := filepath.Join(dir, "memory.json")
	switch how {
	case "truncated":
		truncate(t, filepath.Join(dir, "pages.img"))
	case "missing":
		if err := os.Remove(filepath.Join(dir, "checkpoint.img")); err != nil {
			t.Fatal(err)
		}
	case "foreign":
		b, err := os.ReadFile(about)
		if err != nil {
			t.Fatal(err)
		}
		hello, err := r.Hello(r.ctx())
		if err != nil {
			t.Fatal(err)
		}
		text := strings.ReplaceAll(string(b), hello.RuntimeSHA256, strings.Repeat("ab", 32))
		if text == string(b) {
			t.Fatalf("%s does not name the runtime", about)
		}
		// A new file: the old one may be a save's too.
		if err := os.WriteFile(about+".test", []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(about+".test", about); err != nil {
			t.Fatal(err)
		}
	default:
		t.Fatalf("there is no damage %q", how)
	}
}
