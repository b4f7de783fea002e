package unpack

import (
	"archive/tar"
	"errors"
	"strings"

	"golang.org/x/sys/unix"
)

func (u *unpacker) makeLink(h *tar.Header, parent int, base string) error {
	target, err := clean(h.Linkname)
	if err != nil {
		return err
	}
	if target == "" {
		return bad("a hard link to the image's root")
	}
	dir, to := split(target)
	at, err := u.lookup(dir)
	if err != nil {
		if errors.Is(err, unix.ENOENT) {
			return bad("a hard link to %q, which is not in the image", clip(target))
		}
		return err
	}
	if at != u.root {
		defer unix.Close(at)
	}
	var from, there unix.Stat_t
	if err := unix.Fstatat(at, to, &from, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		if errors.Is(err, unix.ENOENT) {
			return bad("a hard link to %q, which is not in the image", clip(target))
		}
		return err
	}
	if from.Mode&unix.S_IFMT == unix.S_IFDIR {
		return bad("a hard link to the folder %q", clip(target))
	}
	if unix.Fstatat(parent, base, &there, unix.AT_SYMLINK_NOFOLLOW) == nil && there.Ino == from.Ino && there.Dev == from.Dev {
		return nil // it is that file already, and removing it first could remove the last name
	}
	return u.replacing(parent, base, func() error { return unix.Linkat(at, to, parent, base, 0) })
}

func (u *unpacker) makeSymlink(h *tar.Header, parent int, base string) error {
	if h.Linkname == "" || len(h.Linkname) >= maxName || strings.IndexByte(h.Linkname, 0) >= 0 {
		return bad("a symbolic link leads to a name that no system takes")
	}
	err := u.replacing(parent, base, func() error { return unix.Symlinkat(h.Linkname, parent, base) })
	if err != nil {
		return err
	}
	if u.asRoot {
		if err := unix.Fchownat(parent, base, h.Uid, h.Gid, unix.AT_SYMLINK_NOFOLLOW); err != nil {
			return err
		}
	}
	at := times(h)
	return unix.UtimesNanoAt(parent, base, at[:], unix.AT_SYMLINK_NOFOLLOW)
}
