package nodeagent

import (
	"runtime"

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
