//go:build linux

package guest

import (
	"bytes"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"time"
)

// How the guard looks after the memory. The host ends the whole sandbox some way above the limit that it is told (128 MiB and an eighth), so that what
// is lost between two looks must fit in there.
const (
	guardFastest = 5 * time.Millisecond
	guardSlowest = 200 * time.Millisecond
	guardAsleep  = 5 * time.Second // while there is no process at all
	guardSpeed   = 16 << 30        // bytes a second that programs do not exceed; four on two fast cores come to 10
	guardLeast   = 8 << 20         // left free at least
	guardMost    = 64 << 20        // and at most; a 32nd of all between them
	guardDying   = 500 * time.Millisecond
)

// guard ends the largest process before the memory of the sandbox is used up: gVisor's kernel is one process to the host, whose own last resort would
// end it with everything inside.
type guard struct {
	s     *Server
	wake  chan struct{} // a process was started
	stop  chan struct{}
	wg    sync.WaitGroup
	asked map[int]bool // processes that were killed and have not ended yet
}

// runGuard starts it. It ends with close.
func runGuard(s *Server) *guard {
	g := &guard{s: s, wake: make(chan struct{}, 1), stop: make(chan struct{}), asked: map[int]bool{}}
	g.wg.Add(1)
	go func() { defer g.wg.Done(); g.run() }()
	return g
}

func (g *guard) close() {
	if g != nil {
		close(g.stop)
		g.wg.Wait()
	}
}

// poke tells it that a process was started.
func (g *guard) poke() {
	if g == nil {
		return
	}
	select {
	case g.wake <- struct{}{}:
	default:
	}
}

func (g *guard) run() {
	t := time.NewTimer(0)
	defer t.Stop()
	for {
		select {
		case <-g.stop:
			return
		case <-g.wake:
			t.Stop()
		case <-t.C:
		}
		t.Reset(g.look())
	}
}

// look acts where it must, and gives the time to the next look.
func (g *guard) look() time.Duration {
	m := g.s.readMemory()
	if m.total == 0 {
		return guardAsleep
	}
	if m.left() < guardReserve(m.total) {
		g.relieve()
		return guardFastest
	}
	if g.s.reaper.childless() {
		return guardAsleep
	}
	return guardPause(m)
}

// guardReserve is how much has to be free.
func guardReserve(total int64) int64 { return min(max(total/32, guardLeast), guardMost) }

// guardPause is how long nothing can happen.
func guardPause(m memoryState) time.Duration {
	return min(max(time.Duration(float64(m.left())/guardSpeed*float64(time.Second)), guardFastest), guardSlowest)
}

// relieve kills the largest process and waits until it is gone, or others take what it left.
func (g *guard) relieve() {
	table := tasks()
	alive := map[int]bool{}
	for _, t := range table {
		alive[t.pid] = !t.dead
	}
	for pid := range g.asked {
		if !alive[pid] {
			delete(g.asked, pid)
		}
	}
	victim, size := g.largest(table)
	if victim == 0 {
		return
	}
	before := g.s.readMemory()
	g.mark(table, victim)
	if syscall.Kill(victim, syscall.SIGKILL) != nil {
		return
	}
	g.asked[victim] = true
	g.s.cfg.Log.Warn("memory is used up: killed the largest process", "pid", victim, "resident", size, "used", before.used, "total", before.total)
	for end := time.Now().Add(guardDying); time.Now().Before(end); time.Sleep(guardFastest) {
		if gone(victim) || g.s.readMemory().used > before.used+guardLeast {
			return
		}
	}
}

// largest gives the process with the most memory that was not killed already. The guest itself is none.
func (g *guard) largest(table []task) (pid int, size int64) {
	self := os.Getpid()
	for _, t := range table {
		if t.pid == self || t.pid == 1 || t.dead || g.asked[t.pid] {
			continue
		}
		if n := resident(t.pid); n >= size {
			pid, size = t.pid, n
		}
	}
	return pid, size
}

// mark says of the process that the killed one belongs to why it ended: to it, one of its session or group, or one that came from it.
func (g *guard) mark(table []task, victim int) {
	byPID := map[int]task{}
	for _, t := range table {
		byPID[t.pid] = t
	}
	family := map[int]bool{}
	for at := victim; at > 1 && !family[at]; at = byPID[at].parent {
		family[at], family[byPID[at].group], family[byPID[at].session] = true, true, true
	}
	for _, p := range g.s.processes.all() {
		if family[p.pid] {
			p.ranOut()
		}
	}
}

// ranOut marks a process of which a part was killed for the memory.
func (p *process) ranOut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.reaped {
		p.outOfMemory = true
	}
}

// resident is what of a process is in memory, in bytes.
func resident(pid int) int64 {
	b, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "statm"))
	if err != nil {
		return 0
	}
	f := bytes.Fields(b)
	if len(f) < 2 {
		return 0
	}
	n, _ := strconv.ParseInt(string(f[1]), 10, 64)
	return n * int64(os.Getpagesize())
}

// gone reports whether a process has ended.
func gone(pid int) bool {
	stat, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
	if err != nil {
		return true
	}
	t, ok := parseTask(pid, stat)
	return !ok || t.dead
}
