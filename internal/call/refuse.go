package call

import (
	"context"
	"sync"
	"time"

	"github.com/berthrun/berth/api/op"
	"github.com/berthrun/berth/internal/caller"
	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/id"
)

// Of a caller that is turned away again and again one row a turnEvery is recorded: the audit log of a flood is no flood.
const (
	turnEvery  = time.Second
	mostTurned = 10_000
)

// turned remembers when a caller was last recorded as turned away.
type turned struct {
	mu   sync.Mutex
	last map[string]time.Time
}

// due reports whether a caller's being turned away is recorded now.
func (t *turned) due(who string, now time.Time) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if last, ok := t.last[who]; ok && now.Sub(last) < turnEvery {
		return false
	}
	if t.last == nil || len(t.last) >= mostTurned {
		t.last = map[string]time.Time{}
	}
	t.last[who] = now
	return true
}

// turnAway is refuse for a call that comes too often.
func (p *Path) turnAway(c *one, err error) error {
	if p.turned.due(c.caller.PrincipalID, p.cfg.Now()) {
		return p.refuse(c, err)
	}
	return p.shown(c, err)
}

// Refuse counts and records a call that a face refused before it came to the path: its body cannot be read, or its tool is not offered there. The caller
// comes from the context. It gives the error for the caller: the face's, or errs.RateLimited where it calls too often.
func (p *Path) Refuse(ctx context.Context, o *op.Operation, refused error) error {
	from := caller.From(ctx)
	if from == nil {
		return refused
	}
	who := *from
	if who.RequestID == "" {
		who.RequestID = p.cfg.NewID(id.Request)
	}
	c := &one{op: o, caller: &who, begun: p.cfg.Now()}
	p.cfg.Observer.Begun(o.Name, who.Face)
	if err := p.cfg.Limiter.Allow(ctx, &who); err != nil {
		err = p.turnAway(c, err)
		p.ended(c, nil, err)
		return err
	}
	p.record(c, string(errs.CodeOf(refused)))
	p.ended(c, nil, refused)
	return refused
}
