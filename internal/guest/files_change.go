//go:build linux

package guest

import (
	"errors"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

func (s *Server) fileMkdir(w http.ResponseWriter, r *http.Request) {
	fileCall(s, w, r, smallRequest, func(in *FileMkdir) string { return in.User }, s.mkdir)
}

// mkdir makes a directory and its parents.
func (s *Server) mkdir(in *FileMkdir) (*FileInfo, error) {
	p, err := cleanPath(in.Path)
	if err != nil {
		return nil, err
	}
	perm, err := parseMode(in.Mode, 0o755)
	if err != nil {
		return nil, err
	}
	h := s.host(p)
	if fi, err := os.Stat(h); err == nil {
		if !fi.IsDir() {
			return nil, fail(CodeExists, "%s is there and is not a directory", clip(p, 512))
		}
		info := s.info(p, fi)
		return &info, nil
	}
	if err := os.MkdirAll(path.Dir(h), 0o755); err != nil {
		return nil, s.pathError(p, err)
	}
	if err := os.Mkdir(h, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, s.pathError(p, err)
	} else if err == nil {
		if err := syscall.Chmod(h, perm); err != nil {
			return nil, s.pathError(p, err)
		}
	}
	info, err := s.describe(p)
	return &info, err
}

func (s *Server) fileMove(w http.ResponseWriter, r *http.Request) {
	fileCall(s, w, r, smallRequest, func(in *FileMove) string { return in.User }, s.move)
}

// move renames, and copies where the file systems differ.
func (s *Server) move(in *FileMove) (*FileInfo, error) {
	from, err := cleanPath(in.From)
	if err != nil {
		return nil, err
	}
	to, err := cleanPath(in.To)
	if err != nil {
		return nil, err
	}
	if from == "/" || below(to, from) {
		return nil, fail(CodeInvalid, "%s cannot be moved into itself", clip(from, 512))
	}
	defer s.locks.lock(s.host(to))()
	if _, err := os.Lstat(s.host(from)); err != nil {
		return nil, s.pathError(from, err)
	}
	if err := os.MkdirAll(path.Dir(s.host(to)), 0o755); err != nil {
		return nil, s.pathError(to, err)
	}
	err = rename(s.host(from), s.host(to), in.Overwrite)
	if errors.Is(err, syscall.EXDEV) {
		err = moveAcross(s.host(from), s.host(to), in.Overwrite)
	}
	if errors.Is(err, fs.ErrExist) && !errors.Is(err, syscall.ENOTEMPTY) {
		return nil, fail(CodeExists, "%s is already there", clip(to, 512))
	}
	if err != nil {
		return nil, s.pathError(to, err)
	}
	syncDir(path.Dir(s.host(to)))
	info, err := s.describe(to)
	return &info, err
}

// rename renames in one step, which does not touch an existing target unless that is wanted.
func rename(from, to string, overwrite bool) error {
	flags := uint(unix.RENAME_NOREPLACE)
	if overwrite {
		flags = 0
	}
	err := unix.Renameat2(unix.AT_FDCWD, from, unix.AT_FDCWD, to, flags)
	if err == unix.EINVAL && !overwrite { // a file system that cannot: look first
		if _, statErr := os.Lstat(to); statErr == nil {
			return unix.EEXIST
		}
		return unix.Renameat2(unix.AT_FDCWD, from, unix.AT_FDCWD, to, 0)
	}
	return err
}

// moveAcross copies to a temporary name beside the target, renames that, and removes the source.
func moveAcross(from, to string, overwrite bool) error {
	temp := path.Join(path.Dir(to), ".berth-"+randomID()+".tmp")
	err := copyTree(from, temp)
	if err == nil {
		err = rename(temp, to, overwrite)
	}
	if err != nil {
		_ = os.RemoveAll(temp)
		return err
	}
	return os.RemoveAll(from)
}

// copyTree copies files, directories and symlinks with modes, times and, where the account may, owners.
func copyTree(from, to string) error {
	type times struct {
		path string
		info fs.FileInfo
	}
	var dirs []times
	err := filepath.WalkDir(from, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		fi, err := d.Info()
		if err != nil {
			return err
		}
		dest := to + strings.TrimPrefix(p, from)
		switch fi.Mode().Type() {
		case fs.ModeDir:
			dirs = append(dirs, times{dest, fi})
			return os.Mkdir(dest, 0o700)
		case fs.ModeSymlink:
			target, err := os.Readlink(p)
			if err != nil {
				return err
			}
			return os.Symlink(target, dest)
		case 0:
			if err := copyFile(p, dest); err != nil {
				return err
			}
			return dress(dest, fi)
		}
		return fail(CodeInvalid, "%s is not a file, a directory or a symlink and cannot be moved to another file system", clip(p, 512))
	})
	for i := len(dirs) - 1; i >= 0 && err == nil; i-- {
		err = dress(dirs[i].path, dirs[i].info)
	}
	return err
}

func copyFile(from, to string) error {
	in, err := os.OpenFile(from, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	if err == nil {
		err = out.Sync()
	}
	return errors.Join(err, out.Close())
}

// dress gives a copy what its original has.
func dress(p string, fi fs.FileInfo) error {
	st := sysStat(fi)
	_ = os.Lchown(p, int(st.Uid), int(st.Gid))
	if err := syscall.Chmod(p, st.Mode&0o7777); err != nil {
		return err
	}
	return os.Chtimes(p, fi.ModTime(), fi.ModTime())
}

func (s *Server) fileRemove(w http.ResponseWriter, r *http.Request) {
	fileCall(s, w, r, smallRequest, func(in *FileRemove) string { return in.User }, s.remove)
}

// remove removes a path, and never what a symlink at its end names.
func (s *Server) remove(in *FileRemove) (*FileRemoved, error) {
	p, err := cleanPath(in.Path)
	if err != nil {
		return nil, err
	}
	if p == "/" {
		return nil, fail(CodeInvalid, "the root directory cannot be removed")
	}
	h := s.host(p)
	if _, err := os.Lstat(h); errors.Is(err, fs.ErrNotExist) {
		return &FileRemoved{}, nil
	} else if err != nil {
		return nil, s.pathError(p, err)
	}
	if in.Recursive {
		err = os.RemoveAll(h)
	} else {
		err = os.Remove(h)
	}
	if errors.Is(err, syscall.ENOTEMPTY) {
		return nil, fail(CodeNotEmpty, "%s is not empty", clip(p, 512))
	}
	if err != nil {
		return nil, s.pathError(p, err)
	}
	return &FileRemoved{Removed: true}, nil
}

func (s *Server) fileEdit(w http.ResponseWriter, r *http.Request) {
	fileCall(s, w, r, 2*WriteBytes*4/3+smallRequest, func(in *FileEdit) string { return in.User }, s.edit)
}

// edit replaces exact text in a file of at most WriteBytes.
func (s *Server) edit(in *FileEdit) (*FileEdited, error) {
	p, err := cleanPath(in.Path)
	if err != nil {
		return nil, err
	}
	if in.Old == "" || in.Old == in.New || in.Expect < 0 {
		return nil, fail(CodeInvalid, "an edit needs an old text, a different new one, and an expected count of at least 1")
	}
	target, err := s.resolve(p)
	if err != nil {
		return nil, err
	}
	defer s.locks.lock(target)()
	old, err := s.writable(p, target)
	if err != nil {
		return nil, err
	}
	if old == nil {
		return nil, fail(CodeNotFound, "there is no %s", clip(p, 512))
	}
	if err := checkMatch(p, in.IfMatch, old); err != nil {
		return nil, err
	}
	text, err := s.text(p)
	if err != nil {
		return nil, err
	}
	want, found := max(in.Expect, 1), strings.Count(text, in.Old)
	switch {
	case found == 0:
		return nil, fail(CodeNoMatch, "the text does not occur in %s", clip(p, 512))
	case found != want:
		return nil, fail(CodeAmbiguous, "the text occurs %d times in %s, not %d", found, clip(p, 512), want)
	}
	text = strings.ReplaceAll(text, in.Old, in.New)
	if len(text) > WriteBytes {
		return nil, fail(CodeTooLarge, "the file would be larger than %d bytes", WriteBytes)
	}
	if err := replaceFile(target, []byte(text), "", old); err != nil {
		return nil, s.pathError(p, err)
	}
	written, err := s.written(p, target)
	if err != nil {
		return nil, err
	}
	return &FileEdited{FileWritten: *written, Replaced: found}, nil
}

// text reads a whole file of at most WriteBytes.
func (s *Server) text(p string) (string, error) {
	f, _, err := s.openRegular(p)
	if err != nil {
		return "", err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, WriteBytes+1))
	if err != nil {
		return "", s.pathError(p, err)
	}
	if len(b) > WriteBytes {
		return "", fail(CodeTooLarge, "a file of more than %d bytes cannot be edited; rewrite it with a command", WriteBytes)
	}
	return string(b), nil
}
