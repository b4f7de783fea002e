package unpack

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/berthrun/berth/internal/errs"
)

var someTime = time.Unix(1_700_000_000, 123456789)

func root(t testing.TB) {
	t.Helper()
	if os.Geteuid() != 0 {
		if os.Getenv("CI") == "true" {
			t.Fatal("needs root")
		}
		t.Skip("needs root: owners and devices")
	}
}

// entries writes an archive. A header without a type is a file of its Linkname's text.
func entries(t testing.TB, all ...tar.Header) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, h := range all {
		text := ""
		if h.Typeflag == 0 {
			h.Typeflag, text = tar.TypeReg, h.Linkname
			h.Linkname, h.Size = "", int64(len(text))
		}
		if h.Mode == 0 {
			h.Mode = 0o644
			if h.Typeflag == tar.TypeDir {
				h.Mode = 0o755
			}
		}
		if h.ModTime.IsZero() {
			h.ModTime = someTime
		}
		h.Format = tar.FormatPAX
		if err := w.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(w, text); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func file(name, text string) tar.Header { return tar.Header{Name: name, Linkname: text} }
func dir(name string) tar.Header        { return tar.Header{Name: name, Typeflag: tar.TypeDir} }
func link(name, to string) tar.Header {
	return tar.Header{Name: name, Typeflag: tar.TypeSymlink, Linkname: to}
}

func hard(name, to string) tar.Header {
	return tar.Header{Name: name, Typeflag: tar.TypeLink, Linkname: to}
}

var roomy = Options{MaxBytes: 1 << 30, MaxEntries: 200_000}

// tree describes a folder: names with kinds and contents.
func tree(t testing.TB, dir string) map[string]string {
	t.Helper()
	out := map[string]string{}
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, _ := filepath.Rel(dir, path)
		switch {
		case name == ".":
		case d.IsDir():
			out[name] = "dir"
		case d.Type()&fs.ModeSymlink != 0:
			to, _ := os.Readlink(path)
			out[name] = "-> " + to
		case d.Type().IsRegular():
			b, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			out[name] = string(b)
		default:
			out[name] = d.Type().String()
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func TestLayers(t *testing.T) {
	for _, test := range []struct {
		name   string
		layers [][]tar.Header
		want   map[string]string
	}{
		{
			"plain",
			[][]tar.Header{{dir("./"), dir("etc/"), file("etc/a", "1"), file("./b", "2"), file("/c", "3")}},
			map[string]string{"etc": "dir", "etc/a": "1", "b": "2", "c": "3"},
		},
		{"missing folders are made", [][]tar.Header{{file("a/b/c", "1")}}, map[string]string{"a": "dir", "a/b": "dir", "a/b/c": "1"}},
		{
			"the later of two wins",
			[][]tar.Header{{file("a", "1"), file("a", "2"), dir("b"), file("b", "x"), file("c", "x"), dir("c")}},
			map[string]string{"a": "2", "b": "x", "c": "dir"},
		},
		{"whiteout", [][]tar.Header{{file("a/b", "1"), file("a/c", "1")}, {file("a/.wh.b", "")}}, map[string]string{"a": "dir", "a/c": "1"}},
		{"whiteout of a folder", [][]tar.Header{{file("a/b/c", "1")}, {file(".wh.a", "")}}, map[string]string{}},
		{"whiteout of nothing", [][]tar.Header{{file("a/.wh.b", ""), file("x/y/.wh.z", "")}}, map[string]string{}},
		{"a whiteout spares what its own layer has", [][]tar.Header{{file("a", "1")}, {file("a", "2"), file(".wh.a", "")}}, map[string]string{"a": "2"}},
		{
			"opaque",
			[][]tar.Header{{file("a/b", "1"), file("a/d/e", "1")}, {dir("a"), file("a/.wh..wh..opq", ""), file("a/c", "2")}},
			map[string]string{"a": "dir", "a/c": "2"},
		},
		{
			"an opaque mark at the end spares its own layer",
			[][]tar.Header{{file("a/b", "1"), file("a/d/e", "1")}, {file("a/d/f", "2"), file("a/.wh..wh..opq", "")}},
			map[string]string{"a": "dir", "a/d": "dir", "a/d/f": "2"},
		},
		{"aufs's own files", [][]tar.Header{{file(".wh..wh.aufs", ""), dir(".wh..wh.plnk"), file("a", "1")}}, map[string]string{"a": "1"}},
		{
			"through a link of the layer below",
			[][]tar.Header{{dir("usr/lib"), link("lib", "usr/lib")}, {file("lib/a", "1")}},
			map[string]string{"usr": "dir", "usr/lib": "dir", "usr/lib/a": "1", "lib": "-> usr/lib"},
		},
		{
			"an absolute link stays inside",
			[][]tar.Header{{dir("real"), link("lib", "/real"), file("lib/a", "1")}},
			map[string]string{"real": "dir", "real/a": "1", "lib": "-> /real"},
		},
		{"a link upwards stays inside", [][]tar.Header{{link("up", "../../../.."), file("up/a", "1")}}, map[string]string{"up": "-> ../../../..", "a": "1"}},
		{
			"a folder takes the place of a link",
			[][]tar.Header{{dir("real"), link("a", "real"), dir("a"), file("a/b", "1")}},
			map[string]string{"real": "dir", "a": "dir", "a/b": "1"},
		},
		{"a file takes the place of a link", [][]tar.Header{{file("real", "1"), link("a", "real"), file("a", "2")}}, map[string]string{"real": "1", "a": "2"}},
		{
			"a link takes the place of a folder",
			[][]tar.Header{{file("a/b", "1"), dir("c"), link("a", "c"), file("a/d", "2")}},
			map[string]string{"a": "-> c", "c": "dir", "c/d": "2"},
		},
		{"hard links", [][]tar.Header{{file("a", "1"), hard("b", "a"), hard("c", "./b"), hard("a", "b")}}, map[string]string{"a": "1", "b": "1", "c": "1"}},
		{"a hard link to the layer below", [][]tar.Header{{file("x/a", "1")}, {hard("b", "/x/a")}}, map[string]string{"x": "dir", "x/a": "1", "b": "1"}},
		{"a hard link over a folder", [][]tar.Header{{file("a", "1"), file("d/e", "1"), hard("d", "a")}}, map[string]string{"a": "1", "d": "1"}},
		{"a hard link to a link", [][]tar.Header{{link("a", "/etc/passwd"), hard("b", "a")}}, map[string]string{"a": "-> /etc/passwd", "b": "-> /etc/passwd"}},
		{
			"names in bytes",
			[][]tar.Header{{file("caf\xe9", "1"), file("line\nbreak", "2"), file("☃", "3"), file(strings.Repeat("n", 255), "4")}},
			map[string]string{"caf\xe9": "1", "line\nbreak": "2", "☃": "3", strings.Repeat("n", 255): "4"},
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			to := t.TempDir()
			for _, l := range test.layers {
				if _, err := Apply(t.Context(), to, bytes.NewReader(entries(t, l...)), roomy); err != nil {
					t.Fatal(err)
				}
			}
			if diff := cmp.Diff(test.want, tree(t, to)); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// TestRefused: what no image may have, and nothing is written outside of the folder.
func TestRefused(t *testing.T) {
	deep := strings.Repeat("d/", 3000)
	small := Options{MaxBytes: 1000, MaxEntries: 10}
	for _, test := range []struct {
		name string
		all  []byte
		o    Options
		code errs.Code
	}{
		{"dots", entries(t, file("../outside", "x")), roomy, errs.InvalidInput},
		{"dots within", entries(t, dir("a"), file("a/../../outside", "x")), roomy, errs.InvalidInput},
		{"a hard link out", entries(t, hard("a", "../outside")), roomy, errs.InvalidInput},
		{"a hard link through a link out", entries(t, link("l", "../../.."), hard("a", "l/etc/passwd")), roomy, errs.InvalidInput},
		{"a hard link to a folder", entries(t, dir("d"), hard("a", "d")), roomy, errs.InvalidInput},
		{"a hard link to nothing", entries(t, hard("a", "b")), roomy, errs.InvalidInput},
		{"a hard link to the root", entries(t, hard("a", "/")), roomy, errs.InvalidInput},
		{"links in a ring", entries(t, link("a", "b"), link("b", "a"), file("a/c", "x")), roomy, errs.InvalidInput},
		{"a folder below a file", entries(t, file("a", "x"), file("a/b/c", "x")), roomy, errs.InvalidInput},
		{"a folder below a dangling link", entries(t, link("a", "nowhere"), file("a/b", "x")), roomy, errs.InvalidInput},
		{"a long part", entries(t, file(strings.Repeat("n", 256), "x")), roomy, errs.InvalidInput},
		{"a long name", entries(t, file(deep+"f", "x")), roomy, errs.InvalidInput},
		{"a whiteout of dots", entries(t, file("a/.wh...", "")), roomy, errs.InvalidInput},
		{"an owner of no system", entries(t, tar.Header{Name: "a", Linkname: "x", Uid: 1<<32 - 1}), roomy, errs.InvalidInput},
		{"another kind", entries(t, tar.Header{Name: "a", Typeflag: 'Z'}), roomy, errs.InvalidInput},
		{"a root that is a file", entries(t, file(".", "x")), roomy, errs.InvalidInput},
		{"cut short", entries(t, file("a", strings.Repeat("x", 5000)))[:3000], roomy, errs.InvalidInput},
		{"no archive", bytes.Repeat([]byte("no archive "), 200), roomy, errs.InvalidInput},
		{"too many bytes", entries(t, file("a", strings.Repeat("x", 600)), file("b", strings.Repeat("x", 600))), small, errs.LimitExceeded},
		{"too many files", entries(t, many(11)...), small, errs.LimitExceeded},
	} {
		t.Run(test.name, func(t *testing.T) {
			outer := t.TempDir()
			to := filepath.Join(outer, "to")
			if err := errors.Join(os.Mkdir(to, 0o755), os.WriteFile(filepath.Join(outer, "outside"), []byte("mine"), 0o600)); err != nil {
				t.Fatal(err)
			}
			_, err := Apply(t.Context(), to, bytes.NewReader(test.all), test.o)
			if !errs.Is(err, test.code) {
				t.Errorf("got %v (%s), want %s", err, errs.CodeOf(err), test.code)
			}
			checkOutside(t, outer)
		})
	}
}

func checkOutside(t testing.TB, outer string) {
	t.Helper()
	got, err := os.ReadDir(outer)
	if err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(filepath.Join(outer, "outside"))
	if len(got) != 2 || err != nil || string(b) != "mine" {
		t.Errorf("outside of the folder: %v, %q, %v", got, b, err)
	}
}

func many(n int) []tar.Header {
	all := make([]tar.Header, n)
	for i := range all {
		all[i] = file(fmt.Sprintf("d%03d/f%d", i%300, i), "x")
	}
	return all
}

// TestSparse: a hole costs nothing on disk, and counts in full.
func TestSparse(t *testing.T) {
	if _, err := exec.LookPath("tar"); err != nil {
		t.Fatal(err)
	}
	src := t.TempDir()
	f, err := os.Create(filepath.Join(src, "holes"))
	if err != nil {
		t.Fatal(err)
	}
	_, werr := f.WriteAt([]byte("end"), 64<<20)
	if err := errors.Join(werr, f.Truncate(96<<20), f.Close()); err != nil {
		t.Fatal(err)
	}
	for _, format := range []string{"gnu", "pax"} {
		t.Run(format, func(t *testing.T) {
			archive, err := exec.Command("tar", "--format="+format, "-S", "-C", src, "-cf", "-", "holes").Output() //nolint:gosec // fixed words
			if err != nil {
				t.Fatal(err)
			}
			if len(archive) > 1<<20 {
				t.Fatalf("tar wrote %d bytes", len(archive))
			}
			to := t.TempDir()
			res, err := Apply(t.Context(), to, bytes.NewReader(archive), roomy)
			if err != nil || res.Bytes != 96<<20 {
				t.Fatalf("%+v, %v", res, err)
			}
			var st syscall.Stat_t
			if err := syscall.Stat(filepath.Join(to, "holes"), &st); err != nil || st.Size != 96<<20 || st.Blocks*512 > 1<<20 {
				t.Errorf("size %d, on disk %d, %v", st.Size, st.Blocks*512, err)
			}
			_, err = Apply(t.Context(), t.TempDir(), bytes.NewReader(archive), Options{MaxBytes: 90 << 20, MaxEntries: 10})
			if !errs.Is(err, errs.LimitExceeded) {
				t.Errorf("over the limit: %v", err)
			}
		})
	}
}

// TestKept: owners, modes, set-user-id bits, times, capabilities; devices are not made.
func TestKept(t *testing.T) {
	root(t)
	capability := "\x01\x00\x00\x02\x00\x04\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00"
	to := t.TempDir()
	dirTime, fileTime := someTime, someTime.Add(time.Hour)
	res, err := Apply(t.Context(), to, bytes.NewReader(entries(t,
		tar.Header{Name: "d", Typeflag: tar.TypeDir, Mode: 0o2750, Uid: 7, Gid: 8, ModTime: dirTime},
		tar.Header{
			Name: "d/su", Linkname: "x", Mode: 0o4755, Uid: 70000, Gid: 70001, ModTime: fileTime,
			PAXRecords: map[string]string{"SCHILY.xattr.security.capability": capability, "SCHILY.xattr.trusted.overlay.opaque": "y", "SCHILY.xattr.user.mine": "1"},
		},
		tar.Header{Name: "d/link", Typeflag: tar.TypeSymlink, Linkname: "su", Uid: 9, Gid: 10, ModTime: fileTime},
		tar.Header{Name: "d/pipe", Typeflag: tar.TypeFifo, Mode: 0o620, Uid: 3},
		tar.Header{Name: "d/sda", Typeflag: tar.TypeBlock, Devmajor: 8},
		tar.Header{Name: "d/mem", Typeflag: tar.TypeChar, Devmajor: 1, Devminor: 1},
		tar.Header{Name: "d/wh", Typeflag: tar.TypeChar},
	)), roomy)
	if err != nil {
		t.Fatal(err)
	}
	if res.Skipped != 3 || res.Entries != 7 {
		t.Errorf("result %+v", res)
	}
	got := map[string]string{}
	for name := range tree(t, to) {
		var st unix.Stat_t
		if err := unix.Lstat(filepath.Join(to, name), &st); err != nil {
			t.Fatal(err)
		}
		got[name] = fmt.Sprintf("%o %d:%d", st.Mode, st.Uid, st.Gid)
		if name == "d" && st.Mtim.Nano() != dirTime.UnixNano() || name == "d/su" && st.Mtim.Nano() != fileTime.UnixNano() {
			t.Errorf("time of %s: %d", name, st.Mtim.Nano())
		}
	}
	want := map[string]string{"d": "42750 7:8", "d/su": "104755 70000:70001", "d/link": "120777 9:10", "d/pipe": "10620 3:0"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	buf := make([]byte, 100)
	if n, err := unix.Lgetxattr(filepath.Join(to, "d/su"), "security.capability", buf); err != nil || string(buf[:n]) != capability {
		t.Errorf("capability %q, %v", buf[:max(n, 0)], err)
	}
	if n, err := unix.Lgetxattr(filepath.Join(to, "d/su"), "trusted.overlay.opaque", buf); err == nil {
		t.Errorf("an attribute of overlayfs was taken: %q", buf[:n])
	}
}

// TestMany: 100,000 files.
func TestMany(t *testing.T) {
	to := t.TempDir()
	all := many(100_000)
	begun := time.Now()
	res, err := Apply(t.Context(), to, bytes.NewReader(entries(t, all...)), roomy)
	if err != nil || res.Entries != 100_000 {
		t.Fatalf("%+v, %v", res, err)
	}
	t.Logf("%d files in %v", res.Entries, time.Since(begun).Round(time.Millisecond))
	if n := len(tree(t, to)); n != 100_300 {
		t.Errorf("%d names", n)
	}
	if _, err := Apply(t.Context(), t.TempDir(), bytes.NewReader(entries(t, all...)), Options{MaxBytes: 1 << 20, MaxEntries: 999}); !errs.Is(err, errs.LimitExceeded) {
		t.Errorf("one too many: %v", err)
	}
}

func TestCancelled(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Apply(ctx, t.TempDir(), bytes.NewReader(entries(t, file("a", "x"))), roomy); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}

// TestOverlay unpacks where overlayfs shows the layers below, and what it makes is a layer for overlayfs.
func TestOverlay(t *testing.T) {
	root(t)
	dir0 := t.TempDir()
	at := func(n string) string { return filepath.Join(dir0, n) }
	for _, n := range []string{"lower", "upper", "work", "merged", "again"} {
		if err := os.Mkdir(at(n), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := Apply(t.Context(), at("lower"), bytes.NewReader(entries(t, file("keep", "1"), file("gone", "1"), file("d/old", "1"), file("e/f/g", "1"),
		tar.Header{Name: "home", Typeflag: tar.TypeDir, Mode: 0o700, Uid: 5})), roomy); err != nil {
		t.Fatal(err)
	}
	mount := func(to, data string) {
		t.Helper()
		if err := unix.Mount("overlay", to, "overlay", 0, data); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = unix.Unmount(to, unix.MNT_DETACH) })
	}
	mount(at("merged"), "lowerdir="+at("lower")+",upperdir="+at("upper")+",workdir="+at("work"))
	if _, err := Apply(t.Context(), at("merged"), bytes.NewReader(entries(t, file(".wh.gone", ""), dir("d"), file("d/.wh..wh..opq", ""), file("d/new", "2"),
		file("home/x", "2"), hard("e/f/h", "e/f/g"))), roomy); err != nil {
		t.Fatal(err)
	}
	want := map[string]string{"keep": "1", "d": "dir", "d/new": "2", "home": "dir", "home/x": "2", "e": "dir", "e/f": "dir", "e/f/g": "1", "e/f/h": "1"}
	if diff := cmp.Diff(want, tree(t, at("merged"))); diff != "" {
		t.Error(diff)
	}
	if err := unix.Unmount(at("merged"), 0); err != nil {
		t.Fatal(err)
	}
	mount(at("again"), "lowerdir="+at("upper")+":"+at("lower"))
	if diff := cmp.Diff(want, tree(t, at("again"))); diff != "" {
		t.Errorf("as layers:\n%s", diff)
	}
	var st unix.Stat_t
	if err := unix.Stat(at("again/home"), &st); err != nil || st.Mode&0o777 != 0o700 || st.Uid != 5 {
		t.Errorf("a folder that the layer does not name: %o of %d, %v", st.Mode, st.Uid, err)
	}
}

func FuzzLayer(f *testing.F) {
	f.Add(entries(f, dir("a"), file("a/b", "x"), link("l", "/a"), file("l/c", "y"), hard("h", "a/b"), file("a/.wh.b", ""), file("a/.wh..wh..opq", "")))
	f.Add(entries(f, file("../outside", "x")))
	f.Add(entries(f, link("up", "../.."), file("up/outside", "x")))
	f.Add(entries(f, link("a", "b"), link("b", "a"), dir("a"), dir("b/c")))
	f.Add([]byte("no archive"))
	f.Fuzz(func(t *testing.T, archive []byte) {
		outer := t.TempDir()
		to := filepath.Join(outer, "to")
		if err := errors.Join(os.Mkdir(to, 0o755), os.WriteFile(filepath.Join(outer, "outside"), []byte("mine"), 0o600)); err != nil {
			t.Fatal(err)
		}
		res, err := Apply(t.Context(), to, bytes.NewReader(archive), Options{MaxBytes: 1 << 20, MaxEntries: 200})
		if errs.CodeOf(err) == errs.Internal {
			t.Errorf("an error without a code: %v", err)
		}
		if res.Bytes > 1<<20 || res.Entries > 201 {
			t.Errorf("over the limits: %+v", res)
		}
		checkOutside(t, outer)
	})
}

func TestClean(t *testing.T) {
	got := map[string]string{}
	for _, n := range []string{"", "/", "./", "a", "/a//b/", "./a/./b", "a/ b"} {
		c, err := clean(n)
		if err != nil {
			t.Errorf("%q: %v", n, err)
		}
		got[n] = c
	}
	want := map[string]string{"": "", "/": "", "./": "", "a": "a", "/a//b/": "a/b", "./a/./b": "a/b", "a/ b": "a/ b"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}
