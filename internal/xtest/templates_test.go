package xtest

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/berthrun/berth/api"
	"github.com/berthrun/berth/client"
	"github.com/berthrun/berth/internal/errs"
)

// built waits until a build has ended and gives it; it must be ready.
func built(t testing.TB, c *client.Client, id string) api.Build {
	t.Helper()
	b := ended(t, c, id)
	if b.Status != api.BuildReady {
		t.Fatalf("build: %s: %s\n%s", b.Status, b.Reason, buildLog(t, c, id))
	}
	return b
}

// ended waits until a build has ended and gives it.
func ended(t testing.TB, c *client.Client, id string) api.Build {
	t.Helper()
	in := api.BuildLogsIn{BuildIn: api.BuildIn{BuildID: id}, WaitSeconds: 20, Limit: 1000}
	for range 1000 {
		out := Must(t, c, api.BuildLogs, in)
		if in.Offset = out.NextOffset; out.End {
			break
		}
	}
	return Must(t, c, api.GetBuild, api.GetBuildIn{BuildIn: api.BuildIn{BuildID: id}}).Build
}

func buildLog(t testing.TB, c *client.Client, id string) string {
	t.Helper()
	var all strings.Builder
	in := api.BuildLogsIn{BuildIn: api.BuildIn{BuildID: id}, Limit: 1000}
	for {
		out := Must(t, c, api.BuildLogs, in)
		for _, l := range out.Lines {
			all.WriteString(l.Text)
		}
		if len(out.Lines) < 1000 {
			return all.String()
		}
		in.Offset = out.NextOffset
	}
}

// build builds a template and waits for its end.
func build(t testing.TB, c *client.Client, in api.BuildTemplateIn) (api.BuildTemplateOut, api.Build) {
	t.Helper()
	out := Must(t, c, api.BuildTemplate, in)
	return out, ended(t, c, out.BuildID)
}

func runIn(t testing.TB, c *client.Client, sandbox, command string) api.ExecOut {
	t.Helper()
	return Must(t, c, api.Exec, api.ExecIn{SandboxIn: in(sandbox), CommandIn: api.CommandIn{Command: command}})
}

// TestTemplateBuild builds templates on the fake node: what steps did and said is there in sandboxes, what was built before is not built again, and a build
// that fails changes nothing.
func TestTemplateBuild(t *testing.T) {
	eachSleeper(t, nil, func(t *testing.T, l *life) {
		c := l.Client
		side := t.TempDir() + "/ran"
		steps := []api.TemplateStep{
			{Type: "ENV", Key: "COLOUR", Value: "red"},
			{Type: "WORKDIR", Path: "/work/deep"},
			{Type: "RUN", Command: "echo $COLOUR > file; echo one >> " + side + "; echo said; echo cried >&2"},
			{Type: "RUN", Command: "cp file copy; echo two >> " + side},
		}
		out, b := build(t, c, api.BuildTemplateIn{Name: "first", FromTemplate: "base", Steps: steps})
		if b.Status != api.BuildReady || b.Version != 1 || out.Version != 1 || b.Steps != 4 || b.Cached != 0 {
			t.Fatalf("build: %+v\n%s", b, buildLog(t, c, out.BuildID))
		}
		if log := buildLog(t, c, out.BuildID); !strings.Contains(log, "said\n") || !strings.Contains(log, "cried\n") || !strings.Contains(log, "[3/4] RUN echo") {
			t.Errorf("log: %s", log)
		}
		sb := Must(t, c, api.CreateSandbox, api.CreateSandboxIn{Template: "first"}).Sandbox
		if sb.State != api.StateRunning || sb.Template != "first" {
			t.Fatalf("sandbox: %+v", sb)
		}
		if got := runIn(t, c, sb.ID, "echo $COLOUR; cat copy"); got.ExitCode == nil || *got.ExitCode != 0 || got.Stdout != "red\nred\n" {
			t.Errorf("in the sandbox: %+v", got)
		}

		// Unchanged: nothing runs. Changed: what follows the change.
		if _, b = build(t, c, api.BuildTemplateIn{Name: "first", FromTemplate: "base", Steps: steps}); b.Status != api.BuildReady || b.Cached != 4 || b.Version != 2 {
			t.Errorf("built again: %+v", b)
		}
		if got := ranLines(t, side); got != "one two" {
			t.Errorf("ran: %s", got)
		}
		changed := append(append([]api.TemplateStep{}, steps[:3]...), api.TemplateStep{Type: "RUN", Command: "echo three >> " + side})
		if _, b = build(t, c, api.BuildTemplateIn{Name: "first", FromTemplate: "base", Steps: changed}); b.Status != api.BuildReady || b.Cached != 3 {
			t.Errorf("changed: %+v", b)
		}
		if got := ranLines(t, side); got != "one two three" {
			t.Errorf("ran: %s", got)
		}
		if _, b = build(t, c, api.BuildTemplateIn{Name: "first", FromTemplate: "base", Steps: changed, Force: true}); b.Status != api.BuildReady || b.Cached != 0 {
			t.Errorf("forced: %+v", b)
		}
		if got := ranLines(t, side); got != "one two three one three" {
			t.Errorf("ran: %s", got)
		}

		// A build that fails leaves the version before in use.
		before := Must(t, c, api.GetTemplate, api.TemplateIn{TemplateID: out.TemplateID}).Template
		_, b = build(t, c, api.BuildTemplateIn{Name: "first", FromTemplate: "base", Steps: append(changed, api.TemplateStep{Type: "RUN", Command: "echo broken >&2; exit 7"})})
		if b.Status != api.BuildError || !strings.Contains(b.Reason, "step 5") || !strings.Contains(b.Reason, "exit code 7") || !strings.Contains(b.Reason, "broken") {
			t.Errorf("failed: %+v", b)
		}
		if after := Must(t, c, api.GetTemplate, api.TemplateIn{TemplateID: out.TemplateID}).Template; after.BuildID != before.BuildID || after.Version != 4 {
			t.Errorf("after a failure: %+v, before %+v", after, before)
		}
		if got := Must(t, c, api.ListSandboxes, api.ListSandboxesIn{Scope: "all"}); len(got.Items) != 1 || got.TotalRunning != 1 {
			t.Errorf("listed: %+v", got.Items)
		}
	})
}

func ranLines(t testing.TB, file string) string {
	t.Helper()
	b, err := os.ReadFile(file) //nolint:gosec // below the test's own folder
	if err != nil {
		t.Fatal(err)
	}
	return strings.Join(strings.Fields(string(b)), " ")
}

// uploaded sends files that COPY takes, and gives their context's id.
func uploaded(t testing.TB, c *client.Client, files map[string]string) string {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for name, text := range files {
		if err := w.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: int64(len(text)), Typeflag: tar.TypeReg, ModTime: time.Now()}); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write([]byte(text)); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return send(t, c, b.Bytes())
}

func send(t testing.TB, c *client.Client, archive []byte) string {
	t.Helper()
	resp, err := client.Open(t.Context(), c, api.UploadContext, api.UploadContextIn{}, http.Header{"Content-Type": {api.TarType}}, bytes.NewReader(archive), int64(len(archive)))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var out api.UploadContextOut
	if err := json.NewDecoder(resp.Body).Decode(&out); err != nil {
		t.Fatal(err)
	}
	return out.Context.ID
}

// TestTemplateCopy copies files of a context and of other stages, as a Dockerfile says.
func TestTemplateCopy(t *testing.T) {
	eachSleeper(t, nil, func(t *testing.T, l *life) {
		c := l.Client
		files := uploaded(t, c, map[string]string{"app/main.py": "print(1)\n", "app/lib/util.py": "u\n", "notes.txt": "n\n"})
		side := t.TempDir() + "/ran"
		file := strings.Join([]string{
			"FROM template://base AS made",
			"WORKDIR /src",
			"COPY app/ .",
			"RUN cat main.py lib/util.py > whole; echo made >> " + side,
			"FROM template://base",
			"ENV WHO=me",
			"WORKDIR /srv/app",
			"COPY --from=made /src/whole ./",
			"COPY notes.txt renamed.txt",
			"COPY <<EOT hello.txt",
			"hello $WHO",
			"EOT",
			"RUN cat whole renamed.txt hello.txt > all; echo last >> " + side,
		}, "\n")
		in := api.BuildTemplateIn{Name: "copied", Dockerfile: file, ContextID: files}
		out, b := build(t, c, in)
		if b.Status != api.BuildReady {
			t.Fatalf("build: %+v\n%s", b, buildLog(t, c, out.BuildID))
		}
		id := Sandbox(t, c, api.CreateSandboxIn{Template: "copied"})
		if got := runIn(t, c, id, "pwd; cat all"); got.Stdout[strings.LastIndex(got.Stdout[:strings.Index(got.Stdout, "\n")], "/srv"):] != "/srv/app\nprint(1)\nu\nn\nhello me\n" {
			t.Errorf("in the sandbox: %+v", got)
		}

		// The same files, sent again at another time and in another order: nothing runs.
		in.ContextID = uploaded(t, c, map[string]string{"notes.txt": "n\n", "app/lib/util.py": "u\n", "app/main.py": "print(1)\n"})
		if _, b = build(t, c, in); b.Status != api.BuildReady || b.Cached != b.Steps {
			t.Errorf("again: %+v", b)
		}
		if got := ranLines(t, side); got != "made last" {
			t.Errorf("ran: %s", got)
		}
		// A file of the last stage changed: the other stage is not built again.
		in.ContextID = uploaded(t, c, map[string]string{"notes.txt": "other\n", "app/lib/util.py": "u\n", "app/main.py": "print(1)\n"})
		if _, b = build(t, c, in); b.Status != api.BuildReady {
			t.Errorf("changed: %+v", b)
		}
		if got := ranLines(t, side); got != "made last last" {
			t.Errorf("ran: %s", got)
		}

		for _, bad := range []struct {
			dockerfile, context string
			code                errs.Code
			says                string
		}{
			{"FROM template://base\nCOPY missing /", files, "", "line 2"},
			{"FROM template://base\nCOPY notes.txt /", "", errs.InvalidInput, "contextId"},
			{"FROM template://base\nONBUILD RUN true", "", errs.InvalidInput, "line 2"},
			{"FROM template://none\nRUN true", "", errs.NotFound, "none"},
		} {
			out, err := client.Call(t.Context(), c, api.BuildTemplate, api.BuildTemplateIn{Name: "bad", Dockerfile: bad.dockerfile, ContextID: bad.context})
			if bad.code != "" {
				if err == nil || !strings.Contains(err.Error(), string(bad.code)) || !strings.Contains(err.Error(), bad.says) {
					t.Errorf("%q: %v", bad.dockerfile, err)
				}
				continue
			}
			if err != nil {
				t.Fatal(err)
			}
			if b := ended(t, c, out.BuildID); b.Status != api.BuildError || !strings.Contains(b.Reason, bad.says) {
				t.Errorf("%q: %+v", bad.dockerfile, b)
			}
		}
	})
}
