package inputs

import (
	"archive/tar"
	"bufio"
	"context"
	"crypto/sha256"
	"errors"
	"io"
	"path"
	"strings"

	"github.com/berthrun/berth/internal/errs"
)

// Options say how an archive is read.
type Options struct {
	Limits Limits
	// SkipSpecial passes over devices, pipes and sockets, which a stage's own files may have; else they are refused.
	SkipSpecial bool
}

// Read reads a tar archive, plain or compressed by gzip, bzip2 or zstd, to its end, and writes the contents of its files to the spool. Names that lead out
// of the archive's root, through a symlink too, what is no file, folder or symlink, and what is above the limits, are errs.InvalidInput, and so is an
// archive that is damaged or broke off. An absolute name begins at the root, as Docker takes it; of two entries with one name the later counts. Owners and
// times are not kept.
func Read(ctx context.Context, r io.Reader, spool Spool, o Options) (*Tree, error) {
	t := &Tree{entries: map[string]*Entry{}, spool: spool, limits: o.Limits.orDefault()}
	plain, done, err := decompress(r)
	if err != nil {
		return nil, err
	}
	defer done()
	if err := t.read(ctx, plain, o.SkipSpecial); err != nil {
		return nil, err
	}
	return t, nil
}

func (t *Tree) read(ctx context.Context, plain io.Reader, skipSpecial bool) error {
	// Zero blocks at the end of a compressed stream could go on for ever, and so could headers.
	in := &bounded{r: plain, left: t.limits.Bytes + int64(t.limits.Entries)*4096 + 1<<20}
	tr := tar.NewReader(in)
	w := &reader{Tree: t, skipSpecial: skipSpecial, buf: make([]byte, 256<<10)}
	for {
		if err := ctx.Err(); err != nil {
			return err
		}
		h, err := tr.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			return damaged(err)
		}
		if err := w.entry(h, tr); err != nil {
			return damaged(err)
		}
	}
	if in.n == 0 {
		return errs.E(errs.InvalidInput, "the archive is empty").Suggest("Send a tar archive, plain or compressed by gzip or zstd.")
	}
	if _, err := io.CopyBuffer(io.Discard, in, w.buf); err != nil { // to its end, which tells that it is whole
		return damaged(err)
	}
	return t.check()
}

// bounded is a stream that may have so many bytes and no more.
type bounded struct {
	r       io.Reader
	n, left int64
}

// Read implements io.Reader.
func (b *bounded) Read(p []byte) (int, error) {
	n, err := b.r.Read(p)
	b.n += int64(n)
	if b.left -= int64(n); b.left < 0 {
		return 0, tooLarge()
	}
	return n, err
}

func tooLarge() error {
	return errs.E(errs.InvalidInput, "the archive is larger than a build may take once it is unpacked").Suggest("Leave out what the build does not need, with a .dockerignore.")
}

// damaged gives the errors of a stream that is none or broke off a code; others are as they were.
func damaged(err error) error {
	var coded *errs.Error
	if errors.As(err, &coded) || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	var broke stream
	if errors.Is(err, tar.ErrHeader) || errors.Is(err, tar.ErrFieldTooLong) || errors.Is(err, io.ErrUnexpectedEOF) || errors.As(err, &broke) {
		return errs.Wrap(errs.InvalidInput, err, "the archive is damaged or broke off").Suggest("Send it again, whole: a tar archive, plain or compressed by gzip or zstd.")
	}
	return err
}

// reader fills a Tree.
type reader struct {
	*Tree
	skipSpecial bool
	buf         []byte
}

func (r *reader) entry(h *tar.Header, content io.Reader) error {
	e := &Entry{Mode: h.Mode & 0o7777}
	switch h.Typeflag {
	case tar.TypeReg, tar.TypeGNUSparse:
		e.Kind = File
	case tar.TypeDir:
		e.Kind = Dir
	case tar.TypeSymlink:
		e.Kind, e.Mode, e.Target = Link, 0o777, h.Linkname
	case tar.TypeLink:
		e.Kind = File
	case tar.TypeXGlobalHeader:
		return nil
	default:
		if r.skipSpecial {
			return nil
		}
		return errs.E(errs.InvalidInput, "the archive has a device, pipe or socket: %s", short(h.Name)).Suggest("Leave it out, with a .dockerignore.")
	}
	name, err := inside(h.Name)
	if err != nil || name == "." {
		return err
	}
	e.Path = name
	switch {
	case h.Typeflag == tar.TypeLink:
		err = r.hardLink(e, h.Linkname)
	case e.Kind == File:
		err = r.file(e, h.Size, content)
	case e.Kind == Link && (e.Target == "" || len(e.Target) > maxName || strings.ContainsRune(e.Target, 0)):
		err = errs.E(errs.InvalidInput, "the symlink %s has a target that cannot be", short(h.Name)).Suggest("Leave it out, with a .dockerignore.")
	}
	if err != nil {
		return err
	}
	if r.names += len(e.Path) + len(e.Target); r.names > maxNames {
		return tooMany(r.limits)
	}
	if old := r.entries[name]; old != nil {
		r.bytes -= old.Size
	}
	r.bytes += e.Size
	r.entries[name] = e
	if len(r.entries) > r.limits.Entries {
		return tooMany(r.limits)
	}
	return nil
}

func tooMany(l Limits) error {
	return errs.E(errs.InvalidInput, "the archive has more than %d entries, or their names are longer than %d MiB", l.Entries, maxNames>>20).
		Suggest("Leave out what the build does not need, with a .dockerignore.")
}

// inside gives the clean path of a name that stays in the root.
func inside(name string) (string, error) {
	clean := path.Clean("./" + strings.TrimLeft(name, "/"))
	if name == "" || clean == ".." || strings.HasPrefix(clean, "../") || strings.ContainsRune(name, 0) {
		return "", errs.E(errs.InvalidInput, "the archive has an entry that leads out of it: %q", short(name)).Suggest("Names are relative to the archive's root, without \"..\".")
	}
	if len(clean) > maxName {
		return "", errs.E(errs.InvalidInput, "the archive has a name of %d bytes", len(clean)).Suggest("A path has at most %d bytes.", maxName)
	}
	for part := range strings.SplitSeq(clean, "/") {
		if len(part) > maxPart {
			return "", errs.E(errs.InvalidInput, "the archive has a name of %d bytes: %s", len(part), short(part)).Suggest("A file's name has at most %d bytes.", maxPart)
		}
	}
	return clean, nil
}

func (r *reader) hardLink(e *Entry, target string) error {
	name, err := inside(target)
	if err != nil {
		return err
	}
	to := r.entries[name]
	if to == nil || to.Kind != File {
		return errs.E(errs.InvalidInput, "the archive has a hard link to what is no file before it: %s", short(target)).Suggest("Pack the files themselves.")
	}
	e.Mode, e.Size, e.SHA256, e.offset = to.Mode, to.Size, to.SHA256, to.offset
	return r.room(e.Size)
}

// room refuses what would be more than the limit, before it is read.
func (r *reader) room(size int64) error {
	if size < 0 || size > r.limits.Bytes-r.bytes {
		return tooLarge()
	}
	return nil
}

func (r *reader) file(e *Entry, size int64, content io.Reader) error {
	if err := r.room(size); err != nil {
		return err
	}
	// What was replaced by a later entry of its name still lies in the spool.
	if r.end+size > r.limits.Bytes+r.limits.Bytes/4 {
		return tooLarge()
	}
	h := sha256.New()
	n, err := io.CopyBuffer(io.MultiWriter(r.spool, h), onlyReader{content}, r.buf)
	e.Size, e.offset = n, r.end
	h.Sum(e.SHA256[:0])
	r.end += n
	return err
}

// onlyReader hides WriteTo, which would leave the buffer unused.
type onlyReader struct{ io.Reader }

// check makes folders of what is only a part of names, and refuses names that go through what is no folder.
func (t *Tree) check() error {
	var missing []string
	seen := map[string]bool{}
	for name := range t.entries {
		for dir := path.Dir(name); dir != "." && !seen[dir]; dir = path.Dir(dir) {
			seen[dir] = true
			switch e := t.entries[dir]; {
			case e == nil:
				if missing = append(missing, dir); len(missing) > t.limits.Entries {
					return tooMany(t.limits)
				}
			case e.Kind != Dir:
				return errs.E(errs.InvalidInput, "the archive has an entry that goes through what is no folder: %s", short(name)).
					Suggest("Pack the files under the folder's own name, not through a symlink.")
			}
		}
	}
	for _, dir := range missing {
		t.entries[dir] = &Entry{Path: dir, Kind: Dir, Mode: 0o755}
	}
	return nil
}

// buffered is how streams are looked into.
func buffered(r io.Reader) *bufio.Reader { return bufio.NewReaderSize(r, 64<<10) }
