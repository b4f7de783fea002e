//go:build linux

package guest

import (
	"bytes"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"time"
)

// killRounds bounds how often the tree of a process is looked at again while it is killed: what forks meanwhile is found by the next look.
const (
	killRounds = 50
	killPause  = time.Millisecond
)

// task is one line of the process table.
type task struct {
	pid, parent, group, session int
	dead, stopped               bool
}

// killTree kills every process of the session and group of a leader and all their descendants, until none is left alive. The
// leader must not have been reaped.
func killTree(leader int) { killAll(leader, nil) }

// killAll is killTree without those that spared says to leave, and without what came from them; nil spares none.
func killAll(leader int, spared func(pid int) bool) {
	doomed := map[int]bool{leader: true}
	own, _ := syscall.Getpgid(0)
	for range killRounds {
		table := tasks()
		spread(doomed, table, leader, spared)
		alive := false
		groups := map[int]bool{}
		for _, t := range table {
			if doomed[t.pid] && !t.dead {
				alive, groups[t.group] = true, true
			}
		}
		if !alive {
			return
		}
		// A whole group at once: what forks at this moment cannot get away.
		for g := range groups {
			if g > 1 && g != own && spared == nil {
				_ = syscall.Kill(-g, syscall.SIGKILL)
			}
		}
		for _, t := range table {
			if doomed[t.pid] && !t.dead {
				_ = syscall.Kill(t.pid, syscall.SIGKILL)
			}
		}
		time.Sleep(killPause)
	}
}

// spread adds the members of the leader's session and group, and the children of all that is doomed.
func spread(doomed map[int]bool, table []task, leader int, spared func(pid int) bool) {
	for grown := true; grown; {
		grown = false
		for _, t := range table {
			if !doomed[t.pid] && t.pid != 1 && t.pid != os.Getpid() && (t.session == leader || t.group == leader || doomed[t.parent]) &&
				(spared == nil || !spared(t.pid)) {
				doomed[t.pid], grown = true, true
			}
		}
	}
}

// tasks reads the process table.
func tasks() []task {
	dir, err := os.Open("/proc")
	if err != nil {
		return nil
	}
	defer dir.Close()
	names, _ := dir.Readdirnames(-1)
	table := make([]task, 0, len(names))
	for _, name := range names {
		pid, err := strconv.Atoi(name)
		if err != nil {
			continue
		}
		stat, err := os.ReadFile(filepath.Join("/proc", name, "stat"))
		if err != nil {
			continue
		}
		if t, ok := parseTask(pid, stat); ok {
			table = append(table, t)
		}
	}
	return table
}

// parseTask reads /proc/PID/stat. The program's name in it may hold anything, so that the fields are counted from its end.
func parseTask(pid int, stat []byte) (task, bool) {
	end := bytes.LastIndexByte(stat, ')')
	if end < 0 {
		return task{}, false
	}
	f := bytes.Fields(stat[end+1:])
	if len(f) < 4 {
		return task{}, false
	}
	t := task{pid: pid, dead: f[0][0] == 'Z' || f[0][0] == 'X', stopped: f[0][0] == 'T' || f[0][0] == 't'}
	for i, to := range []*int{&t.parent, &t.group, &t.session} {
		n, err := strconv.Atoi(string(f[i+1]))
		if err != nil {
			return task{}, false
		}
		*to = n
	}
	return t, true
}
