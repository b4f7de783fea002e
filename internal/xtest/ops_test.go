package xtest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/berthrun/berth/api"
	"github.com/berthrun/berth/client"
)

// TestOperateAServer runs the real program from a configuration file under a service manager's eyes: what it tells of itself, and how it ends.
func TestOperateAServer(t *testing.T) {
	dir, err := os.MkdirTemp("", "ops") // short: sockets are in it
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	manager := newManager(t, dir)
	private := filepath.Join(dir, "debug.sock")
	file := filepath.Join(dir, "berth.yaml")
	yaml := fmt.Sprintf("shutdownSeconds: 3\ndebug:\n  listen: unix:%s\nlog:\n  format: text\n", private)
	if err := os.WriteFile(file, []byte(yaml), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("BERTH_LOG_FORMAT", "json") // over the file
	r := StartReal(t, "--config", file)
	manager.wait(t, "READY=1")
	manager.wait(t, "WATCHDOG=1")

	box := Sandbox(t, r.Client, api.CreateSandboxIn{Resources: &api.ResourcesIn{MemoryMiB: 256}})
	before := Must(t, r.Client, api.GetSandbox, in(box)).Sandbox
	t.Run("metrics and state", func(t *testing.T) { privatePages(t, private) })
	t.Run("doctor", func(t *testing.T) { examined(t, r, file) })
	t.Run("a line a call", func(t *testing.T) { callLines(t, r, box) })
	t.Run("ends in order", func(t *testing.T) { endsInOrder(t, r, private, box) })
	manager.wait(t, "STOPPING=1")

	r.Serve()
	after := Must(t, r.Client, api.GetSandbox, in(box)).Sandbox
	if after.State != api.StateRunning || after.Generation != before.Generation {
		t.Errorf("the sandbox did not go on: %+v", after)
	}
	t.Run("ends at once at a second signal", func(t *testing.T) { endsAtOnce(t, r, private, box) })
	r.Serve()
}

// privatePages reads what the private listener serves.
func privatePages(t *testing.T, socket string) {
	page := readPrivate(t, socket, "/metrics")
	for _, line := range []string{
		`berth_calls_total{code="ok",face="http",operation="sandboxes.create"} 1`, `berth_sandboxes{state="running"} 1`,
		`berth_sandbox_boot_seconds_count{kind="create",result="ok"} 1`, `berth_guest_call_seconds_count{call="configure",result="ok"} 1`,
		`berth_calls_in_flight{face="http"} 0`, `berth_db_connections_open{pool="write"} 1`, "berth_worker_lag_seconds ", "berth_event_lag_seconds ",
		"berth_audit_backlog ", "berth_readings_failed 0", "process_resident_memory_bytes ", "go_goroutines ", "berth_build_info{",
	} {
		if !strings.Contains(page, line) {
			t.Errorf("the metrics lack %s", line)
		}
	}
	var state struct {
		Ready     string
		Sandboxes map[string]int
		Driver    string
	}
	if err := json.Unmarshal([]byte(readPrivate(t, socket, "/debug/state")), &state); err != nil || state.Ready != "ok" || state.Sandboxes["running"] != 1 || state.Driver != "gvisor" {
		t.Errorf("state: %+v, %v", state, err)
	}
	if got := readPrivate(t, socket, "/debug/pprof/goroutine?debug=1"); !strings.Contains(got, "goroutine profile") {
		t.Errorf("profile: %.80s", got)
	}
}

// callLines holds the log to one line a call, with who and what but never what was said.
func callLines(t *testing.T, r *Real, box string) {
	const secret = "a-word-that-nobody-may-log"
	Exec(t, r.Client, box, "echo "+secret)
	lines := 0
	for line := range strings.SplitSeq(r.Log(), "\n") {
		if !strings.Contains(line, `"operation":"sandboxes.exec"`) {
			continue
		}
		lines++
		var l map[string]any
		if err := json.Unmarshal([]byte(line), &l); err != nil {
			t.Fatalf("%s: %v", line, err)
		}
		if l["msg"] != "call" || l["code"] != "ok" || l["face"] != "http" || l["resource_id"] != box || l["org_id"] == "" || l["principal_id"] == "" || l["request_id"] == "" || l["duration"].(float64) <= 0 {
			t.Errorf("the line is %s", line)
		}
	}
	if lines != 1 {
		t.Errorf("%d lines for one call", lines)
	}
	if strings.Contains(r.Log(), secret) {
		t.Error("an argument is in the log")
	}
}

// examined has the real program examine the machine and its server, as root and as nobody.
func examined(t *testing.T, r *Real, config string) {
	for _, uid := range []uint32{0, 65534} {
		bin := r.bin
		if uid != 0 { // where nobody reaches it
			bin = filepath.Join(t.TempDir(), "berth")
			must(t, os.Chmod(filepath.Dir(filepath.Dir(bin)), 0o755), os.Chmod(filepath.Dir(bin), 0o755), copyProgram(r.bin, bin))
			config = "" // it may not be read either
		}
		args := []string{"doctor", "-o", "json", "--data", filepath.Join(r.Dir, "data"), "--images", os.Getenv("BERTH_BASE_DIR"), "--port", r.port}
		if config != "" {
			args = append(args, "--config", config)
		}
		cmd := exec.Command(bin, args...) //nolint:gosec // the program under test
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
		raw, err := cmd.Output()
		var out struct {
			Errors int
			Checks []struct{ ID, Status, Found, Do string }
		}
		if jerr := json.Unmarshal(raw, &out); jerr != nil {
			t.Fatalf("%v, %v: %s", err, jerr, raw)
		}
		status := map[string]string{}
		for _, c := range out.Checks {
			status[c.ID] = c.Status
		}
		want := map[string]string{"server": "ok", "host.mcp.gated": "ok", "host.kernel": "ok", "host.namespaces": "ok"}
		if uid == 0 {
			want["database"], want["node.image"], want["node.disk"], want["data.files"], want["host.nftables"] = "ok", "ok", "ok", "ok", "ok"
			if err != nil || out.Errors != 0 {
				t.Errorf("%d errors, %v: %s", out.Errors, err, raw)
			}
		} else {
			want["database"], want["host.nftables"], want["data.folder"] = "skipped", "skipped", "skipped"
		}
		for id, s := range want {
			if status[id] != s {
				t.Errorf("as %d, %s is %q, want %q: %s", uid, id, status[id], s, raw)
			}
		}
	}
}

func must(t *testing.T, errs ...error) {
	t.Helper()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
}

func copyProgram(from, to string) error {
	b, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	return os.WriteFile(to, b, 0o755) //nolint:gosec // a program
}

type execEnd struct {
	out api.ExecOut
	err error
}

func startExec(r *Real, box, command string) <-chan execEnd {
	c, ended := r.Client, make(chan execEnd, 1)
	go func() {
		out, err := client.Call(context.Background(), c, api.Exec, api.ExecIn{SandboxIn: in(box), CommandIn: api.CommandIn{Command: command}})
		ended <- execEnd{out, err}
	}()
	return ended
}

func endsInOrder(t *testing.T, r *Real, socket, box string) {
	short, long := startExec(r, box, "sleep 1.5; echo done"), startExec(r, box, "sleep 30")
	eventually(t, func() bool {
		return strings.Contains(readPrivate(t, socket, "/metrics"), `berth_calls_in_flight{face="http"} 2`)
	})
	cmd, over := r.cmd, r.over
	began := time.Now()
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() bool { return status(r.URL+"/readyz") == http.StatusServiceUnavailable })
	if got := status(r.URL + "/healthz"); got != http.StatusOK {
		t.Errorf("healthz is %d while calls finish", got)
	}
	if _, err := client.Call(t.Context(), r.Client, api.ListSandboxes, api.ListSandboxesIn{}); !refused(err, "UNAVAILABLE", "shutting_down") {
		t.Errorf("a new call: %v", err)
	}
	if e := <-short; e.err != nil || e.out.Stdout != "done\n" {
		t.Errorf("a call that finishes in time: %+v", e)
	}
	if e := <-long; !refused(e.err, "UNAVAILABLE", "shutting_down") {
		t.Errorf("a call that is cut off: %v", e.err)
	}
	<-over
	if code := cmd.ProcessState.ExitCode(); code != 0 {
		t.Errorf("it ended with %d", code)
	}
	if took := time.Since(began); took < 2500*time.Millisecond || took > 15*time.Second {
		t.Errorf("it took %v to end", took)
	}
}

func endsAtOnce(t *testing.T, r *Real, socket, box string) {
	cut := startExec(r, box, "sleep 30")
	eventually(t, func() bool {
		return strings.Contains(readPrivate(t, socket, "/metrics"), `berth_calls_in_flight{face="http"} 1`)
	})
	cmd, over := r.cmd, r.over
	_ = cmd.Process.Signal(syscall.SIGTERM)
	eventually(t, func() bool { return status(r.URL+"/readyz") == http.StatusServiceUnavailable })
	_ = cmd.Process.Signal(syscall.SIGTERM)
	<-over
	if ws, ok := cmd.ProcessState.Sys().(syscall.WaitStatus); !ok || !ws.Signaled() || ws.Signal() != syscall.SIGTERM {
		t.Errorf("it ended with %v", cmd.ProcessState)
	}
	if e := <-cut; e.err == nil {
		t.Error("the call succeeded")
	}
}

func refused(err error, code, reason string) bool {
	var e *client.Error
	return asClient(err, &e) && e.Code == code && e.Reason == reason
}

func asClient(err error, to **client.Error) bool {
	e, ok := err.(*client.Error)
	*to = e
	return ok
}

func status(url string) int {
	res, err := http.Get(url) //nolint:gosec,noctx // the server under test
	if err != nil {
		return 0
	}
	defer res.Body.Close()
	_, _ = io.Copy(io.Discard, res.Body)
	return res.StatusCode
}

func readPrivate(t *testing.T, socket, path string) string {
	t.Helper()
	c := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", socket)
	}}}
	res, err := c.Get("http://private" + path) //nolint:noctx // the server under test
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil || res.StatusCode != http.StatusOK {
		t.Fatalf("%s: %d %v %s", path, res.StatusCode, err, b)
	}
	return string(b)
}

// manager hears what a server tells its service manager.
type manager struct{ heard chan string }

func newManager(t *testing.T, dir string) *manager {
	t.Helper()
	name := filepath.Join(dir, "notify")
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: name, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	t.Setenv("NOTIFY_SOCKET", name)
	t.Setenv("WATCHDOG_USEC", "600000")
	m := &manager{heard: make(chan string, 1000)}
	go func() {
		b := make([]byte, 4096)
		for {
			n, err := conn.Read(b)
			if err != nil {
				return
			}
			select {
			case m.heard <- string(b[:n]):
			default:
			}
		}
	}()
	return m
}

func (m *manager) wait(t *testing.T, want string) {
	t.Helper()
	timeout := time.After(time.Minute)
	for {
		select {
		case got := <-m.heard:
			if strings.Contains(got, want) {
				return
			}
		case <-timeout:
			t.Fatalf("%s was not told", want)
		}
	}
}
