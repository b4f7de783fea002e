package guest

import (
	"path"
	"strings"
	"sync"
	"time"

	"github.com/berthrun/berth/internal/errs"
)

// The bounds of what a guest may say.
const (
	maxName     = 256
	maxStream   = 1 << 60
	maxRemember = 4096
)

// earliest and latest bound the times of processes.
var (
	earliest = time.Date(2020, 1, 1, 0, 0, 0, 0, time.UTC)
	latest   = time.Date(2200, 1, 1, 0, 0, 0, 0, time.UTC)
)

// seen remembers which processes have ended, so that a guest cannot let them run again. A restore may: Configure, the first call after
// one, forgets it all.
type seen struct {
	mu    sync.Mutex
	ended map[string]time.Time
}

func (s *seen) forget() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ended = nil
}

// has gives when a process ended, as far as is known before a call is made: an answer is compared with nothing newer.
func (s *seen) has(id string) time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ended[id]
}

func (s *seen) note(p *Process) {
	if p.Running {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended == nil {
		s.ended = map[string]time.Time{}
	}
	if len(s.ended) >= maxRemember {
		clear(s.ended)
	}
	s.ended[p.ID] = p.EndedAt
}

// checkProcess checks an answer about the process of an id that was known to have ended at a time, or zero.
func (c *Client) checkProcess(p *Process, id string, ended time.Time) error {
	switch {
	case p.ID != id:
		return protocolError("it answered about another process")
	case !ended.IsZero() && (p.Running || !p.EndedAt.Equal(ended)):
		return protocolError("a process that had ended has changed")
	}
	if err := checkProcess(p); err != nil {
		return err
	}
	c.seen.note(p)
	return nil
}

func checkProcess(p *Process) error {
	switch {
	case !validID(p.ID):
		return protocolError("a process has no proper id")
	case len(p.Command) > maxCommandShown || len(p.User) > maxName || len(p.Signal) > 16 || len(p.Cwd) > MaxPathBytes:
		return protocolError("a process's description is too long")
	case p.PID < 1:
		return protocolError("a process has no pid")
	case !sane(p.StartedAt):
		return protocolError("a process started at an absurd time")
	case p.StdoutBytes < 0 || p.StdoutBytes > maxStream || p.StderrBytes < 0 || p.StderrBytes > maxStream:
		return protocolError("a process has an absurd amount of output")
	case p.ExitCode < 0 || p.ExitCode > 255:
		return protocolError("a process has an absurd exit code")
	case p.Running && (!p.EndedAt.IsZero() || p.ExitCode != 0 || p.Signal != "" || p.TimedOut || p.OutOfMemory):
		return protocolError("a process is running and has ended")
	case !p.Running && !sane(p.EndedAt):
		return protocolError("a process ended at an absurd time")
	}
	return nil
}

func sane(t time.Time) bool { return t.After(earliest) && t.Before(latest) }

// checkExcerpt checks the beginning and the end of a stream.
func checkExcerpt(e *Excerpt) error {
	if len(e.Head) > HeadTailBytes || len(e.Tail) > HeadTailBytes || e.Total < int64(len(e.Head)+len(e.Tail)) || e.Total > maxStream {
		return protocolError("the output's sizes do not fit together")
	}
	return nil
}

// checkOutput checks a part of a stream against what was asked for.
func checkOutput(o *Output, offset int64, limit int) error {
	switch {
	case o.Offset < 0 || o.Earliest < 0 || o.Offset > maxStream || len(o.Data) > limit:
		return protocolError("an output's sizes are absurd")
	case o.Next != o.Offset+int64(len(o.Data)) || o.Earliest > o.Offset:
		return protocolError("an output's offsets do not fit together")
	case o.Offset > offset && o.Offset != o.Earliest:
		return protocolError("an output passed over bytes that are kept")
	case o.Offset < offset && len(o.Data) > 0:
		return protocolError("an output is from before the offset that was asked for")
	case o.EOF && o.Process.Running:
		return protocolError("an output has ended before its process")
	}
	return nil
}

// checkInfo checks what is said of one file. An empty path accepts any.
func checkInfo(f *FileInfo, want string) error {
	switch {
	case want != "" && f.Path != want:
		return protocolError("it answered about another path")
	case len(f.Path) > MaxPathBytes || !strings.HasPrefix(f.Path, "/") || path.Clean(f.Path) != f.Path || strings.Contains(f.Path, "\x00"):
		return protocolError("a path is not absolute and clean")
	case f.Name != path.Base(f.Path):
		return protocolError("a file's name is not the end of its path")
	case f.Type != "file" && f.Type != "directory" && f.Type != "symlink" && f.Type != "other":
		return protocolError("a file has an unknown type")
	case f.Size < 0 || f.Size > maxStream:
		return protocolError("a file has an absurd size")
	case len(f.User) > maxName || len(f.Group) > maxName || len(f.ETag) > maxName || len(f.Target) > MaxPathBytes:
		return protocolError("a file's description is too long")
	case !octal(f.Mode):
		return protocolError("a file has no proper mode")
	}
	return nil
}

func octal(mode string) bool {
	if len(mode) < 4 || len(mode) > 5 {
		return false
	}
	for i := range len(mode) {
		if mode[i] < '0' || mode[i] > '7' {
			return false
		}
	}
	return true
}

// checkEntries checks a page of a listing.
func checkEntries(l *FileEntries, dir string, in *FileList, limit int) error {
	if len(l.Entries) > limit {
		return protocolError("a page has more entries than were asked for")
	}
	last := in.After
	for i := range l.Entries {
		e := &l.Entries[i]
		if err := checkInfo(e, ""); err != nil {
			return err
		}
		if !below(e.Path, dir) {
			return protocolError("an entry is not in the directory")
		}
		if last != "" && comparePaths(e.Path, last) <= 0 {
			return protocolError("a page is not in order")
		}
		last = e.Path
	}
	if l.More && (l.Next == "" || len(l.Next) > MaxPathBytes || !below(l.Next, dir) || comparePaths(l.Next, last) < 0 || l.Next == in.After) {
		return protocolError("a page has no proper next one")
	}
	return nil
}

// below reports whether a clean path is in a directory.
func below(p, dir string) bool {
	if dir == "/" {
		return strings.HasPrefix(p, "/") && p != "/"
	}
	return strings.HasPrefix(p, dir+"/")
}

// comparePaths orders paths name by name, so that a directory comes right before what is in it.
func comparePaths(a, b string) int {
	for {
		x, restA, moreA := strings.Cut(a, "/")
		y, restB, moreB := strings.Cut(b, "/")
		if c := strings.Compare(x, y); c != 0 {
			return c
		}
		switch {
		case !moreA && !moreB:
			return 0
		case !moreA:
			return -1
		case !moreB:
			return 1
		}
		a, b = restA, restB
	}
}

// cleaned is the path that the guest must answer about.
func cleaned(p string) (string, error) {
	clean, err := cleanPath(p)
	if err != nil {
		return "", errs.E(errs.InvalidInput, "%s", err).Suggest("%s", meanings[CodeInvalid].suggestion)
	}
	return clean, nil
}
