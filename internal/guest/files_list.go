//go:build linux

package guest

import (
	"container/heap"
	"context"
	"io"
	"io/fs"
	"net/http"
	"os"
	"strings"
	"unicode/utf8"
)

// What bounds one listing, however large the tree is.
const (
	maxDepth     = 32
	listVisits   = 100_000 // entries looked at in one call
	listBatch    = 4096    // names of a directory that are held at once
	listBytes    = 1 << 20 // of the paths of a page
	listReadName = 1024    // names read at once
)

func (s *Server) fileList(w http.ResponseWriter, r *http.Request) {
	fileCall(s, w, r, smallRequest, func(in *FileList) string { return in.User }, func(in *FileList) (*FileEntries, error) { return s.list(r.Context(), in) })
}

// list gives one page of what is in a directory.
func (s *Server) list(ctx context.Context, in *FileList) (*FileEntries, error) {
	dir, err := cleanPath(in.Path)
	if err != nil {
		return nil, err
	}
	pattern, err := parseGlob(in.Glob)
	if err != nil {
		return nil, err
	}
	if in.Depth < 0 || in.Depth > maxDepth {
		return nil, fail(CodeInvalid, "a depth is 1 to %d", maxDepth)
	}
	if in.Depth == 0 {
		in.Depth = 1
		if pattern.deep() {
			in.Depth = maxDepth
		}
	}
	if in.Limit <= 0 || in.Limit > ListEntries {
		in.Limit = ListEntries
	}
	l := &lister{s: s, ctx: ctx, dir: dir, glob: pattern, limit: in.Limit, out: &FileEntries{Entries: []FileInfo{}}}
	var after []string
	if in.After != "" {
		if in.After, err = cleanPath(in.After); err != nil || !below(in.After, dir) {
			return nil, fail(CodeInvalid, "after is not in the directory")
		}
		after = strings.Split(strings.TrimPrefix(strings.TrimPrefix(in.After, dir), "/"), "/")
	}
	if err := l.walk(dir, s.host(dir), in.Depth, pattern.start(), after); err != nil {
		return nil, s.pathError(dir, err)
	}
	return l.out, ctx.Err()
}

// lister is one listing under way.
type lister struct {
	s     *Server
	ctx   context.Context
	dir   string
	glob  *glob
	limit int
	out   *FileEntries

	visits int
	bytes  int
	last   string // visited
	full   bool
}

// walk visits what comes after a path (given as the names below the directory) in order, until the page is full. path is the directory as it is
// told, host where it is.
func (l *lister) walk(path, host string, depth int, st globState, after []string) error {
	from := ""
	if len(after) > 0 {
		from = after[0]
		// The name that the page before ended at was told; what is below it may not have been.
		if err := l.enter(path, host, from, depth, st, after[1:]); err != nil || l.full {
			return err
		}
	}
	for {
		names, more, err := namesAfter(host, from)
		if err != nil {
			return err
		}
		for _, n := range names {
			if err := l.visit(path, host, n, depth, st); err != nil || l.full {
				return err
			}
			from = n.shown
		}
		if !more {
			return nil
		}
	}
}

// visit tells one entry and enters it.
func (l *lister) visit(path, host string, n name, depth int, st globState) error {
	p, h := join(path, n.shown), join(host, n.raw)
	next := l.glob.step(st, n.shown)
	l.visits++
	if l.visits > listVisits || l.visits%256 == 0 && l.ctx.Err() != nil {
		l.stop()
		return nil
	}
	matches, below := l.glob.matches(next), depth > 1 && l.glob.canGoOn(next)
	if !matches && !below {
		l.last = p
		return nil
	}
	fi, err := os.Lstat(h)
	if err != nil { // gone meanwhile, or not to be seen
		l.last = p
		return nil
	}
	if matches && len(p) <= MaxPathBytes {
		info := l.s.info(p, fi)
		l.bytes += len(p) + len(info.Target)
		if len(l.out.Entries) >= l.limit || l.bytes > listBytes {
			l.stop()
			return nil
		}
		l.out.Entries = append(l.out.Entries, info)
	}
	l.last = p
	if below && fi.IsDir() && n.shown == n.raw {
		return l.descend(p, h, depth-1, next, nil)
	}
	return nil
}

// enter goes on in a directory of which a part was told.
func (l *lister) enter(path, host, shown string, depth int, st globState, after []string) error {
	next := l.glob.step(st, shown)
	if depth <= 1 || !l.glob.canGoOn(next) {
		return nil
	}
	h := join(host, shown)
	if fi, err := os.Lstat(h); err != nil || !fi.IsDir() {
		return nil
	}
	return l.descend(join(path, shown), h, depth-1, next, after)
}

// descend walks a directory below the one that was asked for. One that may not be read, or is gone, is passed over.
func (l *lister) descend(path, host string, depth int, st globState, after []string) error {
	if err := l.walk(path, host, depth, st, after); err != nil && l.ctx.Err() != nil {
		return err
	}
	return nil
}

// stop ends the page: there is more.
func (l *lister) stop() {
	l.full = true
	if l.last != "" {
		l.out.More, l.out.Next = true, l.last
	}
}

// name is an entry's name: as the file system has it, and as it is told, which is UTF-8.
type name struct {
	raw, shown string
}

// namesAfter reads the names of a directory that come after one, in order: at most listBatch of them, however many there are, and whether there
// are more.
func namesAfter(host, from string) ([]name, bool, error) {
	d, err := os.Open(host)
	if err != nil {
		return nil, false, err
	}
	defer d.Close()
	var h nameHeap
	more := false
	for {
		batch, err := d.Readdirnames(listReadName)
		for _, raw := range batch {
			n := name{raw, raw}
			if !utf8.ValidString(raw) {
				n.shown = string([]rune(raw))
			}
			switch {
			case n.shown <= from && from != "":
			case len(h) < listBatch:
				heap.Push(&h, n)
			case n.shown < h[0].shown:
				h[0], more = n, true
				heap.Fix(&h, 0)
			default:
				more = true
			}
		}
		if err == io.EOF || len(batch) == 0 && err == nil {
			break
		}
		if err != nil {
			return nil, false, &fs.PathError{Op: "read", Path: host, Err: err}
		}
	}
	return h.sorted(), more, nil
}

// nameHeap has the last name at its top.
type nameHeap []name

func (h nameHeap) Len() int           { return len(h) }
func (h nameHeap) Less(i, j int) bool { return h[i].shown > h[j].shown }
func (h nameHeap) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }
func (h *nameHeap) Push(x any)        { *h = append(*h, x.(name)) }
func (h *nameHeap) Pop() any {
	old := *h
	x := old[len(old)-1]
	*h = old[:len(old)-1]
	return x
}

// sorted empties the heap. Of names that are told alike only one is kept: they cannot be told apart.
func (h *nameHeap) sorted() []name {
	out := make([]name, h.Len())
	for i := len(out) - 1; i >= 0; i-- {
		out[i] = heap.Pop(h).(name)
	}
	kept := out[:0]
	for _, n := range out {
		if len(kept) == 0 || kept[len(kept)-1].shown != n.shown {
			kept = append(kept, n)
		}
	}
	return kept
}

func join(dir, name string) string {
	if strings.HasSuffix(dir, "/") {
		return dir + name
	}
	return dir + "/" + name
}
