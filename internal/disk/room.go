package disk

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// An image is sparse: what is written to the disks in it needs room on the host. Where there is none its file system fails, for every disk, until it is
// mounted again; so its disks are to be held to what they have before that.
const (
	leastRoom = 128 << 20
	mostRoom  = 1 << 30
)

// Room says how many bytes the host still has for an image, and below how many its disks are to be held. Where disks are in no image, or have no limits, ok is
// false.
func (s *Store) Room() (free, low int64, ok bool) {
	if s.kind != Image || !s.quota {
		return 0, 0, false
	}
	dir := filepath.Dir(s.dir)
	var st unix.Statfs_t
	image, err := os.Stat(imagePath(dir))
	if err != nil || unix.Statfs(dir, &st) != nil {
		return 0, 0, false
	}
	low = min(max(image.Size()/20, leastRoom), mostRoom)
	return int64(st.Bavail)*st.Bsize - unwritten(), low, true //nolint:gosec // far below the largest number
}

// unwritten is how many bytes have been written by programs and are still to go to disks.
func unwritten() int64 {
	text, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(text)) {
		if rest, ok := strings.CutPrefix(line, "Dirty:"); ok {
			kib, _ := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(rest), " kB"), 10, 64)
			return kib << 10
		}
	}
	return 0
}

// SetHeld has no disk hold more than it does, and none be made, until it is set back: each disk's next Limit is what it has. Those that are there keep theirs
// until then.
func (s *Store) SetHeld(on bool) { s.held.Store(on) }

// Held says whether disks are held.
func (s *Store) Held() bool { return s.held.Load() }

// Fits is unix.ENOSPC where so many bytes more would have disks be held, or they are: of this process or, where the host has no room, of any.
func (s *Store) Fits(bytes int64) error {
	free, low, ok := s.Room()
	if s.Held() || ok && free-bytes < low {
		return unix.ENOSPC
	}
	return nil
}

// A reserve is room on the host that nobody has: what programs have written before their disks were held still gets into the image, even where others took
// all the rest at once.
const mostReserve = 512 << 20

func (s *Store) reservePath() string { return filepath.Join(filepath.Dir(s.dir), "reserve") }

// Reserve takes the reserve where the host has plenty of room. It is kept until Release, also by whoever opens the store next. Where the host's file system
// cannot set room aside there is none.
func (s *Store) Reserve() error {
	free, low, ok := s.Room()
	if !ok {
		return nil
	}
	size := min(low/2, mostReserve)
	if info, err := os.Stat(s.reservePath()); err == nil && info.Size() >= size || free < 2*low+size {
		return nil
	}
	f, err := os.OpenFile(s.reservePath(), os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("make reserve: %w", err)
	}
	err = unix.Fallocate(int(f.Fd()), 0, 0, size)
	if errors.Is(err, unix.EOPNOTSUPP) {
		err = nil
	}
	if err := errors.Join(err, f.Close()); err != nil {
		return fmt.Errorf("make reserve: %w", errors.Join(err, s.Release()))
	}
	return nil
}

// Release gives the reserve back to the host.
func (s *Store) Release() error {
	if err := os.Remove(s.reservePath()); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("release reserve: %w", err)
	}
	return nil
}
