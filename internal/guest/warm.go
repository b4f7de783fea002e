//go:build linux

package guest

import (
	"net/http"
	"time"
)

// warmTime bounds the command that warms a sandbox up.
const warmTime = 10 * time.Second

// warm runs a command that does nothing and forgets it: the first one of a sandbox takes about twice as long as those after it. A sandbox that cannot run
// one is not warmed.
func (s *Server) warm(w http.ResponseWriter, r *http.Request) {
	p, mine, err := s.processes.claim("warm")
	if err != nil || !mine {
		answer(w, struct{}{}, err)
		return
	}
	// Not in anybody's list, while it runs neither: a list has only what was started.
	defer s.processes.abandon(p)
	if p.failed = s.spawn(p, &Start{ID: p.id, Command: "true", TimeoutMS: warmTime.Milliseconds(), Background: true}); p.failed == nil {
		select {
		case <-p.ended:
		case <-r.Context().Done():
		}
	}
	answer(w, struct{}{}, nil)
}
