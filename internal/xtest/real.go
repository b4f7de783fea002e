package xtest

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// Real is the real program with real sandboxes, in a data folder of its own.
type Real struct {
	System
	Dir string

	t    testing.TB
	bin  string
	port string // the same after a restart
	args []string
	mu   sync.Mutex
	cmd  *exec.Cmd
	over chan struct{} // closed when cmd has ended
	out  *os.File
}

// need gives an environment variable that make test sets. Without it the test is skipped, but never in CI.
func need(t testing.TB, name string) string {
	t.Helper()
	v := os.Getenv(name)
	switch {
	case v != "":
	case os.Getenv("CI") == "true":
		t.Fatalf("%s is not set: make test sets it", name)
	default:
		t.Skipf("%s is not set: make test sets it", name)
	}
	return v
}

// StartReal serves until the test ends, then removes every sandbox and the runtime.
func StartReal(t testing.TB, args ...string) *Real {
	t.Helper()
	bin := need(t, "BERTH_BIN")
	base := need(t, "BERTH_BASE_DIR")
	dir, err := os.MkdirTemp("", "berth-test-")
	if err != nil {
		t.Fatal(err)
	}
	r := &Real{t: t, bin: bin, port: "0", Dir: dir, args: append([]string{"--images", base, "--calls-per-minute", "-1", "--log-level", "info", "--ready-memory-mib", "0"}, args...)}
	if r.out, err = os.Create(filepath.Join(dir, "server.log")); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.end)
	r.Serve()
	return r
}

// Serve starts the server again, after Kill, and waits until it serves.
func (r *Real) Serve() {
	r.t.Helper()
	ready := filepath.Join(r.Dir, "ready.json")
	_ = os.Remove(ready)
	args := append([]string{"serve", "--data", filepath.Join(r.Dir, "data"), "--port", r.port, "--ready-file", ready}, r.args...)
	cmd := exec.Command(r.bin, args...) //nolint:gosec // the program under test
	cmd.Stdout, cmd.Stderr = r.out, r.out
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		r.t.Fatal(err)
	}
	over := make(chan struct{})
	go func() {
		defer close(over)
		_ = cmd.Wait()
	}()
	r.mu.Lock()
	r.cmd, r.over = cmd, over
	r.mu.Unlock()
	deadline := time.Now().Add(time.Minute)
	for {
		b, err := os.ReadFile(ready)
		if err == nil {
			var v struct{ URL, Key string }
			if err := json.Unmarshal(b, &v); err != nil {
				r.t.Fatal(err)
			}
			r.URL, r.port = v.URL, v.URL[strings.LastIndex(v.URL, ":")+1:]
			if v.Key != "" {
				r.Key = v.Key
			}
			r.Client = r.With(r.t, r.Key)
			return
		}
		select {
		case <-over:
			r.t.Fatalf("the server ended:\n%s", r.Log())
		case <-time.After(5 * time.Millisecond):
		}
		if time.Now().After(deadline) {
			r.t.Fatalf("the server does not come up:\n%s", r.Log())
		}
	}
}

// Log is what the server has written.
func (r *Real) Log() string {
	b, _ := os.ReadFile(filepath.Join(r.Dir, "server.log"))
	return string(b)
}

// Kill ends the server with SIGKILL.
func (r *Real) Kill() { r.signal(syscall.SIGKILL) }

// Stop ends the server in order.
func (r *Real) Stop() { r.signal(syscall.SIGTERM) }

func (r *Real) signal(sig syscall.Signal) {
	r.mu.Lock()
	cmd, over := r.cmd, r.over
	r.cmd = nil
	r.mu.Unlock()
	if cmd != nil {
		_ = cmd.Process.Signal(sig)
		<-over
	}
}

// KillRuntime ends berth-runtime with SIGKILL. The server starts it again by itself.
func (r *Real) KillRuntime() {
	r.t.Helper()
	// The one that was killed before may just be starting again.
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		pid, err := r.runtimePID()
		if err == nil {
			if err = syscall.Kill(pid, syscall.SIGKILL); err == nil {
				return
			}
		}
		if time.Now().After(deadline) {
			r.t.Error(err)
			return
		}
	}
}

// runtimePID finds the berth-runtime of this data folder by its arguments.
func (r *Real) runtimePID() (int, error) {
	for _, p := range processes() {
		if strings.Contains(p.args, r.Dir) && strings.HasPrefix(filepath.Base(strings.Fields(p.args)[0]), "berth-runtime") {
			return p.pid, nil
		}
	}
	return 0, errors.New("berth-runtime does not run")
}

// Processes lists what runs for this data folder: the server, the runtime, kernels and gofers of sandboxes.
func (r *Real) Processes() []string {
	var all []string
	for _, p := range processes() {
		if strings.Contains(p.args, r.Dir) {
			all = append(all, fmt.Sprintf("%d %s", p.pid, p.args))
		}
	}
	return all
}

type processInfo struct {
	pid  int
	args string
}

func processes() []processInfo {
	dirs, _ := filepath.Glob("/proc/[0-9]*")
	var all []processInfo
	for _, dir := range dirs {
		pid, err := strconv.Atoi(filepath.Base(dir))
		b, rerr := os.ReadFile(filepath.Join(dir, "cmdline"))
		if err == nil && rerr == nil && len(b) > 0 {
			all = append(all, processInfo{pid, strings.ReplaceAll(string(b), "\x00", " ")})
		}
	}
	return all
}

// end removes all that the test made. Nothing may be left of it.
func (r *Real) end() {
	if r.t.Failed() {
		r.t.Logf("the server's log:\n%s", r.Log())
		b, _ := os.ReadFile(filepath.Join(r.Dir, "data", "node", "log", "runtime.log"))
		r.t.Logf("the log of berth-runtime:\n%s", b[max(0, len(b)-20000):])
	}
	r.Stop()
	cleanRuntime(r.t, filepath.Join(r.Dir, "data", "node"))
	if left := r.Processes(); len(left) > 0 {
		r.t.Errorf("processes are left:\n%s", strings.Join(left, "\n"))
	}
	_ = r.out.Close()
	if err := os.RemoveAll(r.Dir); err != nil {
		r.t.Errorf("the data folder cannot be removed: %v", err)
	}
	if b, err := os.ReadFile("/proc/self/mountinfo"); err == nil && strings.Contains(string(b), r.Dir) {
		r.t.Error("mounts are left")
	}
}
