package disk

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"
)

func imagePath(dir string) string { return filepath.Join(dir, "btrfs.img") }

// mountImage mounts the sparse image of a folder at target, making it first where there is none. An image that is mounted already stays.
func mountImage(dir, target string) error {
	if isBtrfs(target) {
		return nil
	}
	path := imagePath(dir)
	if _, err := os.Stat(path); errors.Is(err, os.ErrNotExist) {
		if err := makeImage(path, dir); err != nil {
			return err
		}
	}
	if !looksWhole(path) {
		return fmt.Errorf("%s is not a btrfs image", path)
	}
	dev, err := attachLoop(path)
	if err != nil {
		return fmt.Errorf("attach loop device: %w", err)
	}
	defer dev.Close() // the mount keeps it from now on; without one it goes
	// Discards give the host back what a sandbox removed.
	if err := unix.Mount(dev.Name(), target, "btrfs", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOATIME, "discard=async"); err != nil {
		return fmt.Errorf("mount %s: %w", dev.Name(), err)
	}
	return nil
}

// makeImage makes a file as large as nine tenths of what the host has free; it takes only what is written into it.
func makeImage(path, dir string) error {
	mkfs, err := exec.LookPath("mkfs.btrfs")
	if err != nil {
		return errors.New("mkfs.btrfs is not installed")
	}
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return fmt.Errorf("measure %s: %w", dir, err)
	}
	size := int64(st.Bavail) * st.Bsize / 10 * 9 &^ (1<<20 - 1)
	if size < 1<<30 {
		return errors.New("less than 1 GiB is free")
	}
	temp := path + ".new"
	_ = os.Remove(temp)
	f, err := os.OpenFile(temp, os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	defer os.Remove(temp)
	err = errors.Join(f.Truncate(size), f.Close())
	if err != nil {
		return fmt.Errorf("make %s: %w", temp, err)
	}
	if out, err := exec.Command(mkfs, "-q", "-m", "single", temp).CombinedOutput(); err != nil {
		return fmt.Errorf("mkfs.btrfs: %w: %s", err, out)
	}
	return os.Rename(temp, path)
}

// attachLoop connects a free loop device to a file. The device lets go of it when its last user does.
func attachLoop(path string) (*os.File, error) {
	back, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	defer back.Close()
	ctl, err := os.OpenFile("/dev/loop-control", os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	defer ctl.Close()
	for range 64 {
		n, err := unix.IoctlRetInt(int(ctl.Fd()), unix.LOOP_CTL_GET_FREE)
		if err != nil {
			return nil, fmt.Errorf("find free loop device: %w", err)
		}
		dev, err := os.OpenFile("/dev/loop"+strconv.Itoa(n), os.O_RDWR, 0)
		if err != nil {
			return nil, err
		}
		cfg := unix.LoopConfig{Fd: uint32(back.Fd())}
		cfg.Info.Flags = unix.LO_FLAGS_AUTOCLEAR
		copy(cfg.Info.File_name[:len(cfg.Info.File_name)-1], path)
		err = unix.IoctlLoopConfigure(int(dev.Fd()), &cfg)
		if err == nil {
			return dev, nil
		}
		dev.Close()
		if !errors.Is(err, unix.EBUSY) {
			return nil, fmt.Errorf("configure loop device: %w", err)
		}
		// Another process took it meanwhile.
	}
	return nil, errors.New("no free loop device")
}
