//go:build linux

package guest

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/tarball"
)

func noise(n int) []byte {
	b := make([]byte, n)
	var seed [32]byte
	_, _ = rand.NewChaCha8(seed).Read(b)
	return b
}

func hashOf(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}

// left lists what is in a directory.
func left(t *testing.T, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

func TestContent(t *testing.T) {
	r := newRig(t)
	for _, size := range []int{0, 1, contentBuffer - 1, contentBuffer, contentBuffer + 1, 5<<20 + 7} {
		want := noise(size)
		for _, length := range []int64{int64(size), -1} {
			w, err := r.PutContent(t.Context(), ContentPut{Path: r.path("deep/er/file"), User: other, Length: length, SHA256: hashOf(want)}, bytes.NewReader(want))
			if err != nil || w.SHA256 != hashOf(want) || w.Bytes != int64(size) || w.Info.Size != int64(size) || w.Info.Mode != "0644" {
				t.Fatalf("%d bytes: %+v, %v", size, w, err)
			}
		}
		for _, q := range []ContentQuery{{Length: -1}, {Offset: 1, Length: 10}, {Offset: -3, Length: -1}, {Offset: int64(size), Length: -1}, {Offset: int64(size) + 5, Length: 7}, {Length: 0}} {
			q.Path, q.User = r.path("deep/er/file"), other
			c, err := r.Content(t.Context(), q)
			if err != nil {
				t.Fatal(err)
			}
			got, err := io.ReadAll(c)
			_ = c.Close()
			from := min(q.Offset, int64(size))
			if q.Offset < 0 {
				from = max(int64(size)+q.Offset, 0)
			}
			to := int64(size)
			if q.Length >= 0 {
				to = min(to, from+q.Length)
			}
			if err != nil || !bytes.Equal(got, want[from:to]) || c.Info.Size != int64(size) {
				t.Errorf("%d bytes, %+v: got %d, %v", size, q, len(got), err)
			}
		}
	}
	if got := left(t, r.path("deep/er")); len(got) != 1 {
		t.Errorf("left beside the file: %q", got)
	}
}

func TestContentRefused(t *testing.T) {
	r := newRig(t)
	write := func(name, data string, mode os.FileMode) {
		t.Helper()
		if err := os.WriteFile(r.path(name), []byte(data), mode); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(r.path(name), mode); err != nil {
			t.Fatal(err)
		}
	}
	write("closed", "secret", 0o600)
	write("old", "as it was", 0o666)
	if err := os.Mkdir(r.path("dir"), 0o777); err != nil {
		t.Fatal(err)
	}
	before := left(t, r.root)
	for name, tt := range map[string]struct {
		put  ContentPut
		code errs.Code
		why  string
	}{
		"no such user":      {ContentPut{Path: r.path("x"), User: "nobody-of-this-name"}, errs.InvalidInput, ""},
		"empty path":        {ContentPut{}, errs.InvalidInput, ""},
		"NUL":               {ContentPut{Path: "a\x00b"}, errs.InvalidInput, ""},
		"a long path":       {ContentPut{Path: "/" + strings.Repeat("a", 4096)}, errs.InvalidInput, ""},
		"a long name":       {ContentPut{Path: r.path(strings.Repeat("a", 300))}, errs.InvalidInput, ""},
		"a directory":       {ContentPut{Path: r.path("dir")}, errs.InvalidInput, "is_directory"},
		"below a file":      {ContentPut{Path: r.path("old/x")}, errs.InvalidInput, "not_directory"},
		"another's":         {ContentPut{Path: r.path("closed"), User: other}, errs.Forbidden, "file_permission"},
		"where one may not": {ContentPut{Path: "/root/x/y", User: other}, errs.Forbidden, "file_permission"},
		"another etag":      {ContentPut{Path: r.path("old"), IfMatch: "x"}, errs.InvalidState, "changed"},
		"gone":              {ContentPut{Path: r.path("none"), IfMatch: "x"}, errs.InvalidState, "changed"},
		"another digest":    {ContentPut{Path: r.path("deep/old"), SHA256: hashOf([]byte("other"))}, errs.InvalidInput, "digest_mismatch"},
		"a bad mode":        {ContentPut{Path: r.path("x"), Mode: "9"}, errs.InvalidInput, ""},
	} {
		tt.put.Length = -1
		_, err := r.PutContent(t.Context(), tt.put, strings.NewReader("new"))
		if e := errs.From(err); err == nil || e.Code != tt.code || e.Reason != tt.why && tt.why != "" {
			t.Errorf("put, %s: %v", name, err)
		}
	}
	for name, tt := range map[string]struct {
		q    ContentQuery
		code errs.Code
	}{
		"nothing there": {ContentQuery{Path: r.path("none")}, errs.NotFound},
		"a directory":   {ContentQuery{Path: r.path("dir")}, errs.InvalidInput},
		"another's":     {ContentQuery{Path: r.path("closed"), User: other}, errs.Forbidden},
		"NUL":           {ContentQuery{Path: "\x00"}, errs.InvalidInput},
		"a device":      {ContentQuery{Path: "/dev/zero"}, errs.InvalidInput},
		"a tar of none": {ContentQuery{Path: r.path("none"), Tar: true}, errs.NotFound},
		"of a file":     {ContentQuery{Path: r.path("old"), Tar: true}, errs.InvalidInput},
	} {
		tt.q.Length = -1
		if c, err := r.Content(t.Context(), tt.q); !errs.Is(err, tt.code) {
			t.Errorf("get, %s: %v", name, err)
			if err == nil {
				_ = c.Close()
			}
		}
	}
	// A body whose digest is another breaks off on this side, and the guest removes what it had made for it as soon as it sees that.
	got := left(t, r.root)
	for until := time.Now().Add(10 * time.Second); !slices.Equal(got, before) && time.Now().Before(until); got = left(t, r.root) {
		time.Sleep(5 * time.Millisecond)
	}
	if !slices.Equal(got, before) {
		t.Errorf("refused puts left %q, before %q", got, before)
	}
	if b, err := os.ReadFile(r.path("old")); err != nil || string(b) != "as it was" {
		t.Errorf("the file is %q, %v", b, err)
	}
}

// A body that breaks off leaves what was there, and nothing else.
func TestContentBreaksOff(t *testing.T) {
	r := newRig(t)
	if err := os.WriteFile(r.path("old"), []byte("as it was"), 0o600); err != nil {
		t.Fatal(err)
	}
	broken := errors.New("the caller has gone")
	clean := func() {
		t.Helper()
		for end := time.Now().Add(10 * time.Second); ; time.Sleep(5 * time.Millisecond) { // the guest sees it a moment later
			got := left(t, r.root)
			if len(got) == 1 && got[0] == "old" {
				return
			}
			if time.Now().After(end) {
				t.Fatalf("left: %q", got)
			}
		}
	}
	for _, name := range []string{"old", "new", "deep/er/new"} {
		for i, length := range []int64{-1, 10 << 20} {
			// Each has directories of its own: those of a put that goes on are not removed under it.
			name := strings.Replace(name, "deep", fmt.Sprint("deep", i), 1)
			_, err := r.PutContent(t.Context(), ContentPut{Path: r.path(name), Length: length}, io.MultiReader(bytes.NewReader(noise(3<<20)), iotest.ErrReader(broken)))
			if !errors.Is(err, broken) {
				t.Errorf("%s: %v", name, err)
			}
			clean()
		}
		// One that ends too early is found by the transport.
		if _, err := r.PutContent(t.Context(), ContentPut{Path: r.path(name), Length: 10 << 20}, bytes.NewReader(noise(1<<20))); err == nil {
			t.Errorf("%s: a short body was taken", name)
		}
		clean()
	}
	if b, err := os.ReadFile(r.path("old")); err != nil || string(b) != "as it was" {
		t.Errorf("the file is %q, %v", b, err)
	}
}

// What a put keeps of the file that it replaces, and where it cannot rename.
func TestContentPlace(t *testing.T) {
	r := newRig(t)
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(os.WriteFile(r.path("mine"), []byte("x"), 0o640))
	must(os.Chown(r.path("mine"), 65534, 65534))
	must(os.Symlink("mine", r.path("link")))
	must(os.Mkdir(r.path("closed"), 0o755))
	must(os.WriteFile(r.path("closed/theirs"), []byte("x"), 0o666))
	must(os.Chmod(r.path("closed/theirs"), 0o666))
	for _, name := range []string{"link", "closed/theirs"} {
		if _, err := r.PutContent(t.Context(), ContentPut{Path: r.path(name), User: other, Length: -1}, strings.NewReader("new "+name)); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if b, err := os.ReadFile(r.path(name)); err != nil || string(b) != "new "+name {
			t.Errorf("%s: %q, %v", name, b, err)
		}
	}
	if fi, err := os.Lstat(r.path("link")); err != nil || fi.Mode().Type() != os.ModeSymlink {
		t.Errorf("the link was replaced: %v, %v", fi, err)
	}
	if fi, err := os.Stat(r.path("mine")); err != nil || fi.Mode().Perm() != 0o640 || sysStat(fi).Uid != 65534 {
		t.Errorf("mode or owner: %v, %v", fi, err)
	}
	if got := left(t, r.path("closed")); len(got) != 1 {
		t.Errorf("left: %q", got)
	}
}

func TestContentFolder(t *testing.T) {
	r := newRig(t)
	src := r.path("src")
	for _, dir := range []string{"a/empty", "b"} {
		if err := os.MkdirAll(filepath.Join(src, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	odd := "b/odd \xff\n'☃"
	for name, data := range map[string]string{"a/one": "1", odd: "2"} {
		p := filepath.Join(src, name)
		if err := errors.Join(os.WriteFile(p, []byte(data), 0o750), os.Chown(p, 65534, 65534)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("../a/one", filepath.Join(src, "b/link")); err != nil {
		t.Fatal(err)
	}
	c, err := r.Content(t.Context(), ContentQuery{Path: src, User: other, Tar: true, Length: -1})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	w, err := r.PutContent(t.Context(), ContentPut{Path: r.path("made/copy"), User: other, Tar: true, Length: -1}, c)
	if err != nil || w.Entries != 7 || w.Bytes != 2 || !w.Made {
		t.Fatalf("%+v, %v", w, err)
	}
	for name, want := range map[string]string{"a/one": "1", odd: "2", "b/link": "1"} {
		fi, err := os.Stat(r.path("made/copy/" + name))
		if err != nil || fi.Mode().Perm() != 0o750 || sysStat(fi).Uid != 65534 {
			t.Errorf("%q: %v, %v", name, fi, err)
		}
		if b, err := os.ReadFile(r.path("made/copy/" + name)); err != nil || string(b) != want {
			t.Errorf("%q: %q, %v", name, b, err)
		}
	}
	if !isDir(r.path("made/copy/a/empty")) {
		t.Error("an empty folder is missing")
	}
	// What is no tar stream, or half of one.
	var whole bytes.Buffer
	if _, err := tarball.Pack(&whole, src, nil); err != nil {
		t.Fatal(err)
	}
	for _, bad := range []string{"no tar at all" + strings.Repeat(".", 1000), whole.String()[:700]} {
		if _, err := r.PutContent(t.Context(), ContentPut{Path: r.path("bad"), User: other, Tar: true, Length: -1}, strings.NewReader(bad)); !errs.Is(err, errs.InvalidInput) {
			t.Errorf("%.20q: %v", bad, err)
		}
	}
}
