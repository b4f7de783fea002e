package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/berthrun/berth/internal/cli"
	"github.com/berthrun/berth/internal/config"
	"github.com/berthrun/berth/internal/quota"
)

// berth runs the program with an environment of its own.
func berth(t *testing.T, env map[string]string, args ...string) (code int, out, errOut string) {
	t.Helper()
	var o, e bytes.Buffer
	get := func(name string) string { return env[name] }
	code = cli.Main(t.Context(), args, get, nil, &o, &e, cli.Commands{Version: "1", Extra: commands(get), Pages: map[string]string{"berth.yaml.5": configPage()}})
	return code, o.String(), e.String()
}

func TestConfigCommand(t *testing.T) {
	file := filepath.Join(t.TempDir(), "berth.yaml")
	if err := os.WriteFile(file, []byte("listen: {port: 8080}\ndatabase: {url: 'postgres://u:hunter2@db/x'}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	env := map[string]string{"BERTH_CONFIG": file, "BERTH_CALLS_IN_FLIGHT": "9"}
	code, out, errOut := berth(t, env, "config", "--origins", "--mcp-path", "/tools")
	if code != 0 || strings.Contains(out+errOut, "hunter2") {
		t.Fatalf("code %d, %s%s", code, out, errOut)
	}
	for _, line := range []string{"port: 8080  # " + file, "inFlight: 9  # BERTH_CALLS_IN_FLIGHT", "path: /tools  # --mcp-path", `url: "postgres://u:REDACTED@db/x"`} {
		if !strings.Contains(out, line) {
			t.Errorf("%s is not in\n%s", line, out)
		}
	}
	if code, out, _ := berth(t, env, "config", "-o", "json"); code != 0 || !strings.Contains(out, `"origin": "BERTH_CALLS_IN_FLIGHT"`) || strings.Contains(out, "hunter2") {
		t.Errorf("code %d, %s", code, out)
	}
	if code, out, _ := berth(t, nil, "config", "check", file); code != 0 || out != file+" is good.\n" {
		t.Errorf("check: %d %s", code, out)
	}
	if code, out, _ := berth(t, nil, "config", "reference"); code != 0 || out != config.Reference() {
		t.Errorf("reference: %d", code)
	}
	if err := os.WriteFile(file, []byte("listen:\n  prot: 1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{{"config", "check", file}, {"serve", "--config", file}, {"prepare", "--config", file}, {"dev", "--config", file}} {
		if code, _, errOut := berth(t, nil, args...); code != 1 || !strings.Contains(errOut, "did you mean listen.port?") || !strings.Contains(errOut, file+":2") {
			t.Errorf("%v: %d %s", args, code, errOut)
		}
	}
	if code, _, errOut := berth(t, nil, "config", "check", file, "-o", "json"); code != 1 || !strings.Contains(errOut, `"code": "INVALID_CONFIG"`) {
		t.Errorf("%d %s", code, errOut)
	}
}

// TestKeysOfLimits holds the limits that a file may name to those that there are.
func TestKeysOfLimits(t *testing.T) {
	for _, k := range config.Keys() {
		if k.Path != "limits" {
			continue
		}
		for _, want := range []string{quota.SandboxesRunning, quota.SandboxesTotal, quota.VCPURunning, quota.MemoryRunning, quota.DiskTotal, quota.VolumesTotal, quota.DiskMin, quota.DiskMax, quota.CallsPerMinute} {
			if !strings.Contains(strings.Join(k.Keys, " "), want) {
				t.Errorf("the file cannot name %s", want)
			}
		}
		return
	}
	t.Error("there are no limits")
}

// TestEveryKeyIsAFlagOfServe proves that nothing is left to the file alone.
func TestEveryKeyIsAFlagOfServe(t *testing.T) {
	var serve *cobra.Command
	for _, c := range commands(func(string) string { return "" }) {
		if c.Name() == "serve" {
			serve = c
		}
	}
	for _, k := range config.Keys() {
		if f := serve.Flags().Lookup(k.Flag); f == nil || !strings.Contains(f.Usage, k.Env) {
			t.Errorf("serve does not take --%s", k.Flag)
		}
	}
}
