package tarball

import (
	"archive/tar"
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// archive makes a stream of entries.
func archive(t testing.TB, entries ...tar.Header) *bytes.Buffer {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, h := range entries {
		if h.Typeflag == tar.TypeReg {
			h.Size = 4
		}
		if h.Mode == 0 {
			h.Mode = 0o6755
		}
		if err := w.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
		if h.Typeflag == tar.TypeReg {
			if _, err := w.Write([]byte("evil")); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return &b
}

// world is a folder to unpack into, with neighbours that must stay as they are.
func world(t testing.TB) (dir string, unharmed func()) {
	t.Helper()
	top := t.TempDir()
	dir = filepath.Join(top, "here")
	if err := errors.Join(os.Mkdir(dir, 0o755), os.WriteFile(filepath.Join(top, "neighbour"), []byte("good"), 0o600)); err != nil {
		t.Fatal(err)
	}
	return dir, func() {
		t.Helper()
		entries, err := os.ReadDir(top)
		if err != nil {
			t.Fatal(err)
		}
		if len(entries) != 2 {
			t.Errorf("written outside: %v", entries)
		}
		if b, err := os.ReadFile(filepath.Join(top, "neighbour")); err != nil || string(b) != "good" {
			t.Errorf("the neighbour is %q, %v", b, err)
		}
	}
}

func TestHostile(t *testing.T) {
	reg := func(name string) tar.Header { return tar.Header{Name: name, Typeflag: tar.TypeReg} }
	link := func(name, to string) tar.Header {
		return tar.Header{Name: name, Linkname: to, Typeflag: tar.TypeSymlink}
	}
	for name, entries := range map[string][]tar.Header{
		"up":                  {reg("../neighbour")},
		"deep up":             {reg("a/../../neighbour")},
		"absolute":            {reg("/tmp/neighbour")},
		"a folder up":         {{Name: "../new/", Typeflag: tar.TypeDir}},
		"a link's folder":     {link("out", ".."), reg("out/neighbour")},
		"an absolute link":    {link("out", "/tmp"), reg("out/neighbour")},
		"over links":          {link("a", "."), link("a/b", ".."), reg("a/b/neighbour")},
		"a folder over links": {link("out", "../"), {Name: "out/new/", Typeflag: tar.TypeDir}},
		"a link over links":   {link("out", "../"), link("out/new", "x")},
	} {
		for _, any := range []bool{false, true} {
			dir, unharmed := world(t)
			_, err := Unpack(archive(t, entries...), dir, Options{AnyLink: any})
			if _, is := errors.AsType[*Error](err); !is && (any || !strings.Contains(name, "link")) {
				t.Errorf("%s: %v", name, err)
			}
			unharmed()
		}
	}
	// A link that leads out stands for nothing in the folder; a file through its name replaces it.
	dir, unharmed := world(t)
	if err := os.Symlink("../neighbour", filepath.Join(dir, "mine")); err != nil {
		t.Fatal(err)
	}
	st, err := Unpack(archive(t, link("out", "../neighbour"), reg("mine"), tar.Header{Name: "pipe", Typeflag: tar.TypeFifo}, tar.Header{Name: "hard", Linkname: "../neighbour", Typeflag: tar.TypeLink}), dir, Options{})
	if err != nil || st.Entries != 1 || strings.Join(st.Skipped, " ") != "out pipe hard" {
		t.Errorf("%+v, %v", st, err)
	}
	if fi, err := os.Lstat(filepath.Join(dir, "mine")); err != nil || fi.Mode() != 0o755 {
		t.Errorf("%v, %v: want a file without more than its permissions", fi, err)
	}
	unharmed()
}

func TestThereAndBack(t *testing.T) {
	src, _ := world(t)
	long := strings.Repeat("x", 250)
	names := []string{"plain", "sp ace/☃", "odd\xff\xfe/\n", long + "/" + long}
	for _, name := range names {
		p := filepath.Join(src, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(p), 0o755), os.WriteFile(p, []byte(name), 0o604)); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(os.Symlink("sp ace/☃", filepath.Join(src, "link")), os.Mkdir(filepath.Join(src, "shut"), 0o500), os.Chmod(src, 0o711)); err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	out, err := Pack(&b, src, nil)
	if err != nil {
		t.Fatal(err)
	}
	whole := b.Bytes()
	dir, unharmed := world(t)
	for range 2 { // over itself
		in, err := Unpack(bytes.NewReader(whole), dir, Options{})
		if err != nil || in.Entries != out.Entries || in.Bytes != out.Bytes {
			t.Fatalf("%+v, %v; packed %+v", in, err, out)
		}
	}
	for _, name := range names {
		fi, err := os.Stat(filepath.Join(dir, name))
		if b, rerr := os.ReadFile(filepath.Join(dir, name)); err != nil || rerr != nil || string(b) != name || fi.Mode() != 0o604 {
			t.Errorf("%q: %q, %v, %v", name, b, fi, err)
		}
	}
	for name, mode := range map[string]os.FileMode{".": os.ModeDir | 0o711, "shut": os.ModeDir | 0o500} {
		if fi, err := os.Stat(filepath.Join(dir, name)); err != nil || fi.Mode() != mode {
			t.Errorf("%s: %v, %v", name, fi, err)
		}
	}
	for cut := range len(whole) / 512 {
		if _, err := Unpack(bytes.NewReader(whole[:cut*512+100]), t.TempDir(), Options{}); err == nil && cut*512 < len(whole)-1024 {
			t.Errorf("%d of %d bytes are taken for a whole", cut*512+100, len(whole))
		}
	}
	unharmed()
}

// Whatever the bytes are, unpacking ends and writes nothing outside.
func FuzzUnpack(f *testing.F) {
	f.Add(archive(f, tar.Header{Name: "a/b", Typeflag: tar.TypeReg}, tar.Header{Name: "l", Linkname: "a", Typeflag: tar.TypeSymlink}).Bytes())
	f.Add(archive(f, tar.Header{Name: "l", Linkname: "..", Typeflag: tar.TypeSymlink}, tar.Header{Name: "l/neighbour", Typeflag: tar.TypeReg}).Bytes())
	f.Add([]byte("no tar"))
	f.Fuzz(func(t *testing.T, b []byte) {
		for _, any := range []bool{false, true} {
			dir, unharmed := world(t)
			_, _ = Unpack(bytes.NewReader(b), dir, Options{AnyLink: any})
			unharmed()
		}
	})
}

// TestOwned unpacks for another owner: what is there is replaced, a folder on the way is left alone, and links are not followed.
func TestOwned(t *testing.T) {
	if os.Geteuid() != 0 {
		if os.Getenv("CI") == "true" {
			t.Fatal("needs root")
		}
		t.Skip("only root gives files away")
	}
	dir, unharmed := world(t)
	for name, text := range map[string]string{"old": "old", "kept/file": "kept"} {
		if err := errors.Join(os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o700), os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("../neighbour", filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	only := map[string]string{"BERTH.onlymissing": "1"}
	st, err := Unpack(archive(t,
		tar.Header{Name: "kept/", Typeflag: tar.TypeDir, Mode: 0o755, PAXRecords: only, Format: tar.FormatPAX},
		tar.Header{Name: "new/", Typeflag: tar.TypeDir, Mode: 0o750, PAXRecords: only, Format: tar.FormatPAX},
		tar.Header{Name: "old", Typeflag: tar.TypeReg, Mode: 0o4755}, tar.Header{Name: "link", Typeflag: tar.TypeReg, Mode: 0o666},
		tar.Header{Name: "new/s", Typeflag: tar.TypeSymlink, Linkname: "../old"},
	), dir, Options{Mode: os.ModePerm | os.ModeSetuid, AnyLink: true, Owner: &Owner{UID: 1234, GID: 4321}, OnlyMissing: "BERTH.onlymissing"})
	if err != nil || st.Entries != 4 {
		t.Fatalf("%+v, %v", st, err)
	}
	unharmed()
	for name, want := range map[string]struct {
		mode os.FileMode
		uid  uint32
	}{"kept": {0o700 | os.ModeDir, 0}, "kept/file": {0o600, 0}, "new": {0o750 | os.ModeDir, 1234}, "old": {0o755 | os.ModeSetuid, 1234}, "link": {0o666, 1234}, "new/s": {0o777 | os.ModeSymlink, 1234}} {
		fi, err := os.Lstat(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		if fi.Mode() != want.mode || fi.Sys().(*syscall.Stat_t).Uid != want.uid {
			t.Errorf("%s has %v of %d", name, fi.Mode(), fi.Sys().(*syscall.Stat_t).Uid)
		}
	}
}
