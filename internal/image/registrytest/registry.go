// Package registrytest owns a registry for tests: the one of go-containerregistry on loopback, behind sign-in and with faults as a test wants them, and
// images to put into it.
package registrytest

import (
	"archive/tar"
	"bytes"
	"encoding/base64"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
)

// The ways in which a registry asks who is there.
const (
	Open  = ""
	Basic = "basic"
	Token = "token" // a token of a server that asks for user and password
)

// Credentials that every guarded registry takes.
const (
	User     = "someone"
	Password = "hunter2-of-the-registry"
)

// token is what the token server gives out.
const token = "a-token-of-the-registry"

// Registry is a registry on loopback.
type Registry struct {
	Host string // 127.0.0.1 and its port

	mu       sync.Mutex
	fault    func(w http.ResponseWriter, r *http.Request) bool
	requests []string
}

// Start serves until the test ends.
func Start(t testing.TB, auth string) *Registry {
	t.Helper()
	r := &Registry{}
	inner := registry.New(registry.Logger(log.New(io.Discard, "", 0)))
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		r.mu.Lock()
		r.requests = append(r.requests, req.Method+" "+req.URL.Path)
		fault := r.fault
		r.mu.Unlock()
		if req.URL.Path == "/token" {
			r.token(w, req)
			return
		}
		if !r.admitted(w, req, auth) {
			return
		}
		if fault != nil && fault(w, req) {
			return
		}
		inner.ServeHTTP(w, req)
	}))
	t.Cleanup(srv.Close)
	r.Host = strings.TrimPrefix(srv.URL, "http://")
	return r
}

func (r *Registry) token(w http.ResponseWriter, req *http.Request) {
	if u, p, ok := req.BasicAuth(); !ok || u != User || p != Password {
		w.WriteHeader(http.StatusUnauthorized)
		return
	}
	_, _ = fmt.Fprintf(w, `{"token":%q,"expires_in":300}`, token)
}

func (r *Registry) admitted(w http.ResponseWriter, req *http.Request, auth string) bool {
	got := req.Header.Get("Authorization")
	switch auth {
	case Basic:
		if got == "Basic "+base64.StdEncoding.EncodeToString([]byte(User+":"+Password)) {
			return true
		}
		w.Header().Set("WWW-Authenticate", `Basic realm="registry"`)
	case Token:
		if got == "Bearer "+token {
			return true
		}
		w.Header().Set("WWW-Authenticate", fmt.Sprintf(`Bearer realm="http://%s/token",service="registry",scope="repository:x:pull"`, req.Host))
	default:
		return true
	}
	w.WriteHeader(http.StatusUnauthorized)
	_, _ = io.WriteString(w, `{"errors":[{"code":"UNAUTHORIZED","message":"sign in"}]}`)
	return false
}

// Fault has requests answered by fault, where it says that it has.
func (r *Registry) Fault(fault func(w http.ResponseWriter, r *http.Request) bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.fault = fault
}

// Requests gives what was asked since it was called last, each as method and path.
func (r *Registry) Requests() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	all := r.requests
	r.requests = nil
	return all
}

// Push puts an image into the registry, and gives its reference.
func (r *Registry) Push(t testing.TB, repository string, img v1.Image) string {
	t.Helper()
	ref := r.Host + "/" + repository
	parsed, err := name.ParseReference(ref)
	if err != nil {
		t.Fatal(err)
	}
	if err := remote.Write(parsed, img, r.auth()); err != nil {
		t.Fatal(err)
	}
	return ref
}

// PushIndex is Push for a list of platforms.
func (r *Registry) PushIndex(t testing.TB, repository string, index v1.ImageIndex) string {
	t.Helper()
	ref := r.Host + "/" + repository
	parsed, err := name.ParseReference(ref)
	if err != nil {
		t.Fatal(err)
	}
	if err := remote.WriteIndex(parsed, index, r.auth()); err != nil {
		t.Fatal(err)
	}
	return ref
}

func (r *Registry) auth() remote.Option {
	return remote.WithAuth(&authn.Basic{Username: User, Password: Password})
}

// Image makes an image for linux/amd64 of layers.
func Image(t testing.TB, cfg v1.Config, layers ...v1.Layer) v1.Image {
	t.Helper()
	img, err := mutate.AppendLayers(empty.Image, layers...)
	if err == nil {
		var file *v1.ConfigFile
		if file, err = img.ConfigFile(); err == nil {
			file = file.DeepCopy()
			file.OS, file.Architecture, file.Config = "linux", "amd64", cfg
			img, err = mutate.ConfigFile(img, file)
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	return img
}

// Platform gives an image another platform.
func Platform(t testing.TB, img v1.Image, os, arch string) v1.Image {
	t.Helper()
	file, err := img.ConfigFile()
	if err == nil {
		file = file.DeepCopy()
		file.OS, file.Architecture = os, arch
		img, err = mutate.ConfigFile(img, file)
	}
	if err != nil {
		t.Fatal(err)
	}
	return img
}

// Digest is an image's digest.
func Digest(t testing.TB, img v1.Image) string {
	t.Helper()
	d, err := img.Digest()
	if err != nil {
		t.Fatal(err)
	}
	return d.String()
}

// Tar writes an archive. A header of type 0 is a file whose content is its Linkname.
func Tar(t testing.TB, headers ...tar.Header) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, h := range headers {
		text := ""
		if h.Typeflag == 0 {
			h.Typeflag, text, h.Linkname = tar.TypeReg, h.Linkname, ""
			h.Size = int64(len(text))
		}
		if h.Mode == 0 {
			h.Mode = 0o755
		}
		if err := w.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(w, text); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// File is the header of a file with a content.
func File(name, text string) tar.Header { return tar.Header{Name: name, Linkname: text} }

// Layer makes a layer of an archive, compressed by gzip, zstd or not at all ("").
func Layer(t testing.TB, archive []byte, compression string) v1.Layer {
	t.Helper()
	var b bytes.Buffer
	kind := types.OCIUncompressedLayer
	var w io.WriteCloser
	switch compression {
	case "gzip":
		kind, w = types.OCILayer, gzip.NewWriter(&b)
	case "zstd":
		z, err := zstd.NewWriter(&b)
		if err != nil {
			t.Fatal(err)
		}
		kind, w = types.OCILayerZStd, z
	default:
		b.Write(archive)
	}
	if w != nil {
		if _, err := w.Write(archive); err != nil {
			t.Fatal(err)
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
	}
	return &layer{Layer: static.NewLayer(b.Bytes(), kind), archive: archive}
}

// layer is a static layer that knows what it unpacks to.
type layer struct {
	v1.Layer
	archive []byte
}

// DiffID implements v1.Layer.
func (l *layer) DiffID() (v1.Hash, error) {
	h, _, err := v1.SHA256(bytes.NewReader(l.archive))
	return h, err
}

// Uncompressed implements v1.Layer.
func (l *layer) Uncompressed() (io.ReadCloser, error) {
	return io.NopCloser(bytes.NewReader(l.archive)), nil
}
