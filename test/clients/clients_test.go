package clients

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"
)

// hosts are what the clients are tried on.
var hosts = map[string]func(*testing.T) (url, key string){"local": startLocal, "binary": startBinary}

// node runs a program of Node.js here and gives what it printed. Its exit code is the caller's to judge.
func node(t *testing.T, env []string, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	return nodeWith(t, nil, env, args...)
}

// nodeWith also gives the program something to read.
func nodeWith(t *testing.T, stdin io.Reader, env []string, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "nice", append([]string{"-n", "-5", "node"}, args...)...)
	var out, errout bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = stdin, &out, &errout
	cmd.Env = append(os.Environ(), env...)
	err := cmd.Run()
	if cmd.ProcessState == nil {
		t.Fatal(err)
	}
	return out.String(), errout.String(), cmd.ProcessState.ExitCode()
}

func needNode(t *testing.T) {
	t.Helper()
	if _, err := exec.LookPath("node"); err != nil {
		missing(t, "there is no node")
	}
	if _, err := os.Stat("node_modules/@modelcontextprotocol/client"); err != nil {
		missing(t, "npm packages are not installed in test/clients: make clients installs them")
	}
}

// report is what session.mjs prints.
type report struct {
	Error           string   `json:"error"`
	ProtocolVersion string   `json:"protocolVersion"`
	Instructions    int      `json:"instructions"`
	Tools           []string `json:"tools"`
	Recovered       string   `json:"recovered"`
	Output          string   `json:"output"`
	Steps           []struct {
		Tool   string          `json:"tool"`
		Result json.RawMessage `json:"result"`
	} `json:"steps"`
}

// step decodes the result of the n-th call of a tool, from 0.
func step[T any](t *testing.T, r report, tool string, n int) T {
	t.Helper()
	var v T
	for _, s := range r.Steps {
		if s.Tool != tool {
			continue
		}
		if n--; n < 0 {
			if err := json.Unmarshal(s.Result, &v); err != nil {
				t.Fatal(err)
			}
			return v
		}
	}
	t.Fatalf("%s was not called so often", tool)
	return v
}

type ran struct {
	ExitCode       *int
	Stdout, Stderr string
	Truncated      bool
	ProcessID      string
	OutputCut      struct{ Stdout int }
	StdoutBytes    int
}

func TestSessions(t *testing.T) {
	needNode(t)
	for name, start := range hosts {
		t.Run(name, func(t *testing.T) {
			url, key := start(t)
			for kind, version := range map[string]string{"v1": "", "v2": "2025-11-25", "v2-modern": "2026-07-28"} {
				t.Run(kind, func(t *testing.T) {
					stdout, stderr, code := node(t, []string{"BERTH_API_KEY=" + key}, "session.mjs", kind, url)
					var r report
					if err := json.Unmarshal([]byte(stdout), &r); err != nil || code != 0 || r.Error != "" {
						t.Fatalf("exit %d: %s\n%s", code, r.Error, stderr)
					}
					if r.ProtocolVersion != version || r.Instructions < 1000 || !slices.Contains(r.Tools, "run_command") {
						t.Errorf("version %q, %d characters of instructions, tools %v", r.ProtocolVersion, r.Instructions, r.Tools)
					}
					checkSession(t, r)
				})
			}
		})
	}
}

func checkSession(t *testing.T, r report) {
	t.Helper()
	if got := step[ran](t, r, "run_command", 0); got.ExitCode == nil || *got.ExitCode != 3 || got.Stdout != "to-stdout\n" || got.Stderr != "to-stderr\n" {
		t.Errorf("first command: %+v", got)
	}
	want := "Grüße <b>& \"Küsse\"\n"
	if got := step[ran](t, r, "run_command", 1); got.Stdout != want {
		t.Errorf("cat: %q", got.Stdout)
	}
	if got := step[struct{ Data string }](t, r, "read_file", 0); got.Data != want {
		t.Errorf("read_file: %q", got.Data)
	}
	if got := step[ran](t, r, "run_command", 2); !got.Truncated || got.ProcessID == "" || got.OutputCut.Stdout == 0 || got.StdoutBytes != 168894 ||
		!strings.HasPrefix(got.Stdout, "1\n2\n") || !strings.HasSuffix(got.Stdout, "\n30000\n") {
		t.Errorf("long output: cut %d of %d, process %q", got.OutputCut.Stdout, got.StdoutBytes, got.ProcessID)
	}
	var all strings.Builder
	for n := range 4000 {
		fmt.Fprintln(&all, n+1)
	}
	if got := step[ran](t, r, "run_command", 3); !got.Truncated || r.Recovered != all.String() {
		t.Errorf("of an output of %d bytes %d were recovered through its process", all.Len(), len(r.Recovered))
	}
	if r.Output != "started\nended\n" {
		t.Errorf("output of the process: %q", r.Output)
	}
	type failure struct{ Code, Suggestion, RequestID string }
	if got := step[failure](t, r, "kill_sandbox", 0); got.Code != "NOT_FOUND" || !strings.Contains(got.Suggestion, "delete_sandbox") || got.RequestID == "" {
		t.Errorf("old name: %+v", got)
	}
	if got := step[failure](t, r, "get_sandbox", 0); got.Code != "NOT_FOUND" {
		t.Errorf("after the delete: %+v", got)
	}
}

func TestWrongKey(t *testing.T) {
	needNode(t)
	for name, start := range hosts {
		t.Run(name, func(t *testing.T) {
			url, _ := start(t)
			for _, kind := range []string{"v1", "v2", "v2-modern"} {
				stdout, _, code := node(t, []string{"BERTH_API_KEY=berth_org_wrong"}, "session.mjs", kind, url)
				if code != 1 || strings.Contains(stdout, `"steps":[{`) {
					t.Errorf("%s: exit %d: %s", kind, code, stdout)
				}
			}
		})
	}
}

// inspector runs the Inspector's CLI and decodes the result that it prints.
func inspector[T any](t *testing.T, url, key string, args ...string) T {
	t.Helper()
	all := append([]string{
		"node_modules/@modelcontextprotocol/inspector/clients/launcher/build/index.js",
		"--cli", url, "--transport", "http", "--header", "Authorization: Bearer " + key, "--format", "json",
	}, args...)
	home := t.TempDir() // it keeps a catalogue of servers in the home folder
	stdout, stderr, code := node(t, []string{"HOME=" + home}, all...)
	var v struct{ Result T }
	if err := json.Unmarshal([]byte(stdout), &v); err != nil || code != 0 {
		t.Fatalf("exit %d: %v\n%.2000s\n%.2000s", code, err, stdout, stderr)
	}
	return v.Result
}

type called[T any] struct {
	IsError           bool
	StructuredContent T
}

func TestInspector(t *testing.T) {
	needNode(t)
	for name, start := range hosts {
		t.Run(name, func(t *testing.T) {
			url, key := start(t)
			list := inspector[struct {
				Tools []struct {
					Name        string
					Annotations map[string]any
				}
			}](t, url, key, "--method", "tools/list", "--strict")
			if len(list.Tools) < 9 || list.Tools[0].Name != "create_sandbox" || len(list.Tools[0].Annotations) != 4 {
				t.Errorf("list: %+v", list)
			}
			only := inspector[struct{ Tools []struct{ Name string } }](t, url+"/readonly", key, "--method", "tools/list")
			for _, tool := range only.Tools {
				if strings.HasPrefix(tool.Name, "create") || strings.HasPrefix(tool.Name, "write") {
					t.Errorf("the read-only endpoint lists %s", tool.Name)
				}
			}
			type sandboxID struct{ Sandbox struct{ ID string } }
			made := inspector[called[sandboxID]](t, url, key, "--method", "tools/call", "--tool-name", "create_sandbox")
			box := "sandboxId=" + made.StructuredContent.Sandbox.ID
			got := inspector[called[ran]](t, url, key, "--method", "tools/call", "--tool-name", "run_command", "--tool-arg", box, "command=echo from-the-inspector")
			if got.StructuredContent.Stdout != "from-the-inspector\n" {
				t.Errorf("run_command: %+v", got)
			}
			gone := inspector[called[struct{ Deleted bool }]](t, url, key, "--method", "tools/call", "--tool-name", "delete_sandbox", "--tool-arg", box)
			if !gone.StructuredContent.Deleted {
				t.Errorf("delete_sandbox: %+v", gone)
			}
		})
	}
}
