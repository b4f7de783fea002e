//go:build linux

package guest

import (
	"maps"
	"syscall"
	"time"
)

// State is what a guest that is no pid 1 has in memory, but for its processes and what they wrote: it makes another guest go on where this one was.
type State struct {
	bootID      string
	booted      time.Time
	token       [32]byte
	armed       bool
	env         map[string]string
	workDir     *string
	madeWorkDir bool
	user        string // the image's
	once        []*result
	last        int64
}

// State takes what is in memory now. Calls that are under way are not in it.
func (s *Server) State() *State {
	s.mu.Lock()
	st := &State{bootID: s.bootID, booted: s.booted, token: s.token, armed: s.armed, env: s.env}
	s.mu.Unlock()
	st.workDir, st.madeWorkDir, st.last = s.workDir.Load(), s.madeWorkDir.Load(), s.last.Load()
	s.users.mu.Lock()
	st.user = s.users.preset
	s.users.mu.Unlock()
	s.once.mu.Lock()
	defer s.once.mu.Unlock()
	for _, r := range s.once.order {
		select {
		case <-r.done:
			st.once = append(st.once, r)
		default:
		}
	}
	return st
}

// restore takes a state over, before the first call.
func (s *Server) restore(st *State) {
	s.bootID, s.booted, s.token, s.armed, s.env = st.bootID, st.booted, st.token, st.armed, maps.Clone(st.env)
	s.workDir.Store(st.workDir)
	s.madeWorkDir.Store(st.madeWorkDir)
	s.last.Store(st.last)
	if st.user != "" {
		s.users.setDefault(st.user)
	}
	for _, r := range st.once {
		s.once.results[r.key] = r
		s.once.order = append(s.once.order, r)
		s.once.bytes += len(r.body)
	}
}

// Freeze stops every process that came from this guest, and gives a function that lets those go on that this has stopped. Nothing may be started
// meanwhile.
func (s *Server) Freeze() (thaw func()) {
	held := map[int]bool{}
	for range killRounds {
		more := false
		var table []task
		for _, p := range s.processes.all() {
			if !p.running() {
				continue
			}
			if table == nil {
				table = tasks()
			}
			tree := map[int]bool{p.pid: true}
			p.mu.Lock()
			if !p.reaped {
				spread(tree, table, p.pid, nil)
				for _, t := range table {
					if tree[t.pid] && !t.dead && !t.stopped && syscall.Kill(t.pid, syscall.SIGSTOP) == nil {
						held[t.pid], more = true, true
					}
				}
			}
			p.mu.Unlock()
		}
		if !more {
			break
		}
		time.Sleep(killPause) // until the stop has taken hold, and to find what was forked before it did
	}
	return func() {
		for pid := range held {
			_ = syscall.Kill(pid, syscall.SIGCONT)
		}
	}
}
