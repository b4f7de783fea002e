package disk

import (
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// Filesystem names what a folder is on, for operators: btrfs, xfs, ext4, tmpfs, overlay or other.
func Filesystem(dir string) string {
	var st unix.Statfs_t
	if unix.Statfs(dir, &st) != nil {
		return "unknown"
	}
	switch st.Type {
	case unix.BTRFS_SUPER_MAGIC:
		return "btrfs"
	case unix.XFS_SUPER_MAGIC:
		return "xfs"
	case unix.EXT4_SUPER_MAGIC:
		return "ext4"
	case unix.TMPFS_MAGIC:
		return "tmpfs"
	case unix.OVERLAYFS_SUPER_MAGIC:
		return "overlay"
	}
	return "other"
}

// Probe says how Open would keep disks under a folder, without making anything. The folder need not exist. It cannot know whether the kernel refuses
// quotas, so a store with an image or on btrfs is said to have them.
func Probe(dir string, kind Kind) (Description, error) {
	if _, err := os.Stat(imagePath(dir)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return Description{}, err
	} else if err == nil && kind != Btrfs {
		return Description{Kind: Image, Quota: true, Snapshot: true}, nil
	}
	on := dir
	for on != "/" && !exists(on) {
		on = filepath.Dir(on)
	}
	plain := Description{Kind: Plain, Missing: []string{"disk limits are not enforced", "a copy of a disk takes as long as writing it"}}
	switch {
	case kind == Plain:
		return plain, nil
	case isBtrfs(on) && kind != Image:
		return Description{Kind: Btrfs, Quota: true, Snapshot: true}, nil
	case kind == Btrfs:
		return plain, errors.New(dir + " is not on btrfs")
	case kind == Auto && hasEntries(filepath.Join(dir, "trees")):
		plain.Missing = append(plain.Missing, "this data folder already holds plain disks")
		return plain, nil
	}
	if _, err := exec.LookPath("mkfs.btrfs"); err != nil {
		plain.Missing = append(plain.Missing, "no btrfs image can be made here: mkfs.btrfs is not installed")
	} else if !exists("/dev/loop-control") {
		plain.Missing = append(plain.Missing, "no btrfs image can be mounted here: there are no loop devices")
	} else {
		return Description{Kind: Image, Quota: true, Snapshot: true}, nil
	}
	return plain, nil
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}
