package chunk

import (
	"crypto/sha256"
	"fmt"

	"github.com/klauspost/compress/zstd"
)

// The forms in which a chunk is stored: its first byte.
const (
	formRaw  = 0
	formZstd = 1
)

// coder compresses chunks. It is for one goroutine.
type coder struct{ w *zstd.Encoder }

func newCoder() (*coder, error) {
	w, err := zstd.NewWriter(nil, zstd.WithEncoderConcurrency(1), zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithWindowSize(maxChunk), zstd.WithLowerEncoderMem(true))
	if err != nil {
		return nil, fmt.Errorf("make encoder: %w", err)
	}
	return &coder{w}, nil
}

// append adds the stored form of a content to dst.
func (c *coder) append(dst, content []byte) []byte {
	at := len(dst)
	dst = c.w.EncodeAll(content, append(dst, formZstd))
	if len(dst)-at > len(content) {
		dst = append(append(dst[:at], formRaw), content...)
	}
	return dst
}

func (c *coder) close() { _ = c.w.Close() }

// decoder gives the contents of stored chunks. It may be used concurrently.
type decoder struct{ r *zstd.Decoder }

func newDecoder() (*decoder, error) {
	r, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(2), zstd.WithDecoderMaxMemory(maxChunk), zstd.WithDecoderMaxWindow(maxChunk), zstd.WithDecoderLowmem(true))
	if err != nil {
		return nil, fmt.Errorf("make decoder: %w", err)
	}
	return &decoder{r}, nil
}

func (d *decoder) close() { d.r.Close() }

// open gives the content of a stored chunk, after it has seen that it is the one of the hash.
func (d *decoder) open(stored []byte, want Hash) ([]byte, error) {
	content, err := d.content(stored)
	if err != nil {
		return nil, damaged("chunk %s: %v", want, err)
	}
	if Hash(sha256.Sum256(content)) != want {
		return nil, damaged("chunk %s holds something else", want)
	}
	return content, nil
}

func (d *decoder) content(stored []byte) ([]byte, error) {
	if len(stored) == 0 {
		return nil, fmt.Errorf("it is empty")
	}
	switch stored[0] {
	case formRaw:
		if len(stored)-1 > maxChunk {
			return nil, fmt.Errorf("it is too large")
		}
		return stored[1:], nil
	case formZstd:
		content, err := d.r.DecodeAll(stored[1:], nil)
		if err == nil && len(content) > maxChunk {
			err = fmt.Errorf("it is too large")
		}
		return content, err
	}
	return nil, fmt.Errorf("it has the unknown form %d", stored[0])
}
