package store

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"

	"golang.org/x/sync/errgroup"

	"github.com/berthrun/berth/internal/disk"
	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/image/registry"
	"github.com/berthrun/berth/internal/nodeapi"
)

// fetchers is how many blobs of one image are fetched at once.
const fetchers = 3

func authOf(a *nodeapi.ImageAuth) registry.Auth {
	if a == nil {
		return registry.Auth{}
	}
	return registry.Auth{Username: a.Username, Password: a.Password, Token: a.Token}
}

// Resolve implements nodeapi.Images.
func (s *Store) Resolve(ctx context.Context, r nodeapi.ImageRequest) (nodeapi.ResolvedImage, error) {
	ref, err := registry.Parse(r.Ref)
	if err != nil {
		return nodeapi.ResolvedImage{}, err
	}
	repo, err := s.cfg.Registry.Open(ctx, ref, authOf(r.Auth))
	if err != nil {
		return nodeapi.ResolvedImage{}, err
	}
	top, err := repo.Manifest(ctx, "")
	if err != nil {
		return nodeapi.ResolvedImage{}, err
	}
	digest, b, err := s.pick(ctx, top.MediaType, top.Bytes, top.Digest, func(ctx context.Context, d string) (string, []byte, error) {
		m, err := repo.Manifest(ctx, d)
		return m.MediaType, m.Bytes, err
	})
	if err != nil {
		return nodeapi.ResolvedImage{}, err
	}
	m, err := s.readManifest(b)
	if err != nil {
		return nodeapi.ResolvedImage{}, err
	}
	return nodeapi.ResolvedImage{Digest: digest, Index: top.Digest, Size: m.size()}, nil
}

// Pull implements nodeapi.Images. Two pulls of one image for one scope are one.
func (s *Store) Pull(ctx context.Context, r nodeapi.ImageRequest, progress func(nodeapi.ImageProgress)) (img nodeapi.Image, err error) {
	if err := check(r.Scope, r.Digest); err != nil {
		return nodeapi.Image{}, err
	}
	ref, err := registry.Parse(r.Ref)
	if err != nil {
		return nodeapi.Image{}, err
	}
	defer s.work()()
	err = s.alone(ctx, "image "+r.Scope+" "+r.Digest, func() error {
		rec, err := s.load(r.Scope, r.Digest)
		if err != nil || rec != nil {
			if rec != nil {
				img = rec.Image
			}
			return err
		}
		img, err = s.pull(ctx, ref, r, progress)
		return err
	})
	return img, explain(err)
}

func (s *Store) pull(ctx context.Context, ref registry.Reference, r nodeapi.ImageRequest, progress func(nodeapi.ImageProgress)) (nodeapi.Image, error) {
	repo, err := s.cfg.Registry.Open(ctx, ref, authOf(r.Auth))
	if err != nil {
		return nodeapi.Image{}, err
	}
	top, err := repo.Manifest(ctx, r.Digest)
	if err != nil {
		return nodeapi.Image{}, err
	}
	m, err := s.readManifest(top.Bytes)
	if err != nil {
		return nodeapi.Image{}, err
	}
	for _, l := range m.layers {
		if _, err := kindOf(l); err != nil {
			return nodeapi.Image{}, err
		}
	}
	t := &tally{phase: nodeapi.PhasePulling, total: m.size(), told: progress}
	own, err := s.owned(r.Scope)
	if err != nil {
		return nodeapi.Image{}, err
	}
	// The configuration comes first: what does not run here is refused before much is fetched.
	if err := s.fetch(ctx, repo, r.Scope, m.config, own, t); err != nil {
		return nodeapi.Image{}, err
	}
	config, err := os.ReadFile(s.have(r.Scope, m.config.Digest))
	if err != nil {
		return nodeapi.Image{}, fmt.Errorf("read configuration: %w", err)
	}
	if _, _, _, err := s.readConfig(config, len(m.layers)); err != nil {
		return nodeapi.Image{}, err
	}
	if err := s.room(m.size()); err != nil {
		return nodeapi.Image{}, err
	}
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(fetchers)
	seen := map[string]bool{}
	for _, l := range m.layers {
		if seen[l.Digest] {
			t.add(l.Size)
			continue
		}
		seen[l.Digest] = true
		g.Go(func() error { return s.fetch(gctx, repo, r.Scope, l, own, t) })
	}
	if err := g.Wait(); err != nil {
		return nodeapi.Image{}, err
	}
	return s.finish(ctx, r.Scope, r.Digest, top.Bytes, m, config, nil, progress)
}

// tally adds up progress.
type tally struct {
	mu    sync.Mutex
	phase string
	done  int64
	total int64
	told  func(nodeapi.ImageProgress)
}

func (t *tally) add(n int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.done += n
	t.told(nodeapi.ImageProgress{Phase: t.phase, Done: min(max(t.done, 0), t.total), Total: t.total})
}

// owned are the blobs that a scope's images have.
func (s *Store) owned(scope string) (map[string]bool, error) {
	own := map[string]bool{}
	err := s.records(func(of, _ string, r *record) {
		if of == scope {
			for _, b := range r.Blobs {
				own[b] = true
			}
		}
	})
	return own, err
}

// fetched is where a blob is that a scope has fetched for an image that is not whole yet.
func (s *Store) fetched(scope, digest string) string { return s.path(ingestDir, scope, hexOf(digest)) }

// have is where a scope's blob is: what it has fetched itself, else what its images have.
func (s *Store) have(scope, digest string) string {
	if p := s.fetched(scope, digest); exists(p) {
		return p
	}
	return s.blob(digest)
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// fetch brings one blob, unless the scope has it.
func (s *Store) fetch(ctx context.Context, repo *registry.Repository, scope string, d descriptor, own map[string]bool, t *tally) error {
	whole := s.fetched(scope, d.Digest)
	if (own[d.Digest] && exists(s.blob(d.Digest))) || exists(whole) {
		t.add(d.Size)
		return nil
	}
	return s.alone(ctx, "blob "+scope+" "+d.Digest, func() error {
		if exists(whole) {
			t.add(d.Size)
			return nil
		}
		if err := os.MkdirAll(filepath.Dir(whole), 0o700); err != nil {
			return fmt.Errorf("make folder of blobs: %w", err)
		}
		part := whole + ".part"
		if err := repo.Blob(ctx, d.Digest, d.Size, part, t.add); err != nil {
			return err
		}
		return s.rename(part, whole)
	})
}

// finish unpacks an image whose blobs are there and gives it to its scope.
func (s *Store) finish(ctx context.Context, scope, id string, raw []byte, m *manifest, config []byte, names []string, progress func(nodeapi.ImageProgress)) (nodeapi.Image, error) {
	cfg, diffs, created, err := s.readConfig(config, len(m.layers))
	if err != nil {
		return nodeapi.Image{}, err
	}
	layers := make([]layer, len(m.layers))
	for i, l := range m.layers {
		layers[i] = layer{descriptor: l, path: s.have(scope, l.Digest), diff: diffs[i]}
	}
	t := &tally{phase: nodeapi.PhaseUnpacking, total: m.size(), told: progress}
	keys, unpacked, err := s.unpackAll(ctx, layers, t.add)
	if err != nil {
		return nodeapi.Image{}, err
	}
	rec := &record{
		Image: nodeapi.Image{
			ID: id, Size: m.size(), Unpacked: unpacked, Layers: len(layers), Names: names, Created: created, Config: cfg,
		},
		Keys: keys, Since: s.cfg.Now().UTC(),
	}
	for _, d := range m.blobs() {
		rec.Blobs = append(rec.Blobs, d.Digest)
		if err := s.settle(scope, d.Digest); err != nil {
			return nodeapi.Image{}, err
		}
	}
	if !exists(s.blob(id)) {
		if err := s.writeFile(s.blob(id), raw); err != nil {
			return nodeapi.Image{}, err
		}
	}
	if err := s.writeJSON(disk.StackFile(s.cfg.Dir, id), keys); err != nil {
		return nodeapi.Image{}, err
	}
	return rec.Image, s.writeJSON(s.recordFile(scope, id), rec)
}

// settle puts a blob that a scope has fetched among those that all share.
func (s *Store) settle(scope, digest string) error {
	from := s.fetched(scope, digest)
	if !exists(from) {
		if exists(s.blob(digest)) {
			return nil
		}
		return fmt.Errorf("blob %s is gone", digest)
	}
	if exists(s.blob(digest)) {
		return os.Remove(from)
	}
	if err := s.rename(from, s.blob(digest)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("keep blob: %w", err)
	}
	return nil
}

func digestOf(b []byte) string {
	sum := sha256.Sum256(b)
	return "sha256:" + hex.EncodeToString(sum[:])
}

var errGone = errs.E(errs.NotFound, "the image is not on this node").Because("image")
