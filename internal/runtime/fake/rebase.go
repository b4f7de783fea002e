package fake

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/runtime"
)

// Rebase implements runtime.Driver. A folder of this host stands for every image, so that the new disk is empty but for what is kept.
func (d *Driver) Rebase(ctx context.Context, spec runtime.Spec, opts runtime.RebaseOptions) (runtime.Status, error) {
	if err := d.check(spec); err != nil {
		return runtime.Status{}, err
	}
	keep := path.Base(opts.Keep)
	if opts.Keep != "" && (opts.Keep != "/"+keep || keep == ".." || keep == ".") {
		return runtime.Status{}, errs.E(errs.InvalidInput, "%q is no folder below the root", opts.Keep)
	}
	b, err := d.enter(spec.ID, spec.Generation, false)
	if err != nil {
		return runtime.Status{}, err
	}
	defer b.mu.Unlock()
	st := d.statusOf(b)
	if st.State != runtime.Stopped {
		return runtime.Status{}, wrongState(st)
	}
	if b.rebased == spec.Generation {
		return st, nil
	}
	if err := d.cfg.Before(ctx, "rebase", spec.ID); err != nil {
		return runtime.Status{}, err
	}
	base := filepath.Join(d.cfg.Dir, ".base."+spec.ID)
	if err := os.RemoveAll(base); err != nil {
		return runtime.Status{}, fmt.Errorf("clear new disk: %w", err)
	}
	defer os.RemoveAll(base)
	if opts.Save == "" {
		err = os.MkdirAll(base, 0o777)
	} else {
		err = d.copySave(opts.Save, spec.Image, base)
	}
	if err == nil && opts.Keep != "" {
		err = graft(filepath.Join(b.root, keep), filepath.Join(base, keep))
	}
	if err == nil {
		err = errors.Join(os.RemoveAll(b.root), os.Rename(base, b.root))
	}
	if err != nil {
		return runtime.Status{}, err
	}
	d.settle(b)
	b.rebased, b.spec = spec.Generation, spec
	return d.set(b, runtime.Stopped, st.Reason), nil
}

func (d *Driver) copySave(name, image, to string) error {
	s := d.save(name)
	if s == nil {
		return noSave(name)
	}
	s.mu.RLock()
	defer s.mu.RUnlock()
	switch {
	case s.gone:
		return noSave(name)
	case s.kept.Image != image:
		return errs.E(errs.InvalidInput, "the save %s is of image %s, not %s", name, s.kept.Image, image)
	}
	return copyTree(s.disk(), to)
}

// graft puts a folder in the place of another.
func graft(from, to string) error {
	info, err := os.Lstat(from)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return fmt.Errorf("look for folder: %w", err)
	case !info.IsDir():
		return errs.E(errs.InvalidState, "%s is no folder and cannot be kept", filepath.Base(from)).Because("not_directory")
	}
	if err := os.RemoveAll(to); err != nil {
		return fmt.Errorf("replace folder: %w", err)
	}
	return copyTree(from, to)
}
