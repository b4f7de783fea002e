package sandbox

import (
	"context"
	"sync"

	"github.com/berthrun/berth/api"
	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/guest"
)

// checksAtOnce is how many guests are asked at the same time whether they are there.
const checksAtOnce = 16

// answering gives a guest that answers, as far as is known. One that did not is asked again first, for no longer than a few seconds, so that calls on a
// sandbox that hangs are answered soon, and on one that has recovered at all.
func answering(ctx context.Context, g *guest.Client) (*guest.Client, error) {
	if g.Silent() == nil {
		return g, nil
	}
	if err := g.Check(ctx); err != nil {
		return nil, errUnwell(ctx, err)
	}
	return g, nil
}

// errUnwell is the error for a call that was not made, as the guest does not answer.
func errUnwell(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return err
	}
	e := *errs.From(err)
	return e.Suggest("Nothing was done. Stop and start the sandbox; its files are kept.")
}

// unwell gives why a running sandbox's guest is taken to be out of order, nil where it is not or nobody has asked yet.
func (s *Service) unwell(r *row) error {
	if r.State != api.StateRunning {
		return nil
	}
	s.guests.mu.Lock()
	e := s.guests.clients[r.ID]
	s.guests.mu.Unlock()
	if e == nil || e.boot != r.BootGeneration {
		return nil
	}
	return e.client.Silent()
}

// checkGuests asks the guests of all running sandboxes whether they are there, so that one that hangs is seen before it is called. A round that takes long is
// not joined by another.
func (s *Service) checkGuests(ctx context.Context, rows []*row) {
	if !s.checking.CompareAndSwap(false, true) {
		return
	}
	s.wg.Go(func() {
		defer s.checking.Store(false)
		var round sync.WaitGroup
		defer round.Wait()
		turn := make(chan struct{}, checksAtOnce)
		for _, r := range rows {
			if r.State != api.StateRunning {
				continue
			}
			select {
			case turn <- struct{}{}:
			case <-ctx.Done():
				return
			}
			round.Go(func() {
				defer func() { <-turn }()
				before := s.unwell(r)
				err := s.guest(r.ID, r.BootGeneration, r.GuestToken).Answers(ctx)
				if after := s.unwell(r); (before == nil) != (after == nil) && ctx.Err() == nil {
					s.Logger.Warn("sandbox's guest changed its health", "sandbox", r.ID, "answers", after == nil, "error", err)
				}
			})
		}
	})
}
