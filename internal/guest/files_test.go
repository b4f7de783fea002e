//go:build linux

package guest

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/berthrun/berth/internal/errs"
	"github.com/google/go-cmp/cmp"
)

// put writes a file for a test to find, not through the guest.
func (r *rig) put(name, text string, mode os.FileMode, uid int) string {
	r.t.Helper()
	p := r.path(name)
	if err := os.MkdirAll(filepath.Dir(p), 0o777); err != nil {
		r.t.Fatal(err)
	}
	if err := os.WriteFile(p, []byte(text), 0o600); err != nil {
		r.t.Fatal(err)
	}
	if err := os.Chown(p, uid, uid); err != nil {
		r.t.Fatal(err)
	}
	if err := os.Chmod(p, mode); err != nil {
		r.t.Fatal(err)
	}
	return p
}

func (r *rig) text(name string) string {
	b, err := os.ReadFile(r.path(name))
	if err != nil {
		return "(" + err.(*os.PathError).Err.Error() + ")"
	}
	return string(b)
}

// Symptom 19, 20: what a write says it wrote is there, at every size up to the limit; above it is refused.
func TestWriteIsThere(t *testing.T) {
	r := newRig(t)
	for _, size := range []int{0, 1, 18 << 10, 96 << 10, 128<<10 + 1, WriteBytes} {
		data := pattern(0, int64(size))
		name := fmt.Sprintf("deep/er/%d", size)
		w, err := r.WriteFile(t.Context(), "", FileWrite{Path: r.path(name), Data: data, User: other})
		if err != nil {
			t.Fatal(err)
		}
		sum := sha256.Sum256(data)
		want := FileWritten{SHA256: hex.EncodeToString(sum[:]), Made: true, Info: FileInfo{
			Name: fmt.Sprint(size), Path: r.path(name), Type: "file", Size: int64(size), Mode: "0644", User: "nobody", Group: "nogroup", ModifiedAt: w.Info.ModifiedAt, ETag: w.Info.ETag,
		}}
		if d := cmp.Diff(want, w); d != "" {
			t.Error(d)
		}
		if r.text(name) != string(data) {
			t.Errorf("%d bytes are not there", size)
		}
	}
	_, err := r.WriteFile(t.Context(), "", FileWrite{Path: r.path("big"), Data: make([]byte, WriteBytes+1)})
	wantCode(t, err, errs.InvalidInput, "too_large")
	if left, _ := filepath.Glob(r.path("*/*/.berth-*")); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

func TestWriteKeepsWhatAFileHas(t *testing.T) {
	r := newRig(t)
	r.put("owned", "old", 0o750, 65534)
	if err := os.Symlink("owned", r.path("link")); err != nil {
		t.Fatal(err)
	}
	// Root writes through a link: the file behind it keeps owner and mode, the link stays one.
	w, err := r.WriteFile(t.Context(), "", FileWrite{Path: r.path("link"), Data: []byte("new"), User: "root"})
	if err != nil {
		t.Fatal(err)
	}
	st, err := r.Stat(t.Context(), r.path("owned"), "")
	if err != nil {
		t.Fatal(err)
	}
	if r.text("owned") != "new" || w.Made || st.Mode != "0750" || st.User != "nobody" || w.Info.Type != "file" || w.Info.Size != 3 {
		t.Errorf("file %q, written %+v, stat %+v", r.text("owned"), w, st)
	}
	// A mode that is asked for is set.
	if w, err = r.WriteFile(t.Context(), "", FileWrite{Path: r.path("owned"), Data: []byte("x"), Mode: "0600"}); err != nil || w.Info.Mode != "0600" {
		t.Errorf("written %+v, %v", w, err)
	}
	// A file of another in a directory that cannot be written to, but itself may: in place.
	r.put("closed/shared", "old", 0o666, 0)
	if err := os.Chmod(r.path("closed"), 0o755); err != nil {
		t.Fatal(err)
	}
	if _, err = r.WriteFile(t.Context(), "", FileWrite{Path: r.path("closed/shared"), Data: []byte("in place"), User: other}); err != nil || r.text("closed/shared") != "in place" {
		t.Errorf("shared %q, %v", r.text("closed/shared"), err)
	}
	// What may not be written to is not replaced either.
	r.put("readonly", "old", 0o444, 65534)
	_, err = r.WriteFile(t.Context(), "", FileWrite{Path: r.path("readonly"), Data: []byte("x"), User: other})
	wantCode(t, err, errs.Forbidden, "file_permission")
}

// A reader sees the old or the new contents, never a part.
func TestWriteIsWhole(t *testing.T) {
	r := newRig(t)
	a, b := bytes.Repeat([]byte("a"), 1<<20), bytes.Repeat([]byte("b"), 1<<20)
	if _, err := r.WriteFile(t.Context(), "", FileWrite{Path: r.path("f"), Data: a}); err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			select {
			case <-done:
				return
			default:
			}
			if got := r.text("f"); got != string(a) && got != string(b) {
				t.Errorf("a reader saw %d bytes", len(got))
				return
			}
		}
	})
	for i := range 20 {
		if _, err := r.WriteFile(t.Context(), "", FileWrite{Path: r.path("f"), Data: [][]byte{b, a}[i%2]}); err != nil {
			t.Fatal(err)
		}
	}
	close(done)
	wg.Wait()
}

func TestAppend(t *testing.T) {
	r := newRig(t)
	for i, want := range []string{"one", "onetwo"} {
		w, err := r.WriteFile(t.Context(), fmt.Sprint("op", i), FileWrite{Path: r.path("f"), Data: []byte([]string{"one", "two"}[i]), Append: true})
		if err != nil {
			t.Fatal(err)
		}
		sum := sha256.Sum256([]byte(want))
		if w.Made != (i == 0) || w.SHA256 != hex.EncodeToString(sum[:]) || r.text("f") != want {
			t.Errorf("written %+v, file %q", w, r.text("f"))
		}
	}
	// A repeated append has one effect, also when it comes at the same time.
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			if _, err := r.WriteFile(t.Context(), "op1", FileWrite{Path: r.path("f"), Data: []byte("two"), Append: true}); err != nil {
				t.Error(err)
			}
			if _, err := r.WriteFile(t.Context(), "op2", FileWrite{Path: r.path("f"), Data: []byte("three"), Append: true}); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if got := r.text("f"); got != "onetwothree" {
		t.Errorf("file = %q", got)
	}
}

// Symptom 21: a call reaches nothing that its user may not, whatever a planted symlink says; and nothing that is no file makes it hang.
func TestPlantedPaths(t *testing.T) {
	r := newRig(t)
	secret := r.put("secret/key", "s3cret", 0o600, 0)
	if err := os.Chmod(r.path("secret"), 0o700); err != nil {
		t.Fatal(err)
	}
	r.put("theirs", "victim", 0o644, 0)
	r.put("mine/own", "", 0o644, 0)
	for link, target := range map[string]string{"file": secret, "dir": r.path("secret"), "victim": r.path("theirs"), "up": "../secret", "loop": "loop"} {
		if err := os.Symlink(target, r.path("mine/"+link)); err != nil {
			t.Fatal(err)
		}
	}
	if err := syscall.Mkfifo(r.path("mine/fifo"), 0o666); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(r.path("mine"), 0o777); err != nil {
		t.Fatal(err)
	}
	ctx := t.Context()
	calls := map[string]func(path string) error{
		"read": func(p string) error { _, err := r.ReadFile(ctx, FileRead{Path: p, User: other}); return err },
		"write": func(p string) error {
			_, err := r.WriteFile(ctx, "", FileWrite{Path: p, User: other, Data: []byte("x")})
			return err
		},
		"append": func(p string) error {
			_, err := r.WriteFile(ctx, "", FileWrite{Path: p, User: other, Data: []byte("x"), Append: true})
			return err
		},
		"edit": func(p string) error {
			_, err := r.EditFile(ctx, "", FileEdit{Path: p, User: other, Old: "s", New: "x"})
			return err
		},
	}
	for name, call := range calls {
		for _, p := range []string{"mine/file", "mine/dir/key", "mine/up/key", "secret/key", "mine/dir/new"} {
			err := call(r.path(p))
			if e := errs.From(err); err == nil || e.Code != errs.Forbidden || e.Reason != "file_permission" {
				t.Errorf("%s %s: %v, want it forbidden", name, p, err)
			}
		}
		if err := call(r.path("mine/loop")); err == nil {
			t.Errorf("%s went through a loop", name)
		}
		if err := call(r.path("mine/fifo")); !errs.Is(err, errs.InvalidInput) {
			t.Errorf("%s of a pipe: %v", name, err)
		}
		if err := call("/dev/null"); !errs.Is(err, errs.InvalidInput) {
			t.Errorf("%s of a device: %v", name, err)
		}
		if err := call(r.path("mine/victim")); name != "read" && !errs.Is(err, errs.Forbidden) && !errs.Is(err, errs.InvalidState) {
			t.Errorf("%s through a link to another's file: %v", name, err)
		}
	}
	if _, err := r.ListFiles(ctx, FileList{Path: r.path("mine/dir"), User: other}); !errs.Is(err, errs.Forbidden) {
		t.Errorf("list: %v", err)
	}
	if _, err := r.MakeDirectory(ctx, "", FileMkdir{Path: r.path("mine/dir/new"), User: other}); !errs.Is(err, errs.Forbidden) {
		t.Errorf("mkdir: %v", err)
	}
	if _, err := r.MoveFile(ctx, "", FileMove{From: r.path("mine/dir/key"), To: r.path("mine/got"), User: other}); !errs.Is(err, errs.Forbidden) {
		t.Errorf("move: %v", err)
	}
	if _, err := r.RemoveFile(ctx, "", FileRemove{Path: r.path("mine/dir/key"), User: other}); !errs.Is(err, errs.Forbidden) {
		t.Errorf("remove: %v", err)
	}
	// Removing a tree removes the links in it, not what they name.
	if removed, err := r.RemoveFile(ctx, "", FileRemove{Path: r.path("mine"), Recursive: true, User: "root"}); err != nil || !removed {
		t.Errorf("remove all: %v", err)
	}
	if r.text("secret/key") != "s3cret" {
		t.Errorf("the secret is %q", r.text("secret/key"))
	}
}

// The credentials of one call are not left on a thread for another.
func TestCredentialsDoNotStay(t *testing.T) {
	r := newRig(t)
	r.put("secret", "s", 0o600, 0)
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			for range 50 {
				user, code := "root", errs.Code("")
				if i%2 == 0 {
					user, code = other, errs.Forbidden
				}
				if _, err := r.ReadFile(t.Context(), FileRead{Path: r.path("secret"), User: user}); errs.CodeOf(err) != code {
					t.Errorf("%s: %v", user, err)
				}
			}
		})
	}
	wg.Wait()
}

func TestRead(t *testing.T) {
	r := newRig(t)
	r.put("f", "one\ntwo\nthree\nlast", 0o644, 0)
	r.put("long", strings.Repeat("x", 100)+"\nend\n", 0o644, 0)
	r.put("empty", "", 0o644, 0)
	type got struct {
		Data         string
		Offset, Next int64
		EOF          bool
		Lines        int64
	}
	for name, tt := range map[string]struct {
		in   FileRead
		want got
	}{
		"whole":                {FileRead{Path: "f"}, got{"one\ntwo\nthree\nlast", 0, 18, true, 0}},
		"part":                 {FileRead{Path: "f", Offset: 4, Limit: 3}, got{"two", 4, 7, false, 0}},
		"to the end":           {FileRead{Path: "f", Offset: 14, Limit: 4}, got{"last", 14, 18, true, 0}},
		"beyond":               {FileRead{Path: "f", Offset: 100}, got{"", 100, 100, true, 0}},
		"one line":             {FileRead{Path: "f", LineStart: 2, LineEnd: 2}, got{"two\n", 4, 8, false, 1}},
		"lines to the end":     {FileRead{Path: "f", LineStart: 3}, got{"three\nlast", 8, 18, true, 2}},
		"first lines":          {FileRead{Path: "f", LineEnd: 2}, got{"one\ntwo\n", 0, 8, false, 2}},
		"last line":            {FileRead{Path: "f", LineStart: 4, LineEnd: 4}, got{"last", 14, 18, true, 1}},
		"lines beyond":         {FileRead{Path: "f", LineStart: 9}, got{"", 18, 18, true, 0}},
		"lines within a limit": {FileRead{Path: "f", LineStart: 1, Limit: 9}, got{"one\ntwo\n", 0, 8, false, 2}},
		"a line over it":       {FileRead{Path: "long", LineStart: 1, Limit: 9}, got{"xxxxxxxxx", 0, 9, false, 1}},
		"last of two":          {FileRead{Path: "long", LineStart: 2, LineEnd: 2}, got{"end\n", 101, 105, true, 1}},
		"empty":                {FileRead{Path: "empty"}, got{"", 0, 0, true, 0}},
		"lines of empty":       {FileRead{Path: "empty", LineStart: 1}, got{"", 0, 0, true, 0}},
	} {
		t.Run(name, func(t *testing.T) {
			tt.in.Path = r.path(tt.in.Path)
			d, err := r.ReadFile(t.Context(), tt.in)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.want, got{string(d.Data), d.Offset, d.Next, d.EOF, d.Lines}); diff != "" {
				t.Error(diff)
			}
		})
	}
	for name, tt := range map[string]struct {
		in     FileRead
		code   errs.Code
		reason string
	}{
		"missing":   {FileRead{Path: r.path("none")}, errs.NotFound, ""},
		"directory": {FileRead{Path: r.root}, errs.InvalidInput, "is_directory"},
		"below one": {FileRead{Path: r.path("f/x")}, errs.InvalidInput, "not_directory"},
		"negative":  {FileRead{Path: r.path("f"), Offset: -1}, errs.InvalidInput, ""},
		"both":      {FileRead{Path: r.path("f"), Offset: 1, LineStart: 1}, errs.InvalidInput, ""},
		"nul":       {FileRead{Path: "a\x00b"}, errs.InvalidInput, ""},
		"no path":   {FileRead{}, errs.InvalidInput, ""},
		"too long":  {FileRead{Path: "/" + strings.Repeat("a/", MaxPathBytes)}, errs.InvalidInput, ""},
		"long name": {FileRead{Path: "/" + strings.Repeat("a", 300)}, errs.InvalidInput, ""},
		"no user":   {FileRead{Path: r.path("f"), User: "who"}, errs.InvalidInput, "cannot_run"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := r.ReadFile(t.Context(), tt.in)
			wantCode(t, err, tt.code, tt.reason)
		})
	}
	// Files that do not know their size.
	if d, err := r.ReadFile(t.Context(), FileRead{Path: "/proc/self/status"}); err != nil || !bytes.HasPrefix(d.Data, []byte("Name:")) || !d.EOF {
		t.Errorf("/proc/self/status: %d bytes, %v", len(d.Data), err)
	}
}

// A file that has changed since it was read is neither read on nor written over.
func TestIfMatch(t *testing.T) {
	r := newRig(t)
	p := r.put("f", "first", 0o644, 0)
	d, err := r.ReadFile(t.Context(), FileRead{Path: p})
	if err != nil {
		t.Fatal(err)
	}
	tag := d.Info.ETag
	if _, err := r.ReadFile(t.Context(), FileRead{Path: p, IfMatch: tag}); err != nil {
		t.Fatalf("an unchanged file: %v", err)
	}
	w, err := r.WriteFile(t.Context(), "", FileWrite{Path: p, Data: []byte("other"), IfMatch: tag})
	if err != nil {
		t.Fatal(err)
	}
	_, err = r.ReadFile(t.Context(), FileRead{Path: p, IfMatch: tag})
	wantCode(t, err, errs.InvalidState, "changed")
	_, err = r.WriteFile(t.Context(), "", FileWrite{Path: p, Data: []byte("x"), IfMatch: tag})
	wantCode(t, err, errs.InvalidState, "changed")
	_, err = r.EditFile(t.Context(), "", FileEdit{Path: p, Old: "other", New: "x", IfMatch: tag})
	wantCode(t, err, errs.InvalidState, "changed")
	if _, err = r.EditFile(t.Context(), "", FileEdit{Path: p, Old: "other", New: "third", IfMatch: w.Info.ETag}); err != nil || r.text("f") != "third" {
		t.Errorf("edit: %v, %q", err, r.text("f"))
	}
	_, err = r.WriteFile(t.Context(), "", FileWrite{Path: r.path("gone"), Data: []byte("x"), IfMatch: tag})
	wantCode(t, err, errs.InvalidState, "changed")

	// Of writers that saw the same file, one wins.
	d, _ = r.ReadFile(t.Context(), FileRead{Path: p})
	var wg sync.WaitGroup
	won := make([]bool, 8)
	for i := range won {
		wg.Go(func() {
			_, err := r.WriteFile(t.Context(), "", FileWrite{Path: p, Data: []byte{byte('a' + i)}, IfMatch: d.Info.ETag})
			won[i] = err == nil
		})
	}
	wg.Wait()
	if n := len(slices.DeleteFunc(won, func(w bool) bool { return !w })); n != 1 {
		t.Errorf("%d writers won", n)
	}
}

func TestEdit(t *testing.T) {
	r := newRig(t)
	for name, tt := range map[string]struct {
		text   string
		in     FileEdit
		want   string
		reason string
	}{
		"once":          {"a b c", FileEdit{Old: "b", New: "x"}, "a x c", ""},
		"to nothing":    {"a b c", FileEdit{Old: "b ", New: ""}, "a c", ""},
		"expected two":  {"b b", FileEdit{Old: "b", New: "xy", Expect: 2}, "xy xy", ""},
		"ambiguous":     {"b b", FileEdit{Old: "b", New: "x"}, "b b", "ambiguous"},
		"fewer":         {"b b", FileEdit{Old: "b", New: "x", Expect: 3}, "b b", "ambiguous"},
		"no match":      {"b b", FileEdit{Old: "B", New: "x"}, "b b", "no_match"},
		"over lines":    {"a\nb\nc\n", FileEdit{Old: "a\nb", New: "z"}, "z\nc\n", ""},
		"over the size": {strings.Repeat("a", 1024), FileEdit{Old: "a", New: strings.Repeat("b", 4096), Expect: 1024}, strings.Repeat("a", 1024), "too_large"},
	} {
		t.Run(name, func(t *testing.T) {
			tt.in.Path = r.put("f", tt.text, 0o755, 0)
			e, err := r.EditFile(t.Context(), "", tt.in)
			if tt.reason != "" {
				if err == nil || errs.From(err).Reason != tt.reason {
					t.Errorf("error = %v, want %s", err, tt.reason)
				}
			} else if err != nil || e.Info.Mode != "0755" || e.Made {
				t.Errorf("edited %+v, %v", e, err)
			}
			if got := r.text("f"); got != tt.want {
				t.Errorf("file = %q, want %q", got, tt.want)
			}
		})
	}
	_, err := r.EditFile(t.Context(), "", FileEdit{Path: r.path("none"), Old: "a", New: "b"})
	wantCode(t, err, errs.NotFound, "")
}
