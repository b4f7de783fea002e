package inputs

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
)

// PackOptions say how a folder becomes an archive.
type PackOptions struct {
	Ignore   Ignore
	Progress func(entries int, bytes int64) // what went so far; may be nil
}

// Packed counts what went.
type Packed struct {
	Entries int
	Bytes   int64    // of files
	Skipped []string // the first hundred of what is passed over: devices, pipes, sockets
}

// Pack writes a folder as a plain tar archive that Read takes, without what is ignored. The same files make the same bytes: they go in the order of their
// names, without owners and times. Symlinks are kept and not followed.
func Pack(w io.Writer, dir string, o PackOptions) (Packed, error) {
	if fi, err := os.Stat(dir); err != nil {
		return Packed{}, err
	} else if !fi.IsDir() {
		return Packed{}, fmt.Errorf("%s is not a folder", dir)
	}
	k := &packer{PackOptions: o, dir: dir, t: tar.NewWriter(w), buf: make([]byte, 256<<10)}
	if err := k.folder(".", within{}); err != nil {
		return k.Packed, err
	}
	return k.Packed, k.t.Close()
}

type packer struct {
	PackOptions
	Packed
	dir     string
	t       *tar.Writer
	pending []*tar.Header // folders that are left out, until something in them is not
	buf     []byte
}

func (k *packer) folder(rel string, up within) error {
	list, err := os.ReadDir(filepath.Join(k.dir, filepath.FromSlash(rel))) // sorted by name
	if err != nil {
		return err
	}
	for _, d := range list {
		if err := k.entry(path.Join(rel, d.Name()), up); err != nil {
			return err
		}
	}
	return nil
}

func (k *packer) entry(name string, up within) error {
	out, here, err := k.Ignore.match(name, up)
	if err != nil {
		return err
	}
	file := filepath.Join(k.dir, filepath.FromSlash(name))
	fi, err := os.Lstat(file)
	if errors.Is(err, fs.ErrNotExist) { // removed meanwhile
		return nil
	}
	if err != nil {
		return err
	}
	if out && (!fi.IsDir() || !k.Ignore.into(name)) {
		return nil
	}
	h := &tar.Header{Name: name, Mode: bits(fi.Mode()), Format: tar.FormatPAX}
	switch fi.Mode().Type() {
	case fs.ModeDir:
		h.Typeflag, h.Name = tar.TypeDir, name+"/"
		return k.dirEntry(h, name, out, here)
	case fs.ModeSymlink:
		h.Typeflag, h.Mode = tar.TypeSymlink, 0o777
		if h.Linkname, err = os.Readlink(file); err != nil {
			return err
		}
		return k.header(h)
	case 0:
		return k.file(h, file)
	}
	if len(k.Skipped) < 100 {
		k.Skipped = append(k.Skipped, name)
	}
	return nil
}

// dirEntry writes a folder and what is in it; one that is left out only if something in it is not.
func (k *packer) dirEntry(h *tar.Header, name string, out bool, here within) error {
	if !out {
		if err := k.header(h); err != nil {
			return err
		}
		return k.folder(name, here)
	}
	depth := len(k.pending)
	k.pending = append(k.pending, h)
	err := k.folder(name, here)
	k.pending = k.pending[:min(depth, len(k.pending))]
	return err
}

func (k *packer) header(h *tar.Header) error {
	above := k.pending
	k.pending = nil
	for _, a := range append(above, h) {
		if err := k.t.WriteHeader(a); err != nil {
			return fmt.Errorf("pack %q: %w", short(a.Name), err)
		}
		k.Entries++
	}
	k.tell()
	return nil
}

func (k *packer) tell() {
	if k.Progress != nil {
		k.Progress(k.Entries, k.Bytes)
	}
}

func (k *packer) file(h *tar.Header, file string) error {
	f, err := os.Open(file)
	if err != nil {
		return err
	}
	defer f.Close()
	fi, err := f.Stat()
	if err != nil {
		return err
	}
	if !fi.Mode().IsRegular() { // it was a moment ago
		return fmt.Errorf("pack %s: it changed while it was read", file)
	}
	h.Typeflag, h.Size = tar.TypeReg, fi.Size()
	if err := k.header(h); err != nil {
		return err
	}
	n, err := io.CopyBuffer(k.t, onlyReader{io.LimitReader(f, h.Size)}, k.buf)
	k.Bytes += n
	k.tell()
	if err == nil && n < h.Size {
		err = fmt.Errorf("pack %s: it became shorter while it was read", file)
	}
	return err
}

// bits are the permission bits as tar has them.
func bits(m fs.FileMode) int64 {
	out := int64(m.Perm())
	for _, b := range []struct {
		mode fs.FileMode
		bit  int64
	}{{fs.ModeSetuid, 0o4000}, {fs.ModeSetgid, 0o2000}, {fs.ModeSticky, 0o1000}} {
		if m&b.mode != 0 {
			out |= b.bit
		}
	}
	return out
}
