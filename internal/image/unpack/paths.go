package unpack

import (
	"errors"
	"strings"

	"golang.org/x/sys/unix"
)

// clean gives a name's form inside the folder, without a slash at either end; empty is the folder itself.
func clean(name string) (string, error) {
	if len(name) > maxName {
		return "", bad("a name is longer than %d bytes", maxName)
	}
	if strings.IndexByte(name, 0) >= 0 {
		return "", bad("a name holds a NUL byte")
	}
	parts := strings.Split(name, "/")
	kept := parts[:0]
	for _, p := range parts {
		switch {
		case p == "" || p == ".":
		case p == "..":
			return "", bad("the name %q leaves the image", clip(name))
		case len(p) > 255:
			return "", bad("a name has a part of more than 255 bytes")
		default:
			kept = append(kept, p)
		}
	}
	return strings.Join(kept, "/"), nil
}

func clip(s string) string {
	if len(s) > 200 {
		return s[:200] + "…"
	}
	return s
}

func split(name string) (dir, base string) {
	i := strings.LastIndexByte(name, '/')
	if i < 0 {
		return "", name
	}
	return name[:i], name[i+1:]
}

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

// forget closes the cached folder: what its name means may have changed.
func (u *unpacker) forget() {
	if u.parent >= 0 && u.parent != u.root {
		_ = unix.Close(u.parent)
	}
	u.parent, u.parentName = -1, ""
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
