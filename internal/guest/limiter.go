//go:build linux

package guest

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// cgroupDir is where the guest mounts the kernel's control groups: on the tmpfs of /dev, so that nothing of it is on the disk.
const cgroupDir = "/dev/.berth/cgroup"

// limiter bounds how many processes and threads there can be beside the guest: it puts every process that is started into a control group
// with a limit, which the guest itself is not in and so is never refused a thread. (gVisor does not enforce RLIMIT_NPROC.)
type limiter struct {
	mu    sync.Mutex
	group *os.File // its folder; nil without a limit
}

// apply puts what is started with attr into the group. The caller keeps the limiter open until then.
func (l *limiter) apply(attr *syscall.SysProcAttr) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.group != nil {
		attr.UseCgroupFD, attr.CgroupFD = true, int(l.group.Fd())
	}
}

// set lets at most n exist. Where the kernel has no such control groups, accounts other than root are limited to n each, for what that is worth
// there.
func (l *limiter) set(n int64) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.group == nil {
		if err := l.mount(); err != nil {
			most := unix.Rlimit{Cur: uint64(n), Max: uint64(n)}
			if limitErr := unix.Setrlimit(unix.RLIMIT_NPROC, &most); limitErr != nil {
				return fmt.Errorf("limit processes: %w, %w", err, limitErr)
			}
			return fmt.Errorf("only accounts other than root are limited: %w", err)
		}
	}
	return os.WriteFile(filepath.Join(l.group.Name(), "pids.max"), strconv.AppendInt(nil, n, 10), 0o644)
}

// mount mounts the control groups and makes ours.
func (l *limiter) mount() error {
	if err := os.MkdirAll(cgroupDir, 0o700); err != nil {
		return err
	}
	if err := syscall.Mount("cgroup2", cgroupDir, "cgroup2", syscall.MS_NOSUID|syscall.MS_NODEV|syscall.MS_NOEXEC, ""); err != nil {
		return fmt.Errorf("mount control groups: %w", err)
	}
	group := filepath.Join(cgroupDir, "sandbox")
	err := os.WriteFile(filepath.Join(cgroupDir, "cgroup.subtree_control"), []byte("+pids"), 0o644)
	if err == nil {
		if err = os.Mkdir(group, 0o700); os.IsExist(err) {
			err = nil
		}
	}
	if err == nil {
		l.group, err = os.Open(group)
	}
	if err != nil {
		_ = syscall.Unmount(cgroupDir, syscall.MNT_DETACH)
		return fmt.Errorf("make control group: %w", err)
	}
	return nil
}

// close lets go of the group.
func (l *limiter) close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	closeAll(l.group)
	l.group = nil
}
