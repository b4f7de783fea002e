//go:build linux

package guest

import (
	"bytes"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// activity answers what keeps the sandbox from idling.
func (s *Server) activity(w http.ResponseWriter, _ *http.Request) {
	a := Activity{Last: time.Unix(0, s.last.Load()).UTC()}
	for _, p := range s.processes.all() {
		switch {
		case !p.running():
		case p.pty != nil:
			a.Terminals++
		case !p.background:
			a.Foreground++
		}
	}
	answer(w, a, nil)
}

// sync writes everything to the disk.
func (s *Server) sync(w http.ResponseWriter, _ *http.Request) {
	s.syncDisk()
	answer(w, struct{}{}, nil)
}

// syncDisk syncs the whole sandbox, or in a test what is below its root.
func (s *Server) syncDisk() {
	if s.cfg.Init {
		unix.Sync()
		return
	}
	if d, err := os.Open(filepath.Join(s.cfg.Root, "/")); err == nil {
		_ = unix.Syncfs(int(d.Fd()))
		_ = d.Close()
	}
}

// metrics answers readings of the whole sandbox.
func (s *Server) metrics(w http.ResponseWriter, _ *http.Request) {
	m := Metrics{At: s.now(), UptimeSeconds: time.Since(s.booted).Seconds(), CPUSeconds: cpuSeconds(), Processes: max(len(tasks())-1, 0)}
	mem := s.readMemory()
	m.MemoryTotal, m.MemoryUsed = mem.total, mem.used
	var st unix.Statfs_t
	// A file system without a size of its own says that it is nearly endless.
	if unix.Statfs(filepath.Join(s.cfg.Root, "/"), &st) == nil && st.Blocks < uint64(maxStream/max(st.Bsize, 1)) {
		m.DiskTotal = int64(st.Blocks) * st.Bsize
		m.DiskUsed = int64(st.Blocks-st.Bfree) * st.Bsize
	}
	if load, err := os.ReadFile("/proc/loadavg"); err == nil {
		first, _, _ := bytes.Cut(load, []byte{' '})
		m.Load1, _ = strconv.ParseFloat(string(first), 64)
	}
	answer(w, m, nil)
}

// cpuSeconds is what this process and its children that were waited for have used.
func cpuSeconds() float64 {
	total := 0.0
	for _, who := range []int{syscall.RUSAGE_SELF, syscall.RUSAGE_CHILDREN} {
		var ru syscall.Rusage
		if syscall.Getrusage(who, &ru) == nil {
			total += time.Duration(ru.Utime.Nano() + ru.Stime.Nano()).Seconds()
		}
	}
	return total
}

// memoryState is what the kernel says of the sandbox's memory, in bytes. Files that are mapped do not count as used: the host takes their pages back when it
// needs them.
type memoryState struct {
	total, used int64
}

// left is what may still be used, less than nothing where more is used than there should be.
func (m memoryState) left() int64 { return m.total - m.used }

// readMemory gives zeros where the kernel says nothing.
func (s *Server) readMemory() memoryState {
	b, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return memoryState{}
	}
	return parseMemory(b, s.gvisor)
}

// parseMemory reads /proc/meminfo. gVisor's free memory does not go below 0 and is without what is mapped of files, so there what is used is taken.
func parseMemory(b []byte, gvisor bool) memoryState {
	m := map[string]int64{}
	for line := range bytes.Lines(b) {
		f := bytes.Fields(line)
		if len(f) < 2 {
			continue
		}
		if n, err := strconv.ParseInt(string(f[1]), 10, 64); err == nil && n >= 0 && n < maxStream>>10 {
			m[string(f[0])] = n << 10
		}
	}
	out := memoryState{total: m["MemTotal:"]}
	available, told := m["MemAvailable:"]
	if !told {
		available, told = m["MemFree:"]
	}
	switch {
	case gvisor:
		out.used = m["AnonPages:"] // tmpfs too
	case told:
		out.used = max(out.total-available, 0)
	}
	return out
}

// insideGvisor reports whether the kernel is gVisor.
func insideGvisor() bool {
	_, err := os.Stat("/proc/sentry-meminfo")
	return err == nil
}
