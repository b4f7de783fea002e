package nodeagent

import (
	"os"
	"runtime"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// cores is how many cores sandboxes may use.
func cores() int { return runtime.NumCPU() }

// memoryMiB is the memory of this machine; 0 where it cannot be told.
func memoryMiB() int64 {
	var info unix.Sysinfo_t
	if unix.Sysinfo(&info) != nil {
		return 0
	}
	return int64(info.Totalram * uint64(info.Unit) >> 20)
}

// availableMiB is how much of it programs can still get without anything being paged out; 0 where it cannot be told.
func availableMiB() int64 {
	text, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(text)) {
		if rest, ok := strings.CutPrefix(line, "MemAvailable:"); ok {
			n, _ := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(rest), " kB"), 10, 64)
			return n >> 10
		}
	}
	return 0
}
