// Package unpack owns the writing of one layer's tar archive into a folder: names, links, whiteouts, owners, modes, times and attributes.
//
// The archive is hostile input. Every name is resolved inside the folder by the kernel, whatever symbolic links are there, and nothing is followed
// outside of it; what would take too much room is refused before it is written. The package knows nothing of images, digests or compression: a layer is
// unpacked where the layers below it show, so that what it removes is there to be removed.
package unpack

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"io"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berthrun/berth/internal/errs"
)

// Options bound what a layer may hold.
type Options struct {
	MaxBytes   int64 // of all files' contents together, holes counted
	MaxEntries int64 // of the archive
	// Room is asked every now and then; its error ends the unpacking. May be nil.
	Room func() error
}

// Result is what a layer held.
type Result struct {
	Entries int64
	Bytes   int64 // of files' contents, holes counted
	Skipped int64 // device nodes, which are never made: a sandbox has its own /dev
}

const (
	maxName     = 4096      // bytes of a name, as the kernel takes them
	maxTrailing = 64 << 20  // bytes after the end of an archive
	maxHeaders  = 512 << 20 // bytes of an archive beside files' contents
	maxXattr    = 64 << 10
)

// Apply writes an uncompressed layer into the folder root, which shows the layers below, and reads the stream to its end. Errors: INVALID_INPUT with
// reason bad_layer for an archive that no image may have, LIMIT_EXCEEDED with reason image_too_large for one that is too large, NO_CAPACITY with reason
// disk_full where there is no room. What was written stays after an error: the caller removes the folder.
func Apply(ctx context.Context, root string, r io.Reader, o Options) (Result, error) {
	fd, err := unix.Open(root, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return Result{}, fmt.Errorf("open folder to unpack into: %w", err)
	}
	u := &unpacker{
		ctx: ctx, o: o, root: fd, parent: -1, asRoot: os.Geteuid() == 0, seed: maphash.MakeSeed(), seen: map[uint64]struct{}{}, buf: make([]byte, 256<<10),
	}
	defer u.close()
	raw := &bounded{r: r, left: o.MaxBytes + maxHeaders}
	if err := u.all(tar.NewReader(raw)); err != nil {
		return u.res, explain(err)
	}
	if err := u.dirTimes(); err != nil {
		return u.res, explain(err)
	}
	raw.left = maxTrailing
	if _, err := io.CopyBuffer(io.Discard, raw, u.buf); err != nil {
		return u.res, explain(err)
	}
	return u.res, nil
}

// bounded is a reader that fails beyond a size.
type bounded struct {
	r    io.Reader
	left int64
}

// Read implements io.Reader.
func (b *bounded) Read(p []byte) (int, error) {
	if b.left <= 0 {
		return 0, errTooLarge()
	}
	n, err := b.r.Read(p[:min(int64(len(p)), b.left)])
	b.left -= int64(n)
	return n, err
}

func errTooLarge() error {
	return errs.E(errs.LimitExceeded, "a layer of the image unpacks to more than is allowed").Because("image_too_large").
		Suggest("Use a smaller image.")
}

func bad(format string, args ...any) *errs.Error {
	return errs.E(errs.InvalidInput, "a layer of the image cannot be unpacked: "+format, args...).Because("bad_layer").
		Suggest("Build the image again with a current tool, or use another one.")
}

// explain gives an error its code.
func explain(err error) error {
	if _, ok := errors.AsType[*errs.Error](err); ok || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	switch {
	case errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EDQUOT):
		return errs.Wrap(errs.NoCapacity, err, "the node's disk is full").Because("disk_full").Suggest("Delete images or sandboxes that are not needed.")
	case errors.Is(err, tar.ErrHeader), errors.Is(err, tar.ErrFieldTooLong), errors.Is(err, io.ErrUnexpectedEOF):
		return errs.Wrap(errs.InvalidInput, err, "a layer of the image is no whole tar archive").Because("bad_layer")
	case errors.Is(err, unix.ELOOP), errors.Is(err, unix.EXDEV), errors.Is(err, unix.ENOTDIR), errors.Is(err, unix.ENAMETOOLONG), errors.Is(err, unix.EMLINK):
		return errs.Wrap(errs.InvalidInput, err, "a layer of the image has a name that leads nowhere").Because("bad_layer")
	}
	return fmt.Errorf("unpack layer: %w", err)
}

// unpacker is one Apply.
type unpacker struct {
	ctx    context.Context
	o      Options
	root   int
	asRoot bool
	buf    []byte
	res    Result

	unasked    int64  // bytes since Room was asked
	parentName string // of the folder that parent is
	parent     int    // -1 where none is open

	seed maphash.Seed
	seen map[uint64]struct{} // the names that this layer has written
	dirs []dirTime
}

type dirTime struct {
	name string
	at   [2]unix.Timespec
}

func (u *unpacker) close() {
	u.forget()
	_ = unix.Close(u.root)
}

// forget closes the cached folder: what its name means may have changed.
func (u *unpacker) forget() {
	if u.parent >= 0 && u.parent != u.root {
		_ = unix.Close(u.parent)
	}
	u.parent, u.parentName = -1, ""
}

func (u *unpacker) all(t *tar.Reader) error {
	for {
		h, err := t.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil && !errors.Is(err, tar.ErrInsecurePath) {
			return err
		}
		if err := u.ctx.Err(); err != nil {
			return err
		}
		if u.res.Entries++; u.res.Entries > u.o.MaxEntries {
			return errs.E(errs.LimitExceeded, "a layer of the image has more than %d files", u.o.MaxEntries).Because("image_too_large")
		}
		if err := u.room(4096); err != nil {
			return err
		}
		if err := u.entry(t, h); err != nil {
			return err
		}
	}
}

// roomEvery is after how many bytes it is asked whether there is room for more.
const roomEvery = 32 << 20

func (u *unpacker) room(n int64) error {
	u.unasked += n
	if u.o.Room == nil || u.unasked < roomEvery {
		return nil
	}
	u.unasked = 0
	return u.o.Room()
}

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

// The names of whiteouts.
const (
	whiteout = ".wh."
	opaque   = ".wh..wh..opq"
)

func (u *unpacker) entry(t *tar.Reader, h *tar.Header) error {
	switch h.Typeflag {
	case tar.TypeXGlobalHeader, 'V': // a volume's label
		return nil
	}
	name, err := clean(h.Name)
	if err != nil {
		return err
	}
	dir, base := split(name)
	switch {
	case name == "":
		if h.Typeflag != tar.TypeDir {
			return bad("its root is no folder")
		}
		return u.rootEntry(h)
	case base == opaque:
		return u.hideAll(dir)
	case strings.HasPrefix(base, whiteout+whiteout):
		return nil // aufs's own notes
	case strings.HasPrefix(base, whiteout):
		return u.hide(dir, strings.TrimPrefix(base, whiteout))
	}
	if h.Uid < 0 || int64(h.Uid) >= 1<<32-1 || h.Gid < 0 || int64(h.Gid) >= 1<<32-1 {
		return bad("%q has an owner that no system knows", clip(name))
	}
	parent, err := u.folder(dir)
	if err != nil {
		return fmt.Errorf("open folder of %q: %w", clip(name), err)
	}
	if err := u.write(t, h, parent, base, name); err != nil {
		return fmt.Errorf("write %q: %w", clip(name), err)
	}
	u.mark(name)
	return nil
}

func (u *unpacker) write(t *tar.Reader, h *tar.Header, parent int, base, name string) error {
	mode := uint32(h.Mode & 0o7777) //nolint:gosec // twelve bits
	switch h.Typeflag {
	case tar.TypeDir:
		return u.makeDir(h, parent, base, name, mode)
	case tar.TypeReg, 0, tar.TypeGNUSparse, tar.TypeCont:
		return u.makeFile(t, h, parent, base, mode)
	case tar.TypeLink:
		return u.makeLink(h, parent, base)
	case tar.TypeSymlink:
		return u.makeSymlink(h, parent, base)
	case tar.TypeFifo:
		err := u.replacing(parent, base, func() error { return unix.Mknodat(parent, base, unix.S_IFIFO|0o600, 0) })
		if err != nil {
			return err
		}
		return u.finish(h, parent, base, mode)
	case tar.TypeChar, tar.TypeBlock:
		u.res.Skipped++
		return u.remove(parent, base) // what was there of the layers below is replaced all the same
	}
	return bad("%q is of a kind that images do not have (%q)", clip(name), string(h.Typeflag))
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
