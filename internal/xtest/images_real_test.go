package xtest

import (
	"archive/tar"
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/berthrun/berth/api"
	"github.com/berthrun/berth/internal/image/registrytest"
)

// program gives a static program that says where, as whom and with what it runs.
func program(t *testing.T) []byte {
	t.Helper()
	dir := t.TempDir()
	src := `package main

import (
	"fmt"
	"os"
)

func main() {
	dir, _ := os.Getwd()
	fmt.Printf("%s %d %d %s %s\n", dir, os.Getuid(), os.Getgid(), os.Getenv("GREETING"), os.Getenv("OWN"))
}
`
	if err := os.WriteFile(filepath.Join(dir, "main.go"), []byte(src), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("go", "build", "-o", "show", "main.go")
	cmd.Dir, cmd.Env = dir, append(os.Environ(), "CGO_ENABLED=0", "GO111MODULE=off")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	b, err := os.ReadFile(filepath.Join(dir, "show"))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// TestRealImage: a sandbox of an image that a registry gives to those who sign in: without a shell, with its own user, variables and working directory;
// exported and imported it is the same; what a sandbox uses is not deleted.
func TestRealImage(t *testing.T) {
	reg := registrytest.Start(t, registrytest.Token)
	s := StartReal(t, "--insecure-registry", reg.Host)
	c := s.Client
	show := program(t)
	img := registrytest.Image(t, v1.Config{
		Env: []string{"GREETING=hello", "OWN=image", "PATH=/opt"}, WorkingDir: "/srv/app", User: "app:crew", Entrypoint: []string{"/opt/show"},
	},
		registrytest.Layer(t, registrytest.Tar(t,
			tar.Header{Name: "opt/show", Linkname: string(show)}, tar.Header{Name: "etc/passwd", Linkname: "app:x:1234:1234::/srv/app:/bin/none\n"},
			tar.Header{Name: "etc/group", Linkname: "crew:x:4321:\n"}, tar.Header{Name: "gone", Linkname: "x"}), "gzip"),
		registrytest.Layer(t, registrytest.Tar(t, tar.Header{Name: "srv/app", Typeflag: tar.TypeDir, Uid: 1234, Gid: 4321},
			tar.Header{Name: ".wh.gone", Linkname: ""}), "zstd"))
	ref := reg.Push(t, "team/app:1", img)

	out := Must(t, c, api.CreateSandbox, api.CreateSandboxIn{Image: ref, Resources: &api.ResourcesIn{MemoryMiB: 256}, WaitIn: wait(0)})
	refused := out.Sandbox.ID
	for range 40 { // a start waits for it, a second at most
		if sb := Must(t, c, api.GetSandbox, in(refused)).Sandbox; sb.State == api.StateFailed {
			if !strings.Contains(sb.Error, "refuses") {
				t.Errorf("without credentials: %s", sb.Error)
			}
			break
		} else if sb.State != api.StateCreating {
			t.Fatalf("without credentials it is %s", sb.State)
		}
		_ = Code(t, c, api.StartSandbox, api.SandboxWaitIn{SandboxIn: in(refused), WaitIn: wait(1)})
	}
	Must(t, c, api.SetRegistry, api.SetRegistryIn{Host: reg.Host, Username: registrytest.User, Password: registrytest.Password})

	id := Sandbox(t, c, api.CreateSandboxIn{Image: ref, Env: map[string]string{"OWN": "mine"}, Resources: &api.ResourcesIn{MemoryMiB: 256}, WaitIn: wait(30)})
	sb := Must(t, c, api.GetSandbox, in(id)).Sandbox
	if sb.Image == nil || sb.Image.Digest != registrytest.Digest(t, img) || sb.Image.Reference != ref || sb.Template != "" {
		t.Errorf("made from %+v, template %q", sb.Image, sb.Template)
	}
	run := func(when string) {
		t.Helper()
		got := Must(t, c, api.Exec, api.ExecIn{SandboxIn: in(id), CommandIn: api.CommandIn{Argv: []string{"show"}}})
		if got.Stdout != "/srv/app 1234 4321 hello mine\n" {
			t.Errorf("%s: %q, %q", when, got.Stdout, got.Stderr)
		}
	}
	run("at first")
	if code := Code(t, c, api.Exec, api.ExecIn{SandboxIn: in(id), CommandIn: api.CommandIn{Command: "echo $HOME"}}); code == "" {
		t.Error("a command ran through a shell that is not there")
	}
	if w := Must(t, c, api.WriteFile, api.WriteFileIn{FileIn: file(id, "kept"), Data: "x"}); w.File.Path != "/workspace/kept" {
		t.Errorf("written to %s", w.File.Path)
	}
	if code := Code(t, c, api.StatFile, api.FileStatIn{FileIn: file(id, "/gone")}); code != "NOT_FOUND" {
		t.Errorf("what the second layer removes: %s", code)
	}
	Must(t, c, api.StopSandbox, api.SandboxWaitIn{SandboxIn: in(id)})
	s.Kill()
	s.Serve()
	c = s.Client
	run("after a stop and a restart of the server")

	if code := Code(t, c, api.DeleteImage, api.DeleteImageIn{ImageIn: api.ImageIn{ImageID: sb.Image.ImageID}}); code != "INVALID_STATE" {
		t.Errorf("an image in use was deleted: %q", code)
	}
	var archive, again bytes.Buffer
	if _, err := c.ExportImage(t.Context(), api.ExportImageIn{ImageIn: api.ImageIn{ImageID: sb.Image.ImageID}}, &archive); err != nil {
		t.Fatal(err)
	}
	got, err := c.ImportImage(t.Context(), api.ImportImageIn{Image: "mine/app:2"}, bytes.NewReader(archive.Bytes()), int64(archive.Len()), nil)
	if err != nil {
		t.Fatal(err)
	}
	if got.Digest != sb.Image.Digest || got.State != api.ImageReady || got.Source != "import" || got.Name != "docker.io/mine/app" {
		t.Errorf("imported %+v", got)
	}
	if _, err := c.ExportImage(t.Context(), api.ExportImageIn{ImageIn: api.ImageIn{ImageID: got.ID}}, &again); err != nil || again.Len() < len(show)/4 {
		t.Errorf("exported %d bytes, %v", again.Len(), err)
	}
	other := Sandbox(t, c, api.CreateSandboxIn{Image: "mine/app:2", Resources: &api.ResourcesIn{MemoryMiB: 256}, WaitIn: wait(30)})
	if out := Must(t, c, api.Exec, api.ExecIn{SandboxIn: in(other), CommandIn: api.CommandIn{Argv: []string{"/opt/show"}}}); out.Stdout != "/srv/app 1234 4321 hello image\n" {
		t.Errorf("of the import: %q", out.Stdout)
	}
	if log := s.Log(); strings.Contains(log, registrytest.Password) {
		t.Error("the registry's password is in the log")
	}
}
