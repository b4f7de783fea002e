package runtime

import (
	"path"
	"strings"
	"unicode/utf8"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/id"
)

// Mount shows a volume inside a sandbox. A volume is mounted by one sandbox that may write to it, or by any number that only read.
type Mount struct {
	Volume   string // vol_…
	Path     string // inside, absolute and clean
	ReadOnly bool
}

// Volume is a disk of its own on a node, which outlives the sandboxes that mount it. Its root folder is one that every user may write to.
type Volume struct {
	ID        string
	SizeGiB   int64 // that it may hold, in GiB of 2^30 bytes; 0 where nobody has said yet, as of one that was just brought to the node
	UsedBytes int64 // that it holds now, or held half a minute ago
}

// MaxMounts is the most volumes that one sandbox mounts.
const MaxMounts = 16

// maxMountPath is the most bytes of a mount's path.
const maxMountPath = 1024

// reserved are the folders of a sandbox that nothing is mounted at or below.
var reserved = [...]string{"/proc", "/sys", "/dev", "/.berth"}

// CheckMountPath says what is wrong with a path for a mount: errs.InvalidInput with reason "mount_path" where it is not absolute and clean, is the root, is
// one of /proc, /sys, /dev and /.berth or lies below them, has a control character, or is longer than 1,024 bytes.
func CheckMountPath(p string) error {
	bad := func(format string, args ...any) error {
		return errs.E(errs.InvalidInput, format, args...).Because("mount_path").Suggest("Give a folder by its absolute path, such as /data.")
	}
	switch {
	case len(p) > maxMountPath:
		return bad("the path of a volume has at most %d bytes", maxMountPath)
	case !utf8.ValidString(p) || strings.ContainsFunc(p, func(r rune) bool { return r < ' ' || r == 0x7f }):
		return bad("the path of a volume has a character that it may not have")
	case !path.IsAbs(p) || path.Clean(p) != p:
		return bad("the path %q of a volume is not absolute and clean", p)
	case p == "/":
		return bad("a volume cannot be mounted at the root")
	}
	for _, r := range reserved {
		if within(p, r) {
			return bad("nothing can be mounted at %s", p)
		}
	}
	return nil
}

// within reports whether a clean path is a folder or lies below it.
func within(p, folder string) bool { return p == folder || strings.HasPrefix(p, folder+"/") }

// CheckMounts says what is wrong with the mounts of one sandbox, beside what CheckMountPath does: errs.InvalidInput, with reason "mount_path" where two paths
// are the same or one lies below the other, and reason "volume" for an id that is none or a volume that is there twice.
func CheckMounts(mounts []Mount) error {
	if len(mounts) > MaxMounts {
		return errs.E(errs.InvalidInput, "a sandbox mounts at most %d volumes", MaxMounts).Because("volume")
	}
	for i, m := range mounts {
		if !id.Valid(id.Volume, m.Volume) {
			return errs.E(errs.InvalidInput, "%q is no id of a volume", m.Volume).Because("volume")
		}
		if err := CheckMountPath(m.Path); err != nil {
			return err
		}
		for _, other := range mounts[:i] {
			switch {
			case other.Volume == m.Volume:
				return errs.E(errs.InvalidInput, "the volume %s is mounted twice", m.Volume).Because("volume")
			case within(m.Path, other.Path) || within(other.Path, m.Path):
				return errs.E(errs.InvalidInput, "the paths %s and %s of volumes lie in one another", other.Path, m.Path).Because("mount_path")
			}
		}
	}
	return nil
}
