//go:build linux

package guest

import (
	"fmt"
	"hash/fnv"
	"io/fs"
	"net/http"
	"os"
	"path"
	"strconv"
	"sync"
	"syscall"
	"time"
)

// fileCall reads a request, runs it as the account that it names, and answers.
func fileCall[In, Out any](s *Server, w http.ResponseWriter, r *http.Request, limit int64, who func(*In) string, do func(*In) (Out, error)) {
	var in In
	if err := decode(w, r, limit, &in); err != nil {
		answer(w, nil, err)
		return
	}
	s.touch()
	var out Out
	err := s.asNamed(who(&in), func() (err error) {
		out, err = do(&in)
		return err
	})
	answer(w, out, err)
}

// smallRequest bounds the requests that carry paths only.
const smallRequest = 64 << 10

// asNamed runs f as the account of a name.
func (s *Server) asNamed(name string, f func() error) error {
	a, err := s.users.lookup(name)
	if err != nil {
		return err
	}
	return s.as(a, f)
}

func (s *Server) fileStat(w http.ResponseWriter, r *http.Request) {
	s.touch()
	q := r.URL.Query()
	var info FileInfo
	err := s.asNamed(q.Get("user"), func() (err error) {
		info, err = s.stat(q.Get("path"))
		return err
	})
	answer(w, info, err)
}

// stat describes a path without following a symlink at its end.
func (s *Server) stat(p string) (FileInfo, error) {
	p, err := cleanPath(p)
	if err != nil {
		return FileInfo{}, err
	}
	return s.describe(p)
}

// describe is stat of a cleaned path.
func (s *Server) describe(p string) (FileInfo, error) {
	fi, err := os.Lstat(s.host(p))
	if err != nil {
		return FileInfo{}, s.pathError(p, err)
	}
	return s.info(p, fi), nil
}

// info translates what the file system says of a path.
func (s *Server) info(p string, fi fs.FileInfo) FileInfo {
	st := fi.Sys().(*syscall.Stat_t)
	owner, group := s.users.names(st.Uid, st.Gid)
	info := FileInfo{
		Name: path.Base(p), Path: p, Type: "other", Size: fi.Size(), Mode: fmt.Sprintf("%04o", st.Mode&0o7777),
		User: owner, Group: group, ModifiedAt: inRange(fi.ModTime()), ETag: etag(st),
	}
	switch fi.Mode().Type() {
	case 0:
		info.Type = "file"
	case fs.ModeDir:
		info.Type = "directory"
	case fs.ModeSymlink:
		info.Type = "symlink"
		info.Target, _ = os.Readlink(s.host(p))
	}
	return info
}

// inRange is a time that JSON can hold: a file may claim any.
func inRange(t time.Time) time.Time {
	t = t.UTC()
	switch {
	case t.Year() < 1:
		return time.Date(1, 1, 1, 0, 0, 0, 0, time.UTC)
	case t.Year() > 9999:
		return time.Date(9999, 12, 31, 23, 59, 59, 0, time.UTC)
	}
	return t
}

// etag changes whenever a file's contents may have: it is made of which file it is, its size and its times.
func etag(st *syscall.Stat_t) string {
	h := fnv.New128a()
	for _, n := range []int64{int64(st.Ino), st.Size, st.Mtim.Nano(), st.Ctim.Nano()} {
		_, _ = h.Write(strconv.AppendInt(nil, n, 36))
		_, _ = h.Write([]byte{'.'})
	}
	return fmt.Sprintf("%x", h.Sum(nil))
}

// pathError names the path as the caller knows it.
func (s *Server) pathError(p string, err error) error {
	if _, ok := err.(*failure); ok {
		return err
	}
	f := failureOf(err)
	switch f.code {
	case CodeNotFound:
		return fail(f.code, "there is no %s", clip(p, 512))
	case CodeDenied:
		return fail(f.code, "permission denied: %s", clip(p, 512))
	case CodeDiskFull:
		return fail(f.code, "the disk is full: %s", clip(p, 512))
	}
	cause := err
	if pe, ok := err.(*fs.PathError); ok {
		cause = pe.Err
	} else if le, ok := err.(*os.LinkError); ok {
		cause = le.Err
	}
	return fail(f.code, "%s: %s", clip(p, 512), cause)
}

// parseMode reads an octal mode, or gives the default for an empty one.
func parseMode(mode string, def fs.FileMode) (uint32, error) {
	if mode == "" {
		return uint32(def), nil
	}
	n, err := strconv.ParseUint(mode, 8, 32)
	if err != nil || n > 0o7777 {
		return 0, fail(CodeInvalid, "%q is not an octal mode such as 0644", clip(mode, 16))
	}
	return uint32(n), nil
}

// checkMatch compares an etag that the caller expects.
func checkMatch(p, want string, st *syscall.Stat_t) error {
	if want == "" {
		return nil
	}
	if st == nil {
		return fail(CodeChanged, "%s is not there any more", clip(p, 512))
	}
	if etag(st) != want {
		return fail(CodeChanged, "%s has changed since it was read", clip(p, 512))
	}
	return nil
}

// locks orders the calls that look at a file and then change it. A path shares its lock with some others.
type locks struct {
	stripes [64]sync.Mutex
}

func (l *locks) lock(p string) func() {
	h := fnv.New32a()
	_, _ = h.Write([]byte(p))
	m := &l.stripes[h.Sum32()%uint32(len(l.stripes))]
	m.Lock()
	return m.Unlock
}

// openRegular opens a file for reading and refuses everything that is not one, without waiting for the writer of a pipe.
func (s *Server) openRegular(p string) (*os.File, fs.FileInfo, error) {
	if fi, err := os.Stat(s.host(p)); err != nil {
		return nil, nil, s.pathError(p, err)
	} else if err := regular(p, fi); err != nil {
		return nil, nil, err
	}
	f, err := os.OpenFile(s.host(p), os.O_RDONLY|syscall.O_NONBLOCK|syscall.O_NOCTTY, 0)
	if err != nil {
		return nil, nil, s.pathError(p, err)
	}
	fi, err := f.Stat()
	if err == nil {
		err = regular(p, fi)
	}
	if err != nil {
		_ = f.Close()
		return nil, nil, s.pathError(p, err)
	}
	return f, fi, nil
}

func regular(p string, fi fs.FileInfo) error {
	switch {
	case fi.Mode().IsRegular():
		return nil
	case fi.IsDir():
		return fail(CodeIsDirectory, "%s is a directory", clip(p, 512))
	}
	return fail(CodeInvalid, "%s is not a regular file", clip(p, 512))
}

// sysStat is the system's record behind a FileInfo.
func sysStat(fi fs.FileInfo) *syscall.Stat_t { return fi.Sys().(*syscall.Stat_t) }
