package xtest

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/creack/pty"

	"github.com/berthrun/berth/internal/cli"
)

// copies runs files cp as a person at a terminal does.
type copies struct {
	t   *testing.T
	env map[string]string
}

// atTerminal gives the exit code and what a terminal of 70 columns was sent.
func (c copies) atTerminal(args ...string) (code int, drawn string) {
	c.t.Helper()
	ours, its, err := pty.Open()
	if err != nil {
		c.t.Fatal(err)
	}
	if err := pty.Setsize(its, &pty.Winsize{Cols: 70, Rows: 20}); err != nil {
		c.t.Fatal(err)
	}
	read := make(chan string)
	go func() {
		b, _ := io.ReadAll(ours) // it ends with an error when nobody has the other side any more
		read <- string(b)
	}()
	code = cli.Main(c.t.Context(), append([]string{"files", "cp"}, args...), func(n string) string { return c.env[n] }, strings.NewReader("typed"), io.Discard, its, cli.Commands{})
	_ = its.Close()
	drawn = <-read
	_ = ours.Close()
	return code, strings.ReplaceAll(drawn, "\r\n", "\n") // as a terminal makes of \n
}

// bar is the last state that was drawn: a name, a bar, per cent, of what, how fast.
var bar = regexp.MustCompile(`\r\x1b\[K([^\r\n]*?) (?:\[(=*) *\] +)?(?:(\d+) % of )?([0-9.]+ (?:B|KiB|MiB))(?:, [0-9.]+ [KMGiB]+/s)?\n`)

// TestCopyBar copies files and folders with a terminal and without, to their ends and to errors.
func TestCopyBar(t *testing.T) {
	s := Start(t, Options{})
	id := Sandbox(t, s.Client, idling(0))
	dir := t.TempDir()
	c := copies{t, map[string]string{"BERTH_URL": s.URL, "BERTH_API_KEY": s.Key, "BERTH_DATA": dir}}
	many := filepath.Join(dir, "many")
	if err := os.MkdirAll(filepath.Join(many, "below"), 0o755); err != nil {
		t.Fatal(err)
	}
	for i := range 100 { // their headers are more than their content
		if err := os.WriteFile(filepath.Join(many, "below", strconv.Itoa(i)), noise(41), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	must(t, os.WriteFile(filepath.Join(dir, "big"), noise(3<<20), 0o644), os.Symlink("many", filepath.Join(dir, "linked")), os.WriteFile(filepath.Join(dir, "empty"), nil, 0o644))

	for _, tt := range []struct {
		name, from, to     string
		shown, perCent, of string
	}{
		{"a file up", filepath.Join(dir, "big"), id + ":big", "big", "100", "3.0 MiB"},
		{"a file down", id + ":big", filepath.Join(dir, "back"), "big", "100", "3.0 MiB"},
		{"a file between", id + ":big", id + ":other", "big", "100", "3.0 MiB"},
		{"a folder up, whose total is its files'", many, id + ":many", "many", "100", "4.0 KiB"},
		{"a folder by a link", filepath.Join(dir, "linked"), id + ":linked", "linked", "100", "4.0 KiB"},
		{"a folder down, whose total nobody knows", id + ":many", filepath.Join(dir, "down"), "many", "", "4.0 KiB"},
		{"standard input", "-", id + ":typed", "standard input", "", "5 B"},
	} {
		code, drawn := c.atTerminal(tt.from, tt.to)
		m := bar.FindStringSubmatch(drawn)
		if code != 0 || m == nil || m[1] != tt.shown || m[3] != tt.perCent || m[4] != tt.of || strings.Count(drawn, "\n") != 1 {
			t.Errorf("%s: exit %d, drawn %q", tt.name, code, drawn)
		}
		if tt.perCent != "" && (m == nil || len(m[2]) < 5 || strings.Contains(drawn[strings.LastIndex(drawn, "\r"):], "= ]")) {
			t.Errorf("%s: the bar is not full: %q", tt.name, drawn)
		}
	}
	for _, name := range []string{"below/0", "below/99"} {
		for _, at := range []string{"many/", "linked/"} {
			want, err := os.ReadFile(filepath.Join(many, name))
			res := s.content(t, "GET", id, at+name, nil)
			if got, rerr := io.ReadAll(res.Body); err != nil || rerr != nil || !bytes.Equal(got, want) {
				t.Errorf("%s%s: %d bytes, %v, %v", at, name, len(got), err, rerr)
			}
		}
	}
	if code, drawn := c.atTerminal(filepath.Join(dir, "empty"), id+":empty"); code != 0 || drawn != "" {
		t.Errorf("an empty file: exit %d, drawn %q", code, drawn)
	}
	// What is no terminal is sent nothing.
	var out, errOut bytes.Buffer
	env := func(n string) string { return c.env[n] }
	if code := cli.Main(t.Context(), []string{"files", "cp", filepath.Join(dir, "big"), id + ":big"}, env, nil, &out, &errOut, cli.Commands{}); code != 0 || out.Len()+errOut.Len() > 0 {
		t.Errorf("without a terminal: exit %d, %q, %q", code, out.String(), errOut.String())
	}
}

// TestCopyBarBroken breaks a download off in its middle: what is drawn last is how far it came, and the next run's bar goes on from there.
func TestCopyBarBroken(t *testing.T) {
	s := Start(t, Options{})
	id := Sandbox(t, s.Client, idling(0))
	dir := t.TempDir()
	big := noise(3 << 20)
	must(t, os.WriteFile(filepath.Join(dir, "big"), big, 0o644))
	var left atomic.Int64
	proxy := httptest.NewServer(cutting(t, s.URL, &left))
	defer proxy.Close()
	c := copies{t, map[string]string{"BERTH_URL": proxy.URL, "BERTH_API_KEY": s.Key, "BERTH_DATA": dir}}
	left.Store(1 << 40)
	if code, drawn := c.atTerminal(filepath.Join(dir, "big"), id+":big"); code != 0 {
		t.Fatal(drawn)
	}
	left.Store(2 << 20)
	code, drawn := c.atTerminal(id+":big", filepath.Join(dir, "down"))
	parts, _ := filepath.Glob(filepath.Join(dir, ".down.*.part"))
	if code != 1 || len(parts) != 1 {
		t.Fatalf("exit %d, left %v, drawn %q", code, parts, drawn)
	}
	fi, err := os.Stat(parts[0])
	if err != nil || fi.Size() < 1<<20 || fi.Size() > 2<<20 {
		t.Fatalf("%+v, %v", fi, err)
	}
	m := bar.FindStringSubmatch(drawn)
	if want := strconv.FormatInt(fi.Size()*100/(3<<20), 10); m == nil || m[3] != want || !strings.Contains(drawn, "\nberth: repeat the command to go on from byte "+strconv.FormatInt(fi.Size(), 10)+"\nberth: ") {
		t.Errorf("of %d bytes is drawn %q", fi.Size(), drawn)
	}
	left.Store(1 << 40)
	code, drawn = c.atTerminal(id+":big", filepath.Join(dir, "down"))
	first := strings.Split(drawn, "\r\x1b[K")[1]
	if got, err := os.ReadFile(filepath.Join(dir, "down")); code != 0 || err != nil || !bytes.Equal(got, big) || strings.Contains(first, " 0 %") || !strings.Contains(drawn, "100 % of 3.0 MiB") {
		t.Errorf("repeated: exit %d, %v, drawn %q", code, err, drawn)
	}
}

// cutting stands before a server and lets so many bytes of files out, then no call through.
func cutting(t *testing.T, to string, left *atomic.Int64) http.Handler {
	at, err := url.Parse(to)
	if err != nil {
		t.Fatal(err)
	}
	p := httputil.NewSingleHostReverseProxy(at)
	p.ErrorLog = nil
	p.FlushInterval = -1
	p.ModifyResponse = func(r *http.Response) error {
		if r.Request.Method == http.MethodGet && strings.HasSuffix(r.Request.URL.Path, "/content") {
			r.Body = struct {
				io.Reader
				io.Closer
			}{&runningOut{r.Body, left}, r.Body}
		}
		return nil
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if left.Load() <= 0 {
			panic(http.ErrAbortHandler)
		}
		p.ServeHTTP(w, r)
	})
}

// runningOut is a body of which only so many bytes come.
type runningOut struct {
	io.Reader
	left *atomic.Int64
}

// Read implements io.Reader.
func (r *runningOut) Read(b []byte) (int, error) {
	if r.left.Load() <= 0 {
		return 0, errors.New("the connection broke")
	}
	n, err := r.Reader.Read(b[:min(int64(len(b)), r.left.Load())])
	r.left.Add(-int64(n))
	return n, err
}
