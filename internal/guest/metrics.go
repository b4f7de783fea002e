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
	m.MemoryTotal, m.MemoryUsed = memory()
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

// memory reads the total and what of it is in use.
func memory() (total, used int64) {
	b, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return 0, 0
	}
	free := int64(-1)
	for line := range bytes.Lines(b) {
		f := bytes.Fields(line)
		if len(f) < 2 {
			continue
		}
		n, err := strconv.ParseInt(string(f[1]), 10, 64)
		if err != nil {
			continue
		}
		switch string(f[0]) {
		case "MemTotal:":
			total = n << 10
		case "MemAvailable:":
			free = n << 10
		case "MemFree:":
			if free < 0 {
				free = n << 10
			}
		}
	}
	if free < 0 {
		return total, 0
	}
	return total, max(total-free, 0)
}
