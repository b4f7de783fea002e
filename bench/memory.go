package main

import (
	"bufio"
	"bytes"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// pss adds the proportional memory of all processes of sandboxes on this machine, in bytes.
func pss() (int64, error) {
	dirs, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return 0, err
	}
	var total int64
	for _, dir := range dirs {
		name, err := os.ReadFile(filepath.Join(dir, "cmdline"))
		if err != nil || !strings.HasPrefix(filepath.Base(string(bytes.SplitN(name, []byte{0}, 2)[0])), "runsc-") && !isSandbox(dir) {
			continue // it ended, or is another
		}
		data, err := os.ReadFile(filepath.Join(dir, "smaps_rollup"))
		if err != nil {
			continue
		}
		for sc := bufio.NewScanner(bytes.NewReader(data)); sc.Scan(); {
			if f := strings.Fields(sc.Text()); len(f) == 3 && f[0] == "Pss:" {
				kib, err := strconv.ParseInt(f[1], 10, 64)
				if err != nil {
					return 0, err
				}
				total += kib << 10
			}
		}
	}
	return total, nil
}

// isSandbox says whether a process belongs to a sandbox although its name does not say so: the processes that gVisor keeps for the code of a sandbox
// are children of its kernel, and stand in the same cgroup.
func isSandbox(dir string) bool {
	data, err := os.ReadFile(filepath.Join(dir, "cgroup"))
	return err == nil && strings.Contains(string(data), "/sbx_")
}
