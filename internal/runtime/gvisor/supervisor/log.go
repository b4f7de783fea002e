package supervisor

import (
	"io"
	"sync"
	"time"

	"gvisor.dev/gvisor/pkg/log"
)

// QuietGVisor has gVisor's packages log their warnings to w, each kind once: some are repeated at every boot.
func QuietGVisor(w io.Writer) {
	log.SetTarget(&once{next: log.GoogleEmitter{Writer: &log.Writer{Next: w}}, seen: map[string]bool{}})
	log.SetLevel(log.Warning)
}

// once drops what has the format of something that was written before.
type once struct {
	next log.Emitter

	mu   sync.Mutex
	seen map[string]bool
}

// Emit implements log.Emitter.
func (o *once) Emit(depth int, level log.Level, at time.Time, format string, v ...any) {
	o.mu.Lock()
	seen := o.seen[format]
	o.seen[format] = true
	o.mu.Unlock()
	if !seen {
		o.next.Emit(depth+1, level, at, format, v...)
	}
}
