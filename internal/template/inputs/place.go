package inputs

import (
	"archive/tar"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"io"
	"path"
	"strconv"
	"strings"

	"github.com/berthrun/berth/internal/errs"
)

// Digest is over the places, kinds, permission bits, symlink targets and contents of what is selected: 64 hexadecimal digits. Times, owners and the order in
// the archive are not in it.
func (s *Selection) Digest() string {
	h := sha256.New()
	field := func(b []byte) {
		_ = binary.Write(h, binary.BigEndian, uint64(len(b)))
		h.Write(b)
	}
	field([]byte("berth files 1"))
	for _, it := range s.items {
		field([]byte(it.at))
		field([]byte{byte(it.e.Kind), boolean(it.single)})
		field([]byte(strconv.FormatInt(it.e.Mode, 8)))
		field([]byte(it.e.Target))
		if it.e.Kind == File {
			field(it.e.SHA256[:])
		}
	}
	return hex.EncodeToString(h.Sum(nil))
}

func boolean(b bool) byte {
	if b {
		return 1
	}
	return 0
}

// Place is where a Selection goes inside a sandbox, and what its files become there.
type Place struct {
	Dest   string // absolute and clean
	Folder bool   // Dest was written as a folder
	There  bool   // Dest is a folder in the sandbox already
	UID    int
	GID    int
	Mode   *int64 // for files and folders alike; nil keeps each one's own
}

// Placed is one entry at its place.
type Placed struct {
	Path    string // absolute and clean
	Kind    Kind
	Mode    int64
	UID     int
	GID     int
	Target  string
	Size    int64
	Content io.Reader // of a file
	// OnlyMissing is a folder on the way: made where it is missing, and left as it is where it is there.
	OnlyMissing bool
}

// OnlyMissing marks such a folder in WriteTar's stream: the name of a PAX record whose value is 1.
const OnlyMissing = "BERTH.onlymissing"

// Each gives everything in order, a folder before what is in it, the folders above and the destination first. Several files need a folder: errs.InvalidInput.
func (s *Selection) Each(p Place, fn func(Placed) error) error {
	folder := p.Folder || p.There || len(s.items) == 0
	for _, it := range s.items {
		folder = folder || !it.single
	}
	if !folder && len(s.items) > 1 {
		return errs.E(errs.InvalidInput, "several files would be copied to the one file %s", p.Dest).Suggest("End the destination in /.")
	}
	last := p.Dest
	if !folder {
		last = path.Dir(p.Dest)
	}
	if err := p.above(last, fn); err != nil {
		return err
	}
	for _, it := range s.items {
		e := Placed{
			Path: path.Join(p.Dest, it.at), Kind: it.e.Kind, Mode: it.e.Mode, UID: p.UID, GID: p.GID, Target: it.e.Target, Size: it.e.Size,
		}
		if !folder {
			e.Path = p.Dest
		}
		if p.Mode != nil && e.Kind != Link {
			e.Mode = *p.Mode
		}
		if e.Kind == File {
			e.Content = it.tree.Open(*it.e)
		}
		if err := fn(e); err != nil {
			return err
		}
	}
	return nil
}

// above gives the folders down to one, which is among them.
func (p Place) above(dir string, fn func(Placed) error) error {
	at := "/"
	for part := range strings.SplitSeq(strings.Trim(dir, "/"), "/") {
		if part == "" {
			continue
		}
		at = path.Join(at, part)
		if err := fn(Placed{Path: at, Kind: Dir, Mode: 0o755, UID: p.UID, GID: p.GID, OnlyMissing: true}); err != nil {
			return err
		}
	}
	return nil
}

// WriteTar writes it all as a tar stream whose names begin at the sandbox's root, without a leading slash. Its bytes depend on nothing but what is selected
// and where it goes.
func (s *Selection) WriteTar(w io.Writer, p Place) error {
	t := tar.NewWriter(w)
	buf := make([]byte, 256<<10)
	err := s.Each(p, func(e Placed) error {
		h := &tar.Header{Name: strings.TrimPrefix(e.Path, "/"), Mode: e.Mode, Uid: e.UID, Gid: e.GID, Format: tar.FormatPAX}
		switch e.Kind {
		case Dir:
			h.Typeflag, h.Name = tar.TypeDir, h.Name+"/"
			if e.OnlyMissing {
				h.PAXRecords = map[string]string{OnlyMissing: "1"}
			}
		case Link:
			h.Typeflag, h.Linkname = tar.TypeSymlink, e.Target
		default:
			h.Typeflag, h.Size = tar.TypeReg, e.Size
		}
		if err := t.WriteHeader(h); err != nil {
			return fmt.Errorf("write the header of %q: %w", short(e.Path), err)
		}
		if e.Content == nil {
			return nil
		}
		_, err := io.CopyBuffer(t, onlyReader{e.Content}, buf)
		return err
	})
	if err != nil {
		return err
	}
	return t.Close()
}
