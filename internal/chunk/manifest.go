package chunk

import (
	"bufio"
	"encoding/binary"
	"io"
	"strings"

	"golang.org/x/sys/unix"
)

// The kinds of records. A folder's record is followed by those of what is in it, in the order of their names' bytes, and by an up; a file's by its blocks.
// The first record is the root's, with an empty name; the manifest ends behind its up.
const (
	recDir     = 'd'
	recUp      = 'u'
	recFile    = 'f'
	recSymlink = 's'
	recNode    = 'n' // fifo, socket or device
	recLink    = 'h' // another name of an earlier one
	recZero    = 'z' // a block of zeros, of any length
	recInline  = 'i' // a block that stands in the manifest
	recChunk   = 'c' // a block that is a chunk
	recPatched = 'p' // a block that is a chunk with some of its pages from another
)

// What a manifest may hold at most.
const (
	maxName   = 255
	maxTarget = 4095
	maxXattrs = 1024
	maxXattr  = 64 << 10
	maxDepth  = 4096
)

// meta is what everything but a further name has.
type meta struct {
	Mode     uint32 // with the bits of the type
	UID, GID uint32
	Sec      int64 // mtime
	Nsec     uint32
	Linked   bool // further names may follow: they count these from 0
	Xattrs   []xattr
}

type xattr struct {
	Name  string
	Value []byte
}

// stamp is how a file is recognized as unchanged.
type stamp struct {
	Ino  uint64
	Sec  int64 // ctime
	Nsec uint32
}

// record is one record of a manifest.
type record struct {
	Kind   byte
	Name   string
	Meta   meta
	Size   int64 // of a file
	Stamp  stamp // of a file
	Target string
	Rdev   uint64
	Link   uint64 // the number of the linked one that this is another name of

	// Of blocks.
	Len    int64
	Inline []byte
	Whole  Hash // of the block's content
	Base   Hash // of a patched one
	Pages  uint64
	Patch  Hash
}

func (r *record) isBlock() bool {
	return r.Kind == recZero || r.Kind == recInline || r.Kind == recChunk || r.Kind == recPatched
}

// chunks appends the hashes that a block needs.
func (r *record) chunks(to []Hash) []Hash {
	switch r.Kind {
	case recChunk:
		to = append(to, r.Whole)
	case recPatched:
		to = append(to, r.Base, r.Patch)
	}
	return to
}

func appendString[S string | []byte](b []byte, s S) []byte {
	return append(binary.AppendUvarint(b, uint64(len(s))), s...)
}

func (m *meta) append(b []byte) []byte {
	b = binary.AppendUvarint(b, uint64(m.Mode))
	b = binary.AppendUvarint(b, uint64(m.UID))
	b = binary.AppendUvarint(b, uint64(m.GID))
	b = binary.AppendVarint(b, m.Sec)
	b = binary.AppendUvarint(b, uint64(m.Nsec))
	n := uint64(len(m.Xattrs)) << 1
	if m.Linked {
		n |= 1
	}
	b = binary.AppendUvarint(b, n)
	for _, x := range m.Xattrs {
		b = appendString(appendString(b, x.Name), x.Value)
	}
	return b
}

// append adds the record's bytes.
func (r *record) append(b []byte) []byte {
	b = append(b, r.Kind)
	switch r.Kind {
	case recDir:
		b = r.Meta.append(appendString(b, r.Name))
	case recFile:
		b = r.Meta.append(appendString(b, r.Name))
		b = binary.AppendUvarint(b, uint64(r.Size)) //nolint:gosec // not negative
		b = binary.AppendUvarint(b, r.Stamp.Ino)
		b = binary.AppendVarint(b, r.Stamp.Sec)
		b = binary.AppendUvarint(b, uint64(r.Stamp.Nsec))
	case recSymlink:
		b = appendString(r.Meta.append(appendString(b, r.Name)), r.Target)
	case recNode:
		b = binary.AppendUvarint(r.Meta.append(appendString(b, r.Name)), r.Rdev)
	case recLink:
		b = binary.AppendUvarint(appendString(b, r.Name), r.Link)
	case recInline:
		b = appendString(b, r.Inline)
	case recZero, recChunk, recPatched:
		b = binary.AppendUvarint(b, uint64(r.Len)) //nolint:gosec // not negative
		if r.Kind == recZero {
			break
		}
		b = append(b, r.Whole[:]...)
		if r.Kind == recPatched {
			b = append(b, r.Base[:]...)
			b = binary.AppendUvarint(b, r.Pages)
			b = append(b, r.Patch[:]...)
		}
	}
	return b
}

// reader reads a manifest's records and refuses what no Save writes.
type reader struct {
	in    *bufio.Reader
	depth int
	begun bool
	done  bool
	left  int64 // of the file whose blocks are read
	last  []string
	links uint64 // linked ones so far
	err   error
}

func newReader(in io.Reader) *reader { return &reader{in: bufio.NewReaderSize(in, 64<<10)} }

func (m *reader) number(most uint64) uint64 {
	v, err := binary.ReadUvarint(m.in)
	if err == nil && v > most {
		err = bad("a number is too large")
	}
	if err != nil {
		m.fail(err)
		return 0 // with an error ReadUvarint gives what it has read so far, which may be anything
	}
	return v
}

func (m *reader) signed() int64 {
	v, err := binary.ReadVarint(m.in)
	m.fail(err)
	return v
}

func (m *reader) bytes(most uint64) []byte {
	b := make([]byte, m.number(most))
	if m.err == nil {
		_, err := io.ReadFull(m.in, b)
		m.fail(err)
	}
	return b
}

func (m *reader) hash() (h Hash) {
	_, err := io.ReadFull(m.in, h[:])
	m.fail(err)
	return h
}

// fail keeps the first error.
func (m *reader) fail(err error) {
	if m.err != nil || err == nil {
		return
	}
	if err == io.EOF || err == io.ErrUnexpectedEOF || strings.HasPrefix(err.Error(), "binary:") { //nolint:errorlint // what the vault gives may wrap them
		err = bad("it ends too early")
	}
	m.err = err
}

func (m *reader) meta() (out meta) {
	out.Mode = uint32(m.number(1<<16 - 1)) //nolint:gosec // bounded
	out.UID = uint32(m.number(1<<32 - 2))  //nolint:gosec // bounded
	out.GID = uint32(m.number(1<<32 - 2))  //nolint:gosec // bounded
	out.Sec = m.signed()
	out.Nsec = uint32(m.number(999_999_999)) //nolint:gosec // bounded
	n := m.number(maxXattrs<<1 | 1)
	out.Linked = n&1 != 0
	for range n >> 1 {
		if m.err != nil {
			break
		}
		x := xattr{Name: string(m.bytes(maxName)), Value: m.bytes(maxXattr)}
		if !keptXattr(x.Name) {
			m.fail(bad("it has an attribute that is never kept"))
		}
		out.Xattrs = append(out.Xattrs, x)
	}
	return out
}

// name reads and checks a name in the folder that is open.
func (m *reader) name() string {
	n := string(m.bytes(maxName))
	if m.err != nil {
		return ""
	}
	if m.depth == 0 {
		if n != "" {
			m.fail(bad("its root has a name"))
		}
		return n
	}
	if n == "" || n == "." || n == ".." || strings.IndexByte(n, '/') >= 0 || strings.IndexByte(n, 0) >= 0 {
		m.fail(bad("it has a name that no file can have"))
		return ""
	}
	if last := m.last[m.depth-1]; n <= last {
		m.fail(bad("its names are not in order"))
	}
	m.last[m.depth-1] = n
	return n
}

// next gives the next record; io.EOF itself behind the last one, and only there.
func (m *reader) next() (*record, error) {
	if m.err != nil {
		return nil, m.err
	}
	kind, err := m.in.ReadByte()
	if m.done {
		if err != io.EOF { //nolint:errorlint // what the vault gives may wrap it
			if err == nil {
				err = bad("something follows its end")
			}
			m.err = err
			return nil, err
		}
		return nil, io.EOF
	}
	m.fail(err)
	r := &record{Kind: kind}
	if m.err == nil {
		m.check(r)
	}
	if m.err == nil {
		m.body(r)
	}
	if m.err != nil {
		return nil, m.err
	}
	return r, nil
}

// check refuses a record where it may not stand.
func (m *reader) check(r *record) {
	switch {
	case r.isBlock() != (m.left > 0):
		m.fail(bad("blocks are not behind a file"))
	case m.depth == 0 && (m.begun || r.Kind != recDir):
		m.fail(bad("it does not begin with a folder"))
	}
}

func (m *reader) body(r *record) {
	switch r.Kind {
	case recDir:
		r.Name, r.Meta = m.name(), m.meta()
		m.begun = true
		if m.depth++; m.depth > maxDepth {
			m.fail(bad("its folders are deeper than %d", maxDepth))
		}
		m.last = append(m.last[:m.depth-1], "")
	case recUp:
		m.depth--
		m.done = m.depth == 0
	case recFile:
		r.Name, r.Meta = m.name(), m.meta()
		r.Size = int64(m.number(1<<63 - 1))                                                             //nolint:gosec // bounded
		r.Stamp = stamp{Ino: m.number(1<<64 - 1), Sec: m.signed(), Nsec: uint32(m.number(999_999_999))} //nolint:gosec // bounded
		m.left = r.Size
	case recSymlink:
		r.Name, r.Meta, r.Target = m.name(), m.meta(), string(m.bytes(maxTarget))
		if r.Target == "" || strings.IndexByte(r.Target, 0) >= 0 {
			m.fail(bad("a symbolic link leads nowhere"))
		}
	case recNode:
		r.Name, r.Meta, r.Rdev = m.name(), m.meta(), m.number(1<<64-1)
	case recLink:
		r.Name, r.Link = m.name(), m.number(1<<62)
		if r.Link >= m.links {
			m.fail(bad("a link to what was not before it"))
		}
	case recZero:
		r.Len = int64(m.number(1<<63 - 1)) //nolint:gosec // bounded
	case recInline:
		r.Inline = m.bytes(inline)
		r.Len = int64(len(r.Inline))
	case recChunk:
		r.Len, r.Whole = int64(m.number(maxChunk)), m.hash() //nolint:gosec // bounded
	case recPatched:
		r.Len, r.Whole, r.Base = int64(m.number(block)), m.hash(), m.hash() //nolint:gosec // bounded
		r.Pages, r.Patch = m.number(1<<(block/page)-1), m.hash()
		if r.Pages == 0 || r.Pages>>((r.Len+page-1)/page) != 0 {
			m.fail(bad("a block has pages beyond its end"))
		}
	default:
		m.fail(bad("it has a record of the unknown kind %d", r.Kind))
	}
	m.after(r)
}

// after keeps account of blocks and links, and refuses types that are not what the record says.
func (m *reader) after(r *record) {
	if r.isBlock() {
		if r.Len <= 0 || r.Len > m.left {
			m.fail(bad("a file's blocks are not as long as the file"))
		}
		m.left -= r.Len
		return
	}
	var ok bool
	switch t := r.Meta.Mode & unix.S_IFMT; r.Kind {
	case recDir:
		ok = t == unix.S_IFDIR && !r.Meta.Linked
	case recFile:
		ok = t == unix.S_IFREG
	case recSymlink:
		ok = t == unix.S_IFLNK
	case recNode:
		ok = t == unix.S_IFIFO || t == unix.S_IFSOCK || t == unix.S_IFCHR || t == unix.S_IFBLK
	default:
		return
	}
	if !ok {
		m.fail(bad("something is of another type than it says"))
	}
	if r.Meta.Linked {
		m.links++
	}
}

// keptXattr reports whether an attribute is part of a tree. Labels of the host's own security modules and settings of its file systems are not.
func keptXattr(name string) bool {
	switch name {
	case "security.capability", "system.posix_acl_access", "system.posix_acl_default":
		return true
	}
	return strings.HasPrefix(name, "user.") || strings.HasPrefix(name, "trusted.")
}
