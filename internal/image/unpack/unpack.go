// Package unpack owns the writing of one layer's tar archive into a folder: names, links, whiteouts, owners, modes, times and attributes.
//
// The archive is hostile input. Every name is resolved inside the folder by the kernel, whatever symbolic links are there, and nothing is followed
// outside of it; what would take too much room is refused before it is written. The package knows nothing of images, digests or compression: a layer is
// unpacked where the layers below it show, so that what it removes is there to be removed.
package unpack

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"io"
	"os"
	"strings"

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

func (u *unpacker) close() {
	u.forget()
	_ = unix.Close(u.root)
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
