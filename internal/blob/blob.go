// Package blob owns object storage: streams by key, in a folder on this machine. It is a thin cover over gocloud.dev/blob, so that a bucket elsewhere is
// another URL.
//
// It does not know what is stored, and keeps no index of its own.
package blob

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"

	"gocloud.dev/blob"
	"gocloud.dev/blob/fileblob"
	"gocloud.dev/gcerrors"
	"golang.org/x/sys/unix"

	"github.com/berthrun/berth/internal/errs"
)

// Store is one place of objects. Its methods may be called concurrently.
type Store struct {
	bucket *blob.Bucket
	folder string
	open   *os.File     // the folder, locked as one that is in use
	making sync.RWMutex // held for writing while directories that became empty are removed, so that none goes from under a new object
}

// Object is what is known of a stored stream.
type Object struct {
	Key  string
	Size int64
}

// Open opens the store of a folder, which is made, readable by its owner only, where it is not there.
func Open(_ context.Context, folder string) (*Store, error) {
	if folder == "" || strings.Contains(folder, "://") {
		return nil, errs.E(errs.InvalidConfig, "%q is no folder for objects", folder)
	}
	if err := os.MkdirAll(folder, 0o700); err != nil {
		return nil, fmt.Errorf("make the folder of objects: %w", err)
	}
	open, err := use(folder)
	if err != nil {
		return nil, fmt.Errorf("open the folder of objects: %w", err)
	}
	b, err := fileblob.OpenBucket(folder, &fileblob.Options{NoTempDir: true, Metadata: fileblob.MetadataDontWrite, DirFileMode: 0o700})
	if err != nil {
		return nil, errors.Join(fmt.Errorf("open the folder of objects: %w", err), open.Close())
	}
	return &Store{bucket: b, folder: filepath.Clean(folder), open: open}, nil
}

// part is the name that the bucket gives to a file that is still being written: its key, the time, .tmp.
var part = regexp.MustCompile(`\.[0-9a-f]{16}\.tmp$`)

// use locks a folder as one that is in use, for as long as the returned file is open. Where nobody else uses it, what a killed program was writing is
// removed first: nobody would ever.
func use(folder string) (*os.File, error) {
	f, err := os.Open(folder) //nolint:gosec // the store's own folder
	if err != nil {
		return nil, err
	}
	fd := int(f.Fd())
	if unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB) == nil {
		err = filepath.WalkDir(folder, func(path string, d fs.DirEntry, err error) error {
			if err != nil || !d.Type().IsRegular() || !part.MatchString(path) {
				return err
			}
			return os.Remove(path)
		})
	}
	if err == nil {
		err = unix.Flock(fd, unix.LOCK_SH)
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// Put stores a stream under a key, in place of what was there, and returns once that survives a loss of power. A reader finds the old or the new one, never a part; an error leaves the old.
func (s *Store) Put(ctx context.Context, key string, r io.Reader) error {
	return full(s.put(ctx, key, r))
}

// full says so where an error is of a disk that has no room.
func full(err error) error {
	if _, ok := errors.AsType[*errs.Error](err); !ok && (errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT)) {
		return errs.Wrap(errs.NoCapacity, err, "the disk is full").Because("disk_full").Suggest("Delete what is not needed, or have the operator add room.")
	}
	return err
}

func (s *Store) put(ctx context.Context, key string, r io.Reader) error {
	// Only a write whose context has ended is given up by Close.
	wctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var file *os.File // that becomes the object
	s.making.RLock()
	w, err := s.bucket.NewWriter(wctx, key, &blob.WriterOptions{ContentType: "application/octet-stream", BeforeWrite: func(as func(any) bool) error {
		as(&file)
		return nil
	}})
	s.making.RUnlock() // its file is there
	if err != nil {
		return fmt.Errorf("store %s: %w", key, err)
	}
	if _, err := io.Copy(w, r); err != nil {
		cancel()
		return errors.Join(fmt.Errorf("store %s: %w", key, err), ignoreCancelled(w.Close()))
	}
	if file != nil {
		if err := file.Sync(); err != nil {
			cancel()
			return errors.Join(fmt.Errorf("store %s: %w", key, err), ignoreCancelled(w.Close()))
		}
	}
	if err := w.Close(); err != nil {
		return fmt.Errorf("store %s: %w", key, err)
	}
	if file != nil {
		return s.syncNames(filepath.Dir(file.Name()))
	}
	return nil
}

// syncNames makes durable that an object is in a directory, and the directories above it in theirs, which may just have been made.
func (s *Store) syncNames(dir string) error {
	for {
		d, err := os.Open(dir) //nolint:gosec // below the store's own folder
		if err != nil {
			return fmt.Errorf("sync %s: %w", dir, err)
		}
		err = errors.Join(d.Sync(), d.Close())
		if err != nil {
			return fmt.Errorf("sync %s: %w", dir, err)
		}
		if up := filepath.Dir(dir); dir == s.folder || up == dir {
			return nil
		} else {
			dir = up
		}
	}
}

func ignoreCancelled(err error) error {
	if errors.Is(err, context.Canceled) || gcerrors.Code(err) == gcerrors.Canceled {
		return nil
	}
	return err
}

// GetRange opens a part of a stored stream: length bytes from an offset on, fewer where it ends before. errs.NotFound where there is none.
func (s *Store) GetRange(ctx context.Context, key string, offset, length int64) (io.ReadCloser, error) {
	r, err := s.bucket.NewRangeReader(ctx, key, offset, length, nil)
	if gcerrors.Code(err) == gcerrors.NotFound {
		return nil, errs.E(errs.NotFound, "there is no object %s", key)
	}
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", key, err)
	}
	return r, nil
}

// Get opens a stored stream; errs.NotFound where there is none.
func (s *Store) Get(ctx context.Context, key string) (io.ReadCloser, error) {
	r, err := s.bucket.NewReader(ctx, key, nil)
	if gcerrors.Code(err) == gcerrors.NotFound {
		return nil, errs.E(errs.NotFound, "there is no object %s", key)
	}
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", key, err)
	}
	return r, nil
}

// List gives the objects whose keys begin with a prefix, in the order of their keys.
func (s *Store) List(ctx context.Context, prefix string) ([]Object, error) {
	var all []Object
	for it := s.bucket.List(&blob.ListOptions{Prefix: prefix}); ; {
		o, err := it.Next(ctx)
		if errors.Is(err, io.EOF) {
			return all, nil
		}
		if err != nil {
			return nil, fmt.Errorf("list %s: %w", prefix, err)
		}
		if !part.MatchString(o.Key) {
			all = append(all, Object{Key: o.Key, Size: o.Size})
		}
	}
}

// Delete removes an object. One that is not there is fine.
func (s *Store) Delete(ctx context.Context, key string) error {
	if err := s.bucket.Delete(ctx, key); err != nil && gcerrors.Code(err) != gcerrors.NotFound {
		return fmt.Errorf("delete %s: %w", key, err)
	}
	s.removeEmpty(filepath.Dir(filepath.Join(s.folder, filepath.FromSlash(key))))
	return nil
}

// removeEmpty removes a directory and those above it as far as they are empty; those right in the store's folder stay.
func (s *Store) removeEmpty(dir string) {
	s.making.Lock()
	defer s.making.Unlock()
	for strings.HasPrefix(filepath.Dir(dir), s.folder+string(filepath.Separator)) {
		if os.Remove(dir) != nil { // not empty, or not there
			return
		}
		dir = filepath.Dir(dir)
	}
}

// DeletePrefix removes every object whose key begins with a prefix.
func (s *Store) DeletePrefix(ctx context.Context, prefix string) error {
	all, err := s.List(ctx, prefix)
	if err != nil {
		return err
	}
	for _, o := range all {
		if err := s.Delete(ctx, o.Key); err != nil {
			return err
		}
	}
	return nil
}

// Free is how many bytes there is room for.
func (s *Store) Free() (int64, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(s.folder, &st); err != nil {
		return 0, fmt.Errorf("measure the folder of objects: %w", err)
	}
	return int64(st.Bavail) * st.Bsize, nil //nolint:gosec // far below the largest number
}

// Close lets go of the store.
func (s *Store) Close() error { return errors.Join(s.bucket.Close(), s.open.Close()) }
