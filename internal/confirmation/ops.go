package confirmation

import (
	"context"

	"github.com/berthrun/berth/api"
	"github.com/berthrun/berth/api/op"
	"github.com/berthrun/berth/internal/caller"
	"github.com/berthrun/berth/internal/db"
	"github.com/berthrun/berth/internal/draft"
	"github.com/berthrun/berth/internal/errs"
)

// Register binds the operations on confirmations.
func (s *Service) Register(r *op.Registry) {
	op.Handle(r, api.GetConfirmation, op.Handler[api.ConfirmationIn, api.GetConfirmationOut]{
		Draft: func(ctx context.Context, in *api.ConfirmationIn) (*op.Draft, error) {
			return s.draftOf(ctx, in.ConfirmationID)
		},
		Act: s.actGet,
	})
	op.Handle(r, api.ListConfirmations, op.Handler[api.ListConfirmationsIn, api.ListConfirmationsOut]{Draft: draft.OnOrganization[api.ListConfirmationsIn], Act: s.actList})
	op.Handle(r, api.ApproveConfirmation, op.Handler[api.ApproveConfirmationIn, api.ConfirmationOut]{
		Draft: func(ctx context.Context, in *api.ApproveConfirmationIn) (*op.Draft, error) {
			return s.draftDecide(ctx, in.ConfirmationID)
		},
		Intent: func(ctx context.Context, tx op.Tx, in *api.ApproveConfirmationIn, _ *op.Draft) error {
			return s.approve(ctx, tx, in.ConfirmationID, in.Digest)
		},
		Act: func(ctx context.Context, in *api.ApproveConfirmationIn, _ *op.Draft) (*api.ConfirmationOut, error) {
			return s.out(ctx, in.ConfirmationID)
		},
	})
	op.Handle(r, api.RejectConfirmation, op.Handler[api.RejectConfirmationIn, api.ConfirmationOut]{
		Draft: func(ctx context.Context, in *api.RejectConfirmationIn) (*op.Draft, error) {
			return s.draftDecide(ctx, in.ConfirmationID)
		},
		Intent: func(ctx context.Context, tx op.Tx, in *api.RejectConfirmationIn, _ *op.Draft) error {
			return s.reject(ctx, tx, in.ConfirmationID, in.Note)
		},
		Act: func(ctx context.Context, in *api.RejectConfirmationIn, _ *op.Draft) (*api.ConfirmationOut, error) {
			return s.out(ctx, in.ConfirmationID)
		},
	})
}

// find gives a confirmation of the caller's organization.
func (s *Service) find(ctx context.Context, q db.Querier, id string) (*row, error) {
	w, err := s.store.get(ctx, q, id)
	if err != nil {
		return nil, err
	}
	if w == nil || w.OrgID != caller.From(ctx).OrgID {
		return nil, errs.E(errs.NotFound, "there is no confirmation %s", id).Suggest("Check the id; confirmations.list shows which there are.")
	}
	return w, nil
}

func (s *Service) draftOf(ctx context.Context, id string) (*op.Draft, error) {
	w, err := s.find(ctx, s.cfg.DB, id)
	if err != nil {
		return nil, err
	}
	return w.drafted(), nil
}

// draftDecide refuses before a person is asked whether another may decide.
func (s *Service) draftDecide(ctx context.Context, id string) (*op.Draft, error) {
	w, err := s.find(ctx, s.cfg.DB, id)
	if err == nil {
		err = mayDecide(caller.From(ctx), w)
	}
	if err != nil {
		return nil, err
	}
	return w.drafted(), nil
}

// drafted is the draft of a call on it.
func (w *row) drafted() *op.Draft {
	return &op.Draft{Resource: op.Resource{Kind: "confirmation", ID: w.ID, OrgID: w.OrgID, WorkspaceID: w.WorkspaceID, CreatedBy: w.AskedBy}}
}

// mayDecide refuses who may not decide on a request whatever their rights: who asked, and who is held back themselves.
func mayDecide(c *caller.Caller, w *row) error {
	if c.PrincipalID == w.PrincipalID {
		return errs.E(errs.Forbidden, "nobody decides on their own calls").Because("own_call").Suggest("Another person's credential is to decide.")
	}
	if len(c.Confirm) > 0 {
		return errs.E(errs.Forbidden, "a credential some of whose own calls are held back decides on none").Because("held_back").Suggest("A credential without a confirm list is to decide.")
	}
	return nil
}

func (s *Service) approve(ctx context.Context, tx op.Tx, id, digest string) error {
	w, now, err := s.toDecide(ctx, tx, id)
	if err != nil {
		return err
	}
	if digest != w.Digest {
		return errs.E(errs.InvalidInput, "this is not the digest of what the call would do").Because("digest").Suggest("Read the confirmation again.").With("path", "digest")
	}
	return s.move(ctx, tx, w, Approved, now, "")
}

func (s *Service) reject(ctx context.Context, tx op.Tx, id, note string) error {
	w, now, err := s.toDecide(ctx, tx, id)
	if err != nil {
		return err
	}
	return s.move(ctx, tx, w, Denied, now, note)
}

func (s *Service) toDecide(ctx context.Context, tx op.Tx, id string) (*row, int64, error) {
	w, err := s.find(ctx, tx, id)
	if err != nil {
		return nil, 0, err
	}
	now, err := s.cfg.DB.Now(ctx, tx)
	if err == nil {
		err = mayDecide(caller.From(ctx), w)
	}
	return w, db.Micros(now), err
}

// decided are the events of decisions.
var decided = map[State]string{Approved: "confirmation.approved", Denied: "confirmation.denied"}

// move decides. Deciding the same again changes nothing. Who decides at the same time as another is told how it stands after that, and may still deny what was
// only approved.
func (s *Service) move(ctx context.Context, tx op.Tx, w *row, to State, now int64, note string) error {
	for {
		state := w.state(db.Time(now))
		if state == to {
			return nil
		}
		moved := false
		if state == Pending || state == Approved && to == Denied {
			var err error
			if moved, err = s.store.decide(ctx, tx, w.ID, w.Digest, state, to, now, now, caller.From(ctx).PrincipalID, note); err != nil {
				return err
			}
		}
		if moved {
			s.cfg.DB.NotifyAfter(tx, s.Topic(w.ID))
			return s.emit(ctx, tx, w, decided[to])
		}
		again, err := s.store.get(ctx, tx, w.ID)
		if err != nil {
			return err
		}
		if again == nil || again.State == w.State {
			return errs.E(errs.InvalidState, "the confirmation is %s", state).Because(string(state)).Suggest("Nothing is left to decide.")
		}
		w = again
	}
}

func (s *Service) actGet(ctx context.Context, in *api.ConfirmationIn, _ *op.Draft) (*api.GetConfirmationOut, error) {
	w, err := s.find(ctx, s.cfg.DB, in.ConfirmationID)
	if err != nil {
		return nil, err
	}
	if c := caller.From(ctx); w.PrincipalID != c.PrincipalID && !s.cfg.Visible(c, api.ListConfirmations.Info()) {
		return nil, errs.E(errs.NotFound, "there is no confirmation %s of this credential's calls", in.ConfirmationID).Suggest("Check the id.")
	}
	out, err := s.shown(ctx, w.ID)
	if err != nil {
		return nil, err
	}
	return &api.GetConfirmationOut{Confirmation: *out}, nil
}

func (s *Service) out(ctx context.Context, id string) (*api.ConfirmationOut, error) {
	out, err := s.shown(ctx, id)
	if err != nil {
		return nil, err
	}
	return &api.ConfirmationOut{Confirmation: *out}, nil
}

func (s *Service) shown(ctx context.Context, id string) (*api.Confirmation, error) {
	w, err := s.find(ctx, s.cfg.DB, id)
	if err != nil {
		return nil, err
	}
	now, err := s.cfg.DB.Now(ctx, s.cfg.DB)
	if err != nil {
		return nil, err
	}
	out := s.show(ctx, w, db.Micros(now))
	return &out, nil
}

func (s *Service) show(ctx context.Context, w *row, now int64) api.Confirmation {
	c := caller.From(ctx)
	out := api.Confirmation{
		ID: w.ID, State: string(w.state(db.Time(now))), Operation: w.Operation, Title: w.Operation,
		Resource:  api.ConfirmationResource{Kind: w.ResourceKind, ID: w.ResourceID, Name: w.ResourceName},
		Arguments: w.Arguments, Reasons: w.Reasons, AskedBy: w.AskedBy, Client: w.Client, Workspace: w.WorkspaceID,
		CreatedAt: db.Time(w.CreatedAt), ExpiresAt: db.Time(w.ExpiresAt), DecidedBy: w.DecidedBy, Note: w.Note, Draft: w.Draft, Digest: w.Digest,
	}
	if o := s.cfg.Registry(w.Operation); o != nil {
		out.Title = o.Title
	}
	if w.DecidedAt != 0 {
		at := db.Time(w.DecidedAt)
		out.DecidedAt = &at
	}
	out.Approvable = out.State == api.ConfirmationPending && mayDecide(c, w) == nil && s.cfg.Visible(c, api.ApproveConfirmation.Info())
	return out
}

func (s *Service) actList(ctx context.Context, in *api.ListConfirmationsIn, _ *op.Draft) (*api.ListConfirmationsOut, error) {
	before, beforeID, err := op.DecodeMoment(in.Cursor, in.State)
	if err != nil {
		return nil, err
	}
	limit := in.Size()
	at, err := s.cfg.DB.Now(ctx, s.cfg.DB)
	if err != nil {
		return nil, err
	}
	now := db.Micros(at)
	rows, err := s.store.list(ctx, s.cfg.DB, caller.From(ctx).OrgID, State(in.State), now, before, beforeID, limit+1)
	if err != nil {
		return nil, err
	}
	out := &api.ListConfirmationsOut{}
	for i, w := range rows {
		if i == limit {
			out.NextCursor = op.EncodeMoment(in.State, rows[i-1].CreatedAt, rows[i-1].ID)
			break
		}
		out.Items = append(out.Items, s.show(ctx, w, now))
	}
	return out, nil
}
