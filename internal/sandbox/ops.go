package sandbox

import (
	"context"
	"math"
	"strconv"
	"time"

	"github.com/berthrun/berth/api"
	"github.com/berthrun/berth/api/op"
	"github.com/berthrun/berth/internal/caller"
	"github.com/berthrun/berth/internal/db"
	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/guest"
)

// Register binds the operations on sandboxes.
func (s *Service) Register(r *op.Registry) {
	op.Handle(r, api.CreateSandbox, op.Handler[api.CreateSandboxIn, api.CreateSandboxOut]{Draft: s.draftCreate, Intent: s.intentCreate, Act: s.actCreate})
	op.Handle(r, api.ListSandboxes, op.Handler[api.ListSandboxesIn, api.ListSandboxesOut]{Draft: collection[api.ListSandboxesIn], Act: s.actList})
	op.Handle(r, api.GetSandbox, op.Handler[api.SandboxIn, api.GetSandboxOut]{
		Draft: func(ctx context.Context, in *api.SandboxIn) (*op.Draft, error) { return s.draft(ctx, in.SandboxID) }, Act: s.actGet,
	})
	op.Handle(r, api.SandboxMetrics, op.Handler[api.SandboxMetricsIn, api.SandboxMetricsOut]{
		Draft: func(ctx context.Context, in *api.SandboxMetricsIn) (*op.Draft, error) {
			return s.draftEnded(ctx, in.SandboxID)
		}, Act: s.actMetrics,
	})
	op.Handle(r, api.UpdateSandbox, op.Handler[api.UpdateSandboxIn, api.SandboxOut]{
		Draft:  func(ctx context.Context, in *api.UpdateSandboxIn) (*op.Draft, error) { return s.draftUpdate(ctx, in) },
		Intent: s.intentUpdate, Act: s.actUpdate,
	})
	op.Handle(r, api.SetSandboxTimeout, op.Handler[api.SetTimeoutIn, api.SandboxOut]{
		Draft: s.draftTimeout, Intent: s.intentTimeout,
		Act: func(ctx context.Context, in *api.SetTimeoutIn, _ *op.Draft) (*api.SandboxOut, error) {
			return s.actShow(ctx, in.SandboxID)
		},
	})
	op.Handle(r, api.ExtendSandbox, op.Handler[api.ExtendIn, api.SandboxOut]{
		Draft:  s.draftExtend,
		Intent: s.intentExtend,
		Act: func(ctx context.Context, in *api.ExtendIn, _ *op.Draft) (*api.SandboxOut, error) {
			return s.actShow(ctx, in.SandboxID)
		},
	})
	op.Handle(r, api.StartSandbox, op.Handler[api.SandboxWaitIn, api.SandboxOut]{Draft: s.draftWait, Intent: s.intentUp(verbStart), Act: s.actUp(verbStart)})
	op.Handle(r, api.StopSandbox, op.Handler[api.SandboxWaitIn, api.SandboxOut]{Draft: s.draftWait, Intent: s.intentStop, Act: s.actStop})
	op.Handle(r, api.PauseSandbox, op.Handler[api.SandboxWaitIn, api.SandboxOut]{Draft: s.draftWait, Intent: s.intentPause, Act: s.actPause})
	op.Handle(r, api.WakeSandbox, op.Handler[api.SandboxWaitIn, api.SandboxOut]{Draft: s.draftWait, Intent: s.intentUp(verbWake), Act: s.actUp(verbWake)})
	op.Handle(r, api.ForkSandbox, op.Handler[api.ForkSandboxIn, api.ForkSandboxOut]{Draft: s.draftFork, Intent: s.intentFork, Act: s.actFork})
	op.Handle(r, api.SwitchSandboxImage, op.Handler[api.SwitchImageIn, api.SandboxOut]{Draft: s.draftSwitch, Intent: s.intentSwitch, Act: s.actSwitch})
	op.Handle(r, api.DeleteSandbox, op.Handler[api.SandboxWaitIn, api.DeleteSandboxOut]{
		Draft: s.draftDelete, Intent: s.intentDelete, Act: s.actDelete,
	})
}

// Count counts what an organization's sandboxes take from its quotas.
func (s *Service) Count(ctx context.Context, q db.Querier, orgID string) (map[string]int64, error) {
	return s.store.used(ctx, q, orgID)
}

// collection is the draft of a call on all sandboxes of the caller's organization.
func collection[In any](ctx context.Context, _ *In) (*op.Draft, error) {
	c := caller.From(ctx)
	return &op.Draft{Resource: op.Resource{Kind: "sandbox", OrgID: c.OrgID, WorkspaceID: c.WorkspaceID}}, nil
}

func (s *Service) draft(ctx context.Context, id string) (*op.Draft, error) {
	r, err := s.find(ctx, s.DB, id)
	if err != nil {
		return nil, err
	}
	return &op.Draft{Resource: r.resource()}, nil
}

func (s *Service) draftWait(ctx context.Context, in *api.SandboxWaitIn) (*op.Draft, error) {
	return s.draft(ctx, in.SandboxID)
}

func (s *Service) actShow(ctx context.Context, id string) (*api.SandboxOut, error) {
	r, err := s.find(ctx, s.DB, id)
	if err != nil {
		return nil, err
	}
	return s.out(r), nil
}

func (s *Service) actGet(ctx context.Context, in *api.SandboxIn, _ *op.Draft) (*api.GetSandboxOut, error) {
	r, err := s.find(ctx, s.DB, in.SandboxID)
	if err != nil {
		return nil, err
	}
	sb := s.show(r)
	sb.Usage = s.reading(ctx, r)
	s.showPull(ctx, r, &sb)
	out := &api.GetSandboxOut{Sandbox: sb, Lifetime: s.lifetime(r), RecoveryPoint: recoveryPoint(r)}
	if out.Volumes, err = s.showVolumes(ctx, r); err != nil {
		return nil, err
	}
	out.WithoutVolumes = r.WithoutVolumes
	out.Storage, err = s.storage(ctx, r, sb.Usage)
	return out, err
}

func (s *Service) actList(ctx context.Context, in *api.ListSandboxesIn, _ *op.Draft) (*api.ListSandboxesOut, error) {
	c := caller.From(ctx)
	limit := in.Size()
	bound := *in
	bound.Cursor, bound.Limit = "", 0
	at, afterID, err := op.DecodeMoment(in.Cursor, bound)
	if err != nil {
		return nil, err
	}
	f := filter{
		OrgID: c.OrgID, States: in.State, Template: in.Template, Name: in.Name, Metadata: in.Metadata, Oldest: in.Order == "oldest",
		AfterTime: at, AfterID: afterID, Limit: limit + 1,
	}
	if in.Scope != "all" {
		f.PrincipalID = c.PrincipalID
	}
	if in.StartedAfter != nil {
		f.StartedAfter = db.Micros(*in.StartedAfter)
	}
	rows, err := s.store.list(ctx, s.DB, f)
	if err != nil {
		return nil, err
	}
	out := &api.ListSandboxesOut{}
	if len(rows) > limit {
		rows = rows[:limit]
		last := rows[limit-1]
		out.NextCursor = op.EncodeMoment(bound, last.CreatedAt, last.ID)
	}
	for _, r := range rows {
		sb := s.show(r)
		sb.Usage = s.known(r)
		out.Items = append(out.Items, sb)
	}
	out.TotalRunning, err = s.store.countRunning(ctx, s.DB, c.OrgID, f.PrincipalID)
	return out, err
}

func (s *Service) draftUpdate(ctx context.Context, in *api.UpdateSandboxIn) (*op.Draft, error) {
	if err := checkEnv(in.Env); err != nil {
		return nil, err
	}
	if err := api.CheckMetadata(in.Metadata); err != nil {
		return nil, err
	}
	if in.IdlePauseSeconds != nil {
		if err := checkIdle(int64(*in.IdlePauseSeconds)); err != nil {
			return nil, err
		}
	}
	if in.Retention != nil {
		if _, err := retention(*in.Retention); err != nil {
			return nil, err
		}
	}
	return s.draft(ctx, in.SandboxID)
}

// change reads a sandbox in a transaction, has it changed where the state allows, and writes it.
func (s *Service) change(ctx context.Context, tx op.Tx, id string, change func(r *row) error) error {
	return decided(func() error {
		r, err := s.find(ctx, tx, id)
		if err != nil {
			return err
		}
		if decide(verbUpdate, r.State) != do {
			return errInvalidState(r, verbUpdate)
		}
		if err := change(r); err != nil {
			return err
		}
		return s.store.save(ctx, tx, r)
	})
}

func (s *Service) intentUpdate(ctx context.Context, tx op.Tx, in *api.UpdateSandboxIn, _ *op.Draft) error {
	err := s.change(ctx, tx, in.SandboxID, func(r *row) error {
		set(&r.Name, in.Name)
		set(&r.AutoWake, in.AutoWake)
		set(&r.WakeOnTimers, in.WakeOnTimers)
		set(&r.Persist, in.Persist)
		if in.Metadata != nil {
			r.Metadata = in.Metadata
		}
		if in.Env != nil {
			r.Env = in.Env
		}
		if in.IdlePauseSeconds != nil {
			r.IdleSeconds = int64(*in.IdlePauseSeconds)
		}
		if in.Retention != nil {
			r.RetentionSeconds, _ = retention(*in.Retention) // checked by the draft
		}
		if in.Name != nil && *in.Name != "" {
			there, err := s.store.named(ctx, tx, r.WorkspaceID, *in.Name)
			if err != nil {
				return err
			}
			if there != nil && there.ID != r.ID {
				return errNameTaken(there)
			}
		}
		return nil
	})
	if db.IsUnique(err) {
		return errNameTaken(&row{Name: *in.Name})
	}
	return err
}

func set[T any](into *T, v *T) {
	if v != nil {
		*into = *v
	}
}

func (s *Service) actUpdate(ctx context.Context, in *api.UpdateSandboxIn, _ *op.Draft) (*api.SandboxOut, error) {
	r, err := s.find(ctx, s.DB, in.SandboxID)
	if err != nil {
		return nil, err
	}
	if r.State == api.StateRunning && in.Env != nil {
		g, err := answering(ctx, s.guest(r.ID, r.BootGeneration, r.GuestToken))
		if err == nil {
			_, err = g.Configure(ctx, guest.Configure{Env: s.environment(ctx, r)})
		}
		if err != nil {
			return nil, err
		}
	}
	return s.out(r), nil
}

func (s *Service) draftTimeout(ctx context.Context, in *api.SetTimeoutIn) (*op.Draft, error) {
	r, err := s.find(ctx, s.DB, in.SandboxID)
	if err != nil {
		return nil, err
	}
	return &op.Draft{Resource: r.resource()}, s.longest(ctx, r, time.Duration(in.TTLSeconds)*time.Second)
}

func (s *Service) intentTimeout(ctx context.Context, tx op.Tx, in *api.SetTimeoutIn, _ *op.Draft) error {
	return s.change(ctx, tx, in.SandboxID, func(r *row) error {
		r.ExpiresAt = db.Micros(s.Now().Add(time.Duration(in.TTLSeconds) * time.Second))
		return nil
	})
}

// maxLife is how far ahead an expiry may lie.
const maxLife = 30 * 24 * time.Hour

func (s *Service) draftExtend(ctx context.Context, in *api.ExtendIn) (*op.Draft, error) {
	by, err := duration("by", in.By)
	if err != nil {
		return nil, err
	}
	r, err := s.find(ctx, s.DB, in.SandboxID)
	if err != nil {
		return nil, err
	}
	left := max(db.Time(r.ExpiresAt).Sub(s.Now()), 0) + by
	return &op.Draft{Resource: r.resource(), Data: by}, s.longest(ctx, r, left)
}

func (s *Service) intentExtend(ctx context.Context, tx op.Tx, in *api.ExtendIn, d *op.Draft) error {
	by := d.Data.(time.Duration)
	return s.change(ctx, tx, in.SandboxID, func(r *row) error {
		until := max(r.ExpiresAt, db.Micros(s.Now())) + by.Microseconds()
		if most := db.Micros(s.Now().Add(maxLife)); until > most {
			return errs.E(errs.LimitExceeded, "a sandbox expires at most 30 days from now").Because("ttl").
				Suggest("Extend by less; it can be extended again later.").With("latest", db.Time(most).Format(time.RFC3339))
		}
		r.ExpiresAt = until
		return nil
	})
}

// duration reads a duration that a person types as an argument: a number and s, m, h or d.
func duration(argument, text string) (time.Duration, error) {
	unit := map[byte]time.Duration{'s': time.Second, 'm': time.Minute, 'h': time.Hour, 'd': 24 * time.Hour}
	bad := errs.E(errs.InvalidInput, "%s must be a duration such as 30m, 8h or 3d", argument).With("path", argument)
	if len(text) < 2 {
		return 0, bad
	}
	n, err := strconv.ParseInt(text[:len(text)-1], 10, 32)
	u := unit[text[len(text)-1]]
	if err != nil || u == 0 || n <= 0 || n > math.MaxInt64/int64(u) {
		return 0, bad
	}
	return time.Duration(n) * u, nil
}
