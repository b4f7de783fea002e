package unpack

import (
	"archive/tar"
	"errors"
	"fmt"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

type dirTime struct {
	name string
	at   [2]unix.Timespec
}

func times(h *tar.Header) [2]unix.Timespec {
	at := h.ModTime
	if at.Year() < 1902 || at.Year() > 2400 {
		at = time.Unix(0, 0)
	}
	ts := unix.NsecToTimespec(at.UnixNano())
	return [2]unix.Timespec{ts, ts}
}

func (u *unpacker) rootEntry(h *tar.Header) error {
	// The owner and mode of / are the disk's; only its attributes could matter, and none do.
	u.dirs = append(u.dirs, dirTime{"", times(h)})
	return nil
}

// finish sets what a file has beside its content. The owner comes first: changing it takes set-user-id bits and capabilities away.
func (u *unpacker) finish(h *tar.Header, parent int, base string, mode uint32) error {
	if u.asRoot {
		if err := unix.Fchownat(parent, base, h.Uid, h.Gid, unix.AT_SYMLINK_NOFOLLOW); err != nil {
			return err
		}
	}
	if err := unix.Fchmodat(parent, base, mode, 0); err != nil { // it was just made, or seen to be no link
		return err
	}
	if err := u.attributes(h, parent, base); err != nil {
		return err
	}
	if h.Typeflag == tar.TypeDir {
		return nil // its time is set at the end
	}
	at := times(h)
	return unix.UtimesNanoAt(parent, base, at[:], unix.AT_SYMLINK_NOFOLLOW)
}

// attributes sets the extended attributes that mean something in a sandbox: files' capabilities and users' own. The rest is the host's business:
// trusted.overlay.* would be read by overlayfs.
func (u *unpacker) attributes(h *tar.Header, parent int, base string) error {
	for key, value := range h.PAXRecords {
		attr, ok := strings.CutPrefix(key, "SCHILY.xattr.")
		if !ok || (attr != "security.capability" && !strings.HasPrefix(attr, "user.")) || (attr == "security.capability" && !u.asRoot) {
			continue
		}
		if len(attr) > 255 || len(value) > maxXattr || strings.HasPrefix(attr, "user.overlay.") {
			continue
		}
		path := fmt.Sprintf("/proc/self/fd/%d/%s", parent, base)
		err := unix.Lsetxattr(path, attr, []byte(value), 0)
		switch {
		case err == nil, errors.Is(err, unix.ENOTSUP), errors.Is(err, unix.EPERM) && strings.HasPrefix(attr, "user."):
		case errors.Is(err, unix.EINVAL), errors.Is(err, unix.ERANGE), errors.Is(err, unix.E2BIG):
			return bad("%q has the attribute %s with a value that no system takes", clip(h.Name), clip(attr))
		default:
			return err
		}
	}
	return nil
}

// dirTimes sets the times of folders once nothing changes in them any more. One that is gone or no folder any more is passed over.
func (u *unpacker) dirTimes() error {
	u.forget()
	for i := len(u.dirs) - 1; i >= 0; i-- {
		d := u.dirs[i]
		fd, err := u.lookup(d.name)
		if err != nil {
			continue
		}
		err = unix.UtimesNanoAt(unix.AT_FDCWD, fmt.Sprintf("/proc/self/fd/%d", fd), d.at[:], 0)
		if fd != u.root {
			_ = unix.Close(fd)
		}
		if err != nil {
			return fmt.Errorf("set time of %q: %w", clip(d.name), err)
		}
	}
	return nil
}
