package supervisor

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/runtime"
)

// resolvMark begins the resolv.conf that we wrote: what a user has put in its place stays.
const resolvMark = "# written by berth at boot\n"

// furnish writes into a mounted disk what every boot needs: a real /tmp, /etc/hostname, /etc/hosts and /etc/resolv.conf. Servers stall on
// look-ups without the last two.
//
// The disk is the tenant's: any name in it may be a link to anywhere. os.Root never leaves it, and names are removed before they are made.
func furnish(rootfs, hostname, resolv string, fresh bool) error {
	root, err := os.OpenRoot(rootfs)
	if err != nil {
		return fmt.Errorf("open disk: %w", err)
	}
	defer root.Close()
	if err := realTmp(root); err != nil {
		return err
	}
	if info, err := root.Lstat("etc"); errors.Is(err, fs.ErrNotExist) {
		if err := root.Mkdir("etc", 0o755); err != nil {
			return fmt.Errorf("make /etc: %w", err)
		}
	} else if err != nil || !info.IsDir() {
		return nil // the tenant's own doing, and its own loss
	}
	if fresh {
		hosts := "127.0.0.1 localhost\n127.0.1.1 " + hostname + "\n::1 localhost ip6-localhost ip6-loopback\n"
		if err := errors.Join(replace(root, "etc/hostname", hostname+"\n"), replace(root, "etc/hosts", hosts)); err != nil {
			return err
		}
	}
	if fresh || resolvIsOurs(root) {
		return replace(root, "etc/resolv.conf", resolvMark+resolv)
	}
	return nil
}

// furnishTmp writes into a mounted disk only what its kernel, which is brought back and knows the rest, must find there.
func furnishTmp(rootfs string) error {
	root, err := os.OpenRoot(rootfs)
	if err != nil {
		return fmt.Errorf("open disk: %w", err)
	}
	defer root.Close()
	return realTmp(root)
}

// realTmp sees to a real /tmp: gVisor's file server mounts it by its path on the host, and a link there must not be followed.
func realTmp(root *os.Root) error {
	if info, err := root.Lstat("tmp"); err == nil && info.IsDir() {
		return nil
	}
	if err := root.RemoveAll("tmp"); err != nil {
		return fmt.Errorf("replace /tmp: %w", err)
	}
	if err := errors.Join(root.Mkdir("tmp", 0o777), root.Chmod("tmp", 0o777|fs.ModeSticky)); err != nil {
		return fmt.Errorf("make /tmp: %w", err)
	}
	return nil
}

// mountPoints sees to the folders that volumes are mounted at. Links of the disk are followed as they would be inside; where they lead to what nothing may be
// mounted at, or into one another, it is refused.
func mountPoints(rootfs string, mounts []runtime.Mount) error {
	if len(mounts) == 0 {
		return nil
	}
	root, err := os.OpenRoot(rootfs)
	if err != nil {
		return fmt.Errorf("open disk: %w", err)
	}
	defer root.Close()
	led := slices.Clone(mounts)
	for i, m := range led {
		at, err := mountPoint(root, m.Path)
		if err != nil {
			return errs.Wrap(errs.InvalidInput, err, "no volume can be mounted at %s of this sandbox", m.Path).Because("mount_path")
		}
		led[i].Path = at
	}
	return runtime.CheckMounts(led)
}

// maxLinks is how many links one path may go through.
const maxLinks = 40

// mountPoint gives where a path leads inside of a disk, and makes the folders that are missing.
func mountPoint(root *os.Root, at string) (string, error) {
	led, links := ".", 0
	for left := strings.Split(at, "/"); len(left) > 0; {
		name := left[0]
		left = left[1:]
		switch name {
		case "", ".":
			continue
		case "..":
			led = path.Dir(led)
			continue
		}
		next := path.Join(led, name)
		info, err := root.Lstat(next)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			if err := errors.Join(root.Mkdir(next, 0o755), root.Chmod(next, 0o755)); err != nil {
				return "", err
			}
			led = next
		case err != nil:
			return "", err
		case info.Mode().Type() == fs.ModeSymlink:
			if links++; links > maxLinks {
				return "", errors.New("too many links")
			}
			target, err := root.Readlink(next)
			if err != nil {
				return "", err
			}
			if path.IsAbs(target) {
				led = "."
			}
			left = append(strings.Split(target, "/"), left...)
		case info.IsDir():
			led = next
		default:
			return "", fmt.Errorf("/%s is no folder", next)
		}
	}
	return path.Join("/", led), nil
}

// resolvIsOurs reports whether nobody inside has touched resolv.conf. Only a plain file is opened: a pipe would never end.
func resolvIsOurs(root *os.Root) bool {
	info, err := root.Lstat("etc/resolv.conf")
	if errors.Is(err, fs.ErrNotExist) {
		return true
	}
	if err != nil || !info.Mode().IsRegular() {
		return false
	}
	f, err := root.Open("etc/resolv.conf")
	if err != nil {
		return false
	}
	defer f.Close()
	head := make([]byte, len(resolvMark))
	_, err = io.ReadFull(f, head)
	return err == nil && string(head) == resolvMark
}

func replace(root *os.Root, name, text string) error {
	if err := root.RemoveAll(name); err != nil {
		return fmt.Errorf("replace /%s: %w", name, err)
	}
	f, err := root.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o644)
	if err != nil {
		return fmt.Errorf("write /%s: %w", name, err)
	}
	_, err = f.WriteString(text)
	if err := errors.Join(err, f.Chmod(0o644), f.Close()); err != nil {
		return fmt.Errorf("write /%s: %w", name, err)
	}
	return nil
}
