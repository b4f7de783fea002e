package unpack

import (
	"errors"
	"hash/maphash"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"
)

// The names of whiteouts.
const (
	whiteout = ".wh."
	opaque   = ".wh..wh..opq"
)

func (u *unpacker) hash(name string) uint64 { return maphash.String(u.seed, name) }

// mark records that the layer has written a name, and so the folders that it is in.
func (u *unpacker) mark(name string) {
	for name != "" {
		k := u.hash(name)
		if _, ok := u.seen[k]; ok {
			return
		}
		u.seen[k] = struct{}{}
		name, _ = split(name)
	}
}

func (u *unpacker) wrote(name string) bool {
	_, ok := u.seen[u.hash(name)]
	return ok
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
	return u.within(dir, func(fd int) error { return u.remove(fd, base) })
}

// within removes something in a folder of the layers below, where it is there.
func (u *unpacker) within(dir string, remove func(fd int) error) error {
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
	return remove(fd)
}

// hideAll removes what a folder has of the layers below.
func (u *unpacker) hideAll(dir string) error {
	return u.within(dir, func(fd int) error { return u.prune(fd, dir) })
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
