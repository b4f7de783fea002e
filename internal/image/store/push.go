package store

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"sync"

	"github.com/berthrun/berth/internal/image/registry"
	"github.com/berthrun/berth/internal/nodeapi"
)

// Push implements nodeapi.Images: the bytes of a scope's image go to a registry as they came.
func (s *Store) Push(ctx context.Context, r nodeapi.ImageRequest, progress func(nodeapi.ImageProgress)) error {
	if err := check(r.Scope, r.Digest); err != nil {
		return err
	}
	ref, err := registry.Parse(r.Ref)
	if err != nil {
		return err
	}
	defer s.work()()
	rec, err := s.load(r.Scope, r.Digest)
	if err != nil {
		return err
	}
	if rec == nil {
		return errGone
	}
	img, total, err := s.content(r.Digest)
	if err != nil {
		return err
	}
	var mu sync.Mutex
	return explain(s.cfg.Registry.Push(ctx, ref, authOf(r.Auth), img, func(done int64) {
		mu.Lock()
		defer mu.Unlock()
		progress(nodeapi.ImageProgress{Phase: nodeapi.PhasePushing, Done: min(done, total), Total: total})
	}))
}

// content is an image as it is sent, and how many bytes that is.
func (s *Store) content(id string) (registry.Content, int64, error) {
	raw, err := os.ReadFile(s.blob(id))
	if err != nil {
		return registry.Content{}, 0, fmt.Errorf("read manifest: %w", err)
	}
	m, err := s.readManifest(raw)
	if err != nil {
		return registry.Content{}, 0, err
	}
	config, err := os.ReadFile(s.blob(m.config.Digest))
	if err != nil {
		return registry.Content{}, 0, fmt.Errorf("read configuration: %w", err)
	}
	var head struct {
		MediaType string `json:"mediaType"`
	}
	if err := json.Unmarshal(raw, &head); err != nil {
		return registry.Content{}, 0, fmt.Errorf("read manifest: %w", err)
	}
	if head.MediaType == "" {
		head.MediaType = ociManifestType
	}
	img := registry.Content{MediaType: head.MediaType, Manifest: raw, Config: config, Open: func(digest string) (io.ReadCloser, error) { return os.Open(s.blob(digest)) }}
	for _, l := range m.layers {
		img.Layers = append(img.Layers, registry.Descriptor{Digest: l.Digest, MediaType: l.MediaType, Size: l.Size})
	}
	return img, m.size() + int64(len(raw)), nil
}
