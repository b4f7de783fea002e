package xtest

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/berthrun/berth/api"
	"github.com/berthrun/berth/client"
	"github.com/berthrun/berth/internal/db/dbtest"
	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/runtime/fake"
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

// TestTemplateNames names builds by tags and versions, goes back to an earlier one, builds on templates, and deletes only what nothing uses.
func TestTemplateNames(t *testing.T) {
	eachSleeper(t, nil, func(t *testing.T, l *life) {
		c := l.Client
		say := func(name, from, text string) (api.BuildTemplateOut, api.Build) {
			t.Helper()
			out, b := build(t, c, api.BuildTemplateIn{Name: name, FromTemplate: from, Steps: []api.TemplateStep{{Type: "RUN", Command: "echo " + text + " >> said", User: ""}}})
			if b.Status != api.BuildReady {
				t.Fatalf("build: %+v\n%s", b, buildLog(t, c, out.BuildID))
			}
			return out, b
		}
		said := func(template string) string {
			t.Helper()
			id := Sandbox(t, c, api.CreateSandboxIn{Template: template})
			defer Must(t, c, api.DeleteSandbox, waiting(id, 30))
			return strings.Join(strings.Fields(runIn(t, c, id, "cat said").Stdout), " ")
		}
		one, _ := say("named:stable", "base", "one")
		two, _ := say("named", "base", "two")
		if one.TemplateID != two.TemplateID || one.Version != 1 || two.Version != 2 {
			t.Errorf("built %+v and %+v", one, two)
		}
		for ref, want := range map[string]string{"named": "two", "named:latest": "two", "named:stable": "one", "named:1": "one", one.TemplateID: "two", one.TemplateID + ":stable": "one", one.BuildID: "one"} {
			if got := said(ref); got != want {
				t.Errorf("%s says %q, not %q", ref, got, want)
			}
		}
		if code := Code(t, c, api.CreateSandbox, api.CreateSandboxIn{Template: "named:none"}); code != string(errs.NotFound) {
			t.Errorf("no such tag: %s", code)
		}
		if code := Code(t, c, api.BuildTemplate, api.BuildTemplateIn{Name: "base", FromTemplate: "base"}); code != string(errs.AlreadyExists) {
			t.Errorf("base built: %s", code)
		}
		// Back to the first, and forward with the next build.
		Must(t, c, api.UpdateTemplate, api.UpdateTemplateIn{TemplateIn: api.TemplateIn{TemplateID: one.TemplateID}, Tag: "latest", BuildID: one.BuildID})
		if got := said("named"); got != "one" {
			t.Errorf("went back to %q", got)
		}
		say("named", "base", "three")
		if got := said("named"); got != "three" {
			t.Errorf("after the next build: %q", got)
		}
		// On a template: what its tag means now.
		child, _ := say("child", "named:stable", "child")
		if got := said("child"); got != "one child" {
			t.Errorf("the child says %q", got)
		}
		list := Must(t, c, api.ListTemplates, api.ListTemplatesIn{}).Items
		if len(list) != 3 || list[0].Name != "child" || list[1].Name != "named" || list[2].Name != "base" || !list[2].BuiltIn {
			t.Errorf("listed: %+v", list)
		}
		if builds := Must(t, c, api.ListBuilds, api.ListBuildsIn{TemplateID: one.TemplateID}).Items; len(builds) != 3 || builds[0].Version != 3 {
			t.Errorf("builds: %+v", builds)
		}
		// Deleted is only what nothing uses.
		id := Sandbox(t, c, api.CreateSandboxIn{Template: "child"})
		for _, in := range []api.DeleteTemplateIn{{TemplateIn: api.TemplateIn{TemplateID: one.TemplateID}}, {TemplateIn: api.TemplateIn{TemplateID: child.TemplateID}}} {
			if code := Code(t, c, api.DeleteTemplate, in); code != string(errs.InvalidState) {
				t.Errorf("deleted what is in use: %s", code)
			}
		}
		Must(t, c, api.DeleteSandbox, waiting(id, 30))
		Must(t, c, api.DeleteTemplate, api.DeleteTemplateIn{TemplateIn: api.TemplateIn{TemplateID: child.TemplateID}})
		Must(t, c, api.DeleteTemplate, api.DeleteTemplateIn{TemplateIn: api.TemplateIn{TemplateID: one.TemplateID}})
		if code := Code(t, c, api.CreateSandbox, api.CreateSandboxIn{Template: "named"}); code != string(errs.NotFound) {
			t.Errorf("a deleted template: %s", code)
		}
		again, _ := say("named", "base", "four")
		if again.TemplateID == one.TemplateID || again.Version != 1 {
			t.Errorf("built anew: %+v", again)
		}
	})
}

// TestTemplateDefaults gives sandboxes what their template says, and shows nobody what is secret.
func TestTemplateDefaults(t *testing.T) {
	eachSleeper(t, nil, func(t *testing.T, l *life) {
		c := l.Client
		out, b := build(t, c, api.BuildTemplateIn{Name: "given", FromTemplate: "base", MemoryMiB: 640, Steps: []api.TemplateStep{{Type: "ENV", Key: "A", Value: "built"}, {Type: "ENV", Key: "B", Value: "built"}}})
		if b.Status != api.BuildReady {
			t.Fatalf("build: %+v", b)
		}
		in := api.UpdateTemplateIn{
			TemplateIn: api.TemplateIn{TemplateID: out.TemplateID}, TTLSeconds: new(600), MaxTTLSeconds: new(1200), IdlePauseSeconds: new(120), OnIdle: "stop", OnExpiry: "delete",
			Resources: &api.ResourcesIn{VCPU: 0.5}, Env: map[string]string{"B": "hidden-env", "C": "own"}, UserData: new("#!/bin/sh\necho hidden-data > /dev/null; echo ran > " + t.TempDir() + "/data"),
		}
		updated := Must(t, c, api.UpdateTemplate, in)
		var shown strings.Builder
		for _, v := range []any{updated, Must(t, c, api.GetTemplate, in.TemplateIn), Must(t, c, api.ListTemplates, api.ListTemplatesIn{})} {
			text, err := json.Marshal(v)
			if err != nil {
				t.Fatal(err)
			}
			shown.Write(text)
		}
		if strings.Contains(shown.String(), "hidden") {
			t.Errorf("secrets are shown: %s", shown.String())
		}
		var stored string
		if err := dbtest.Open(t, l.DatabaseURL()).QueryRowContext(t.Context(), `SELECT sealed || defaults FROM templates WHERE id = $1`, out.TemplateID).Scan(&stored); err != nil || strings.Contains(stored, "hidden") {
			t.Errorf("stored: %s, %v", stored, err)
		}
		sb := Must(t, c, api.CreateSandbox, api.CreateSandboxIn{Template: "given", Env: map[string]string{"C": "create"}}).Sandbox
		if sb.OnIdle != "stop" || sb.OnExpiry != "delete" || sb.IdlePauseSeconds != 120 || sb.Resources.MemoryMiB != 640 || sb.Resources.VCPU != 0.5 || time.Until(*sb.ExpiresAt) > 601*time.Second {
			t.Errorf("sandbox: %+v", sb)
		}
		if got := runIn(t, c, sb.ID, "echo $A $B $C"); got.Stdout != "built hidden-env create\n" {
			t.Errorf("environment: %+v", got)
		}
		data := (*in.UserData)[strings.LastIndex(*in.UserData, " ")+1:]
		eventually(t, func() bool { b, err := os.ReadFile(data); return err == nil && string(b) == "ran\n" }) //nolint:gosec // the test's own
		made, err := os.Stat(data)
		must(t, err)
		if made.Mode().Perm() != 0o644 { // others read what the script makes
			t.Errorf("the script made a file of mode %v", made.Mode())
		}
		Must(t, c, api.StopSandbox, waiting(sb.ID, 30))
		if err := os.Remove(data); err != nil {
			t.Fatal(err)
		}
		Must(t, c, api.StartSandbox, waiting(sb.ID, 30))
		if got := runIn(t, c, sb.ID, "echo $A $B $C"); got.Stdout != "built hidden-env create\n" {
			t.Errorf("environment after a stop: %+v", got)
		}
		if _, err := os.Stat(data); err == nil {
			t.Error("the user data ran again")
		}
		for name, code := range map[string]string{
			"create": Code(t, c, api.CreateSandbox, api.CreateSandboxIn{Template: "given", TTLSeconds: 1201}),
			"set":    Code(t, c, api.SetSandboxTimeout, api.SetTimeoutIn{SandboxIn: api.SandboxIn{SandboxID: sb.ID}, TTLSeconds: 1201}),
			"extend": Code(t, c, api.ExtendSandbox, api.ExtendIn{SandboxIn: api.SandboxIn{SandboxID: sb.ID}, By: "1h"}),
		} {
			if code != string(errs.LimitExceeded) {
				t.Errorf("%s beyond the maximum: %s", name, code)
			}
		}
		Must(t, c, api.SetSandboxTimeout, api.SetTimeoutIn{SandboxIn: api.SandboxIn{SandboxID: sb.ID}, TTLSeconds: 1200})
	})
}

// TestTemplateVolumes mounts a template's volumes in its sandboxes.
func TestTemplateVolumes(t *testing.T) {
	eachSleeper(t, nil, func(t *testing.T, l *life) {
		c := l.Client
		out, b := build(t, c, api.BuildTemplateIn{Name: "mounted", FromTemplate: "base", Steps: []api.TemplateStep{{Type: "RUN", Command: "echo made > made"}}, StartCmd: "sleep 600"})
		if b.Status != api.BuildReady {
			t.Fatalf("build: %+v", b)
		}
		v := Must(t, c, api.CreateVolume, api.CreateVolumeIn{Name: "notes", SizeGiB: 1}).Volume
		tm := Must(t, c, api.SetTemplateVolumes, api.SetTemplateVolumesIn{TemplateIn: api.TemplateIn{TemplateID: out.TemplateID}, Volumes: []api.VolumeMount{{Volume: "notes", Path: "/notes"}}}).Template
		if len(tm.Volumes) != 1 || tm.Volumes[0].Path != "/notes" {
			t.Errorf("template: %+v", tm)
		}
		sb := Must(t, c, api.CreateSandbox, api.CreateSandboxIn{Template: "mounted"}).Sandbox
		if got := Must(t, c, api.GetSandbox, in(sb.ID)); len(got.Volumes) != 1 || got.Volumes[0].VolumeID != v.ID || got.Volumes[0].Path != "/notes" {
			t.Errorf("sandbox: %+v", got)
		}
		if to, err := os.Readlink(filepath.Join(l.Dir, sb.ID, "notes")); err != nil || to != l.Driver.VolumeFolder(v.ID) {
			t.Errorf("the node mounts %q, %v", to, err)
		}
		if code := Code(t, c, api.CreateSandbox, api.CreateSandboxIn{Template: "mounted"}); code == "" {
			t.Error("a second one writes to the volume")
		}
		Must(t, c, api.SetTemplateVolumes, api.SetTemplateVolumesIn{TemplateIn: api.TemplateIn{TemplateID: out.TemplateID}, Volumes: []api.VolumeMount{}})
		if other := Must(t, c, api.CreateSandbox, api.CreateSandboxIn{Template: "mounted"}); !other.Ready {
			t.Errorf("without: %+v", other)
		}
	})
}

// TestTemplateServers has two servers build the same at once, and kills one that builds: each step has run once to its end, and the build goes on.
func TestTemplateServers(t *testing.T) {
	dbtest.EachURL(t, func(t *testing.T, url string) {
		one := Start(t, Options{Database: url, Fake: fake.Config{Can: fake.Everything()}})
		two := one.Peer(t)
		dir := t.TempDir()
		steps := []api.TemplateStep{
			{Type: "RUN", Command: "echo a >> " + dir + "/ran; touch " + dir + "/begun; while [ -e " + dir + "/wait ]; do sleep 0.05; done; echo first > file"},
			{Type: "RUN", Command: "echo b >> " + dir + "/ran; echo second >> file"},
		}
		if err := os.WriteFile(dir+"/wait", nil, 0o600); err != nil {
			t.Fatal(err)
		}
		a := Must(t, one.Client, api.BuildTemplate, api.BuildTemplateIn{Name: "a", FromTemplate: "base", Steps: steps})
		eventually(t, func() bool { _, err := os.Stat(dir + "/begun"); return err == nil })
		b := Must(t, two.Client, api.BuildTemplate, api.BuildTemplateIn{Name: "b", FromTemplate: "base", Steps: steps})
		eventually(t, func() bool {
			return Must(t, two.Client, api.GetBuild, api.GetBuildIn{BuildIn: api.BuildIn{BuildID: b.BuildID}}).Build.Step == 1
		})
		if err := os.Remove(dir + "/wait"); err != nil {
			t.Fatal(err)
		}
		built(t, one.Client, a.BuildID)
		if b := built(t, one.Client, b.BuildID); b.Cached != 2 {
			t.Errorf("the second build: %+v", b)
		}
		if got := ranLines(t, dir+"/ran"); got != "a b" {
			t.Errorf("ran: %s", got)
		}

		// One that is killed in the middle of a step: another takes over once its lease has run out, and begins with that step.
		if err := os.WriteFile(dir+"/wait", nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Remove(dir + "/begun"); err != nil {
			t.Fatal(err)
		}
		steps[0].Command += "; true"
		k := Must(t, one.Client, api.BuildTemplate, api.BuildTemplateIn{Name: "k", FromTemplate: "base", Steps: append([]api.TemplateStep{{Type: "RUN", Command: "echo k >> " + dir + "/ran"}}, steps...)})
		eventually(t, func() bool { _, err := os.Stat(dir + "/begun"); return err == nil })
		cancelled := Must(t, two.Client, api.BuildTemplate, api.BuildTemplateIn{Name: "c", FromTemplate: "base", Steps: []api.TemplateStep{{Type: "RUN", Command: "sleep 600"}}})
		if b := Must(t, two.Client, api.CancelBuild, api.CancelBuildIn{BuildIn: api.BuildIn{BuildID: cancelled.BuildID}}).Build; b.Status != api.BuildError || !strings.Contains(b.Reason, "cancelled") {
			t.Errorf("cancelled: %+v", b)
		}
		one.Kill()
		if err := os.Remove(dir + "/wait"); err != nil {
			t.Fatal(err)
		}
		if b := built(t, two.Client, k.BuildID); b.Version != 1 {
			t.Errorf("after the kill: %+v", b)
		}
		id := Sandbox(t, two.Client, api.CreateSandboxIn{Template: "k"})
		if got := runIn(t, two.Client, id, "cat file"); got.Stdout != "first\nsecond\n" {
			t.Errorf("in the sandbox: %+v", got)
		}
	})
}

// TestTemplateSandbox looks at what a build runs in: a sandbox of the builder's, with its network and out of its quotas, which no caller sees or reaches.
func TestTemplateSandbox(t *testing.T) {
	eachSleeper(t, nil, func(t *testing.T, l *life) {
		c, dir := l.Client, t.TempDir()
		before := used(t, c)
		out := Must(t, c, api.BuildTemplate, api.BuildTemplateIn{
			Name: "inner", FromTemplate: "base", MemoryMiB: 640, CPUCount: 0.5, Network: &api.NetworkIn{Internet: new(false)},
			Steps: []api.TemplateStep{{Type: "RUN", Command: "touch " + dir + "/begun; while [ ! -e " + dir + "/go ]; do sleep 0.05; done"}},
		})
		eventually(t, func() bool { _, err := os.Stat(dir + "/begun"); return err == nil })
		var id, principal, org string
		var internet bool
		var memory, vcpu int64
		if err := l.db.QueryRowContext(t.Context(), `SELECT id, principal_id, org_id, internet, memory_mib, vcpu_milli FROM sandboxes WHERE purpose = 'build'`).
			Scan(&id, &principal, &org, &internet, &memory, &vcpu); err != nil {
			t.Fatal(err)
		}
		who := identify(t, l.InProcess, l.Key)
		if principal != who.PrincipalID || org != who.OrgID || internet || memory != 640 || vcpu != 500 {
			t.Errorf("it runs as %s of %s, internet %v, with %d MiB and %d", principal, org, internet, memory, vcpu)
		}
		if now := used(t, c); now["sandboxes.running"] != before["sandboxes.running"]+1 || now["memory.running"] != before["memory.running"]+640 {
			t.Errorf("it takes from the quotas: %v, before %v", now, before)
		}
		if list := Must(t, c, api.ListSandboxes, api.ListSandboxesIn{Scope: "all"}); len(list.Items) != 0 || list.TotalRunning != 0 {
			t.Errorf("it is listed: %+v", list)
		}
		for name, code := range map[string]string{
			"get": Code(t, c, api.GetSandbox, in(id)), "run": Code(t, c, api.Exec, api.ExecIn{SandboxIn: in(id), CommandIn: api.CommandIn{Command: "true"}}),
			"delete": Code(t, c, api.DeleteSandbox, waiting(id, 5)), "fork": Code(t, c, api.ForkSandbox, api.ForkSandboxIn{SandboxIn: in(id)}),
		} {
			if code != string(errs.NotFound) {
				t.Errorf("%s: %q", name, code)
			}
		}
		if err := os.WriteFile(dir+"/go", nil, 0o600); err != nil {
			t.Fatal(err)
		}
		built(t, c, out.BuildID)
		eventually(t, func() bool { return used(t, c)["sandboxes.total"] == before["sandboxes.total"] })
	})
}

// TestTemplateFullDisk fills the node's disk while a step is saved: the build fails, nothing of it is used, and what was there stays.
func TestTemplateFullDisk(t *testing.T) {
	eachSleeper(t, nil, func(t *testing.T, l *life) {
		c := l.Client
		steps := []api.TemplateStep{{Type: "RUN", Command: "echo one > file"}}
		first, b := build(t, c, api.BuildTemplateIn{Name: "full", FromTemplate: "base", Steps: steps})
		if b.Status != api.BuildReady {
			t.Fatalf("build: %+v", b)
		}
		l.on(func(_ context.Context, method, _ string) error {
			if method == "save" {
				return errs.E(errs.LimitExceeded, "the disk of the node is full").Because("disk_full")
			}
			return nil
		})
		more := api.BuildTemplateIn{Name: "full", FromTemplate: "base", Steps: append(append([]api.TemplateStep{}, steps...), api.TemplateStep{Type: "RUN", Command: "echo two >> file"})}
		if _, b := build(t, c, more); b.Status != api.BuildError || !strings.Contains(b.Reason, "step 2") || !strings.Contains(b.Reason, "full") {
			t.Errorf("with a full disk: %+v", b)
		}
		l.on(func(context.Context, string, string) error { return nil })
		if tm := Must(t, c, api.GetTemplate, api.TemplateIn{TemplateID: first.TemplateID}).Template; tm.BuildID != first.BuildID {
			t.Errorf("template: %+v", tm)
		}
		if got := runIn(t, c, Sandbox(t, c, api.CreateSandboxIn{Template: "full"}), "cat file"); got.Stdout != "one\n" {
			t.Errorf("in the sandbox: %+v", got)
		}
		if _, b := build(t, c, more); b.Status != api.BuildReady || b.Cached != 1 {
			t.Errorf("with room again: %+v", b)
		}
	})
}

// TestTemplateInputs sends archives that try to leave their folder.
func TestTemplateInputs(t *testing.T) {
	l := newLifeOn(t, t.TempDir()+"/berth.db", fake.Config{Can: fake.Everything()}, nil)
	for name, headers := range map[string][]tar.Header{
		"up":           {{Name: "../out", Typeflag: tar.TypeReg}},
		"up in it":     {{Name: "a/../../out", Typeflag: tar.TypeReg}},
		"through":      {{Name: "link", Typeflag: tar.TypeSymlink, Linkname: "/tmp"}, {Name: "link/out", Typeflag: tar.TypeReg}},
		"device":       {{Name: "null", Typeflag: tar.TypeChar, Devmajor: 1, Devminor: 3}},
		"pipe":         {{Name: "pipe", Typeflag: tar.TypeFifo}},
		"hard link up": {{Name: "h", Typeflag: tar.TypeLink, Linkname: "../../etc/passwd"}},
	} {
		var b bytes.Buffer
		w := tar.NewWriter(&b)
		for _, h := range headers {
			h.Mode = 0o644
			if err := w.WriteHeader(&h); err != nil {
				t.Fatal(err)
			}
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		resp, err := client.Open(t.Context(), l.Client, api.UploadContext, api.UploadContextIn{}, http.Header{"Content-Type": {api.TarType}}, &b, int64(b.Len()))
		if err == nil {
			_ = resp.Body.Close()
		}
		if err == nil || !strings.Contains(err.Error(), string(errs.InvalidInput)) {
			t.Errorf("%s: %v", name, err)
		}
	}
	var kept int
	if err := l.db.QueryRowContext(t.Context(), `SELECT COUNT(*) FROM build_contexts`).Scan(&kept); err != nil || kept != 0 {
		t.Errorf("%d of them are kept, %v", kept, err)
	}
	// Links are copied as links, and nothing on the host is read through them.
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, h := range []tar.Header{{Name: "d/", Typeflag: tar.TypeDir, Mode: 0o755}, {Name: "d/host", Typeflag: tar.TypeSymlink, Linkname: "/etc/hostname"}, {Name: "d/\xff\xfe", Typeflag: tar.TypeReg, Mode: 0o644, Format: tar.FormatGNU}} {
		if err := w.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	out, done := build(t, l.Client, api.BuildTemplateIn{
		Name: "links", FromTemplate: "base", ContextID: send(t, l.Client, b.Bytes()), Steps: []api.TemplateStep{{Type: "COPY", Source: "d", Destination: "/got"}},
	})
	if done.Status != api.BuildReady {
		t.Fatalf("build: %+v\n%s", done, buildLog(t, l.Client, out.BuildID))
	}
	id := Sandbox(t, l.Client, api.CreateSandboxIn{Template: "links"})
	if st := Must(t, l.Client, api.StatFile, api.FileStatIn{FileIn: file(id, "/got/host")}); st.File.Type != "symlink" || st.File.Target != "/etc/hostname" {
		t.Errorf("the link became %+v", st)
	}
}
