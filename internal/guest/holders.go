//go:build linux

package guest

import (
	"errors"
	"io/fs"
	"os"
	"strconv"
	"syscall"
)

// letGoOf tells which processes have let go of the output and the errors of a main process: who writes neither any more, as a server that was put into the
// background with a log of its own, is meant to stay when whoever was attached has left. It looks at their standard streams.
func (p *process) letGoOf() (spared func(pid int) bool) {
	var mine []os.FileInfo
	for _, st := range []*stream{p.out, p.err} {
		if st == nil {
			continue
		}
		if info, err := st.file.Stat(); err == nil {
			mine = append(mine, info) // both ends of a pipe are one file
		}
	}
	return func(pid int) bool {
		for _, fd := range []string{"1", "2"} {
			info, err := os.Stat("/proc/" + strconv.Itoa(pid) + "/fd/" + fd)
			if err != nil {
				if !errors.Is(err, fs.ErrNotExist) {
					return false // it cannot be told
				}
				continue
			}
			for _, m := range mine {
				if os.SameFile(m, info) {
					return false
				}
			}
		}
		return true
	}
}

// signalHolders sends signals to the main process and to all of its tree that have not let go of its output.
func (p *process) signalHolders(signals ...syscall.Signal) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.reaped {
		return
	}
	pids := map[int]bool{p.pid: true}
	spread(pids, tasks(), p.pid, p.letGoOf())
	for _, sig := range signals {
		for pid := range pids {
			_ = syscall.Kill(pid, sig)
		}
	}
}

// killHolders ends the main process and all of its tree that have not let go of its output.
func (p *process) killHolders() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.reaped {
		killAll(p.pid, p.letGoOf())
	}
}
