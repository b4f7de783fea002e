package registry

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/berthrun/berth/internal/errs"
)

// MaxManifest is the most bytes of a manifest.
const MaxManifest = 4 << 20

// Auth is what a registry is signed in to with: a user and password, or a token that is sent as it is. The zero value is nobody.
type Auth struct {
	Username, Password, Token string
}

// Client fetches from registries.
type Client struct {
	policy Policy
	http   http.RoundTripper
	close  func()
	// Stall is how long a registry may send nothing before a request is begun again. 30 s where 0.
	Stall time.Duration
	// Pause is how long the first of the pauses between attempts is. 500 ms where 0.
	Pause time.Duration
}

// New makes a client.
func New(p Policy) *Client {
	t := p.transport()
	return &Client{policy: p, http: &guard{policy: p, next: t}, close: t.CloseIdleConnections, Stall: 30 * time.Second, Pause: 500 * time.Millisecond}
}

// Close lets go of idle connections.
func (c *Client) Close() { c.close() }

// Repository is a repository that the client is signed in to. It is for one pull.
type Repository struct {
	c    *Client
	ref  Reference
	base string
	http *http.Client
}

// Open signs in to a reference's repository for reading.
func (c *Client) Open(ctx context.Context, ref Reference, auth Auth) (*Repository, error) {
	var opts []name.Option
	if c.policy.insecure(ref.Host) {
		opts = append(opts, name.Insecure)
	}
	repo, err := name.NewRepository(ref.Name(), opts...)
	if err != nil {
		return nil, errs.E(errs.InvalidInput, "%q is no repository", clip(ref.Name())).Because("reference")
	}
	var who authn.Authenticator = authn.Anonymous
	if auth != (Auth{}) {
		who = authn.FromConfig(authn.AuthConfig{Username: auth.Username, Password: auth.Password, RegistryToken: auth.Token})
	}
	var rt http.RoundTripper
	err = c.attempts(ctx, func() error {
		actx, cancel := context.WithTimeout(ctx, c.Stall)
		defer cancel()
		rt, err = transport.NewWithContext(actx, repo.Registry, who, c.http, []string{repo.Scope(transport.PullScope)})
		return err
	})
	if err != nil {
		return nil, c.explain(ref, err)
	}
	// The transport knows by now whether the registry speaks TLS, and turns the one into the other.
	return &Repository{c: c, ref: ref, base: "https://" + repo.RegistryStr() + "/v2/" + repo.RepositoryStr(), http: &http.Client{
		Transport: rt,
		CheckRedirect: func(r *http.Request, via []*http.Request) error {
			if len(via) >= 5 {
				return errs.E(errs.Upstream, "the registry sends us on and on").Because("registry")
			}
			return nil
		},
	}}, nil
}

// Manifest is one manifest, checked against its digest.
type Manifest struct {
	Digest    string
	MediaType string
	Bytes     []byte
}

// accepted are the kinds of manifests that are understood.
var accepted = strings.Join([]string{
	string(types.OCIImageIndex), string(types.OCIManifestSchema1), string(types.DockerManifestList), string(types.DockerManifestSchema2),
}, ", ")

// Manifest fetches the manifest of a digest, or of the reference itself where that is empty.
func (r *Repository) Manifest(ctx context.Context, digest string) (m Manifest, err error) {
	wanted := digest
	if wanted == "" {
		wanted = r.ref.wanted()
	}
	err = r.c.attempts(ctx, func() error {
		m, err = r.manifest(ctx, wanted)
		return err
	})
	if err != nil {
		return Manifest{}, r.c.explain(r.ref, err)
	}
	return m, nil
}

func (r *Repository) manifest(ctx context.Context, wanted string) (Manifest, error) {
	ctx, cancel := context.WithTimeout(ctx, r.c.Stall)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, r.base+"/manifests/"+wanted, nil)
	if err != nil {
		return Manifest{}, fmt.Errorf("make request: %w", err)
	}
	req.Header.Set("Accept", accepted)
	resp, err := r.http.Do(req)
	if err != nil {
		return Manifest{}, err
	}
	defer resp.Body.Close()
	if err := transport.CheckError(resp, http.StatusOK); err != nil {
		return Manifest{}, err
	}
	b, err := io.ReadAll(io.LimitReader(resp.Body, MaxManifest+1))
	if err != nil {
		return Manifest{}, err
	}
	if len(b) > MaxManifest {
		return Manifest{}, errs.E(errs.LimitExceeded, "the image's manifest is larger than %d bytes", MaxManifest).Because("image_too_large")
	}
	sum := sha256.Sum256(b)
	m := Manifest{Digest: "sha256:" + hex.EncodeToString(sum[:]), MediaType: resp.Header.Get("Content-Type"), Bytes: b}
	if ValidDigest(wanted) && m.Digest != wanted {
		return Manifest{}, errMismatch("manifest", wanted)
	}
	return m, nil
}

func errMismatch(what, digest string) *errs.Error {
	return errs.E(errs.Upstream, "the registry gave a %s that is not the one of %s", what, digest).Because("digest_mismatch").
		Suggest("Try again; if it fails again, the registry is broken.")
}

// attemptsMost is how often a request is tried that brought nothing.
const attemptsMost = 5

// attempts repeats what may succeed another time.
func (c *Client) attempts(ctx context.Context, do func() error) error {
	for n := 1; ; n++ {
		err := do()
		if err == nil || ctx.Err() != nil || n == attemptsMost || !again(err) {
			return err
		}
		if err := c.pause(ctx, n); err != nil {
			return err
		}
	}
}

func (c *Client) pause(ctx context.Context, n int) error {
	t := time.NewTimer(min(c.Pause<<(n-1), 10*time.Second))
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// again reports whether an error may be gone the next time.
func again(err error) bool {
	if e, ok := errors.AsType[*errs.Error](err); ok {
		return e.Reason == "digest_mismatch"
	}
	if e, ok := errors.AsType[*transport.Error](err); ok {
		return e.StatusCode >= 500 || e.StatusCode == http.StatusRequestTimeout || e.StatusCode == http.StatusTooManyRequests
	}
	return true // the connection
}

// explain gives what a registry answered its code.
func (c *Client) explain(ref Reference, err error) error {
	if e, ok := errors.AsType[*errs.Error](err); ok {
		return e
	}
	if errors.Is(err, context.Canceled) {
		return err
	}
	if e, ok := errors.AsType[*transport.Error](err); ok {
		switch {
		case e.StatusCode == http.StatusUnauthorized || e.StatusCode == http.StatusForbidden:
			return errs.Wrap(errs.Upstream, hideURL(e), "the registry %s refuses %s", ref.Host, ref.Repository).Because("registry_denied").
				Suggest("Check the name, and give credentials that may read it with registries.set.").With("host", ref.Host)
		case e.StatusCode == http.StatusNotFound:
			return errs.Wrap(errs.NotFound, hideURL(e), "the registry has no %s", ref).Because("image").Suggest("Check the image's name and tag.")
		case e.StatusCode == http.StatusTooManyRequests:
			return errs.Wrap(errs.Upstream, hideURL(e), "the registry %s limits how often it may be asked", ref.Host).Because("registry_rate").
				After(time.Minute).Suggest("Try again later, or give credentials with registries.set.")
		}
		return errs.Wrap(errs.Upstream, hideURL(e), "the registry %s answers with status %d", ref.Host, e.StatusCode).Because("registry").
			Suggest("Try again later.")
	}
	if e, ok := errors.AsType[*url.Error](err); ok {
		err = e.Err // the address may hold a signature
	}
	return errs.Wrap(errs.Upstream, err, "the registry %s cannot be reached", ref.Host).Because("registry").Suggest("Check the host and try again.")
}

// hideURL keeps of a registry's answer what may be logged: a redirect's address can hold a signature.
func hideURL(e *transport.Error) error {
	codes := make([]string, 0, len(e.Errors))
	for _, d := range e.Errors {
		codes = append(codes, clip(string(d.Code)))
	}
	return fmt.Errorf("status %s %s", strconv.Itoa(e.StatusCode), strings.Join(codes, " "))
}
