package xtest

import (
	"archive/tar"
	"context"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/berthrun/berth/api"
	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/image/registrytest"
	"github.com/berthrun/berth/internal/runtime/fake"
)

func switchTo(id, image string) api.SwitchImageIn {
	return api.SwitchImageIn{SandboxIn: in(id), Image: image}
}

// TestSwitchImage: a running or stopped sandbox gets another image and keeps its folder; what does not go leaves it as it was.
func TestSwitchImage(t *testing.T) {
	reg := registrytest.Start(t, registrytest.Open)
	var fails error
	node := fake.Config{Can: fake.Everything(), Before: func(_ context.Context, method, _ string) error {
		if method == "rebase" {
			return fails
		}
		return nil
	}}
	s := Start(t, Options{Registry: reg.Host, Fake: node})
	c := s.Client
	one, two := reg.Push(t, "app:1", smallImage(t, "1")), reg.Push(t, "app:2", smallImage(t, "2"))
	id := Sandbox(t, c, api.CreateSandboxIn{Image: one})
	Exec(t, c, id, "echo kept > kept; echo gone > ../home/gone")
	wantKept := func(when, template, image, state string) {
		t.Helper()
		sb := Must(t, c, api.GetSandbox, in(id)).Sandbox
		reference := ""
		if sb.Image != nil {
			reference = sb.Image.Reference
		}
		if sb.State != state || sb.Template != template || reference != image {
			t.Errorf("%s: it is %s, of template %q and image %q; want %s, %q, %q", when, sb.State, sb.Template, reference, state, template, image)
		}
	}
	read := func(path string) string {
		t.Helper()
		return Exec(t, c, id, "cat "+path+" 2>/dev/null").Stdout
	}

	out := Must(t, c, api.SwitchSandboxImage, switchTo(id, two))
	if !out.Ready || out.Sandbox.State != api.StateRunning {
		t.Errorf("a running one: %+v", out)
	}
	wantKept("switched while it ran", "", two, api.StateRunning)
	if read("kept") != "kept\n" || read("../home/gone") != "" {
		t.Errorf("kept %q, and of the rest %q", read("kept"), read("../home/gone"))
	}

	Must(t, c, api.StopSandbox, api.SandboxWaitIn{SandboxIn: in(id)})
	for range 2 { // two of one stopped sandbox
		Must(t, c, api.SwitchSandboxImage, api.SwitchImageIn{SandboxIn: in(id), Template: "base"})
	}
	wantKept("switched while it was stopped", "base", "", api.StateStopped)
	if got := read("kept"); got != "kept\n" {
		t.Errorf("kept %q", got)
	}

	for name, bad := range map[string]api.SwitchImageIn{
		"nothing": {SandboxIn: in(id)}, "both": {SandboxIn: in(id), Image: one, Template: "base"}, "no reference": switchTo(id, "UPPER case"),
	} {
		if code := Code(t, c, api.SwitchSandboxImage, bad); code != "INVALID_INPUT" {
			t.Errorf("%s: %q", name, code)
		}
	}
	if code := Code(t, c, api.SwitchSandboxImage, api.SwitchImageIn{SandboxIn: in(id), Template: "none"}); code != "NOT_FOUND" {
		t.Errorf("an unknown template: %q", code)
	}
	if code := Code(t, c, api.SwitchSandboxImage, switchTo(id, reg.Host+"/none:1")); code != "NOT_FOUND" && code != "UPSTREAM_ERROR" {
		t.Errorf("an unknown image: %q", code)
	}
	wantKept("after an image that is not there", "base", "", api.StateRunning)
	fails = errs.E(errs.LimitExceeded, "the node's disk is full").Because("disk_full")
	if code := Code(t, c, api.SwitchSandboxImage, switchTo(id, one)); code != "LIMIT_EXCEEDED" {
		t.Errorf("on a full disk: %q", code)
	}
	wantKept("after a full disk", "base", "", api.StateRunning)
	if got := read("kept"); got != "kept\n" {
		t.Errorf("after a full disk %q is kept", got)
	}
	fails = nil
	Must(t, c, api.PauseSandbox, api.SandboxWaitIn{SandboxIn: in(id)})
	if code := Code(t, c, api.SwitchSandboxImage, switchTo(id, one)); code != "INVALID_STATE" {
		t.Errorf("a paused one: %q", code)
	}
}

// TestRealSwitchImage: from the base image to one without a shell and back, with the server killed in between.
func TestRealSwitchImage(t *testing.T) {
	t.Parallel() // it waits more than it works
	reg := registrytest.Start(t, registrytest.Open)
	s := StartReal(t, "--insecure-registry", reg.Host)
	img := registrytest.Image(t, v1.Config{Env: []string{"GREETING=hello", "OWN=image", "PATH=/opt"}, WorkingDir: "/srv", User: "app:crew"},
		registrytest.Layer(t, registrytest.Tar(t,
			tar.Header{Name: "opt/show", Linkname: string(program(t))}, tar.Header{Name: "etc/passwd", Linkname: "app:x:1234:1234::/srv:/bin/none\n"},
			tar.Header{Name: "etc/group", Linkname: "crew:x:4321:\n"}, tar.Header{Name: "srv", Typeflag: tar.TypeDir, Uid: 1234, Gid: 4321},
			tar.Header{Name: "workspace/of-the-image", Linkname: "x"}), "gzip"))
	ref := reg.Push(t, "team/app:1", img)
	id := Sandbox(t, s.Client, api.CreateSandboxIn{Resources: &api.ResourcesIn{MemoryMiB: 512}})
	Exec(t, s.Client, id, "mkdir -p deep/er && echo kept > deep/er/text && ln -s deep/er/text link && echo gone | sudo tee /etc/gone && chmod 700 deep")
	Must(t, s.Client, api.SwitchSandboxImage, switchTo(id, ref))
	if out := Must(t, s.Client, api.Exec, api.ExecIn{SandboxIn: in(id), CommandIn: api.CommandIn{Argv: []string{"show"}}}); out.Stdout != "/srv 1234 4321 hello image\n" {
		t.Errorf("on the image: %q, %q", out.Stdout, out.Stderr)
	}
	for path, want := range map[string]string{"/workspace/deep/er/text": "", "/etc/gone": "NOT_FOUND", "/workspace/of-the-image": "NOT_FOUND"} {
		if code := Code(t, s.Client, api.StatFile, api.FileStatIn{FileIn: file(id, path)}); code != want && (want == "" || code == "") && code != "FORBIDDEN" {
			t.Errorf("%s: %q, want %q", path, code, want)
		}
	}
	// Killed while it goes back, it goes back all the same.
	asked := make(chan struct{})
	go func() {
		defer close(asked)
		_ = Code(t, s.Client, api.SwitchSandboxImage, api.SwitchImageIn{SandboxIn: in(id), Template: "base"})
	}()
	for range 200 {
		if sb := Must(t, s.Client, api.GetSandbox, in(id)).Sandbox; sb.State == api.StateStopping || sb.State == api.StateStopped || sb.Template == "base" {
			break
		}
	}
	s.Kill()
	<-asked
	s.Serve()
	out := Exec(t, s.Client, id, "cat deep/er/text link; ls -a /workspace; test -e /etc/gone; echo $?; python3 -c 'print(1)'; stat -c %a deep; cat /etc/hostname")
	if !strings.HasPrefix(out.Stdout, "kept\nkept\n.\n..\ndeep\nlink\n1\n1\n700\nsandbox-") {
		t.Errorf("back on base: %q, %q", out.Stdout, out.Stderr)
	}
	if sb := Must(t, s.Client, api.GetSandbox, in(id)).Sandbox; sb.Template != "base" || sb.Image != nil {
		t.Errorf("of template %q and image %+v", sb.Template, sb.Image)
	}
}

// TestRealSwitchToTemplate: a sandbox moves to a template that was built, whose files, variables and command it has from then on; what it is to be of is not
// deleted.
func TestRealSwitchToTemplate(t *testing.T) {
	t.Parallel() // it waits more than it works
	s := StartReal(t)
	c := s.Client
	out, b := build(t, c, api.BuildTemplateIn{Name: "tool", FromTemplate: "base", StartCmd: "echo started > /tmp/started; sleep 600", Steps: []api.TemplateStep{
		{Type: "RUN", Command: "echo built > /opt/tool; echo built > /workspace/of-the-template", User: "root"}, {Type: "ENV", Key: "COLOUR", Value: "red"},
	}})
	if b.Status != api.BuildReady {
		t.Fatalf("build: %+v\n%s", b, buildLog(t, c, out.BuildID))
	}
	id := Sandbox(t, c, api.CreateSandboxIn{})
	Exec(t, c, id, "echo kept > kept; echo gone | sudo tee /opt/gone")
	sb := Must(t, c, api.SwitchSandboxImage, api.SwitchImageIn{SandboxIn: in(id), Template: "tool"}).Sandbox
	if sb.Template != "tool" || sb.State != api.StateRunning {
		t.Errorf("switched: %+v", sb)
	}
	const look = "cat kept /opt/tool; echo $COLOUR; ls; test -e /opt/gone; echo $?; for i in $(seq 100); do test -e /tmp/started && break; sleep 0.1; done; cat /tmp/started"
	if got := Exec(t, c, id, look); got.Stdout != "kept\nbuilt\nred\nkept\n1\nstarted\n" {
		t.Errorf("on the template: %q, %q", got.Stdout, got.Stderr)
	}
	if code := Code(t, c, api.DeleteTemplate, api.DeleteTemplateIn{TemplateIn: api.TemplateIn{TemplateID: out.TemplateID}}); code != "INVALID_STATE" {
		t.Errorf("deleted while a sandbox is of it: %q", code)
	}
	Must(t, c, api.SwitchSandboxImage, api.SwitchImageIn{SandboxIn: in(id), Template: "base"})
	if code := Code(t, c, api.DeleteTemplate, api.DeleteTemplateIn{TemplateIn: api.TemplateIn{TemplateID: out.TemplateID}}); code != "" {
		t.Errorf("deleted when no sandbox is of it: %q", code)
	}
	if got := Exec(t, c, id, "cat kept; test -e /opt/tool; echo $? $COLOUR"); got.Stdout != "kept\n1\n" && got.Stdout != "kept\n1 \n" {
		t.Errorf("back on base: %q", got.Stdout)
	}
}
