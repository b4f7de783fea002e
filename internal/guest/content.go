//go:build linux

package guest

import (
	"crypto/rand"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/url"
	"os"
	"path"
	"strconv"
	"sync"
	"syscall"
)

const (
	// contentBuffer is how much of a content is received at once.
	contentBuffer = 1 << 20
	// contentSent is how much of one is sent at once: what gVisor's kernel reads of a file in one piece.
	contentSent = 1 << 20
	// syncAhead is how much of an upload is written until the disk is told to begin.
	syncAhead = 16 << 20
)

// getContent answers with a file's bytes.
func (s *Server) getContent(w http.ResponseWriter, r *http.Request) {
	s.touch()
	q := r.URL.Query()
	offset, length, err := contentRange(q)
	if err != nil {
		answer(w, nil, err)
		return
	}
	if q.Get("tar") == "true" {
		s.getTar(w, r, q)
		return
	}
	var f *os.File
	var info FileInfo
	err = s.asNamed(q.Get("user"), func() error {
		p, err := cleanPath(q.Get("path"))
		if err != nil {
			return err
		}
		file, fi, err := s.openRegular(p)
		if err != nil {
			return err
		}
		f, info = file, s.info(p, fi)
		return nil
	})
	if err != nil {
		answer(w, nil, err)
		return
	}
	defer f.Close()
	c := ContentInfo{Info: info, Offset: offset}
	if offset < 0 {
		c.Offset = max(info.Size+offset, 0)
	}
	c.Length = max(info.Size-c.Offset, 0)
	if length >= 0 {
		c.Length = min(c.Length, length)
	}
	setContent(w, c)
	w.Header().Set("Content-Length", strconv.FormatInt(c.Length, 10))
	if r.Method == http.MethodHead || c.Length == 0 {
		return
	}
	if conn := s.takeOver(w); conn != nil {
		defer s.letGo(conn)
		if conn.answer(http.StatusOK, w.Header(), nil) == nil {
			_ = s.sendBytes(conn, f, c) // the host sees that the body is short
		}
	} else if err := s.giveBytes(w, f, c.Offset, c.Length); err != nil {
		panic(http.ErrAbortHandler) // the file was cut, or cannot be read: the host sees that the body is short
	}
	s.touch()
}

// sendBytes sends a part of a file without it passing through here, where the kernel can do that.
func (s *Server) sendBytes(conn *contentConn, f *os.File, c ContentInfo) error {
	for c.Length > 0 {
		n, err := conn.send(f, c.Offset, c.Length)
		if errors.Is(err, errors.ErrUnsupported) {
			return s.giveBytes(conn, f, c.Offset, c.Length)
		}
		if err != nil {
			return err
		}
		c.Offset, c.Length = c.Offset+int64(n), c.Length-int64(n)
		s.touch()
	}
	return nil
}

func (s *Server) giveBytes(w io.Writer, f *os.File, offset, length int64) error {
	if _, err := f.Seek(offset, io.SeekStart); err != nil {
		return err
	}
	buf := make([]byte, min(length, contentBuffer))
	for length > 0 {
		n, err := f.Read(buf[:min(length, int64(len(buf)))])
		if n > 0 {
			if _, err := w.Write(buf[:n]); err != nil {
				return err
			}
			length -= int64(n)
			s.touch()
			continue
		}
		if err == nil {
			err = io.ErrNoProgress
		}
		return err
	}
	return nil
}

func setContent(w http.ResponseWriter, c ContentInfo) {
	b, err := json.Marshal(c)
	if err != nil {
		panic(err) // times are in range
	}
	w.Header().Set(ContentHeader, base64.StdEncoding.EncodeToString(b))
	w.Header().Set("Content-Type", "application/octet-stream")
}

// contentRange reads offset and length; a length of -1 is to the end.
func contentRange(q url.Values) (offset, length int64, err error) {
	length = -1
	for name, into := range map[string]*int64{"offset": &offset, "length": &length} {
		if v := q.Get(name); v != "" {
			if *into, err = strconv.ParseInt(v, 10, 64); err != nil || name == "length" && *into < 0 {
				return 0, 0, fail(CodeInvalid, "%s is not a number of bytes", name)
			}
		}
	}
	return offset, length, nil
}

// putContent makes a file of the request's body.
func (s *Server) putContent(w http.ResponseWriter, r *http.Request) {
	s.touch()
	q := r.URL.Query()
	if q.Get("tar") == "true" {
		out, err := s.putTar(r, q)
		answer(w, out, err)
		return
	}
	in := &incoming{mode: q.Get("mode"), ifMatch: q.Get("ifMatch")}
	if err := s.beginReceive(in, q); err != nil {
		answer(w, nil, err)
		return
	}
	var conn *contentConn
	if r.ContentLength > 0 { // else the HTTP server finds the end
		conn = s.takeOver(w)
	}
	if conn == nil {
		out, err := s.receive(in, q, r.Body, r.ContentLength)
		answer(w, out, err)
		return
	}
	defer s.letGo(conn)
	out, err := s.receive(in, q, conn, r.ContentLength)
	rec := &recorder{header: http.Header{}}
	answer(rec, out, err)
	if conn.answer(rec.status, rec.header, rec.body.Bytes()) == nil && err != nil {
		conn.drain()
	}
}

// incoming is a file that is being received.
type incoming struct {
	path, target string
	mode         string
	ifMatch      string
	temp         string // its name; empty where no directory beside the target takes it
	file         *os.File
	made         bool
	dirs         []string // that were made for it, the deepest first
}

// beginReceive checks, as the account, what can be checked before the bytes are there, and opens the temporary file.
func (s *Server) beginReceive(in *incoming, q url.Values) error {
	return s.asNamed(q.Get("user"), func() error {
		err := s.prepareReceive(in, q.Get("path"))
		if err != nil {
			_ = in.undo()
		}
		return err
	})
}

// receive takes a body into the temporary file, and puts that in the target's place once it is whole. A length below 0 is not known.
func (s *Server) receive(in *incoming, q url.Values, body io.Reader, length int64) (*ContentWritten, error) {
	defer s.touch()
	user := q.Get("user")
	placed := false
	defer func() {
		_ = in.file.Close()
		if !placed {
			_ = s.asNamed(user, in.undo)
		}
	}()
	n, err := s.takeBytes(in.file, body, length)
	if err != nil {
		return nil, s.pathError(in.path, err)
	}
	out := &ContentWritten{Bytes: n}
	err = s.asNamed(user, func() error {
		defer s.locks.lock(in.target)()
		if err := s.place(in); err != nil {
			return s.pathError(in.path, err)
		}
		placed = true
		info, err := s.describeTarget(in)
		out.FileWritten = FileWritten{Info: info, Made: in.made}
		return err
	})
	if err != nil {
		return nil, err
	}
	return out, nil
}

// prepareReceive checks all that can be checked before the bytes are there, and opens the temporary file.
func (s *Server) prepareReceive(in *incoming, name string) error {
	p, err := cleanPath(name)
	if err != nil {
		return err
	}
	if _, err := parseMode(in.mode, 0); err != nil {
		return err
	}
	in.path = p
	if in.target, err = s.resolve(p); err != nil {
		return err
	}
	old, err := s.writable(p, in.target)
	if err != nil {
		return err
	}
	if err := checkMatch(p, in.ifMatch, old); err != nil {
		return err
	}
	if old == nil {
		for dir := path.Dir(in.target); dir != "/" && !isDir(dir); dir = path.Dir(dir) {
			in.dirs = append(in.dirs, dir)
		}
		if err := os.MkdirAll(path.Dir(in.target), 0o755); err != nil {
			return s.pathError(p, err)
		}
	}
	if in.file, in.temp, err = tempBeside(in.target); err == nil {
		return nil
	}
	if old == nil || !refusesRename(err) {
		return s.pathError(p, err)
	}
	// The account may change the file but put nothing beside it: what is received waits elsewhere.
	f, err := os.CreateTemp(s.host("/tmp"), ".berth-*.tmp")
	if err != nil {
		return s.pathError(p, err)
	}
	in.file = f
	return os.Remove(f.Name())
}

// undo removes what was made for a file that did not come.
func (in *incoming) undo() error {
	if in.temp != "" {
		_ = os.Remove(in.temp)
	}
	for _, dir := range in.dirs {
		if os.Remove(dir) != nil {
			break // something else is in it now
		}
	}
	return nil
}

func refusesRename(err error) bool {
	return errors.Is(err, syscall.EACCES) || errors.Is(err, syscall.EPERM) || errors.Is(err, syscall.EBUSY)
}

func tempBeside(target string) (*os.File, string, error) {
	var b [8]byte
	_, _ = rand.Read(b[:])
	temp := path.Join(path.Dir(target), ".berth-"+hex.EncodeToString(b[:])+".tmp")
	f, err := os.OpenFile(temp, os.O_RDWR|os.O_CREATE|os.O_EXCL|syscall.O_NOFOLLOW, 0o600)
	return f, temp, err
}

// place puts what was received in the target's place. The target may have changed meanwhile: all is checked again.
func (s *Server) place(in *incoming) error {
	old, err := s.writable(in.path, in.target)
	if err != nil {
		return err
	}
	if err := checkMatch(in.path, in.ifMatch, old); err != nil {
		return err
	}
	perm, err := parseMode(in.mode, 0o644)
	if err != nil {
		return err
	}
	if old != nil && in.mode == "" {
		perm = old.Mode & 0o7777
	}
	in.made = old == nil
	err = syscall.EACCES
	if in.temp != "" {
		err = s.rename(in, perm, old)
	}
	if err != nil && old != nil && refusesRename(err) {
		return pour(in, perm)
	}
	return err
}

func (s *Server) rename(in *incoming, perm uint32, old *syscall.Stat_t) error {
	if err := keepOwner(in.file, old); err != nil {
		return err
	}
	if err := syscall.Fchmod(int(in.file.Fd()), perm); err != nil {
		return err
	}
	if err := in.file.Sync(); err != nil {
		return err
	}
	if err := os.Rename(in.temp, in.target); err != nil {
		return err
	}
	syncDir(path.Dir(in.target))
	return nil
}

// pour writes what was received into the file that is there.
func pour(in *incoming, perm uint32) error {
	if _, err := in.file.Seek(0, io.SeekStart); err != nil {
		return err
	}
	f, err := os.OpenFile(in.target, os.O_WRONLY|os.O_TRUNC|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	if err != nil {
		return err
	}
	_, err = io.Copy(f, in.file)
	if err == nil && in.mode != "" {
		err = syscall.Fchmod(int(f.Fd()), perm)
	}
	if err == nil {
		err = f.Sync()
	}
	if in.temp != "" {
		_ = os.Remove(in.temp)
	}
	return errors.Join(err, f.Close())
}

// describeTarget describes the file that was written to under the path that was given.
func (s *Server) describeTarget(in *incoming) (FileInfo, error) {
	fi, err := os.Lstat(in.target)
	if err != nil {
		return FileInfo{}, s.pathError(in.path, err)
	}
	return s.info(in.path, fi), nil
}

// takeBytes writes a body to a file, to its end or until it has length bytes. What is written goes on to the disk meanwhile, so that little is left to wait
// for at the end.
func (s *Server) takeBytes(f *os.File, body io.Reader, length int64) (n int64, err error) {
	size := int64(contentBuffer)
	if length >= 0 {
		size = min(size, length)
	}
	buf := make([]byte, max(size, 1))
	ahead := make(chan struct{}, 1)
	var syncing sync.WaitGroup
	syncing.Go(func() {
		for range ahead {
			_ = f.Sync() // what fails here fails again at the end
		}
	})
	defer syncing.Wait()
	defer close(ahead)
	unsynced := 0
	for err == nil && (length < 0 || n < length) {
		want := len(buf)
		if length >= 0 {
			want = int(min(int64(want), length-n))
		}
		got := 0
		for got < want && err == nil {
			var m int
			m, err = body.Read(buf[got:want])
			got += m
		}
		if _, werr := f.Write(buf[:got]); werr != nil {
			return n, werr
		}
		n += int64(got)
		s.touch()
		if unsynced += got; unsynced >= syncAhead {
			select {
			case ahead <- struct{}{}:
				unsynced = 0
			default:
			}
		}
	}
	if length >= 0 && n < length || length < 0 && err != io.EOF { // exactly: another one says that it is not whole
		return n, fail(CodeInvalid, "the content broke off after %d bytes", n)
	}
	return n, nil
}
