package bundle

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/klauspost/compress/zstd"

	"github.com/berthrun/berth/internal/errs"
)

// manifestName is the file of a bundle that says what is in it. Each program is beside it as <name>.zst.
const manifestName = "manifest.json"

// manifest is what manifest.json holds: the programs by name.
type manifest map[string]entry

// entry describes a program before compression.
type entry struct {
	SHA256 string `json:"sha256"`
	Size   int64  `json:"size"`
}

// Pack compresses programs into the folder dir as a bundle, each under the base of its path. The same programs give the same bytes.
func Pack(dir string, programs ...string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("make bundle folder: %w", err)
	}
	m := manifest{}
	for _, p := range programs {
		e, err := compress(p, filepath.Join(dir, filepath.Base(p)+".zst"))
		if err != nil {
			return fmt.Errorf("pack %s: %w", p, err)
		}
		m[filepath.Base(p)] = e
	}
	data, err := json.MarshalIndent(m, "", "  ")
	if err != nil {
		return fmt.Errorf("encode manifest: %w", err)
	}
	if err := os.WriteFile(filepath.Join(dir, manifestName), append(data, '\n'), 0o644); err != nil {
		return fmt.Errorf("write manifest: %w", err)
	}
	return nil
}

// compress writes a program's compressed form and describes it.
func compress(from, to string) (entry, error) {
	in, err := os.Open(from)
	if err != nil {
		return entry{}, err
	}
	defer in.Close()
	out, err := os.Create(to)
	if err != nil {
		return entry{}, err
	}
	defer out.Close()
	// One at a time: with more, the bytes would depend on the machine.
	zw, err := zstd.NewWriter(out, zstd.WithEncoderLevel(zstd.SpeedBetterCompression), zstd.WithEncoderConcurrency(1))
	if err != nil {
		return entry{}, err
	}
	h := sha256.New()
	n, err := io.Copy(io.MultiWriter(zw, h), in)
	if err != nil {
		return entry{}, err
	}
	if err := zw.Close(); err != nil {
		return entry{}, err
	}
	return entry{SHA256: hex.EncodeToString(h.Sum(nil)), Size: n}, out.Close()
}

// readManifest reads a bundle's manifest.
func readManifest(bundled fs.FS) (manifest, error) {
	data, err := fs.ReadFile(bundled, manifestName)
	if err != nil {
		return nil, fmt.Errorf("read manifest of bundle: %w", err)
	}
	var m manifest
	if err := json.Unmarshal(data, &m); err != nil {
		return nil, fmt.Errorf("read manifest of bundle: %w", err)
	}
	return m, nil
}

// unpack gives a bundled program as a file under dir, written only where it is not there with exactly its content. What is there is replaced
// by rename, never written to: it may be running.
func unpack(bundled fs.FS, m manifest, dir, name string) (Binary, error) {
	e, ok := m[name]
	if !ok || len(e.SHA256) != 2*sha256.Size {
		return Binary{}, errs.E(errs.InvalidConfig, "this berth was built without %s", name).Suggest("Build it with `make build`.")
	}
	if dir == "" {
		return Binary{}, errs.E(errs.InvalidConfig, "no folder was given to unpack %s to", name)
	}
	dir, err := filepath.Abs(dir)
	if err != nil {
		return Binary{}, fmt.Errorf("locate folder for programs: %w", err)
	}
	home := filepath.Join(dir, "bin", e.SHA256[:16])
	bin := Binary{Path: filepath.Join(home, name), SHA256: e.SHA256}
	if whole(bin) {
		return bin, nil
	}
	if err := os.MkdirAll(home, 0o755); err != nil {
		return Binary{}, fmt.Errorf("make folder for programs: %w", err)
	}
	if err := decompress(bundled, e, name, bin.Path); err != nil {
		return Binary{}, fmt.Errorf("unpack %s: %w", name, err)
	}
	return bin, nil
}

// whole reports whether the program is there, runnable and unchanged.
func whole(bin Binary) bool {
	info, err := os.Lstat(bin.Path)
	if err != nil || !info.Mode().IsRegular() || info.Mode().Perm() != 0o755 {
		return false
	}
	sum, err := HashFile(bin.Path)
	return err == nil && sum == bin.SHA256
}

// decompress writes a program under a temporary name, checks it and renames it.
func decompress(bundled fs.FS, e entry, name, path string) (err error) {
	in, err := bundled.Open(name + ".zst")
	if err != nil {
		return err
	}
	defer in.Close()
	zr, err := zstd.NewReader(in, zstd.WithDecoderConcurrency(1))
	if err != nil {
		return err
	}
	defer zr.Close()
	out, err := os.CreateTemp(filepath.Dir(path), "."+name+"-")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, out.Close(), os.Remove(out.Name()))
		}
	}()
	h := sha256.New()
	// One byte more than there should be is enough to know that it is wrong.
	n, err := io.Copy(io.MultiWriter(out, h), io.LimitReader(zr, e.Size+1))
	if err != nil {
		return err
	}
	if sum := hex.EncodeToString(h.Sum(nil)); n != e.Size || sum != e.SHA256 {
		return errs.E(errs.Internal, "the bundled %s is damaged: %d bytes with hash %s", name, n, sum)
	}
	if err := out.Chmod(0o755); err != nil {
		return err
	}
	if err := out.Sync(); err != nil {
		return err
	}
	// A file that is still open for writing cannot be run.
	if err := out.Close(); err != nil {
		return err
	}
	return os.Rename(out.Name(), path)
}
