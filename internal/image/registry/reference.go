// Package registry owns the fetching of images from OCI registries: what a reference means, which hosts may be reached at all, signing in, and manifests
// and blobs that are checked against their digests.
//
// Hosts are named by callers, so every address is checked at the moment it is dialed. The package keeps nothing: where bytes go is the caller's.
package registry

import (
	"slices"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"

	"github.com/berthrun/berth/internal/errs"
)

// hub is the registry of references that name none, as the protocol's programs spell it and as people do.
const (
	hubSpelled = "index.docker.io"
	hub        = "docker.io"
)

// Reference is a reference to an image in a registry, whole: what was left out is filled in.
type Reference struct {
	Host       string // such as docker.io or localhost:5000
	Repository string // such as library/debian
	Tag        string // latest where nothing was given; empty where only a digest was
	Digest     string // sha256:…, empty where none was given
}

// Parse reads a reference as people write it: debian, debian:12, ghcr.io/owner/name@sha256:…. INVALID_INPUT where it is none.
func Parse(text string) (Reference, error) {
	bad := func() error {
		return errs.E(errs.InvalidInput, "%q is no reference of an image", clip(text)).Because("reference").
			Suggest("Write it as name:tag or name@sha256:…, with the registry in front where it is not Docker Hub.").With("path", "image")
	}
	if len(text) > 512 || strings.ContainsAny(text, " \t\r\n\x00") {
		return Reference{}, bad()
	}
	ref, err := name.ParseReference(text, name.WeakValidation)
	if err != nil {
		return Reference{}, bad()
	}
	r := Reference{Host: HostName(ref.Context().RegistryStr()), Repository: ref.Context().RepositoryStr()}
	for _, part := range append(strings.Split(r.Repository, "/"), strings.Split(r.Host, ".")...) {
		if strings.Trim(part, ".") == "" { // it would lead a request elsewhere
			return Reference{}, bad()
		}
	}
	switch v := ref.(type) {
	case name.Tag:
		r.Tag = v.TagStr()
	case name.Digest:
		r.Digest = v.DigestStr()
		if !ValidDigest(r.Digest) {
			return Reference{}, bad()
		}
		before, _, _ := strings.Cut(text, "@")
		if i := strings.LastIndexByte(before, ':'); i > strings.LastIndexByte(before, '/') {
			r.Tag = before[i+1:]
		}
	}
	return r, nil
}

// HostName gives the one spelling of a registry's host.
func HostName(host string) string {
	host = strings.ToLower(host)
	if host == hubSpelled || host == "registry-1.docker.io" {
		return hub
	}
	return host
}

// CheckHost says whether a host is one that a registry can have: a name or an address, with a port where it has one. INVALID_INPUT where not.
func CheckHost(host string) error {
	if _, err := name.NewRegistry(host, name.StrictValidation); err != nil || slices.Contains(strings.Split(host, "."), "") || strings.ContainsFunc(host, notOfHost) {
		return errs.E(errs.InvalidInput, "%q is no registry's host", clip(host)).Because("reference").
			Suggest("Give the host as it stands in references, such as ghcr.io or registry.example.com:5000.").With("path", "host")
	}
	return nil
}

// notOfHost reports what no host is written with; a name in another script is written as xn--….
func notOfHost(c rune) bool {
	switch {
	case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9':
		return false
	}
	return !strings.ContainsRune(".-_:[]", c)
}

// Name is the reference without tag and digest.
func (r Reference) Name() string { return r.Host + "/" + r.Repository }

// String is the whole reference.
func (r Reference) String() string {
	s := r.Name()
	if r.Tag != "" {
		s += ":" + r.Tag
	}
	if r.Digest != "" {
		s += "@" + r.Digest
	}
	return s
}

// wanted is what is asked of the registry: the digest where there is one, since it cannot move.
func (r Reference) wanted() string {
	if r.Digest != "" {
		return r.Digest
	}
	return r.Tag
}

// ValidDigest reports whether s is sha256: and 64 hexadecimal digits. No other algorithm is in use.
func ValidDigest(s string) bool {
	hex, ok := strings.CutPrefix(s, "sha256:")
	if !ok || len(hex) != 64 {
		return false
	}
	for i := range len(hex) {
		if c := hex[i]; (c < '0' || c > '9') && (c < 'a' || c > 'f') {
			return false
		}
	}
	return true
}

func clip(s string) string {
	if len(s) > 200 {
		return s[:200] + "…"
	}
	return s
}
