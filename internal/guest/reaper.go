//go:build linux

package guest

import (
	"sync"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// reaper starts children and takes their exit statuses. Starting and taking exclude each other, so that a status always finds
// the process it belongs to and no pid is signalled that may be another's. The os/exec package must not be used beside it.
type reaper struct {
	// everyone makes it take the status of every child there is, also of those that it did not start: the duty of pid 1.
	everyone bool
	now      func() time.Time

	mu       sync.Mutex
	children map[int]*process
	kick     chan struct{} // a child was started
	none     atomic.Bool   // there is no child
	stop     chan struct{}
	wg       sync.WaitGroup
}

func newReaper(everyone bool, now func() time.Time) *reaper {
	r := &reaper{everyone: everyone, now: now, children: map[int]*process{}, kick: make(chan struct{}, 1), stop: make(chan struct{})}
	if everyone {
		r.wg.Add(1)
		go r.all()
	}
	return r
}

// start forks and registers the child. ready is called with the pid before its status can be taken.
func (r *reaper) start(p *process, fork func() (int, error), ready func(pid int)) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	pid, err := fork()
	if err != nil {
		return err
	}
	r.none.Store(false)
	ready(pid)
	r.children[pid] = p
	if r.everyone {
		select {
		case r.kick <- struct{}{}:
		default:
		}
		return nil
	}
	r.wg.Add(1)
	go r.one(pid)
	return nil
}

// childless reports whether nothing at all runs beside the guest.
func (r *reaper) childless() bool { return r.none.Load() }

// all waits for any child, for ever. Its goroutine ends once there are no children and it was stopped.
func (r *reaper) all() {
	defer r.wg.Done()
	for {
		pid, err := waitable(unix.P_ALL, 0)
		if err == nil {
			r.take(pid)
			continue
		}
		// No children, so there is nothing below that could become one: wait until one is started.
		r.mu.Lock()
		r.none.Store(len(r.children) == 0)
		r.mu.Unlock()
		select {
		case <-r.kick:
		case <-r.stop:
			return
		}
	}
}

// one waits for one child.
func (r *reaper) one(pid int) {
	defer r.wg.Done()
	if _, err := waitable(unix.P_PID, pid); err == nil {
		r.take(pid)
	}
}

// take takes the status of a child that has ended.
func (r *reaper) take(pid int) {
	r.mu.Lock()
	p := r.children[pid]
	delete(r.children, pid)
	r.mu.Unlock()

	var ws syscall.WaitStatus
	wait := func() {
		for {
			if _, err := syscall.Wait4(pid, &ws, syscall.WNOHANG, nil); err != syscall.EINTR {
				return
			}
		}
	}
	if p == nil {
		wait()
		return
	}
	p.markReaped(wait)
	if p.pty != nil || p.wasFollowed() { // its last bytes may take a moment
		r.wg.Add(1)
		go func() { defer r.wg.Done(); p.reap(ws, r.now(), true) }()
		return
	}
	p.reap(ws, r.now(), false)
}

// close ends the reaper's goroutines. All children must have ended or be ending.
func (r *reaper) close() {
	close(r.stop)
	if !r.everyone { // it may wait for children of others, which the end of pid 1 ends
		r.wg.Wait()
	}
}

// waitable waits until a child has ended and leaves its status to be taken.
func waitable(kind, id int) (int, error) {
	for {
		var info unix.Siginfo
		err := unix.Waitid(kind, id, &info, unix.WEXITED|unix.WNOWAIT, nil)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return 0, err
		}
		// The pid is the first field of the union, which begins at 16 on 64-bit Linux.
		return int(*(*int32)(unsafe.Add(unsafe.Pointer(&info), 16))), nil
	}
}
