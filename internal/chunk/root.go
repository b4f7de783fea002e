package chunk

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"io"
	"time"
)

// Root is a manifest's beginning: the chunks that the manifest itself is cut into, so that what is the same in two manifests is kept once.
type Root struct {
	At      time.Time // when the reading of the tree began
	Entries int64
	Bytes   int64 // of files' contents without holes
	Pieces  []Hash
}

const (
	rootHead = "BRT1"
	// MaxRoot is the most bytes of an encoded root.
	MaxRoot = 16 << 20
)

// Encode gives the root's bytes.
func (r *Root) Encode() []byte {
	b := append(make([]byte, 0, len(rootHead)+40+len(r.Pieces)*len(Hash{})), rootHead...)
	b = binary.AppendVarint(b, r.At.UnixNano())
	b = binary.AppendUvarint(b, uint64(r.Entries)) //nolint:gosec // counts
	b = binary.AppendUvarint(b, uint64(r.Bytes))   //nolint:gosec // counts
	b = binary.AppendUvarint(b, uint64(len(r.Pieces)))
	for _, h := range r.Pieces {
		b = append(b, h[:]...)
	}
	return b
}

// Ref names the tree by its content: the SHA-256 of the root, which holds that of everything else.
func (r *Root) Ref() string {
	sum := sha256.Sum256(r.Encode())
	return hex.EncodeToString(sum[:])
}

// DecodeRoot reads a root's bytes.
func DecodeRoot(b []byte) (*Root, error) {
	if len(b) > MaxRoot || !bytes.HasPrefix(b, []byte(rootHead)) {
		return nil, bad("it does not begin as one")
	}
	in := bytes.NewReader(b[len(rootHead):])
	at, err := binary.ReadVarint(in)
	var n [3]uint64
	for i := range n {
		if err == nil {
			n[i], err = binary.ReadUvarint(in)
		}
	}
	if err != nil || n[0] > 1<<50 || n[1] > 1<<62 || n[2] > MaxRoot || in.Len() != int(n[2])*len(Hash{}) { //nolint:gosec // bounded
		return nil, bad("its beginning is not whole")
	}
	r := &Root{At: time.Unix(0, at), Entries: int64(n[0]), Bytes: int64(n[1]), Pieces: make([]Hash, n[2])} //nolint:gosec // bounded
	for i := range r.Pieces {
		_, _ = io.ReadFull(in, r.Pieces[i][:])
	}
	return r, nil
}

// pieceReader reads a manifest from its pieces, a few ahead.
type pieceReader struct {
	ctx   context.Context
	vault Vault
	dec   *decoder
	left  []Hash
	ready [][]byte
}

const piecesAhead = 16

// Read implements io.Reader.
func (p *pieceReader) Read(b []byte) (int, error) {
	for len(p.ready) == 0 {
		if len(p.left) == 0 {
			return 0, io.EOF
		}
		n := min(len(p.left), piecesAhead)
		stored, err := p.vault.Read(p.ctx, p.left[:n])
		if err != nil {
			return 0, err
		}
		if len(stored) != n {
			return 0, damaged("chunks are missing")
		}
		for i, s := range stored {
			content, err := p.dec.open(s, p.left[i])
			if err != nil {
				return 0, err
			}
			if len(content) > 0 {
				p.ready = append(p.ready, content)
			}
		}
		p.left = p.left[n:]
	}
	n := copy(b, p.ready[0])
	if p.ready[0] = p.ready[0][n:]; len(p.ready[0]) == 0 {
		p.ready = p.ready[1:]
	}
	return n, nil
}
