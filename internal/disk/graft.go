package disk

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// overlay begins the names of the attributes that overlayfs keeps on a disk's own files.
const overlay = "trusted.overlay."

// Graft copies a folder at the root of a disk, with all in it, into another disk that nobody uses yet, where it takes the place of what there is. shown is
// where the first disk is mounted above these layers, whose programs do not run. A folder that is not there is no error; false then, and for one that was never written to. A name that is no folder is an error:
// a link would lead anywhere. Where the folder is the disk's own, files share their blocks.
func (s *Store) Graft(from, shown, to, name string, layers ...string) (bool, error) {
	if err := errors.Join(checkID(from), checkID(to), checkID(name)); err != nil {
		return false, err
	}
	info, err := os.Lstat(filepath.Join(shown, name))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return false, nil
	case err != nil:
		return false, fmt.Errorf("look for folder: %w", err)
	case !info.IsDir():
		return false, fmt.Errorf("%s is no folder: %w", name, unix.ENOTDIR)
	}
	source := filepath.Join(shown, name)
	if bare(name, layers) {
		// All of it is the disk's own.
		source = filepath.Join(s.Folder(from), name)
		if _, err := os.Lstat(source); errors.Is(err, fs.ErrNotExist) {
			return false, nil
		}
	}
	target := filepath.Join(s.Folder(to), name)
	if err := errors.Join(os.RemoveAll(target), os.Mkdir(target, 0o700)); err != nil {
		return false, fmt.Errorf("make folder: %w", err)
	}
	err = copyTree(source, target, func(attribute string) bool { return !strings.HasPrefix(attribute, overlay) })
	if err == nil {
		// What the new layers have under this name is not to be seen through it.
		err = unix.Lsetxattr(target, overlay+"opaque", []byte("y"), 0)
	}
	if err != nil {
		return false, fmt.Errorf("copy folder %s: %w", name, err)
	}
	return true, nil
}

// bare reports whether no layer has anything in a folder.
func bare(name string, layers []string) bool {
	for _, l := range layers {
		if entries, err := os.ReadDir(filepath.Join(l, name)); err == nil && len(entries) > 0 || err != nil && !errors.Is(err, fs.ErrNotExist) {
			return false
		}
	}
	return true
}
