package registry

import (
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/berthrun/berth/internal/errs"
)

func TestPublic(t *testing.T) {
	for _, a := range []string{"8.8.8.8", "1.1.1.1", "2606:4700::1111", "172.15.255.255", "172.32.0.1", "100.128.0.1", "::ffff:8.8.8.8"} {
		if !Public(netip.MustParseAddr(a)) {
			t.Errorf("%s is public", a)
		}
	}
	for _, a := range []string{
		"127.0.0.1", "127.9.9.9", "0.0.0.0", "10.1.2.3", "172.16.0.1", "172.31.255.255", "192.168.1.1", "169.254.169.254", "100.64.0.1", "100.100.100.200", "198.18.0.1",
		"224.0.0.1", "255.255.255.255", "::", "::1", "::ffff:127.0.0.1", "::ffff:169.254.169.254", "::127.0.0.1", "fe80::1", "fe80::1%eth0", "fd00:ec2::254", "fc00::1", "ff02::1",
		"64:ff9b::a9fe:a9fe", "2002:7f00:1::", "2001:0:1::1",
	} {
		if Public(netip.MustParseAddr(a)) {
			t.Errorf("%s is not public", a)
		}
	}
}

// TestRefused: no address that is not public is spoken to: as it stands, behind a name, behind a redirect, or where a token is to be fetched.
func TestRefused(t *testing.T) {
	asked := 0
	inside := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { asked++ }))
	defer inside.Close()
	host := strings.TrimPrefix(inside.URL, "http://")
	_, port, err := net.SplitHostPort(host)
	if err != nil {
		t.Fatal(err)
	}
	try := func(c *Client, host string) error {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		ref, err := Parse(host + "/a/b:1")
		if err != nil {
			t.Fatal(err)
		}
		repo, err := c.Open(ctx, ref, Auth{Username: "u", Password: "p"})
		if err == nil {
			_, err = repo.Manifest(ctx, "")
		}
		if err == nil {
			err = repo.Blob(ctx, "sha256:"+strings.Repeat("0", 64), 10, filepath.Join(t.TempDir(), "b"), func(int64) {})
		}
		return err
	}
	for name, h := range map[string]string{"an address": host, "a name": "localhost:" + port, "metadata": "169.254.169.254", "version 6": "[::1]:" + port} {
		c := New(Policy{})
		c.Pause = time.Millisecond
		err := try(c, h)
		if e := errs.From(err); e.Code != errs.Forbidden || (e.Reason != "registry_address" && e.Reason != "registry_insecure") {
			t.Errorf("%s: %v", name, err)
		}
		c.Close()
	}
	if asked != 0 {
		t.Errorf("it was spoken to %d times", asked)
	}

	// A registry that is allowed sends on to one that is not.
	for name, answer := range map[string]http.HandlerFunc{
		"redirect": func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/v2/" {
				return
			}
			http.Redirect(w, r, "http://localhost:"+port+"/x", http.StatusTemporaryRedirect)
		},
		"realm": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("WWW-Authenticate", `Bearer realm="http://localhost:`+port+`/token",service="x"`)
			w.WriteHeader(http.StatusUnauthorized)
		},
	} {
		front := httptest.NewServer(answer)
		c := New(Policy{Insecure: []string{strings.TrimPrefix(front.URL, "http://")}})
		c.Pause = time.Millisecond
		if err := try(c, strings.TrimPrefix(front.URL, "http://")); err == nil {
			t.Errorf("%s: followed", name)
		}
		c.Close()
		front.Close()
	}
	if asked != 0 {
		t.Errorf("it was spoken to %d times", asked)
	}
}

func TestParse(t *testing.T) {
	digest := "sha256:" + strings.Repeat("a", 64)
	for text, want := range map[string]string{
		"debian": "docker.io/library/debian:latest", "debian:12": "docker.io/library/debian:12", "a/b": "docker.io/a/b:latest",
		"index.docker.io/library/x:1": "docker.io/library/x:1", "ghcr.io/o/n:t": "ghcr.io/o/n:t", "localhost:5000/x": "localhost:5000/x:latest",
		"x@" + digest: "docker.io/library/x@" + digest, "x:1@" + digest: "docker.io/library/x:1@" + digest,
	} {
		got, err := Parse(text)
		if err != nil || got.String() != want {
			t.Errorf("%q: %q, %v, want %q", text, got.String(), err, want)
		}
	}
	for _, text := range []string{"", " ", "UPPER/x", "a b", "x:", "x@sha256:1", "x@md5:" + strings.Repeat("a", 32), "../x", "a/../b", "a//b", "a..b/c", "http://x/y", "x\x00", strings.Repeat("x", 600), "x@sha512:" + strings.Repeat("a", 128)} {
		if got, err := Parse(text); !errs.Is(err, errs.InvalidInput) {
			t.Errorf("%q: %+v, %v", text, got, err)
		}
	}
}

func TestListed(t *testing.T) {
	hosts := []string{"Registry.example", "10.0.0.5:5000", "docker.io"}
	got := map[string]bool{}
	for _, h := range []string{"registry.example", "registry.example:443", "registry.example:80", "registry.example:5000", "10.0.0.5:5000", "10.0.0.5", "evilregistry.example", "index.docker.io"} {
		got[h] = listed(hosts, h)
	}
	want := map[string]bool{
		"registry.example": true, "registry.example:443": true, "registry.example:80": true, "registry.example:5000": false, "10.0.0.5:5000": true, "10.0.0.5": false,
		"evilregistry.example": false, "index.docker.io": true,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func FuzzParse(f *testing.F) {
	for _, s := range []string{"debian:12", "a/b@sha256:" + strings.Repeat("a", 64), "localhost:5000/x", "[::1]:5000/x", "x:1@y"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		ref, err := Parse(text)
		if err != nil {
			if !errs.Is(err, errs.InvalidInput) {
				t.Errorf("%q: %v", text, err)
			}
			return
		}
		again, err := Parse(ref.String())
		if err != nil || again != ref {
			t.Errorf("%q is %+v, which reads as %+v, %v", text, ref, again, err)
		}
	})
}
