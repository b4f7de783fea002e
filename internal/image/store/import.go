package store

import (
	"archive/tar"
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"slices"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"

	"github.com/berthrun/berth/internal/disk"
	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/nodeapi"
)

// The most of an archive beside its blobs.
const (
	maxArchiveEntries = 10_000
	maxArchiveJSON    = 4 << 20
)

func badArchive(format string, args ...any) *errs.Error {
	return errs.E(errs.InvalidInput, "the archive cannot be imported: "+format, args...).Because("bad_archive").
		Suggest("Give an OCI layout as a tar archive, or what docker save writes.")
}

// Import implements nodeapi.Images.
func (s *Store) Import(ctx context.Context, scope, selected string, r io.Reader) (nodeapi.Image, error) {
	if err := checkScope(scope); err != nil {
		return nodeapi.Image{}, err
	}
	defer s.work()()
	tmp, err := os.MkdirTemp(s.path(tmpDir), "i-")
	if err != nil {
		return nodeapi.Image{}, fmt.Errorf("make folder of import: %w", err)
	}
	img, err := s.importFrom(ctx, scope, selected, tmp, r)
	if rerr := disk.RemoveTree(tmp); rerr != nil {
		s.cfg.Logger.Warn("an import's folder was not removed", "error", rerr)
	}
	return img, explain(err)
}

func (s *Store) importFrom(ctx context.Context, scope, selected, tmp string, r io.Reader) (nodeapi.Image, error) {
	a := &incoming{s: s, ctx: ctx, dir: tmp, files: map[string]part{}}
	if err := a.receive(r); err != nil {
		return nodeapi.Image{}, err
	}
	id, raw, names, err := a.find(ctx, selected)
	if err != nil {
		return nodeapi.Image{}, err
	}
	m, err := s.readManifest(raw)
	if err != nil {
		return nodeapi.Image{}, err
	}
	blobs := map[string]part{}
	for _, p := range a.files {
		blobs[p.digest] = p
	}
	for _, d := range m.blobs() {
		p, ok := blobs[d.Digest]
		if !ok {
			return nodeapi.Image{}, badArchive("it lacks %s", d.Digest)
		}
		if p.size != d.Size {
			return nodeapi.Image{}, badArchive("%s is of another size than it says", d.Digest)
		}
	}
	config, err := os.ReadFile(blobs[m.config.Digest].path)
	if err != nil {
		return nodeapi.Image{}, fmt.Errorf("read configuration: %w", err)
	}
	var img nodeapi.Image
	err = s.alone(ctx, "image "+scope+" "+id, func() error {
		for _, d := range m.blobs() {
			p := blobs[d.Digest]
			if exists(p.path) { // two layers can be one blob
				if err := s.rename(p.path, s.fetched(scope, d.Digest)); err != nil {
					return err
				}
			}
		}
		img, err = s.finish(ctx, scope, id, raw, m, config, nil, func(nodeapi.ImageProgress) {})
		return err
	})
	img.Names = names
	return img, err
}

// part is a file of an archive, kept under a name of ours.
type part struct {
	path   string
	size   int64
	digest string
}

// incoming is an archive that is being received.
type incoming struct {
	s     *Store
	ctx   context.Context
	dir   string
	files map[string]part
	links map[string]string
	bytes int64
}

// receive keeps the files of an archive. The archive itself may be compressed.
func (a *incoming) receive(r io.Reader) error {
	in := bufio.NewReaderSize(r, 256<<10)
	var src io.Reader = in
	head, _ := in.Peek(4)
	switch {
	case bytes.HasPrefix(head, []byte{0x1f, 0x8b}):
		z, err := gzip.NewReader(in)
		if err != nil {
			return badArchive("it is not compressed as it says")
		}
		defer z.Close()
		src = z
	case bytes.Equal(head, []byte{0x28, 0xb5, 0x2f, 0xfd}):
		z, err := zstd.NewReader(in, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxWindow(maxWindow))
		if err != nil {
			return badArchive("it is not compressed as it says")
		}
		defer z.Close()
		src = z
	}
	a.links = map[string]string{}
	t := tar.NewReader(src)
	for n := 0; ; n++ {
		h, err := t.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil && !errors.Is(err, tar.ErrInsecurePath) {
			return a.unreadable(err)
		}
		if n >= maxArchiveEntries {
			return badArchive("it has more than %d files", maxArchiveEntries)
		}
		if err := a.take(t, h); err != nil {
			return err
		}
	}
	for from, to := range a.links { // docker save once wrote a layer that two images share as a link
		if p, ok := a.files[to]; ok {
			a.files[from] = p
		}
	}
	return nil
}

// unreadable says what is wrong: with the archive, or with whoever sends it.
func (a *incoming) unreadable(err error) error {
	if a.ctx.Err() != nil {
		return a.ctx.Err()
	}
	if _, ok := errors.AsType[*errs.Error](err); ok {
		return err
	}
	return errs.Wrap(errs.InvalidInput, err, "the archive cannot be imported: it is no whole tar archive").Because("bad_archive").
		Suggest("Give an OCI layout as a tar archive, or what docker save writes.")
}

func (a *incoming) take(t *tar.Reader, h *tar.Header) error {
	name := path.Clean("/" + h.Name)[1:]
	switch h.Typeflag {
	case tar.TypeReg:
	case tar.TypeSymlink, tar.TypeLink:
		to := path.Clean("/" + h.Linkname)[1:]
		if h.Typeflag == tar.TypeSymlink {
			to = path.Clean("/" + path.Join(path.Dir(name), h.Linkname))[1:]
		}
		a.links[name] = to
		return nil
	default:
		return nil
	}
	if a.bytes += h.Size; h.Size < 0 || a.bytes > a.s.cfg.Limits.Bytes {
		return tooLarge("the archive has more than %d MiB", a.s.cfg.Limits.Bytes>>20)
	}
	if err := a.s.room(h.Size); err != nil {
		return err
	}
	f, err := os.CreateTemp(a.dir, "p-")
	if err != nil {
		return fmt.Errorf("keep part of archive: %w", err)
	}
	sum := sha256.New()
	n, err := io.Copy(io.MultiWriter(f, sum), t)
	if cerr := errors.Join(f.Sync(), f.Close()); err == nil && cerr != nil {
		return fmt.Errorf("keep part of archive: %w", cerr)
	}
	if err != nil {
		if explained := explain(err); explained != err {
			return explained
		}
		return a.unreadable(err)
	}
	p := part{path: f.Name(), size: n, digest: "sha256:" + hex.EncodeToString(sum.Sum(nil))}
	if hex, ok := strings.CutPrefix(name, blobFolder); ok && p.digest != "sha256:"+hex {
		return badArchive("the content of blobs/sha256/%s is another one", clip(hex))
	}
	if old, ok := a.files[name]; ok {
		if err := os.Remove(old.path); err != nil {
			return fmt.Errorf("replace part of archive: %w", err)
		}
	}
	a.files[name] = p
	return nil
}

// read gives a small file of the archive.
func (a *incoming) read(name string) ([]byte, error) {
	p, ok := a.files[name]
	if !ok {
		return nil, badArchive("it lacks %s", clip(name))
	}
	if p.size > maxArchiveJSON {
		return nil, badArchive("%s is larger than %d bytes", clip(name), maxArchiveJSON)
	}
	return os.ReadFile(p.path)
}

// find gives the manifest of the archive's image and the names that it has.
func (a *incoming) find(ctx context.Context, selected string) (id string, raw []byte, names []string, err error) {
	if _, ok := a.files[indexFile]; ok {
		return a.fromIndex(ctx, selected)
	}
	if _, ok := a.files[dockerFile]; ok {
		return a.fromDocker(selected)
	}
	return "", nil, nil, badArchive("it has neither index.json nor manifest.json")
}

func (a *incoming) fromIndex(ctx context.Context, selected string) (string, []byte, []string, error) {
	b, err := a.read(indexFile)
	if err != nil {
		return "", nil, nil, err
	}
	list, err := v1.ParseIndexManifest(bytes.NewReader(b))
	if err != nil {
		return "", nil, nil, badArchive("its index.json cannot be read")
	}
	found := map[string][]string{}
	kinds := map[string]string{}
	var order []string
	for _, d := range list.Manifests {
		if d.MediaType != "" && !d.MediaType.IsImage() && !d.MediaType.IsIndex() {
			continue
		}
		digest := d.Digest.String()
		name := d.Annotations[fullName]
		if name == "" {
			name = d.Annotations[refName]
		}
		if selected != "" && selected != name && selected != d.Annotations[refName] && selected != digest {
			continue
		}
		if _, ok := found[digest]; !ok {
			order = append(order, digest)
			kinds[digest] = string(d.MediaType)
		}
		found[digest] = append(found[digest], name)
	}
	if len(order) > 1 && selected == "" && list.Manifests[0].Platform != nil {
		// One image for several platforms, listed without a list of its own.
		if best, err := a.s.choose(list); err == nil {
			order = []string{best.Digest.String()}
		}
	}
	if len(order) != 1 {
		return "", nil, nil, several(len(order), selected, found)
	}
	top := order[0]
	raw, err := a.read(blobFolder + hexOf(top))
	if err != nil {
		return "", nil, nil, err
	}
	id, raw, err := a.s.pick(ctx, kinds[top], raw, top, func(_ context.Context, d string) (string, []byte, error) {
		b, err := a.read(blobFolder + hexOf(d))
		return "", b, err
	})
	return id, raw, nonEmpty(found[top]), err
}

func nonEmpty(all []string) []string {
	return slices.DeleteFunc(slices.Clone(all), func(s string) bool { return s == "" })
}

func several(n int, selected string, found map[string][]string) error {
	if n == 0 && selected != "" {
		return badArchive("it has no image %q", clip(selected))
	}
	if n == 0 {
		return badArchive("it has no image")
	}
	var names []string
	for _, all := range found {
		names = append(names, nonEmpty(all)...)
	}
	slices.Sort(names)
	if len(names) > 20 {
		names = names[:20]
	}
	return badArchive("it has %d images", n).Suggest("Say which one with select.").With("images", names)
}

// fromDocker makes the manifest that docker's list stands for.
func (a *incoming) fromDocker(selected string) (string, []byte, []string, error) {
	b, err := a.read(dockerFile)
	if err != nil {
		return "", nil, nil, err
	}
	var list []dockerEntry
	if err := json.Unmarshal(b, &list); err != nil {
		return "", nil, nil, badArchive("its manifest.json cannot be read")
	}
	if selected != "" {
		list = slices.DeleteFunc(list, func(e dockerEntry) bool { return !slices.Contains(e.RepoTags, selected) })
	}
	if len(list) != 1 {
		found := map[string][]string{}
		for _, e := range list {
			found[e.Config] = e.RepoTags
		}
		return "", nil, nil, several(len(list), selected, found)
	}
	e := list[0]
	if len(e.Layers) > a.s.cfg.Limits.Layers {
		return "", nil, nil, tooLarge("it has %d layers, and %d are allowed", len(e.Layers), a.s.cfg.Limits.Layers)
	}
	m := v1.Manifest{SchemaVersion: 2, MediaType: types.OCIManifestSchema1}
	if m.Config, err = a.descriptor(e.Config, types.OCIConfigJSON); err != nil {
		return "", nil, nil, err
	}
	for _, l := range e.Layers {
		d, err := a.descriptor(l, "")
		if err != nil {
			return "", nil, nil, err
		}
		m.Layers = append(m.Layers, d)
	}
	raw, err := json.Marshal(m)
	if err != nil {
		return "", nil, nil, fmt.Errorf("encode manifest: %w", err)
	}
	return digestOf(raw), raw, e.RepoTags, nil
}

// descriptor describes a file of the archive; a layer's kind by how it begins.
func (a *incoming) descriptor(name string, kind types.MediaType) (v1.Descriptor, error) {
	p, ok := a.files[path.Clean("/" + name)[1:]]
	if !ok {
		return v1.Descriptor{}, badArchive("it lacks %s", clip(name))
	}
	h, err := v1.NewHash(p.digest)
	if err != nil {
		return v1.Descriptor{}, fmt.Errorf("describe part of archive: %w", err)
	}
	if kind == "" {
		f, err := os.Open(p.path)
		if err != nil {
			return v1.Descriptor{}, fmt.Errorf("describe part of archive: %w", err)
		}
		defer f.Close()
		head := make([]byte, 4)
		n, _ := io.ReadFull(f, head)
		switch head = head[:n]; {
		case bytes.HasPrefix(head, []byte{0x1f, 0x8b}):
			kind = types.OCILayer
		case bytes.Equal(head, []byte{0x28, 0xb5, 0x2f, 0xfd}):
			kind = types.OCILayerZStd
		default:
			kind = types.OCIUncompressedLayer
		}
	}
	return v1.Descriptor{MediaType: kind, Size: p.size, Digest: h}, nil
}
