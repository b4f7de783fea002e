package unpack

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"
)

// lookup opens the folder of a clean name, as the kernel finds it with the root as its /: links in it, absolute ones too, stay inside. The caller closes
// it unless it is u.root.
func (u *unpacker) lookup(name string) (int, error) {
	if name == "" {
		return u.root, nil
	}
	return unix.Openat2(u.root, name, &unix.OpenHow{
		Flags:   unix.O_PATH | unix.O_DIRECTORY | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS | unix.RESOLVE_NO_XDEV,
	})
}

// folder opens the folder of a clean name and makes it, and those above it, where they are missing. It stays open until another is asked for.
func (u *unpacker) folder(name string) (int, error) {
	if u.parent >= 0 && u.parentName == name {
		return u.parent, nil
	}
	fd, err := u.lookup(name)
	if errors.Is(err, unix.ENOENT) {
		err = u.makeFolders(name)
		if err == nil {
			fd, err = u.lookup(name)
		}
	}
	if err != nil {
		return -1, err
	}
	u.forget()
	u.parent, u.parentName = fd, name
	return fd, nil
}

// makeFolders makes a folder and those above it as the root's, for an archive that does not name them.
func (u *unpacker) makeFolders(name string) error {
	dir, base := split(name)
	fd, err := u.lookup(dir)
	if errors.Is(err, unix.ENOENT) && dir != "" {
		if err = u.makeFolders(dir); err == nil {
			fd, err = u.lookup(dir)
		}
	}
	if err != nil {
		return err
	}
	if fd != u.root {
		defer unix.Close(fd)
	}
	err = unix.Mkdirat(fd, base, 0o755)
	if errors.Is(err, unix.EEXIST) {
		return unix.ENOTDIR // a link that leads nowhere, or to no folder
	}
	if err == nil {
		err = unix.Fchmodat(fd, base, 0o755, 0)
	}
	return err
}

// replacing makes a name, after removing what has it already.
func (u *unpacker) replacing(parent int, base string, create func() error) error {
	err := create()
	if !errors.Is(err, unix.EEXIST) {
		return err
	}
	if err := u.remove(parent, base); err != nil {
		return err
	}
	return create()
}

// remove removes a name and all below it, without following links. One that is gone is fine.
func (u *unpacker) remove(parent int, base string) error {
	err := unix.Unlinkat(parent, base, 0)
	if err == nil || errors.Is(err, unix.ENOENT) {
		return nil
	}
	if !errors.Is(err, unix.EISDIR) && !errors.Is(err, unix.EPERM) {
		return err
	}
	// The folder's own descriptor names it, whatever its path means by now; below, nothing is followed.
	return os.RemoveAll(filepath.Join("/proc/self/fd", strconv.Itoa(parent), base))
}

// hide removes a name of the layers below. What this layer has written stays: a whiteout is about those below only.
func (u *unpacker) hide(dir, base string) error {
	if base == "" || base == "." || base == ".." {
		return bad("a whiteout of no name")
	}
	name := base
	if dir != "" {
		name = dir + "/" + base
	}
	if u.wrote(name) {
		return nil
	}
	fd, err := u.lookup(dir)
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) {
		return nil
	}
	if err != nil {
		return err
	}
	if fd != u.root {
		defer unix.Close(fd)
	}
	u.forget()
	return u.remove(fd, base)
}

// hideAll removes what a folder has of the layers below.
func (u *unpacker) hideAll(dir string) error {
	fd, err := u.lookup(dir)
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) {
		return nil
	}
	if err != nil {
		return err
	}
	if fd != u.root {
		defer unix.Close(fd)
	}
	u.forget()
	return u.prune(fd, dir)
}

// prune removes from a folder what this layer has not written.
func (u *unpacker) prune(fd int, dir string) error {
	entries, err := os.ReadDir(filepath.Join("/proc/self/fd", strconv.Itoa(fd)))
	if err != nil {
		return err
	}
	for _, e := range entries {
		name := e.Name()
		if dir != "" {
			name = dir + "/" + e.Name()
		}
		if !u.wrote(name) {
			if err := u.remove(fd, e.Name()); err != nil {
				return err
			}
			continue
		}
		if !e.IsDir() {
			continue
		}
		child, err := unix.Openat(fd, e.Name(), unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
		if err != nil {
			return err
		}
		err = u.prune(child, name)
		_ = unix.Close(child)
		if err != nil {
			return err
		}
	}
	return nil
}
