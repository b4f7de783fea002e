// Package inputs owns the files that a build takes: an archive that nobody trusts becomes a Tree; what a COPY names is selected from it as Docker does; and
// on the caller's side a folder becomes such an archive (Pack).
//
// A Tree is an index and a file of contents, never a folder: nothing of an archive is put on the host under a name that the archive chose, and a symlink is
// text that is followed inside the tree alone. It runs nothing and knows no sandbox.
package inputs

import (
	"io"
	"path"
	"slices"
	"strings"

	"github.com/berthrun/berth/internal/errs"
)

// Limits of a build's files. What is above them is refused while it is read.
type Limits struct {
	Entries int   // 0 is 500,000
	Bytes   int64 // of contents, uncompressed; 0 is 10 GiB
}

func (l Limits) orDefault() Limits {
	if l.Entries == 0 {
		l.Entries = 500_000
	}
	if l.Bytes == 0 {
		l.Bytes = 10 << 30
	}
	return l
}

const (
	maxName  = 4096 // bytes of a path, as Linux has it
	maxPart  = 255  // bytes of one name in it
	maxLinks = 40   // symlinks that are followed one after the other

	maxNames = 128 << 20 // bytes of all names and targets, which are held in memory
)

// Kind is what an entry is.
type Kind byte

// The kinds. A hard link is the file that it names.
const (
	File Kind = 'f'
	Dir  Kind = 'd'
	Link Kind = 'l'
)

// Entry is one file, folder or symlink.
type Entry struct {
	Path   string // relative to the root, clean, with slashes; the root is "." and is no entry
	Kind   Kind
	Mode   int64  // permission bits, setuid, setgid and sticky among them
	Target string // of a symlink, as it was
	Size   int64
	SHA256 [32]byte // of a file's content

	offset int64 // of the content in the spool
}

// Spool holds the contents of a Tree: an *os.File opened for both, which nobody else uses.
type Spool interface {
	io.Writer
	io.ReaderAt
}

// Tree is what an archive holds. It is not changed once it is read, save that Select may add what it unpacks to the spool: one Select at a time.
type Tree struct {
	entries map[string]*Entry
	kids    map[string][]string // names in a folder, sorted; made when first asked for
	spool   Spool
	end     int64 // of the spool
	limits  Limits
	bytes   int64
	names   int // bytes of them, those of entries that were replaced too
}

// Len is how many entries there are, those that an archive only implied among them.
func (t *Tree) Len() int { return len(t.entries) }

// Bytes is the sum of the sizes of all files.
func (t *Tree) Bytes() int64 { return t.bytes }

// Get gives one entry by its path; the last symlink is not followed.
func (t *Tree) Get(name string) (Entry, bool) {
	e, ok := t.entries[path.Clean(name)]
	if !ok {
		return Entry{}, false
	}
	return *e, true
}

// Open reads a file's content. The reader is good as long as the spool is open.
func (t *Tree) Open(e Entry) io.Reader { return io.NewSectionReader(t.spool, e.offset, e.Size) }

// list gives the names in a folder, sorted; "." is the root.
func (t *Tree) list(dir string) []string {
	if t.kids == nil {
		t.kids = map[string][]string{}
		for name := range t.entries {
			parent := path.Dir(name)
			t.kids[parent] = append(t.kids[parent], path.Base(name))
		}
		for _, names := range t.kids {
			slices.Sort(names)
		}
	}
	return t.kids[dir]
}

// resolve follows the symlinks of a path from the root, the last one too, and never out of the tree: an absolute target begins at its root, and the root's
// ".." is the root. False is a path that is not there.
func (t *Tree) resolve(name string) (string, bool, error) {
	at, rest, links := ".", strings.Split(name, "/"), 0
	for len(rest) > 0 {
		part := rest[0]
		rest = rest[1:]
		switch part {
		case "", ".":
			continue
		case "..":
			at = path.Dir(at)
			continue
		}
		next := path.Join(at, part)
		e := t.entries[next]
		if e == nil {
			return "", false, nil
		}
		if e.Kind != Link {
			if e.Kind == File && len(rest) > 0 {
				return "", false, nil
			}
			at = next
			continue
		}
		if links++; links > maxLinks {
			return "", false, errs.E(errs.InvalidInput, "%s: too many symlinks", short(name)).Suggest("One of them leads back to itself: remove it.")
		}
		if path.IsAbs(e.Target) {
			at = "."
		}
		rest = append(strings.Split(e.Target, "/"), rest...)
	}
	return at, true, nil
}

// short makes a name fit for a message.
func short(name string) string {
	if len(name) > 200 {
		name = name[:200] + "…"
	}
	return strings.ToValidUTF8(name, "�")
}
