package xtest

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/berthrun/berth/api"
	"github.com/berthrun/berth/internal/cli"
)

// TestWokeIsSaid uses a stopped sandbox with every command that starts one, and hears of it once, beside the result.
func TestWokeIsSaid(t *testing.T) {
	s := Start(t, Options{})
	id := Sandbox(t, s.Client, api.CreateSandboxIn{Name: "box"})
	Sandbox(t, s.Client, api.CreateSandboxIn{Name: "other"})
	dir := t.TempDir()
	env := map[string]string{"BERTH_URL": s.URL, "BERTH_API_KEY": s.Key, "BERTH_DATA": dir}
	run := func(args ...string) (code int, stdout, stderr string) {
		var out, errOut bytes.Buffer
		code = cli.Main(t.Context(), args, func(n string) string { return env[n] }, strings.NewReader(""), &out, &errOut, cli.Commands{})
		return code, out.String(), errOut.String()
	}
	stop := func() {
		t.Helper()
		Must(t, s.Client, api.StopSandbox, api.SandboxWaitIn{SandboxIn: in(id), WaitIn: wait(30)})
	}
	small, large := filepath.Join(dir, "small"), filepath.Join(dir, "large")
	must(t, os.WriteFile(small, []byte("1"), 0o644), os.WriteFile(large, noise(5<<20), 0o644), os.Mkdir(filepath.Join(dir, "folder"), 0o755))
	Exec(t, s.Client, id, "mkdir -p folder; echo 1 > file; echo a > edited")

	const said = "berth: the sandbox was stopped and has been started for this call; while it runs it may be billed\n"
	for _, tt := range []struct {
		args []string
		code int
	}{
		{[]string{"sandboxes", "exec", "box", "--", "true"}, 0},
		{[]string{"sandboxes", "exec", "box", "--", "false"}, 1},
		{[]string{"sandboxes", "exec", "box", "--", "/no/such/program"}, 126},
		{[]string{"sandboxes", "shell", "box", "--", "true"}, 0},
		{[]string{"sandboxes", "exec", "-i", "box", "--", "true"}, 0},
		{[]string{"processes", "start", "box", "--", "true"}, 0},
		{[]string{"processes", "start", "box", "--", "/no/such/program"}, 1},
		{[]string{"files", "list", "box"}, 0},
		{[]string{"files", "read", "box", "file"}, 0},
		{[]string{"files", "read", "box", "none"}, 1},
		{[]string{"files", "write", "box", "new", "--from", small}, 0},
		{[]string{"files", "write", "box", "new", "--from", large}, 0}, // in parts, of which the first starts it
		{[]string{"files", "stat", "box", "none"}, 1},
		{[]string{"files", "mkdir", "box", "made"}, 0},
		{[]string{"files", "move", "box", "file", "moved"}, 0},
		{[]string{"files", "remove", "box", "moved", "--yes"}, 0},
		{[]string{"files", "cp", small, "box:there"}, 0},
		{[]string{"files", "cp", small, "box:nowhere-yet"}, 0}, // what starts it is the question what is there
		{[]string{"files", "cp", "-", "box:typed"}, 0},
		{[]string{"files", "cp", dir + "/folder", "box:copied"}, 0},
		{[]string{"files", "cp", dir + "/folder/.", "box:copied"}, 0},
		{[]string{"files", "cp", "box:there", dir + "/down"}, 0},
		{[]string{"files", "cp", "box:there", "-"}, 0},
		{[]string{"files", "cp", "box:none", dir + "/down"}, 1},
		{[]string{"files", "cp", "box:folder", dir + "/down-folder"}, 0},
		{[]string{"files", "cp", "box:there", "other:there"}, 0},
		{[]string{"files", "cp", "other:there", "box:back"}, 0},
	} {
		stop()
		code, stdout, stderr := run(tt.args...)
		if code != tt.code || strings.Count(stderr, said) != 1 || strings.Contains(stdout, "woke") {
			t.Errorf("%q: exit %d, %q, %q", tt.args, code, stdout, stderr)
		}
		// It runs now, and there is nothing to say.
		if code, _, stderr := run("sandboxes", "exec", "box", "--", "true"); code != 0 || stderr != "" {
			t.Errorf("after %q: exit %d, %q", tt.args, code, stderr)
		}
	}
	stop()
	if code, stdout, stderr := run("files", "list", "box", "-q"); code != 0 || stderr != "" || !strings.Contains(stdout, "folder") {
		t.Errorf("quiet: exit %d, %q, %q", code, stdout, stderr)
	}
	stop()
	if code, stdout, stderr := run("files", "stat", "box", "folder", "-o", "json"); code != 0 || stderr != "" || !strings.Contains(stdout, `"woke": "boot"`) {
		t.Errorf("as JSON: exit %d, %q, %q", code, stdout, stderr)
	}
	stop()
	if code, stdout, stderr := run("files", "stat", "box", "none", "-o", "json"); code != 1 || stdout != "" || !strings.Contains(stderr, `"woke": "boot"`) {
		t.Errorf("an error as JSON: exit %d, %q, %q", code, stdout, stderr)
	}
	// What only reads what is kept starts nothing.
	stop()
	for _, args := range [][]string{{"sandboxes", "get", "box"}, {"processes", "list", "box"}, {"sandboxes", "logs", "box"}, {"sandboxes", "list"}} {
		if code, stdout, stderr := run(args...); code != 0 || strings.Contains(stderr, said) || stdout == "" {
			t.Errorf("%q: exit %d, %q", args, code, stderr)
		}
	}
	if st := Must(t, s.Client, api.GetSandbox, in(id)).Sandbox.State; st != api.StateStopped {
		t.Errorf("it is %s", st)
	}
}
