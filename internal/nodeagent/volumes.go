package nodeagent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berthrun/berth/internal/chunk"
	"github.com/berthrun/berth/internal/disk"
	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/id"
)

// Where berth-runtime keeps volumes and their copies: as disks, and what a copy is of in copies/NAME.json, which is there before its disk is.
const (
	volumeDisk   = "volume."
	copyDisk     = "copy."
	copiesFolder = "copies"
	loading      = ".load" // ends the name of a volume that is not whole; whoever has it locked is filling it, else berth-runtime removes it when it starts
)

// saveCopy reads a copy of a volume into the vault.
func (t *trees) saveCopy(ctx context.Context, name string, v chunk.Vault, parent *chunk.Root) (*chunk.Root, chunk.Stats, error) {
	if !id.Valid(id.Backup, name) {
		return nil, chunk.Stats{}, errs.E(errs.InvalidInput, "%q is no name of a copy", name)
	}
	disks, err := t.disks()
	if err != nil {
		return nil, chunk.Stats{}, err
	}
	var about struct {
		At time.Time `json:"at"`
	}
	b, err := os.ReadFile(filepath.Join(t.dir, copiesFolder, name+".json"))
	if errors.Is(err, fs.ErrNotExist) || !disks.Has(copyDisk+name) {
		return nil, chunk.Stats{}, errs.E(errs.NotFound, "no copy %s is on this node", name)
	}
	if err == nil {
		err = json.Unmarshal(b, &about)
	}
	if err != nil {
		return nil, chunk.Stats{}, fmt.Errorf("read copy: %w", err)
	}
	// As with the disks of saves: what is unchanged is known where copies are snapshots of the volume's file system, and nowhere else.
	return chunk.Save(ctx, v, chunk.Source{Dir: disks.Folder(copyDisk + name), Trust: true, At: about.At}, parent)
}

// loadVolume makes a volume from the vault.
func (t *trees) loadVolume(ctx context.Context, volume string, v chunk.Vault, root *chunk.Root) error {
	if !id.Valid(id.Volume, volume) {
		return errs.E(errs.InvalidInput, "%q is no id of a volume", volume)
	}
	disks, err := t.disks()
	if err != nil {
		return err
	}
	name, temp := volumeDisk+volume, volumeDisk+volume+loading
	if disks.Has(name) {
		return errs.E(errs.AlreadyExists, "the volume %s is on this node already", volume).Because("volume")
	}
	if f, err := lock(filepath.Dir(disks.Folder(temp))); err == nil {
		_ = f.Close() // what an earlier one left, which was killed
	} else if !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := newDisk(disks, temp, root.Bytes); err != nil {
		return err
	}
	err = t.fillVolume(ctx, disks, name, temp, v, root)
	if err != nil {
		return errors.Join(noRoom(err), disks.Remove(temp))
	}
	return nil
}

// newDisk makes the disk that so many bytes are to be brought to, in the place of what an earlier one left.
func newDisk(disks *disk.Store, name string, bytes int64) error {
	err := errors.Join(disks.Remove(name), disks.Fits(bytes))
	if err == nil {
		err = disks.Create(name, 0)
	}
	return noRoom(err)
}

// fillVolume loads a tree into a new disk, and gives it its name.
func (t *trees) fillVolume(ctx context.Context, disks *disk.Store, name, temp string, v chunk.Vault, root *chunk.Root) error {
	f, err := lock(filepath.Dir(disks.Folder(temp)))
	if err != nil {
		return err
	}
	defer f.Close()
	err = chunk.Load(ctx, v, root, chunk.Target{Dir: disks.Folder(temp)})
	if err == nil {
		err = disks.Sync()
	}
	if err == nil {
		err = disks.Replace(temp, name)
	}
	if err == nil && !disks.Has(name) {
		err = errs.E(errs.Unavailable, "the volume was removed while it was brought to the node")
	}
	if err == nil {
		err = disks.Sync() // the name
	}
	return err
}

// lock locks the folder of a disk until the file is closed: berth-runtime leaves such a one alone.
func lock(dir string) (*os.File, error) {
	f, err := os.Open(dir)
	if err != nil {
		return nil, fmt.Errorf("lock volume: %w", err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return nil, errors.Join(errs.Wrap(errs.Busy, err, "the volume is just being brought to the node").After(time.Second), f.Close())
	}
	return f, nil
}

// noRoom gives the error of a disk without room the code that chunk.Load gives it.
func noRoom(err error) error {
	if _, ok := errors.AsType[*errs.Error](err); !ok && (errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT)) {
		return errs.Wrap(errs.NoCapacity, err, "the disk is full").Because("disk_full").Suggest("Delete snapshots, volumes or sandboxes that are not needed.")
	}
	return err
}
