package sandbox

import (
	"context"
	"time"

	"github.com/berthrun/berth/api"
	"github.com/berthrun/berth/api/op"
	"github.com/berthrun/berth/internal/errs"
)

func (s *Service) intentStop(ctx context.Context, tx op.Tx, in *api.SandboxWaitIn, _ *op.Draft) error {
	return decided(func() error {
		r, err := s.find(ctx, tx, in.SandboxID)
		if err != nil {
			return err
		}
		switch decide(verbStop, r.State) {
		case do:
			r.StopReason = "requested"
			return s.moveTx(ctx, tx, r, api.StateStopping)
		case nothing, join:
			return nil
		case busy:
			return errBusy(r)
		default:
			return errInvalidState(r, verbStop)
		}
	})
}

func (s *Service) actStop(ctx context.Context, in *api.SandboxWaitIn, _ *op.Draft) (*api.SandboxOut, error) {
	until := time.Now().Add(op.Remaining(ctx, time.Duration(in.Wait())*time.Second))
	for tries := 0; ; tries++ {
		s.nudge(in.SandboxID)
		r, err := s.settle(ctx, in.SandboxID, time.Until(until))
		if err != nil {
			return nil, err
		}
		if goes(r) {
			return nil, errNotFound(r.ID)
		}
		if tries > 0 || decide(verbStop, r.State) != do {
			return s.out(r), nil
		}
		// It was pausing when this was asked for.
		r.StopReason = "requested"
		if err := s.move(ctx, r, api.StateStopping); err != nil && !errs.Is(err, errs.Busy) {
			return nil, err
		}
	}
}

func (s *Service) draftDelete(ctx context.Context, in *api.SandboxWaitIn) (*op.Draft, error) {
	r, err := s.findDeleted(ctx, s.DB, in.SandboxID)
	if err != nil {
		return nil, err
	}
	return &op.Draft{Resource: r.resource()}, nil
}

func (s *Service) intentDelete(ctx context.Context, tx op.Tx, in *api.SandboxWaitIn, _ *op.Draft) error {
	return decided(func() error {
		r, err := s.findDeleted(ctx, tx, in.SandboxID)
		if err != nil {
			return err
		}
		if r.State == api.StateDeleted || decide(verbDelete, r.State) == join {
			return nil
		}
		return s.moveTx(ctx, tx, r, api.StateDeleting)
	})
}

func (s *Service) actDelete(ctx context.Context, in *api.SandboxWaitIn, _ *op.Draft) (*api.DeleteSandboxOut, error) {
	s.interrupt(in.SandboxID)
	r, err := s.settle(ctx, in.SandboxID, op.Remaining(ctx, time.Duration(in.Wait())*time.Second))
	if err != nil {
		return nil, err
	}
	return &api.DeleteSandboxOut{SandboxID: r.ID, Deleted: r.State == api.StateDeleted}, nil
}
