package clients

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/berthrun/berth/internal/xtest"
)

// published packs the TypeScript client as npm would publish it, and gives a folder in which it is installed.
func published(t *testing.T) string {
	t.Helper()
	needNode(t)
	if _, err := os.Stat("node_modules/.bin/tsc"); err != nil {
		missing(t, "TypeScript is not installed in test/clients: make clients installs it")
	}
	here, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	src := filepath.Join(dir, "src")
	if err := os.CopyFS(src, os.DirFS("../../clients/typescript")); err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(filepath.Join(src, "dist")); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(filepath.Join(here, "node_modules"), filepath.Join(src, "node_modules")); err != nil {
		t.Fatal(err)
	}
	var packed []struct {
		Filename string
		Files    []struct{ Path string }
	}
	out := command(t, src, "npm", "pack", "--json", "--loglevel=error", "--cache", filepath.Join(dir, "cache"))
	if err := json.Unmarshal(out[bytes.IndexByte(out, '['):], &packed); err != nil || len(packed) != 1 {
		t.Fatalf("npm pack: %v\n%s", err, out)
	}
	var files []string
	for _, f := range packed[0].Files {
		files = append(files, f.Path)
	}
	for _, want := range []string{"package.json", "README.md", "dist/index.js", "dist/index.d.ts", "dist/generated.d.ts"} {
		if !slices.Contains(files, want) {
			t.Errorf("the package lacks %s: %v", want, files)
		}
	}
	if slices.ContainsFunc(files, func(f string) bool { return strings.HasSuffix(f, ".go") || strings.Contains(f, "node_modules") }) {
		t.Errorf("the package has what it should not: %v", files)
	}
	installed := filepath.Join(dir, "app", "node_modules", "berth")
	if err := os.MkdirAll(installed, 0o755); err != nil {
		t.Fatal(err)
	}
	command(t, dir, "tar", "-xzf", filepath.Join(src, packed[0].Filename), "-C", installed, "--strip-components=1")
	app := filepath.Join(dir, "app")
	if err := os.CopyFS(app, os.DirFS("typescript")); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(app, "package.json"), []byte(`{"type":"module","private":true}`), 0o600); err != nil {
		t.Fatal(err)
	}
	return app
}

// typeScriptPage makes one program of the code on the documentation's page, and of the README's another that is only compiled.
func typeScriptPage(t *testing.T, app string) string {
	t.Helper()
	for file, name := range map[string]string{"../../docs/typescript.md": "page.ts", "../../clients/typescript/README.md": "readme.ts"} {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		program := "declare const process: { env: Record<string, string | undefined> };\n"
		blocks := strings.Split(string(text), "```ts\n")[1:]
		for _, b := range blocks {
			code, _, _ := strings.Cut(b, "```")
			program += code
		}
		if len(blocks) == 0 {
			t.Fatalf("%s has no code", file)
		}
		if err := os.WriteFile(filepath.Join(app, name), []byte(program), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return "page.ts"
}

func command(t *testing.T, dir, name string, args ...string) []byte {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), name, args...)
	cmd.Dir = dir
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s%s", name, strings.Join(args, " "), err, out, stderr.Bytes())
	}
	return out
}

// TestTypeScriptClient tries the client's published package: its types with the compiler, and its calls on Node.js against a whole server.
func TestTypeScriptClient(t *testing.T) {
	app := published(t)
	tsc, err := filepath.Abs("node_modules/.bin/tsc")
	if err != nil {
		t.Fatal(err)
	}
	command(t, app, tsc, "--noEmit", "--strict", "--exactOptionalPropertyTypes", "--module", "nodenext", "--target", "es2022",
		"--lib", "es2023,dom,dom.asynciterable", "--types", "", "usage.ts")

	program := typeScriptPage(t, app)
	command(t, app, tsc, "--strict", "--module", "nodenext", "--target", "es2022", "--lib", "es2023,dom,dom.asynciterable", "--types", "", program, "readme.ts")

	s := xtest.Start(t, xtest.Options{})
	f := &faults{next: s.Plane.Handler(), seen: map[string]int{}}
	server := httptest.NewServer(f)
	defer server.Close()
	var out bytes.Buffer
	cmd := exec.CommandContext(t.Context(), "node", "--test", "--test-reporter=spec", ".")
	cmd.Dir, cmd.Stdout, cmd.Stderr = app, &out, &out
	cmd.Env = append(os.Environ(), "BERTH_URL="+server.URL, "BERTH_API_KEY="+s.Key)
	if err := cmd.Run(); err != nil {
		t.Errorf("%v\n%s", err, out.String())
	}
	page := exec.CommandContext(t.Context(), "node", strings.TrimSuffix(program, ".ts")+".js")
	page.Dir, page.Env = app, append(os.Environ(), "BERTH_URL="+s.URL, "BERTH_API_KEY="+s.Key)
	printed, err := page.CombinedOutput()
	for _, want := range []string{"0 42\n", "one\ntwo\n", "1\n2\n3\n", "typescript 20", "exit code 0\n", "3000000 3000000\n", "true\n"} {
		if err != nil || !strings.Contains(string(printed), want) {
			t.Errorf("the page's program: %v, prints no %q:\n%s", err, want, printed)
		}
	}
	for _, kind := range []string{"dropped", "cut", "hung", "limited", "follow"} {
		if f.count(kind) < 2 {
			t.Errorf("the fault %s did not happen and get mended: %d requests", kind, f.count(kind))
		}
	}
}

// faults stands before a server and spoils the first answer to a request that makes something whose name asks for it.
type faults struct {
	next http.Handler
	mu   sync.Mutex
	seen map[string]int // requests by kind
}

func (f *faults) count(kind string) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.seen[kind]
}

// ServeHTTP implements http.Handler.
func (f *faults) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if rest, ok := strings.CutPrefix(r.URL.Path, "/elsewhere"); ok {
		http.Redirect(w, r, rest, http.StatusTemporaryRedirect)
		return
	}
	if r.URL.Query().Get("follow") == "true" {
		f.mu.Lock()
		f.seen["follow"]++
		n := f.seen["follow"]
		f.mu.Unlock()
		if n == 1 {
			w = &broken{ResponseWriter: w, left: 700}
		}
		f.next.ServeHTTP(w, r)
		return
	}
	if r.Method != http.MethodPost || r.URL.Path != "/v1/sandboxes" {
		f.next.ServeHTTP(w, r)
		return
	}
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	r.Body = io.NopCloser(bytes.NewReader(body))
	var in struct{ Name string }
	_ = json.Unmarshal(body, &in)
	kind, _, _ := strings.Cut(in.Name, "-")
	f.mu.Lock()
	f.seen[kind]++
	n := f.seen[kind]
	f.mu.Unlock()
	switch {
	case kind == "limited" && n <= 2 || in.Name == "limited-once":
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusTooManyRequests)
		_, _ = io.WriteString(w, `{"error":{"code":"RATE_LIMITED","message":"too many calls","suggestion":"Wait.","requestId":"req_1","retryAfterMs":300}}`)
	case n == 1 && (kind == "dropped" || kind == "cut" || kind == "hung"):
		answer := httptest.NewRecorder()
		f.next.ServeHTTP(answer, r) // it is done; only the answer does not arrive
		switch kind {
		case "cut":
			w.Header().Set("Content-Length", "100000")
			_, _ = w.Write(answer.Body.Bytes()[:20])
		case "hung":
			<-r.Context().Done()
		}
		panic(http.ErrAbortHandler)
	default:
		f.next.ServeHTTP(w, r)
	}
}

// broken breaks the connection off after so many bytes.
type broken struct {
	http.ResponseWriter
	left int
}

// Write implements io.Writer.
func (b *broken) Write(p []byte) (int, error) {
	if len(p) <= b.left {
		b.left -= len(p)
		return b.ResponseWriter.Write(p)
	}
	_, _ = b.ResponseWriter.Write(p[:b.left])
	b.left = 0
	_ = http.NewResponseController(b.ResponseWriter).Flush()
	return 0, io.ErrClosedPipe // the server then breaks the connection off
}

// Unwrap is for http.ResponseController.
func (b *broken) Unwrap() http.ResponseWriter { return b.ResponseWriter }
