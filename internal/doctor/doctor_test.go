package doctor

import (
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/berthrun/berth/internal/db"
	"github.com/berthrun/berth/internal/image/bootstrap"
)

// machine writes the files of a kernel that the checks read.
func machine(t *testing.T, files map[string]string) string {
	t.Helper()
	root := t.TempDir()
	for name, text := range files {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return root
}

func find(t *testing.T, checks []Check, id string) Check {
	t.Helper()
	for _, c := range checks {
		if c.ID == id {
			return c
		}
	}
	t.Fatalf("there is no check %s in %v", id, checks)
	return Check{}
}

func all(ns string) map[string]string {
	m := map[string]string{"proc/sys/kernel/osrelease": "6.1.0-18-amd64\n", "proc/sys/kernel/seccomp/actions_avail": "kill_process trap errno allow\n"}
	for _, n := range strings.Fields("net mnt pid uts ipc user") {
		if n != ns {
			m["proc/self/ns/"+n] = ""
		}
	}
	return m
}

func TestMachines(t *testing.T) {
	for _, c := range []struct {
		name, id, want, found string
		files                 map[string]string
	}{
		{"new kernel", "host.kernel", OK, "Linux 6.1.0-18-amd64", all("")},
		{"old kernel", "host.kernel", Error, "Linux 3.10", map[string]string{"proc/sys/kernel/osrelease": "3.10.0-1160\n"}},
		{"older than tested", "host.kernel", Warn, "Linux 5.4", map[string]string{"proc/sys/kernel/osrelease": "5.4.0\n"}},
		{"no kernel", "host.kernel", Skipped, "", nil},
		{"seccomp", "host.seccomp", OK, "", all("")},
		{"no seccomp", "host.seccomp", Error, "no seccomp", map[string]string{"proc/sys/kernel/osrelease": "6.1.0\n"}},
		{"namespaces", "host.namespaces", OK, "", all("")},
		{"a namespace less", "host.namespaces", Error, "missing: net", all("net")},
		{"namespaces forbidden", "host.namespaces", Error, "max_net_namespaces is 0", func() map[string]string {
			m := all("")
			m["proc/sys/user/max_net_namespaces"] = "0\n"
			return m
		}()},
		{"version 2", "host.cgroups", OK, "version 2", map[string]string{"sys/fs/cgroup/cgroup.controllers": "cpuset cpu io memory pids\n"}},
		{"version 2 without memory", "host.cgroups", Warn, "without memory", map[string]string{"sys/fs/cgroup/cgroup.controllers": "cpu pids\n"}},
		{"version 2 without any", "host.cgroups", Warn, "version 2 without cpu, memory, pids", map[string]string{"sys/fs/cgroup/cgroup.controllers": "\n"}},
		{"version 1", "host.cgroups", OK, "version 1", map[string]string{"proc/self/mounts": "c /sys/fs/cgroup/cpu cgroup rw,cpu,cpuacct 0 0\nm /m cgroup rw,memory 0 0\np /p cgroup rw,pids 0 0\n"}},
		{"no control groups", "host.cgroups", Error, "no control groups", map[string]string{"proc/self/mounts": "proc /proc proc rw 0 0\n"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := &doctor{Config: Config{Root: machine(t, c.files), Now: time.Now}}
			d.kernel()
			d.namespaces()
			d.cgroups()
			got := find(t, d.checks, c.id)
			if got.Status != c.want || !strings.Contains(got.Found, c.found) {
				t.Errorf("got %+v", got)
			}
			if (got.Status == Error || got.Status == Warn) && got.Do == "" {
				t.Errorf("%+v does not say what to do", got)
			}
		})
	}
}

func TestNotRoot(t *testing.T) {
	d := &doctor{Config: Config{UID: 1000}}
	d.nftables()
	if got := find(t, d.checks, "host.nftables"); got.Status != Skipped || got.Do == "" {
		t.Errorf("got %+v", got)
	}
}

func TestClock(t *testing.T) {
	d := &doctor{Config: Config{Now: func() time.Time { return time.Unix(1000, 0) }}}
	d.clock()
	if got := find(t, d.checks, "host.clock"); got.Status != Error {
		t.Errorf("a clock of 1970: %+v", got)
	}
	d = &doctor{Config: Config{Now: time.Now}}
	d.clock()
	if got := find(t, d.checks, "host.clock"); got.Status == Error {
		t.Errorf("this machine's clock: %+v", got)
	}
}

func TestPermissions(t *testing.T) {
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	key := filepath.Join(dir, "cli.json")
	if err := os.WriteFile(key, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	look := func(c Config) []Check {
		d := &doctor{Config: c}
		d.permissions()
		return d.checks
	}
	if got := look(Config{Data: dir}); Worst(got) != OK {
		t.Errorf("got %v", got)
	}
	if err := os.Chmod(key, 0o644); err != nil {
		t.Fatal(err)
	}
	if got := find(t, look(Config{Data: dir}), "data.files"); got.Status != Error || !strings.Contains(got.Found, key) {
		t.Errorf("a key that all may read: %+v", got)
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if got := find(t, look(Config{Data: dir, ConfigFile: key, Database: "postgres://u:p@h/d"}), "config.file"); got.Status != Error || strings.Contains(got.Found, ":p@") {
		t.Errorf("a password that all may read: %+v", got)
	}
	if got := find(t, look(Config{Data: dir}), "data.folder"); got.Status != Warn {
		t.Errorf("an open folder: %+v", got)
	}
}

func TestDatabase(t *testing.T) {
	file := filepath.Join(t.TempDir(), "berth.db")
	look := func(url string) Check {
		d := &doctor{Config: Config{Database: url}}
		d.database(t.Context())
		return find(t, d.checks, "database")
	}
	if got := look(file); got.Status != OK || !strings.Contains(got.Found, "without tables") {
		t.Errorf("none: %+v", got)
	}
	if _, err := os.Stat(file); !os.IsNotExist(err) {
		t.Error("the examination made the file")
	}
	d, err := db.Open(t.Context(), db.Config{URL: file})
	if err != nil {
		t.Fatal(err)
	}
	if got := look(file); got.Status != OK || !strings.Contains(got.Found, "migration") {
		t.Errorf("one in use: %+v", got)
	}
	if _, err := d.ExecContext(t.Context(), `INSERT INTO goose_db_version (version_id, is_applied) VALUES (999999, 1)`); err != nil {
		t.Fatal(err)
	}
	if got := look(file); got.Status != Error || !strings.Contains(got.Found, "newer Berth") {
		t.Errorf("a newer one: %+v", got)
	}
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	if got := look("postgres://berth:hunter2@127.0.0.1:1/x?connect_timeout=1"); got.Status != Error || strings.Contains(got.Found, "hunter2") {
		t.Errorf("one that is away: %+v", got)
	}
}

// TestGates proves that an endpoint that gives its tools to anybody is the error that DESIGN names, and that one that cannot be asked says nothing.
func TestGates(t *testing.T) {
	answer := func(status int) *httptest.Server {
		return httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Method != http.MethodPost || r.URL.Path != "/mcp" || r.Header.Get("Authorization") != "" {
				w.WriteHeader(http.StatusTeapot)
				return
			}
			w.WriteHeader(status)
		}))
	}
	for status, want := range map[int]string{200: "host.mcp.ungated error", 202: "host.mcp.ungated error", 401: "host.mcp.gated ok", 404: "", 500: "", 302: ""} {
		srv := answer(status)
		d := &doctor{Config: Config{MCPURLs: []string{srv.URL + "/mcp"}, HTTP: &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}}}
		d.gates(t.Context(), false)
		srv.Close()
		got := ""
		for _, c := range d.checks {
			got = c.ID + " " + c.Status
		}
		if got != want {
			t.Errorf("%d gave %q, want %q", status, got, want)
		}
		d.checks = nil
		d.gates(t.Context(), false) // the server has gone
		if len(d.checks) > 0 {
			t.Errorf("a failed probe reported %v", d.checks)
		}
	}
}

func TestServer(t *testing.T) {
	ready := http.StatusOK
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/healthz":
			_, _ = w.Write([]byte(`{"status":"ok","version":"1"}`))
		case "/readyz":
			w.WriteHeader(ready)
			_, _ = w.Write([]byte(`{"error":{"message":"the node does not answer"}}`))
		default:
			w.WriteHeader(http.StatusUnauthorized)
		}
	}))
	defer srv.Close()
	c := Config{Listen: strings.TrimPrefix(srv.URL, "http://"), PublicURL: srv.URL, MCPPath: "/mcp", HTTP: srv.Client()}
	look := func(c Config) []Check {
		d := &doctor{Config: c}
		running := d.server(t.Context())
		d.ports(running)
		d.public(t.Context())
		d.gates(t.Context(), running)
		return d.checks
	}
	got := look(c)
	if Worst(got) != OK || find(t, got, "server.reachable").Status != OK || find(t, got, "host.mcp.gated").Status != OK {
		t.Errorf("got %v", got)
	}
	ready = http.StatusServiceUnavailable
	if got := find(t, look(c), "server"); got.Status != Error || !strings.Contains(got.Found, "the node does not answer") {
		t.Errorf("not ready: %+v", got)
	}
	c.PublicURL = "http://berth.invalid"
	if got := look(c); find(t, got, "server.publicUrl").Status != Warn || find(t, got, "server.reachable").Status != Warn {
		t.Errorf("clear text: %v", got)
	}
	stranger := httptest.NewServer(http.NotFoundHandler())
	defer stranger.Close()
	if got := look(Config{Listen: strings.TrimPrefix(stranger.URL, "http://"), HTTP: stranger.Client()}); find(t, got, "server.port").Status != Error {
		t.Errorf("a port that is taken: %v", got)
	}
	// One that was started with other flags is found where it says that it listens.
	ready = http.StatusOK
	moved := look(Config{Listen: "127.0.0.1:1", Left: srv.URL, MCPPath: "/mcp", HTTP: srv.Client()})
	if got := find(t, moved, "server"); !strings.Contains(got.Found, strings.TrimPrefix(srv.URL, "http://")) || !strings.Contains(got.Found, "127.0.0.1:1") {
		t.Errorf("elsewhere: %+v", got)
	}
	if got := find(t, moved, "host.mcp.gated"); !strings.Contains(got.Found, srv.URL) {
		t.Errorf("the endpoint elsewhere: %+v", got)
	}
	if got := find(t, look(Config{Listen: "127.0.0.1:1", Left: stranger.URL, HTTP: srv.Client()}), "server"); !strings.Contains(got.Found, "does not run on 127.0.0.1:1") {
		t.Errorf("nothing there: %+v", got)
	}
}

// TestImageOfTheNode finds the image that the last server used, wherever it was told to look for it.
func TestImageOfTheNode(t *testing.T) {
	data := t.TempDir()
	id, err := bootstrap.ID(bootstrap.Options{Dir: filepath.Join(data, "images")})
	if err != nil {
		t.Fatalf("Berth is built and tested on Debian and Ubuntu: %v", err)
	}
	look := func() Check {
		d := &doctor{Config: Config{Data: data, ImageDir: filepath.Join(data, "images")}}
		d.image()
		return find(t, d.checks, "node.image")
	}
	if got := look(); got.Status != Warn {
		t.Errorf("without an image: %+v", got)
	}
	elsewhere := t.TempDir()
	for _, err := range []error{
		os.MkdirAll(filepath.Join(elsewhere, id), 0o755), os.WriteFile(filepath.Join(elsewhere, id, "image.json"), []byte(`{"packages":3}`), 0o600),
		os.MkdirAll(filepath.Join(data, "node"), 0o755), os.Symlink(elsewhere, filepath.Join(data, "node", "images")),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	if got := look(); got.Status != OK {
		t.Errorf("with the node's: %+v", got)
	}
}
