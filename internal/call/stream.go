package call

import (
	"context"
	"database/sql"
	"encoding/json"
	"sync"
	"time"

	"github.com/berthrun/berth/api/op"
	"github.com/berthrun/berth/internal/audit"
	"github.com/berthrun/berth/internal/caller"
	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/id"
)

// defaultStreams is how many streams of one caller may be open at the same time in this server.
const defaultStreams = 64

// Stream takes a stream along the path: limits, decoding, draft, authorization, the audit row, and then its bytes. The caller comes from the context.
// An error before the first byte is for the caller; after it the connection must be broken off. A write's audit row is there before it is
// served, and gets its result and duration at the end; a read's follows at its end.
func (p *Path) Stream(ctx context.Context, o *op.StreamOperation, raw json.RawMessage, s *op.Stream) error {
	from := caller.From(ctx)
	if from == nil {
		return errs.E(errs.Unauthenticated, "no valid credential was given").Suggest("Send a key as Authorization: Bearer.")
	}
	who := *from
	if who.RequestID == "" {
		who.RequestID = p.cfg.NewID(id.Request)
	}
	c := &one{op: &o.Operation, caller: &who, raw: raw, begun: p.cfg.Now(), stream: true}
	p.cfg.Observer.Begun(o.Name, who.Face)
	err := p.stream(caller.With(ctx, &who), o, c, s)
	p.ended(c, nil, err)
	return err
}

func (p *Path) stream(ctx context.Context, o *op.StreamOperation, c *one, s *op.Stream) error {
	if err := p.cfg.Limiter.Allow(ctx, c.caller); err != nil {
		return p.turnAway(c, err)
	}
	slot, err := p.streams.open.enter(c.caller.PrincipalID)
	if err != nil {
		return p.turnAway(c, err)
	}
	defer slot.leave()
	serving, leave, err := p.streams.enter(ctx, o.Stream.Kind)
	if err != nil {
		return err
	}
	defer leave()
	row, err := p.beginStream(serving, c)
	if err != nil {
		return p.refuse(c, err)
	}
	err = safely(func() error { return o.Serve(serving, c.in, c.draft, s) })
	if cause := context.Cause(serving); err != nil && errs.Is(cause, errs.Unavailable) {
		err = cause
	}
	result := audit.OK
	if err != nil {
		shown := p.shown(c, err)
		// Whoever follows events or has a terminal ends it by going away.
		if gone := ctx.Err() != nil; !gone || o.Stream.Kind == op.Download || o.Stream.Kind == op.Upload {
			result = string(shown.Code)
		}
		err = shown
	}
	if row != "" {
		p.cfg.Auditor.End(row, result, p.cfg.Now().Sub(c.begun))
	} else {
		p.record(c, result)
	}
	return err
}

// beginStream is everything before the first byte. It gives the audit row of a write.
func (p *Path) beginStream(ctx context.Context, c *one) (row string, err error) {
	ctx, cancel := context.WithTimeout(ctx, defaultDeadline)
	defer cancel()
	if err := p.prepare(ctx, c); err != nil || c.op.Hints.Has(op.Read) {
		return "", err
	}
	err = p.cfg.DB.Tx(ctx, func(tx *sql.Tx) (err error) {
		row, err = p.cfg.Auditor.Begin(ctx, tx, p.entry(c))
		return err
	})
	return row, err
}

// streams are those that are open. Events and sockets have no end of their own: they are ended when the server is about to stop; bytes on their way may
// arrive until it does.
type streams struct {
	open *inflight

	mu     sync.Mutex
	wait   sync.WaitGroup
	ending bool
	byKind map[op.Kind]map[*context.CancelCauseFunc]bool
}

func newStreams(most int) *streams {
	return &streams{open: newInflight(most), byKind: map[op.Kind]map[*context.CancelCauseFunc]bool{}}
}

func errStopping() error {
	return errs.E(errs.Unavailable, "the server is about to stop").Because("stopping").After(time.Second).Suggest("Connect again in a moment.")
}

func (s *streams) enter(ctx context.Context, kind op.Kind) (context.Context, func(), error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ending {
		return nil, nil, errStopping()
	}
	ctx, cancel := context.WithCancelCause(ctx)
	if s.byKind[kind] == nil {
		s.byKind[kind] = map[*context.CancelCauseFunc]bool{}
	}
	s.byKind[kind][&cancel] = true
	s.wait.Add(1)
	return ctx, func() {
		cancel(nil)
		s.mu.Lock()
		delete(s.byKind[kind], &cancel)
		s.mu.Unlock()
		s.wait.Done()
	}, nil
}

// end ends the streams of some kinds and lets no new one in.
func (s *streams) end(kinds ...op.Kind) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ending = true
	for _, k := range kinds {
		for cancel := range s.byKind[k] {
			(*cancel)(errStopping())
		}
	}
}

// EndStreams is called when the server is about to stop: no stream is opened any more, followers and terminals are told to connect again. Downloads and
// uploads go on until Close's context ends.
func (p *Path) EndStreams() { p.streams.end(op.Events, op.Socket) }
