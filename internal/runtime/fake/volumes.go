package fake

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/id"
	"github.com/berthrun/berth/internal/runtime"
)

// A volume is a folder with its data and the size it was given, a copy one with its data and what it is of. Mounted, a link to the data is in the sandbox's
// folder; what that hides is beside, until the sandbox ends. Neither sizes nor that a mount is read-only are enforced.
const (
	dataDir  = "data"
	sizeFile = "size"
	copyFile = "copy.json"
)

// copied says what a copy is of.
type copied struct {
	Volume string `json:"volume"`
}

func (d *Driver) volumeDir(volume string) string { return filepath.Join(d.cfg.Dir, ".volumes", volume) }

func (d *Driver) copyDir(name string) string { return filepath.Join(d.cfg.Dir, ".copies", name) }

func (d *Driver) underDir(sandbox string) string { return filepath.Join(d.cfg.Dir, ".under", sandbox) }

// VolumeFolder is where the content of a volume is, or of a copy by its name, for tests.
func (d *Driver) VolumeFolder(name string) string {
	if id.Valid(id.Backup, name) {
		return filepath.Join(d.copyDir(name), dataDir)
	}
	return filepath.Join(d.volumeDir(name), dataDir)
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

func noVolume(volume string) error {
	return errs.E(errs.NotFound, "there is no volume %s on this node", volume).Because("volume")
}

// claim gives a sandbox's mounts to it, unless others have what they exclude.
func (d *Driver) claim(sandbox string, mounts []runtime.Mount) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, m := range mounts {
		if !exists(d.VolumeFolder(m.Volume)) {
			return noVolume(m.Volume)
		}
		for other, theirs := range d.claims {
			for _, o := range theirs {
				if other != sandbox && o.Volume == m.Volume && !(o.ReadOnly && m.ReadOnly) {
					return errs.E(errs.InvalidState, "the volume %s is mounted by another sandbox", m.Volume).Because("volume_in_use")
				}
			}
		}
	}
	if d.claims[sandbox] = mounts; len(mounts) == 0 {
		delete(d.claims, sandbox)
	}
	return nil
}

func (d *Driver) release(sandbox string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.claims, sandbox)
}

// attach puts links to its volumes into a sandbox's folder.
func (d *Driver) attach(b *box, sandbox string, mounts []runtime.Mount) error {
	for i, m := range mounts {
		at := filepath.Join(b.root, m.Path)
		root, err := os.OpenRoot(b.root)
		if err == nil { // by a root, so that a link in the way leads nowhere else
			err = root.MkdirAll(strings.TrimPrefix(m.Path, "/"), 0o755)
			err = errors.Join(err, root.Close())
		}
		if err != nil {
			return errs.Wrap(errs.InvalidInput, err, "nothing can be mounted at %s of this sandbox", m.Path).Because("mount_path")
		}
		under := filepath.Join(d.underDir(sandbox), strconv.Itoa(i))
		err = os.MkdirAll(filepath.Dir(under), 0o700)
		if err == nil {
			err = os.Rename(at, under)
		}
		if err == nil {
			err = os.Symlink(d.VolumeFolder(m.Volume), at)
		}
		if err != nil {
			return fmt.Errorf("mount volume: %w", err)
		}
	}
	return nil
}

// detach takes them out again, and puts back what they hid.
func (d *Driver) detach(b *box) {
	for i, m := range b.spec.Mounts {
		at, under := filepath.Join(b.root, m.Path), filepath.Join(d.underDir(b.spec.ID), strconv.Itoa(i))
		if exists(under) {
			_ = os.Remove(at)
			_ = os.Rename(under, at)
		}
	}
	_ = os.RemoveAll(d.underDir(b.spec.ID))
}

// sameMounts compares mounts whatever their order.
func sameMounts(a, b []runtime.Mount) bool {
	byPath := func(x, y runtime.Mount) int { return strings.Compare(x.Path, y.Path) }
	return slices.Equal(slices.SortedFunc(slices.Values(a), byPath), slices.SortedFunc(slices.Values(b), byPath))
}

// copyDisk copies a sandbox's folder without its volumes.
func (d *Driver) copyDisk(b *box, to string) error {
	err := copyTree(b.root, to)
	for i, m := range b.spec.Mounts {
		under := filepath.Join(d.underDir(b.spec.ID), strconv.Itoa(i))
		if at := filepath.Join(to, m.Path); err == nil && exists(under) {
			if err = os.Remove(at); err == nil {
				err = copyTree(under, at)
			}
		}
	}
	return err
}

// MakeVolume implements runtime.Driver.
func (d *Driver) MakeVolume(ctx context.Context, volume string, sizeGiB int64) error {
	if err := d.volumes(ctx, "makeVolume", volume); err != nil {
		return err
	}
	if sizeGiB < 1 {
		return errs.E(errs.InvalidInput, "a volume has at least 1 GiB")
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	dir := d.volumeDir(volume)
	if had, _ := d.size(volume); had >= sizeGiB {
		return nil
	}
	data := filepath.Join(dir, dataDir)
	err := os.MkdirAll(data, 0o777)
	if err == nil {
		err = os.Chmod(data, 0o777) //nolint:gosec // every user of a sandbox may write to a volume
	}
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, sizeFile), []byte(strconv.FormatInt(sizeGiB, 10)), 0o600)
	}
	if err != nil {
		return fmt.Errorf("make volume: %w", err)
	}
	return nil
}

// volumes begins a call about a volume or a copy.
func (d *Driver) volumes(ctx context.Context, method, name string) error {
	if !d.cfg.Can.Volumes {
		return unsupported()
	}
	kind := id.Volume
	if method == "forgetCopy" {
		kind = id.Backup
	}
	if !id.Valid(kind, name) {
		return errs.E(errs.InvalidInput, "%q is no id of a volume or a copy", name)
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	return d.cfg.Before(ctx, method, name)
}

func (d *Driver) size(volume string) (int64, error) {
	b, err := os.ReadFile(filepath.Join(d.volumeDir(volume), sizeFile))
	if err != nil {
		return 0, err
	}
	return strconv.ParseInt(string(b), 10, 64)
}

// RemoveVolume implements runtime.Driver.
func (d *Driver) RemoveVolume(ctx context.Context, volume string) error {
	if err := d.volumes(ctx, "removeVolume", volume); err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, theirs := range d.claims {
		for _, m := range theirs {
			if m.Volume == volume {
				return errs.E(errs.InvalidState, "the volume %s is mounted", volume).Because("mounted")
			}
		}
	}
	if err := os.RemoveAll(d.volumeDir(volume)); err != nil {
		return fmt.Errorf("remove volume: %w", err)
	}
	return nil
}

// Volumes implements runtime.Driver.
func (d *Driver) Volumes(context.Context) ([]runtime.Volume, error) {
	if !d.cfg.Can.Volumes {
		return nil, unsupported()
	}
	names, err := folders(filepath.Join(d.cfg.Dir, ".volumes"))
	all := make([]runtime.Volume, 0, len(names))
	for _, name := range names {
		gib, _ := d.size(name)
		all = append(all, runtime.Volume{ID: name, SizeGiB: gib, UsedBytes: size(d.VolumeFolder(name))})
	}
	return all, err
}

// folders lists the names in a folder; it need not be there.
func folders(dir string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("list volumes: %w", err)
	}
	names := make([]string, 0, len(entries))
	for _, e := range entries {
		if !strings.Contains(e.Name(), ".") {
			names = append(names, e.Name())
		}
	}
	return names, nil
}

// CopyVolume implements runtime.Driver.
func (d *Driver) CopyVolume(ctx context.Context, volume, name string) error {
	if d.cfg.Can.Volumes && !id.Valid(id.Backup, name) {
		return errs.E(errs.InvalidInput, "%q is no name of a copy", name)
	}
	if err := d.volumes(ctx, "copyVolume", volume); err != nil {
		return err
	}
	for {
		writer := d.writer(volume)
		if writer != nil {
			writer.mu.Lock()
		}
		if d.writer(volume) == writer {
			err := d.copyVolume(writer, volume, name)
			if writer != nil {
				writer.mu.Unlock()
			}
			return err
		}
		if writer != nil {
			writer.mu.Unlock()
		}
	}
}

// writer is the sandbox that writes to a volume, nil where none does.
func (d *Driver) writer(volume string) *box {
	d.mu.Lock()
	defer d.mu.Unlock()
	for sandbox, theirs := range d.claims {
		for _, m := range theirs {
			if m.Volume == volume && !m.ReadOnly {
				return d.boxes[sandbox]
			}
		}
	}
	return nil
}

// copyVolume copies while the sandbox that writes, whose lock is held, stands still.
func (d *Driver) copyVolume(writer *box, volume, name string) error {
	if b, err := os.ReadFile(filepath.Join(d.copyDir(name), copyFile)); err == nil {
		var is copied
		if err := json.Unmarshal(b, &is); err != nil || is.Volume != volume {
			return errs.E(errs.AlreadyExists, "there is a copy %s of another volume", name)
		}
		return nil
	}
	if !exists(d.VolumeFolder(volume)) {
		return noVolume(volume)
	}
	if writer != nil && writer.guest != nil && writer.thaw == nil {
		writer.freeze()
		defer writer.goOn()
	}
	work := d.copyDir(name) + ".new"
	err := os.RemoveAll(work)
	if err == nil {
		err = copyTree(d.VolumeFolder(volume), filepath.Join(work, dataDir))
	}
	if err == nil {
		b, _ := json.Marshal(copied{volume})
		err = os.WriteFile(filepath.Join(work, copyFile), b, 0o600)
	}
	if err == nil {
		err = os.Rename(work, d.copyDir(name))
	}
	if err != nil {
		_ = os.RemoveAll(work)
		return fmt.Errorf("copy volume: %w", err)
	}
	return nil
}

// ForgetCopy implements runtime.Driver.
func (d *Driver) ForgetCopy(ctx context.Context, name string) error {
	if err := d.volumes(ctx, "forgetCopy", name); err != nil {
		return err
	}
	if err := os.RemoveAll(d.copyDir(name)); err != nil {
		return fmt.Errorf("remove copy: %w", err)
	}
	return nil
}

// Copies implements runtime.Driver.
func (d *Driver) Copies(context.Context) ([]string, error) {
	if !d.cfg.Can.Volumes {
		return nil, unsupported()
	}
	return folders(filepath.Join(d.cfg.Dir, ".copies"))
}
