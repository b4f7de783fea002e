package disk

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// A folder of one disk takes the place of another's: of its own writes alone where the layers have nothing there, else of what is seen.
func TestGraft(t *testing.T) {
	for kind, s := range stores(t) {
		t.Run(kind, func(t *testing.T) { testGraft(t, s) })
	}
}

func testGraft(t *testing.T, s *Store) {
	must := func(all ...error) {
		t.Helper()
		if err := errors.Join(all...); err != nil {
			t.Fatal(err)
		}
	}
	layer, other := t.TempDir(), t.TempDir()
	old, target := filepath.Join(t.TempDir(), "old"), filepath.Join(t.TempDir(), "new")
	must(os.MkdirAll(filepath.Join(layer, "seen"), 0o755), os.MkdirAll(filepath.Join(layer, "bare"), 0o755), os.MkdirAll(filepath.Join(other, "seen"), 0o755),
		os.WriteFile(filepath.Join(layer, "seen", "low"), []byte("low"), 0o644), os.WriteFile(filepath.Join(layer, "seen", "gone"), nil, 0o644),
		os.WriteFile(filepath.Join(other, "seen", "hidden"), nil, 0o644), s.Create("old", 0), s.Create("new", 0), s.Mount("old", old, layer))
	t.Cleanup(func() { must(Unmount(old)) })
	must(os.WriteFile(filepath.Join(old, "seen", "up"), []byte("up"), 0o600), os.Remove(filepath.Join(old, "seen", "gone")),
		os.WriteFile(filepath.Join(old, "bare", "mine"), []byte("mine"), 0o600), os.Chmod(filepath.Join(old, "bare"), 0o711), os.Symlink("/etc", filepath.Join(old, "link")))
	for name, want := range map[string]bool{"seen": true, "bare": true, "none": false} {
		if got, err := s.Graft("old", old, "new", name, layer); err != nil || got != want {
			t.Errorf("Graft %s = %v, %v; want %v", name, got, err, want)
		}
	}
	if _, err := s.Graft("old", old, "new", "link", layer); !errors.Is(err, unix.ENOTDIR) {
		t.Errorf("Graft of a link = %v, want that it is no folder", err)
	}
	must(s.Mount("new", target, other))
	t.Cleanup(func() { must(Unmount(target)) })
	for name, want := range map[string]string{"seen": "low up", "bare": "mine"} {
		entries, err := os.ReadDir(filepath.Join(target, name))
		must(err)
		var got []string
		for _, e := range entries {
			got = append(got, e.Name())
		}
		if strings.Join(got, " ") != want {
			t.Errorf("%s holds %q, want %s", name, got, want)
		}
	}
	if info, err := os.Stat(filepath.Join(target, "bare")); err != nil || info.Mode().Perm() != 0o711 {
		t.Errorf("mode of the folder = %v, %v; want 711", info, err)
	}
}
