package xtest

import (
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"

	"github.com/berthrun/berth/api"
	"github.com/berthrun/berth/internal/image/registrytest"
)

// inRegistry gives the digest that a reference means in a registry, after reading all of the image; empty where there is none.
func inRegistry(t *testing.T, reference string) string {
	t.Helper()
	ref, err := name.ParseReference(reference, name.Insecure)
	if err != nil {
		t.Fatal(err)
	}
	img, err := remote.Image(ref, remote.WithAuth(&authn.Basic{Username: registrytest.User, Password: registrytest.Password}))
	if err != nil {
		return ""
	}
	layers, err := img.Layers()
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range layers {
		r, err := l.Compressed()
		if err == nil {
			_, err = io.Copy(io.Discard, r) // which compares it with its digest
		}
		if err != nil {
			t.Errorf("a layer of %s: %v", reference, err)
		}
	}
	return registrytest.Digest(t, img)
}

// TestPush: an image goes to a registry as it came, to one that asks for a password; what is there already is not sent; a push that fails leaves the tag as it was.
func TestPush(t *testing.T) {
	reg := registrytest.Start(t, registrytest.Basic)
	source := registrytest.Start(t, registrytest.Open)
	s := Start(t, Options{Registry: reg.Host + "," + source.Host})
	c := s.Client
	Must(t, c, api.SetRegistry, api.SetRegistryIn{Host: reg.Host, Username: registrytest.User, Password: registrytest.Password})
	pull := func(ref string) api.ImageIn {
		t.Helper()
		return api.ImageIn{ImageID: Must(t, c, api.PullImage, api.PullImageIn{Image: ref}).Image.ID}
	}
	one, two := smallImage(t, "1"), smallImage(t, "2")
	first, second := pull(source.Push(t, "from:1", one)), pull(source.Push(t, "from:2", two))
	to := reg.Host + "/team/app:latest"

	out := Must(t, c, api.PushImage, api.PushImageIn{ImageIn: first, Reference: to})
	if out.Push == nil || out.Push.State != api.PushDone || out.Push.Digest != registrytest.Digest(t, one) || out.ImageID != first.ImageID {
		t.Errorf("pushed %+v", out)
	}
	if got := inRegistry(t, to); got != registrytest.Digest(t, one) {
		t.Errorf("the tag means %s", got)
	}
	sent := func() (n int) {
		for _, r := range reg.Requests() {
			if strings.HasPrefix(r, "PATCH ") {
				n++
			}
		}
		return n
	}
	if n := sent(); n != 2 {
		t.Errorf("%d blobs were sent, want a layer and the configuration", n)
	}
	Must(t, c, api.PushImage, api.PushImageIn{ImageIn: first, Reference: to})
	if n := sent(); n != 0 {
		t.Errorf("%d blobs that are there were sent again", n)
	}

	reg.Fault(func(w http.ResponseWriter, r *http.Request) bool {
		if r.Method != http.MethodPatch {
			return false
		}
		w.WriteHeader(http.StatusForbidden)
		return true
	})
	if code := Code(t, c, api.PushImage, api.PushImageIn{ImageIn: second, Reference: to}); code != "UPSTREAM_ERROR" {
		t.Errorf("to a registry that refuses: %q", code)
	}
	reg.Fault(nil)
	if got := inRegistry(t, to); got != registrytest.Digest(t, one) {
		t.Errorf("after a push that failed the tag means %s", got)
	}
	shown := Must(t, c, api.GetImage, second).Image.Pushes
	if len(shown) != 1 || shown[0].State != api.PushFailed || shown[0].Reason != "registry_denied" || shown[0].Error == "" || shown[0].EndedAt == nil {
		t.Errorf("shown as %+v", shown)
	}
	Must(t, c, api.PushImage, api.PushImageIn{ImageIn: second, Reference: to})
	if got := inRegistry(t, to); got != registrytest.Digest(t, two) {
		t.Errorf("pushed again the tag means %s", got)
	}

	for _, bad := range []string{"UPPER case", reg.Host + "/team/app@" + registrytest.Digest(t, one)} {
		if code := Code(t, c, api.PushImage, api.PushImageIn{ImageIn: first, Reference: bad}); code != "INVALID_INPUT" {
			t.Errorf("to %s: %q", bad, code)
		}
	}
	if code := Code(t, c, api.PushImage, api.PushImageIn{ImageIn: first, Reference: "127.0.0.1:1/team/app:1"}); code != "UPSTREAM_ERROR" {
		t.Errorf("to an address that is not allowed: %q", code)
	}
	if p := Must(t, c, api.GetImage, first).Image.Pushes; len(p) != 2 || p[0].Reason != "registry_address" && p[1].Reason != "registry_address" {
		t.Errorf("pushes to an address that is not allowed: %+v", p)
	}
}

// TestRealPush: a push that the server's end interrupts goes on with the next server, and an image that is being pushed is not deleted.
func TestRealPush(t *testing.T) {
	t.Parallel() // it waits more than it works
	reg := registrytest.Start(t, registrytest.Token)
	source := registrytest.Start(t, registrytest.Open)
	s := StartReal(t, "--insecure-registry", reg.Host, "--insecure-registry", source.Host)
	Must(t, s.Client, api.SetRegistry, api.SetRegistryIn{Host: reg.Host, Username: registrytest.User, Password: registrytest.Password})
	img := registrytest.Image(t, v1.Config{},
		registrytest.Layer(t, registrytest.Tar(t, registrytest.File("text", strings.Repeat("a", 1<<20))), "gzip"),
		registrytest.Layer(t, registrytest.Tar(t, registrytest.File("more", strings.Repeat("b", 1<<20))), ""))
	id := api.ImageIn{ImageID: Must(t, s.Client, api.PullImage, api.PullImageIn{Image: source.Push(t, "from:1", img)}).Image.ID}
	var held atomic.Int64
	release := make(chan struct{})
	reg.Fault(func(_ http.ResponseWriter, r *http.Request) bool {
		if r.Method == http.MethodPut && strings.Contains(r.URL.Path, "/manifests/") && held.Add(1) == 1 {
			<-release // all is there but the manifest
		}
		return false
	})
	to := reg.Host + "/team/app:1"
	if out := Must(t, s.Client, api.PushImage, api.PushImageIn{ImageIn: id, Reference: to, WaitIn: wait(0)}); out.Push == nil || out.Push.State != api.PushPushing {
		t.Errorf("begun: %+v", out)
	}
	for deadline := time.Now().Add(30 * time.Second); held.Load() == 0; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("nothing was pushed")
		}
	}
	if code := Code(t, s.Client, api.DeleteImage, api.DeleteImageIn{ImageIn: id}); code != "INVALID_STATE" {
		t.Errorf("deleted while it is pushed: %q", code)
	}
	s.Kill()
	if got := inRegistry(t, to); got != "" {
		t.Errorf("half pushed, the tag means %s", got)
	}
	close(release)
	s.Serve()
	out := Must(t, s.Client, api.PushImage, api.PushImageIn{ImageIn: id, Reference: to, WaitIn: wait(30)})
	if out.Push == nil || out.Push.State != api.PushDone {
		t.Errorf("after the next server's start: %+v", out.Push)
	}
	if got := inRegistry(t, to); got != registrytest.Digest(t, img) {
		t.Errorf("the tag means %s", got)
	}
	if log := s.Log(); strings.Contains(log, registrytest.Password) {
		t.Error("the registry's password is in the log")
	}
}
