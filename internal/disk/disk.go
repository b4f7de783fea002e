// Package disk owns the disks of sandboxes on a node: copy-on-write trees above read-only layers, their limits and their removal.
//
// A disk is a folder with an upper and a work directory; mounted, the host's overlayfs shows it above its layers. Where the folder is on
// btrfs, or mkfs.btrfs and loop devices are there to make a sparse btrfs image in it, every disk is a subvolume with a limit of its own;
// anywhere else it is a plain folder without limits. Describe says which, and what it cannot keep.
//
// It does not know what layers hold or who uses a disk.
package disk

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Kind is how disks are kept.
type Kind string

// The kinds.
const (
	Auto  Kind = ""            // Btrfs where the folder is on it, else Image where that can be made, else Plain
	Btrfs Kind = "btrfs"       // the folder is on btrfs
	Image Kind = "btrfs-image" // a sparse file with btrfs in it, mounted through a loop device
	Plain Kind = "plain"       // folders
)

// Description says what a store can keep.
type Description struct {
	Kind     Kind
	Quota    bool     // limits are enforced
	Snapshot bool     // copies of a disk take no time and no room
	Shared   bool     // what a disk has overwritten or removed counts for it for as long as a copy of it has it
	Missing  []string // what it cannot keep, as sentences for an operator
}

// Store keeps disks under one folder.
type Store struct {
	dir    string // of the disks
	kind   Kind
	quota  bool
	shared bool
	why    string
	held   atomic.Bool // see SetHeld

	mu    sync.Mutex
	sizes map[string]measured
}

type measured struct {
	bytes int64
	at    time.Time
}

// measureEvery bounds how often a plain disk is walked to measure it.
const measureEvery = 30 * time.Second

// Open prepares a folder, which it makes with mode 0700. Kind Auto takes the best there is; another fails where it cannot be had.
func Open(dir string, kind Kind) (*Store, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("make disk folder: %w", err)
	}
	s := &Store{dir: filepath.Join(dir, "trees"), sizes: map[string]measured{}}
	if err := os.MkdirAll(s.dir, 0o700); err != nil {
		return nil, fmt.Errorf("make disk folder: %w", err)
	}
	onBtrfs := isBtrfs(dir)
	_, noImage := os.Stat(imagePath(dir))
	switch {
	case kind == Plain && noImage != nil:
		s.kind = Plain
	case onBtrfs && kind != Image:
		s.kind = Btrfs
	case kind == Btrfs:
		return nil, fmt.Errorf("%s is not on btrfs", dir)
	case kind == Auto && noImage != nil && hasEntries(s.dir):
		// Disks that were made plain stay reachable: an image would be mounted over them.
		s.kind, s.why = Plain, "this data folder already holds plain disks"
	default:
		err := mountImage(dir, s.dir)
		if err == nil {
			s.kind = Image
			break
		}
		if kind == Image || noImage == nil {
			return nil, fmt.Errorf("mount disk image: %w", err)
		}
		s.kind, s.why = Plain, "no btrfs image can be made here: "+err.Error()
	}
	if s.kind != Plain {
		s.quota = enableQuota(s.dir) == nil
		s.shared = s.quota && simpleQuota(s.dir)
	}
	return s, nil
}

func hasEntries(dir string) bool {
	entries, _ := os.ReadDir(dir)
	return len(entries) > 0
}

// Describe says how disks are kept here.
func (s *Store) Describe() Description {
	d := Description{Kind: s.kind, Quota: s.quota, Snapshot: s.kind != Plain, Shared: s.shared}
	if s.kind == Plain {
		d.Missing = append(d.Missing, "disk limits are not enforced", "a copy of a disk takes as long as writing it")
	} else if !s.quota {
		d.Missing = append(d.Missing, "disk limits are not enforced: this kernel refuses btrfs quotas")
	}
	if s.why != "" {
		d.Missing = append(d.Missing, s.why)
	}
	return d
}

func (s *Store) tree(id string) string { return filepath.Join(s.dir, id) }

func checkID(id string) error {
	if id == "" || id == "." || id == ".." || strings.ContainsRune(id, '/') {
		return fmt.Errorf("%q is no name of a disk", id)
	}
	return nil
}

// Create makes an empty disk that may hold so many bytes, 0 for any. It fails where the id has one, and as Fits where there is no room.
func (s *Store) Create(id string, bytes int64) error {
	if err := checkID(id); err != nil {
		return err
	}
	if err := s.Fits(0); err != nil {
		return fmt.Errorf("create disk: %w", err)
	}
	var err error
	if s.kind == Plain {
		err = os.Mkdir(s.tree(id), 0o700)
	} else {
		err = createSubvolume(s.dir, id)
	}
	if err != nil {
		return fmt.Errorf("create disk: %w", err)
	}
	// The upper directory becomes the root directory inside: everyone may enter it.
	err = errors.Join(os.Chmod(s.tree(id), 0o700), mkdir(filepath.Join(s.tree(id), "upper"), 0o755), mkdir(filepath.Join(s.tree(id), "work"), 0o700))
	if err == nil {
		err = s.Limit(id, bytes)
	}
	if err != nil {
		return errors.Join(fmt.Errorf("create disk: %w", err), s.Remove(id))
	}
	return nil
}

// mkdir does not let the umask narrow the mode.
func mkdir(path string, mode os.FileMode) error {
	return errors.Join(os.Mkdir(path, mode), os.Chmod(path, mode))
}

// Has reports whether a disk is there, whole.
func (s *Store) Has(id string) bool {
	_, err := os.Stat(filepath.Join(s.tree(id), "work"))
	return err == nil
}

// Limit changes how much a disk may hold, 0 for any; while disks are held, no more than it has. Without quotas it does nothing.
func (s *Store) Limit(id string, bytes int64) error {
	if !s.quota {
		return nil
	}
	if s.Held() {
		n, err := subvolumeUsage(s.tree(id))
		if err != nil {
			return fmt.Errorf("hold disk: %w", err)
		}
		if n = max(n, 1); bytes <= 0 || n < bytes {
			bytes = n
		}
	}
	if err := limitSubvolume(s.tree(id), bytes); err != nil {
		return fmt.Errorf("limit disk: %w", err)
	}
	return nil
}

// Mount shows a disk at target above its layers, the uppermost first. Neither set-user-id bits nor devices count on the host.
func (s *Store) Mount(id, target string, layers ...string) error {
	if len(layers) == 0 {
		return errors.New("mount disk: no layer")
	}
	lower := make([]string, len(layers))
	for i, l := range layers {
		lower[i] = EscapeOption(l)
	}
	data := "lowerdir=" + strings.Join(lower, ":") +
		",upperdir=" + EscapeOption(filepath.Join(s.tree(id), "upper")) + ",workdir=" + EscapeOption(filepath.Join(s.tree(id), "work"))
	if err := os.MkdirAll(target, 0o700); err != nil {
		return fmt.Errorf("make mount point: %w", err)
	}
	if err := unix.Mount("overlay", target, "overlay", unix.MS_NOSUID|unix.MS_NODEV, data); err != nil {
		return fmt.Errorf("mount disk: %w", err)
	}
	return nil
}

// EscapeOption protects what separates the options of overlayfs.
func EscapeOption(path string) string {
	return strings.NewReplacer(`\`, `\\`, `:`, `\:`, `,`, `\,`).Replace(path)
}

// Unmount removes every mount at target, and the folder itself. One that is gone is fine.
func Unmount(target string) error {
	for {
		err := unix.Unmount(target, unix.MNT_DETACH)
		if err == nil {
			continue
		}
		if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOENT) {
			break
		}
		return fmt.Errorf("unmount disk: %w", err)
	}
	if err := os.Remove(target); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove mount point: %w", err)
	}
	return nil
}

// Usage is how many bytes a disk holds of its own. A plain one is walked, at most every half minute.
func (s *Store) Usage(id string) (int64, error) {
	if s.quota {
		if n, err := subvolumeUsage(s.tree(id)); err == nil {
			return n, nil
		}
	}
	s.mu.Lock()
	m, ok := s.sizes[id]
	s.mu.Unlock()
	if ok && time.Since(m.at) < measureEvery {
		return m.bytes, nil
	}
	n, err := walkSize(filepath.Join(s.tree(id), "upper"))
	if err != nil {
		return 0, fmt.Errorf("measure disk: %w", err)
	}
	s.mu.Lock()
	s.sizes[id] = measured{n, time.Now()}
	s.mu.Unlock()
	return n, nil
}

func walkSize(dir string) (int64, error) {
	var total int64
	err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			if errors.Is(err, fs.ErrNotExist) {
				return nil // removed meanwhile
			}
			return err
		}
		if info, err := e.Info(); err == nil {
			if st, ok := info.Sys().(*syscall.Stat_t); ok {
				total += st.Blocks * 512 / max(int64(st.Nlink), 1)
			}
		}
		return nil
	})
	return total, err
}

// Remove removes a disk, which is not mounted any more; one that is gone is fine.
func (s *Store) Remove(id string) error {
	if err := checkID(id); err != nil {
		return err
	}
	s.mu.Lock()
	delete(s.sizes, id)
	s.mu.Unlock()
	if s.kind != Plain {
		err := removeSubvolume(s.dir, id)
		if err == nil || errors.Is(err, unix.ENOENT) {
			return nil
		}
		// Whoever has no right to it as a subvolume may still have it as a folder.
	}
	if err := os.RemoveAll(s.tree(id)); err != nil {
		return fmt.Errorf("remove disk: %w", err)
	}
	return nil
}

// List names the disks.
func (s *Store) List() ([]string, error) {
	entries, err := os.ReadDir(s.dir)
	if err != nil {
		return nil, fmt.Errorf("list disks: %w", err)
	}
	var out []string
	for _, e := range entries {
		out = append(out, e.Name())
	}
	return out, nil
}

// Close unmounts the image where there is one. No disk may be mounted any more.
func (s *Store) Close() error {
	if s.kind != Image {
		return nil
	}
	if err := unix.Unmount(s.dir, 0); err != nil {
		return fmt.Errorf("unmount disk image: %w", err)
	}
	return nil
}
