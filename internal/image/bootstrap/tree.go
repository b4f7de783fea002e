package bootstrap

import (
	"bufio"
	"bytes"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// removeTree removes a folder and all in it. What is mounted inside is unmounted first, deepest first: removing through a mount would
// reach the host's own files.
func removeTree(dir string) error {
	info, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return fmt.Errorf("read mounts: %w", err)
	}
	mounts := mountsUnder(info, dir)
	slices.Reverse(mounts)
	for _, m := range mounts {
		if err := unix.Unmount(m, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil {
			return fmt.Errorf("unmount %s: %w", m, err)
		}
	}
	return os.RemoveAll(dir)
}

// mountsUnder lists the mount points at or under dir in a mountinfo file, in the order in which they were mounted.
func mountsUnder(mountinfo []byte, dir string) []string {
	var under []string
	for line := range bytes.Lines(mountinfo) {
		fields := strings.Fields(string(line))
		if len(fields) < 5 {
			continue
		}
		point := unescapeMount(fields[4])
		if point == dir || strings.HasPrefix(point, dir+"/") {
			under = append(under, point)
		}
	}
	return under
}

// unescapeMount undoes the kernel's octal escapes of blanks and backslashes.
func unescapeMount(s string) string {
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] == '\\' && i+3 < len(s) {
			if n, err := strconv.ParseUint(s[i+1:i+4], 8, 8); err == nil {
				b.WriteByte(byte(n))
				i += 3
				continue
			}
		}
		b.WriteByte(s[i])
	}
	return b.String()
}

// treeSize adds up the sizes of the files under dir, counting hard links once.
func treeSize(dir string) (int64, error) {
	var total int64
	seen := map[uint64]bool{}
	err := filepath.WalkDir(dir, func(_ string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		if st, ok := info.Sys().(*syscall.Stat_t); ok && st.Nlink > 1 {
			if seen[st.Ino] {
				return nil
			}
			seen[st.Ino] = true
		}
		total += info.Size()
		return nil
	})
	if err != nil {
		return 0, fmt.Errorf("measure image: %w", err)
	}
	return total, nil
}

// countPackages counts the installed packages that the tree's dpkg knows of.
func countPackages(rootfs string) (int, error) {
	f, err := os.Open(filepath.Join(rootfs, "var/lib/dpkg/status"))
	if err != nil {
		return 0, fmt.Errorf("read package list of image: %w", err)
	}
	defer f.Close()
	n := 0
	sc := bufio.NewScanner(f)
	sc.Buffer(nil, 1<<20)
	for sc.Scan() {
		if sc.Text() == "Status: install ok installed" {
			n++
		}
	}
	if err := sc.Err(); err != nil {
		return 0, fmt.Errorf("read package list of image: %w", err)
	}
	return n, nil
}

// writeSynced writes a file and waits until it is on disk.
func writeSynced(path string, data []byte) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if err == nil {
		err = f.Sync()
	}
	if closeErr := f.Close(); err == nil {
		err = closeErr
	}
	return err
}
