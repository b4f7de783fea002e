package inputs

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"

	"github.com/google/go-cmp/cmp"

	"github.com/berthrun/berth/internal/errs"
)

// spool is a file for contents.
func spool(t testing.TB) Spool {
	t.Helper()
	f, err := os.CreateTemp(t.TempDir(), "spool")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

// archived makes a tar stream of lines: "dir/" is a folder, "a=text" a file, "l->target" a symlink, "h=>target" a hard link, each with " mode" at the end
// where it is not 0644.
func archived(t testing.TB, lines ...string) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for i, l := range lines {
		h := &tar.Header{Mode: 0o644, Format: tar.FormatPAX, ModTime: time.Unix(int64(i)*1000, 0), Uid: i + 500}
		if name, mode, ok := strings.Cut(l, " mode "); ok {
			l = name
			fmt.Sscanf(mode, "%o", &h.Mode)
		}
		content := ""
		if name, target, ok := strings.Cut(l, "->"); ok {
			h.Typeflag, h.Name, h.Linkname = tar.TypeSymlink, name, target
		} else if name, target, ok := strings.Cut(l, "=>"); ok {
			h.Typeflag, h.Name, h.Linkname = tar.TypeLink, name, target
		} else if name, text, ok := strings.Cut(l, "="); ok {
			h.Typeflag, h.Name, h.Size, content = tar.TypeReg, name, int64(len(text)), text
		} else {
			h.Typeflag, h.Name = tar.TypeDir, l
		}
		if err := w.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(w, content); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func tree(t testing.TB, lines ...string) *Tree {
	t.Helper()
	tr, err := Read(t.Context(), bytes.NewReader(archived(t, lines...)), spool(t), Options{})
	if err != nil {
		t.Fatal(err)
	}
	return tr
}

// placed renders what is placed, as archived takes it, with the destination's own folders in brackets.
func placed(t testing.TB, s *Selection, p Place) []string {
	t.Helper()
	var out []string
	err := s.Each(p, func(e Placed) error {
		l := e.Path
		switch {
		case e.OnlyMissing:
			l = "[" + l + "]"
		case e.Kind == Dir:
			l += "/"
		case e.Kind == Link:
			l += "->" + e.Target
		default:
			b, err := io.ReadAll(e.Content)
			if err != nil || int64(len(b)) != e.Size {
				t.Errorf("%s: %d bytes of %d, %v", e.Path, len(b), e.Size, err)
			}
			l += "=" + string(b)
		}
		if e.Mode != 0o644 && e.Kind == File || e.Mode != 0o755 && e.Kind == Dir {
			l += fmt.Sprintf(" mode %o", e.Mode)
		}
		out = append(out, l)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func TestSelect(t *testing.T) {
	tr := tree(
		t, "a.txt=A", "b.txt=B mode 600", "run.sh=#! mode 755", "dir/ mode 750", "dir/x=X", "dir/sub/ mode 755", "dir/sub/y.md=Y", "dir/link->../a.txt", "dir/out->/etc/passwd",
		"other/ mode 755", "other/x=other", "tolink->dir", "tofile->dir/x", "up->../../../a.txt", "abs->/dir/sub", "arr[0].txt=bracket", "deep/er/file=F", "same=>a.txt",
	)
	tests := map[string]struct {
		q    Query
		p    Place
		want []string
	}{
		"file to name":            {Query{Sources: []string{"a.txt"}}, Place{Dest: "/x/new"}, []string{"[/x]", "/x/new=A"}},
		"file to folder":          {Query{Sources: []string{"a.txt"}}, Place{Dest: "/x", Folder: true}, []string{"[/x]", "/x/a.txt=A"}},
		"file to what is there":   {Query{Sources: []string{"b.txt"}}, Place{Dest: "/x", There: true}, []string{"[/x]", "/x/b.txt=B mode 600"}},
		"to the root":             {Query{Sources: []string{"a.txt"}}, Place{Dest: "/", Folder: true}, []string{"/a.txt=A"}},
		"contents of a folder":    {Query{Sources: []string{"dir"}}, Place{Dest: "/x"}, []string{"[/x]", "/x/link->../a.txt", "/x/out->/etc/passwd", "/x/sub/", "/x/sub/y.md=Y", "/x/x=X"}},
		"absolute is the root":    {Query{Sources: []string{"/dir/sub/"}}, Place{Dest: "/x"}, []string{"[/x]", "/x/y.md=Y"}},
		"dots stay inside":        {Query{Sources: []string{"../../../a.txt", "dir/../../b.txt"}}, Place{Dest: "/x", Folder: true}, []string{"[/x]", "/x/a.txt=A", "/x/b.txt=B mode 600"}},
		"pattern":                 {Query{Sources: []string{"*.txt"}}, Place{Dest: "/x", Folder: true}, []string{"[/x]", "/x/a.txt=A", "/x/arr[0].txt=bracket", "/x/b.txt=B mode 600"}},
		"pattern in the middle":   {Query{Sources: []string{"d?r/*/*.md"}}, Place{Dest: "/x", Folder: true}, []string{"[/x]", "/x/y.md=Y"}},
		"bracket":                 {Query{Sources: []string{"arr[[]0].txt"}}, Place{Dest: "/x", Folder: true}, []string{"[/x]", "/x/arr[0].txt=bracket"}},
		"pattern of nothing":      {Query{Sources: []string{"a.txt", "none*"}}, Place{Dest: "/x", Folder: true}, []string{"[/x]", "/x/a.txt=A"}},
		"a link to a folder":      {Query{Sources: []string{"tolink"}, Exclude: []string{"sub", "link", "out"}}, Place{Dest: "/x"}, []string{"[/x]", "/x/x=X"}},
		"through a link":          {Query{Sources: []string{"tolink/sub/y.md"}}, Place{Dest: "/x/", Folder: true}, []string{"[/x]", "/x/y.md=Y"}},
		"a link keeps its name":   {Query{Sources: []string{"tofile"}}, Place{Dest: "/x", Folder: true}, []string{"[/x]", "/x/tofile=X"}},
		"a link cannot leave":     {Query{Sources: []string{"up"}}, Place{Dest: "/x", Folder: true}, []string{"[/x]", "/x/up=A"}},
		"an absolute link":        {Query{Sources: []string{"abs"}}, Place{Dest: "/x"}, []string{"[/x]", "/x/y.md=Y"}},
		"a hard link":             {Query{Sources: []string{"same"}}, Place{Dest: "/x/s"}, []string{"[/x]", "/x/s=A"}},
		"later sources win":       {Query{Sources: []string{"dir/x", "other"}}, Place{Dest: "/x", Folder: true}, []string{"[/x]", "/x/x=other"}},
		"exclude":                 {Query{Sources: []string{"dir"}, Exclude: []string{"**/*.md", "x", "link", "out"}}, Place{Dest: "/x"}, []string{"[/x]", "/x/sub/"}},
		"exclude but":             {Query{Sources: []string{"."}, Exclude: []string{"*", "!dir/sub/*.md", "!a.txt"}}, Place{Dest: "/x"}, []string{"[/x]", "/x/a.txt=A", "/x/dir/ mode 750", "/x/dir/sub/", "/x/dir/sub/y.md=Y"}},
		"exclude among files":     {Query{Sources: []string{"*.txt"}, Exclude: []string{"b.*"}}, Place{Dest: "/x", Folder: true}, []string{"[/x]", "/x/a.txt=A", "/x/arr[0].txt=bracket"}},
		"mode for all":            {Query{Sources: []string{"dir"}, Exclude: []string{"x", "out"}}, Place{Dest: "/x", Mode: new(int64(0o700))}, []string{"[/x]", "/x/link->../a.txt", "/x/sub/ mode 700", "/x/sub/y.md=Y mode 700"}},
		"parents":                 {Query{Sources: []string{"deep/er/file", "dir/sub"}, Parents: true}, Place{Dest: "/x", Folder: true}, []string{"[/x]", "/x/deep/", "/x/deep/er/", "/x/deep/er/file=F", "/x/dir/", "/x/dir/sub/", "/x/dir/sub/y.md=Y"}},
		"parents from a pivot":    {Query{Sources: []string{"deep/./er/file"}, Parents: true}, Place{Dest: "/x", Folder: true}, []string{"[/x]", "/x/er/", "/x/er/file=F"}},
		"folders on the way down": {Query{Sources: []string{"a.txt"}}, Place{Dest: "/x/y/z", Folder: true}, []string{"[/x]", "[/x/y]", "[/x/y/z]", "/x/y/z/a.txt=A"}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			s, err := tr.Select(t.Context(), tt.q)
			if err != nil {
				t.Fatal(err)
			}
			tt.p.Dest = filepath.Clean(tt.p.Dest)
			if diff := cmp.Diff(tt.want, placed(t, s, tt.p)); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func refused(t *testing.T, err error, message string) {
	t.Helper()
	var e *errs.Error
	if !errors.As(err, &e) || e.Code != errs.InvalidInput || e.Suggestion == "" || !strings.Contains(e.Message, message) {
		t.Errorf("got %v, want INVALID_INPUT with %q and a suggestion", err, message)
	}
}

func TestSelectRefuses(t *testing.T) {
	tr := tree(t, "a=A", "b=B", "loop->loop", "dangling->nowhere", "outside->/etc/passwd", "d/x/f=1", "e/x=2", "bad.tar.xz=\xfd7zXZ\x00", "fifth->a/b")
	for src, message := range map[string]string{
		"none": "none is not in", "a/b": "a/b is not in", "loop": "too many symlinks", "dangling": "dangling is not in", "outside": "outside is not in",
		"d*ling": "a symlink to what is not", "[": "cannot be read", "d e": "once as a folder", "bad.tar.xz": "xz", "fifth": "is not in",
	} {
		_, err := tr.Select(t.Context(), Query{Sources: strings.Fields(src), Unpack: true})
		refused(t, err, message)
	}
	s, err := tr.Select(t.Context(), Query{Sources: []string{"a", "b"}})
	if err != nil {
		t.Fatal(err)
	}
	refused(t, s.Each(Place{Dest: "/x"}, func(Placed) error { return nil }), "several files")
	if _, err := NewIgnore([]string{"[a"}); err == nil {
		t.Error("a pattern that cannot be read is taken")
	}
}

// TestReadRefuses: what tries to leave the archive, and what is no file.
func TestReadRefuses(t *testing.T) {
	special := func(kind byte) []byte {
		var b bytes.Buffer
		w := tar.NewWriter(&b)
		if err := w.WriteHeader(&tar.Header{Name: "dev", Typeflag: kind, Mode: 0o600}); err != nil {
			t.Fatal(err)
		}
		w.Close()
		return b.Bytes()
	}
	whole := archived(t, "a="+strings.Repeat("x", 2000))
	tests := map[string]struct {
		archive []byte
		message string
	}{
		"dots":                {archived(t, "../a=x"), "leads out"},
		"dots inside":         {archived(t, "a/../../b=x"), "leads out"},
		"only dots":           {archived(t, "..->x"), "leads out"},
		"absolute dots":       {archived(t, "/../etc/passwd=x"), "leads out"},
		"hard link out":       {archived(t, "a=>../../etc/passwd"), "leads out"},
		"absolute hard link":  {archived(t, "a=>/etc/passwd"), "no file before it"},
		"hard link to folder": {archived(t, "d/", "a=>d"), "no file before it"},
		"through a symlink":   {archived(t, "l->/etc", "l/passwd=x"), "goes through what is no folder"},
		"symlink afterwards":  {archived(t, "l/passwd=x", "l->/etc"), "goes through what is no folder"},
		"through a file":      {archived(t, "f=1", "f/g=2"), "goes through what is no folder"},
		"character device":    {special(tar.TypeChar), "device"},
		"block device":        {special(tar.TypeBlock), "device"},
		"pipe":                {special(tar.TypeFifo), "device"},
		"long name":           {archived(t, strings.Repeat("n", 256)+"=x"), "256 bytes"},
		"long path":           {archived(t, strings.Repeat("n/", 2100)+"x=x"), "bytes"},
		"long target":         {archived(t, "l->"+strings.Repeat("n", 5000)), "target"},
		"no archive":          {[]byte(strings.Repeat("text\n", 500)), "damaged"},
		"empty":               {nil, "empty"},
		"broken off":          {whole[:1500], "damaged"},
		"gzip broken off":     {squeeze(t, whole, "gzip")[:40], "damaged"},
		"zstd broken off":     {squeeze(t, whole, "zstd")[:30], "damaged"},
		"xz":                  {[]byte("\xfd7zXZ\x00abc"), "xz"},
		"too many":            {archived(t, "a=", "b=", "c=", "d=", "e=", "f="), "more than 5"},
		"too many folders":    {archived(t, strings.Repeat("d/", 7)+"x="), "more than 5"},
		"too large":           {archived(t, "a="+strings.Repeat("x", 6000)), "larger"},
		"hard links of size":  {archived(t, "a="+strings.Repeat("x", 3000), "b=>a", "c=>a"), "larger"},
		"a bomb":              {squeeze(t, append(archived(t, "a=x"), make([]byte, 8<<20)...), "gzip"), "larger"},
		"a size that is not":  {sized(t, 1<<40), "larger"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			_, err := Read(t.Context(), bytes.NewReader(tt.archive), spool(t), Options{Limits: Limits{Entries: 5, Bytes: 5000}})
			refused(t, err, tt.message)
		})
	}
	if tr, err := Read(t.Context(), bytes.NewReader(special(tar.TypeChar)), spool(t), Options{SkipSpecial: true}); err != nil || tr.Len() != 0 {
		t.Errorf("a device is passed over where that is asked for: %v", err)
	}
}

// sized is an archive whose one file is said to be so large.
func sized(t *testing.T, size int64) []byte {
	var b bytes.Buffer
	if err := tar.NewWriter(&b).WriteHeader(&tar.Header{Name: "a", Typeflag: tar.TypeReg, Size: size}); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func squeeze(t testing.TB, plain []byte, how string) []byte {
	t.Helper()
	var b bytes.Buffer
	var w io.WriteCloser = gzip.NewWriter(&b)
	if how == "zstd" {
		w, _ = zstd.NewWriter(&b)
	}
	if _, err := w.Write(plain); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// TestReadTakes: what is unusual and in order.
func TestReadTakes(t *testing.T) {
	tr := tree(t, "./", "./a=first", "/abs/file=1", "bytes-\xff\xfe=2", "./a=second", "implied/folder/x=3", "was=file", "was->a", "tick\n\"name=4")
	for name, want := range map[string]string{"a": "second", "abs/file": "1", "bytes-\xff\xfe": "2", "implied/folder/x": "3", "tick\n\"name": "4"} {
		e, ok := tr.Get(name)
		b, _ := io.ReadAll(tr.Open(e))
		if !ok || string(b) != want {
			t.Errorf("%q is %q, want %q", name, b, want)
		}
	}
	if e, _ := tr.Get("was"); e.Kind != Link {
		t.Errorf("the later of two entries does not count: %+v", e)
	}
	if e, _ := tr.Get("implied"); e.Kind != Dir || e.Mode != 0o755 {
		t.Errorf("a folder that only names imply: %+v", e)
	}
	plain := archived(t, "a=1")
	for _, how := range []string{"gzip", "zstd"} {
		if tr, err := Read(t.Context(), bytes.NewReader(squeeze(t, plain, how)), spool(t), Options{}); err != nil || tr.Len() != 1 {
			t.Errorf("%s: %v", how, err)
		}
	}
}

// TestDigestKeeps is symptom 26: the digest depends on no time, owner or order.
func TestDigestKeeps(t *testing.T) {
	digest := func(q Query, lines ...string) string {
		s, err := tree(t, lines...).Select(t.Context(), q)
		if err != nil {
			t.Fatal(err)
		}
		return s.Digest()
	}
	all := Query{Sources: []string{"."}}
	// archived gives each line another time and owner by its place.
	if digest(all, "a=1", "d/", "d/b=2", "l->a") != digest(all, "l->a", "d/b=2", "a=1", "d/") {
		t.Error("order, time or owner is in the digest")
	}
	if one := (Query{Sources: []string{"a"}}); digest(one, "a=1", "b=1") != digest(one, "a=1", "b=2") {
		t.Error("what is not selected is in the digest")
	}
	seen := map[string]string{}
	for _, lines := range []string{"a=1", "a=2", "b=1", "a=1 mode 755", "a->1", "a/", "a/b=1", "a=", "a=1|b=", "a=1|b->", "ab=", "a/ mode 700"} {
		var d string
		if strings.HasSuffix(lines, "->") {
			lines += "x"
		}
		d = digest(all, strings.Split(lines, "|")...)
		if other, ok := seen[d]; ok {
			t.Errorf("%q and %q have one digest", lines, other)
		}
		seen[d] = lines
	}
}

func TestUnpack(t *testing.T) {
	inner := archived(t, "in/file=I mode 755", "link->in/file")
	tr := tree(t, "plain.tar="+string(inner), "z.tar.gz="+string(squeeze(t, inner, "gzip")), "text.gz="+string(squeeze(t, []byte(strings.Repeat("no archive ", 100)), "gzip")), "bad.tar="+string(archived(t, "../x=1")))
	want := []string{"[/x]", "/x/in/", "/x/in/file=I mode 755", "/x/link->in/file"}
	for _, src := range []string{"plain.tar", "z.tar.gz", "plain.tar"} {
		s, err := tr.Select(t.Context(), Query{Sources: []string{src}, Unpack: true})
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, placed(t, s, Place{Dest: "/x"})); diff != "" {
			t.Error(diff)
		}
	}
	s, err := tr.Select(t.Context(), Query{Sources: []string{"text.gz"}, Unpack: true})
	if err != nil || s.Len() != 1 || !s.items[0].single {
		t.Errorf("what is no archive is copied as it is: %v", err)
	}
	_, err = tr.Select(t.Context(), Query{Sources: []string{"bad.tar"}, Unpack: true})
	refused(t, err, "leads out")
}

// TestWriteTar reads back what is written, by Read itself and by its headers.
func TestWriteTar(t *testing.T) {
	tr := tree(t, "d/ mode 700", "d/a=A", "l->d/a", "bytes-\xff=B")
	s, err := tr.Select(t.Context(), Query{Sources: []string{"."}})
	if err != nil {
		t.Fatal(err)
	}
	var b, again bytes.Buffer
	p := Place{Dest: "/opt/app", Folder: true, UID: 7, GID: 8}
	if err := errors.Join(s.WriteTar(&b, p), s.WriteTar(&again, p)); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(b.Bytes(), again.Bytes()) {
		t.Error("the same selection makes other bytes")
	}
	var got []string
	for r := tar.NewReader(&b); ; {
		h, err := r.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, fmt.Sprintf("%s %c %o %d:%d %s%s", h.Name, h.Typeflag, h.Mode, h.Uid, h.Gid, h.Linkname, h.PAXRecords[OnlyMissing]))
	}
	want := []string{"opt/ 5 755 7:8 1", "opt/app/ 5 755 7:8 1", "opt/app/bytes-\xff 0 644 7:8 ", "opt/app/d/ 5 700 7:8 ", "opt/app/d/a 0 644 7:8 ", "opt/app/l 2 777 7:8 d/a"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

// TestHundredThousand: so many files are taken, and a part of them is found at once.
func TestHundredThousand(t *testing.T) {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	const n = 100_000
	for i := range n {
		if err := w.WriteHeader(&tar.Header{Name: fmt.Sprintf("d%d/f%d", i%100, i), Typeflag: tar.TypeReg, Mode: 0o644}); err != nil {
			t.Fatal(err)
		}
	}
	w.Close()
	tr, err := Read(t.Context(), &b, spool(t), Options{})
	if err != nil {
		t.Fatal(err)
	}
	if tr.Len() != n+100 {
		t.Errorf("%d entries", tr.Len())
	}
	s, err := tr.Select(t.Context(), Query{Sources: []string{"d1?"}})
	if err != nil || s.Len() != n/10 {
		t.Errorf("%d selected, %v", s.Len(), err)
	}
}

func write(t *testing.T, dir string, lines ...string) {
	t.Helper()
	for _, l := range lines {
		name, text, _ := strings.Cut(l, "=")
		file := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

func TestPack(t *testing.T) {
	one, two := t.TempDir(), t.TempDir()
	files := []string{"a.txt=A", "Dockerfile=FROM x", "node_modules/m/index.js=1", "src/keep.md=K", "src/drop.tmp=D", "docs/x.md=X", "docs/only.txt=O", "bytes-\xff=B", "secret/key=k"}
	write(t, one, files...)
	slices.Reverse(files)
	write(t, two, files...)
	for _, dir := range []string{one, two} {
		if err := errors.Join(os.Symlink("/etc/passwd", filepath.Join(dir, "l")), os.Chmod(filepath.Join(dir, "a.txt"), 0o755)); err != nil {
			t.Fatal(err)
		}
		write(t, dir, ".dockerignore=# what stays here\n/node_modules\n**/*.tmp\nsecret\ndocs\n!docs/*.md\n")
	}
	if err := os.Chtimes(filepath.Join(two, "a.txt"), time.Unix(1, 0), time.Unix(2, 0)); err != nil {
		t.Fatal(err)
	}
	pack := func(dir string) []byte {
		ig, err := FindIgnore(dir, filepath.Join(dir, "Dockerfile"))
		if err != nil {
			t.Fatal(err)
		}
		var b bytes.Buffer
		if _, err := Pack(&b, dir, PackOptions{Ignore: ig}); err != nil {
			t.Fatal(err)
		}
		return b.Bytes()
	}
	if !bytes.Equal(pack(one), pack(two)) {
		t.Error("the same files make other bytes")
	}
	names := func(dir string) string {
		tr, err := Read(t.Context(), bytes.NewReader(pack(dir)), spool(t), Options{})
		if err != nil {
			t.Fatal(err)
		}
		var out []string
		for name := range tr.entries {
			out = append(out, name)
		}
		slices.Sort(out)
		return fmt.Sprintf("%q", out)
	}
	if got, want := names(one), fmt.Sprintf("%q", []string{".dockerignore", "Dockerfile", "a.txt", "bytes-\xff", "docs", "docs/x.md", "l", "src", "src/keep.md"}); got != want {
		t.Errorf("packed %s, want %s", got, want)
	}
	write(t, one, "Dockerfile.dockerignore=*\n!a.txt\n")
	if got := names(one); got != `["a.txt"]` {
		t.Errorf("with a .dockerignore of the Dockerfile's own: %s", got)
	}
}

func FuzzRead(f *testing.F) {
	f.Add(archived(f, "a=1", "d/", "l->a", "h=>a", "d/x=2"))
	f.Add(squeeze(f, archived(f, "../a=1"), "gzip"))
	f.Add(squeeze(f, archived(f, "a=1"), "zstd"))
	dir := f.TempDir()
	f.Fuzz(func(t *testing.T, b []byte) {
		file, err := os.CreateTemp(dir, "spool")
		if err != nil {
			t.Fatal(err)
		}
		defer os.Remove(file.Name())
		defer file.Close()
		tr, err := Read(t.Context(), bytes.NewReader(b), file, Options{Limits: Limits{Entries: 100, Bytes: 1 << 16}})
		if err != nil {
			return
		}
		s, err := tr.Select(t.Context(), Query{Sources: []string{"."}})
		if err != nil {
			t.Fatalf("all of it: %v", err)
		}
		err = s.Each(Place{Dest: "/opt", Folder: true}, func(e Placed) error {
			if e.Path != filepath.Clean(e.Path) || e.Path != "/opt" && !strings.HasPrefix(e.Path, "/opt/") {
				t.Errorf("%q is outside", e.Path)
			}
			if e.Content != nil {
				if n, err := io.Copy(io.Discard, e.Content); err != nil || n != e.Size {
					t.Errorf("%q: %d of %d bytes, %v", e.Path, n, e.Size, err)
				}
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		if err := s.WriteTar(io.Discard, Place{Dest: "/"}); err != nil {
			t.Errorf("write: %v", err)
		}
	})
}
