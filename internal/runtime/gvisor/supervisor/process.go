package supervisor

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// process is one process for ever: a number alone is given to another one later.
type process struct {
	PID   int    `json:"pid"`
	Start uint64 `json:"start"` // clock ticks after the machine's start
}

var errGone = errors.New("the process is gone")

// identify reads which process has a number now.
func identify(pid int) (process, error) {
	fields, err := statFields(pid)
	if err != nil {
		return process{}, err
	}
	start, err := strconv.ParseUint(fields[19], 10, 64)
	if err != nil {
		return process{}, fmt.Errorf("read start time: %w", err)
	}
	return process{PID: pid, Start: start}, nil
}

// statFields are the fields of /proc/pid/stat from the third on: the second is a name that may hold anything.
func statFields(pid int) ([]string, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		if errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ESRCH) {
			return nil, errGone
		}
		return nil, err
	}
	end := bytes.LastIndexByte(b, ')')
	f := strings.Fields(string(b[end+1:]))
	if end < 0 || len(f) < 50 {
		return nil, errors.New("unexpected form of /proc/pid/stat")
	}
	return f, nil
}

// open gives a pidfd on the runtime's poller, or errGone where another process has the number now.
func (p process) open() (*os.File, error) {
	if p.PID <= 0 {
		return nil, errGone
	}
	fd, err := unix.PidfdOpen(p.PID, unix.PIDFD_NONBLOCK)
	if errors.Is(err, unix.ESRCH) {
		return nil, errGone
	}
	if err != nil {
		return nil, fmt.Errorf("open pidfd: %w", err)
	}
	// Compared after opening: what the descriptor stands for cannot change any more.
	if now, err := identify(p.PID); err != nil || now.Start != p.Start {
		unix.Close(fd)
		return nil, errGone
	}
	return os.NewFile(uintptr(fd), "pidfd"), nil
}

// ended reports whether the process behind a pidfd has, without waiting.
func ended(f *os.File) bool {
	raw, err := f.SyscallConn()
	if err != nil {
		return true
	}
	over := false
	_ = raw.Control(func(fd uintptr) {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0)
		over = err == nil && n > 0
	})
	return over
}

// wait waits until the process behind a pidfd has ended, or the file is closed or its deadline passed.
func wait(f *os.File) error {
	raw, err := f.SyscallConn()
	if err != nil {
		return err
	}
	return raw.Read(func(fd uintptr) bool {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0)
		return err == nil && n > 0
	})
}

// kill ends a process and waits until it has. One that is gone is fine.
func (p process) kill(patience time.Duration) error {
	f, err := p.open()
	if errors.Is(err, errGone) {
		return nil
	}
	if err != nil {
		return err
	}
	defer f.Close()
	raw, err := f.SyscallConn()
	if err != nil {
		return err
	}
	_ = raw.Control(func(fd uintptr) { err = unix.PidfdSendSignal(int(fd), unix.SIGKILL, nil, 0) })
	if err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("kill process %d: %w", p.PID, err)
	}
	if err := f.SetReadDeadline(time.Now().Add(patience)); err != nil {
		return err
	}
	if err := wait(f); err != nil {
		return fmt.Errorf("wait for killed process %d: %w", p.PID, err)
	}
	return nil
}

// exit says how a process ended. Known is false where nobody can tell any more.
type exit struct {
	known  bool
	status unix.WaitStatus
}

// exitOf asks how the process behind a pidfd ended: its zombie where it is not reaped, the kernel's own record where it is (since 6.15).
func exitOf(p process, f *os.File) exit {
	if fields, err := statFields(p.PID); err == nil && fields[0] == "Z" && fields[19] == strconv.FormatUint(p.Start, 10) {
		if code, err := strconv.Atoi(fields[49]); err == nil {
			return exit{true, unix.WaitStatus(code)}
		}
	}
	// The first version of struct pidfd_info.
	info := struct {
		mask     uint64
		cgroup   uint64
		ids      [11]uint32
		exitCode int32
	}{mask: 1 << 3}
	const getInfo = 3<<30 | 0xff<<8 | 11
	var errno unix.Errno
	raw, err := f.SyscallConn()
	if err != nil {
		return exit{}
	}
	_ = raw.Control(func(fd uintptr) {
		_, _, errno = unix.Syscall(unix.SYS_IOCTL, fd, getInfo|unsafe.Sizeof(info)<<16, uintptr(unsafe.Pointer(&info)))
	})
	if errno != 0 || info.mask&(1<<3) == 0 {
		return exit{}
	}
	return exit{true, unix.WaitStatus(info.exitCode)}
}

// found is a process of gVisor that belongs to a root folder.
type found struct {
	process
	id   string // of its sandbox
	boot bool   // or gofer
}

// scan finds every process that serves a sandbox of a root folder, by its arguments.
func scan(root string) ([]found, error) {
	dirs, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return nil, err
	}
	var out []found
	for _, dir := range dirs {
		pid, _ := strconv.Atoi(filepath.Base(dir))
		p, err := identify(pid)
		if err != nil {
			continue // it has ended meanwhile
		}
		b, err := os.ReadFile(filepath.Join(dir, "cmdline"))
		if err != nil || len(b) == 0 {
			continue
		}
		args := strings.Split(strings.TrimRight(string(b), "\x00"), "\x00")
		if args[0] != "runsc-sandbox" && args[0] != "runsc-gofer" || !slices.Contains(args, "--root="+root) {
			continue
		}
		out = append(out, found{process: p, id: args[len(args)-1], boot: args[0] == "runsc-sandbox"})
	}
	return out, nil
}

// bootID names this start of the machine.
func bootID() string {
	b, _ := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return strings.TrimSpace(string(b))
}
