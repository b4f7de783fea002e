package disk

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The calls of the kernel's btrfs interface (include/uapi/linux/btrfs.h).
const (
	iocSubvolCreate = 0x5000940e
	iocSnapDestroy  = 0x5000940f
	iocSnapCreate   = 0x50009417 // the second version
	iocInoLookup    = 0xd0009412
	iocFSInfo       = 0x8400941f
	iocQuotaCtl     = 0xc0109428
	iocQgroupLimit  = 0x8030942b

	quotaEnable       = 1
	quotaEnableSimple = 4
	limitReferenced   = 1
	firstFreeObject   = 256
)

func isBtrfs(dir string) bool {
	var st unix.Statfs_t
	return unix.Statfs(dir, &st) == nil && st.Type == unix.BTRFS_SUPER_MAGIC
}

// call makes one ioctl on a folder. arg points to the structure that the call takes.
func call(dir string, request uintptr, arg unsafe.Pointer) error {
	fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), request, uintptr(arg)); errno != 0 {
		return errno
	}
	return nil
}

// volArgs is struct btrfs_ioctl_vol_args.
type volArgs struct {
	fd   int64
	name [4088]byte
}

func createSubvolume(dir, name string) error {
	var a volArgs
	copy(a.name[:len(a.name)-1], name)
	return call(dir, iocSubvolCreate, unsafe.Pointer(&a))
}

// snapshotSubvolume makes a subvolume of another one (struct btrfs_ioctl_vol_args_v2).
func snapshotSubvolume(from, dir, name string) error {
	fd, err := unix.Open(from, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	var a struct {
		fd, transid, flags uint64
		unused             [4]uint64
		name               [4040]byte
	}
	a.fd = uint64(fd)
	copy(a.name[:len(a.name)-1], name)
	return call(dir, iocSnapCreate, unsafe.Pointer(&a))
}

func removeSubvolume(dir, name string) error {
	var a volArgs
	copy(a.name[:len(a.name)-1], name)
	return call(dir, iocSnapDestroy, unsafe.Pointer(&a))
}

// enableQuota prefers simple quotas, which cost nothing while writing; kernels before 6.7 have only the full ones. A file system that
// has either already is fine. With simple ones all that a tree has written counts for it, for as long as any tree has it; with full ones what it has itself.
func enableQuota(dir string) error {
	var failed error
	for _, cmd := range []uint64{quotaEnableSimple, quotaEnable} {
		a := struct{ cmd, status uint64 }{cmd: cmd}
		err := call(dir, iocQuotaCtl, unsafe.Pointer(&a))
		if err == nil || errors.Is(err, unix.EEXIST) {
			return nil
		}
		failed = err
	}
	return failed
}

// subvolumeID is the number of the tree that a folder is the root of.
func subvolumeID(dir string) (uint64, error) {
	a := struct {
		tree, object uint64
		name         [4080]byte
	}{object: firstFreeObject}
	if err := call(dir, iocInoLookup, unsafe.Pointer(&a)); err != nil {
		return 0, err
	}
	return a.tree, nil
}

// limitSubvolume sets struct btrfs_ioctl_qgroup_limit_args of a tree's own group.
func limitSubvolume(dir string, bytes int64) error {
	id, err := subvolumeID(dir)
	if err != nil {
		return err
	}
	a := struct{ group, flags, maxReferenced, maxExclusive, rsvReferenced, rsvExclusive uint64 }{group: id, flags: limitReferenced}
	a.maxReferenced = uint64(bytes)
	if bytes <= 0 {
		a.maxReferenced = ^uint64(0)
	}
	// By the folder above it: the call itself needs room, which a tree that is full does not have.
	return call(filepath.Dir(dir), iocQgroupLimit, unsafe.Pointer(&a))
}

// subvolumeUsage reads what the kernel counts for a tree.
func subvolumeUsage(dir string) (int64, error) {
	id, err := subvolumeID(dir)
	if err != nil {
		return 0, err
	}
	text, err := readQuota(dir, "0_"+strconv.FormatUint(id, 10), "referenced")
	if err != nil {
		return 0, err
	}
	return strconv.ParseInt(text, 10, 64)
}

// simpleQuota reports whether the quotas of a file system are simple ones.
func simpleQuota(dir string) bool {
	mode, err := readQuota(dir, "mode")
	return err == nil && mode == "squota"
}

// readQuota reads what the kernel says of the quotas of a file system.
func readQuota(dir string, parts ...string) (string, error) {
	var info [1024]byte // struct btrfs_ioctl_fs_info_args: two numbers, then the file system's identifier
	if err := call(dir, iocFSInfo, unsafe.Pointer(&info)); err != nil {
		return "", err
	}
	u := info[16:32]
	uuid := fmt.Sprintf("%x-%x-%x-%x-%x", u[0:4], u[4:6], u[6:8], u[8:10], u[10:16])
	b, err := os.ReadFile(filepath.Join("/sys/fs/btrfs", uuid, "qgroups", filepath.Join(parts...)))
	return strings.TrimSpace(string(b)), err
}

// magicAt is where btrfs keeps its name in the first superblock.
const magicAt = 0x10040

// looksWhole reports whether a file holds a btrfs: an image is renamed to its name only once it does.
func looksWhole(path string) bool {
	f, err := os.Open(path)
	if err != nil {
		return false
	}
	defer f.Close()
	var b [8]byte
	_, err = f.ReadAt(b[:], magicAt)
	return err == nil && bytes.Equal(b[:], []byte("_BHRfS_M")) && binary.Size(b) == 8
}
