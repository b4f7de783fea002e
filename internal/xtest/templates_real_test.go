package xtest

import (
	"archive/tar"
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/berthrun/berth/api"
	"github.com/berthrun/berth/internal/image/registrytest"
)

// TestRealTemplate builds templates in real sandboxes. What RUN, ENV, WORKDIR, USER and COPY did is there at run time.
func TestRealTemplate(t *testing.T) {
	t.Parallel() // it waits more than it works
	r := StartReal(t)
	c := r.Client
	files := uploaded(t, c, map[string]string{"app/main.py": "print('main')\n", "app/data/one": "1"})
	in := api.BuildTemplateIn{
		Name: "real", FromTemplate: "base", ContextID: files, MemoryMiB: 512,
		Steps: []api.TemplateStep{
			{Type: "RUN", Command: "id -un > /tmp/first; pwd >> /tmp/first"},
			{Type: "USER", User: "root"},
			{Type: "RUN", Command: "useradd -m -u 4242 builder && dd if=/dev/urandom of=/opt/random bs=64k count=1 2>/dev/null && sha256sum /opt/random > /opt/sum"},
			{Type: "ENV", Key: "GREETING", Value: "hello world"},
			{Type: "WORKDIR", Path: "/srv/app"},
			{Type: "COPY", Source: "app", Destination: "/srv/app/", User: "builder"},
			{Type: "RUN", Command: "chown builder /srv/app"},
			{Type: "USER", User: "builder"},
			{Type: "RUN", Command: "python3 main.py > out; echo $GREETING >> out; id -un >> out; pwd >> out"},
		},
	}
	began := time.Now()
	out, b := build(t, c, in)
	if b.Status != api.BuildReady {
		t.Fatalf("build: %+v\n%s\n%s", b, buildLog(t, c, out.BuildID), r.Log())
	}
	t.Logf("built in %v", time.Since(began))
	id := Sandbox(t, c, api.CreateSandboxIn{Template: "real"})
	got := runIn(t, c, id, "cat out /tmp/first; echo $GREETING; id -un; pwd; stat -c '%U %a' data/one main.py; sha256sum -c /opt/sum")
	want := "main\nhello world\nbuilder\n/srv/app\nuser\n/workspace\nhello world\nbuilder\n/srv/app\nbuilder 644\nbuilder 644\n/opt/random: OK\n"
	if got.Stdout != want {
		t.Errorf("in the sandbox: %s%s", got.Stdout, got.Stderr)
	}

	// Unchanged: nothing is run, and it is ready at once.
	began = time.Now()
	if _, b = build(t, c, in); b.Status != api.BuildReady || b.Cached != b.Steps {
		t.Errorf("again: %+v", b)
	}
	t.Logf("unchanged in %v", time.Since(began))

	// After a stop the sandbox is what it was.
	Must(t, c, api.StopSandbox, waiting(id, 30))
	Must(t, c, api.StartSandbox, waiting(id, 30))
	if got := runIn(t, c, id, "echo $GREETING; id -un; pwd"); got.Stdout != "hello world\nbuilder\n/srv/app\n" {
		t.Errorf("after a stop: %+v", got)
	}
}

// TestRealTemplateTogether has several build the same at once: each step runs once.
func TestRealTemplateTogether(t *testing.T) {
	t.Parallel() // it waits more than it works
	r := StartReal(t)
	c := r.Client
	var all sync.WaitGroup
	for _, name := range []string{"one", "two"} {
		all.Go(func() {
			out, b := build(t, c, api.BuildTemplateIn{Name: name, FromTemplate: "base", MemoryMiB: 512, Steps: []api.TemplateStep{
				{Type: "USER", User: "root"},
				{Type: "RUN", Command: "head -c 16 /dev/urandom | md5sum > /opt/one; sleep 1"},
				{Type: "RUN", Command: "head -c 16 /dev/urandom | md5sum > /opt/two"},
			}})
			if b.Status != api.BuildReady {
				t.Errorf("build: %+v\n%s", b, buildLog(t, c, out.BuildID))
			}
		})
	}
	all.Wait()
	one, two := Sandbox(t, c, api.CreateSandboxIn{Template: "one"}), Sandbox(t, c, api.CreateSandboxIn{Template: "two"})
	if a, b := runIn(t, c, one, "cat /opt/one /opt/two").Stdout, runIn(t, c, two, "cat /opt/one /opt/two").Stdout; a != b || len(strings.Fields(a)) != 4 {
		t.Errorf("the steps ran twice: %q and %q", a, b)
	}
}

// TestRealTemplateBooted keeps what a start command booted: a sandbox comes up with it running.
func TestRealTemplateBooted(t *testing.T) {
	t.Parallel() // it waits more than it works
	r := StartReal(t)
	c := r.Client
	in := api.BuildTemplateIn{
		Name: "server", FromTemplate: "base", MemoryMiB: 512,
		Steps:    []api.TemplateStep{{Type: "RUN", Command: "mkdir -p www && echo served > www/index.html"}, {Type: "ENV", Key: "ROOT", Value: "/workspace/www"}},
		StartCmd: "sleep 2; date +%s%N > /tmp/booted; exec python3 -m http.server 8000 -d $ROOT",
		ReadyCmd: "curl -fs localhost:8000 | grep served",
	}
	out, b := build(t, c, in)
	if b.Status != api.BuildReady {
		t.Fatalf("build: %+v\n%s\n%s", b, buildLog(t, c, out.BuildID), r.Log())
	}
	if tm := Must(t, c, api.GetTemplate, api.TemplateIn{TemplateID: out.TemplateID}).Template; !tm.Booted {
		t.Errorf("template: %+v", tm)
	}
	began := time.Now()
	id := Sandbox(t, c, api.CreateSandboxIn{Template: "server"})
	first := runIn(t, c, id, "curl -fs localhost:8000; cat /tmp/booted; hostname")
	t.Logf("served after %v", time.Since(began))
	other := Sandbox(t, c, api.CreateSandboxIn{Template: "server"})
	second := runIn(t, c, other, "curl -fs localhost:8000; cat /tmp/booted; hostname")
	a, z := strings.Fields(first.Stdout), strings.Fields(second.Stdout)
	if len(a) != 3 || len(z) != 3 || a[0] != "served" || z[0] != "served" || a[1] != z[1] || a[2] == z[2] {
		t.Errorf("came up: %q and %q", first.Stdout, second.Stdout)
	}
	// One of another size boots and starts it itself; so does one that was stopped.
	large := Sandbox(t, c, api.CreateSandboxIn{Template: "server", Resources: &api.ResourcesIn{MemoryMiB: 768}})
	Must(t, c, api.StopSandbox, waiting(id, 30))
	Must(t, c, api.StartSandbox, waiting(id, 30))
	for _, sandbox := range []string{large, id} {
		eventuallyIn(t, time.Minute, func() bool {
			return strings.HasPrefix(runIn(t, c, sandbox, "curl -fs localhost:8000").Stdout, "served")
		})
	}
	if _, b = build(t, c, in); b.Status != api.BuildReady || b.Cached != b.Steps {
		t.Errorf("again: %+v\n%s", b, buildLog(t, c, b.ID))
	}

	// What this node has of it goes, as if it were used on another.
	eventuallyIn(t, time.Minute, func() bool {
		return Must(t, c, api.GetTemplate, api.TemplateIn{TemplateID: out.TemplateID}).Template.Stored
	})
	r.Stop()
	r.KillRuntime()
	saves, err := filepath.Glob(filepath.Join(r.Dir, "data", "node", "saves", "lay_*"))
	if err != nil || len(saves) < 2 {
		t.Fatalf("the node has %v, %v", saves, err)
	}
	for _, save := range saves {
		if err := os.RemoveAll(save); err != nil {
			t.Fatal(err)
		}
	}
	r.Serve()
	c = r.Client
	id = Sandbox(t, c, api.CreateSandboxIn{Template: "server"})
	if got := strings.Fields(runIn(t, c, id, "curl -fs localhost:8000; cat /tmp/booted").Stdout); len(got) != 2 || got[1] != a[1] {
		t.Errorf("from what was stored: %q, not %q", got, a)
	}
	more := in
	more.Name, more.Steps = "more", append(append([]api.TemplateStep{}, in.Steps...), api.TemplateStep{Type: "RUN", Command: "cat www/index.html > again"})
	if _, b = build(t, c, more); b.Status != api.BuildReady || b.Cached != b.Steps-1 {
		t.Errorf("built on what was stored: %+v\n%s", b, buildLog(t, c, b.ID))
	}
}

// TestRealTemplateKilled kills the server in the middle of builds: each goes on, and nothing half made is used.
func TestRealTemplateKilled(t *testing.T) {
	t.Parallel() // it waits more than it works
	r := StartReal(t)
	in := api.BuildTemplateIn{Name: "killed", FromTemplate: "base", MemoryMiB: 512, Steps: []api.TemplateStep{
		{Type: "USER", User: "root"},
		{Type: "RUN", Command: "echo 1 >> /opt/count; sync"},
		{Type: "RUN", Command: "for i in 1 2 3 4 5 6 7 8; do echo $i >> /opt/slow; sleep 0.3; done"},
		{Type: "RUN", Command: "echo done >> /opt/slow"},
	}}
	out := Must(t, r.Client, api.BuildTemplate, in)
	eventuallyIn(t, time.Minute, func() bool {
		b := Must(t, r.Client, api.GetBuild, api.GetBuildIn{BuildIn: api.BuildIn{BuildID: out.BuildID}}).Build
		return b.Step == 3
	})
	r.Kill()
	r.Serve()
	if b := ended(t, r.Client, out.BuildID); b.Status != api.BuildReady {
		t.Fatalf("build: %+v\n%s\n%s", b, buildLog(t, r.Client, out.BuildID), r.Log())
	}
	id := Sandbox(t, r.Client, api.CreateSandboxIn{Template: "killed"})
	if got := runIn(t, r.Client, id, "tr '\\n' ' ' < /opt/count; tr '\\n' ' ' < /opt/slow"); got.Stdout != "1 1 2 3 4 5 6 7 8 done " {
		t.Errorf("in the sandbox: %+v", got)
	}
	// Only the sandbox that was made of it is left.
	eventuallyIn(t, time.Minute, func() bool {
		return strings.Count(buildLog(t, r.Client, out.BuildID), "[2/4]") == 2 && used(t, r.Client)["sandboxes.total"] == 1
	})
}

// TestRealTemplateFails ends builds that fail and that are cancelled: the version before stays in use, and what they ran in is gone.
func TestRealTemplateFails(t *testing.T) {
	t.Parallel() // it waits more than it works
	r := StartReal(t)
	c := r.Client
	good := api.BuildTemplateIn{Name: "kept", FromTemplate: "base", MemoryMiB: 512, Steps: []api.TemplateStep{{Type: "RUN", Command: "echo good > /workspace/file"}}}
	first, b := build(t, c, good)
	if b.Status != api.BuildReady {
		t.Fatalf("build: %+v\n%s", b, buildLog(t, c, first.BuildID))
	}
	bad := good
	bad.Steps = append([]api.TemplateStep{}, good.Steps...)
	bad.Steps = append(bad.Steps, api.TemplateStep{Type: "RUN", Command: "echo why not >&2; exit 3"})
	if _, b := build(t, c, bad); b.Status != api.BuildError || !strings.Contains(b.Reason, "exit code 3: why not") {
		t.Errorf("failed: %+v", b)
	}
	slow := good
	slow.Steps = append([]api.TemplateStep{}, good.Steps...)
	slow.Steps = append(slow.Steps, api.TemplateStep{Type: "RUN", Command: "echo begun; sleep 600"})
	out := Must(t, c, api.BuildTemplate, slow)
	eventuallyIn(t, time.Minute, func() bool { return strings.Contains(buildLog(t, c, out.BuildID), "begun\n") }) // live
	began := time.Now()
	Must(t, c, api.CancelBuild, api.CancelBuildIn{BuildIn: api.BuildIn{BuildID: out.BuildID}})
	if b := ended(t, c, out.BuildID); b.Status != api.BuildError || !strings.Contains(b.Reason, "cancelled") || time.Since(began) > 30*time.Second {
		t.Errorf("cancelled: %+v after %v", b, time.Since(began))
	}
	tm := Must(t, c, api.GetTemplate, api.TemplateIn{TemplateID: first.TemplateID}).Template
	if tm.BuildID != first.BuildID || tm.Version != 1 {
		t.Errorf("template: %+v", tm)
	}
	id := Sandbox(t, c, api.CreateSandboxIn{Template: "kept"})
	if got := runIn(t, c, id, "cat file"); got.Stdout != "good\n" {
		t.Errorf("in the sandbox: %+v", got)
	}
	eventuallyIn(t, time.Minute, func() bool { return used(t, r.Client)["sandboxes.total"] == 1 })
}

// TestRealTemplateOfImage builds on images of a registry, and copies out of one: what they say about running them is what the template says.
func TestRealTemplateOfImage(t *testing.T) {
	t.Parallel() // it waits more than it works
	reg := registrytest.Start(t, registrytest.Open)
	s := StartReal(t, "--insecure-registry", reg.Host)
	c := s.Client
	ref := reg.Push(t, "team/app:1", registrytest.Image(t, v1.Config{
		Env: []string{"GREETING=hello", "OWN=image", "PATH=/opt"}, WorkingDir: "/srv/app", User: "app:crew",
	}, registrytest.Layer(t, registrytest.Tar(t,
		tar.Header{Name: "opt/show", Linkname: string(program(t))}, tar.Header{Name: "etc/passwd", Linkname: "app:x:1234:1234::/srv/app:/bin/none\n"},
		tar.Header{Name: "etc/group", Linkname: "crew:x:4321:\n"}, tar.Header{Name: "srv/app", Typeflag: tar.TypeDir, Uid: 1234, Gid: 4321}), "gzip")))

	// It has no shell: its program is run as it is.
	in := api.BuildTemplateIn{Name: "of-image", Dockerfile: "FROM " + ref + "\nRUN [\"show\"]\nENV OWN=template\nUSER root\nWORKDIR /made\nRUN [\"/opt/show\"]\n", MemoryMiB: 256}
	out, b := build(t, c, in)
	if b.Status != api.BuildReady {
		t.Fatalf("build: %+v\n%s", b, buildLog(t, c, out.BuildID))
	}
	if log := buildLog(t, c, out.BuildID); !strings.Contains(log, "/srv/app 1234 4321 hello image\n") || !strings.Contains(log, "/made 0 0 hello template\n") {
		t.Errorf("log: %s", log)
	}
	id := Sandbox(t, c, api.CreateSandboxIn{Template: "of-image"})
	if got := Must(t, c, api.Exec, api.ExecIn{SandboxIn: api.SandboxIn{SandboxID: id}, CommandIn: api.CommandIn{Argv: []string{"show"}}}); got.Stdout != "/made 0 0 hello template\n" {
		t.Errorf("in the sandbox: %+v", got)
	}
	images := Must(t, c, api.ListImages, api.ListImagesIn{}).Items
	Must(t, c, api.DeleteSandbox, waiting(id, 30))
	if code := Code(t, c, api.DeleteImage, api.DeleteImageIn{ImageIn: api.ImageIn{ImageID: images[0].ID}}); code != "INVALID_STATE" {
		t.Errorf("an image that a template lies above was deleted: %q", code)
	}
	// Copied out of it, and out of a stage, with owners, modes and links, into folders behind links.
	out, b = build(t, c, api.BuildTemplateIn{Name: "copies", MemoryMiB: 512, ContextID: uploaded(t, c, map[string]string{"a/x.txt": "x", "a/y.txt": "y"}), Dockerfile: strings.Join([]string{
		"FROM template://base AS made", "USER root", "RUN mkdir -p /out/deep && echo made > /out/deep/file && ln -s deep/file /out/link && chmod 4755 /out/deep/file",
		"FROM template://base", "USER root",
		"COPY --from=" + ref + " /opt/show /usr/local/bin/",
		"COPY --from=made /out /got",
		"COPY --chown=user:user --chmod=640 a/ /var/run/copied/",
		"COPY a/x.txt /bin/named",
	}, "\n")})
	if b.Status != api.BuildReady {
		t.Fatalf("build: %+v\n%s", b, buildLog(t, c, out.BuildID))
	}
	id = Sandbox(t, c, api.CreateSandboxIn{Template: "copies"})
	got := runIn(t, c, id, "show | cut -d' ' -f2; cat /got/link; stat -c '%U %a' /got/deep/file /run/copied/x.txt /usr/bin/named; readlink /got/link; ls /var/run/copied | tr '\\n' ' '")
	if want := "0\nmade\nroot 755\nuser 640\nroot 644\ndeep/file\nx.txt y.txt "; got.Stdout != want {
		t.Errorf("in the sandbox: %q, not %q; %s", got.Stdout, want, got.Stderr)
	}
}

// TestRealTemplateManyFiles copies 5,000 files.
func TestRealTemplateManyFiles(t *testing.T) {
	t.Parallel() // it waits more than it works
	r := StartReal(t)
	c := r.Client
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	const files = 5_000
	for i := range files {
		if err := w.WriteHeader(&tar.Header{Name: fmt.Sprintf("many/%03d/%d", i%1000, i), Mode: 0o644, Size: 1, Typeflag: tar.TypeReg}); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write([]byte("x")); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	out, done := build(t, c, api.BuildTemplateIn{
		Name: "many", FromTemplate: "base", ContextID: send(t, c, b.Bytes()), MemoryMiB: 1024, Steps: []api.TemplateStep{{Type: "COPY", Source: "many", Destination: "/many"}},
	})
	if done.Status != api.BuildReady {
		t.Fatalf("build: %+v\n%s", done, buildLog(t, c, out.BuildID))
	}
	t.Logf("sent and copied in %v", time.Since(began))
	id := Sandbox(t, c, api.CreateSandboxIn{Template: "many"})
	if got := runIn(t, c, id, "find /many -type f | wc -l"); strings.TrimSpace(got.Stdout) != strconv.Itoa(files) {
		t.Errorf("in the sandbox: %+v", got)
	}
}
