package bootstrap

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

func TestUnpackNPMStaysInside(t *testing.T) {
	defer unix.Umask(unix.Umask(0o077)) // modes must not depend on it
	dir := t.TempDir()
	rootfs := filepath.Join(dir, "rootfs")
	if err := os.Mkdir(rootfs, 0o755); err != nil {
		t.Fatal(err)
	}
	root, err := os.OpenRoot(rootfs)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	var buf bytes.Buffer
	zw := gzip.NewWriter(&buf)
	tw := tar.NewWriter(zw)
	for _, f := range []struct {
		name string
		kind byte
		mode int64
	}{
		{"package/package.json", tar.TypeReg, 0o600},
		{"package/bin/npm-cli.js", tar.TypeReg, 0o644},
		{"package/lib/tool", tar.TypeReg, 0o755},
		{"package/../../escape", tar.TypeReg, 0o644},
		{"../escape", tar.TypeReg, 0o644},
		{"package/link", tar.TypeSymlink, 0o777},
		{"alone", tar.TypeReg, 0o644},
	} {
		if err := tw.WriteHeader(&tar.Header{Name: f.name, Typeflag: f.kind, Mode: f.mode, Size: 0, Linkname: "/etc"}); err != nil {
			t.Fatal(err)
		}
	}
	if err := tw.Close(); err != nil {
		t.Fatal(err)
	}
	if err := zw.Close(); err != nil {
		t.Fatal(err)
	}
	if err := unpackNPM(root, &buf); err != nil {
		t.Fatalf("unpackNPM: %v", err)
	}
	got := map[string]fs.FileMode{}
	err = filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		if err != nil || p == dir {
			return err
		}
		info, err := d.Info()
		rel, _ := filepath.Rel(rootfs, p)
		got[rel] = info.Mode()
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	dirMode := fs.ModeDir | 0o755
	want := map[string]fs.FileMode{
		".": fs.ModeDir | 0o700, "usr": dirMode, "usr/local": dirMode, "usr/local/lib": dirMode, "usr/local/lib/node_modules": dirMode, npmHome: dirMode,
		npmHome + "/bin": dirMode, npmHome + "/lib": dirMode,
		npmHome + "/package.json": 0o644, npmHome + "/bin/npm-cli.js": 0o755, npmHome + "/lib/tool": 0o755,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("tree (-want +got):\n%s", diff)
	}
}

func TestAppendAccount(t *testing.T) {
	dir := t.TempDir()
	root, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	if err := root.WriteFile("passwd", []byte("root:x:0:0::/root:/bin/bash\nuserx:x:5:5::/:/bin/sh"), 0o640); err != nil {
		t.Fatal(err)
	}
	if err := appendAccount(root, "passwd", "user:x:1000:1000::/home/user:/bin/bash"); err != nil {
		t.Fatal(err)
	}
	data, err := root.ReadFile("passwd")
	if err != nil {
		t.Fatal(err)
	}
	want := "root:x:0:0::/root:/bin/bash\nuserx:x:5:5::/:/bin/sh\nuser:x:1000:1000::/home/user:/bin/bash\n"
	if diff := cmp.Diff(want, string(data)); diff != "" {
		t.Errorf("accounts (-want +got):\n%s", diff)
	}
	if info, err := root.Stat("passwd"); err != nil || info.Mode().Perm() != 0o640 {
		t.Errorf("mode %v, error %v; want 0640 as before", info.Mode(), err)
	}
	if err := appendAccount(root, "passwd", "user:x:1001:1001::/:/bin/sh"); err == nil {
		t.Error("a second account of the same name was written")
	}
}
