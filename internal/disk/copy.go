package disk

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// Copy makes a disk of another one as it is now, with a limit of its own. Neither sees what is written to the other afterwards. Where Describe says
// Snapshot it takes the same short time whatever the disk holds; else every file is copied, by sharing its blocks where the file system can. The copy
// is there whole or not at all. It fails where the id has a disk.
func (s *Store) Copy(from, to string, bytes int64) error {
	if err := errors.Join(checkID(from), checkID(to)); err != nil {
		return err
	}
	if _, err := os.Lstat(s.tree(to)); err == nil {
		return fmt.Errorf("copy disk: %w", fs.ErrExist)
	}
	if s.kind != Plain {
		if err := snapshotSubvolume(s.tree(from), s.dir, to); err != nil {
			return fmt.Errorf("copy disk: %w", err)
		}
		if err := s.Limit(to, bytes); err != nil {
			return errors.Join(err, s.Remove(to))
		}
		return nil
	}
	temp := s.tree(to) + partial
	err := errors.Join(os.RemoveAll(temp), os.Mkdir(temp, 0o700))
	if err == nil {
		if err = copyTree(s.tree(from), temp, keepAll); err == nil {
			err = os.Rename(temp, s.tree(to))
		}
	}
	if err != nil {
		return errors.Join(fmt.Errorf("copy disk: %w", err), os.RemoveAll(temp))
	}
	return nil
}

// Sync makes all that disks hold durable.
func (s *Store) Sync() error {
	d, err := os.Open(s.dir)
	if err == nil {
		err = errors.Join(unix.Syncfs(int(d.Fd())), d.Close())
	}
	if err != nil {
		return fmt.Errorf("sync disks: %w", err)
	}
	return nil
}

// SyncFolder makes the names in a folder durable.
func SyncFolder(dir string) error {
	d, err := os.Open(dir)
	if err == nil {
		err = errors.Join(d.Sync(), d.Close())
	}
	if err != nil {
		return fmt.Errorf("sync folder: %w", err)
	}
	return nil
}

// partial ends the name of a copy that is not whole.
const partial = ".partial"

// Replace puts one disk in the place of another, which is removed. Interrupted, a repeated call finishes it: until it returns nil the first disk may be
// there under either name. Neither may be mounted.
func (s *Store) Replace(from, to string) error {
	if err := errors.Join(checkID(from), checkID(to)); err != nil {
		return err
	}
	if _, err := os.Lstat(s.tree(from)); errors.Is(err, fs.ErrNotExist) {
		return nil // it was done before
	}
	if err := s.Remove(to); err != nil {
		return err
	}
	if err := os.Rename(s.tree(from), s.tree(to)); err != nil {
		return fmt.Errorf("replace disk: %w", err)
	}
	return nil
}

// Folder is where a disk's own writes are, as overlayfs keeps them: whiteouts are devices 0:0.
func (s *Store) Folder(id string) string { return filepath.Join(s.tree(id), "upper") }

// copyTree copies all below a folder into an empty one: data, links, devices, owners, modes, times and the attributes that are wanted. Names that are links
// to one file stay so.
func copyTree(from, to string, wanted func(attribute string) bool) error {
	links := map[[2]uint64]string{}
	var dirs []string
	err := filepath.WalkDir(from, func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(from, path)
		if err != nil {
			return err
		}
		target := filepath.Join(to, rel)
		var st unix.Stat_t
		if err := unix.Lstat(path, &st); err != nil {
			return err
		}
		if st.Mode&unix.S_IFMT != unix.S_IFDIR && st.Nlink > 1 {
			key := [2]uint64{st.Dev, st.Ino}
			if first, ok := links[key]; ok {
				return os.Link(first, target)
			}
			links[key] = target
		}
		if e.IsDir() {
			dirs = append(dirs, rel) // their times are set at the end
		}
		return copyNode(path, target, &st, wanted)
	})
	for i := len(dirs) - 1; err == nil && i >= 0; i-- {
		var st unix.Stat_t
		if err = unix.Lstat(filepath.Join(from, dirs[i]), &st); err == nil {
			err = setTimes(filepath.Join(to, dirs[i]), &st)
		}
	}
	return err
}

func copyNode(path, target string, st *unix.Stat_t, wanted func(attribute string) bool) error {
	var err error
	switch kind := st.Mode & unix.S_IFMT; kind {
	case unix.S_IFDIR:
		if err = os.Mkdir(target, 0o700); errors.Is(err, fs.ErrExist) {
			err = nil // the root
		}
	case unix.S_IFLNK:
		var to string
		if to, err = os.Readlink(path); err == nil {
			err = os.Symlink(to, target)
		}
	case unix.S_IFREG:
		err = copyData(path, target)
	default:
		err = unix.Mknod(target, st.Mode, int(st.Rdev))
	}
	if err != nil {
		return fmt.Errorf("copy %s: %w", path, err)
	}
	if err := os.Lchown(target, int(st.Uid), int(st.Gid)); err != nil {
		return err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFLNK {
		if err := unix.Chmod(target, st.Mode&0o7777); err != nil {
			return fmt.Errorf("set mode of %s: %w", target, err)
		}
	}
	return errors.Join(copyAttributes(path, target, wanted), setTimes(target, st))
}

// copyData shares the blocks of a file with its copy where it can, else copies them and leaves holes as they are.
func copyData(path, target string) error {
	in, err := os.Open(path)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(target, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	if unix.IoctlFileClone(int(out.Fd()), int(in.Fd())) != nil {
		err = copyExtents(in, out)
	}
	return errors.Join(err, out.Close())
}

func copyExtents(in, out *os.File) error {
	info, err := in.Stat()
	if err != nil {
		return err
	}
	for at, end := int64(0), info.Size(); at < end; {
		data, err := unix.Seek(int(in.Fd()), at, unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) {
			break // a hole up to the end
		} else if err != nil {
			return err
		}
		hole, err := unix.Seek(int(in.Fd()), data, unix.SEEK_HOLE)
		if err != nil {
			return err
		}
		if _, err := io.Copy(io.NewOffsetWriter(out, data), io.NewSectionReader(in, data, hole-data)); err != nil {
			return err
		}
		at = hole
	}
	return out.Truncate(info.Size())
}

func keepAll(string) bool { return true }

// copyAttributes copies the extended attributes that are wanted.
func copyAttributes(path, target string, wanted func(attribute string) bool) error {
	names := make([]byte, 64<<10)
	n, err := unix.Llistxattr(path, names)
	if errors.Is(err, unix.ENOTSUP) || n == 0 {
		return nil
	}
	if err != nil {
		return fmt.Errorf("list attributes of %s: %w", path, err)
	}
	value := make([]byte, 64<<10)
	for name := range strings.SplitSeq(strings.TrimSuffix(string(names[:n]), "\x00"), "\x00") {
		if !wanted(name) {
			continue
		}
		n, err := unix.Lgetxattr(path, name, value)
		if err == nil {
			err = unix.Lsetxattr(target, name, value[:n], 0)
		}
		if err != nil {
			return fmt.Errorf("copy attribute %s of %s: %w", name, path, err)
		}
	}
	return nil
}

func setTimes(target string, st *unix.Stat_t) error {
	times := []unix.Timespec{st.Atim, st.Mtim}
	if err := unix.UtimesNanoAt(unix.AT_FDCWD, target, times, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return fmt.Errorf("set times of %s: %w", target, err)
	}
	return nil
}
