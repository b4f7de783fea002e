package registry

import (
	"context"
	"errors"
	"io"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/partial"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/berthrun/berth/internal/errs"
)

// Descriptor is one blob of an image that is pushed.
type Descriptor struct {
	Digest, MediaType string
	Size              int64
}

// Content is an image that is pushed, as it was pulled or imported.
type Content struct {
	MediaType string // of the manifest
	Manifest  []byte
	Config    []byte
	Layers    []Descriptor
	// Open gives the bytes of a layer.
	Open func(digest string) (io.ReadCloser, error)
}

// pushStall is how many of the client's stalls a push may make no progress: a registry may take its time to put a large blob away.
const pushStall = 4

// Push puts an image into a registry under a reference's tag. What the registry has already is not sent, and the manifest comes last: until it is there the tag means
// what it meant. progress is told how many bytes are there.
func (c *Client) Push(ctx context.Context, ref Reference, auth Auth, img Content, progress func(done int64)) error {
	if ref.Tag == "" || ref.Digest != "" {
		return errs.E(errs.InvalidInput, "an image is pushed to a name and a tag").Because("reference").With("path", "reference")
	}
	var opts []name.Option
	if c.policy.insecure(ref.Host) {
		opts = append(opts, name.Insecure)
	}
	to, err := name.NewTag(ref.Name()+":"+ref.Tag, opts...)
	if err != nil {
		return errs.E(errs.InvalidInput, "%q is no name of an image", clip(ref.String())).Because("reference").With("path", "reference")
	}
	whole, err := partial.CompressedToImage(&content{img})
	if err != nil {
		return err
	}
	var who authn.Authenticator = authn.Anonymous
	if auth != (Auth{}) {
		who = authn.FromConfig(authn.AuthConfig{Username: auth.Username, Password: auth.Password, RegistryToken: auth.Token})
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	stalled := time.AfterFunc(pushStall*c.Stall, func() { cancel(errStalled) })
	defer stalled.Stop()
	updates, told := make(chan v1.Update, 16), make(chan struct{})
	go func() {
		defer close(told)
		for u := range updates {
			stalled.Reset(pushStall * c.Stall)
			if u.Error == nil {
				progress(u.Complete)
			}
		}
	}()
	err = remote.Write(to, whole, remote.WithContext(ctx), remote.WithTransport(c.http), remote.WithAuth(who), remote.WithProgress(updates), remote.WithJobs(3))
	<-told // the library closes the channel
	if err == nil {
		return nil
	}
	if errors.Is(context.Cause(ctx), errStalled) {
		err = errStalled
	}
	return c.explainPush(ref, err)
}

var errStalled = errors.New("the registry took nothing for too long")

// explainPush is explain for what is sent.
func (c *Client) explainPush(ref Reference, err error) error {
	err = c.explain(ref, err)
	if e, ok := errors.AsType[*errs.Error](err); ok && e.Reason == "registry_denied" {
		return errs.Wrap(errs.Upstream, errors.Unwrap(e), "the registry %s refuses to take %s", ref.Host, ref.Repository).Because("registry_denied").
			Suggest("Check the name, and give credentials that may write it with registries.set.").With("host", ref.Host)
	}
	return err
}

// content is an image of blobs as they are.
type content struct{ img Content }

// RawConfigFile implements partial.CompressedImageCore.
func (c *content) RawConfigFile() ([]byte, error) { return c.img.Config, nil }

// MediaType implements partial.CompressedImageCore.
func (c *content) MediaType() (types.MediaType, error) { return types.MediaType(c.img.MediaType), nil }

// RawManifest implements partial.CompressedImageCore.
func (c *content) RawManifest() ([]byte, error) { return c.img.Manifest, nil }

// LayerByDigest implements partial.CompressedImageCore.
func (c *content) LayerByDigest(h v1.Hash) (partial.CompressedLayer, error) {
	for _, l := range c.img.Layers {
		if l.Digest == h.String() {
			return &blob{l, h, c.img.Open}, nil
		}
	}
	return nil, errs.E(errs.Internal, "the image has no layer %s", h)
}

type blob struct {
	of   Descriptor
	hash v1.Hash
	open func(digest string) (io.ReadCloser, error)
}

// Digest implements partial.CompressedLayer.
func (b *blob) Digest() (v1.Hash, error) { return b.hash, nil }

// Compressed implements partial.CompressedLayer.
func (b *blob) Compressed() (io.ReadCloser, error) { return b.open(b.of.Digest) }

// Size implements partial.CompressedLayer.
func (b *blob) Size() (int64, error) { return b.of.Size, nil }

// MediaType implements partial.CompressedLayer.
func (b *blob) MediaType() (types.MediaType, error) { return types.MediaType(b.of.MediaType), nil }
