//go:build linux

package guest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/berthrun/berth/internal/errs"
	"github.com/google/go-cmp/cmp"
)

func TestHello(t *testing.T) {
	r := newRig(t)
	h, err := r.Hello(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if h.Protocol != Protocol || h.Build != "test" || len(h.BootID) != 20 || !h.Has(FeatureExec) || h.Has("flying") {
		t.Errorf("hello = %+v", h)
	}
	if again, err := newRig(t).Hello(t.Context()); err != nil || again.BootID == h.BootID {
		t.Errorf("another boot says %+v, %v", again, err)
	}
}

// Nothing answers without the token, and a new token replaces the old one at once.
func TestToken(t *testing.T) {
	r := newRig(t)
	handler := r.server.Handler()
	for _, route := range []string{
		"GET /hello", "POST /configure", "POST /exec", "POST /processes", "GET /processes", "GET /processes/p", "GET /processes/p/output", "GET /processes/export",
		"POST /processes/p/input", "POST /processes/p/signal", "POST /processes/p/resize", "GET /files/stat", "POST /files/read", "POST /files/write", "POST /files/edit",
		"POST /files/list", "POST /files/mkdir", "POST /files/move", "POST /files/remove", "GET /activity", "GET /metrics", "POST /sync", "POST /shutdown", "GET /nothing",
	} {
		method, path, _ := strings.Cut(route, " ")
		for _, token := range []string{"", "wrong", testToken + "x"} {
			req := httptest.NewRequest(method, path, strings.NewReader(`{"id":"proc_x","command":"touch `+r.path("ran")+`"}`))
			req.Header.Set(TokenHeader, token)
			w := httptest.NewRecorder()
			handler.ServeHTTP(w, req)
			if w.Code != http.StatusUnauthorized || !strings.Contains(w.Body.String(), CodeUnauthorized) {
				t.Errorf("%s with token %q: %d %s", route, token, w.Code, w.Body)
			}
		}
	}
	if r.text("ran") != "(no such file or directory)" {
		t.Error("a command ran")
	}
	if _, err := r.Configure(t.Context(), Configure{Token: "next"}); err != nil {
		t.Fatal(err)
	}
	_, err := r.Hello(t.Context())
	wantCode(t, err, errs.Unavailable, "guest_token")
	r.token.Store("next")
	if _, err := r.Hello(t.Context()); err != nil {
		t.Error(err)
	}
	bare := NewServer(Config{})
	defer bare.Close()
	w := httptest.NewRecorder()
	bare.Handler().ServeHTTP(w, httptest.NewRequest("GET", "/hello", nil))
	if w.Code != http.StatusUnauthorized {
		t.Errorf("without a token of its own a guest answers %d", w.Code)
	}
}

func TestBadRequests(t *testing.T) {
	r := newRig(t)
	p := r.exec(Start{Command: "true"}).Process
	for name, tt := range map[string]struct {
		method, path, body string
		status             int
		code               string
	}{
		"not JSON":       {"POST", "/exec", "{", 400, CodeInvalid},
		"wrong type":     {"POST", "/exec", `{"id":1}`, 400, CodeInvalid},
		"no id":          {"POST", "/exec", `{"command":"true"}`, 400, CodeInvalid},
		"id with path":   {"POST", "/exec", `{"id":"../x","command":"true"}`, 400, CodeInvalid},
		"negative wait":  {"POST", "/exec?waitMs=-1", `{"id":"proc_y","command":"true"}`, 400, CodeInvalid},
		"huge":           {"POST", "/configure", `{"token":"` + strings.Repeat("x", 2<<20) + `"}`, 413, CodeTooLarge},
		"bad host name":  {"POST", "/configure", `{"hostname":"a b"}`, 400, CodeInvalid},
		"unknown route":  {"POST", "/hello", "", 404, CodeNotFound},
		"unknown stream": {"GET", "/processes/" + p.ID + "/output?stream=x", "", 400, CodeInvalid},
		"bad offset":     {"GET", "/processes/" + p.ID + "/output?offset=x", "", 400, CodeInvalid},
		"no terminal":    {"POST", "/processes/" + p.ID + "/resize", `{"cols":1,"rows":1}`, 400, CodeInvalid},
	} {
		t.Run(name, func(t *testing.T) {
			req, err := http.NewRequest(tt.method, "http://"+r.addr+tt.path, strings.NewReader(tt.body))
			if err != nil {
				t.Fatal(err)
			}
			req.Header.Set(TokenHeader, testToken)
			res, err := http.DefaultClient.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			defer res.Body.Close()
			body, _ := io.ReadAll(res.Body)
			if res.StatusCode != tt.status || !strings.Contains(string(body), `"code":"`+tt.code+`"`) {
				t.Errorf("%d %s, want %d %s", res.StatusCode, body, tt.status, tt.code)
			}
		})
	}
	http.DefaultClient.CloseIdleConnections()
}

// What is remembered of operations is bounded, and the newest is what is remembered.
func TestOnceIsBounded(t *testing.T) {
	var o once
	o.results = map[string]*result{}
	var calls atomic.Int64
	h := o.middleware(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		n := calls.Add(1)
		if r.URL.Query().Has("fail") {
			w.WriteHeader(500)
			return
		}
		w.WriteHeader(200)
		_, _ = w.Write(bytes.Repeat([]byte{'x'}, 16<<10))
		_, _ = fmt.Fprint(w, n)
	}))
	call := func(op, path string) string {
		req := httptest.NewRequest("POST", path, nil)
		req.Header.Set(OpHeader, op)
		w := httptest.NewRecorder()
		h.ServeHTTP(w, req)
		return w.Body.String()
	}
	first := call("a", "/x")
	if call("a", "/x") != first || call("a", "/y") == first {
		t.Error("a repeat is not a repeat, or another call is")
	}
	for i := range 5000 {
		call(fmt.Sprint("op", i), "/x")
	}
	if len(o.order) > onceResults || o.bytes > onceBytes || len(o.results) != len(o.order) {
		t.Errorf("%d results of %d bytes are kept", len(o.order), o.bytes)
	}
	before := calls.Load()
	call("op4999", "/x")
	if calls.Load() != before {
		t.Error("the newest is forgotten")
	}
	call("failed", "/x?fail")
	call("failed", "/x?fail")
	if calls.Load() != before+2 {
		t.Error("a failure is remembered")
	}
}

// A kept connection that died meanwhile costs nothing: a safe call is made again on a new one.
func TestDeadConnection(t *testing.T) {
	g := NewServer(Config{Token: testToken})
	defer g.Close()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := l.Addr().String()
	srv := &http.Server{Handler: g.Handler()}
	go func() { _ = srv.Serve(l) }()
	var conns []net.Conn
	var mu sync.Mutex
	c := NewClient(func(ctx context.Context) (net.Conn, error) {
		var d net.Dialer
		conn, err := d.DialContext(ctx, "tcp", addr)
		mu.Lock()
		defer mu.Unlock()
		conns = append(conns, conn)
		return conn, err
	}, func() string { return testToken })
	defer c.Close()
	for i := range 5 {
		if _, err := c.Exec(t.Context(), Start{ID: fmt.Sprint("proc_", i), Command: "true", Cwd: "/"}, time.Minute); err != nil {
			t.Fatalf("exec %d: %v", i, err)
		}
		if _, err := c.Activity(t.Context()); err != nil {
			t.Fatalf("activity %d: %v", i, err)
		}
		_ = srv.Close() // every connection is closed by the guest's side
		if l, err = net.Listen("tcp", addr); err != nil {
			t.Fatal(err)
		}
		srv = &http.Server{Handler: g.Handler()}
		go func(srv *http.Server, l net.Listener) { _ = srv.Serve(l) }(srv, l)
	}
	_ = srv.Close()
}

// Calls one after the other share a connection.
func TestConnectionsAreKept(t *testing.T) {
	r := newRig(t)
	for range 20 {
		r.exec(Start{Command: "true"})
	}
	if n := r.dials.Load(); n > 2 {
		t.Errorf("%d connections for calls one after the other", n)
	}
}

// Hello waits for a guest that is still booting, and not for ever for one that never does.
func TestHelloWaitsForTheBoot(t *testing.T) {
	g := NewServer(Config{Token: testToken})
	defer g.Close()
	srv := httptest.NewServer(g.Handler())
	defer srv.Close()
	var tries atomic.Int64
	c := NewClient(func(ctx context.Context) (net.Conn, error) {
		switch n := tries.Add(1); {
		case n < 5:
			return nil, errors.New("connection refused")
		case n < 10: // as a driver says it
			return nil, errs.E(errs.Unavailable, "nothing listens").Because("refused")
		}
		var d net.Dialer
		return d.DialContext(ctx, "tcp", srv.Listener.Addr().String())
	}, func() string { return testToken })
	defer c.Close()
	if _, err := c.Hello(t.Context()); err != nil {
		t.Errorf("hello: %v", err)
	}

	never := NewClient(func(context.Context) (net.Conn, error) { return nil, errors.New("connection refused") }, func() string { return "" })
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := never.Hello(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("hello to nobody: %v", err)
	}
	gone := NewClient(func(context.Context) (net.Conn, error) { return nil, errs.E(errs.NotFound, "no such sandbox") }, func() string { return "" })
	if _, err := gone.Hello(t.Context()); !errs.Is(err, errs.NotFound) {
		t.Errorf("hello to a sandbox that is gone: %v", err)
	}
	_, err := never.Activity(t.Context())
	wantCode(t, err, errs.HostUnavailable, "")
}

// kept is what a test keeps of an export.
type kept struct {
	Process Process
	Streams map[string]map[int64]string
}

// whole is what was kept of a stream, its chunks put together.
func (k kept) whole(stream string) string {
	var all strings.Builder
	for _, at := range slices.Sorted(maps.Keys(k.Streams[stream])) {
		all.WriteString(k.Streams[stream][at])
	}
	return all.String()
}

func collect(into *[]kept) func(ExportRecord) error {
	return func(rec ExportRecord) error {
		if rec.Process != nil {
			*into = append(*into, kept{*rec.Process, map[string]map[int64]string{"stdout": {}, "stderr": {}}})
			return nil
		}
		last := &(*into)[len(*into)-1]
		last.Streams[rec.Chunk.Stream][rec.Chunk.Offset] = string(rec.Chunk.Data)
		return nil
	}
}

// Symptom 31: what processes wrote can be kept beyond a stop.
func TestExport(t *testing.T) {
	r := newRig(t)
	small := r.exec(Start{Command: "echo out; echo err >&2; exit 5"}).Process
	size := int64(SpoolBytes + 3*HeadTailBytes)
	large := r.exec(Start{Command: fmt.Sprintf("head -c %d /dev/zero", size)}).Process
	running := r.start(Start{Command: "echo begun; sleep 1000"})
	r.until(running.ID, "begun\n")
	running, _ = r.Process(t.Context(), running.ID)
	var got []kept
	if err := r.Export(t.Context(), collect(&got)); err != nil {
		t.Fatal(err)
	}
	if len(got) != 3 || got[0].Process != small || got[1].Process != large || got[2].Process != running {
		t.Fatalf("processes = %+v", got)
	}
	if d := cmp.Diff(map[string]map[int64]string{"stdout": {0: "out\n"}, "stderr": {0: "err\n"}}, got[0].Streams); d != "" {
		t.Error(d)
	}
	head, tail := int64(0), int64(0)
	for at, data := range got[1].Streams["stdout"] {
		if at < HeadTailBytes {
			head += int64(len(data))
		} else {
			tail += int64(len(data))
		}
	}
	if head != HeadTailBytes || tail != SpoolBytes {
		t.Errorf("of a large stream %d and %d bytes are kept", head, tail)
	}
}

// A shutdown lets processes end by themselves, kills what does not, gives what all of them wrote, and ends the guest.
func TestShutdown(t *testing.T) {
	r := newRig(t)
	polite := r.start(Start{Command: "trap 'echo bye; exit 3' TERM; echo ready; while :; do sleep 0.01; done"})
	stubborn := r.start(Start{Command: "trap '' TERM; echo ready; while :; do sleep 0.01; done"})
	r.until(polite.ID, "ready\n")
	r.until(stubborn.ID, "ready\n")
	var got []kept
	if err := r.ShutdownExport(t.Context(), 300*time.Millisecond, collect(&got)); err != nil {
		t.Fatal(err)
	}
	if len(got) != 2 {
		t.Fatalf("got %+v", got)
	}
	p, s := got[0], got[1]
	if p.Process.ID != polite.ID {
		p, s = s, p
	}
	if p.Process.Running || p.Process.ExitCode != 3 || !strings.HasSuffix(p.whole("stdout"), "bye\n") {
		t.Errorf("polite = %+v", p)
	}
	if s.Process.Running || s.Process.Signal != "KILL" {
		t.Errorf("stubborn = %+v", s)
	}
	select {
	case <-r.server.Done():
	case <-time.After(10 * time.Second):
		t.Error("the guest does not end")
	}
	_, err := r.StartProcess(t.Context(), Start{ID: "proc_late", Command: "true", Cwd: "/"})
	wantCode(t, err, errs.Busy, "stopping")
}

func TestMetricsAndSync(t *testing.T) {
	r := newRig(t)
	r.exec(Start{Command: "for i in 1 2 3 4 5 6 7 8 9; do : ; done"})
	m, err := r.Metrics(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if m.MemoryTotal <= 0 || m.MemoryUsed <= 0 || m.MemoryUsed > m.MemoryTotal || m.Processes < 0 || !insideGvisor() && (m.DiskTotal <= 0 || m.DiskUsed <= 0 || m.CPUSeconds <= 0) {
		t.Errorf("metrics = %+v", m)
	}
	if err := r.Sync(t.Context()); err != nil {
		t.Error(err)
	}
}

// With a root, paths and working directories are below it: for tests of a whole system in one process.
func TestRoot(t *testing.T) {
	root := openDir(t)
	r := newRig(t, func(c *Config) { c.Root = root })
	if err := r.server.MakeWorkDir(); err != nil {
		t.Fatal(err)
	}
	w, err := r.WriteFile(t.Context(), "", FileWrite{Path: "a/b", Data: []byte("x")})
	if err != nil || w.Info.Path != "/workspace/a/b" {
		t.Fatalf("written %+v, %v", w, err)
	}
	res, err := r.Exec(t.Context(), Start{ID: r.id(), Command: "cat a/b; pwd"}, time.Minute)
	if err != nil || string(res.Stdout.Head) != "x"+root+"/workspace\n" || res.Process.Cwd != "/workspace" {
		t.Errorf("%q in %s, %v", res.Stdout.Head, res.Process.Cwd, err)
	}
	l, err := r.ListFiles(t.Context(), FileList{Path: "/workspace", Depth: 2, Limit: 1})
	if err != nil || len(l.Entries) != 1 || l.Entries[0].Path != "/workspace/a" || l.Next != "/workspace/a" {
		t.Errorf("list = %+v, %v", l, err)
	}
	if m, err := r.MoveFile(t.Context(), "", FileMove{From: "a/b", To: "/etc/b"}); err != nil || m.Path != "/etc/b" {
		t.Errorf("move = %+v, %v", m, err)
	}
}
