package policy

import (
	"context"
	"fmt"

	"github.com/berthrun/berth/api"
	"github.com/berthrun/berth/api/op"
	"github.com/berthrun/berth/internal/caller"
	"github.com/berthrun/berth/internal/db"
	"github.com/berthrun/berth/internal/draft"
	"github.com/berthrun/berth/internal/errs"
)

// mostShown is how many problems an error tells.
const mostShown = 50

func (s *Service) actGet(ctx context.Context, in *api.GetPoliciesIn, _ *op.Draft) (*api.GetPoliciesOut, error) {
	org := caller.From(ctx).OrgID
	r, err := s.store.newest(ctx, s.cfg.DB, org)
	if in.Version != 0 {
		r, err = s.store.at(ctx, s.cfg.DB, org, in.Version)
	}
	if err != nil {
		return nil, err
	}
	if r == nil {
		return nil, errs.E(errs.NotFound, "there is no version %d of the policies", in.Version).Suggest("The history of policies.get shows which exist.")
	}
	out := &api.GetPoliciesOut{Policies: s.show(r)}
	if in.Schema {
		out.Schema = s.schema.Text()
	}
	old, err := s.store.history(ctx, s.cfg.DB, org, 20)
	for _, o := range old {
		out.History = append(out.History, api.PolicyVersion{Version: o.Version, CreatedAt: db.Time(o.CreatedAt), CreatedBy: o.CreatedBy})
	}
	return out, err
}

func (s *Service) show(r *row) api.Policies {
	p := api.Policies{Version: r.Version, Text: r.Text, CreatedBy: r.CreatedBy, Shipped: s.schema.Shipped()}
	if r.CreatedAt != 0 {
		at := db.Time(r.CreatedAt)
		p.CreatedAt = &at
	}
	return p
}

func (s *Service) actValidate(ctx context.Context, in *api.ValidatePoliciesIn, _ *op.Draft) (*api.ValidatePoliciesOut, error) {
	out := &api.ValidatePoliciesOut{}
	err := s.alone(ctx, func() { out.Problems = s.schema.Check(in.Text) })
	out.Valid = len(out.Problems) == 0
	return out, err
}

func (s *Service) actTest(ctx context.Context, in *api.TestPoliciesIn, _ *op.Draft) (*api.TestPoliciesOut, error) {
	org := caller.From(ctx).OrgID
	set, err := s.of(ctx, org)
	if in.Text != "" {
		set, err = s.checked(ctx, in.Text)
	}
	if err != nil {
		return nil, err
	}
	return set.Try(in.Cases, org, s.cfg.Now())
}

// Checked makes a set of a text, or says what is wrong with it: errs.InvalidInput, reason policies, with every problem in the details.
func (s *Schema) Checked(text string) (*Set, error) {
	problems := s.Check(text)
	if len(problems) == 0 {
		return s.Load(text)
	}
	first := problems[0]
	more := ""
	if n := len(problems) - 1; n > 0 {
		more = fmt.Sprintf(" (and %d more)", n)
	}
	return nil, errs.E(errs.InvalidInput, "line %d, column %d: %s%s", first.Line, first.Column, first.Reason, more).Because("policies").
		Suggest("Mend the policies; details.problems has every place, and policies.get with schema gives what they are checked against.").
		With("path", "text").With("problems", problems[:min(len(problems), mostShown)])
}

// draftPut checks what can be checked again for a repeated call: the version is looked at in the intent.
func (s *Service) draftPut(ctx context.Context, in *api.PutPoliciesIn) (*op.Draft, error) {
	set, err := s.checked(ctx, in.Text)
	if err != nil {
		return nil, err
	}
	d, err := draft.OnOrganization(ctx, in)
	if err != nil || in.Force {
		return d, err
	}
	if reasons := s.lockOut(caller.From(ctx), set, d); reasons != nil {
		return nil, errs.E(errs.InvalidInput, "these policies would lock you out of changing them: %s", reasons[0]).Because("lock_out").
			Suggest("Permit %s to yourself, or set force where somebody else keeps it.", api.PutPolicies.Action).
			With("path", "text").With("forbids", reasons).With("action", api.PutPolicies.Action)
	}
	return d, nil
}

// lockOut says why the caller could not put policies any more. Where a person is to approve that first, approvals themselves must not wait for one.
func (s *Service) lockOut(c *caller.Caller, set *Set, d *op.Draft) []string {
	out := set.Decide(s.asked(c, api.PutPolicies.Action, d))
	if out.Effect == Confirm {
		approve := &op.Draft{Resource: op.Resource{Kind: "confirmation", OrgID: c.OrgID, WorkspaceID: c.WorkspaceID}}
		if out = set.Decide(s.asked(c, api.ApproveConfirmation.Action, approve)); out.Effect == Confirm {
			return []string{"a person is to approve it first, and approving waits for a person too"}
		}
	}
	if out.Effect == Deny {
		return out.Reasons
	}
	return nil
}

func (s *Service) intentPut(ctx context.Context, tx op.Tx, in *api.PutPoliciesIn, d *op.Draft) error {
	c := caller.From(ctx)
	version, err := s.store.version(ctx, tx, c.OrgID)
	if err != nil {
		return err
	}
	if in.ExpectedVersion != nil && *in.ExpectedVersion != version {
		return changed(version)
	}
	r := &row{
		Version: version + 1, Text: in.Text, CreatedAt: db.Micros(s.cfg.Now()),
		CreatedBy: draft.By(c),
	}
	if err := s.store.insert(ctx, tx, c.OrgID, r); db.IsUnique(err) {
		return changed(version + 1) // by a call at the same time
	} else if err != nil {
		return err
	}
	d.Data = r
	s.cfg.DB.NotifyAfter(tx, topic)
	if s.cfg.Events == nil {
		return nil
	}
	return s.cfg.Events.Emit(ctx, tx, c.OrgID, "", "policies.changed", c.OrgID, map[string]any{"version": r.Version})
}

func changed(version int64) error {
	return errs.E(errs.InvalidState, "the policies have been changed: version %d holds", version).Because("version").
		Suggest("Read them again with policies.get, make your change to those, and put them with that version.").With("version", version)
}

// actPut gives what was put; after a crash in between, what holds.
func (s *Service) actPut(ctx context.Context, _ *api.PutPoliciesIn, d *op.Draft) (*api.PutPoliciesOut, error) {
	s.forget()
	r, ok := d.Data.(*row)
	if !ok {
		var err error
		if r, err = s.store.newest(ctx, s.cfg.DB, d.Resource.OrgID); err != nil {
			return nil, err
		}
	}
	return &api.PutPoliciesOut{Policies: s.show(r)}, nil
}
