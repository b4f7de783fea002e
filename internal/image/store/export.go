package store

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/berthrun/berth/internal/errs"
)

// The names of an archive.
const (
	layoutFile   = "oci-layout"
	layoutText   = `{"imageLayoutVersion":"1.0.0"}`
	indexFile    = "index.json"
	dockerFile   = "manifest.json"
	blobFolder   = "blobs/sha256/"
	refName      = "org.opencontainers.image.ref.name"
	fullName     = "io.containerd.image.name"
	ociIndexType = "application/vnd.oci.image.index.v1+json"
	// of manifests that do not say it
	ociManifestType = "application/vnd.oci.image.manifest.v1+json"
)

// Export implements nodeapi.Images. The archive is an OCI layout with docker's own list beside it, the same bytes every time.
func (s *Store) Export(ctx context.Context, scope, id string, names []string, w io.Writer) error {
	if err := check(scope, id); err != nil {
		return err
	}
	defer s.work()()
	rec, err := s.load(scope, id)
	if err != nil {
		return err
	}
	if rec == nil {
		return errGone
	}
	raw, err := os.ReadFile(s.blob(id))
	if err != nil {
		return fmt.Errorf("read manifest: %w", err)
	}
	m, err := s.readManifest(raw)
	if err != nil {
		return err
	}
	index, docker, err := lists(id, raw, m, names)
	if err != nil {
		return err
	}
	out := &archive{w: tar.NewWriter(w)}
	for _, dir := range []string{"blobs/", blobFolder} {
		out.header(&tar.Header{Name: dir, Typeflag: tar.TypeDir, Mode: 0o755})
	}
	digests := append(slices.Clone(rec.Blobs), id)
	slices.Sort(digests)
	for _, d := range slices.Compact(digests) {
		if err := ctx.Err(); err != nil {
			return err
		}
		out.blob(blobFolder+hexOf(d), s.blob(d))
	}
	out.file(indexFile, index)
	out.file(dockerFile, docker)
	out.file(layoutFile, []byte(layoutText))
	if out.err != nil {
		return fmt.Errorf("export image: %w", out.err)
	}
	if err := out.w.Close(); err != nil {
		return fmt.Errorf("export image: %w", err)
	}
	return nil
}

type indexEntry struct {
	MediaType   string            `json:"mediaType"`
	Digest      string            `json:"digest"`
	Size        int64             `json:"size"`
	Annotations map[string]string `json:"annotations,omitempty"`
}

// dockerEntry is one image in docker's list.
type dockerEntry struct {
	Config   string
	RepoTags []string
	Layers   []string
}

// lists makes what names the image in the archive: index.json for all that read OCI layouts, manifest.json for docker load.
func lists(id string, raw []byte, m *manifest, names []string) (index, docker []byte, err error) {
	var probe struct {
		MediaType string `json:"mediaType"`
	}
	if err := json.Unmarshal(raw, &probe); err != nil {
		return nil, nil, fmt.Errorf("read manifest: %w", err)
	}
	if probe.MediaType == "" {
		probe.MediaType = ociManifestType
	}
	entry := indexEntry{MediaType: probe.MediaType, Digest: id, Size: int64(len(raw))}
	var entries []indexEntry
	d := dockerEntry{Config: blobFolder + hexOf(m.config.Digest), RepoTags: []string{}}
	for _, n := range names {
		named := entry
		named.Annotations = map[string]string{fullName: n, refName: n[strings.LastIndexByte(n, ':')+1:]}
		entries = append(entries, named)
		d.RepoTags = append(d.RepoTags, strings.TrimPrefix(strings.TrimPrefix(n, "docker.io/"), "library/"))
	}
	if len(entries) == 0 {
		entries = []indexEntry{entry}
	}
	for _, l := range m.layers {
		d.Layers = append(d.Layers, blobFolder+hexOf(l.Digest))
	}
	index, err = json.Marshal(map[string]any{"schemaVersion": 2, "mediaType": ociIndexType, "manifests": entries})
	if err != nil {
		return nil, nil, fmt.Errorf("encode index: %w", err)
	}
	docker, err = json.Marshal([]dockerEntry{d})
	if err != nil {
		return nil, nil, fmt.Errorf("encode list: %w", err)
	}
	return index, docker, nil
}

// archive writes entries until one fails.
type archive struct {
	w   *tar.Writer
	err error
}

func (a *archive) header(h *tar.Header) {
	if a.err == nil {
		h.ModTime = time.Unix(0, 0)
		a.err = a.w.WriteHeader(h)
	}
}

func (a *archive) file(name string, b []byte) { a.copy(name, int64(len(b)), bytes.NewReader(b)) }

func (a *archive) copy(name string, size int64, r io.Reader) {
	a.header(&tar.Header{Name: name, Typeflag: tar.TypeReg, Mode: 0o644, Size: size})
	if a.err == nil {
		_, a.err = io.Copy(a.w, r)
	}
}

func (a *archive) blob(name, path string) {
	if a.err != nil {
		return
	}
	f, err := os.Open(path)
	if err != nil {
		a.err = errors.Join(errs.E(errs.Internal, "a blob of the image is gone"), err)
		return
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		a.err = err
		return
	}
	a.copy(name, info.Size(), f)
}
