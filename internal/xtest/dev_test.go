package xtest

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/berthrun/berth/api"
)

// TestDevLeavesNothing ends a temporary server in order, which takes its sandboxes along, and kills one, whose remains the next one removes.
func TestDevLeavesNothing(t *testing.T) {
	tmp, err := os.MkdirTemp("", "dev") // short: sockets are below it
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(tmp) //nolint:errcheck // nothing is in it
	first := startDev(t, tmp)
	Must(t, first.Client, api.CreateSandbox, api.CreateSandboxIn{WaitIn: wait(30), Resources: &api.ResourcesIn{MemoryMiB: 256}})
	if err := first.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	<-first.over
	remains, _ := filepath.Glob(filepath.Join(tmp, "berth-dev-*"))
	if len(remains) != 1 || len(running(tmp)) == 0 {
		t.Fatalf("killed, it left %v and %v", remains, running(tmp))
	}
	second := startDev(t, tmp)
	if _, err := os.Stat(remains[0]); !os.IsNotExist(err) {
		t.Errorf("the next one left %s: %v", remains[0], err)
	}
	for _, p := range running(tmp) {
		if strings.Contains(p, remains[0]) {
			t.Errorf("still running: %s", p)
		}
	}
	Must(t, second.Client, api.CreateSandbox, api.CreateSandboxIn{WaitIn: wait(30), Resources: &api.ResourcesIn{MemoryMiB: 256}})
	if err := second.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	<-second.over
	if left, _ := filepath.Glob(filepath.Join(tmp, "berth-dev-*")); len(left) > 0 || len(running(tmp)) > 0 {
		t.Errorf("ended in order, it left %v and %v", left, running(tmp))
	}
}

type dev struct {
	System
	cmd  *exec.Cmd
	over chan struct{}
}

func startDev(t *testing.T, tmp string) *dev {
	t.Helper()
	ready := filepath.Join(t.TempDir(), "ready.json")
	cmd := exec.Command(need(t, "BERTH_BIN"), "dev", "--port", "0", "--ready-file", ready, "--images", need(t, "BERTH_BASE_DIR")) //nolint:gosec // the program under test
	cmd.Env = append(os.Environ(), "TMPDIR="+tmp)
	var out strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &out
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	d := &dev{cmd: cmd, over: make(chan struct{})}
	go func() {
		defer close(d.over)
		_ = cmd.Wait()
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		<-d.over
	})
	for deadline := time.Now().Add(2 * time.Minute); ; {
		if b, err := os.ReadFile(ready); err == nil {
			if err := json.Unmarshal(b, &d.System); err != nil {
				t.Fatal(err)
			}
			d.Client = d.With(t, d.Key)
			return d
		}
		select {
		case <-d.over:
			t.Fatalf("it ended:\n%s", out.String())
		case <-time.After(5 * time.Millisecond):
		}
		if time.Now().After(deadline) {
			t.Fatal("it does not come up")
		}
	}
}

// running lists the processes that name a folder.
func running(dir string) []string {
	var all []string
	for _, p := range processes() {
		if strings.Contains(p.args, dir) {
			all = append(all, p.args)
		}
	}
	return all
}
