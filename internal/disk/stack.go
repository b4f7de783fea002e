package disk

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// The folders of a node in which images' trees are.
const (
	preparedDir = "images" // prepared ones: a folder each, with one tree
	pulledDir   = "oci"    // pulled ones: shared layers, and which of them make an image
	layersDir   = "layers"
	stacksDir   = "stacks"
)

// PulledDir is the folder of pulled images of a node's folder.
func PulledDir(node string) string { return filepath.Join(node, pulledDir) }

// LayerTree is where a layer's tree is, below the folder of pulled images.
func LayerTree(dir, key string) string { return filepath.Join(dir, layersDir, key, "tree") }

// StackFile is the file that says which layers make an image, below the folder of pulled images. id is sha256: and 64 hexadecimal digits.
func StackFile(dir, id string) string {
	return filepath.Join(dir, stacksDir, strings.TrimPrefix(id, "sha256:")+".json")
}

// Stack gives the read-only trees of an image on a node, the uppermost first: of a prepared one, or of a pulled one. fs.ErrNotExist where it has neither.
func Stack(node, image string) ([]string, error) {
	if image == "" || strings.ContainsAny(image, "/\x00") || image == "." || image == ".." {
		return nil, fmt.Errorf("%q is no id of an image", image)
	}
	rootfs := filepath.Join(node, preparedDir, image, "rootfs")
	if info, err := os.Stat(rootfs); err == nil && info.IsDir() {
		return []string{rootfs}, nil
	}
	b, err := os.ReadFile(StackFile(PulledDir(node), image))
	if err != nil {
		return nil, err
	}
	var keys []string
	if err := json.Unmarshal(b, &keys); err != nil || len(keys) == 0 {
		return nil, fmt.Errorf("read the layers of image %s: %w", image, errors.Join(err, errors.New("no layers")))
	}
	trees := make([]string, len(keys))
	for i, key := range keys {
		if key == "" || key != filepath.Base(key) || key == ".." || key == "." {
			return nil, fmt.Errorf("image %s names the layer %q", image, key)
		}
		trees[i] = LayerTree(PulledDir(node), key)
		if _, err := os.Stat(trees[i]); err != nil {
			return nil, fmt.Errorf("layer of image %s: %w", image, err)
		}
	}
	return trees, nil
}

// RemoveTree removes a folder and all in it. What is mounted inside is unmounted first, deepest first: removing through a mount would reach what is
// mounted. dir is its real path.
func RemoveTree(dir string) error {
	info, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return fmt.Errorf("read mounts: %w", err)
	}
	mounts := MountsUnder(info, dir)
	slices.Reverse(mounts)
	for _, m := range mounts {
		if err := unix.Unmount(m, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil {
			return fmt.Errorf("unmount %s: %w", m, err)
		}
	}
	if err := os.RemoveAll(dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// MountsUnder lists the mount points at or under dir in a mountinfo file, in the order in which they were mounted.
func MountsUnder(mountinfo []byte, dir string) []string {
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
