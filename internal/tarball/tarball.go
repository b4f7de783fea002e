// Package tarball owns a folder as a tar stream: how one is made of a folder's files, directories and symlinks, and how one that nobody trusts becomes
// files again, in one folder and nowhere else.
//
// Owners are not kept, nor what is no file, directory or symlink. It knows no network and no user: it acts with the rights of whoever calls it.
package tarball

import (
	"archive/tar"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
	"time"
)

// Error is what is wrong with a stream itself.
type Error struct{ Message string }

// Error implements error.
func (e *Error) Error() string { return e.Message }

// Stats counts what went through.
type Stats struct {
	Entries int // files, directories and symlinks
	Bytes   int64
	Skipped []string // names, of the first hundred, of what is passed over: sockets, pipes, devices, symlinks that lead out
}

func (s *Stats) skip(name string) {
	if len(s.Skipped) < 100 {
		s.Skipped = append(s.Skipped, name)
	}
}

// Pack writes a folder and all below it. Names are relative to it; the folder itself is the first entry. Symlinks are kept, not followed. A file that becomes
// shorter while it is read is an error; what it grows by is left out. progress is told how many bytes of files went so far; it may be nil.
func Pack(w io.Writer, dir string, progress func(bytes int64)) (Stats, error) {
	k := &packer{t: tar.NewWriter(w), progress: progress, buf: make([]byte, 256<<10)}
	err := filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			if errors.Is(err, fs.ErrNotExist) && p != dir { // removed meanwhile
				return nil
			}
			return err
		}
		name, err := filepath.Rel(dir, p)
		if err != nil {
			return err
		}
		return k.entry(p, filepath.ToSlash(name))
	})
	if err != nil {
		return k.st, err
	}
	return k.st, k.t.Close()
}

// packer writes one stream.
type packer struct {
	t        *tar.Writer
	progress func(int64)
	st       Stats
	buf      []byte
}

func (k *packer) entry(p, name string) error {
	fi, err := os.Lstat(p)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	h := &tar.Header{Name: name, Mode: int64(fi.Mode().Perm()), ModTime: fi.ModTime().Truncate(time.Second), Format: tar.FormatPAX}
	switch fi.Mode().Type() {
	case fs.ModeDir:
		h.Typeflag, h.Name = tar.TypeDir, name+"/"
	case fs.ModeSymlink:
		h.Typeflag = tar.TypeSymlink
		if h.Linkname, err = os.Readlink(p); err != nil {
			return err
		}
	case 0:
		return k.file(p, h)
	default:
		k.st.skip(name)
		return nil
	}
	k.st.Entries++
	return k.t.WriteHeader(h)
}

func (k *packer) file(p string, h *tar.Header) error {
	f, err := os.OpenFile(p, os.O_RDONLY|noFollow, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	fi, err := f.Stat()
	if err != nil {
		return err
	}
	if !fi.Mode().IsRegular() {
		k.st.skip(h.Name)
		return nil
	}
	h.Typeflag, h.Size = tar.TypeReg, fi.Size()
	if err := k.t.WriteHeader(h); err != nil {
		return err
	}
	n, err := io.CopyBuffer(packing{k}, io.LimitReader(f, h.Size), k.buf)
	if err == nil && n < h.Size {
		err = fmt.Errorf("read %s: it became shorter while it was read", p)
	}
	k.st.Entries++
	return err
}

// packing is the content of files.
type packing struct{ *packer }

// Write implements io.Writer.
func (w packing) Write(p []byte) (int, error) {
	n, err := w.t.Write(p)
	w.st.Bytes += int64(n)
	if w.progress != nil {
		w.progress(w.st.Bytes)
	}
	return n, err
}

// Options say how a stream is unpacked.
type Options struct {
	// Mode is which bits of a mode are kept; 0777 where 0.
	Mode fs.FileMode
	// AnyLink keeps symlinks that lead out of the folder. They are never followed.
	AnyLink bool
	// Owner owns all that is made, which then has the time at which it is made; nil: whoever unpacks, with the stream's times.
	Owner *Owner
	// OnlyMissing is the name of a PAX record: a folder that has it, with the value 1, is left as it is where it is there.
	OnlyMissing string
	// Progress is told how many bytes of files have come so far. May be nil.
	Progress func(bytes int64)
}

// Owner is a user and a group by their numbers.
type Owner struct{ UID, GID int }

// unpacker writes into one folder.
type unpacker struct {
	Options
	root *os.Root
	st   Stats
	dirs []*tar.Header // whose modes and times are set at the end
	buf  []byte

	at     *os.Root // the folder that the last file was made in
	atName string
}

// Unpack makes what a stream holds below a folder that exists. A file is written under a temporary name and renamed. Names that lead out of the folder, by
// themselves or through a symlink, are an *Error, and so is a stream that is damaged or broke off.
func Unpack(r io.Reader, dir string, o Options) (Stats, error) {
	if o.Mode == 0 {
		o.Mode = 0o777
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return Stats{}, err
	}
	defer root.Close()
	u := &unpacker{Options: o, root: root, buf: make([]byte, 256<<10)}
	defer func() {
		if u.at != nil {
			_ = u.at.Close()
		}
	}()
	in := &counter{Reader: r}
	t := tar.NewReader(in)
	end := int64(0) // of the entries so far
	for {
		h, err := t.Next()
		if err == io.EOF && in.n < end+trailer {
			err = io.ErrUnexpectedEOF // the package is content without a stream's last blocks
		}
		if err == io.EOF {
			break
		}
		if err != nil {
			return u.st, broken(err)
		}
		end = in.n + (h.Size+511)/512*512
		if err := u.entry(h, t); err != nil {
			return u.st, err
		}
	}
	u.finish()
	_, err = io.Copy(io.Discard, r) // to its end, which tells that it is whole
	return u.st, broken(err)
}

// trailer is what every stream ends with.
const trailer = 1024

// counter counts what is read.
type counter struct {
	io.Reader
	n int64
}

// Read implements io.Reader.
func (c *counter) Read(p []byte) (int, error) {
	n, err := c.Reader.Read(p)
	c.n += int64(n)
	return n, err
}

// broken gives the error of a stream that is none or broke off its code; others are what reading gave.
func broken(err error) error {
	if errors.Is(err, tar.ErrHeader) || errors.Is(err, io.ErrUnexpectedEOF) {
		return &Error{"the tar stream is damaged or broke off"}
	}
	return err
}

func outside(name string) error {
	if len(name) > 200 {
		name = name[:200] + "…"
	}
	return &Error{fmt.Sprintf("the tar stream has an entry that is not inside its folder: %q", name)}
}

func (u *unpacker) entry(h *tar.Header, r io.Reader) error {
	name := path.Clean(strings.TrimPrefix(h.Name, "./"))
	if h.Name == "" || !filepath.IsLocal(name) || strings.ContainsRune(name, 0) {
		return outside(h.Name)
	}
	var err error
	switch h.Typeflag {
	case tar.TypeDir:
		err = u.dir(name, h)
	case tar.TypeReg:
		err = u.file(name, h, r)
	case tar.TypeSymlink:
		err = u.link(name, h)
	default:
		u.st.skip(name)
		return nil
	}
	if err != nil && escapes(err) {
		return outside(h.Name)
	}
	return err
}

// escapes reports whether os.Root refused a path because it leads out.
func escapes(err error) bool {
	pe, ok := errors.AsType[*fs.PathError](err)
	if le, isLink := errors.AsType[*os.LinkError](err); isLink {
		return strings.Contains(le.Err.Error(), "escapes")
	}
	return ok && strings.Contains(pe.Err.Error(), "escapes")
}

func (u *unpacker) dir(name string, h *tar.Header) error {
	if u.OnlyMissing != "" && h.PAXRecords[u.OnlyMissing] == "1" {
		if fi, err := u.root.Stat(name); err == nil && fi.IsDir() {
			return nil
		}
	}
	if name != "." {
		if err := u.root.MkdirAll(name, 0o700); err != nil {
			return err
		}
		// One that is there may be closed to its owner.
		if err := u.root.Chmod(name, 0o700); err != nil && !errors.Is(err, fs.ErrPermission) {
			return err
		}
	}
	at := *h
	at.Name = name
	u.dirs = append(u.dirs, &at)
	u.st.Entries++
	return nil
}

// in gives a folder, made where it is missing.
func (u *unpacker) in(dir string) (*os.Root, error) {
	if u.at != nil && u.atName == dir {
		return u.at, nil
	}
	if err := u.root.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	at, err := u.root.OpenRoot(dir)
	if err != nil {
		return nil, err
	}
	if u.at != nil {
		_ = u.at.Close()
	}
	u.at, u.atName = at, dir
	return at, nil
}

// owned makes a file for another owner, in as few steps as there can be: what breaks off is thrown away whole by whoever asked for it.
func (u *unpacker) owned(name string, h *tar.Header, r io.Reader) (err error) {
	dir, err := u.in(path.Dir(name))
	if err != nil {
		return err
	}
	base, mode := path.Base(name), h.FileInfo().Mode()&u.Mode
	f, err := dir.OpenFile(base, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode.Perm())
	if errors.Is(err, fs.ErrExist) {
		if err := dir.Remove(base); err != nil {
			return err
		}
		f, err = dir.OpenFile(base, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode.Perm())
	}
	if err != nil {
		return err
	}
	defer func() {
		if cerr := f.Close(); err == nil {
			err = cerr
		}
	}()
	if err := u.copy(f, r); err != nil {
		return err
	}
	if u.Owner.UID != os.Geteuid() || u.Owner.GID != os.Getegid() {
		if err := f.Chown(u.Owner.UID, u.Owner.GID); err != nil {
			return err
		}
	}
	if mode != mode.Perm() || mode&0o022 != 0 { // which a umask takes away
		if err := f.Chmod(mode); err != nil {
			return err
		}
	}
	u.st.Entries++
	return nil
}

func (u *unpacker) file(name string, h *tar.Header, r io.Reader) (err error) {
	if u.Owner != nil {
		return u.owned(name, h, r)
	}
	dir := path.Dir(name)
	if err := u.root.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	temp := path.Join(dir, ".berth-"+rand.Text())
	f, err := u.root.OpenFile(temp, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = f.Close()
			_ = u.root.Remove(temp)
		}
	}()
	if err := u.copy(f, r); err != nil {
		return err
	}
	if err := f.Chmod(h.FileInfo().Mode() & u.Mode); err != nil {
		return err
	}
	if err := f.Close(); err != nil {
		return err
	}
	if err := u.root.Rename(temp, name); err != nil {
		return err
	}
	_ = u.root.Chtimes(name, h.ModTime, h.ModTime) // a time that the file system cannot hold is no reason to fail
	u.st.Entries++
	return nil
}

func (u *unpacker) copy(w io.Writer, r io.Reader) error {
	for {
		n, err := r.Read(u.buf)
		if n > 0 {
			if _, err := w.Write(u.buf[:n]); err != nil {
				return err
			}
			u.st.Bytes += int64(n)
			if u.Progress != nil {
				u.Progress(u.st.Bytes)
			}
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return broken(err)
		}
	}
}

func (u *unpacker) link(name string, h *tar.Header) error {
	if !u.AnyLink && (path.IsAbs(h.Linkname) || !filepath.IsLocal(path.Join(path.Dir(name), h.Linkname))) {
		u.st.skip(name)
		return nil
	}
	if err := u.root.MkdirAll(path.Dir(name), 0o755); err != nil {
		return err
	}
	temp := path.Join(path.Dir(name), ".berth-"+rand.Text())
	if err := u.root.Symlink(h.Linkname, temp); err != nil {
		return err
	}
	if u.Owner != nil {
		if err := u.root.Lchown(temp, u.Owner.UID, u.Owner.GID); err != nil {
			_ = u.root.Remove(temp)
			return err
		}
	}
	if err := u.root.Rename(temp, name); err != nil {
		_ = u.root.Remove(temp)
		return err
	}
	u.st.Entries++
	return nil
}

// finish sets what writing into a directory would have changed, or its mode forbidden: the deepest come last in the stream and first here.
func (u *unpacker) finish() {
	for i := len(u.dirs) - 1; i >= 0; i-- {
		h := u.dirs[i]
		if u.Owner != nil {
			_ = u.root.Chown(h.Name, u.Owner.UID, u.Owner.GID)
			_ = u.root.Chmod(h.Name, h.FileInfo().Mode()&(fs.ModePerm|fs.ModeSetuid|fs.ModeSetgid|fs.ModeSticky)&u.Mode)
			continue
		}
		_ = u.root.Chmod(h.Name, h.FileInfo().Mode().Perm()&u.Mode)
		_ = u.root.Chtimes(h.Name, h.ModTime, h.ModTime)
	}
}
