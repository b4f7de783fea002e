//go:build linux

package guest

import (
	"errors"
	"io"
	"io/fs"
	"net/http"
	"net/url"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/berthrun/berth/internal/tarball"
)

// getTar answers with a tar stream of a folder, made with the account's rights.
func (s *Server) getTar(w http.ResponseWriter, r *http.Request, q url.Values) {
	begun := false
	err := s.asNamed(q.Get("user"), func() error {
		p, err := cleanPath(q.Get("path"))
		if err != nil {
			return err
		}
		fi, err := os.Stat(s.host(p))
		if err != nil {
			return s.pathError(p, err)
		}
		if !fi.IsDir() {
			return fail(CodeNotDirectory, "%s is not a directory", clip(p, 512))
		}
		// It must be one that can be read, before anything is answered.
		d, err := os.Open(s.host(p))
		if err != nil {
			return s.pathError(p, err)
		}
		_ = d.Close()
		setContent(w, ContentInfo{Info: s.info(p, fi), Length: -1})
		w.Header().Set("Content-Type", "application/x-tar")
		begun = true
		if r.Method == http.MethodHead {
			return nil
		}
		_, err = tarball.Pack(touching{w, s}, s.host(p)+"/.", nil)
		return err
	})
	switch {
	case err == nil:
	case begun:
		s.cfg.Log.Warn("a folder could not be packed", "error", err)
		panic(http.ErrAbortHandler)
	default:
		answer(w, nil, err)
	}
}

// touching marks activity with every write.
type touching struct {
	io.Writer
	s *Server
}

// Write implements io.Writer.
func (t touching) Write(p []byte) (int, error) {
	t.s.touch()
	return t.Writer.Write(p)
}

// onlyMissing marks a folder in a tar stream that is left as it is where it is there. It has this name in internal/template/inputs too.
const onlyMissing = "BERTH.onlymissing"

// modes are the bits of a mode that an unpacked file keeps.
const modes = fs.ModePerm | fs.ModeSetuid | fs.ModeSetgid | fs.ModeSticky

// makeOwned makes a folder and what is missing above it, and gives what it made to an owner where there is one.
func makeOwned(dir string, o *tarball.Owner) error {
	var missing []string
	for at := dir; o != nil; at = filepath.Dir(at) {
		if _, err := os.Stat(at); !os.IsNotExist(err) {
			break
		}
		missing = append(missing, at)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	for _, at := range missing {
		if err := os.Lchown(at, o.UID, o.GID); err != nil {
			return err
		}
	}
	return nil
}

// putTar unpacks a tar stream into a folder, made with the account's rights where it is missing.
func (s *Server) putTar(r *http.Request, q url.Values) (*ContentWritten, error) {
	out := &ContentWritten{}
	err := s.asNamed(q.Get("user"), func() error {
		p, err := cleanPath(q.Get("path"))
		if err != nil {
			return err
		}
		dir := s.host(p)
		_, serr := os.Stat(dir)
		o := tarball.Options{Mode: 0o7777, AnyLink: true, Progress: func(int64) { s.touch() }}
		if q.Has("owner") {
			a, err := s.users.lookup(q.Get("owner"))
			if err != nil {
				return err
			}
			o.Mode, o.Owner, o.OnlyMissing = modes, &tarball.Owner{UID: int(a.uid), GID: int(a.gid)}, onlyMissing
		}
		if err := makeOwned(dir, o.Owner); err != nil {
			return s.pathError(p, err)
		}
		st, err := tarball.Unpack(r.Body, dir, o)
		if e, ok := errors.AsType[*tarball.Error](err); ok {
			return fail(CodeInvalid, "%s", e.Message)
		} else if err != nil {
			return s.pathError(p, err)
		}
		if d, err := os.Open(dir); err == nil {
			err = unix.Syncfs(int(d.Fd()))
			_ = d.Close()
			if err != nil {
				return s.pathError(p, err)
			}
		}
		fi, err := os.Stat(dir)
		if err != nil {
			return s.pathError(p, err)
		}
		out.Bytes, out.Entries, out.Made = st.Bytes, st.Entries, os.IsNotExist(serr)
		out.Info = s.info(p, fi)
		return nil
	})
	if err != nil {
		return nil, err
	}
	return out, nil
}
