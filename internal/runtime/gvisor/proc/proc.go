// Package proc owns what the runtime and its driver must know of processes on the host: which one a number means, when it ends and how, and
// which belong to a folder of gVisor's.
//
// A process is watched through a descriptor of its own (pidfd) on Go's poller, which works for processes that are no children too.
package proc

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

// Process is one process for ever: a number alone is given to another one later.
type Process struct {
	PID   int    `json:"pid"`
	Start uint64 `json:"start"` // clock ticks after the machine's start
}

var ErrGone = errors.New("the process is gone")

// Identify reads which process has a number now.
func Identify(pid int) (Process, error) {
	fields, err := statFields(pid)
	if err != nil {
		return Process{}, err
	}
	start, err := strconv.ParseUint(fields[19], 10, 64)
	if err != nil {
		return Process{}, fmt.Errorf("read start time: %w", err)
	}
	return Process{PID: pid, Start: start}, nil
}

// statFields are the fields of /proc/pid/stat from the third on: the second is a name that may hold anything.
func statFields(pid int) ([]string, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		if errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ESRCH) {
			return nil, ErrGone
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

// Open gives a pidfd on the runtime's poller, or ErrGone where another process has the number now.
func (p Process) Open() (*os.File, error) {
	if p.PID <= 0 {
		return nil, ErrGone
	}
	fd, err := unix.PidfdOpen(p.PID, unix.PIDFD_NONBLOCK)
	if errors.Is(err, unix.ESRCH) {
		return nil, ErrGone
	}
	if err != nil {
		return nil, fmt.Errorf("open pidfd: %w", err)
	}
	// Compared after opening: what the descriptor stands for cannot change any more.
	if now, err := Identify(p.PID); err != nil || now.Start != p.Start {
		unix.Close(fd)
		return nil, ErrGone
	}
	return os.NewFile(uintptr(fd), "pidfd"), nil
}

// Ended reports whether the process behind a pidfd has, without waiting.
func Ended(f *os.File) bool {
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

// Wait waits until the process behind a pidfd has ended, or the file is closed or its deadline passed.
func Wait(f *os.File) error {
	raw, err := f.SyscallConn()
	if err != nil {
		return err
	}
	return raw.Read(func(fd uintptr) bool {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0)
		return err == nil && n > 0
	})
}

// Kill ends a process and waits until it has. One that is gone is fine.
func (p Process) Kill(patience time.Duration) error {
	f, err := p.Open()
	if errors.Is(err, ErrGone) {
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
	if err := Wait(f); err != nil {
		return fmt.Errorf("wait for killed process %d: %w", p.PID, err)
	}
	return nil
}

// Exit says how a process ended. Known is false where nobody can tell any more.
type Exit struct {
	Known  bool
	Status unix.WaitStatus
}

// ExitOf asks how the process behind a pidfd ended: its zombie where it is not reaped, the kernel's own record where it is (since 6.15).
func ExitOf(p Process, f *os.File) Exit {
	if fields, err := statFields(p.PID); err == nil && fields[0] == "Z" && fields[19] == strconv.FormatUint(p.Start, 10) {
		if code, err := strconv.Atoi(fields[49]); err == nil {
			return Exit{true, unix.WaitStatus(code)}
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
		return Exit{}
	}
	_ = raw.Control(func(fd uintptr) {
		_, _, errno = unix.Syscall(unix.SYS_IOCTL, fd, getInfo|unsafe.Sizeof(info)<<16, uintptr(unsafe.Pointer(&info)))
	})
	if errno != 0 || info.mask&(1<<3) == 0 {
		return Exit{}
	}
	return Exit{true, unix.WaitStatus(info.exitCode)}
}

// Found is a process of gVisor that belongs to a root folder.
type Found struct {
	Process
	ID   string // of its sandbox
	Boot bool   // or gofer
}

// Scan finds every process that serves a sandbox of a root folder, by its arguments.
func Scan(root string) ([]Found, error) {
	var out []Found
	err := each(func(p Process, args []string) {
		if (args[0] == "runsc-sandbox" || args[0] == "runsc-gofer") && slices.Contains(args, "--root="+root) {
			out = append(out, Found{Process: p, ID: args[len(args)-1], Boot: args[0] == "runsc-sandbox"})
		}
	})
	return out, err
}

// Serving finds every process of a program that was started with a value for a flag, such as --root /var/lib/x, by its arguments.
func Serving(program, flag, value string) ([]Process, error) {
	var out []Process
	err := each(func(p Process, args []string) {
		if i := slices.Index(args, flag); filepath.Base(args[0]) == program && i > 0 && i+1 < len(args) && args[i+1] == value {
			out = append(out, p)
		}
	})
	return out, err
}

// each visits every process that has arguments.
func each(visit func(p Process, args []string)) error {
	dirs, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return err
	}
	for _, dir := range dirs {
		pid, _ := strconv.Atoi(filepath.Base(dir))
		p, err := Identify(pid)
		if err != nil {
			continue // it has ended meanwhile
		}
		b, err := os.ReadFile(filepath.Join(dir, "cmdline"))
		if err != nil || len(b) == 0 {
			continue
		}
		visit(p, strings.Split(strings.TrimRight(string(b), "\x00"), "\x00"))
	}
	return nil
}

// BootID names this start of the machine.
func BootID() string {
	b, _ := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return strings.TrimSpace(string(b))
}
