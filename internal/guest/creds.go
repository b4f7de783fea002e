//go:build linux

package guest

import (
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// keep leaves an id of setresuid and setresgid as it is.
const keep = ^uintptr(0)

// as runs f with the account's credentials on the file system: what it may not reach, f does not reach, whatever a path leads through. The
// calling thread gets them for the time of f, no other thread does, and the effective capabilities go with them. (gVisor has no setfsuid.)
func (s *Server) as(a *user, f func() error) error {
	if a.uid == 0 && a.gid == 0 || !s.privileged {
		return f()
	}
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		if err := become(a); err != nil {
			done <- fail(CodeInternal, "the guest cannot act as %s: %s", a.name, err)
			return // the thread ends with its goroutine, since it is still locked
		}
		err := guarded(f)
		if restore() == nil {
			runtime.UnlockOSThread()
		}
		done <- err
	}()
	return <-done
}

// guarded turns a panic into an error: on a goroutine of its own it would end pid 1.
func guarded(f func() error) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fail(CodeInternal, "the guest failed: %v", r)
		}
	}()
	return f()
}

// become gives the calling thread the account's effective ids and groups. The raw calls reach this thread only.
func become(a *user) error {
	if err := setGroups(a.groups); err != nil {
		return err
	}
	if _, _, e := unix.RawSyscall(unix.SYS_SETRESGID, keep, uintptr(a.gid), keep); e != 0 {
		return e
	}
	if _, _, e := unix.RawSyscall(unix.SYS_SETRESUID, keep, uintptr(a.uid), keep); e != 0 {
		return e
	}
	return nil
}

// restore makes the calling thread root again.
func restore() error {
	if _, _, e := unix.RawSyscall(unix.SYS_SETRESUID, keep, 0, keep); e != 0 {
		return e
	}
	if _, _, e := unix.RawSyscall(unix.SYS_SETRESGID, keep, 0, keep); e != 0 {
		return e
	}
	return setGroups(nil)
}

func setGroups(groups []uint32) error {
	var first unsafe.Pointer
	if len(groups) > 0 {
		first = unsafe.Pointer(&groups[0])
	}
	if _, _, e := unix.RawSyscall(unix.SYS_SETGROUPS, uintptr(len(groups)), uintptr(first), 0); e != 0 {
		return e
	}
	return nil
}
