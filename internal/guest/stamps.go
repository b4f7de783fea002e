//go:build linux

package guest

import (
	"net/http"
	"slices"
	"sort"
	"time"
)

// stampEvery is how close together two stamps of a stream may be: what is read sooner shares one.
const stampEvery = int64(10 * time.Millisecond / time.Microsecond)

// stamps say when which part of a stream came. There are at most MaxStamps: then every second one is let go, so that old ones become coarser.
type stamps []Stamp

func (s *stamps) add(offset, at int64) {
	if n := len(*s); n > 0 {
		last := (*s)[n-1]
		at = max(at, last[1]) // the clock may have been set back
		if at-last[1] < stampEvery || offset == last[0] {
			return
		}
	}
	if len(*s) == MaxStamps {
		kept := (*s)[:0]
		for i := 0; i < MaxStamps; i += 2 {
			kept = append(kept, (*s)[i])
		}
		*s = kept
	}
	*s = append(*s, Stamp{offset, at})
}

// from gives the stamps from an offset on, the one that it falls under first.
func (s stamps) from(offset int64) stamps {
	i := sort.Search(len(s), func(i int) bool { return s[i][0] > offset })
	return slices.Clone(s[max(i-1, 0):])
}

// stamped gives the stamps of what is kept.
func (s *spool) stamped() StreamStamps {
	s.mu.Lock()
	defer s.mu.Unlock()
	earliest := s.total - int64(s.kept)
	return StreamStamps{Earliest: earliest, Total: s.total, Stamps: s.stamps.from(earliest)}
}

// stamped answers the stamps of every process.
func (s *Server) stamped(w http.ResponseWriter, _ *http.Request) {
	all := s.processes.all()
	out := Stamped{Processes: make([]StampedProcess, 0, len(all))}
	for _, p := range all {
		st := p.state()
		st.Command, st.Cwd = clip(st.Command, listedCommand), clip(st.Cwd, listedCwd)
		out.Processes = append(out.Processes, StampedProcess{Process: st, Stdout: p.stdout.stamped(), Stderr: p.stderr.stamped()})
	}
	answer(w, out, nil)
}
