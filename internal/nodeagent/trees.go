package nodeagent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/berthrun/berth/internal/chunk"
	"github.com/berthrun/berth/internal/disk"
	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/id"
	"github.com/berthrun/berth/internal/nodeapi"
	"github.com/berthrun/berth/internal/runtime"
)

// Where berth-runtime keeps saves below the node's folder: what it wrote of memory, and save.json, in saves/NAME; the disk as save.NAME of the disks.
const (
	savesFolder = "saves"
	saveFile    = "save.json"
	saveDisk    = "save."
	partial     = ".new" // ends the name of what is not whole; berth-runtime removes it when it starts
)

// trees reads and makes the files of saves.
type trees struct {
	dir   string
	disks func() (*disk.Store, error)
}

var _ nodeapi.Trees = (*trees)(nil)

func newTrees(c Config) *trees {
	return &trees{dir: c.Dir, disks: func() (*disk.Store, error) { return disk.Open(filepath.Join(c.Dir, "disks"), disk.Kind(c.Disk)) }}
}

func (t *trees) save(name string) string { return filepath.Join(t.dir, savesFolder, name) }

func checkSave(r nodeapi.TreeRequest) error {
	if !id.Valid(id.Snapshot, r.Save) && !id.Valid(id.Layer, r.Save) || r.Part != nodeapi.PartDisk && r.Part != nodeapi.PartMemory {
		return errs.E(errs.InvalidInput, "%q has no tree %q", r.Save, r.Part)
	}
	return nil
}

// SaveTree implements nodeapi.Trees.
func (t *trees) SaveTree(ctx context.Context, r nodeapi.TreeRequest, v chunk.Vault, parent *chunk.Root) (*chunk.Root, chunk.Stats, error) {
	if r.Part == nodeapi.PartVolume {
		return t.saveCopy(ctx, r.Save, v, parent)
	}
	if err := checkSave(r); err != nil {
		return nil, chunk.Stats{}, err
	}
	b, err := os.ReadFile(filepath.Join(t.save(r.Save), saveFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, chunk.Stats{}, errs.E(errs.NotFound, "no save %s is on this node", r.Save)
	}
	var save runtime.Save
	if err == nil {
		err = json.Unmarshal(b, &save)
	}
	if err != nil {
		return nil, chunk.Stats{}, fmt.Errorf("read save: %w", err)
	}
	if r.Part == nodeapi.PartMemory {
		return chunk.Save(ctx, v, chunk.Source{Dir: t.save(r.Save), Cut: chunk.ByPages, At: save.At}, parent)
	}
	disks, err := t.disks()
	if err != nil {
		return nil, chunk.Stats{}, err
	}
	// The copies of a disk share inode numbers and change times where they are snapshots of its file system. Elsewhere both are new, and nothing is trusted.
	return chunk.Save(ctx, v, chunk.Source{Dir: disks.Folder(saveDisk + r.Save), Trust: true, At: save.At}, parent)
}

// LoadTree implements nodeapi.Trees.
func (t *trees) LoadTree(ctx context.Context, r nodeapi.TreeRequest, v chunk.Vault, root *chunk.Root) error {
	if r.Part == nodeapi.PartVolume {
		return t.loadVolume(ctx, r.Save, v, root)
	}
	if err := checkSave(r); err != nil {
		return err
	}
	if _, err := os.Stat(filepath.Join(t.save(r.Save), saveFile)); err == nil {
		return nil
	}
	if r.Part == nodeapi.PartDisk {
		return t.loadDisk(ctx, saveDisk+r.Save, v, root)
	}
	temp := t.save(r.Save) + partial
	if err := errors.Join(os.RemoveAll(temp), os.MkdirAll(temp, 0o700)); err != nil {
		return fmt.Errorf("make folder of save: %w", err)
	}
	err := chunk.Load(ctx, v, root, chunk.Target{Dir: temp})
	if err == nil {
		err = os.Rename(temp, t.save(r.Save))
	}
	if err != nil {
		return errors.Join(err, os.RemoveAll(temp))
	}
	return disk.SyncFolder(filepath.Dir(temp))
}

func (t *trees) loadDisk(ctx context.Context, name string, v chunk.Vault, root *chunk.Root) error {
	disks, err := t.disks()
	if err != nil {
		return err
	}
	if disks.Has(name) {
		return nil
	}
	temp := name + partial
	if err := newDisk(disks, temp, root.Bytes); err != nil {
		return err
	}
	err = chunk.Load(ctx, v, root, chunk.Target{Dir: disks.Folder(temp)})
	if err == nil {
		err = disks.Replace(temp, name)
	}
	if err != nil {
		return errors.Join(err, disks.Remove(temp))
	}
	return nil
}
