package gvisor

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berthrun/berth/internal/guest"
	"github.com/berthrun/berth/internal/id"
	"github.com/berthrun/berth/internal/runtime"
	"github.com/berthrun/berth/internal/runtime/gvisor/proc"
)

const patience = 60 * time.Second

// need gives a path from the environment. On CI its absence fails, elsewhere it skips.
func need(t *testing.T, name string) string {
	t.Helper()
	v := os.Getenv(name)
	if v == "" || os.Geteuid() != 0 {
		say := t.Skipf
		if os.Getenv("CI") == "true" {
			say = t.Fatalf
		}
		say("needs root, and %s naming a built program: build ./cmd/berth-runtime with CGO_ENABLED=0", name)
	}
	return v
}

// testGuest builds the tests' own guest once.
func testGuest(t *testing.T) string {
	t.Helper()
	out := filepath.Join(os.TempDir(), fmt.Sprintf("berth-test-guest-%d", os.Getpid()))
	if _, err := os.Stat(out); err == nil {
		return out
	}
	cmd := exec.Command("go", "build", "-o", out, "./testdata/guest")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if b, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build the tests' guest: %v\n%s", err, b)
	}
	return out
}

func TestMain(m *testing.M) {
	if to := os.Getenv("BERTH_TEST_DIAL"); to != "" {
		c, err := net.DialTimeout("tcp", to, 1500*time.Millisecond)
		if err != nil {
			fmt.Println(err)
			os.Exit(3)
		}
		c.Close()
		os.Exit(0)
	}
	code := m.Run()
	_ = os.Remove(filepath.Join(os.TempDir(), fmt.Sprintf("berth-test-guest-%d", os.Getpid())))
	os.Exit(code)
}

// rig is a runtime of its own: a root folder with one tiny image, and a driver.
type rig struct {
	t   *testing.T
	cfg Config
	*Driver
}

const tiny = "tiny"

func newRig(t *testing.T, change ...func(*Config)) *rig {
	t.Helper()
	binary := need(t, "BERTH_RUNTIME_BIN")
	dir, err := os.MkdirTemp("", "brt")
	if err != nil {
		t.Fatal(err)
	}
	r := &rig{t: t, cfg: Config{
		Binary: binary, Root: filepath.Join(dir, "r"), Socket: filepath.Join(dir, "s"), Guest: testGuest(t), Disk: "plain",
		LogFile: filepath.Join(dir, "log"), Log: slog.New(slog.NewTextHandler(testWriter{t}, nil)),
	}}
	for _, f := range change {
		f(&r.cfg)
	}
	for _, d := range []string{"bin", "dev", "etc", "home", "proc", "root", "sys", "tmp", "usr", "var"} {
		if err := os.MkdirAll(filepath.Join(r.cfg.Root, "images", tiny, "rootfs", d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() {
		if r.Driver != nil {
			ctx, cancel := context.WithTimeout(context.Background(), patience)
			defer cancel()
			if err := r.Shutdown(ctx, true); err != nil {
				t.Errorf("shut down: %v", err)
			}
			r.Close()
		}
		if left := r.leftovers(); len(left) > 0 {
			t.Errorf("left at the end:\n%s", strings.Join(left, "\n"))
		}
		if t.Failed() {
			b, _ := os.ReadFile(r.cfg.LogFile)
			t.Logf("log of berth-runtime:\n%s", b[max(0, len(b)-6000):])
		}
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	r.open()
	return r
}

type testWriter struct{ t *testing.T }

func (w testWriter) Write(b []byte) (int, error) {
	w.t.Logf("%s", bytes.TrimSpace(b))
	return len(b), nil
}

func (r *rig) open() {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	d, err := Open(ctx, r.cfg)
	if err != nil {
		b, _ := os.ReadFile(r.cfg.LogFile)
		r.t.Fatalf("Open: %v\n%s", err, b)
	}
	r.Driver = d
}

func (r *rig) ctx() context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	r.t.Cleanup(cancel)
	return ctx
}

func (r *rig) spec() runtime.Spec {
	return runtime.Spec{
		ID: id.New(id.Sandbox), Generation: 1, Image: tiny, Network: runtime.NetworkInternet, Hostname: "box", GuestToken: "token",
		Resources: runtime.Resources{VCPU: 1, MemoryMiB: 256},
	}
}

// create makes a sandbox and waits for its guest.
func (r *rig) create(change ...func(*runtime.Spec)) runtime.Spec {
	r.t.Helper()
	spec := r.spec()
	for _, f := range change {
		f(&spec)
	}
	if _, err := r.Create(r.ctx(), spec); err != nil {
		r.t.Fatalf("Create: %v", err)
	}
	r.awaitGuest(spec.ID)
	return spec
}

func (r *rig) awaitGuest(id string) {
	r.t.Helper()
	deadline, tick := time.After(patience), time.NewTicker(2*time.Millisecond)
	defer tick.Stop()
	for {
		_, err := r.ask(id, "GET", "/hello", nil, nil)
		if err == nil {
			return
		}
		select {
		case <-tick.C:
		case <-deadline:
			r.t.Fatalf("the guest of %s does not answer: %v", id, err)
		}
	}
}

// ask makes one call to a guest.
func (r *rig) ask(id, method, path string, in, out any) (int, error) {
	tr := &http.Transport{
		DisableKeepAlives: true,
		DialContext:       func(ctx context.Context, _, _ string) (net.Conn, error) { return r.Dial(ctx, id, guest.Port) },
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	b, _ := json.Marshal(in)
	req, err := http.NewRequestWithContext(ctx, method, "http://guest"+path, bytes.NewReader(b))
	if err != nil {
		return 0, err
	}
	req.Header.Set(guest.TokenHeader, "token")
	resp, err := (&http.Client{Transport: tr}).Do(req)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode >= 300 {
		err = fmt.Errorf("status %d: %s", resp.StatusCode, body)
	}
	if err == nil && out != nil {
		err = json.Unmarshal(body, out)
	}
	return resp.StatusCode, err
}

func (r *rig) write(id, path, text string) {
	r.t.Helper()
	if _, err := r.ask(id, "POST", "/files/write", guest.FileWrite{Path: path, Data: []byte(text)}, nil); err != nil {
		r.t.Fatalf("write %s: %v", path, err)
	}
}

func (r *rig) read(id, path string) (string, error) {
	var out guest.FileData
	_, err := r.ask(id, "POST", "/files/read", guest.FileRead{Path: path}, &out)
	return string(out.Data), err
}

// processes are those of one sandbox.
func (r *rig) processes(id string) (boot, gofer proc.Process) {
	r.t.Helper()
	all, err := proc.Scan(filepath.Join(r.cfg.Root, "gvisor"))
	if err != nil {
		r.t.Fatal(err)
	}
	for _, p := range all {
		switch {
		case p.ID == id && p.Boot:
			boot = p.Process
		case p.ID == id:
			gofer = p.Process
		}
	}
	if boot.PID == 0 || gofer.PID == 0 {
		r.t.Fatalf("sandbox %s has boot %v and gofer %v", id, boot, gofer)
	}
	return boot, gofer
}

// kill ends a sandbox's own process from outside.
func (r *rig) kill(t *testing.T, id string) {
	t.Helper()
	boot, _ := r.processes(id)
	if err := unix.Kill(boot.PID, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
}

// killRuntime ends berth-runtime with SIGKILL, and waits until it is gone.
func (r *rig) killRuntime() {
	r.t.Helper()
	pid, err := r.runtimePID()
	if err != nil {
		r.t.Fatal(err)
	}
	p, err := proc.Identify(pid)
	if err != nil {
		return
	}
	if err := p.Kill(patience); err != nil {
		r.t.Fatal(err)
	}
}

func (r *rig) runtimePID() (int, error) {
	dirs, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, f := range dirs {
		b, _ := os.ReadFile(f)
		args := strings.Split(string(b), "\x00")
		if len(args) > 3 && args[0] == r.cfg.Binary && args[1] == "serve" && args[3] == r.cfg.Root {
			var pid int
			_, err := fmt.Sscanf(f, "/proc/%d/", &pid)
			return pid, err
		}
	}
	return 0, errors.New("berth-runtime does not run")
}

// tasks are the processes on this machine that belong to a sandbox: those of its cgroups and those that name it.
func (r *rig) tasks(id string) []int {
	r.t.Helper()
	all, err := proc.Scan(filepath.Join(r.cfg.Root, "gvisor"))
	if err != nil {
		r.t.Fatal(err)
	}
	var pids []int
	for _, p := range all {
		if p.ID == id {
			pids = append(pids, p.PID)
		}
	}
	groups, _ := filepath.Glob("/sys/fs/cgroup/*/berth/" + r.instance() + "/" + id + "/cgroup.procs")
	for _, g := range groups {
		b, _ := os.ReadFile(g)
		for _, f := range strings.Fields(string(b)) {
			if pid, err := strconv.Atoi(f); err == nil {
				pids = append(pids, pid)
			}
		}
	}
	return pids
}

// leftovers are what the root still has in the machine.
func (r *rig) leftovers() []string {
	var out []string
	all, _ := proc.Scan(filepath.Join(r.cfg.Root, "gvisor"))
	for _, p := range all {
		out = append(out, fmt.Sprintf("process %+v", p))
	}
	mounts, _ := os.ReadFile("/proc/self/mounts")
	for line := range strings.Lines(string(mounts)) {
		if f := strings.Fields(line); strings.HasPrefix(f[1], r.cfg.Root) && filepath.Base(f[1]) != "null-netns" {
			out = append(out, "mount "+f[1])
		}
	}
	links, _ := net.Interfaces()
	for _, l := range links {
		if strings.HasPrefix(l.Name, "bo"+r.instance()) || strings.HasPrefix(l.Name, "bc"+r.instance()) {
			out = append(out, "interface "+l.Name)
		}
	}
	groups, _ := filepath.Glob("/sys/fs/cgroup/*/berth/" + r.instance() + "/sbx_*")
	for _, g := range groups {
		out = append(out, "cgroup "+g)
	}
	for _, dir := range []string{"sandboxes", "mounts", "netns", "gvisor", "saves", "disks/trees"} {
		entries, _ := os.ReadDir(filepath.Join(r.cfg.Root, dir))
		for _, e := range entries {
			if e.Name() != "null-netns" {
				out = append(out, "file "+filepath.Join(dir, e.Name()))
			}
		}
	}
	return out
}

// instance is how the runtime of this rig marks what it puts into the machine.
func (r *rig) instance() string {
	sum := sha256.Sum256([]byte(r.cfg.Root))
	return hex.EncodeToString(sum[:])[:5]
}
