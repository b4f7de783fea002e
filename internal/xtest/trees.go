package xtest

import (
	"context"
	"errors"
	"os"
	"path/filepath"

	"github.com/berthrun/berth/internal/chunk"
	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/id"
	"github.com/berthrun/berth/internal/nodeapi"
	"github.com/berthrun/berth/internal/runtime/fake"
)

// fakeTrees hands out the files of the fake driver's copies and saves, and makes volumes of them. It runs as root, as the package that it covers does.
type fakeTrees struct {
	driver *fake.Driver
	dir    string // the driver's
}

var _ nodeapi.Trees = fakeTrees{}

// SaveTree implements nodeapi.Trees.
func (f fakeTrees) SaveTree(ctx context.Context, r nodeapi.TreeRequest, v chunk.Vault, parent *chunk.Root) (*chunk.Root, chunk.Stats, error) {
	dir := filepath.Join(f.dir, ".saves", r.Save, "disk")
	switch r.Part {
	case nodeapi.PartVolume:
		if !id.Valid(id.Backup, r.Save) {
			return nil, chunk.Stats{}, errs.E(errs.InvalidInput, "%q is no name of a copy", r.Save)
		}
		dir = f.driver.VolumeFolder(r.Save)
	case nodeapi.PartMemory: // a file, which is not what these tests bring back
		dir = filepath.Join(f.dir, ".saves", r.Save)
	}
	if _, err := os.Stat(dir); err != nil {
		return nil, chunk.Stats{}, errs.Wrap(errs.NotFound, err, "no %s of %s is on this node", r.Part, r.Save)
	}
	return chunk.Save(ctx, v, chunk.Source{Dir: dir}, parent)
}

// LoadTree implements nodeapi.Trees.
func (f fakeTrees) LoadTree(ctx context.Context, r nodeapi.TreeRequest, v chunk.Vault, root *chunk.Root) error {
	if r.Part != nodeapi.PartVolume || !id.Valid(id.Volume, r.Save) {
		return errs.E(errs.InvalidInput, "%q has no tree %q", r.Save, r.Part)
	}
	dir := f.driver.VolumeFolder(r.Save)
	if _, err := os.Stat(dir); err == nil {
		return errs.E(errs.AlreadyExists, "the volume %s is there", r.Save)
	}
	temp := filepath.Dir(dir) + ".load"
	err := errors.Join(os.RemoveAll(temp), os.MkdirAll(filepath.Join(temp, filepath.Base(dir)), 0o777))
	if err == nil {
		err = chunk.Load(ctx, v, root, chunk.Target{Dir: filepath.Join(temp, filepath.Base(dir)), Relaxed: true})
	}
	if err == nil {
		err = os.Rename(temp, filepath.Dir(dir))
	}
	if err != nil {
		return errors.Join(err, os.RemoveAll(temp))
	}
	return nil
}
