package disk

import (
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

// Hold lets a disk have no more than it has, until its next Limit.
func (s *Store) Hold(id string) error {
	n, err := subvolumeUsage(s.tree(id))
	if err != nil {
		return err
	}
	return s.Limit(id, max(n, 1))
}
