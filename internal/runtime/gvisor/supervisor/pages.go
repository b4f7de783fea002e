package supervisor

import (
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"sync"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// This file is about the files of pages: past the page cache, or through it. What goes through it is copied and takes memory of the machine for what is
// hardly read again; where new pages are dear, as in some virtual machines, that takes several times as long as the disk does. A slow disk is worse: then the
// cache has the pages for it while a sandbox stands still.

// How writing is tried at the start, and the speed in bytes a second from which on a disk is written to past the page cache.
const (
	trialBytes = 8 << 20
	trialBlock = 1 << 20
	trials     = 3
	quickDisk  = 400e6
)

// tryWrites finds out how fast the disk is, with a file that has no name.
func (s *Supervisor) tryWrites() {
	best := time.Hour
	for range trials {
		took, err := tryWrite(s.path())
		if err != nil {
			s.log.Info("pages are written through the page cache", "error", err)
			return
		}
		best = min(best, took)
	}
	speed := trialBytes / max(best, time.Microsecond).Seconds()
	s.direct.Store(speed >= quickDisk)
	s.log.Info("disk was tried", "bytes_a_second", int64(speed), "pages_past_cache", speed >= quickDisk)
}

func tryWrite(dir string) (time.Duration, error) {
	f, err := os.OpenFile(dir, unix.O_TMPFILE|os.O_WRONLY|unix.O_DIRECT, 0o600)
	if err != nil {
		return 0, fmt.Errorf("make trial file: %w", err)
	}
	defer f.Close()
	block := aligned(trialBlock)
	begin := time.Now()
	for range trialBytes / trialBlock {
		if _, err := f.Write(block); err != nil {
			return 0, fmt.Errorf("write trial file: %w", err)
		}
	}
	return time.Since(begin), nil
}

// aligned gives so many bytes as a read past the page cache wants them.
func aligned(n int) []byte {
	page := os.Getpagesize()
	b := make([]byte, n+page)
	skip := -int(uintptr(unsafe.Pointer(&b[0]))) & (page - 1)
	return b[skip : skip+n]
}

// blocks are those that files are read by. More than 256 KiB does not stay in the processor's cache.
var blocks = sync.Pool{New: func() any {
	b := aligned(256 << 10)
	return &b
}}

// sum reads a file whole: from the page cache where most of it is there, else past it where the file system can.
func sum(ctx context.Context, path string) (checksum, error) {
	if !cached(path) {
		if got, err := sumBy(ctx, path, unix.O_DIRECT); err == nil || ctx.Err() != nil {
			return got, err
		}
	}
	return sumBy(ctx, path, 0)
}

func sumBy(ctx context.Context, path string, flags int) (checksum, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|flags, 0)
	if err != nil {
		return checksum{}, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return checksum{}, err
	}
	h := crc32.New(crc32.MakeTable(crc32.Castagnoli))
	block, _ := blocks.Get().(*[]byte)
	defer blocks.Put(block)
	buf := *block
	var n int64
	for ctx.Err() == nil {
		k, err := f.Read(buf)
		_, _ = h.Write(buf[:k])
		n += int64(k)
		// Past the page cache nothing can be read from where a file ends.
		if errors.Is(err, io.EOF) || err == nil && n >= info.Size() {
			return checksum{n, h.Sum32()}, nil
		}
		if err != nil {
			return checksum{}, err
		}
	}
	return checksum{}, ctx.Err()
}

// direct reports whether a memory's pages are read past the page cache. What is on the disk is, also where the cache has it: gVisor takes 1 GiB in a third of
// the time then. What was just written and is not on the disk yet is when less than half of it is in the cache.
func (m *memory) direct(path string) bool {
	if m.Brief {
		return !cached(path)
	}
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_DIRECT, 0) // some file systems refuse it
	if err != nil {
		return false
	}
	return f.Close() == nil
}

// cached reports whether at least half of a file is in the page cache, or cannot be asked about.
func cached(path string) bool {
	f, err := os.Open(path)
	if err != nil {
		return true
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil || info.Size() == 0 {
		return true
	}
	b, err := unix.Mmap(int(f.Fd()), 0, int(info.Size()), unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		return true
	}
	defer unix.Munmap(b) //nolint:errcheck // of our own mapping
	page := os.Getpagesize()
	present := make([]byte, (len(b)+page-1)/page)
	if _, _, errno := unix.Syscall(unix.SYS_MINCORE, uintptr(unsafe.Pointer(&b[0])), uintptr(len(b)), uintptr(unsafe.Pointer(&present[0]))); errno != 0 {
		return true
	}
	resident := 0
	for _, p := range present {
		resident += int(p & 1)
	}
	return 2*resident >= len(present)
}
