package clients

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"
)

// startBinary runs the built program.
func startBinary(t *testing.T) (url, key string) {
	t.Helper()
	return startProgram(t, os.Getenv("BERTH_BIN"))
}

// startProgram runs a berth in development mode on a free port and gives its MCP URL and key. The program is ended, and with it everything that it made,
// when the test ends.
func startProgram(t *testing.T, bin string) (url, key string) {
	t.Helper()
	if _, err := os.Stat(bin); bin == "" || err != nil {
		missing(t, "BERTH_BIN names no program")
	}
	ready := filepath.Join(t.TempDir(), "ready.json")
	args := []string{"dev", "--ready-file", ready, "--port", "0"}
	if images := os.Getenv("BERTH_BASE_DIR"); images != "" {
		args = append(args, "--images", images)
	}
	cmd := exec.Command("nice", append([]string{"-n", "-5", bin}, args...)...) // before what else the tests run, where that is allowed
	cmd.Stdout, cmd.Stderr = os.Stderr, os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		select {
		case <-ended:
		case <-time.After(60 * time.Second):
			t.Error("the server did not end within 60 s of SIGTERM")
			_ = cmd.Process.Kill()
			<-ended
		}
	})
	tick := time.NewTicker(50 * time.Millisecond) // a file has no signal of its own
	defer tick.Stop()
	limit := time.After(10 * time.Minute) // the first start prepares the template
	for {
		select {
		case err := <-ended:
			ended <- err
			t.Fatalf("the server ended before it was ready: %v", err)
		case <-limit:
			t.Fatal("the server was not ready within 10 minutes")
		case <-tick.C:
		}
		var got struct {
			MCPURL string `json:"mcpUrl"`
			Key    string `json:"key"`
		}
		if b, err := os.ReadFile(ready); err == nil && json.Unmarshal(b, &got) == nil && got.MCPURL != "" && got.Key != "" {
			return got.MCPURL, got.Key
		}
	}
}

// missing ends a test that lacks something: a failure in CI, else a skip.
func missing(t *testing.T, what string) {
	t.Helper()
	if os.Getenv("CI") == "true" {
		t.Fatal(what)
	}
	t.Skip(what)
}
