package chunk

import (
	"bytes"
	"encoding/binary"
)

// A pack is "BPK1", the stored chunks one behind the other, for each its hash and its length as four bytes, their number as four bytes, "BPKE". Numbers
// are little-endian. So a pack says by itself what is in it.
const (
	packHead  = "BPK1"
	packTail  = "BPKE"
	entrySize = len(Hash{}) + 4

	packTarget = 8 << 20 // a pack is given away once it holds so many bytes
	// MaxPack is the most bytes of a pack.
	MaxPack = packTarget + 2*maxChunk + (packTarget/page)*8*entrySize
)

// PackEntry is one chunk in a pack.
type PackEntry struct {
	Hash   Hash
	At     int64 // of its stored form in the pack
	Stored int64 // bytes of that form
}

// PackEntries reads what is in a pack.
func PackEntries(pack []byte) ([]PackEntry, error) {
	end := len(pack) - 4 - len(packTail)
	if len(pack) > MaxPack || end < len(packHead) || !bytes.HasPrefix(pack, []byte(packHead)) || !bytes.HasSuffix(pack, []byte(packTail)) {
		return nil, bad("a pack is not whole")
	}
	n := int(binary.LittleEndian.Uint32(pack[end:]))
	if n > (end-len(packHead))/entrySize {
		return nil, bad("a pack counts more chunks than it has")
	}
	list := pack[end-n*entrySize : end]
	at := int64(len(packHead))
	all := make([]PackEntry, n)
	for i := range all {
		e := list[i*entrySize:]
		all[i] = PackEntry{Hash: Hash(e[:len(Hash{})]), At: at, Stored: int64(binary.LittleEndian.Uint32(e[len(Hash{}):]))}
		if all[i].Stored == 0 || all[i].Stored > maxChunk+1 {
			return nil, bad("a pack has a chunk of %d bytes", all[i].Stored)
		}
		at += all[i].Stored
	}
	if at != int64(end-n*entrySize) {
		return nil, bad("a pack's chunks are not as long as it says")
	}
	return all, nil
}

// Packer makes packs of stored chunks.
type Packer struct {
	data []byte
	list []byte
	n    uint32
}

// Add puts a stored chunk into the pack.
func (p *Packer) Add(h Hash, stored []byte) {
	if len(p.data) == 0 {
		if p.data == nil {
			p.data = make([]byte, 0, packTarget+packTarget/16)
		}
		p.data = append(p.data, packHead...)
	}
	p.data = append(p.data, stored...)
	p.list = append(p.list, h[:]...)
	p.list = binary.LittleEndian.AppendUint32(p.list, uint32(len(stored))) //nolint:gosec // at most maxChunk
	p.n++
}

// Full reports whether it is time to take the pack.
func (p *Packer) Full() bool { return len(p.data) >= packTarget || int(p.n) >= packTarget/page*4 }

// Reuse has the next pack made in the memory of one that is not needed any more.
func (p *Packer) Reuse(pack []byte) {
	if p.n == 0 {
		p.data = pack[:0]
	}
}

// Take gives the pack and begins another; nil where it is empty.
func (p *Packer) Take() []byte {
	if p.n == 0 {
		return nil
	}
	out := append(p.data, p.list...)
	out = binary.LittleEndian.AppendUint32(out, p.n)
	out = append(out, packTail...)
	*p = Packer{}
	return out
}
