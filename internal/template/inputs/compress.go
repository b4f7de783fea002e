package inputs

import (
	"archive/tar"
	"bytes"
	"compress/bzip2"
	"io"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"

	"github.com/berthrun/berth/internal/errs"
)

// stream is the error of a compressed stream that is damaged.
type stream struct{ error }

// Unwrap gives what the decompressor said.
func (s stream) Unwrap() error { return s.error }

// marked makes all of a reader's errors stream errors.
type marked struct{ r io.Reader }

// Read implements io.Reader.
func (m marked) Read(p []byte) (int, error) {
	n, err := m.r.Read(p)
	if err != nil && err != io.EOF {
		err = stream{err}
	}
	return n, err
}

// maxWindow is what a zstd stream may make the host remember.
const maxWindow = 128 << 20

// decompress gives the plain stream, by what it begins with. done frees what it took.
func decompress(r io.Reader) (plain io.Reader, done func(), err error) {
	in := buffered(r)
	head, _ := in.Peek(6)
	done = func() {}
	switch {
	case bytes.HasPrefix(head, []byte{0x1f, 0x8b}):
		z, err := gzip.NewReader(in)
		if err != nil {
			return nil, nil, damaged(stream{err})
		}
		return marked{z}, done, nil
	case bytes.HasPrefix(head, []byte{0x28, 0xb5, 0x2f, 0xfd}):
		z, err := zstd.NewReader(in, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxWindow(maxWindow))
		if err != nil {
			return nil, nil, damaged(stream{err})
		}
		return marked{z}, z.Close, nil
	case bytes.HasPrefix(head, []byte("BZh")):
		return marked{bzip2.NewReader(in)}, done, nil
	case bytes.HasPrefix(head, []byte{0xfd, '7', 'z', 'X', 'Z', 0}):
		return nil, nil, errs.E(errs.InvalidInput, "archives that xz compressed are not read").Suggest("Compress it with gzip or zstd, or COPY it and unpack it in a RUN.")
	}
	return in, done, nil
}

// archive reports whether a file is a tar archive, plain or compressed: whether it begins with an entry.
func archive(r io.Reader) bool {
	in := buffered(r)
	head, _ := in.Peek(6)
	if bytes.HasPrefix(head, []byte{0xfd, '7', 'z', 'X', 'Z', 0}) {
		return true // which reading it refuses by name
	}
	plain, done, err := decompress(in)
	if err != nil {
		return false
	}
	defer done()
	block := make([]byte, 512)
	if _, err := io.ReadFull(plain, block); err != nil {
		return false
	}
	_, err = tar.NewReader(io.MultiReader(bytes.NewReader(block), plain)).Next()
	return err == nil
}
