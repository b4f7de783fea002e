package clients

import (
	"bytes"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"testing"
)

// withKey puts a proxy that adds the key in front of an endpoint: the conformance suite cannot send one. Host and Origin pass as they are.
func withKey(t *testing.T, endpoint, key string) string {
	t.Helper()
	to, err := url.Parse(endpoint)
	if err != nil {
		t.Fatal(err)
	}
	proxy := httptest.NewServer(&httputil.ReverseProxy{FlushInterval: -1, Rewrite: func(r *httputil.ProxyRequest) {
		r.SetURL(&url.URL{Scheme: to.Scheme, Host: to.Host})
		r.Out.Host = r.In.Host
		r.Out.Header.Set("Authorization", "Bearer "+key)
	}})
	t.Cleanup(proxy.Close)
	return proxy.URL + to.Path
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

// TestConformance runs what each revision requires. Scenarios that call fixtures of the suite by name (a tool test_simple_text, a resource
// test://…) fail on every server that is not made for it; expected-failures.yml lists them, and a scenario that is not listed must pass. The list
// is checked the other way round too: one that passes must not be on it.
func TestConformance(t *testing.T) {
	needNode(t)
	program := conformance(t)
	endpoint, key := startLocal(t)
	for _, revision := range []string{"2025-11-25", "2026-07-28"} {
		t.Run(revision, func(t *testing.T) {
			// The suite's own timeouts are short: on a busy machine one of its scenarios may fail that passes a moment later. What fails is asked again.
			for try := 1; ; try++ {
				stdout, stderr, code := node(t, nil, program, "server", "--url", withKey(t, endpoint, key), "--requirements", revision,
					"--expected-failures", "expected-failures-"+revision+".yml", "-o", t.TempDir())
				t.Logf("%s", tail(stdout, 4000))
				if code == 0 {
					return
				}
				if try == 3 {
					t.Fatalf("exit %d\n%s", code, tail(stderr, 2000))
				}
			}
		})
	}
}

func tail(s string, n int) string { return s[max(0, len(s)-n):] }
