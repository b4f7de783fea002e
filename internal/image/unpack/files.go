package unpack

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"
)

func (u *unpacker) makeDir(h *tar.Header, parent int, base, name string, mode uint32) error {
	err := unix.Mkdirat(parent, base, 0o700)
	if errors.Is(err, unix.EEXIST) {
		var st unix.Stat_t
		if err := unix.Fstatat(parent, base, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
			return err
		}
		err = nil
		if st.Mode&unix.S_IFMT != unix.S_IFDIR {
			if err = u.remove(parent, base); err == nil {
				err = unix.Mkdirat(parent, base, 0o700)
			}
		}
	}
	if err != nil {
		return err
	}
	u.dirs = append(u.dirs, dirTime{name, times(h)})
	return u.finish(h, parent, base, mode)
}

func (u *unpacker) makeFile(t *tar.Reader, h *tar.Header, parent int, base string, mode uint32) error {
	if h.Size < 0 || h.Size > u.o.MaxBytes-u.res.Bytes {
		return errTooLarge()
	}
	fd := -1
	err := u.replacing(parent, base, func() (err error) {
		fd, err = unix.Openat(parent, base, unix.O_CREAT|unix.O_EXCL|unix.O_WRONLY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
		return err
	})
	if err != nil {
		return err
	}
	f := os.NewFile(uintptr(fd), base)
	n, err := u.copy(f, t)
	u.res.Bytes += n
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err == nil && n != h.Size {
		err = io.ErrUnexpectedEOF
	}
	if err != nil {
		return err
	}
	return u.finish(h, parent, base, mode)
}

var zeros [4096]byte

// copy writes a file and leaves holes where whole blocks are zero.
func (u *unpacker) copy(f *os.File, r io.Reader) (n int64, err error) {
	hole := false
	for {
		m, rerr := io.ReadFull(r, u.buf)
		for part := range chunks(u.buf[:m]) {
			if hole = len(part) <= len(zeros) && bytes.Equal(part, zeros[:len(part)]); hole {
				_, err = f.Seek(int64(len(part)), io.SeekCurrent)
			} else {
				_, err = f.Write(part)
			}
			if err != nil {
				return n, err
			}
			n += int64(len(part))
		}
		if errors.Is(rerr, io.EOF) || errors.Is(rerr, io.ErrUnexpectedEOF) {
			if errors.Is(rerr, io.ErrUnexpectedEOF) && m == 0 {
				return n, rerr
			}
			break
		}
		if rerr != nil {
			return n, rerr
		}
		if err := errors.Join(u.ctx.Err(), u.room(int64(m))); err != nil {
			return n, err
		}
	}
	if hole {
		err = f.Truncate(n)
	}
	return n, err
}

// chunks gives runs of a buffer: each is one block of zeros or a run of blocks that are none.
func chunks(b []byte) func(yield func([]byte) bool) {
	return func(yield func([]byte) bool) {
		start := 0
		for at := 0; at < len(b); at += len(zeros) {
			end := min(at+len(zeros), len(b))
			if !bytes.Equal(b[at:end], zeros[:end-at]) {
				continue
			}
			if at > start && !yield(b[start:at]) {
				return
			}
			if !yield(b[at:end]) {
				return
			}
			start = end
		}
		if start < len(b) {
			yield(b[start:])
		}
	}
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
