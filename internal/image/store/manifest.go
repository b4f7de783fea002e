package store

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/image/registry"
	"github.com/berthrun/berth/internal/nodeapi"
)

// The most that is read or kept of an image's configuration.
const (
	maxConfig = 4 << 20
	maxEnv    = 64 << 10
	maxLabels = 32 << 10
)

// descriptor is a blob as a manifest names it.
type descriptor struct {
	Digest, MediaType string
	Size              int64
}

// manifest is what is used of an image's manifest.
type manifest struct {
	config descriptor
	layers []descriptor
}

func (m *manifest) size() (n int64) {
	n = m.config.Size
	for _, l := range m.layers {
		n += l.Size
	}
	return n
}

func (m *manifest) blobs() []descriptor { return append([]descriptor{m.config}, m.layers...) }

func notImage(format string, args ...any) *errs.Error {
	return errs.E(errs.InvalidInput, "this is no container image: "+format, args...).Because("not_image").Suggest("Use an image of a Linux program or system.")
}

// index reports whether a manifest lists others, by its content where its type does not say.
func index(mediaType string, b []byte) bool {
	switch types.MediaType(mediaType) {
	case types.OCIImageIndex, types.DockerManifestList:
		return true
	case types.OCIManifestSchema1, types.DockerManifestSchema2:
		return false
	}
	var probe struct {
		MediaType string            `json:"mediaType"`
		Manifests []json.RawMessage `json:"manifests"`
	}
	_ = json.Unmarshal(b, &probe)
	return types.MediaType(probe.MediaType).IsIndex() || len(probe.Manifests) > 0
}

// readManifest checks an image's manifest against the limits.
func (s *Store) readManifest(b []byte) (*manifest, error) {
	var probe struct {
		SchemaVersion int `json:"schemaVersion"`
	}
	_ = json.Unmarshal(b, &probe)
	if probe.SchemaVersion == 1 {
		return nil, notImage("its manifest is of the first version, which nothing makes any more")
	}
	m, err := v1.ParseManifest(bytes.NewReader(b))
	if err != nil {
		return nil, notImage("its manifest cannot be read")
	}
	if !m.Config.MediaType.IsConfig() && m.Config.MediaType != "" {
		return nil, notImage("its configuration is of type %s", clip(string(m.Config.MediaType)))
	}
	out := &manifest{config: describe(m.Config)}
	for _, l := range m.Layers {
		out.layers = append(out.layers, describe(l))
	}
	if len(out.layers) > s.cfg.Limits.Layers {
		return nil, tooLarge("it has %d layers, and %d are allowed", len(out.layers), s.cfg.Limits.Layers)
	}
	for _, d := range out.blobs() {
		if !registry.ValidDigest(d.Digest) || d.Size < 0 || d.Size > s.cfg.Limits.Bytes {
			return nil, notImage("a part of it has no digest or size that can be")
		}
	}
	if out.config.Size > maxConfig {
		return nil, tooLarge("its configuration has %d bytes", out.config.Size)
	}
	if n := out.size(); n > s.cfg.Limits.Bytes {
		return nil, tooLarge("it has %d MiB, and %d are allowed", n>>20, s.cfg.Limits.Bytes>>20)
	}
	return out, nil
}

func tooLarge(format string, args ...any) *errs.Error {
	return errs.E(errs.LimitExceeded, "the image is too large: "+format, args...).Because("image_too_large").Suggest("Use a smaller image.")
}

func describe(d v1.Descriptor) descriptor {
	return descriptor{Digest: d.Digest.String(), MediaType: string(d.MediaType), Size: d.Size}
}

func clip(s string) string {
	if len(s) > 200 {
		return s[:200] + "…"
	}
	return s
}

// maxNesting is how many lists of manifests may be in each other.
const maxNesting = 3

// pick finds the manifest that this node can run, beginning with one that may list several. get gives one by its digest.
func (s *Store) pick(ctx context.Context, mediaType string, b []byte, digest string, get func(ctx context.Context, d string) (string, []byte, error)) (string, []byte, error) {
	for range maxNesting {
		if !index(mediaType, b) {
			return digest, b, nil
		}
		list, err := v1.ParseIndexManifest(bytes.NewReader(b))
		if err != nil {
			return "", nil, notImage("its list of platforms cannot be read")
		}
		best, err := s.choose(list)
		if err != nil {
			return "", nil, err
		}
		digest = best.Digest.String()
		if !registry.ValidDigest(digest) {
			return "", nil, notImage("its list of platforms names no digest")
		}
		if mediaType, b, err = get(ctx, digest); err != nil {
			return "", nil, err
		}
	}
	return "", nil, notImage("its lists of platforms lead to each other")
}

func (s *Store) choose(list *v1.IndexManifest) (v1.Descriptor, error) {
	var found []v1.Descriptor
	var others []string
	for _, d := range list.Manifests {
		p := d.Platform
		switch {
		case d.MediaType != "" && !d.MediaType.IsImage() && !d.MediaType.IsIndex():
		case p == nil && len(list.Manifests) == 1, p == nil && d.MediaType.IsIndex():
			found = append(found, d)
		case p == nil:
		case p.OS == "linux" && p.Architecture == s.cfg.Arch:
			found = append(found, d)
		case p.OS != "unknown" && len(others) < 32:
			others = append(others, clip(p.OS+"/"+p.Architecture))
		}
	}
	if len(found) == 0 {
		slices.Sort(others)
		return v1.Descriptor{}, s.wrongPlatform(slices.Compact(others))
	}
	// The plainest variant runs everywhere.
	slices.SortStableFunc(found, func(a, b v1.Descriptor) int { return strings.Compare(variant(a), variant(b)) })
	return found[0], nil
}

func variant(d v1.Descriptor) string {
	if d.Platform == nil {
		return ""
	}
	return d.Platform.Variant
}

func (s *Store) wrongPlatform(has []string) error {
	return errs.E(errs.InvalidInput, "the image does not run here: it is for %s, and this node is linux/%s", clip(strings.Join(has, ", ")), s.cfg.Arch).
		Because("wrong_platform").Suggest("Use an image that is built for linux/%s.", s.cfg.Arch).With("platforms", has)
}

// readConfig gives what is kept of an image's configuration and the digests of its unpacked layers.
func (s *Store) readConfig(b []byte, layers int) (cfg nodeapi.ImageConfig, diffs []string, created time.Time, err error) {
	file, err := v1.ParseConfigFile(bytes.NewReader(b))
	if err != nil {
		return cfg, nil, created, notImage("its configuration cannot be read")
	}
	if (file.OS != "" && file.OS != "linux") || (file.Architecture != "" && file.Architecture != s.cfg.Arch) {
		return cfg, nil, created, s.wrongPlatform([]string{file.OS + "/" + file.Architecture})
	}
	if len(file.RootFS.DiffIDs) != layers {
		return cfg, nil, created, notImage("it names %d layers and describes %d", layers, len(file.RootFS.DiffIDs))
	}
	for _, d := range file.RootFS.DiffIDs {
		diffs = append(diffs, d.String())
	}
	c := file.Config
	cfg = nodeapi.ImageConfig{Env: c.Env, WorkingDir: c.WorkingDir, User: c.User, Entrypoint: c.Entrypoint, Cmd: c.Cmd, Labels: map[string]string{}}
	for port := range c.ExposedPorts {
		cfg.ExposedPorts = append(cfg.ExposedPorts, port)
	}
	slices.Sort(cfg.ExposedPorts)
	if err := checkConfig(cfg); err != nil {
		return cfg, nil, created, err
	}
	room := maxLabels
	keys := make([]string, 0, len(c.Labels))
	for k := range c.Labels {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	for _, k := range keys {
		if room -= len(k) + len(c.Labels[k]); room >= 0 {
			cfg.Labels[k] = c.Labels[k]
		}
	}
	return cfg, diffs, file.Created.Time, nil
}

func checkConfig(c nodeapi.ImageConfig) error {
	total := len(c.WorkingDir) + len(c.User)
	for _, list := range [][]string{c.Env, c.Entrypoint, c.Cmd, c.ExposedPorts} {
		for _, v := range list {
			total += len(v)
			if strings.ContainsRune(v, 0) {
				return notImage("its configuration holds a NUL byte")
			}
		}
	}
	if strings.ContainsAny(c.WorkingDir+c.User, "\x00\n") || len(c.WorkingDir) > 4096 || len(c.User) > 256 {
		return notImage("its working directory or user cannot be")
	}
	if total > maxEnv {
		return tooLarge("its configuration's variables and commands have %d bytes, and %d are allowed", total, maxEnv)
	}
	return nil
}

// kindOf says how a layer is compressed.
func kindOf(d descriptor) (string, error) {
	switch t := types.MediaType(d.MediaType); t {
	case types.OCILayer, types.DockerLayer, types.OCIRestrictedLayer, types.DockerForeignLayer:
		return "gzip", nil
	case types.OCILayerZStd, "application/vnd.docker.image.rootfs.diff.tar.zstd", "application/vnd.oci.image.layer.nondistributable.v1.tar+zstd":
		return "zstd", nil
	case types.OCIUncompressedLayer, types.DockerUncompressedLayer, types.OCIUncompressedRestrictedLayer:
		return "none", nil
	}
	return "", notImage("it has a layer of type %s", clip(d.MediaType))
}

var errDiff = fmt.Errorf("a layer's content is not what the image's configuration says")
