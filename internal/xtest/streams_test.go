package xtest

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/berthrun/berth/api"
	"github.com/berthrun/berth/client"
)

func noise(n int) []byte {
	b := make([]byte, n)
	var seed [32]byte
	_, _ = rand.NewChaCha8(seed).Read(b)
	return b
}

func sumOf(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}

func upload(sandbox, path string) api.UploadFileIn {
	return api.UploadFileIn{FileIn: file(sandbox, path)}
}

// content sends a request for a file's content.
func (s *System) content(t testing.TB, method, sandbox, path string, body io.Reader, headers ...string) *http.Response {
	t.Helper()
	u := s.URL + "/v1/sandboxes/" + sandbox + "/files/content?path=" + url.QueryEscape(path)
	req, err := http.NewRequestWithContext(t.Context(), method, u, body)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+s.Key)
	for i := 0; i < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = res.Body.Close() })
	return res
}

func TestContent(t *testing.T) {
	s := Start(t, Options{})
	id := Sandbox(t, s.Client, idling(0))
	want := noise(3<<20 + 11)
	out, err := s.Client.Upload(t.Context(), upload(id, "deep/file"), bytes.NewReader(want), client.UploadOptions{SHA256: sumOf(want)})
	if err != nil || out.SHA256 != sumOf(want) || out.Bytes != int64(len(want)) || !out.Created || out.File.Mode != "0644" {
		t.Fatalf("%+v, %v", out, err)
	}
	etag := `"` + out.File.ETag + `"`
	size := len(want)
	for _, tt := range []struct {
		method  string
		headers []string
		status  int
		from    int
		to      int
		extra   string // of Content-Range
	}{
		{"GET", nil, 200, 0, size, ""},
		{"HEAD", nil, 200, 0, 0, ""},
		{"GET", []string{"Range", "bytes=5-9"}, 206, 5, 10, fmt.Sprintf("bytes 5-9/%d", size)},
		{"GET", []string{"Range", "bytes=1048576-"}, 206, 1 << 20, size, fmt.Sprintf("bytes 1048576-%d/%d", size-1, size)},
		{"GET", []string{"Range", "bytes=-7"}, 206, size - 7, size, fmt.Sprintf("bytes %d-%d/%d", size-7, size-1, size)},
		{"GET", []string{"Range", "bytes=0-99999999999"}, 206, 0, size, fmt.Sprintf("bytes 0-%d/%d", size-1, size)},
		{"GET", []string{"Range", "bytes=99999999-"}, 416, 0, 0, fmt.Sprintf("bytes */%d", size)},
		{"GET", []string{"Range", "bytes=-0"}, 416, 0, 0, fmt.Sprintf("bytes */%d", size)},
		{"GET", []string{"Range", "bytes=9-5"}, 400, 0, 0, ""},
		{"GET", []string{"Range", "bytes=x"}, 400, 0, 0, ""},
		{"GET", []string{"Range", "bytes=0-1,3-4"}, 200, 0, size, ""},
		{"GET", []string{"Range", "lines=1-2"}, 200, 0, size, ""},
		{"GET", []string{"If-Match", etag}, 200, 0, size, ""},
		{"GET", []string{"If-Match", `"other"`}, 412, 0, 0, ""},
		{"GET", []string{"If-None-Match", etag}, 304, 0, 0, ""},
		{"GET", []string{"If-None-Match", `"other"`}, 200, 0, size, ""},
		{"GET", []string{"Range", "bytes=5-9", "If-Range", etag}, 206, 5, 10, fmt.Sprintf("bytes 5-9/%d", size)},
		{"GET", []string{"Range", "bytes=5-9", "If-Range", `"other"`}, 200, 0, size, ""},
	} {
		res := s.content(t, tt.method, id, "deep/file", nil, tt.headers...)
		got, err := io.ReadAll(res.Body)
		if err != nil || res.StatusCode != tt.status || res.Header.Get("Content-Range") != tt.extra || tt.status < 300 && !bytes.Equal(got, want[tt.from:tt.to]) {
			t.Errorf("%s %v: status %d, %d bytes, range %q, %v", tt.method, tt.headers, res.StatusCode, len(got), res.Header.Get("Content-Range"), err)
		}
		if tt.status < 300 && (res.Header.Get("ETag") != etag || res.Header.Get("Content-Type") != "application/octet-stream" ||
			!strings.Contains(res.Header.Get("Content-Security-Policy"), "sandbox") || res.Header.Get("X-Content-Type-Options") != "nosniff" ||
			!strings.HasPrefix(res.Header.Get("Content-Disposition"), "attachment")) {
			t.Errorf("%s %v: headers %v", tt.method, tt.headers, res.Header)
		}
		if tt.method == "HEAD" && res.ContentLength != int64(size) {
			t.Errorf("HEAD: a length of %d", res.ContentLength)
		}
	}
	digest := sha256.Sum256([]byte("new"))
	for _, tt := range []struct {
		path    string
		headers []string
		status  int
	}{
		{"put", nil, 200},
		{"put", []string{"Content-SHA256", hex.EncodeToString(digest[:])}, 200},
		{"put", []string{"Digest", "sha-256=" + base64.StdEncoding.EncodeToString(digest[:])}, 200},
		{"put", []string{"Content-Digest", "sha-256=:" + base64.StdEncoding.EncodeToString(digest[:]) + ":"}, 200},
		{"put", []string{"Content-SHA256", sumOf([]byte("x"))}, 400},
		{"put", []string{"Content-SHA256", "abc"}, 400},
		{"put", []string{"If-Match", `"other"`}, 412},
		{"put", []string{"Content-Encoding", "gzip"}, 400},
		{"put", []string{"Content-Range", "bytes 0-2/9"}, 400},
		{"a\x00b", nil, 400},
		{"/" + strings.Repeat("é", 2100), nil, 400},
		{strings.Repeat("a", 5000), nil, 400},
		{"../../../../etc/over", nil, 200},
		{"emoji 🚢 \n line", nil, 200},
		{"deep", nil, 400},
		{"deep/file/below", nil, 400},
	} {
		res := s.content(t, "PUT", id, tt.path, strings.NewReader("new"), tt.headers...)
		if body, err := io.ReadAll(res.Body); err != nil || res.StatusCode != tt.status {
			t.Errorf("PUT %.20q %v: %d %.200s, %v", tt.path, tt.headers, res.StatusCode, body, err)
		}
	}
	if res := s.content(t, "GET", id, "emoji 🚢 \n line", nil); res.StatusCode != 200 {
		t.Errorf("an odd name: %d", res.StatusCode)
	}
	if res := s.content(t, "GET", id, "missing", nil); res.StatusCode != 404 {
		t.Errorf("a missing file: %d", res.StatusCode)
	}
	if res := s.content(t, "GET", id, "/dev/zero", nil); res.StatusCode != 400 && res.StatusCode != 404 {
		t.Errorf("a device: %d", res.StatusCode)
	}
}

// A body that is cut in the middle, or goes silent, leaves nothing.
func TestContentCut(t *testing.T) {
	s := Start(t, Options{})
	id := Sandbox(t, s.Client, idling(0))
	Exec(t, s.Client, id, "printf old > kept")
	for _, chunked := range []bool{false, true} {
		conn, err := new(net.Dialer).DialContext(t.Context(), "tcp", strings.TrimPrefix(s.URL, "http://"))
		if err != nil {
			t.Fatal(err)
		}
		head := "Content-Length: 1000000\r\n"
		if chunked {
			head = "Transfer-Encoding: chunked\r\n"
		}
		fmt.Fprintf(conn, "PUT /v1/sandboxes/%s/files/content?path=kept HTTP/1.1\r\nHost: berth\r\nAuthorization: Bearer %s\r\n%s\r\n5\r\nabcde\r\n", id, s.Key, head)
		eventually(t, func() bool { return strings.Contains(Exec(t, s.Client, id, "ls -a").Stdout, ".berth-") })
		_ = conn.Close()
		eventually(t, func() bool { return !strings.Contains(Exec(t, s.Client, id, "ls -a").Stdout, ".berth-") })
	}
	if got := Exec(t, s.Client, id, "cat kept").Stdout; got != "old" {
		t.Errorf("the file is %q", got)
	}
}

// flaky breaks every download off after some bytes.
type flaky struct {
	http.RoundTripper
	after  int64
	breaks int
}

func (f *flaky) RoundTrip(r *http.Request) (*http.Response, error) {
	res, err := f.RoundTripper.RoundTrip(r)
	if err == nil && f.breaks > 0 && r.Method == http.MethodGet {
		f.breaks--
		res.Body = struct {
			io.Reader
			io.Closer
		}{io.MultiReader(io.LimitReader(res.Body, f.after), broken{}), res.Body}
	}
	return res, err
}

type broken struct{}

func (broken) Read([]byte) (int, error) { return 0, errors.New("the connection broke") }

func TestClientGoesOn(t *testing.T) {
	s := Start(t, Options{})
	id := Sandbox(t, s.Client, idling(0))
	want := noise(2 << 20)
	if _, err := s.Client.Upload(t.Context(), upload(id, "file"), bytes.NewReader(want), client.UploadOptions{}); err != nil {
		t.Fatal(err)
	}
	f := &flaky{RoundTripper: http.DefaultTransport, after: 500_001, breaks: 3}
	c, err := client.New(s.URL, s.Key, client.HTTPClient(&http.Client{Transport: f}))
	if err != nil {
		t.Fatal(err)
	}
	d, err := c.Download(t.Context(), file(id, "file"), 0, "")
	if err != nil {
		t.Fatal(err)
	}
	got, err := io.ReadAll(d)
	_ = d.Close()
	if err != nil || !bytes.Equal(got, want) || f.breaks != 0 {
		t.Errorf("%d of %d bytes, %v", len(got), len(want), err)
	}
	// Another file in its place is not gone on with.
	f.breaks = 1
	if d, err = c.Download(t.Context(), file(id, "file"), 0, ""); err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	if _, err := s.Client.Upload(t.Context(), upload(id, "file"), bytes.NewReader(want), client.UploadOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err = io.ReadAll(d); err == nil || !strings.Contains(err.Error(), "changed") {
		t.Errorf("a changed file: %v", err)
	}

	// A followed process goes on behind its last event.
	p := start(t, s.Client, id, "i=0; while [ $i -lt 2000 ]; do echo out $i; echo err $i >&2; i=$((i+1)); done; exit 7")
	f.after, f.breaks = 3000, 3
	var out, errOut strings.Builder
	exit, err := c.Follow(t.Context(), api.FollowProcessIn{ProcessIn: proc(id, p)}, func(o client.Output) error {
		w := &out
		if o.Stream == "stderr" {
			w = &errOut
		}
		if int64(w.Len()) != o.Offset {
			t.Errorf("%s: an event at %d behind %d bytes", o.Stream, o.Offset, w.Len())
		}
		w.Write(o.Data)
		return nil
	})
	if err != nil || exit.ExitCode == nil || *exit.ExitCode != 7 || strings.Count(out.String(), "\n") != 2000 || strings.Count(errOut.String(), "\n") != 2000 {
		t.Errorf("%+v, %v, %d and %d lines", exit, err, strings.Count(out.String(), "\n"), strings.Count(errOut.String(), "\n"))
	}
}

// follow gives the raw events of a process until its end.
func (s *System) follow(t testing.TB, sandbox, process, query, last string) (*http.Response, *bufio.Reader) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), "GET", s.URL+"/v1/sandboxes/"+sandbox+"/processes/"+process+"/output?follow=true"+query, nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+s.Key)
	if last != "" {
		req.Header.Set("Last-Event-ID", last)
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = res.Body.Close() })
	return res, bufio.NewReader(res.Body)
}

func TestFollow(t *testing.T) {
	s := Start(t, Options{})
	id := Sandbox(t, s.Client, idling(0))
	collect := func(p string) (text string, exit api.ExitEvent) {
		t.Helper()
		exit, err := s.Client.Follow(t.Context(), api.FollowProcessIn{ProcessIn: proc(id, p)}, func(o client.Output) error {
			text += fmt.Sprintf("%s@%d:%q ", o.Stream, o.Offset, o.Data)
			return nil
		})
		if err != nil {
			t.Error(err)
		}
		return text, exit
	}
	// A character that comes in two halves is one event; what is no text comes as it is.
	p := start(t, s.Client, id, `printf 'a\342\230'; sleep 0.3; printf '\203b'; sleep 0.3; printf '\377\376'; exit 3`)
	res, events := s.follow(t, id, p, "", "")
	if res.Header.Get("Content-Type") != "text/event-stream" || res.Header.Get("X-Accel-Buffering") != "no" {
		t.Errorf("headers: %v", res.Header)
	}
	all, err := io.ReadAll(events)
	if err != nil {
		t.Error(err)
	}
	for _, want := range []string{`"data":"a"`, `"data":"☃b"`, `"data":"//4=","encoding":"base64"`, "event: exit", `"exitCode":3`, "id: 7-0\n"} {
		if !strings.Contains(string(all), want) {
			t.Errorf("no %s in\n%s", want, all)
		}
	}
	if _, exit := collect(p); exit.ExitCode == nil || *exit.ExitCode != 3 || exit.State != "exited" {
		t.Errorf("followed after its end: %+v", exit)
	}
	// Resumed behind an id only the rest comes.
	_, events = s.follow(t, id, p, "", "5-0")
	if all, err := io.ReadAll(events); err != nil || strings.Contains(string(all), `"data":"a"`) || !strings.Contains(string(all), `"offset":5`) {
		t.Errorf("resumed: %s, %v", all, err)
	}
	for _, bad := range []string{"x", "1", "-1-2", "1-2-3"} {
		if res, _ := s.follow(t, id, p, "", bad); res.StatusCode != 400 {
			t.Errorf("Last-Event-ID %s: %d", bad, res.StatusCode)
		}
	}
	if res, _ := s.follow(t, id, "proc_aaaaaaaaaaaaaaaaaaaa", "", ""); res.StatusCode != 404 {
		t.Errorf("no such process: %d", res.StatusCode)
	}
	if res, _ := s.follow(t, id, p, "&offset=3", ""); res.StatusCode != 400 {
		t.Errorf("an argument of the operation: %d", res.StatusCode)
	}
	// What was discarded is said by the offset, and a reader that does not read holds nothing up.
	_, slow := s.follow(t, id, start(t, s.Client, id, "yes | head -c 20000000; echo done >&2"), "", "")
	p = start(t, s.Client, id, "yes | head -c 8000000")
	eventually(t, func() bool {
		return Must(t, s.Client, api.GetProcess, proc(id, p)).Process.State == "exited"
	})
	gap, bytesRead := int64(0), int64(0)
	if _, err := s.Client.Follow(t.Context(), api.FollowProcessIn{ProcessIn: proc(id, p)}, func(o client.Output) error {
		gap, bytesRead = gap+o.Gap, bytesRead+int64(len(o.Data))
		return nil
	}); err != nil || gap+bytesRead != 8000000 || bytesRead < 1<<20 {
		t.Errorf("%d bytes and a gap of %d, %v", bytesRead, gap, err)
	}
	if rest, err := io.ReadAll(slow); err != nil || !strings.Contains(string(rest), "event: exit") || !strings.Contains(string(rest), "done") {
		t.Errorf("the slow reader: %d bytes, %v", len(rest), err)
	}
	// A process that outlives its sandbox's stop is followed from what is stored.
	p = start(t, s.Client, id, "echo before; sleep 600")
	_, events = s.follow(t, id, p, "", "")
	for line := ""; !strings.Contains(line, "before"); {
		if line, err = events.ReadString('\n'); err != nil {
			t.Fatal(err)
		}
	}
	Must(t, s.Client, api.StopSandbox, waiting(id, 30))
	if all, err := io.ReadAll(events); err != nil || !strings.Contains(string(all), "event: exit") {
		t.Errorf("stopped under the follower: %s, %v", all, err)
	}
	if text, exit := collect(p); !strings.Contains(text, "before") || exit.State == "running" {
		t.Errorf("stored: %s, %+v", text, exit)
	}
}

// A server that is about to stop breaks followers off without an exit, and lets uploads finish.
func TestStreamsEnd(t *testing.T) {
	s := Start(t, Options{})
	id := Sandbox(t, s.Client, idling(0))
	_, events := s.follow(t, id, start(t, s.Client, id, "echo before; sleep 600"), "", "")
	for line := ""; !strings.Contains(line, "before"); {
		var err error
		if line, err = events.ReadString('\n'); err != nil {
			t.Fatal(err)
		}
	}
	r, w := io.Pipe()
	sent := make(chan error, 1)
	go func() {
		_, err := s.Client.Upload(context.WithoutCancel(t.Context()), upload(id, "file"), r, client.UploadOptions{})
		sent <- err
	}()
	if _, err := w.Write([]byte("first ")); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() bool { return strings.Contains(Exec(t, s.Client, id, "ls -a").Stdout, ".berth-") })
	s.Plane.EndStreams()
	if all, err := io.ReadAll(events); err == nil || strings.Contains(string(all), "event: exit") {
		t.Errorf("the follower's end: %s, %v", all, err)
	}
	if _, err := w.Write([]byte("second")); err != nil {
		t.Error(err)
	}
	_ = w.Close()
	if err := <-sent; err != nil {
		t.Errorf("the upload: %v", err)
	}
	if got := Exec(t, s.Client, id, "cat file").Stdout; got != "first second" {
		t.Errorf("the file is %q", got)
	}
}

// TestRealStreams moves much through real sandboxes.
func TestRealStreams(t *testing.T) {
	r := StartReal(t, "--limit", "disk.perSandboxMin=1")
	id := Sandbox(t, r.Client, api.CreateSandboxIn{Name: "streams", Resources: &api.ResourcesIn{MemoryMiB: 512, DiskGiB: 1}})
	t.Run("64 MiB", func(t *testing.T) { realContent(t, r, id) })
	t.Run("3 GiB of output", func(t *testing.T) { realOutput(t, r, id) })
	t.Run("cp", func(t *testing.T) { realCopy(t, r, id) })
	t.Run("full disk", func(t *testing.T) { realFull(t, r, id) })
}

func realContent(t *testing.T, r *Real, id string) {
	want := noise(64<<20 + 3)
	out, err := r.Client.Upload(t.Context(), upload(id, "big"), bytes.NewReader(want), client.UploadOptions{Size: int64(len(want))})
	if err != nil || out.SHA256 != sumOf(want) {
		t.Fatalf("%+v, %v", out, err)
	}
	if got := Exec(t, r.Client, id, "sha256sum big").Stdout; !strings.HasPrefix(got, sumOf(want)) {
		t.Errorf("inside it is %s", got)
	}
	never, err := client.Open(t.Context(), r.Client, api.DownloadFile, file(id, "big"), nil, nil, -1) // that is never read
	if err != nil {
		t.Fatal(err)
	}
	defer never.Body.Close()
	d, err := r.Client.Download(t.Context(), file(id, "big"), 0, "")
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	h := sha256.New()
	if n, err := io.Copy(h, d); err != nil || n != int64(len(want)) || hex.EncodeToString(h.Sum(nil)) != sumOf(want) {
		t.Errorf("%d bytes, %v", n, err)
	}
}

func realOutput(t *testing.T, r *Real, id string) {
	const line, lines, parts = "a line with an é in it", 2_796_202, 48
	const total = int64(parts * lines * (len(line) + 1)) // whole lines: a part that ended inside the é would cut it by itself
	Exec(t, r.Client, id, fmt.Sprintf("yes '%s' | head -n %d > /tmp/part", line, lines))
	p := Must(t, r.Client, api.StartProcess, api.StartProcessIn{SandboxIn: in(id), CommandIn: api.CommandIn{
		Command: fmt.Sprintf("i=0; while [ $i -lt %d ]; do cat /tmp/part; i=$((i+1)); done; rm /tmp/part; exit 4", parts),
	}}).Process.ID
	never, _ := r.follow(t, id, p, "", "")
	defer never.Body.Close()
	var read, gaps int64
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	exit, err := r.Client.Follow(ctx, api.FollowProcessIn{ProcessIn: proc(id, p)}, func(o client.Output) error {
		if o.Gap == 0 && !utf8.Valid(o.Data) {
			return fmt.Errorf("a character was cut at %d", o.Offset)
		}
		read, gaps = read+int64(len(o.Data)), gaps+o.Gap
		return nil
	})
	if err != nil || read+gaps != total || exit.ExitCode == nil || *exit.ExitCode != 4 || exit.Stdout != total {
		t.Errorf("%d bytes and %d discarded of %d, %+v, %v", read, gaps, total, exit, err)
	}
	t.Logf("%d MiB came, %d MiB were discarded", read>>20, gaps>>20)
}

func realCopy(t *testing.T, r *Real, id string) {
	dir := t.TempDir()
	src := filepath.Join(dir, "src")
	for name, data := range map[string]string{"one": "1", "sub/two": "2", "odd \xff\n": "3"} {
		p := filepath.Join(src, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(p), 0o755), os.WriteFile(p, []byte(data), 0o640)); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(os.Mkdir(filepath.Join(src, "empty"), 0o700), os.Symlink("sub/two", filepath.Join(src, "link"))); err != nil {
		t.Fatal(err)
	}
	cp := func(args ...string) (string, error) {
		cmd := exec.CommandContext(t.Context(), r.bin, append([]string{"files", "cp"}, args...)...) //nolint:gosec // the program under test
		cmd.Env = append(os.Environ(), "BERTH_URL="+r.URL, "BERTH_API_KEY="+r.Key)
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	check := func(at string) {
		t.Helper()
		for name, want := range map[string]string{"one": "1", "sub/two": "2", "odd \xff\n": "3", "link": "2"} {
			if b, err := os.ReadFile(filepath.Join(at, name)); err != nil || string(b) != want {
				t.Errorf("%q: %q, %v", name, b, err)
			}
		}
		if fi, err := os.Stat(filepath.Join(at, "empty")); err != nil || fi.Mode().Perm() != 0o700 {
			t.Errorf("empty: %v, %v", fi, err)
		}
		if fi, err := os.Stat(filepath.Join(at, "one")); err != nil || fi.Mode().Perm() != 0o640 {
			t.Errorf("one: %v, %v", fi, err)
		}
	}
	for _, args := range [][]string{
		{src, "streams:copy"}, {id + ":copy", filepath.Join(dir, "back")}, // under a new name
		{src, "streams:copy"}, {"streams:copy/src", dir + "/into/"}, // into what is there
		{"streams:copy/src/.", "streams:again"}, {"streams:again/.", filepath.Join(dir, "again")}, // between
		{filepath.Join(src, "one"), "streams:single"}, {"streams:single", filepath.Join(dir, "single")},
	} {
		if out, err := cp(args...); err != nil {
			t.Fatalf("cp %q: %v\n%s", args, err, out)
		}
	}
	check(filepath.Join(dir, "back"))
	check(filepath.Join(dir, "into/src"))
	check(filepath.Join(dir, "again"))
	if b, err := os.ReadFile(filepath.Join(dir, "single")); err != nil || string(b) != "1" {
		t.Errorf("single: %q, %v", b, err)
	}
	// A sandbox that lies in wait: links that lead out are left out, and nothing outside is touched.
	Exec(t, r.Client, id, "mkdir evil && ln -s / evil/root && ln -s ../../../../tmp evil/up && echo fine > evil/file && mkfifo evil/pipe")
	out, err := cp("streams:evil", filepath.Join(dir, "evil"))
	entries, rerr := os.ReadDir(filepath.Join(dir, "evil"))
	if err != nil || rerr != nil || len(entries) != 1 || entries[0].Name() != "file" || !strings.Contains(out, "left out: root") {
		t.Errorf("a hostile folder: %v, %v\n%s", entries, err, out)
	}
	for _, args := range [][]string{{"a", "b"}, {"streams:none", dir}, {"No Such:x", dir}, {"none-of-this-name:x", dir}, {filepath.Join(dir, "none"), "streams:x"}, {"streams:x"}} {
		if out, err := cp(args...); err == nil {
			t.Errorf("cp %q: %s", args, out)
		}
	}
}

func realFull(t *testing.T, r *Real, id string) {
	_, err := r.Client.Upload(t.Context(), upload(id, "much"), io.LimitReader(zeroes{}, 3<<30), client.UploadOptions{})
	e, _ := errors.AsType[*client.Error](err)
	if e == nil || e.Code != "LIMIT_EXCEEDED" || e.Reason != "disk_full" {
		t.Fatalf("got %v", err)
	}
	if got := Exec(t, r.Client, id, "ls -a | grep -c berth-; echo still works > after && cat after").Stdout; got != "0\nstill works\n" {
		t.Errorf("afterwards: %q", got)
	}
}

type zeroes struct{}

func (zeroes) Read(p []byte) (int, error) { clear(p); return len(p), nil }
