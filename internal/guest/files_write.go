//go:build linux

package guest

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path"
	"path/filepath"
	"syscall"
)

// hashBytes is the largest file whose hash is answered after an append to it.
const hashBytes = 64 << 20

// maxLinks bounds the symlinks that a write goes through.
const maxLinks = 40

func (s *Server) fileWrite(w http.ResponseWriter, r *http.Request) {
	fileCall(s, w, r, WriteBytes*4/3+smallRequest, func(in *FileWrite) string { return in.User }, s.write)
}

// write writes a file whole or appends to it, and answers what is there afterwards.
func (s *Server) write(in *FileWrite) (*FileWritten, error) {
	p, err := cleanPath(in.Path)
	if err != nil {
		return nil, err
	}
	if len(in.Data) > WriteBytes {
		return nil, fail(CodeTooLarge, "one write has at most %d bytes; append the rest", WriteBytes)
	}
	if _, err := parseMode(in.Mode, 0); err != nil {
		return nil, err
	}
	target, err := s.resolve(p)
	if err != nil {
		return nil, err
	}
	defer s.locks.lock(target)()
	if err := os.MkdirAll(path.Dir(target), 0o755); err != nil {
		return nil, s.pathError(p, err)
	}
	old, err := s.writable(p, target)
	if err != nil {
		return nil, err
	}
	if err := checkMatch(p, in.IfMatch, old); err != nil {
		return nil, err
	}
	if in.Append {
		err = appendFile(target, in, old)
	} else {
		err = replaceFile(target, in.Data, in.Mode, old)
	}
	if err != nil {
		return nil, s.pathError(p, err)
	}
	out, err := s.written(p, target)
	if err != nil {
		return nil, err
	}
	out.Made = old == nil
	return out, nil
}

// resolve follows the symlinks at a path's end, so that a write changes what they name instead of replacing them.
func (s *Server) resolve(p string) (string, error) {
	target := s.host(p)
	for range maxLinks {
		fi, err := os.Lstat(target)
		if errors.Is(err, fs.ErrNotExist) || err == nil && fi.Mode().Type() != fs.ModeSymlink {
			return target, nil
		}
		if err != nil {
			return "", s.pathError(p, err)
		}
		next, err := os.Readlink(target)
		if err != nil {
			return "", s.pathError(p, err)
		}
		if path.IsAbs(next) {
			target = s.host(path.Clean(next))
		} else if target, err = joinLink(target, next); err != nil {
			return "", s.pathError(p, err)
		}
	}
	return "", s.pathError(p, syscall.ELOOP)
}

// joinLink is where a relative symlink leads: from the real directory that it is in.
func joinLink(link, next string) (string, error) {
	dir, err := filepath.EvalSymlinks(path.Dir(link))
	if err != nil {
		return "", err
	}
	return path.Join(dir, next), nil
}

// writable checks that the account may change what is there, as opening it would. It gives nil where nothing is.
func (s *Server) writable(p, target string) (*syscall.Stat_t, error) {
	fi, err := os.Lstat(target)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err == nil {
		err = regular(p, fi)
	}
	if err != nil {
		return nil, s.pathError(p, err)
	}
	f, err := os.OpenFile(target, os.O_WRONLY|syscall.O_NONBLOCK|syscall.O_NOFOLLOW|syscall.O_NOCTTY, 0)
	if errors.Is(err, syscall.ETXTBSY) { // a program that runs may be replaced, not changed
		return sysStat(fi), nil
	}
	if err != nil {
		return nil, s.pathError(p, err)
	}
	return sysStat(fi), f.Close()
}

// replaceFile writes a whole file under a temporary name beside it and renames it. Where that cannot be done and keep the owner (a directory that
// the account may not write to, another's file, a mount) the file is written in place.
func replaceFile(target string, data []byte, mode string, old *syscall.Stat_t) error {
	perm, err := parseMode(mode, 0o644)
	if err != nil {
		return err
	}
	if old != nil && mode == "" {
		perm = old.Mode & 0o7777
	}
	err = renameInto(target, data, perm, old)
	if old != nil && (errors.Is(err, syscall.EACCES) || errors.Is(err, syscall.EPERM) || errors.Is(err, syscall.EBUSY)) {
		return overwrite(target, data, perm, mode != "")
	}
	return err
}

// renameInto does the whole write with a rename. On any failure the target is as it was and nothing is left beside it.
func renameInto(target string, data []byte, perm uint32, old *syscall.Stat_t) (err error) {
	dir := path.Dir(target)
	var b [8]byte
	_, _ = rand.Read(b[:])
	temp := path.Join(dir, ".berth-"+hex.EncodeToString(b[:])+".tmp")
	f, err := os.OpenFile(temp, os.O_WRONLY|os.O_CREATE|os.O_EXCL|syscall.O_NOFOLLOW, 0o600)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = f.Close()
			_ = os.Remove(temp)
		}
	}()
	if _, err = f.Write(data); err != nil {
		return err
	}
	if err = keepOwner(f, old); err != nil {
		return err
	}
	if err = syscall.Fchmod(int(f.Fd()), perm); err != nil {
		return err
	}
	if err = f.Sync(); err != nil {
		return err
	}
	if err = f.Close(); err != nil {
		return err
	}
	if err = os.Rename(temp, target); err != nil {
		return err
	}
	syncDir(dir)
	return nil
}

// keepOwner gives a new file the owner and group of the one that it replaces.
func keepOwner(f *os.File, old *syscall.Stat_t) error {
	if old == nil {
		return nil
	}
	fi, err := f.Stat()
	if err != nil {
		return err
	}
	if st := sysStat(fi); st.Uid == old.Uid && st.Gid == old.Gid {
		return nil
	}
	return f.Chown(int(old.Uid), int(old.Gid))
}

// overwrite writes a file in place.
func overwrite(target string, data []byte, perm uint32, chmod bool) error {
	f, err := os.OpenFile(target, os.O_WRONLY|os.O_TRUNC|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if err == nil && chmod {
		err = syscall.Fchmod(int(f.Fd()), perm)
	}
	if err == nil {
		err = f.Sync()
	}
	return errors.Join(err, f.Close())
}

// appendFile adds to the end of a file. Where the disk fills up, what was added is taken away again.
func appendFile(target string, in *FileWrite, old *syscall.Stat_t) error {
	perm, err := parseMode(in.Mode, 0o644)
	if err != nil {
		return err
	}
	f, err := os.OpenFile(target, os.O_WRONLY|os.O_APPEND|os.O_CREATE|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0o644)
	if err != nil {
		return err
	}
	if old == nil || in.Mode != "" {
		err = syscall.Fchmod(int(f.Fd()), perm)
	}
	before, statErr := f.Stat()
	if err = errors.Join(err, statErr); err == nil {
		if _, err = f.Write(in.Data); err != nil {
			_ = f.Truncate(before.Size())
		} else {
			err = f.Sync()
		}
	}
	return errors.Join(err, f.Close())
}

// syncDir makes a rename last. A file system that cannot says nothing of use.
func syncDir(dir string) {
	if d, err := os.Open(dir); err == nil {
		_ = d.Sync()
		_ = d.Close()
	}
}

// written reads back what is there now.
func (s *Server) written(p, target string) (*FileWritten, error) {
	f, err := os.OpenFile(target, os.O_RDONLY|syscall.O_NONBLOCK|syscall.O_NOFOLLOW, 0)
	if errors.Is(err, syscall.EACCES) { // a mode that lets its owner write only
		info, err := s.describe(p)
		return &FileWritten{Info: info}, err
	}
	if err != nil {
		return nil, s.pathError(p, err)
	}
	defer f.Close()
	fi, err := f.Stat()
	if err != nil {
		return nil, s.pathError(p, err)
	}
	out := &FileWritten{Info: s.info(p, fi)}
	if fi.Size() > hashBytes {
		return out, nil
	}
	h := sha256.New()
	if _, err := io.Copy(h, io.LimitReader(f, hashBytes)); err != nil {
		return nil, s.pathError(p, err)
	}
	out.SHA256 = hex.EncodeToString(h.Sum(nil))
	return out, nil
}
