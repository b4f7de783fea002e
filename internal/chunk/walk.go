package chunk

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"slices"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berthrun/berth/internal/errs"
)

// trustAge is how much older than the parent a change must be for its time to tell it from the next one: clocks of file systems are coarse.
const trustAge = 2 * time.Second

// walker reads a tree and hands on what it finds, in the order of a manifest. Nothing is found by a path: every folder is opened in the one above it, and
// links are never followed.
type walker struct {
	ctx    context.Context
	cut    Cut
	trust  bool
	before stamp // changes older than that can be trusted
	links  map[inode]uint64
	out    *feeder
	stats  Stats
	crc    *crc32.Table
	depth  int
}

type inode struct{ dev, ino uint64 }

func (w *walker) tree(dir string, parent *cursor) error {
	fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC|unix.O_NOATIME, 0)
	if err != nil {
		return fmt.Errorf("open tree: %w", err)
	}
	return w.folder(fd, "", parent)
}

// folder reads an open folder and closes it. The parent's cursor stands before the folder's record.
func (w *walker) folder(fd int, name string, parent *cursor) error {
	f := os.NewFile(uintptr(fd), name)
	defer f.Close()
	if w.depth++; w.depth > maxDepth {
		return errs.E(errs.LimitExceeded, "the tree's folders are deeper than %d", maxDepth).Because("too_deep")
	}
	defer func() { w.depth-- }()
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return fmt.Errorf("read folder: %w", err)
	}
	m, err := w.meta(fd, "", &st)
	if err != nil {
		return err
	}
	names, err := f.Readdirnames(-1)
	if err != nil {
		return fmt.Errorf("read folder: %w", err)
	}
	slices.Sort(names)
	if parent != nil {
		if r, err := parent.peek(); err != nil {
			return err
		} else if r.Kind == recDir {
			parent.take()
		} else {
			parent = nil
		}
	}
	w.stats.Entries++
	if err := w.out.record(&record{Kind: recDir, Name: name, Meta: m}); err != nil {
		return err
	}
	for _, n := range names {
		if err := w.entry(fd, n, parent); err != nil {
			return err
		}
	}
	if parent != nil {
		if err := parent.leave(); err != nil {
			return err
		}
	}
	return w.out.record(&record{Kind: recUp})
}

func changed(name string) error {
	return errs.E(errs.InvalidState, "%q changed while it was read", clip(name)).Because("changed")
}

func clip(s string) string {
	if len(s) > 200 {
		return s[:200] + "…"
	}
	return s
}

func (w *walker) entry(dir int, name string, parent *cursor) error {
	if err := w.ctx.Err(); err != nil {
		return err
	}
	var st unix.Stat_t
	if err := unix.Fstatat(dir, name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		if errors.Is(err, unix.ENOENT) {
			return changed(name)
		}
		return fmt.Errorf("read %q: %w", clip(name), err)
	}
	var known *record
	if parent != nil {
		r, err := parent.find(name)
		if err != nil {
			return err
		}
		known = r
	}
	below := func(kind byte) *cursor {
		if known != nil && known.Kind == kind {
			return parent
		}
		return nil
	}
	kind := st.Mode & unix.S_IFMT
	if kind == unix.S_IFDIR {
		fd, err := unix.Openat(dir, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC|unix.O_NOATIME, 0)
		if err != nil {
			return fmt.Errorf("open %q: %w", clip(name), err)
		}
		return w.folder(fd, name, below(recDir))
	}
	w.stats.Entries++
	if st.Nlink > 1 {
		key := inode{uint64(st.Dev), st.Ino} //nolint:unconvert // not on every architecture
		if n, ok := w.links[key]; ok {
			return w.out.record(&record{Kind: recLink, Name: name, Link: n})
		}
		w.links[key] = uint64(len(w.links))
	}
	if kind == unix.S_IFREG {
		return w.file(dir, name, &st, below(recFile))
	}
	m, err := w.meta(dir, name, &st)
	if err != nil {
		return err
	}
	r := &record{Kind: recNode, Name: name, Meta: m, Rdev: uint64(st.Rdev)} //nolint:unconvert // not on every architecture
	switch kind {
	case unix.S_IFLNK:
		buf := make([]byte, maxTarget+1)
		n, err := unix.Readlinkat(dir, name, buf)
		if err != nil {
			return fmt.Errorf("read link %q: %w", clip(name), err)
		}
		r.Kind, r.Target, r.Rdev = recSymlink, string(buf[:n]), 0
	case unix.S_IFIFO, unix.S_IFSOCK:
		r.Rdev = 0
	}
	return w.out.record(r)
}

// meta reads what a name has beside its content; with an empty name, what the open file itself has.
func (w *walker) meta(fd int, name string, st *unix.Stat_t) (meta, error) {
	m := meta{Mode: st.Mode & 0xffff, UID: st.Uid, GID: st.Gid, Sec: st.Mtim.Sec, Nsec: uint32(st.Mtim.Nsec)} //nolint:gosec // below 1e9
	m.Linked = st.Nlink > 1 && st.Mode&unix.S_IFMT != unix.S_IFDIR
	list := func(b []byte) (int, error) { return unix.Flistxattr(fd, b) }
	get := func(key string, b []byte) (int, error) { return unix.Fgetxattr(fd, key, b) }
	if name != "" {
		path := "/proc/self/fd/" + strconv.Itoa(fd) + "/" + name
		list = func(b []byte) (int, error) { return unix.Llistxattr(path, b) }
		get = func(key string, b []byte) (int, error) { return unix.Lgetxattr(path, key, b) }
	}
	n, err := list(nil)
	if errors.Is(err, unix.ENOTSUP) || err == nil && n == 0 {
		return m, nil
	}
	buf := make([]byte, maxXattr)
	if n, err = list(buf); err != nil {
		return m, fmt.Errorf("list attributes of %q: %w", clip(name), err)
	}
	for key := range bytes.SplitSeq(bytes.Clone(buf[:n]), []byte{0}) {
		if len(key) == 0 || !keptXattr(string(key)) {
			continue
		}
		n, err := get(string(key), buf)
		if err != nil {
			return m, fmt.Errorf("read attribute of %q: %w", clip(name), err)
		}
		m.Xattrs = append(m.Xattrs, xattr{string(key), bytes.Clone(buf[:n])})
	}
	if len(m.Xattrs) > maxXattrs {
		return m, errs.E(errs.LimitExceeded, "%q has more than %d attributes", clip(name), maxXattrs)
	}
	slices.SortFunc(m.Xattrs, func(a, b xattr) int { return bytes.Compare([]byte(a.Name), []byte(b.Name)) })
	return m, nil
}

// file reads a regular file. The parent's cursor, where there is one, stands before the record of a file of that name.
func (w *walker) file(dir int, name string, seen *unix.Stat_t, parent *cursor) error {
	fd, err := unix.Openat(dir, name, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC|unix.O_NOATIME, 0)
	if err != nil {
		return fmt.Errorf("open %q: %w", clip(name), err)
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return fmt.Errorf("read %q: %w", clip(name), err)
	}
	if st.Ino != seen.Ino || st.Dev != seen.Dev || st.Mode&unix.S_IFMT != unix.S_IFREG {
		return changed(name)
	}
	m, err := w.meta(fd, "", &st)
	if err != nil {
		return err
	}
	r := &record{Kind: recFile, Name: name, Meta: m, Size: st.Size, Stamp: stamp{Ino: st.Ino, Sec: st.Ctim.Sec, Nsec: uint32(st.Ctim.Nsec)}} //nolint:gosec // below 1e9
	if err := w.out.record(r); err != nil {
		return err
	}
	var old *blocks
	if parent != nil {
		was, err := parent.peek()
		if err != nil {
			return err
		}
		parent.take()
		if w.trusted(was, r) {
			return w.unchanged(parent)
		}
		old = &blocks{c: parent}
	}
	if w.cut == ByPages {
		err = w.byPages(fd, st.Size)
	} else {
		err = w.byPlace(fd, st.Size, old)
	}
	if errors.Is(err, errShort) {
		return changed(name)
	}
	if err != nil {
		return fmt.Errorf("read %q: %w", clip(name), err)
	}
	var now unix.Stat_t
	if err := unix.Fstat(fd, &now); err != nil {
		return fmt.Errorf("read %q: %w", clip(name), err)
	}
	if now.Size != st.Size || now.Mtim != st.Mtim || now.Ctim != st.Ctim {
		return changed(name)
	}
	return nil
}

// trusted reports whether a file is unchanged by what its times say.
func (w *walker) trusted(was, is *record) bool {
	old := was.Stamp.Sec < w.before.Sec || was.Stamp.Sec == w.before.Sec && was.Stamp.Nsec < w.before.Nsec
	return w.trust && old && was.Size == is.Size && was.Stamp == is.Stamp && was.Meta.Sec == is.Meta.Sec && was.Meta.Nsec == is.Meta.Nsec
}

// unchanged takes a file's blocks from the parent.
func (w *walker) unchanged(parent *cursor) error {
	for {
		r, err := parent.peek()
		if err != nil || !r.isBlock() {
			return err
		}
		parent.take()
		if r.Kind != recZero {
			w.stats.Bytes += r.Len
		}
		if err := w.out.known(r); err != nil {
			return err
		}
	}
}

// errShort says that a file ended before its size.
var errShort = errors.New("the file is shorter than it was")

// data gives the end of the data at a place and whether there is any: where there is none the end is that of the hole.
func data(fd int, at, size int64) (end int64, any bool, err error) {
	next, err := unix.Seek(fd, at, unix.SEEK_DATA)
	switch {
	case errors.Is(err, unix.ENXIO):
		return size, false, nil
	case errors.Is(err, unix.EINVAL): // a file system without holes
		return size, true, nil
	case err != nil:
		return 0, false, err
	case next > at:
		return min(next, size), false, nil
	}
	end, err = unix.Seek(fd, at, unix.SEEK_HOLE)
	return min(end, size), true, err
}

// byPlace reads a file in blocks of one size. Blocks that lie in holes are not read.
func (w *walker) byPlace(fd int, size int64, old *blocks) error {
	if size > 0 && size <= inline {
		buf := make([]byte, size)
		if err := readFull(fd, buf, 0); err != nil {
			return err
		}
		w.stats.Bytes += size
		w.stats.Read += size
		return w.out.record(&record{Kind: recInline, Inline: buf})
	}
	var end int64 // of the data or hole that at is in
	var any bool
	for at := int64(0); at < size; {
		if at >= end || !any {
			var err error
			if end, any, err = data(fd, at, size); err != nil {
				return err
			}
		}
		if hole := (end - at) / block * block; !any && (hole > 0 || end == size) {
			if end == size {
				hole = size - at
			}
			if err := w.out.zero(hole); err != nil {
				return err
			}
			at += hole
			continue
		}
		n := min(block, size-at)
		prev, err := old.block(at)
		if err != nil {
			return err
		}
		if prev != nil && (prev.Len != n || prev.Kind == recZero || prev.Kind == recInline) {
			prev = nil
		}
		if err := w.read(fd, at, n, prev); err != nil {
			return err
		}
		if at += n; !any {
			end = at // the hole's beginning was less than a block: look again
		}
	}
	return nil
}

func (w *walker) read(fd int, at, n int64, prev *record) error {
	if err := w.ctx.Err(); err != nil {
		return err
	}
	buf, err := w.out.room(n)
	if err != nil {
		return err
	}
	if err := readFull(fd, buf, at); err != nil {
		return err
	}
	w.stats.Bytes += n
	w.stats.Read += n
	return w.out.content(buf, prev)
}

func readFull(fd int, buf []byte, at int64) error {
	for len(buf) > 0 {
		n, err := unix.Pread(fd, buf, at)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return err
		}
		if n == 0 {
			return errShort
		}
		buf, at = buf[n:], at+int64(n)
	}
	return nil
}

// The chunks of a file cut by pages have 4 to 32 of them, about 16 mostly.
const (
	fewestPages = 4
	pagesMask   = 15 // of a page's checksum: where its bits are all set the chunk may end
	readAhead   = 8 * maxChunk
)

// byPages reads a file in chunks that end where a page says so, so that what moved by whole pages is found again. Zero pages are left out.
func (w *walker) byPages(fd int, size int64) error {
	var end int64
	var any bool
	for at := int64(0); at < size; {
		if at >= end || !any {
			var err error
			if end, any, err = data(fd, at, size); err != nil {
				return err
			}
		}
		if !any {
			if err := w.out.zero(end - at); err != nil {
				return err
			}
			at = end
			continue
		}
		if err := w.ctx.Err(); err != nil {
			return err
		}
		buf, err := w.out.room(min(readAhead, end-at))
		if err != nil {
			return err
		}
		if err := readFull(fd, buf, at); err != nil {
			return err
		}
		w.stats.Read += int64(len(buf))
		for given := w.out.given; len(buf) > 0; {
			if w.out.given != given {
				w.stats.Read -= int64(len(buf))
				break
			}
			n, zero := w.cutPages(buf, at+int64(len(buf)) == end)
			if n == 0 { // the rest is read again with what follows it
				w.stats.Read -= int64(len(buf))
				break
			}
			if zero {
				err = w.out.zero(int64(n))
			} else {
				w.stats.Bytes += int64(n)
				err = w.out.content(buf[:n], nil)
			}
			if err != nil {
				return err
			}
			buf, at = buf[n:], at+int64(n)
		}
	}
	return nil
}

// cutPages gives the length of the chunk, or of the run of zero pages, that a buffer begins with; 0 where it may go on behind the buffer.
func (w *walker) cutPages(buf []byte, last bool) (n int, zero bool) {
	for n < len(buf) {
		p := buf[n:min(n+page, len(buf))]
		if isZero(p) {
			if n > 0 && !zero {
				return n, false
			}
			zero = true
			n += len(p)
			continue
		}
		if zero {
			return n, true
		}
		n += len(p)
		if n >= fewestPages*page && crc32.Checksum(p, w.crc)&pagesMask == pagesMask || n == maxChunk {
			return n, false
		}
	}
	if !zero && !last && n < maxChunk {
		return 0, false
	}
	return n, zero
}

var zeros [page]byte

func isZero(b []byte) bool {
	for len(b) > page {
		if !bytes.Equal(b[:page], zeros[:]) {
			return false
		}
		b = b[page:]
	}
	return bytes.Equal(b, zeros[:len(b)])
}
