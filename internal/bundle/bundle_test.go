package bundle

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"

	"github.com/berthrun/berth/internal/errs"
)

// program is a shell script that says what it is, so that a located one can be run.
func program(says string) []byte { return []byte("#!/bin/sh\necho " + says + "\n") }

func sum(data []byte) string {
	s := sha256.Sum256(data)
	return hex.EncodeToString(s[:])
}

func write(t *testing.T, path string, data []byte, mode os.FileMode) {
	t.Helper()
	if err := os.WriteFile(path, data, mode); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(path, mode); err != nil {
		t.Fatal(err)
	}
}

// packed makes a bundle of both programs and gives it as files in memory.
func packed(t *testing.T) fstest.MapFS {
	t.Helper()
	src, out := t.TempDir(), t.TempDir()
	write(t, filepath.Join(src, Runtime), program("runtime"), 0o755)
	write(t, filepath.Join(src, Guest), program("guest"), 0o755)
	if err := Pack(out, filepath.Join(src, Runtime), filepath.Join(src, Guest)); err != nil {
		t.Fatalf("Pack: %v", err)
	}
	m := fstest.MapFS{}
	for _, name := range []string{manifestName, Runtime + ".zst", Guest + ".zst"} {
		data, err := os.ReadFile(filepath.Join(out, name))
		if err != nil {
			t.Fatal(err)
		}
		m[name] = &fstest.MapFile{Data: data}
	}
	return m
}

func says(t *testing.T, bin Binary, want string) {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), bin.Path).Output()
	if err != nil || string(out) != want+"\n" {
		t.Errorf("%s says %q, error %v; want %q", bin.Path, out, err, want)
	}
}

func TestUnpack(t *testing.T) {
	bundled, dir := packed(t), t.TempDir()
	p, err := locate(Options{Dir: dir}, "/nowhere", bundled)
	if err != nil {
		t.Fatalf("locate: %v", err)
	}
	hash := sum(program("runtime"))
	want := Binary{Path: filepath.Join(dir, "bin", hash[:16], Runtime), SHA256: hash}
	if diff := cmp.Diff(want, p.Runtime); diff != "" {
		t.Errorf("runtime (-want +got):\n%s", diff)
	}
	says(t, p.Runtime, "runtime")
	says(t, p.Guest, "guest")
	before, err := os.Stat(p.Runtime.Path)
	if err != nil {
		t.Fatal(err)
	}
	if before.Mode().Perm() != 0o755 {
		t.Errorf("mode %v, want 0755", before.Mode())
	}
	again, err := locate(Options{Dir: dir}, "/nowhere", bundled)
	if diff := cmp.Diff(p, again); err != nil || diff != "" {
		t.Errorf("locate again: error %v (-first +again):\n%s", err, diff)
	}
	after, err := os.Stat(p.Runtime.Path)
	if err != nil || !os.SameFile(before, after) {
		t.Errorf("an unchanged program was written again (%v)", err)
	}
}

func TestUnpackReplacesWhatIsNotIt(t *testing.T) {
	bundled := packed(t)
	for _, tt := range []struct {
		name  string
		spoil func(t *testing.T, path string)
	}{
		{"changed", func(t *testing.T, p string) { write(t, p, program("evil"), 0o755) }},
		{"cut off", func(t *testing.T, p string) { write(t, p, program("runtime")[:5], 0o755) }},
		{"not runnable", func(t *testing.T, p string) { write(t, p, program("runtime"), 0o644) }},
		{"a link", func(t *testing.T, p string) {
			if err := os.Rename(p, p+".other"); err != nil {
				t.Fatal(err)
			}
			if err := os.Symlink(p+".other", p); err != nil {
				t.Fatal(err)
			}
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			dir := t.TempDir()
			p, err := locate(Options{Dir: dir}, "/nowhere", bundled)
			if err != nil {
				t.Fatal(err)
			}
			tt.spoil(t, p.Runtime.Path)
			if p, err = locate(Options{Dir: dir}, "/nowhere", bundled); err != nil {
				t.Fatalf("locate: %v", err)
			}
			says(t, p.Runtime, "runtime")
			if info, err := os.Lstat(p.Runtime.Path); err != nil || !info.Mode().IsRegular() || info.Mode().Perm() != 0o755 {
				t.Errorf("%v, error %v; want a file of mode 0755", info.Mode(), err)
			}
		})
	}
}

func TestUnpackAtOnce(t *testing.T) {
	bundled, dir := packed(t), t.TempDir()
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			p, err := locate(Options{Dir: dir}, "/nowhere", bundled)
			if err != nil {
				t.Errorf("locate: %v", err)
				return
			}
			if got, err := HashFile(p.Guest.Path); err != nil || got != p.Guest.SHA256 {
				t.Errorf("hash %s, error %v; want %s", got, err, p.Guest.SHA256)
			}
		})
	}
	wg.Wait()
	left, err := filepath.Glob(filepath.Join(dir, "bin", "*", ".*"))
	if err != nil || len(left) > 0 {
		t.Errorf("temporary files left: %v, %v", left, err)
	}
}

func TestUnpackRefusesDamage(t *testing.T) {
	for _, tt := range []struct {
		name   string
		damage func(m fstest.MapFS)
		want   errs.Code
	}{
		{"other content", func(m fstest.MapFS) { m[Runtime+".zst"] = m[Guest+".zst"] }, errs.Internal},
		{"cut off", func(m fstest.MapFS) { m[Guest+".zst"].Data = m[Guest+".zst"].Data[:9] }, errs.Internal},
		{"missing", func(m fstest.MapFS) { delete(m, Guest+".zst") }, errs.Internal},
		{"not in the manifest", func(m fstest.MapFS) { m[manifestName].Data = []byte(`{}`) }, errs.InvalidConfig},
		{"short hash", func(m fstest.MapFS) { m[manifestName].Data = []byte(`{"berth-runtime": {"sha256": "ab"}}`) }, errs.InvalidConfig},
		{"no manifest", func(m fstest.MapFS) { delete(m, manifestName) }, errs.Internal},
	} {
		t.Run(tt.name, func(t *testing.T) {
			bundled, dir := packed(t), t.TempDir()
			tt.damage(bundled)
			if p, err := locate(Options{Dir: dir}, "/nowhere", bundled); !errs.Is(err, tt.want) {
				t.Errorf("locate = %+v, %v; want %s", p, err, tt.want)
			}
			left, err := filepath.Glob(filepath.Join(dir, "bin", "*", ".*"))
			if err != nil || len(left) > 0 {
				t.Errorf("temporary files left: %v, %v", left, err)
			}
		})
	}
}

func TestLocateOrder(t *testing.T) {
	beside, named := t.TempDir(), t.TempDir()
	for dir, word := range map[string]string{beside: "beside", named: "named"} {
		write(t, filepath.Join(dir, Runtime), program(word), 0o755)
		write(t, filepath.Join(dir, Guest), program(word), 0o755)
	}
	write(t, filepath.Join(named, "plain"), program("x"), 0o644)
	bundled := packed(t)
	for _, tt := range []struct {
		name    string
		opts    Options
		beside  string
		bundled bool
		want    string // what the runtime says
		wantErr errs.Code
	}{
		{name: "beside", beside: beside, want: "beside"},
		{name: "the bundle before beside", opts: Options{Dir: t.TempDir()}, beside: beside, bundled: true, want: "runtime"},
		{name: "named before the bundle", opts: Options{Dir: t.TempDir(), Runtime: filepath.Join(named, Runtime), Guest: filepath.Join(named, Guest)}, beside: beside, bundled: true, want: "named"},
		{name: "one named", opts: Options{Runtime: filepath.Join(named, Runtime)}, beside: beside, want: "named"},
		{name: "nowhere", beside: t.TempDir(), wantErr: errs.InvalidConfig},
		{name: "named and absent, though one is beside", opts: Options{Runtime: filepath.Join(named, "absent")}, beside: beside, wantErr: errs.InvalidConfig},
		{name: "named and not runnable", opts: Options{Runtime: filepath.Join(named, "plain")}, beside: beside, wantErr: errs.InvalidConfig},
		{name: "named and a folder", opts: Options{Runtime: named}, beside: beside, wantErr: errs.InvalidConfig},
		{name: "bundled without a folder", beside: beside, bundled: true, wantErr: errs.InvalidConfig},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var p Programs
			var err error
			if tt.bundled {
				p, err = locate(tt.opts, tt.beside, bundled)
			} else {
				p, err = locate(tt.opts, tt.beside, nil)
			}
			if errs.CodeOf(err) != tt.wantErr {
				t.Fatalf("locate: %v, want code %q", err, tt.wantErr)
			}
			if tt.wantErr == "" {
				says(t, p.Runtime, tt.want)
			}
		})
	}
}

func TestPackIsReproducible(t *testing.T) {
	a, b := packed(t), packed(t)
	for name := range a {
		if !bytes.Equal(a[name].Data, b[name].Data) {
			t.Errorf("%s differs between two packings of the same programs", name)
		}
	}
}
