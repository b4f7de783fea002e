package store

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
	"golang.org/x/sys/unix"

	"github.com/berthrun/berth/internal/disk"
	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/image/unpack"
)

// keyLength is how many hexadecimal digits a layer's key has.
const keyLength = 32

// layerRecord is what layers/<key>/layer.json holds. It is there once the tree is whole.
type layerRecord struct {
	Blobs []string `json:"blobs"` // that were unpacked into the tree, the lowest first: one, or several that were merged
	Diffs []string `json:"diffs"` // the digests of what came out of them
	Bytes int64    `json:"bytes"`
	Files int64    `json:"files"`
}

// keyOf names an unpacked layer by what it was made of: the blobs, each above the ones before. Not by what an image says of its layers: that is a
// claim, and a key that follows from a claim would show one image what another one holds.
func keyOf(kind, below string, blobs ...string) string {
	h := sha256.New()
	fmt.Fprintf(h, "berth layer 1\n%s\n%s\n", kind, below)
	for _, b := range blobs {
		fmt.Fprintln(h, b)
	}
	return hex.EncodeToString(h.Sum(nil))[:keyLength]
}

// layer is a layer of an image that is being unpacked.
type layer struct {
	descriptor
	path string // of its blob
	diff string // what its content's digest has to be
}

// unpackAll brings an image's layers into the store and gives the keys of what its disk is mounted above, the uppermost first. What is there is used.
// progress is told how many bytes of the blobs were read.
func (s *Store) unpackAll(ctx context.Context, layers []layer, progress func(n int64)) (keys []string, bytes int64, err error) {
	// A sandbox's disk is mounted above so many layers at most; the lowest are merged where there are more.
	merged := max(len(layers)-int(s.stack.Load())+1, 1)
	below := ""
	for at := 0; at < len(layers); {
		group := layers[at : at+1]
		kind := "diff"
		if at == 0 {
			group = layers[:min(merged, len(layers))]
			kind = "merged"
		}
		blobs := make([]string, len(group))
		for i, l := range group {
			blobs[i] = l.Digest
		}
		key := keyOf(kind, below, blobs...)
		var rec layerRecord
		err := s.alone(ctx, "layer "+key, func() (err error) {
			rec, err = s.layer(ctx, key, keys, group, bytes, progress)
			return err
		})
		if errors.Is(err, errMount) && s.stack.Swap(1) > 1 {
			s.cfg.Logger.Warn("layers cannot be kept apart on this file system: images are unpacked whole", "error", err)
			return s.unpackAll(ctx, layers, progress)
		}
		if err != nil {
			return nil, 0, explain(err)
		}
		for i, l := range group {
			if i >= len(rec.Diffs) || rec.Diffs[i] != l.diff {
				return nil, 0, errs.Wrap(errs.InvalidInput, errDiff, "a layer of the image is not the one that its configuration names").Because("bad_layer")
			}
		}
		if bytes += rec.Bytes; bytes > s.cfg.Limits.Unpacked {
			return nil, 0, tooLarge("unpacked it has more than %d MiB", s.cfg.Limits.Unpacked>>20)
		}
		keys = append([]string{key}, keys...)
		below = key
		at += len(group)
	}
	if len(keys) == 0 { // an image without layers is an empty one
		key := keyOf("merged", "")
		err := s.alone(ctx, "layer "+key, func() error {
			_, err := s.layer(ctx, key, nil, nil, 0, progress)
			return err
		})
		return []string{key}, 0, explain(err)
	}
	return keys, bytes, nil
}

// layer gives the record of an unpacked layer and unpacks it where it is not there. lower are the keys of what is below, the uppermost first.
func (s *Store) layer(ctx context.Context, key string, lower []string, group []layer, before int64, progress func(n int64)) (layerRecord, error) {
	var rec layerRecord
	home := s.path(layersDir, key)
	err := readJSON(filepath.Join(home, "layer.json"), &rec)
	if err == nil {
		for _, l := range group {
			progress(l.Size)
		}
		return rec, nil
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return rec, fmt.Errorf("read layer: %w", err)
	}
	tmp, err := os.MkdirTemp(s.path(tmpDir), "l-")
	if err != nil {
		return rec, fmt.Errorf("make layer: %w", err)
	}
	rec, err = s.make(ctx, tmp, lower, group, before, progress)
	if err == nil {
		err = s.writeJSON(filepath.Join(tmp, "layer.json"), rec)
	}
	if err == nil {
		err = syncTree(tmp)
	}
	if err == nil {
		err = s.rename(tmp, home)
	}
	if err != nil {
		return rec, errors.Join(err, disk.RemoveTree(tmp))
	}
	return rec, nil
}

// make unpacks layers into tmp/tree, where overlayfs shows what is below: what they remove of it becomes marks in the tree.
func (s *Store) make(ctx context.Context, tmp string, lower []string, group []layer, before int64, progress func(n int64)) (rec layerRecord, err error) {
	tree := filepath.Join(tmp, "tree")
	if err := os.Mkdir(tree, 0o755); err != nil {
		return rec, err
	}
	if err := os.Chmod(tree, 0o755); err != nil { //nolint:gosec // the root directory inside: everyone may enter it
		return rec, err
	}
	target := tree
	if len(lower) > 0 {
		var unmount func() error
		if target, unmount, err = s.mount(tmp, tree, lower); err != nil {
			return rec, err
		}
		defer func() { err = errors.Join(err, unmount()) }()
	}
	for _, l := range group {
		diff, res, err := s.apply(ctx, target, l, s.cfg.Limits.Unpacked-before-rec.Bytes, progress)
		rec.Blobs, rec.Diffs = append(rec.Blobs, l.Digest), append(rec.Diffs, diff)
		rec.Bytes += res.Bytes
		rec.Files += res.Entries
		if err != nil {
			return rec, err
		}
		if diff != l.diff {
			return rec, errs.Wrap(errs.InvalidInput, errDiff, "a layer of the image is not the one that its configuration names").Because("bad_layer")
		}
	}
	return rec, nil
}

var errMount = errors.New("layers cannot be mounted")

func (s *Store) mount(tmp, tree string, lower []string) (target string, unmount func() error, err error) {
	target = filepath.Join(tmp, "m")
	work := filepath.Join(tmp, "work")
	if err := errors.Join(os.Mkdir(target, 0o700), os.Mkdir(work, 0o700)); err != nil {
		return "", nil, err
	}
	trees := make([]string, len(lower))
	for i, k := range lower {
		trees[i] = disk.EscapeOption(disk.LayerTree(s.cfg.Dir, k))
	}
	data := "lowerdir=" + strings.Join(trees, ":") + ",upperdir=" + disk.EscapeOption(tree) + ",workdir=" + disk.EscapeOption(work)
	// Whatever the kernel's defaults are, the tree has to be whole without what these would leave in other layers.
	err = unix.Mount("overlay", target, "overlay", unix.MS_NOSUID|unix.MS_NODEV, data+",metacopy=off,redirect_dir=off,index=off")
	if errors.Is(err, unix.EINVAL) {
		err = unix.Mount("overlay", target, "overlay", unix.MS_NOSUID|unix.MS_NODEV, data)
	}
	if err != nil {
		return "", nil, fmt.Errorf("%w: %w", errMount, err)
	}
	return target, func() error {
		if err := unix.Unmount(target, 0); err != nil {
			return fmt.Errorf("unmount layers: %w", err)
		}
		return errors.Join(os.Remove(target), os.RemoveAll(work))
	}, nil
}

// apply unpacks one blob and gives the digest of what came out of it.
func (s *Store) apply(ctx context.Context, target string, l layer, most int64, progress func(n int64)) (diff string, res unpack.Result, err error) {
	f, err := os.Open(l.path)
	if err != nil {
		return "", res, fmt.Errorf("open layer's blob: %w", err)
	}
	defer f.Close()
	in, err := decompress(l.descriptor, &counting{r: f, told: progress})
	if err != nil {
		return "", res, err
	}
	defer in.Close()
	sum := sha256.New()
	res, err = unpack.Apply(ctx, target, io.TeeReader(in, sum), unpack.Options{
		MaxBytes: max(most, 0), MaxEntries: s.cfg.Limits.Files, Room: func() error { return s.room(0) },
	})
	if err != nil {
		return "", res, broken(err)
	}
	return "sha256:" + hex.EncodeToString(sum.Sum(nil)), res, nil
}

// counting tells how much was read.
type counting struct {
	r    io.Reader
	told func(n int64)
}

// Read implements io.Reader.
func (c *counting) Read(p []byte) (int, error) {
	n, err := c.r.Read(p)
	c.told(int64(n))
	return n, err
}

// maxWindow bounds the memory that a zstd stream can ask for.
const maxWindow = 128 << 20

// decompress reads a layer as its kind says; one that says gzip and is none of that is looked at, since some tools name it so.
func decompress(d descriptor, r io.Reader) (io.ReadCloser, error) {
	kind, err := kindOf(d)
	if err != nil {
		return nil, err
	}
	switch kind {
	case "gzip":
		z, err := gzip.NewReader(r)
		if err != nil {
			return nil, errs.Wrap(errs.InvalidInput, err, "a layer of the image is not compressed as it says").Because("bad_layer")
		}
		return z, nil
	case "zstd":
		z, err := zstd.NewReader(r, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxWindow(maxWindow), zstd.WithDecoderLowmem(true))
		if err != nil {
			return nil, errs.Wrap(errs.InvalidInput, err, "a layer of the image is not compressed as it says").Because("bad_layer")
		}
		return z.IOReadCloser(), nil
	}
	return io.NopCloser(r), nil
}

// broken gives a stream that does not decompress its code.
func broken(err error) error {
	if _, ok := errors.AsType[*errs.Error](err); ok {
		return err
	}
	for _, known := range []error{
		gzip.ErrChecksum, gzip.ErrHeader, zstd.ErrMagicMismatch, zstd.ErrCRCMismatch, zstd.ErrWindowSizeExceeded, zstd.ErrDecoderSizeExceeded,
		zstd.ErrUnexpectedBlockSize, zstd.ErrReservedBlockType, zstd.ErrCompressedSizeTooBig, zstd.ErrBlockTooSmall, zstd.ErrFrameSizeMismatch,
		zstd.ErrFrameSizeExceeded, zstd.ErrUnknownDictionary, zstd.ErrWindowSizeTooSmall,
	} {
		if errors.Is(err, known) {
			return errs.Wrap(errs.InvalidInput, err, "a layer of the image cannot be decompressed").Because("bad_layer")
		}
	}
	if strings.Contains(err.Error(), "flate: corrupt") || strings.Contains(err.Error(), "corrupt") || strings.Contains(err.Error(), "zstd:") {
		return errs.Wrap(errs.InvalidInput, err, "a layer of the image cannot be decompressed").Because("bad_layer")
	}
	return err
}
