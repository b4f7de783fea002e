// Package store owns images on a node: the blobs and unpacked layers that they share, which scope has which image, pulls, archives, and the removal of
// what nothing needs any more.
//
// On disk, below one folder: blobs/<hex> as they are in registries; layers/<key>/tree unpacked, each above the one that its key was made of; stacks/<hex>
// which layers make an image, for the runtime; images/<scope>/<hex> that a scope has it; ingest/<scope> what a scope has fetched of images that are not
// whole yet; tmp what is being made. Everything appears under its name by a rename once it is whole and on disk, so that whatever is cut off leaves
// nothing half made in use.
//
// A blob that one scope has fetched is used for another one only once that one has fetched it too: knowing a digest shows nobody anything.
package store

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berthrun/berth/internal/disk"
	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/image/registry"
	"github.com/berthrun/berth/internal/nodeapi"
)

// Limits bound one image.
type Limits struct {
	Bytes    int64 // as in the registry; 16 GiB where 0
	Unpacked int64 // 48 GiB where 0
	Files    int64 // of one layer; 2,000,000 where 0
	Layers   int   // 512 where 0
	Reserve  int64 // bytes of the disk that stay free; 256 MiB where 0
}

// Config says where images are and what is allowed.
type Config struct {
	Dir      string // its own folder, made where it is missing
	Registry *registry.Client
	Limits   Limits
	Arch     string // such as amd64
	Now      func() time.Time
	Logger   *slog.Logger
}

// Store keeps a node's images. It implements nodeapi.Images.
type Store struct {
	cfg   Config
	stack atomic.Int32 // layers of one image at most; more are merged

	// working is held for reading by whatever makes files, and for writing by what removes those that nothing needs.
	working sync.RWMutex
	garbage bool // something was to be removed while others worked
	mu      sync.Mutex
	busy    map[string]*flight
}

var _ nodeapi.Images = (*Store)(nil)

// The folders.
const (
	blobsDir  = "blobs"
	imagesDir = "images"
	ingestDir = "ingest"
	tmpDir    = "tmp"
	layersDir = "layers"
	stacksDir = "stacks"
)

// ingestFor is how long what was fetched of an image that never became whole is kept.
const ingestFor = 24 * time.Hour

// Open makes the folder where it is missing and removes what an earlier process left half made.
func Open(c Config) (*Store, error) {
	if c.Limits.Bytes == 0 {
		c.Limits.Bytes = 16 << 30
	}
	if c.Limits.Unpacked == 0 {
		c.Limits.Unpacked = 48 << 30
	}
	if c.Limits.Files == 0 {
		c.Limits.Files = 2_000_000
	}
	if c.Limits.Layers == 0 {
		c.Limits.Layers = 512
	}
	if c.Limits.Reserve == 0 {
		c.Limits.Reserve = 256 << 20
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if err := os.MkdirAll(c.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("make image folder: %w", err)
	}
	// Mounts are listed by their real paths.
	dir, err := filepath.EvalSymlinks(c.Dir)
	if err == nil {
		dir, err = filepath.Abs(dir)
	}
	if err != nil {
		return nil, fmt.Errorf("locate image folder: %w", err)
	}
	c.Dir = dir
	s := &Store{cfg: c, busy: map[string]*flight{}}
	if err := disk.RemoveTree(s.path(tmpDir)); err != nil {
		return nil, fmt.Errorf("remove unfinished layers: %w", err)
	}
	for _, d := range []string{blobsDir, imagesDir, ingestDir, tmpDir, layersDir, stacksDir} {
		// The trees hold set-user-id programs that nobody updates: only root may reach them on the host.
		if err := os.MkdirAll(s.path(d), 0o700); err != nil {
			return nil, fmt.Errorf("make image folder: %w", err)
		}
	}
	// What mount(2) takes as options is a page, and each layer is named in it.
	s.stack.Store(int32(min(maxStack, (4096-1024)/(len(disk.LayerTree(dir, strings.Repeat("0", keyLength)))+1)))) //nolint:gosec // at most 32
	if s.stack.Load() < 1 {
		return nil, errs.E(errs.InvalidConfig, "the path of the data folder %s is too long", dir)
	}
	return s, s.collect()
}

// maxStack is how many layers a sandbox's disk is mounted above at most.
const maxStack = 32

func (s *Store) path(parts ...string) string {
	return filepath.Join(append([]string{s.cfg.Dir}, parts...)...)
}

func (s *Store) blob(digest string) string { return s.path(blobsDir, hexOf(digest)) }

func hexOf(digest string) string { return strings.TrimPrefix(digest, "sha256:") }

// checkScope keeps a scope from naming another place.
func checkScope(scope string) error {
	if scope == "" || len(scope) > 64 || strings.ContainsAny(scope, "/\x00.") {
		return errs.E(errs.InvalidInput, "%q is no scope", scope)
	}
	return nil
}

func check(scope, id string) error {
	if !registry.ValidDigest(id) {
		return errs.E(errs.InvalidInput, "%q is no id of an image", id)
	}
	return checkScope(scope)
}

// record is what images/<scope>/<hex>.json holds.
type record struct {
	Image nodeapi.Image `json:"image"`
	Blobs []string      `json:"blobs"` // digests of the config and the layers, in order; the manifest is the image's id
	Keys  []string      `json:"keys"`  // of its layers, the uppermost first
	Since time.Time     `json:"since"`
}

func (s *Store) recordFile(scope, id string) string {
	return s.path(imagesDir, scope, hexOf(id)+".json")
}

// load reads a record; nil where the scope does not have the image.
func (s *Store) load(scope, id string) (*record, error) {
	var r record
	err := readJSON(s.recordFile(scope, id), &r)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read image record: %w", err)
	}
	return &r, nil
}

// List implements nodeapi.Images.
func (s *Store) List(context.Context) ([]nodeapi.ImageRecord, error) {
	var all []nodeapi.ImageRecord
	err := s.records(func(scope, id string, r *record) {
		all = append(all, nodeapi.ImageRecord{Scope: scope, ID: id, Since: r.Since})
	})
	return all, err
}

// records visits every record.
func (s *Store) records(visit func(scope, id string, r *record)) error {
	scopes, err := os.ReadDir(s.path(imagesDir))
	if err != nil {
		return fmt.Errorf("list images: %w", err)
	}
	for _, scope := range scopes {
		files, err := os.ReadDir(s.path(imagesDir, scope.Name()))
		if err != nil {
			return fmt.Errorf("list images: %w", err)
		}
		for _, f := range files {
			hex, ok := strings.CutSuffix(f.Name(), ".json")
			if !ok {
				continue
			}
			r, err := s.load(scope.Name(), hex)
			if err != nil {
				return err
			}
			if r != nil {
				visit(scope.Name(), "sha256:"+hex, r)
			}
		}
	}
	return nil
}

// Remove implements nodeapi.Images.
func (s *Store) Remove(_ context.Context, scope, id string) error {
	if err := check(scope, id); err != nil {
		return err
	}
	if err := os.Remove(s.recordFile(scope, id)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove image: %w", err)
	}
	if err := disk.SyncFolder(filepath.Dir(s.recordFile(scope, id))); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if !s.working.TryLock() {
		s.mu.Lock()
		s.garbage = true
		s.mu.Unlock()
		return nil // whoever works removes it at the end
	}
	defer s.working.Unlock()
	return s.sweep()
}

// work keeps what is being used from being removed until done is called.
func (s *Store) work() (done func()) {
	s.working.RLock()
	return func() {
		s.working.RUnlock()
		s.mu.Lock()
		garbage := s.garbage
		s.mu.Unlock()
		if garbage && s.working.TryLock() {
			defer s.working.Unlock()
			if err := s.sweep(); err != nil {
				s.cfg.Logger.Warn("images that nobody needs were not removed", "error", err)
			}
		}
	}
}

// collect is sweep for an opening store.
func (s *Store) collect() error {
	s.working.Lock()
	defer s.working.Unlock()
	return s.sweep()
}

// sweep removes blobs, layers and stacks that no image has. Nothing else works meanwhile. A layer goes by a rename first, so that one that is half
// removed is never used.
func (s *Store) sweep() error {
	s.mu.Lock()
	s.garbage = false
	s.mu.Unlock()
	blobs, layers, stacks := map[string]bool{}, map[string]bool{}, map[string]bool{}
	err := s.records(func(_, id string, r *record) {
		blobs[hexOf(id)], stacks[hexOf(id)+".json"] = true, true
		for _, b := range r.Blobs {
			blobs[hexOf(b)] = true
		}
		for _, k := range r.Keys {
			layers[k] = true
		}
	})
	if err != nil {
		return err
	}
	for dir, used := range map[string]map[string]bool{blobsDir: blobs, stacksDir: stacks, layersDir: layers} {
		entries, err := os.ReadDir(s.path(dir))
		if err != nil {
			return fmt.Errorf("list %s: %w", dir, err)
		}
		for _, e := range entries {
			if used[e.Name()] {
				continue
			}
			gone := s.path(tmpDir, "gone-"+e.Name())
			if err := os.Rename(s.path(dir, e.Name()), gone); err != nil {
				return fmt.Errorf("remove %s: %w", dir, err)
			}
			if err := disk.RemoveTree(gone); err != nil {
				return fmt.Errorf("remove %s: %w", dir, err)
			}
		}
	}
	return s.sweepIngest()
}

func (s *Store) sweepIngest() error {
	old := s.cfg.Now().Add(-ingestFor)
	scopes, err := os.ReadDir(s.path(ingestDir))
	if err != nil {
		return fmt.Errorf("list what was fetched: %w", err)
	}
	for _, scope := range scopes {
		files, err := os.ReadDir(s.path(ingestDir, scope.Name()))
		if err != nil {
			return fmt.Errorf("list what was fetched: %w", err)
		}
		for _, f := range files {
			if info, err := f.Info(); err == nil && info.ModTime().Before(old) {
				if err := os.RemoveAll(s.path(ingestDir, scope.Name(), f.Name())); err != nil {
					return fmt.Errorf("remove what was fetched: %w", err)
				}
			}
		}
	}
	return nil
}

// room fails where less of the disk is free than stays so, with need more to be written.
func (s *Store) room(need int64) error {
	var st unix.Statfs_t
	if err := unix.Statfs(s.cfg.Dir, &st); err != nil {
		return fmt.Errorf("look at the disk: %w", err)
	}
	if free := int64(st.Bavail) * st.Bsize; free-need < s.cfg.Limits.Reserve { //nolint:gosec // far below the largest number
		return errs.E(errs.NoCapacity, "the node's disk has no room for the image").Because("disk_full").
			Suggest("Delete images or sandboxes that are not needed.").With("freeMiB", free>>20).With("neededMiB", (need+s.cfg.Limits.Reserve)>>20)
	}
	return nil
}

// flight is work that several may want at once.
type flight struct {
	done chan struct{}
}

// alone runs do while nobody else does for the key.
func (s *Store) alone(ctx context.Context, key string, do func() error) error {
	for {
		s.mu.Lock()
		f := s.busy[key]
		if f == nil {
			f = &flight{done: make(chan struct{})}
			s.busy[key] = f
			s.mu.Unlock()
			defer func() {
				s.mu.Lock()
				delete(s.busy, key)
				s.mu.Unlock()
				close(f.done)
			}()
			return do()
		}
		s.mu.Unlock()
		select {
		case <-f.done:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func readJSON(path string, v any) error {
	b, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	return json.Unmarshal(b, v)
}
