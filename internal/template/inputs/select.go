package inputs

import (
	"cmp"
	"context"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/berthrun/berth/internal/errs"
)

// Query is what a COPY or ADD names.
type Query struct {
	Sources []string // paths or patterns from the root; a leading / is the root, and .. does not lead out of it
	Exclude []string // patterns as in a .dockerignore, from the folder that is copied
	Parents bool     // keep the folders of a source's name, after /./ where it has that
	Unpack  bool     // a tar archive, plain or compressed, becomes what is in it
}

// item is one entry at its place below the destination.
type item struct {
	at     string // "." is the destination itself
	single bool   // a file that is named by itself: the destination may be its name
	e      *Entry
	tree   *Tree
}

// Selection is what a Query takes, in the order of its places: a folder before what is in it.
type Selection struct {
	items []item
	bytes int64
}

// Len is how many files, folders and symlinks there are.
func (s *Selection) Len() int { return len(s.items) }

// Bytes is the sum of the files' sizes.
func (s *Selection) Bytes() int64 { return s.bytes }

// Select finds what a Query takes, as Docker does: of a folder its contents and not itself; a symlink that a source names is followed within the tree, one
// inside a folder stays a symlink; a pattern (path/filepath.Match) may match nothing, a plain name may not. Errors are errs.InvalidInput.
func (t *Tree) Select(ctx context.Context, q Query) (*Selection, error) {
	ignore, err := NewIgnore(q.Exclude)
	if err != nil {
		return nil, err
	}
	p := &picker{ctx: ctx, tree: t, q: q, ignore: ignore, at: map[string]item{}, passed: map[string]item{}}
	for _, src := range q.Sources {
		if err := p.source(src); err != nil {
			return nil, err
		}
	}
	if err := p.above(); err != nil {
		return nil, err
	}
	return p.selection(), nil
}

// picker collects a Selection.
type picker struct {
	ctx    context.Context
	tree   *Tree
	q      Query
	ignore Ignore
	at     map[string]item
	passed map[string]item // folders that are left out, though what is in them may not be
}

// above adds the folders that only names imply, and refuses what would go through something else.
func (p *picker) above() error {
	for at := range p.at {
		for dir := path.Dir(at); dir != "."; dir = path.Dir(dir) {
			it, ok := p.at[dir]
			switch {
			case ok && it.e.Kind != Dir:
				return errs.E(errs.InvalidInput, "two sources have %s, once as a folder and once as none", short(dir)).Suggest("Copy them to different places.")
			case !ok:
				it, ok = p.passed[dir]
				if !ok {
					it = item{e: &Entry{Kind: Dir, Mode: 0o755}, tree: p.tree}
				}
				it.at = dir
				p.at[dir] = it
			}
		}
	}
	return nil
}

func (p *picker) selection() *Selection {
	s := &Selection{items: make([]item, 0, len(p.at))}
	for _, it := range p.at {
		s.items = append(s.items, it)
		s.bytes += it.e.Size
	}
	slices.SortFunc(s.items, func(a, b item) int { return cmp.Compare(a.at, b.at) })
	return s
}

// source takes what one source names.
func (p *picker) source(src string) error {
	named := strings.TrimPrefix(path.Clean("/"+src), "/")
	if named == "" {
		named = "."
	}
	if !hasPattern(named) {
		real, ok, err := p.tree.resolve(named)
		if err != nil {
			return err
		}
		if !ok {
			return errs.E(errs.InvalidInput, "%s is not in the build's files", short(src)).Because("missing").
				Suggest("Paths are relative to the root of what was uploaded; look whether a .dockerignore leaves it out.")
		}
		return p.take(src, named, real)
	}
	found, err := p.glob(named)
	if err != nil {
		return err
	}
	for _, name := range found {
		real, ok, err := p.tree.resolve(name)
		if err != nil {
			return err
		}
		if !ok { // a symlink that leads nowhere
			return errs.E(errs.InvalidInput, "%s is a symlink to what is not in the build's files", short(name)).Because("missing").Suggest("Leave it out, or add what it names.")
		}
		if err := p.take(src, name, real); err != nil {
			return err
		}
	}
	return nil
}

// hasPattern reports whether a source has a character that patterns have.
func hasPattern(s string) bool {
	for i := 0; i < len(s); i++ {
		switch s[i] {
		case '*', '?', '[':
			return true
		case '\\':
			i++
		}
	}
	return false
}

// glob gives the paths that a pattern matches, sorted. Folders on the way may be symlinks.
func (p *picker) glob(pattern string) ([]string, error) {
	if _, err := filepath.Match(pattern, ""); err != nil {
		return nil, errs.E(errs.InvalidInput, "the pattern %q cannot be read", short(pattern)).Suggest("A pattern has *, ? and [a-z]; write [[] for a bracket.")
	}
	found := []string{"."}
	for part := range strings.SplitSeq(pattern, "/") {
		var next []string
		for _, dir := range found {
			real, ok, err := p.tree.resolve(dir)
			if err != nil {
				return nil, err
			}
			if !ok {
				continue
			}
			for _, name := range p.tree.list(real) {
				if ok, _ := filepath.Match(part, name); ok {
					next = append(next, path.Join(dir, name))
				}
			}
		}
		if err := p.ctx.Err(); err != nil {
			return nil, err
		}
		found = next
	}
	return found, nil
}

// take takes one match: named is what was asked for, real where that is once symlinks are followed.
func (p *picker) take(src, named, real string) error {
	base := "."
	if p.q.Parents {
		if base = named; strings.Contains(src, "/./") {
			_, after, _ := strings.Cut(src, "/./")
			pre := strings.TrimPrefix(path.Clean("/"+src[:len(src)-len(after)]), "/")
			depth := len(strings.FieldsFunc(pre, func(r rune) bool { return r == '/' }))
			parts := strings.Split(named, "/")
			base = path.Join(append([]string{"."}, parts[min(depth, len(parts)):]...)...)
		}
	}
	if real == "." {
		return p.children(".", base, ".", within{})
	}
	e := p.tree.entries[real]
	if e.Kind == Dir {
		if base != "." {
			if err := p.put(base, item{e: e, tree: p.tree}); err != nil {
				return err
			}
		}
		return p.children(real, base, ".", within{})
	}
	if out, _, err := p.ignore.match(path.Base(named), within{}); out || err != nil {
		return err
	}
	if p.q.Unpack {
		if unpacked, err := p.unpack(e); unpacked || err != nil {
			return err
		}
	}
	if base == "." {
		return p.put(path.Base(named), item{e: e, tree: p.tree, single: true})
	}
	return p.put(base, item{e: e, tree: p.tree})
}

// children takes what is in a folder. rel is the folder's place for what is left out.
func (p *picker) children(dir, base, rel string, up within) error {
	if err := p.ctx.Err(); err != nil {
		return err
	}
	for _, name := range p.tree.list(dir) {
		e, below := p.tree.entries[path.Join(dir, name)], path.Join(rel, name)
		out, here, err := p.ignore.match(below, up)
		if err != nil {
			return errs.E(errs.InvalidInput, "a pattern of what to leave out cannot be read: %v", err)
		}
		if out && (e.Kind != Dir || !p.ignore.into(below)) {
			continue
		}
		at := path.Join(base, name)
		if out {
			p.passed[at] = item{e: e, tree: p.tree}
		} else if err := p.put(at, item{e: e, tree: p.tree}); err != nil {
			return err
		}
		if e.Kind == Dir {
			if err := p.children(path.Join(dir, name), at, below, here); err != nil {
				return err
			}
		}
	}
	return nil
}

// put places an item, and over another what may lie over it.
func (p *picker) put(at string, it item) error {
	it.at = at
	if old, ok := p.at[at]; ok && (old.e.Kind == Dir) != (it.e.Kind == Dir) {
		return errs.E(errs.InvalidInput, "two sources have %s, once as a folder and once as none", short(at)).Suggest("Copy them to different places.")
	}
	p.at[at] = it
	return nil
}

// unpack takes what is in an archive; false where the file is none.
func (p *picker) unpack(e *Entry) (bool, error) {
	if !archive(p.tree.Open(*e)) {
		return false, nil
	}
	t := p.tree
	in := &Tree{entries: map[string]*Entry{}, spool: t.spool, end: t.end, limits: Limits{Entries: t.limits.Entries, Bytes: t.limits.Bytes}}
	plain, done, err := decompress(t.Open(*e))
	if err == nil {
		err = in.read(p.ctx, plain, false)
		done()
	}
	t.end = in.end
	if err != nil {
		return true, err
	}
	for name, e := range in.entries {
		if err := p.put(name, item{e: e, tree: in}); err != nil {
			return true, err
		}
	}
	return true, nil
}
