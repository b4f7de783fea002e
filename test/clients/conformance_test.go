package clients

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// withKey puts a proxy that adds the key in front of an endpoint: the conformance suite cannot send one. Host and Origin pass as they are.
//
// The proxy has the whole body before it passes a request on. Else an answer may come while the proxy still looks for the body's end; its server closes
// the body then, the proxy takes that for a failed request, and cuts the answer off. On a busy machine that struck once in a few runs of the suite.
func withKey(t *testing.T, endpoint, key string) string {
	t.Helper()
	to, err := url.Parse(endpoint)
	if err != nil {
		t.Fatal(err)
	}
	proxy := &httputil.ReverseProxy{FlushInterval: -1, Rewrite: func(r *httputil.ProxyRequest) {
		r.SetURL(&url.URL{Scheme: to.Scheme, Host: to.Host})
		r.Out.Host = r.In.Host
		r.Out.Header.Set("Authorization", "Bearer "+key)
	}}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return // the client is gone
		}
		r.Body = io.NopCloser(bytes.NewReader(body))
		proxy.ServeHTTP(w, r)
	}))
	t.Cleanup(server.Close)
	return server.URL + to.Path
}

// conformance gives the suite's program. Its use of one function that Node.js 20 lacks is an import without a call, which is taken out.
func conformance(t *testing.T) string {
	t.Helper()
	dir := "node_modules/@modelcontextprotocol/conformance/dist"
	b, err := os.ReadFile(filepath.Join(dir, "index.js"))
	if err != nil {
		missing(t, "the conformance suite is not installed")
	}
	program := filepath.Join(dir, "index-without-glob.js")
	b = regexp.MustCompile(`globSync as \w+,`).ReplaceAll(b, nil)
	if old, err := os.ReadFile(program); err != nil || !bytes.Equal(old, b) {
		if err := os.WriteFile(program, b, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return program
}

// withFixtures builds the program with the fixtures that the suite calls by name.
func withFixtures(t *testing.T) string {
	t.Helper()
	bin := filepath.Join(t.TempDir(), "berth")
	if out, err := exec.Command("go", "build", "-tags", "conformance", "-o", bin, "../../cmd/berth").CombinedOutput(); err != nil {
		t.Fatalf("build: %v\n%s", err, out)
	}
	return bin
}

// TestConformance runs what each revision requires against the real program. A scenario that fails on purpose is in the file of its revision with the
// reason; every other one must pass, and one that passes must not be in it.
//
// The suite gives some answers half a second. That can be too short for a process that waits for its turn on a machine that is busy with other tests, so
// server and suite go before them.
func TestConformance(t *testing.T) {
	needNode(t)
	program := conformance(t)
	endpoint, key := startProgram(t, withFixtures(t))
	for _, revision := range []string{"2025-11-25", "2026-07-28"} {
		t.Run(revision, func(t *testing.T) {
			dir := t.TempDir()
			stdout, stderr, code := node(t, nil, program, "server", "--url", withKey(t, endpoint, key), "--requirements", revision,
				"--expected-failures", "expected-failures-"+revision+".yml", "-o", dir)
			t.Logf("%s", tail(stdout, 6000))
			if code != 0 {
				t.Fatalf("exit %d\n%s\n%s", code, tail(stderr, 4000), failures(t, dir))
			}
		})
	}
}

// failures says which checks failed, and why.
func failures(t *testing.T, dir string) string {
	t.Helper()
	var all strings.Builder
	files, err := filepath.Glob(filepath.Join(dir, "*", "checks.json"))
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		var checks []struct{ ID, Status, ErrorMessage string }
		if b, err := os.ReadFile(file); err != nil || json.Unmarshal(b, &checks) != nil {
			continue
		}
		for _, c := range checks {
			if c.Status == "FAILURE" || c.Status == "WARNING" {
				fmt.Fprintf(&all, "%s: %s %s: %s\n", filepath.Base(filepath.Dir(file)), c.Status, c.ID, c.ErrorMessage)
			}
		}
	}
	return all.String()
}

func tail(s string, n int) string { return s[max(0, len(s)-n):] }
