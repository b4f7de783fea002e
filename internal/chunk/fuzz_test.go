package chunk

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/berthrun/berth/internal/errs"
)

// whole is a Vault with one manifest, in pieces.
func whole(t testing.TB, manifest []byte) (*memory, *Root) {
	t.Helper()
	v, root := newMemory(), &Root{}
	for piece := range slices.Chunk(manifest, mostPiece) {
		h := sum(piece)
		v.has[h] = append([]byte{formRaw}, piece...)
		root.Pieces = append(root.Pieces, h)
	}
	return v, root
}

func records(all ...*record) []byte {
	var b []byte
	for _, r := range all {
		b = r.append(b)
	}
	return b
}

var (
	up      = &record{Kind: recUp}
	dirMeta = meta{Mode: unix.S_IFDIR | 0o755}
	regMeta = meta{Mode: unix.S_IFREG | 0o644}
	lnkMeta = meta{Mode: unix.S_IFLNK | 0o777}
)

func folder(name string, in ...*record) []*record {
	return append(append([]*record{{Kind: recDir, Name: name, Meta: dirMeta}}, in...), up)
}

func file(name string, size int64) *record {
	return &record{Kind: recFile, Name: name, Meta: regMeta, Size: size}
}

// What no Save writes is refused, and nothing is made beside the folder.
func TestBadManifests(t *testing.T) {
	needRoot(t)
	none := Hash{1}
	for name, m := range map[string][]byte{
		"empty":               {},
		"no folder":           records(file("f", 0)),
		"not ended":           records(&record{Kind: recDir, Meta: dirMeta}, file("f", 0)),
		"cut":                 records(folder("", file("f", 0))...)[:12],
		"more behind":         records(append(folder(""), file("f", 0))...),
		"root with a name":    records(folder("x")...),
		"parent":              records(folder("", folder("..", file("f", 0))...)...),
		"dot":                 records(folder("", file(".", 0))...),
		"empty name":          records(folder("", file("", 0))...),
		"absolute":            records(folder("", file("/f", 0))...),
		"path":                records(folder("", file("a/f", 0))...),
		"nul":                 records(folder("", file("a\x00b", 0))...),
		"twice":               records(folder("", file("a", 0), file("a", 0))...),
		"not in order":        records(folder("", file("b", 0), file("a", 0))...),
		"link, then through":  records(folder("", &record{Kind: recSymlink, Name: "a", Meta: lnkMeta, Target: "/"}, folder("a", file("f", 0))[0], file("f", 0), up)...),
		"empty link":          records(folder("", &record{Kind: recSymlink, Name: "a", Meta: lnkMeta})...),
		"no blocks":           records(folder("", file("f", 5))...),
		"too many blocks":     records(folder("", file("f", 5), &record{Kind: recInline, Inline: []byte("123456")})...),
		"blocks of nothing":   records(folder("", &record{Kind: recZero, Len: 5})...),
		"block of no length":  records(folder("", file("f", 5), &record{Kind: recZero}, &record{Kind: recZero, Len: 5})...),
		"name of another one": records(folder("", &record{Kind: recLink, Name: "a", Link: 0})...),
		"type":                records(folder("", &record{Kind: recFile, Name: "a", Meta: meta{Mode: unix.S_IFCHR}})...),
		"folder with names":   records(&record{Kind: recDir, Meta: meta{Mode: unix.S_IFDIR, Linked: true}}, up),
		"foreign attribute":   records(folder("", &record{Kind: recFile, Name: "a", Meta: meta{Mode: unix.S_IFREG, Xattrs: []xattr{{"security.ima", []byte("x")}}}})...),
		"huge name":           append(append([]byte{recDir}, bytes.Repeat([]byte{0xff}, 9)...), 1),
		"huge count":          append(records(&record{Kind: recDir, Meta: dirMeta}), recFile, 0xff, 0xff, 0xff, 0xff, 0x0f),
		"patch beyond":        records(folder("", file("f", 5), &record{Kind: recPatched, Len: 5, Whole: none, Base: none, Pages: 4, Patch: none})...),
		"unknown":             records(&record{Kind: recDir, Meta: dirMeta}, &record{Kind: 'x'}),
	} {
		t.Run(name, func(t *testing.T) {
			v, root := whole(t, m)
			outer := t.TempDir()
			to := filepath.Join(outer, "to")
			must(t, os.Mkdir(to, 0o700))
			if err := Load(t.Context(), v, root, Target{Dir: to, Relaxed: true}); !errs.Is(err, errs.InvalidInput) {
				t.Errorf("Load = %v", err)
			}
			if left, err := os.ReadDir(outer); err != nil || len(left) != 1 {
				t.Errorf("beside the folder there is %v, %v", left, err)
			}
		})
	}
	// A chunk that is not there, or is another one.
	v, root := whole(t, records(folder("", file("f", 5), &record{Kind: recChunk, Len: 5, Whole: none})...))
	if err := Load(t.Context(), v, root, Target{Dir: t.TempDir()}); !errs.Is(err, errs.NotFound) {
		t.Errorf("a chunk that is not there: %v", err)
	}
	v.has[none] = []byte("\x00other")
	if err := Load(t.Context(), v, root, Target{Dir: t.TempDir()}); errs.From(err).Reason != "damaged" {
		t.Errorf("a chunk that is another: %v", err)
	}
}

// FuzzManifest: whatever the bytes, reading ends, what is read is written as the same bytes, and loading makes nothing beside the folder.
func FuzzManifest(f *testing.F) {
	f.Add(records(folder("", file("a", 5), &record{Kind: recInline, Inline: []byte("12345")}, file("b", 1<<40), &record{Kind: recZero, Len: 1 << 40})...))
	f.Add(records(folder("", append(folder("d", file("f", 0)), &record{Kind: recSymlink, Name: "l", Meta: lnkMeta, Target: "../../x"})...)...))
	f.Add(records(folder("", &record{Kind: recFile, Name: "a", Meta: meta{Mode: unix.S_IFREG, Linked: true}}, &record{Kind: recLink, Name: "b"})...))
	f.Add(records(folder("", &record{Kind: recNode, Name: "p", Meta: meta{Mode: unix.S_IFIFO | 0o600, UID: 5, Xattrs: []xattr{{"trusted.x", []byte("v")}}}})...))
	f.Add(records(folder("", folder("..")...)...))
	f.Add([]byte("d\xff\xff\xff\xff\xff\xff\xff")) // ends within a length
	f.Fuzz(func(t *testing.T, b []byte) {
		m := newReader(bytes.NewReader(b))
		var again []byte
		devices := false
		for {
			r, err := m.next()
			if errors.Is(err, io.EOF) {
				if m2 := newReader(bytes.NewReader(again)); !m.done {
					t.Fatal("an end before the end")
				} else if r, err := m2.next(); err != nil || r.Kind != recDir {
					t.Fatalf("what was read is not written again: %v", err)
				}
				break
			}
			if err != nil {
				if !errs.Is(err, errs.InvalidInput) {
					t.Fatalf("an error without its code: %v", err)
				}
				break
			}
			devices = devices || r.Kind == recNode
			again = r.append(again)
		}
		if os.Geteuid() != 0 || devices || !m.done && len(b)%16 != 0 { // loading takes long
			return
		}
		v, root := whole(t, b)
		outer := t.TempDir()
		to := filepath.Join(outer, "to")
		must(t, os.Mkdir(to, 0o700))
		_ = Load(t.Context(), v, root, Target{Dir: to, Relaxed: true})
		if left, err := os.ReadDir(outer); err != nil || len(left) != 1 {
			t.Fatalf("beside the folder there is %v, %v", left, err)
		}
		must(t, os.Chmod(to, 0o700))
	})
}

// FuzzPack: whatever the bytes, what a pack says to hold lies in it.
func FuzzPack(f *testing.F) {
	var p Packer
	p.Add(Hash{1}, []byte{formRaw, 1, 2, 3})
	p.Add(Hash{2}, []byte{formRaw})
	f.Add(p.Take())
	f.Add([]byte(packHead + "\x00\x00\x00\x00" + packTail))
	f.Fuzz(func(t *testing.T, b []byte) {
		all, err := PackEntries(b)
		if err != nil && !errs.Is(err, errs.InvalidInput) {
			t.Fatalf("an error without its code: %v", err)
		}
		for _, e := range all {
			_ = b[e.At : e.At+e.Stored]
		}
	})
}

// FuzzStored: whatever the bytes, a stored chunk is its hash's or is refused, and never larger than a chunk.
func FuzzStored(f *testing.F) {
	enc, err := newCoder()
	if err != nil {
		f.Fatal(err)
	}
	dec, err := newDecoder()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(enc.append(nil, bytes.Repeat([]byte("text "), 1000)))
	f.Add(enc.append(nil, nil))
	f.Add([]byte{formRaw, 1})
	f.Fuzz(func(t *testing.T, b []byte) {
		content, err := dec.content(b)
		if err == nil && len(content) > maxChunk {
			t.Fatalf("%d bytes came out", len(content))
		}
		if _, err := dec.open(b, Hash{}); err == nil {
			t.Fatal("a content was taken for another")
		}
	})
}

// FuzzRoot: what is read is written as the same tree.
func FuzzRoot(f *testing.F) {
	f.Add((&Root{Entries: 5, Bytes: 6, Pieces: []Hash{{1}, {2}}}).Encode())
	f.Fuzz(func(t *testing.T, b []byte) {
		r, err := DecodeRoot(b)
		if err != nil {
			return
		}
		again, err := DecodeRoot(r.Encode())
		if err != nil || again.Ref() != r.Ref() {
			t.Fatalf("another root comes back: %v", err)
		}
	})
}
