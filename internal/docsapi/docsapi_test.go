package docsapi

import (
	"html"
	"io"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	pages "github.com/berthrun/berth/docs"
	"github.com/berthrun/berth/internal/docs"
	"github.com/berthrun/berth/internal/errs"
)

func handler(t testing.TB) (http.Handler, *docs.Library) {
	t.Helper()
	l, err := docs.New(pages.Files())
	if err != nil {
		t.Fatal(err)
	}
	return New(Config{Library: l}), l
}

func get(t testing.TB, h http.Handler, path string, headers ...string) (*http.Response, string) {
	t.Helper()
	r := httptest.NewRequest(http.MethodGet, "http://berth.test"+path, nil)
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	res := w.Result()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return res, string(b)
}

var (
	hrefs    = regexp.MustCompile(`(?:href|src|action)="([^"]*)"`)
	elements = regexp.MustCompile(`id="([^"]*)"`)
)

// Every page is served, and every link on it leads to a page and a heading that are there. Nothing comes from elsewhere, and nothing runs.
func TestEveryPage(t *testing.T) {
	h, l := handler(t)
	seen := map[string]string{}
	for _, p := range l.Pages() {
		res, body := get(t, h, Path(p))
		if res.StatusCode != http.StatusOK || !strings.HasPrefix(res.Header.Get("Content-Type"), "text/html") {
			t.Fatalf("%s: %d %s", p.ID, res.StatusCode, res.Header.Get("Content-Type"))
		}
		seen[Path(p)] = body
		if csp := res.Header.Get("Content-Security-Policy"); !strings.Contains(csp, "default-src 'none'") || strings.Contains(csp, "unsafe") || strings.Contains(csp, "script-src") {
			t.Errorf("%s: policy %s", p.ID, csp)
		}
		for _, part := range []string{"<script", "javascript:", "<img", "onload=", "<!-- raw HTML omitted -->"} {
			if strings.Contains(body, part) {
				t.Errorf("%s has %s", p.ID, part)
			}
		}
		md, text := get(t, h, Base+"/"+p.File)
		if md.StatusCode != http.StatusOK || text != p.Text || md.Header.Get("Content-Type") != "text/markdown; charset=utf-8" || md.Header.Get("Access-Control-Allow-Origin") != "*" {
			t.Errorf("%s as Markdown: %d %v", p.ID, md.StatusCode, md.Header)
		}
	}
	for at, body := range seen {
		for _, m := range hrefs.FindAllStringSubmatch(body, -1) {
			to := html.UnescapeString(m[1])
			path, fragment, _ := strings.Cut(to, "#")
			if path == "" {
				path = at
			}
			switch {
			case strings.HasPrefix(path, "https://") || path == Base+"/search" || path == Base+"/llms.txt" || strings.HasSuffix(path, ".md") && fragment == "":
				continue
			case seen[path] == "":
				t.Errorf("%s links %s, which is not there", at, to)
				continue
			}
			if fragment == "" {
				continue
			}
			found := false
			for _, e := range elements.FindAllStringSubmatch(seen[path], -1) {
				found = found || html.UnescapeString(e[1]) == fragment
			}
			if !found {
				t.Errorf("%s links %s, but the page has no such heading", at, to)
			}
		}
	}
}

func TestForms(t *testing.T) {
	h, _ := handler(t)
	for _, tt := range []struct {
		path, accept string
		status       int
		kind, has    string
	}{
		{"/docs/files", "text/markdown", 200, "text/markdown; charset=utf-8", "# Files"},
		{"/docs/files", "text/markdown, text/html;q=0.9", 200, "text/markdown; charset=utf-8", "# Files"},
		{"/docs/files", "text/html,application/xhtml+xml,*/*;q=0.8", 200, "text/html; charset=utf-8", "<h1"},
		{"/docs/files", "*/*", 200, "text/html; charset=utf-8", "<h1"},
		{"/docs/", "text/markdown", 200, "text/markdown; charset=utf-8", "# Berth"},
		{"/docs/llms.txt", "", 200, "text/plain; charset=utf-8", "http://berth.test/docs/files.md"},
		{"/docs/llms-full.txt", "", 200, "text/plain; charset=utf-8", "# Files"},
		{"/docs/search?q=delete+a+sandbox", "", 200, "text/html; charset=utf-8", `class="hit"`},
		{"/docs/search?q=%3Cscript%3Ealert(1)%3C/script%3E", "", 200, "text/html; charset=utf-8", "&lt;script&gt;"},
		{"/docs/search", "", 200, "text/html; charset=utf-8", "<h1>Search"},
		{"/docs/search?q=" + strings.Repeat("a", 500), "", 400, "text/html; charset=utf-8", "too long"},
		{"/docs/nothing", "", 404, "text/html; charset=utf-8", "No such page"},
		{"/docs/nothing.md", "", 404, "text/html; charset=utf-8", "No such page"},
		{"/docs/adr/dependencies.md", "", 404, "text/html; charset=utf-8", "No such page"},
		{"/docs/plans/03", "", 404, "text/html; charset=utf-8", "No such page"},
		{"/docs/../docs.go", "", 404, "text/html; charset=utf-8", "No such page"},
		{"/docs/files?key=berth_sk_0123456789012345678901234567890", "", 400, "text/html; charset=utf-8", "revoke"},
	} {
		res, body := get(t, h, tt.path, "Accept", tt.accept)
		if res.StatusCode != tt.status || res.Header.Get("Content-Type") != tt.kind || !strings.Contains(body, tt.has) {
			t.Errorf("%s (%s): %d %s, has %q: %v", tt.path, tt.accept, res.StatusCode, res.Header.Get("Content-Type"), tt.has, strings.Contains(body, tt.has))
		}
		if strings.Contains(body, "<script>") {
			t.Errorf("%s: runs what was asked for", tt.path)
		}
	}
	for from, to := range map[string]string{"/docs": "/docs/", "/docs/files/": "/docs/files", "/docs/reference/": "/docs/reference", "/docs/README": "/docs/", "/docs/index": "/docs/"} {
		if res, _ := get(t, h, from); res.StatusCode != http.StatusMovedPermanently || res.Header.Get("Location") != to {
			t.Errorf("%s: %d to %s", from, res.StatusCode, res.Header.Get("Location"))
		}
	}
	res, _ := get(t, h, "/docs/files")
	if again, body := get(t, h, "/docs/files", "If-None-Match", res.Header.Get("ETag")); again.StatusCode != http.StatusNotModified || body != "" {
		t.Errorf("asked again: %d", again.StatusCode)
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest(http.MethodPost, "/docs/files", nil))
	if w.Code != http.StatusMethodNotAllowed || w.Header().Get("Allow") != "GET, HEAD" {
		t.Errorf("POST: %d", w.Code)
	}
}

// llms.txt has a title, a summary and sections of links with a line each, as its format asks.
func TestLLMs(t *testing.T) {
	h, l := handler(t)
	_, text := get(t, h, "/docs/llms.txt")
	lines := strings.Split(strings.TrimSpace(text), "\n")
	if lines[0] != "# Berth" || !strings.HasPrefix(lines[2], "> ") {
		t.Errorf("begins with %q", lines[:3])
	}
	item := regexp.MustCompile(`^- \[[^\]]+\]\(http://berth\.test/docs/([^)]+)\): \S.*$`)
	links, sections := map[string]bool{}, 0
	for _, line := range lines[4:] {
		switch {
		case strings.HasPrefix(line, "## "):
			sections++
		case strings.HasPrefix(line, "- "):
			m := item.FindStringSubmatch(line)
			if m == nil {
				t.Errorf("not a link and a description: %s", line)
				continue
			}
			links[m[1]] = true
		}
	}
	for _, p := range l.Pages() {
		if p.ID != docs.Index && !links[p.File] {
			t.Errorf("%s is not listed", p.File)
		}
	}
	if sections < 3 {
		t.Errorf("%d sections", sections)
	}
	_, full := get(t, h, "/docs/llms-full.txt")
	for _, p := range l.Pages() {
		if p.ID != docs.Index && !strings.Contains(full, strings.TrimSpace(p.Text)) {
			t.Errorf("llms-full.txt lacks %s", p.File)
		}
	}
}

// What a page says in HTML is left out, and an address that would run something too.
func TestSafe(t *testing.T) {
	l, err := docs.New(fstest.MapFS{"README.md": {Data: []byte("# A\n\n<script>alert(1)</script>\n\n[x](javascript:alert(1)) [y](data:text/html,z) <b onclick=a()>b</b>\n")}})
	if err != nil {
		t.Fatal(err)
	}
	_, body := get(t, New(Config{Library: l}), "/docs/")
	for _, part := range []string{"<script", "javascript:", "data:text", "onclick"} {
		if strings.Contains(body, part) {
			t.Errorf("has %s:\n%s", part, body)
		}
	}
}

func TestTargets(t *testing.T) {
	page := &docs.Page{File: "reference/README.md"}
	root := &docs.Page{File: "life.md"}
	for _, tt := range []struct {
		p        *docs.Page
		to, want string
	}{
		{root, "files.md#paths", "/docs/files#paths"},
		{root, "#states", "#states"},
		{root, "README.md", "/docs/"},
		{root, "reference/", "/docs/reference"},
		{root, "reference/README.md#errors", "/docs/reference#errors"},
		{root, "adr/0001-gvisor-in-process.md", Source + "docs/adr/0001-gvisor-in-process.md"},
		{root, "adr/", Source + "docs/adr"},
		{root, "../LICENSE", Source + "LICENSE"},
		{root, "https://example.com/a.md", "https://example.com/a.md"},
		{page, "sandboxes.md#x", "/docs/reference/sandboxes#x"},
		{page, "../life.md", "/docs/life"},
	} {
		if got := target(tt.p, tt.to); got != tt.want {
			t.Errorf("%s in %s: %s, want %s", tt.to, tt.p.File, got, tt.want)
		}
	}
}

func TestLimiter(t *testing.T) {
	now := time.Unix(1000, 0)
	l := newLimiter(3, func() time.Time { return now })
	use := func(source string) (n int) {
		for l.allow(source) == nil {
			n++
		}
		return n
	}
	if a, b := use("192.0.2.1"), use("192.0.2.2"); a != 3 || b != 3 {
		t.Errorf("%d and %d calls, want 3 each", a, b)
	}
	if err := errs.From(l.allow("192.0.2.1")); err.Code != errs.RateLimited || err.RetryAfter <= 0 || err.RetryAfter > 20*time.Second {
		t.Errorf("%+v", err)
	}
	if a, b := use("2001:db8::1"), use("2001:db8::ffff:2"); a != 3 || b != 0 {
		t.Errorf("one network of IPv6: %d and %d", a, b)
	}
	now = now.Add(20 * time.Second)
	if n := use("192.0.2.1"); n != 1 {
		t.Errorf("%d calls after a third of a minute", n)
	}
	now = now.Add(-time.Hour)
	if n := use("192.0.2.9"); n != 3 {
		t.Errorf("%d calls of a new one after the clock went back", n)
	}
	for i := range mostSources + 10 {
		_ = l.allow(time.Duration(i).String())
	}
	if len(l.all) > mostSources {
		t.Errorf("%d addresses are remembered", len(l.all))
	}
}
