package store

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/berthrun/berth/internal/disk"

	"golang.org/x/sys/unix"

	"github.com/berthrun/berth/internal/errs"
)

// writeJSON makes a file that is whole and on disk once it has its name.
func (s *Store) writeJSON(path string, v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("encode %s: %w", filepath.Base(path), err)
	}
	return s.writeFile(path, b)
}

func (s *Store) writeFile(path string, b []byte) error {
	f, err := os.CreateTemp(s.path(tmpDir), "file-")
	if err != nil {
		return fmt.Errorf("write file: %w", err)
	}
	_, err = f.Write(b)
	if err = errors.Join(err, f.Sync(), f.Close()); err == nil {
		err = s.rename(f.Name(), path)
	}
	if err != nil {
		return errors.Join(fmt.Errorf("write file: %w", err), os.Remove(f.Name()))
	}
	return nil
}

// rename gives something its name, for good.
func (s *Store) rename(from, to string) error {
	if err := os.MkdirAll(filepath.Dir(to), 0o700); err != nil {
		return err
	}
	if err := os.Rename(from, to); err != nil {
		return err
	}
	return disk.SyncFolder(filepath.Dir(to))
}

// syncTree waits until all of a folder's file system is on disk.
func syncTree(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return fmt.Errorf("sync layer: %w", err)
	}
	defer d.Close()
	if err := unix.Syncfs(int(d.Fd())); err != nil {
		return fmt.Errorf("sync layer: %w", err)
	}
	return nil
}

// explain gives a full disk its code.
func explain(err error) error {
	if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) {
		if _, ok := errors.AsType[*errs.Error](err); !ok {
			return errs.Wrap(errs.NoCapacity, err, "the node's disk is full").Because("disk_full").Suggest("Delete images or sandboxes that are not needed.")
		}
	}
	return err
}
