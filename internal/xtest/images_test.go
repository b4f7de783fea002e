package xtest

import (
	"context"
	"encoding/json"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/berthrun/berth/api"
	"github.com/berthrun/berth/internal/db/dbtest"
	"github.com/berthrun/berth/internal/image/registrytest"
)

func smallImage(t *testing.T, text string) v1.Image {
	t.Helper()
	return registrytest.Image(t, v1.Config{}, registrytest.Layer(t, registrytest.Tar(t, registrytest.File("text", text)), "gzip"))
}

// TestCredentials: what a registry is signed in to with is used and never seen again: in no answer and nowhere in the database.
func TestCredentials(t *testing.T) {
	dbtest.EachURL(t, func(t *testing.T, url string) {
		reg := registrytest.Start(t, registrytest.Basic)
		s := Start(t, Options{Database: url, Registry: reg.Host})
		ref := reg.Push(t, "a:1", smallImage(t, "1"))
		if code := Code(t, s.Client, api.PullImage, api.PullImageIn{Image: ref}); code != "UPSTREAM_ERROR" {
			t.Errorf("without credentials: %q", code)
		}
		set := Must(t, s.Client, api.SetRegistry, api.SetRegistryIn{Host: reg.Host, Username: registrytest.User, Password: registrytest.Password})
		list := Must(t, s.Client, api.ListRegistries, api.ListRegistriesIn{})
		img := Must(t, s.Client, api.PullImage, api.PullImageIn{Image: ref}).Image
		if img == nil || img.State != api.ImageReady {
			t.Fatalf("pulled %+v", img)
		}
		for _, v := range []any{set, list, img} {
			if b, err := json.Marshal(v); err != nil || strings.Contains(string(b), registrytest.Password) {
				t.Errorf("shown: %s, %v", b, err)
			}
		}
		// Another organization has neither the credentials nor the image.
		secret, err := s.Plane.Found(t.Context(), "another")
		if err != nil {
			t.Fatal(err)
		}
		other := s.With(t, secret)
		if code := Code(t, other, api.PullImage, api.PullImageIn{Image: ref}); code != "UPSTREAM_ERROR" {
			t.Errorf("another organization's pull: %q", code)
		}
		if got := Must(t, other, api.ListImages, api.ListImagesIn{}); len(got.Items) != 0 {
			t.Errorf("another organization sees %+v", got.Items)
		}
		if code := Code(t, other, api.GetImage, api.ImageIn{ImageID: img.ID}); code != "NOT_FOUND" {
			t.Errorf("another organization reads it: %q", code)
		}
		Must(t, s.Client, api.DeleteRegistry, api.DeleteRegistryIn{Host: reg.Host})
		if code := Code(t, s.Client, api.PullImage, api.PullImageIn{Image: reg.Push(t, "b:1", smallImage(t, "2"))}); code != "UPSTREAM_ERROR" {
			t.Errorf("with deleted credentials: %q", code)
		}
		if strings.HasPrefix(url, "postgres") {
			return
		}
		files, err := filepath.Glob(strings.TrimPrefix(url, "sqlite://") + "*")
		if err != nil || len(files) == 0 {
			t.Fatalf("%s: %v, %v", url, files, err)
		}
		for _, f := range files {
			if b, err := os.ReadFile(f); err != nil || strings.Contains(string(b), registrytest.Password) {
				t.Errorf("%s holds the password, or %v", f, err)
			}
		}
	})
}

// TestTags: a tag that moves in the registry moves here once it is asked again, one that was set here stays, and old versions stay as they are.
func TestTags(t *testing.T) {
	reg := registrytest.Start(t, registrytest.Open)
	s := Start(t, Options{Registry: reg.Host})
	c := s.Client
	first := Must(t, c, api.PullImage, api.PullImageIn{Image: reg.Push(t, "app:1", smallImage(t, "1"))}).Image
	ref := reg.Push(t, "app:1", smallImage(t, "2"))
	if again := Must(t, c, api.PullImage, api.PullImageIn{Image: ref}).Image; again.ID != first.ID {
		t.Error("the registry was asked again at once")
	}
	Must(t, c, api.TagImage, api.TagImageIn{ImageIn: api.ImageIn{ImageID: first.ID}, Tag: "kept"})
	if _, err := dbtest.Open(t, s.DatabaseURL()).ExecContext(context.Background(), `UPDATE image_tags SET checked_at = 0`); err != nil {
		t.Fatal(err)
	}
	second := Must(t, c, api.PullImage, api.PullImageIn{Image: ref}).Image
	if second.ID == first.ID || second.Digest == first.Digest {
		t.Errorf("the tag did not move: %+v", second)
	}
	if kept := Must(t, c, api.PullImage, api.PullImageIn{Image: reg.Host + "/app:kept"}).Image; kept.ID != first.ID {
		t.Errorf("the local tag means %+v", kept)
	}
	// The registry does not answer: the tag means what it meant.
	if _, err := dbtest.Open(t, s.DatabaseURL()).ExecContext(context.Background(), `UPDATE image_tags SET checked_at = 0`); err != nil {
		t.Fatal(err)
	}
	reg.Fault(func(w http.ResponseWriter, _ *http.Request) bool {
		w.WriteHeader(http.StatusServiceUnavailable)
		return true
	})
	if still := Must(t, c, api.PullImage, api.PullImageIn{Image: ref}).Image; still.ID != second.ID {
		t.Errorf("without the registry the tag means %+v", still)
	}
	list := Must(t, c, api.ListImages, api.ListImagesIn{Name: reg.Host + "/app"})
	if len(list.Items) != 2 || len(list.Items[0].Tags) != 1 || len(list.Items[1].Tags) != 1 || list.Items[1].Tags[0] != "kept" {
		t.Errorf("listed %+v", list.Items)
	}
}

// TestSandboxOfImage: a sandbox is fixed to a version, which is not deleted while it uses it; bad references are refused before anything is made.
func TestSandboxOfImage(t *testing.T) {
	reg := registrytest.Start(t, registrytest.Open)
	s := Start(t, Options{Registry: reg.Host})
	c := s.Client
	ref := reg.Push(t, "app:1", smallImage(t, "1"))
	for _, in := range []api.CreateSandboxIn{{Image: "UPPER case"}, {Image: ref, Template: "base"}, {Image: "x@sha256:1"}} {
		if code := Code(t, c, api.CreateSandbox, in); code != "INVALID_INPUT" {
			t.Errorf("%+v: %q", in, code)
		}
	}
	id := Sandbox(t, c, api.CreateSandboxIn{Image: ref})
	sb := Must(t, c, api.GetSandbox, in(id)).Sandbox
	img := api.ImageIn{ImageID: sb.Image.ImageID}
	if code := Code(t, c, api.DeleteImage, api.DeleteImageIn{ImageIn: img}); code != "INVALID_STATE" {
		t.Errorf("deleted while in use: %q", code)
	}
	Must(t, c, api.DeleteSandbox, api.SandboxWaitIn{SandboxIn: in(id)})
	if out := Must(t, c, api.DeleteImage, api.DeleteImageIn{ImageIn: img}); !out.Deleted {
		t.Error("not deleted at once")
	}
	if code := Code(t, c, api.GetImage, img); code != "NOT_FOUND" {
		t.Errorf("read after its end: %q", code)
	}
	if code := Code(t, c, api.CreateSandbox, api.CreateSandboxIn{Image: img.ImageID}); code != "UPSTREAM_ERROR" {
		t.Errorf("a sandbox of a deleted one: %q", code)
	}
}
