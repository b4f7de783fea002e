//go:build linux

package guest

import (
	"errors"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	readBuffer = 64 << 10
	// widenAfter is how much a stream has to bring until its pipe is made as large as widePipe: most never do.
	widenAfter = 256 << 10
	widePipe   = 1 << 20

	// terminalDrain is how long the last bytes of a terminal are waited for: the kernel hands them over a moment after its last writer is gone.
	terminalDrain = 100 * time.Millisecond
)

// buffers lends the memory that streams read into, so that a silent stream holds none.
type buffers struct{ pool sync.Pool }

func (b *buffers) get() *[readBuffer]byte {
	if buf, ok := b.pool.Get().(*[readBuffer]byte); ok {
		return buf
	}
	return new([readBuffer]byte)
}

func (b *buffers) put(buf *[readBuffer]byte) { b.pool.Put(buf) }

// stream moves what a process writes into its spool until every writer is gone.
type stream struct {
	file    *os.File
	raw     syscall.RawConn
	spool   *spool
	buffers *buffers
	onData  func()
	tty     bool

	mu      sync.Mutex // held over a read and the write to the spool, so that the order is kept
	brought int64
	widened bool
	eof     chan struct{}
}

// newStream takes a non-blocking descriptor over.
func newStream(fd int, name string, s *spool, b *buffers, onData func()) (*stream, error) {
	f := os.NewFile(uintptr(fd), name)
	raw, err := f.SyscallConn()
	if err != nil {
		_ = f.Close()
		return nil, err
	}
	return &stream{file: f, raw: raw, spool: s, buffers: b, onData: onData, eof: make(chan struct{})}, nil
}

// run reads until the end. It is a goroutine's.
func (s *stream) run() {
	_ = s.raw.Read(func(fd uintptr) bool {
		for {
			switch s.once(int(fd), readBuffer, true) {
			case errAgain:
				return false
			case errEnd:
				return true
			}
		}
	})
	close(s.eof)
	_ = s.file.Close()
}

// drain takes what is there now. It is called once the main process has ended, so that all that it wrote is there; what a process that
// outlives it goes on to write is not waited for. With patient it waits for followers to make room.
func (s *stream) drain(patient bool) {
	if s == nil {
		return
	}
	if s.tty {
		t := time.NewTimer(terminalDrain)
		defer t.Stop()
		select {
		case <-s.eof:
			return
		case <-t.C:
		}
	}
	_ = s.raw.Control(func(fd uintptr) {
		left, err := unix.IoctlGetInt(int(fd), unix.TIOCINQ)
		if err != nil {
			return
		}
		before := s.count()
		for s.count()-before < int64(left) {
			if s.once(int(fd), readBuffer, patient) != nil {
				return
			}
		}
	})
	s.count() // what run has read and not yet written is in the spool after this
}

// count is how much it has brought.
func (s *stream) count() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.brought
}

var (
	errAgain = errors.New("nothing now")
	errEnd   = errors.New("the end")
)

// once reads once, at most n bytes; with patient no more than followers have room for, and where there is none it waits.
func (s *stream) once(fd, n int, patient bool) error {
	n = min(n, readBuffer)
	s.mu.Lock()
	defer s.mu.Unlock()
	for patient {
		room, moved := s.spool.room(n)
		if room > 0 {
			n = room
			break
		}
		s.mu.Unlock()
		<-moved
		s.mu.Lock()
	}
	buf := s.buffers.get()
	defer s.buffers.put(buf)
	for {
		got, err := syscall.Read(fd, buf[:n])
		switch {
		case err == syscall.EINTR:
			continue
		case err == syscall.EAGAIN:
			return errAgain
		case err != nil || got <= 0: // a terminal ends with EIO
			return errEnd
		}
		s.spool.write(buf[:got])
		s.brought += int64(got)
		if s.brought > widenAfter && !s.widened && !s.tty {
			s.widened = true
			_, _ = unix.FcntlInt(uintptr(fd), unix.F_SETPIPE_SZ, widePipe)
		}
		s.onData()
		return nil
	}
}
