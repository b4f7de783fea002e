//go:build linux

package guest

import (
	"os"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

// terminal is the master of a pseudo-terminal.
type terminal struct {
	file *os.File
	raw  syscall.RawConn
}

// openTerminal makes a pseudo-terminal of a size that belongs to the account. It gives the master's descriptor, which does not block, and
// the other end for the process.
func openTerminal(size Size, owner *user) (master int, slave *os.File, err error) {
	master, err = unix.Open("/dev/ptmx", unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err == unix.ENOENT {
		master, err = unix.Open("/dev/pts/ptmx", unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	}
	if err != nil {
		return -1, nil, fail(CodeCannotRun, "the sandbox has no terminals: %s", err)
	}
	slave, err = openSlave(master, size, owner)
	if err != nil {
		_ = unix.Close(master)
		return -1, nil, fail(CodeCannotRun, "the terminal could not be made: %s", plain(err))
	}
	return master, slave, nil
}

func openSlave(master int, size Size, owner *user) (*os.File, error) {
	n, err := unix.IoctlGetInt(master, unix.TIOCGPTN)
	if err != nil {
		return nil, err
	}
	if err := unix.IoctlSetPointerInt(master, unix.TIOCSPTLCK, 0); err != nil {
		return nil, err
	}
	if err := setSize(master, size); err != nil {
		return nil, err
	}
	slave, err := os.OpenFile("/dev/pts/"+strconv.Itoa(n), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		return nil, err
	}
	if os.Geteuid() == 0 {
		_ = slave.Chown(int(owner.uid), -1)
		_ = slave.Chmod(0o620)
	}
	return slave, nil
}

func setSize(fd int, s Size) error {
	return unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, &unix.Winsize{Row: uint16(s.Rows), Col: uint16(s.Cols)})
}

// resize sets the size, which the kernel tells the foreground group.
func (t *terminal) resize(s Size) error {
	var inner error
	if err := t.raw.Control(func(fd uintptr) { inner = setSize(int(fd), s) }); err != nil {
		return fail(CodeEnded, "the terminal is closed")
	}
	return inner
}

// foreground is the group that the terminal's keys reach, 0 where unknown.
func (t *terminal) foreground() int {
	group := 0
	_ = t.raw.Control(func(fd uintptr) { group, _ = unix.IoctlGetInt(int(fd), unix.TIOCGPGRP) })
	return group
}

// checkSize fills in an unset size and refuses an absurd one.
func checkSize(s Size) (Size, error) {
	if s.Cols == 0 {
		s.Cols = 80
	}
	if s.Rows == 0 {
		s.Rows = 24
	}
	if s.Cols < 1 || s.Rows < 1 || s.Cols > 4096 || s.Rows > 4096 {
		return s, fail(CodeInvalid, "a terminal has 1 to 4096 columns and rows, not %d × %d", s.Cols, s.Rows)
	}
	return s, nil
}
