package call

import (
	"sync"
	"time"

	"github.com/berthrun/berth/internal/errs"
)

// inflight counts the calls of each caller that are being worked on in this server.
type inflight struct {
	most int
	mu   sync.Mutex
	now  map[string]int
}

func newInflight(most int) *inflight { return &inflight{most: most, now: map[string]int{}} }

func (f *inflight) enter(who string) (*slot, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.now[who] >= f.most {
		return nil, errs.E(errs.RateLimited, "%d calls are being worked on already", f.most).Because("in_flight").After(2 * time.Second).
			Suggest("Wait for one of them to answer, then try again.")
	}
	f.now[who]++
	return &slot{f: f, who: who, counted: true}, nil
}

func (f *inflight) add(who string, n int) {
	if f.now[who] += n; f.now[who] == 0 {
		delete(f.now, who)
	}
}

// slot is the place of one call. Its fields belong to the inflight's mutex.
type slot struct {
	f       *inflight
	who     string
	counted bool
	waits   int // how many parts of the call wait
	left    bool
}

func (s *slot) leave() {
	s.f.mu.Lock()
	defer s.f.mu.Unlock()
	s.left = true
	s.settle()
}

// yield frees the place while the call waits. Coming back it may be one too many for a moment: it has waited, so what is left of it is short.
func (s *slot) yield() (back func()) {
	s.f.mu.Lock()
	defer s.f.mu.Unlock()
	s.waits++
	s.settle()
	return sync.OnceFunc(func() {
		s.f.mu.Lock()
		defer s.f.mu.Unlock()
		s.waits--
		s.settle()
	})
}

func (s *slot) settle() {
	switch want := !s.left && s.waits == 0; {
	case want && !s.counted:
		s.f.add(s.who, 1)
		s.counted = true
	case !want && s.counted:
		s.f.add(s.who, -1)
		s.counted = false
	}
}
