package xtest

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"github.com/berthrun/berth/api"
	"github.com/berthrun/berth/internal/cli"
)

// steering reports what a terminal would obey.
func steering(s string) bool {
	return !utf8.ValidString(s) || strings.ContainsFunc(s, func(r rune) bool { return r != '\n' && (unicode.IsControl(r) || unicode.Is(unicode.Cf, r)) })
}

// TestNamesOnTheCommandLine gives names that are none to every command that takes one. An argument cannot hold NUL: it comes by --input, as JSON.
func TestNamesOnTheCommandLine(t *testing.T) {
	s := Start(t, Options{})
	id := Sandbox(t, s.Client, api.CreateSandboxIn{Name: "box"})
	dir := t.TempDir()
	env := map[string]string{"BERTH_URL": s.URL, "BERTH_API_KEY": s.Key, "BERTH_DATA": dir}
	run := func(stdin string, args ...string) (code int, stdout, stderr string) {
		var out, errOut bytes.Buffer
		code = cli.Main(t.Context(), args, func(n string) string { return env[n] }, strings.NewReader(stdin), &out, &errOut, cli.Commands{})
		return code, out.String(), errOut.String()
	}
	content := filepath.Join(dir, "content")
	must(t, os.WriteFile(content, []byte("x"), 0o644))
	refused := func(stdin string, args ...string) {
		t.Helper()
		code, stdout, stderr := run(stdin, args...)
		if code != 1 && code != 2 || stdout != "" || !strings.HasPrefix(stderr, "berth: ") || len(stderr) > 6000 || steering(stderr) || strings.Contains(stderr, "INTERNAL") {
			t.Errorf("%.60q: exit %d, %q, %.300q", args, code, stdout, stderr)
		}
	}
	named := func(name string) [][]string {
		return [][]string{
			{"sandboxes", "create", "--name=" + name},
			{"sandboxes", "get", "--", name},
			{"sandboxes", "delete", "--yes", "--", name},
			{"sandboxes", "shell", "--", name},
			{"sandboxes", "exec", name, "--", "true"},
			{"processes", "get", "--", "box", name},
			{"processes", "output", "--follow", "--", "box", name},
			{"processes", "signal", "box", name, "--signal=TERM"},
			{"keys", "revoke", "--yes", "--", name},
			{"images", "get", "--", name},
			{"images", "export", "-o", content + ".tar", "--", name},
			{"registries", "delete", "--yes", "--", name},
			{"docs", "read", "--", name},
			{"sandboxes", "exec", "box", "--user=" + name, "--", "true"},
			{"files", "read", "--", "box", name},
			{"files", "stat", "--", "box", name + "/none"},
			{"files", "move", "--", "box", name, "none"},
			{"files", "cp", "--", name + ":x", dir},
			{"files", "cp", "--", "box:" + name + "/none", dir + "/x"},
			{"files", "cp", "--", dir + "/none/" + name, "box:x"},
			{"account", "get", "--key=" + name + "\n"},
			{"account", "get", "--url=" + name},
			{"account", name},
			{name},
			{"sandboxes", "list", "--state=" + name},
			{"sandboxes", "list", "--cursor=" + name},
			{"sandboxes", "list", "--" + name},
		}
	}
	for _, name := range []string{"..", "../../x", "a\nb", "😀", "a\x1b[2Jb", "\u009b2J", "a\u202eb", "a\xffb", long} {
		for _, args := range named(name) {
			refused("", args...)
		}
	}
	// By --input even NUL comes as far as the server, which refuses it.
	quoted := func(v any) string {
		b, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	for _, name := range []string{"a\x00b", "\x00", "..\x00"} {
		refused(quoted(map[string]any{"name": name}), "sandboxes", "create", "--input", "-")
		refused(quoted(map[string]any{"path": name}), "files", "read", "box", "--input", "-")
		refused(quoted(map[string]any{"path": name}), "files", "write", "box", "--input", "-", "--from", content)
		refused(quoted(map[string]any{"processId": name}), "processes", "get", "box", "--input", "-")
		refused(quoted(map[string]any{"keyId": name}), "keys", "revoke", "--yes", "--input", "-")
		refused(quoted(map[string]any{"command": "true", "env": map[string]string{name: "x"}}), "sandboxes", "exec", "box", "--input", "-")
		refused(quoted(map[string]any{"argv": []string{"echo", name}}), "sandboxes", "exec", "box", "--input", "-")
		refused(quoted(map[string]any{"name": name}), "keys", "create", "--input", "-")
	}
	refused("{\"name\":\"a\xff\"}", "sandboxes", "create", "--input", "-")
	for _, variable := range []string{"=x", "x", "a\xff=x", "a=\xff", ""} {
		refused("", "sandboxes", "exec", "box", "--env", variable, "--", "true")
		refused("", "sandboxes", "shell", "box", "--env", variable, "--", "true")
	}
	refused("", "files", "write", "box", strings.Repeat("n", 256), "--from", content)
	refused("", "files", "write", "box", "..", "--from", content)
	refused("", "sandboxes", "exec", "box", "--", "echo", "a\xff")
	if n := len(Must(t, s.Client, api.ListSandboxes, api.ListSandboxesIn{}).Items); n != 1 {
		t.Errorf("there are %d sandboxes", n)
	}

	// Names that are odd and allowed come back as they are, and steer no terminal on their way.
	for _, name := range []string{"a\nb", "😀", "...", "-rf", "a\x1b]0;x\ab", "\u009b2J", "\u202etxt.exe", "\U000e0001tag"} {
		if code, stdout, stderr := run("", "files", "write", "--from", content, "--", "box", "odd/"+name); code != 0 || steering(stdout) {
			t.Errorf("writing %q: exit %d, %q, %q", name, code, stdout, stderr)
		}
		if code, stdout, stderr := run("", "files", "read", "--", "box", "odd/"+name); code != 0 || stdout != "x" || stderr != "" {
			t.Errorf("reading %q: exit %d, %q, %q", name, code, stdout, stderr)
		}
		code, stdout, _ := run("", "files", "stat", "-o", "json", "--", "box", "odd/"+name)
		var st api.StatFileOut
		if err := json.Unmarshal([]byte(stdout), &st); code != 0 || err != nil || st.File.Name != name || steering(stdout) {
			t.Errorf("%q as JSON: exit %d, %v, %q", name, code, err, stdout)
		}
	}
	Exec(t, s.Client, id, `mkdir -p odd; cd odd; touch "$(printf 'bytes\377')"`)
	Must(t, s.Client, api.UpdateSandbox, api.UpdateSandboxIn{SandboxIn: in(id), Metadata: map[string]string{"a\x1b[2J": "\u202e\x07"}})
	Must(t, s.Client, api.CreateKey, api.CreateKeyIn{Name: "k\x1b[31m"})
	Must(t, s.Client, api.StartProcess, api.StartProcessIn{SandboxIn: in(id), CommandIn: api.CommandIn{Argv: []string{"true", "\x1b[2J\r\n\u009b"}}})
	for _, args := range [][]string{
		{"files", "list", "box", "odd"},
		{"files", "list", "box", "odd", "-q"},
		{"files", "list", "box", "odd", "-o", "json"},
		{"sandboxes", "list"},
		{"sandboxes", "get", "box"},
		{"sandboxes", "list", "-o", "json"},
		{"sandboxes", "list", "-q"},
		{"keys", "list"},
		{"keys", "list", "-o", "json"},
		{"processes", "list", "box"},
		{"processes", "list", "box", "-o", "json"},
		{"files", "cp", "box:odd", filepath.Join(dir, "down"), "-o", "json"},
	} {
		if code, stdout, stderr := run("", args...); code != 0 || stdout == "" || steering(stdout) || steering(stderr) {
			t.Errorf("%q: exit %d, %q, %q", args, code, stdout, stderr)
		}
	}
}
