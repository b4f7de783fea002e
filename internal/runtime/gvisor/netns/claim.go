package netns

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// claimDir is where the processes of this machine say which subnet they have. A subnet without sandboxes shows in no route: without a claim two
// that start before their first sandbox would take the same one, and reach each other's sandboxes.
const claimDir = "/run/berth/subnets"

// claim is the hold of one process on a subnet. It ends with the process.
type claim struct {
	dir  string
	file *os.File
}

// claimSubnet gives nil where another process has a subnet that overlaps.
func claimSubnet(dir string, subnet netip.Prefix) (*claim, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("make folder: %w", err)
	}
	unlock, err := lockClaims(dir)
	if err != nil {
		return nil, err
	}
	defer unlock()
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("list subnets: %w", err)
	}
	for _, e := range entries {
		other, err := netip.ParsePrefix(strings.ReplaceAll(e.Name(), "_", "/"))
		if err != nil || !other.Overlaps(subnet) {
			continue
		}
		f, err := lockFile(filepath.Join(dir, e.Name()), unix.LOCK_EX|unix.LOCK_NB)
		if err == unix.EWOULDBLOCK {
			return nil, nil
		}
		if err != nil {
			return nil, err
		}
		f.Close()
	}
	f, err := lockFile(filepath.Join(dir, strings.ReplaceAll(subnet.String(), "/", "_")), unix.LOCK_EX|unix.LOCK_NB)
	if err != nil {
		return nil, err
	}
	return &claim{dir: dir, file: f}, nil
}

// release ends the claim and leaves no file of it.
func (c *claim) release() {
	if c == nil {
		return
	}
	if unlock, err := lockClaims(c.dir); err == nil {
		defer unlock()
		_ = os.Remove(c.file.Name())
	}
	c.file.Close()
}

// lockClaims makes looking at the claims and adding one a single step.
func lockClaims(dir string) (unlock func(), err error) {
	f, err := lockFile(filepath.Join(dir, "lock"), unix.LOCK_EX)
	if err != nil {
		return nil, err
	}
	return func() { f.Close() }, nil
}

func lockFile(path string, how int) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open lock: %w", err)
	}
	for {
		err := unix.Flock(int(f.Fd()), how)
		if err == nil {
			return f, nil
		}
		if err != unix.EINTR {
			f.Close()
			return nil, err
		}
	}
}
