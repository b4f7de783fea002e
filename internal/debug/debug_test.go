package debug

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func get(h http.Handler, path string, header ...string) *httptest.ResponseRecorder {
	r := httptest.NewRequest("GET", path, nil)
	for i := 0; i+1 < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	rec := httptest.NewRecorder()
	h.ServeHTTP(rec, r)
	return rec
}

func TestPages(t *testing.T) {
	h := Handler(Config{
		Version: "1.2.3", State: func(context.Context) any { return map[string]int{"calls": 3} },
		Metrics: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("m 1\n")) }),
	})
	for path, part := range map[string]string{
		"/metrics": "m 1", "/debug/vars": `"goroutines": `, "/debug/state": `"calls": 3`, "/debug/pprof/": "goroutine", "/debug/pprof/goroutine?debug=1": "goroutine profile", "/": "/debug/state",
	} {
		if rec := get(h, path); rec.Code != 200 || !strings.Contains(rec.Body.String(), part) {
			t.Errorf("%s: %d %.100s", path, rec.Code, rec.Body)
		}
	}
	if rec := get(h, "/debug/pprof/cmdline"); rec.Code != 404 {
		t.Errorf("the command line is told: %s", rec.Body)
	}
	if rec := get(h, "/debug/vars", "Origin", "https://evil.example"); rec.Code != 403 {
		t.Errorf("a web page got %d", rec.Code)
	}
	var v map[string]any
	if err := json.Unmarshal(get(h, "/debug/vars").Body.Bytes(), &v); err != nil || v["version"] != "1.2.3" {
		t.Errorf("vars: %v, %v", v, err)
	}
}

func TestListen(t *testing.T) {
	dir, err := os.MkdirTemp("", "dbg")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir) //nolint:errcheck // only sockets are in it
	path := filepath.Join(dir, "s")
	first, err := Listen(t.Context(), "unix:"+path)
	if err != nil {
		t.Fatal(err)
	}
	if st, err := os.Stat(path); err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("the socket: %v, %v", st, err)
	}
	if _, err := Listen(t.Context(), "unix:"+path); err == nil {
		t.Error("a socket in use was taken")
	}
	// One that was killed leaves its socket behind.
	first.(interface{ SetUnlinkOnClose(bool) }).SetUnlinkOnClose(false)
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	again, err := Listen(t.Context(), "unix:"+path)
	if err != nil {
		t.Fatal(err)
	}
	_ = again.Close()
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Listen(t.Context(), "unix:"+path); err == nil {
		t.Error("a file was replaced")
	}
	tcp, err := Listen(t.Context(), "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_ = tcp.Close()
}
