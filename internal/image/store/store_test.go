package store

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"golang.org/x/sys/unix"

	"github.com/berthrun/berth/internal/disk"
	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/image/registry"
	"github.com/berthrun/berth/internal/image/registrytest"
	"github.com/berthrun/berth/internal/nodeapi"
)

// The scopes of two organizations.
const (
	alpha = "org_a"
	beta  = "org_b"
)

func needRoot(t testing.TB) {
	t.Helper()
	if os.Geteuid() == 0 {
		return
	}
	if os.Getenv("CI") == "true" {
		t.Fatal("needs root")
	}
	t.Skip("needs root: layers are mounted")
}

// open gives a store in a node's folder that may reach a registry.
func open(t testing.TB, node string, limits Limits, hosts ...string) *Store {
	t.Helper()
	c := registry.New(registry.Policy{Insecure: hosts})
	c.Stall, c.Pause = time.Second, time.Millisecond
	t.Cleanup(c.Close)
	if limits.Reserve == 0 {
		limits.Reserve = 1
	}
	s, err := Open(Config{Dir: disk.PulledDir(node), Registry: c, Arch: "amd64", Limits: limits})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// pull does what a control plane does: resolve, then pull.
func pull(s *Store, scope, ref string, auth *nodeapi.ImageAuth) (nodeapi.Image, error) {
	r := nodeapi.ImageRequest{Scope: scope, Ref: ref, Auth: auth}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	found, err := s.Resolve(ctx, r)
	if err != nil {
		return nodeapi.Image{}, err
	}
	r.Digest = found.Digest
	return s.Pull(ctx, r, func(nodeapi.ImageProgress) {})
}

func mustPull(t testing.TB, s *Store, scope, ref string) nodeapi.Image {
	t.Helper()
	img, err := pull(s, scope, ref, nil)
	if err != nil {
		t.Fatalf("%v (%s)", err, errs.From(err).Reason)
	}
	return img
}

var signIn = &nodeapi.ImageAuth{Username: registrytest.User, Password: registrytest.Password}

// see mounts an image as a sandbox's disk is and gives its files.
func see(t testing.TB, node, image string) map[string]string {
	t.Helper()
	trees, err := disk.Stack(node, image)
	if err != nil {
		t.Fatal(err)
	}
	store, err := disk.Open(t.TempDir(), disk.Plain)
	if err != nil {
		t.Fatal(err)
	}
	target := filepath.Join(t.TempDir(), "m")
	if err := errors.Join(store.Create("a", 0), store.Mount("a", target, trees...)); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = disk.Unmount(target) }()
	out := map[string]string{}
	err = filepath.WalkDir(target, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		rel, _ := filepath.Rel(target, path)
		b, err := os.ReadFile(path)
		out[rel] = string(b)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func file(name, text string) tar.Header { return registrytest.File(name, text) }

func layerOf(t testing.TB, compression string, headers ...tar.Header) v1.Layer {
	return registrytest.Layer(t, registrytest.Tar(t, headers...), compression)
}

// TestPull: every way of signing in and every compression; layers hide what is below; the configuration is kept.
func TestPull(t *testing.T) {
	needRoot(t)
	for _, auth := range []string{registrytest.Open, registrytest.Basic, registrytest.Token} {
		t.Run("auth "+auth, func(t *testing.T) {
			r := registrytest.Start(t, auth)
			node := t.TempDir()
			s := open(t, node, Limits{}, r.Host)
			want := registrytest.Image(t, v1.Config{
				Env: []string{"A=b", "PATH=/opt/bin:/bin"}, WorkingDir: "/srv", User: "www:www", Entrypoint: []string{"/run"}, Cmd: []string{"x"},
				ExposedPorts: map[string]struct{}{"80/tcp": {}}, Labels: map[string]string{"l": "v"},
			},
				layerOf(t, "gzip", file("etc/a", "1"), file("etc/b", "1"), file("d/x", "1")),
				layerOf(t, "zstd", file("etc/.wh.a", ""), file("d/.wh..wh..opq", ""), file("d/y", "2")),
				layerOf(t, "", file("etc/c", "3")))
			ref := r.Push(t, "some/app:1", want)
			img, err := pull(s, alpha, ref, signIn)
			if err != nil {
				t.Fatal(err)
			}
			if img.ID != registrytest.Digest(t, want) || img.Layers != 3 {
				t.Errorf("image %+v", img)
			}
			if diff := cmp.Diff(nodeapi.ImageConfig{
				Env: []string{"A=b", "PATH=/opt/bin:/bin"}, WorkingDir: "/srv", User: "www:www", Entrypoint: []string{"/run"}, Cmd: []string{"x"},
				ExposedPorts: []string{"80/tcp"}, Labels: map[string]string{"l": "v"},
			}, img.Config); diff != "" {
				t.Error(diff)
			}
			if diff := cmp.Diff(map[string]string{"etc/b": "1", "d/y": "2", "etc/c": "3"}, see(t, node, img.ID)); diff != "" {
				t.Error(diff)
			}
			if auth == registrytest.Open {
				return
			}
			_, err = pull(s, beta, ref, nil)
			if errs.From(err).Reason != "registry_denied" {
				t.Errorf("without credentials: %v", err)
			}
			_, err = pull(s, beta, ref, &nodeapi.ImageAuth{Username: registrytest.User, Password: "wrong"})
			if errs.From(err).Reason != "registry_denied" || strings.Contains(fmt.Sprint(err), "wrong") {
				t.Errorf("with a wrong password: %v", err)
			}
		})
	}
}

// TestOwn: a scope gets nothing by knowing a digest. What another one has fetched is fetched again before it is used, and stored once.
func TestOwn(t *testing.T) {
	needRoot(t)
	node := t.TempDir()
	private, own := registrytest.Start(t, registrytest.Basic), registrytest.Start(t, registrytest.Open)
	s := open(t, node, Limits{}, private.Host, own.Host)
	secret := registrytest.Image(t, v1.Config{}, layerOf(t, "gzip", file("secret", "of alpha")))
	ref := private.Push(t, "a/secret:1", secret)
	img, err := pull(s, alpha, ref, signIn)
	if err != nil {
		t.Fatal(err)
	}
	// Beta has a registry of its own, which says that it has all that alpha's image is made of and gives only the manifest and configuration.
	config, err := secret.RawConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	manifest, err := secret.RawManifest()
	if err != nil {
		t.Fatal(err)
	}
	configName, err := secret.ConfigName()
	if err != nil {
		t.Fatal(err)
	}
	own.Fault(func(w http.ResponseWriter, r *http.Request) bool {
		switch {
		case strings.Contains(r.URL.Path, "/manifests/"):
			w.Header().Set("Content-Type", "application/vnd.docker.distribution.manifest.v2+json")
			_, _ = w.Write(manifest)
		case strings.HasSuffix(r.URL.Path, configName.String()):
			_, _ = w.Write(config)
		case r.Method == http.MethodHead:
		case strings.Contains(r.URL.Path, "/blobs/"):
			w.WriteHeader(http.StatusNotFound)
		default:
			return false
		}
		return true
	})
	_, err = pull(s, beta, own.Host+"/b/mine:1", nil)
	if !errs.Is(err, errs.NotFound) {
		t.Errorf("beta got alpha's image: %v", err)
	}
	if _, err := s.Pull(t.Context(), nodeapi.ImageRequest{Scope: beta, Ref: ref, Digest: img.ID}, func(nodeapi.ImageProgress) {}); errs.From(err).Reason != "registry_denied" {
		t.Errorf("beta got it from the registry without signing in: %v", err)
	}
	if err := s.Export(t.Context(), beta, img.ID, nil, io.Discard); !errs.Is(err, errs.NotFound) {
		t.Errorf("beta exports it: %v", err)
	}
	// With the right to it, beta fetches it by itself; on disk it is there once.
	before := names(t, s.path(layersDir))
	private.Requests()
	if _, err := pull(s, beta, ref, signIn); err != nil {
		t.Fatal(err)
	}
	fetched := 0
	for _, q := range private.Requests() {
		if strings.HasPrefix(q, "GET ") && strings.Contains(q, "/blobs/") {
			fetched++
		}
	}
	if fetched != 1 { // it had the configuration of its own registry
		t.Errorf("beta fetched %d blobs, want the layer", fetched)
	}
	if diff := cmp.Diff(before, names(t, s.path(layersDir))); diff != "" {
		t.Errorf("layers were unpacked twice:\n%s", diff)
	}
	// Alpha lets go of it; beta still has it. Then beta does.
	for _, scope := range []string{alpha, beta} {
		if see(t, node, img.ID)["secret"] != "of alpha" {
			t.Error("the image is broken")
		}
		if err := s.Remove(t.Context(), scope, img.ID); err != nil {
			t.Fatal(err)
		}
	}
	for _, d := range []string{layersDir, blobsDir, stacksDir, tmpDir} {
		if left := names(t, s.path(d)); len(left) > 0 {
			t.Errorf("%s still holds %v", d, left)
		}
	}
	if _, err := disk.Stack(node, img.ID); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("it can still be booted: %v", err)
	}
}

func names(t testing.TB, dir string) (all []string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		all = append(all, e.Name())
	}
	return all
}

// TestClaimed: an image whose configuration claims another one's layers shows its own, and is refused.
func TestClaimed(t *testing.T) {
	needRoot(t)
	r := registrytest.Start(t, registrytest.Open)
	s := open(t, t.TempDir(), Limits{}, r.Host)
	real := layerOf(t, "gzip", file("secret", "x"))
	mustPull(t, s, alpha, r.Push(t, "a:1", registrytest.Image(t, v1.Config{}, real)))
	img := registrytest.Image(t, v1.Config{}, layerOf(t, "gzip", file("mine", "y")))
	cfg, err := img.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	cfg = cfg.DeepCopy()
	if cfg.RootFS.DiffIDs[0], err = real.DiffID(); err != nil {
		t.Fatal(err)
	}
	if img, err = mutate.ConfigFile(img, cfg); err != nil {
		t.Fatal(err)
	}
	if _, err := pull(s, beta, r.Push(t, "b:1", img), nil); errs.From(err).Reason != "bad_layer" {
		t.Errorf("got %v", err)
	}
}

// TestPlatform: of a list this node's is taken; an image of another platform is refused, and the answer says which it is for.
func TestPlatform(t *testing.T) {
	needRoot(t)
	r := registrytest.Start(t, registrytest.Open)
	node := t.TempDir()
	s := open(t, node, Limits{}, r.Host)
	amd := registrytest.Image(t, v1.Config{}, layerOf(t, "gzip", file("arch", "amd64")))
	arm := registrytest.Platform(t, registrytest.Image(t, v1.Config{}, layerOf(t, "gzip", file("arch", "arm64"))), "linux", "arm64")
	add := func(img v1.Image, os, arch, variant string) mutate.IndexAddendum {
		return mutate.IndexAddendum{Add: img, Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: os, Architecture: arch, Variant: variant}}}
	}
	both := mutate.AppendManifests(empty.Index, add(arm, "unknown", "unknown", ""), add(arm, "linux", "arm64", "v8"), add(arm, "linux", "amd64", "v3"), add(amd, "linux", "amd64", ""))
	img := mustPull(t, s, alpha, r.PushIndex(t, "both:1", both))
	if img.ID != registrytest.Digest(t, amd) || see(t, node, img.ID)["arch"] != "amd64" {
		t.Errorf("image %+v", img)
	}
	only := mutate.AppendManifests(empty.Index, add(arm, "linux", "arm64", "v8"), add(arm, "windows", "amd64", ""))
	_, err := pull(s, alpha, r.PushIndex(t, "only:1", only), nil)
	if e := errs.From(err); e.Reason != "wrong_platform" || !strings.Contains(e.Message, "linux/arm64") || !errs.Is(err, errs.InvalidInput) {
		t.Errorf("a list without this platform: %v", err)
	}
	if _, err = pull(s, alpha, r.Push(t, "arm:1", arm), nil); errs.From(err).Reason != "wrong_platform" {
		t.Errorf("an image of another platform: %v", err)
	}
}

// TestBroken: a registry that breaks off is gone on with, one that lies is not believed, one that stalls is given up.
func TestBroken(t *testing.T) {
	needRoot(t)
	big := strings.Repeat("all work and no play ", 50_000)
	push := func(t *testing.T) (*registrytest.Registry, *Store, string, v1.Image) {
		r := registrytest.Start(t, registrytest.Open)
		img := registrytest.Image(t, v1.Config{}, layerOf(t, "", file("big", big)))
		ref := r.Push(t, "a:1", img)
		return r, open(t, t.TempDir(), Limits{}, r.Host), ref, img
	}
	layerBlob := func(t *testing.T, img v1.Image) (string, []byte) {
		layers, err := img.Layers()
		if err != nil {
			t.Fatal(err)
		}
		d, err := layers[0].Digest()
		if err != nil {
			t.Fatal(err)
		}
		rc, err := layers[0].Compressed()
		if err != nil {
			t.Fatal(err)
		}
		b, err := io.ReadAll(rc)
		if err != nil {
			t.Fatal(err)
		}
		return d.String(), b
	}
	t.Run("breaks off and gives parts", func(t *testing.T) {
		r, s, ref, img := push(t)
		digest, b := layerBlob(t, img)
		var asked []string
		r.Fault(func(w http.ResponseWriter, q *http.Request) bool {
			if q.Method != http.MethodGet || !strings.HasSuffix(q.URL.Path, digest) {
				return false
			}
			asked = append(asked, q.Header.Get("Range"))
			from := 0
			if _, err := fmt.Sscanf(q.Header.Get("Range"), "bytes=%d-", &from); err == nil {
				w.Header().Set("Content-Range", fmt.Sprintf("bytes %d-%d/%d", from, len(b)-1, len(b)))
				w.Header().Set("Content-Length", fmt.Sprint(len(b)-from))
				w.WriteHeader(http.StatusPartialContent)
			} else {
				w.Header().Set("Content-Length", fmt.Sprint(len(b)))
			}
			_, _ = w.Write(b[from:min(from+len(b)/4+1, len(b))])
			return true
		})
		mustPull(t, s, alpha, ref)
		if len(asked) != 4 || asked[0] != "" || asked[3] == "" {
			t.Errorf("asked for %q", asked)
		}
	})
	t.Run("breaks off and gives no parts", func(t *testing.T) {
		r, s, ref, img := push(t)
		digest, b := layerBlob(t, img)
		n := 0
		r.Fault(func(w http.ResponseWriter, q *http.Request) bool {
			if q.Method != http.MethodGet || !strings.HasSuffix(q.URL.Path, digest) {
				return false
			}
			if n++; n < 3 {
				w.Header().Set("Content-Length", fmt.Sprint(len(b)))
				_, _ = w.Write(b[:len(b)/2])
			} else {
				_, _ = w.Write(b)
			}
			return true
		})
		mustPull(t, s, alpha, ref)
	})
	t.Run("fails for a while", func(t *testing.T) {
		r, s, ref, _ := push(t)
		n := 0
		r.Fault(func(w http.ResponseWriter, _ *http.Request) bool {
			if n++; n%2 == 1 {
				w.WriteHeader(http.StatusServiceUnavailable)
				return true
			}
			return false
		})
		mustPull(t, s, alpha, ref)
	})
	t.Run("gives other bytes", func(t *testing.T) {
		r, s, ref, img := push(t)
		digest, b := layerBlob(t, img)
		r.Fault(func(w http.ResponseWriter, q *http.Request) bool {
			if !strings.HasSuffix(q.URL.Path, digest) {
				return false
			}
			_, _ = w.Write(bytes.ToUpper(b))
			return true
		})
		_, err := pull(s, alpha, ref, nil)
		if e := errs.From(err); e.Code != errs.Upstream || e.Reason != "digest_mismatch" {
			t.Errorf("got %v", err)
		}
		r.Fault(nil)
		mustPull(t, s, alpha, ref) // nothing of it was kept
	})
	t.Run("gives more than it says", func(t *testing.T) {
		r, s, ref, img := push(t)
		digest, b := layerBlob(t, img)
		r.Fault(func(w http.ResponseWriter, q *http.Request) bool {
			if !strings.HasSuffix(q.URL.Path, digest) {
				return false
			}
			for w.Header().Set("X", "y"); ; {
				if _, err := w.Write(b); err != nil {
					return true
				}
			}
		})
		if _, err := pull(s, alpha, ref, nil); errs.From(err).Reason != "digest_mismatch" {
			t.Errorf("got %v", err)
		}
	})
	t.Run("stalls", func(t *testing.T) {
		r, s, ref, img := push(t)
		digest, b := layerBlob(t, img)
		n := 0
		r.Fault(func(w http.ResponseWriter, q *http.Request) bool {
			if !strings.HasSuffix(q.URL.Path, digest) {
				return false
			}
			if n++; n >= 2 {
				return false
			}
			w.Header().Set("Content-Length", fmt.Sprint(len(b)))
			_, _ = w.Write(b[:100])
			_ = http.NewResponseController(w).Flush()
			<-q.Context().Done()
			return true
		})
		mustPull(t, s, alpha, ref)
		if n < 2 {
			t.Errorf("asked %d times", n)
		}
	})
	t.Run("stalls for ever", func(t *testing.T) {
		r, s, ref, _ := push(t)
		r.Fault(func(_ http.ResponseWriter, q *http.Request) bool {
			<-q.Context().Done()
			return true
		})
		if _, err := pull(s, alpha, ref, nil); !errs.Is(err, errs.Upstream) {
			t.Errorf("got %v", err)
		}
	})
	t.Run("has none", func(t *testing.T) {
		r, s, _, _ := push(t)
		if _, err := pull(s, alpha, r.Host+"/nothing:1", nil); !errs.Is(err, errs.NotFound) {
			t.Errorf("got %v", err)
		}
	})
}

// TestManyLayers: more layers than a disk is mounted above are merged, and show the same.
func TestManyLayers(t *testing.T) {
	needRoot(t)
	r := registrytest.Start(t, registrytest.Open)
	node := t.TempDir()
	s := open(t, node, Limits{}, r.Host)
	var layers []v1.Layer
	want := map[string]string{}
	for i := range 70 {
		all := []tar.Header{file(fmt.Sprintf("d/f%d", i), fmt.Sprint(i)), file("last", fmt.Sprint(i))}
		want[fmt.Sprintf("d/f%d", i)], want["last"] = fmt.Sprint(i), fmt.Sprint(i)
		if i%7 == 6 {
			all = append(all, file(fmt.Sprintf("d/.wh.f%d", i-3), ""))
			delete(want, fmt.Sprintf("d/f%d", i-3))
		}
		layers = append(layers, layerOf(t, "gzip", all...))
	}
	img := mustPull(t, s, alpha, r.Push(t, "many:1", registrytest.Image(t, v1.Config{}, layers...)))
	trees, err := disk.Stack(node, img.ID)
	if err != nil || len(trees) > maxStack || len(trees) < 5 {
		t.Errorf("%d trees, %v", len(trees), err)
	}
	if diff := cmp.Diff(want, see(t, node, img.ID)); diff != "" {
		t.Error(diff)
	}
	// Where layers cannot be mounted, all are merged.
	s.stack.Store(1)
	if err := s.Remove(t.Context(), alpha, img.ID); err != nil {
		t.Fatal(err)
	}
	mustPull(t, s, alpha, r.Host+"/many:1")
	if trees, err := disk.Stack(node, img.ID); err != nil || len(trees) != 1 {
		t.Errorf("%d trees, %v", len(trees), err)
	}
	if diff := cmp.Diff(want, see(t, node, img.ID)); diff != "" {
		t.Errorf("merged:\n%s", diff)
	}
}

// TestLimits: what is too large is refused, bombs too, and nothing stays.
func TestLimits(t *testing.T) {
	needRoot(t)
	r := registrytest.Start(t, registrytest.Open)
	limits := Limits{Bytes: 1 << 20, Unpacked: 4 << 20, Files: 100, Layers: 3}
	node := t.TempDir()
	s := open(t, node, limits, r.Host)
	zeros := strings.Repeat("\x00", 5<<20)
	var many []tar.Header
	for i := range 101 {
		many = append(many, file(fmt.Sprint(i), ""))
	}
	noise := make([]byte, 2<<20)
	for i := range noise {
		noise[i] = byte(i * i >> 3)
	}
	bad := layerOf(t, "gzip", file("../up", "x"))
	for what, img := range map[string]v1.Image{
		"gzip bomb":        registrytest.Image(t, v1.Config{}, layerOf(t, "gzip", file("zeros", zeros))),
		"zstd bomb":        registrytest.Image(t, v1.Config{}, layerOf(t, "zstd", file("zeros", zeros))),
		"bomb in pieces":   registrytest.Image(t, v1.Config{}, layerOf(t, "gzip", file("a", zeros[:3<<20])), layerOf(t, "gzip", file("b", zeros[:3<<20]))),
		"too many files":   registrytest.Image(t, v1.Config{}, layerOf(t, "gzip", many...)),
		"too many layers":  registrytest.Image(t, v1.Config{}, layerOf(t, "", file("1", "")), layerOf(t, "", file("2", "")), layerOf(t, "", file("3", "")), layerOf(t, "", file("4", ""))),
		"too many bytes":   registrytest.Image(t, v1.Config{}, layerOf(t, "", file("noise", string(noise)))),
		"a huge variable":  registrytest.Image(t, v1.Config{Env: []string{"A=" + strings.Repeat("x", 100<<10)}}, layerOf(t, "", file("1", ""))),
		"a name upwards":   registrytest.Image(t, v1.Config{}, bad),
		"no archive":       registrytest.Image(t, v1.Config{}, registrytest.Layer(t, []byte(strings.Repeat("no archive", 1000)), "gzip")),
		"nul in a command": registrytest.Image(t, v1.Config{Cmd: []string{"a\x00b"}}, layerOf(t, "", file("1", ""))),
	} {
		t.Run(what, func(t *testing.T) {
			_, err := pull(s, alpha, r.Push(t, "x:1", img), nil)
			if code := errs.CodeOf(err); code != errs.LimitExceeded && code != errs.InvalidInput {
				t.Errorf("got %v", err)
			}
		})
	}
	if all, err := s.List(t.Context()); err != nil || len(all) != 0 {
		t.Errorf("images %v, %v", all, err)
	}
	if left := names(t, s.path(tmpDir)); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}

// TestDiskFull: a disk that fills up ends the pull with its own code, and leaves what was there usable.
func TestDiskFull(t *testing.T) {
	needRoot(t)
	node := t.TempDir()
	if err := unix.Mount("tmpfs", node, "tmpfs", 0, "size=6m"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(node, unix.MNT_DETACH) })
	r := registrytest.Start(t, registrytest.Open)
	s := open(t, node, Limits{Reserve: 1 << 10}, r.Host)
	small := mustPull(t, s, alpha, r.Push(t, "small:1", registrytest.Image(t, v1.Config{}, layerOf(t, "gzip", file("a", "1")))))
	for what, img := range map[string]v1.Image{
		"unpacking": registrytest.Image(t, v1.Config{}, layerOf(t, "gzip", file("big", strings.Repeat("y", 20<<20)))),
		"fetching":  registrytest.Image(t, v1.Config{}, layerOf(t, "", file("big", strings.Repeat("y", 20<<20)))),
	} {
		_, err := pull(s, alpha, r.Push(t, "big:1", img), nil)
		if e := errs.From(err); e.Code != errs.NoCapacity || e.Reason != "disk_full" {
			t.Errorf("%s: %v", what, err)
		}
	}
	if left := names(t, s.path(tmpDir)); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
	if got := see(t, node, small.ID); got["a"] != "1" {
		t.Errorf("what was there: %v", got)
	}
}

// TestCutOff: what a killed process left is removed by the next one, its mounts too, and what it had fetched is used.
func TestCutOff(t *testing.T) {
	needRoot(t)
	r := registrytest.Start(t, registrytest.Open)
	node := t.TempDir()
	s := open(t, node, Limits{}, r.Host)
	img := registrytest.Image(t, v1.Config{}, layerOf(t, "gzip", file("a", "1")), layerOf(t, "gzip", file("b", "2")))
	ref := r.Push(t, "a:1", img)
	// As it is in the middle of the second layer: blobs fetched, one layer there, one mounted for unpacking.
	layers, err := img.Layers()
	if err != nil {
		t.Fatal(err)
	}
	lower := keyOf("merged", "", digestFor(t, layers[0]))
	tmp := s.path(tmpDir, "l-1")
	if err := errors.Join(os.MkdirAll(s.path(layersDir, lower, "tree"), 0o755), os.MkdirAll(filepath.Join(tmp, "tree"), 0o755)); err != nil {
		t.Fatal(err)
	}
	if _, _, err := s.mount(tmp, filepath.Join(tmp, "tree"), []string{lower}); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(s.path(ingestDir, alpha), 0o700); err != nil {
		t.Fatal(err)
	}
	rc, err := layers[1].Compressed()
	if err != nil {
		t.Fatal(err)
	}
	b, err := io.ReadAll(rc)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(s.fetched(alpha, digestFor(t, layers[1]))+".part", b[:len(b)/2], 0o600); err != nil {
		t.Fatal(err)
	}

	s = open(t, node, Limits{}, r.Host)
	if left := names(t, s.path(tmpDir)); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
	if left := names(t, s.path(layersDir)); len(left) > 0 {
		t.Errorf("a layer that no image has is left: %v", left)
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil || strings.Contains(string(mounts), node) {
		t.Errorf("mounts are left, %v", err)
	}
	got := mustPull(t, s, alpha, ref)
	if diff := cmp.Diff(map[string]string{"a": "1", "b": "2"}, see(t, node, got.ID)); diff != "" {
		t.Error(diff)
	}
}

func digestFor(t testing.TB, l v1.Layer) string {
	t.Helper()
	d, err := l.Digest()
	if err != nil {
		t.Fatal(err)
	}
	return d.String()
}

// TestArchive: what is exported is imported with the same digest by another node, and is the same archive each time.
func TestArchive(t *testing.T) {
	needRoot(t)
	r := registrytest.Start(t, registrytest.Open)
	one, two := t.TempDir(), t.TempDir()
	s := open(t, one, Limits{}, r.Host)
	img := mustPull(t, s, alpha, r.Push(t, "a:1", registrytest.Image(t, v1.Config{Env: []string{"A=b"}},
		layerOf(t, "gzip", file("a", "1")), layerOf(t, "zstd", file("b", "2")), layerOf(t, "", file("c", "3")))))
	var first, second bytes.Buffer
	for _, b := range []*bytes.Buffer{&first, &second} {
		if err := s.Export(t.Context(), alpha, img.ID, []string{"docker.io/library/a:1"}, b); err != nil {
			t.Fatal(err)
		}
	}
	if !bytes.Equal(first.Bytes(), second.Bytes()) {
		t.Error("two exports differ")
	}
	other := open(t, two, Limits{})
	got, err := other.Import(t.Context(), beta, "", bytes.NewReader(first.Bytes()))
	if err != nil {
		t.Fatal(err)
	}
	if got.ID != img.ID || !cmp.Equal(got.Names, []string{"docker.io/library/a:1"}) || !cmp.Equal(got.Config, img.Config) {
		t.Errorf("imported %+v", got)
	}
	if diff := cmp.Diff(map[string]string{"a": "1", "b": "2", "c": "3"}, see(t, two, got.ID)); diff != "" {
		t.Error(diff)
	}
	second.Reset()
	if err := other.Export(t.Context(), beta, got.ID, []string{"docker.io/library/a:1"}, &second); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(first.Bytes(), second.Bytes()) {
		t.Error("exported again it is another archive")
	}
	// go-containerregistry reads it as what docker save writes.
	path := filepath.Join(t.TempDir(), "a.tar")
	if err := os.WriteFile(path, first.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	tag, err := name.NewTag("a:1")
	if err != nil {
		t.Fatal(err)
	}
	if read, err := tarball.ImageFromPath(path, &tag); err != nil {
		t.Errorf("as docker's: %v", err)
	} else if cfg, err := read.ConfigFile(); err != nil || !cmp.Equal(cfg.Config.Env, []string{"A=b"}) {
		t.Errorf("as docker's: %+v, %v", cfg, err)
	}
}

// TestImportDocker: what docker save writes, of one image and of several.
func TestImportDocker(t *testing.T) {
	needRoot(t)
	node := t.TempDir()
	s := open(t, node, Limits{})
	one := registrytest.Image(t, v1.Config{WorkingDir: "/w"}, layerOf(t, "gzip", file("a", "1")))
	two := registrytest.Image(t, v1.Config{}, layerOf(t, "gzip", file("b", "2")))
	tag := func(s string) name.Tag {
		v, err := name.NewTag(s)
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
	var b bytes.Buffer
	if err := tarball.Write(tag("one:1"), one, &b); err != nil {
		t.Fatal(err)
	}
	got, err := s.Import(t.Context(), alpha, "", &b)
	if err != nil {
		t.Fatal(err)
	}
	if got.Config.WorkingDir != "/w" || len(got.Names) != 1 || !strings.HasSuffix(got.Names[0], "one:1") || see(t, node, got.ID)["a"] != "1" {
		t.Errorf("imported %+v", got)
	}
	b.Reset()
	if err := tarball.MultiWrite(map[name.Tag]v1.Image{tag("one:1"): one, tag("two:1"): two}, &b); err != nil {
		t.Fatal(err)
	}
	both := bytes.Clone(b.Bytes())
	_, err = s.Import(t.Context(), alpha, "", bytes.NewReader(both))
	if e := errs.From(err); e.Reason != "bad_archive" || len(e.Details) == 0 {
		t.Errorf("two images: %v", err)
	}
	var list []dockerEntry
	readFromTar(t, both, dockerFile, &list)
	for _, e := range list {
		if strings.Contains(e.RepoTags[0], "two") {
			got, err = s.Import(t.Context(), alpha, e.RepoTags[0], bytes.NewReader(both))
		}
	}
	if err != nil || see(t, node, got.ID)["b"] != "2" {
		t.Errorf("the second: %+v, %v", got, err)
	}
}

func readFromTar(t testing.TB, archive []byte, name string, v any) {
	t.Helper()
	r := tar.NewReader(bytes.NewReader(archive))
	for {
		h, err := r.Next()
		if err != nil {
			t.Fatal(err)
		}
		if h.Name == name {
			if err := json.NewDecoder(r).Decode(v); err != nil {
				t.Fatal(err)
			}
			return
		}
	}
}

// seeds are archives for the fuzzer, good and bad.
func seeds(t testing.TB) [][]byte {
	img := registrytest.Image(t, v1.Config{}, layerOf(t, "gzip", file("a", "1")))
	tag, err := name.NewTag("one:1")
	if err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	if err := tarball.Write(tag, img, &b); err != nil {
		t.Fatal(err)
	}
	raw, err := img.RawManifest()
	if err != nil {
		t.Fatal(err)
	}
	config, err := img.RawConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	digest := registrytest.Digest(t, img)
	index := fmt.Sprintf(`{"schemaVersion":2,"manifests":[{"mediaType":"application/vnd.oci.image.manifest.v1+json","digest":%q,"size":%d}]}`, digest, len(raw))
	layout := func(index string, more ...tar.Header) []byte {
		all := []tar.Header{
			file("oci-layout", layoutText), file("index.json", index), file(blobFolder+hexOf(digest), string(raw)),
			file(blobFolder+hexOf(digestOf(config)), string(config)),
		}
		return registrytest.Tar(t, append(all, more...)...)
	}
	return [][]byte{
		b.Bytes(), layout(index), layout(`{"manifests":null}`), layout(index, file(blobFolder+strings.Repeat("0", 64), "x")), layout("{"),
		registrytest.Tar(t, file("manifest.json", `[{"Config":"../../x","RepoTags":null,"Layers":["/etc/passwd"]}]`)),
		registrytest.Tar(t, file("../../outside", "x")), nil, []byte("\x1f\x8b"), []byte("\x28\xb5\x2f\xfd"),
	}
}

// FuzzImport: no archive makes anything but an image or an error with a code.
func FuzzImport(f *testing.F) {
	for _, s := range seeds(f) {
		f.Add(s)
	}
	node := f.TempDir()
	s := open(f, node, Limits{Bytes: 1 << 20, Unpacked: 1 << 20, Files: 100, Layers: 8})
	f.Fuzz(func(t *testing.T, archive []byte) {
		img, err := s.Import(t.Context(), alpha, "", bytes.NewReader(archive))
		if errs.CodeOf(err) == errs.Internal {
			t.Errorf("an error without a code: %v", err)
		}
		if err == nil {
			if err := s.Remove(t.Context(), alpha, img.ID); err != nil {
				t.Error(err)
			}
		}
		if left := names(t, s.path(tmpDir)); len(left) > 0 {
			t.Errorf("left: %v", left)
		}
	})
}
