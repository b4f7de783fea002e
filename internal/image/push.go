package image

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/berthrun/berth/api"
	"github.com/berthrun/berth/api/op"
	"github.com/berthrun/berth/internal/db"
	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/id"
	"github.com/berthrun/berth/internal/image/registry"
	"github.com/berthrun/berth/internal/nodeapi"
)

// kindPush is the kind of pushes' ids, which only this package sees.
const kindPush id.Kind = "push"

// push is a push in the database.
type push struct {
	ID, ImageID, OrgID, Reference string
	State, Error, Reason          string
	Done, Size                    int64
	BegunAt, EndedAt              int64
}

const pushColumns = `id, image_id, org_id, reference, state, error, reason, done_bytes, size_bytes, begun_at, ended_at`

func (s *Service) registerPush(r *op.Registry) {
	op.Handle(r, api.PushImage, op.Handler[api.PushImageIn, api.PushImageOut]{Draft: s.draftPush, Intent: s.intentPush, Act: s.actPush})
}

func (s *Service) draftPush(ctx context.Context, in *api.PushImageIn) (*op.Draft, error) {
	ref, err := registry.Parse(in.Reference)
	if err != nil {
		return nil, err
	}
	if ref.Digest != "" {
		return nil, errs.E(errs.InvalidInput, "an image is pushed to a name and a tag, not to a digest").Because("reference").With("path", "reference")
	}
	d, err := s.draft(ctx, in.ImageID)
	if err != nil {
		return nil, err
	}
	d.Data = ref.String()
	return d, nil
}

func (s *Service) intentPush(ctx context.Context, tx op.Tx, in *api.PushImageIn, d *op.Draft) error {
	r, err := s.find(ctx, tx, in.ImageID)
	if err != nil {
		return err
	}
	if r.State != api.ImageReady {
		e := errs.E(errs.InvalidState, "an image that is %s cannot be pushed", r.State).Because(r.State)
		if r.State == api.ImagePulling {
			e = e.Suggest("Wait until it is ready: images.get shows how far it is.")
		}
		return e
	}
	now := db.Micros(s.Now())
	// One that is under way goes on: what it sends is the same.
	_, err = tx.ExecContext(ctx, `INSERT INTO image_pushes (id, image_id, org_id, reference, state, size_bytes, begun_at) VALUES ($1, $2, $3, $4, 'pushing', $5, $6)
		ON CONFLICT (image_id, reference) DO UPDATE SET state = 'pushing', done_bytes = 0, size_bytes = excluded.size_bytes, error = '', reason = '',
		begun_at = excluded.begun_at, ended_at = 0 WHERE image_pushes.state <> 'pushing'`,
		id.New(kindPush), r.ID, r.OrgID, d.Data.(string), r.Size, now)
	if err != nil {
		return fmt.Errorf("begin push: %w", err)
	}
	s.DB.NotifyAfter(tx, Topic(r.ID))
	return s.Events.Append(ctx, tx, r.OrgID, r.WorkspaceID, "image.pushing", r.ID, map[string]any{"reference": d.Data, "digest": r.Digest})
}

func (s *Service) actPush(ctx context.Context, in *api.PushImageIn, d *op.Draft) (*api.PushImageOut, error) {
	reference := d.Data.(string)
	read := func(ctx context.Context) (*push, error) {
		p, err := s.store.pushTo(ctx, s.DB, in.ImageID, reference)
		if err == nil && p == nil {
			err = errNotFound(in.ImageID)
		}
		return p, err
	}
	p, err := read(ctx)
	if err != nil {
		return nil, err
	}
	s.nudge(p.ID)
	if p, err = db.Settled(ctx, s.DB, Topic(in.ImageID), op.Remaining(ctx, time.Duration(in.Wait())*time.Second), op.Yield, read, func(p *push) bool {
		return p.State != api.PushPushing
	}); err != nil {
		return nil, err
	}
	if p.State == api.PushFailed {
		return nil, errs.E(errs.Upstream, "%s", p.Error).Because(p.Reason).With("imageId", p.ImageID).Suggest("Check the reference and the credentials that registries.set keeps, then push again.")
	}
	r, err := s.find(ctx, s.DB, in.ImageID)
	if err != nil {
		return nil, err
	}
	shown := p.show(r)
	return &api.PushImageOut{ImageIn: api.ImageIn{ImageID: r.ID}, Status: "done", Push: &shown}, nil
}

func (p *push) show(r *row) api.ImagePush {
	out := api.ImagePush{
		Reference: p.Reference, Digest: r.Digest, State: p.State, SizeMiB: float64(p.Size) / mib, Error: p.Error, Reason: p.Reason, BegunAt: db.Time(p.BegunAt),
	}
	if p.EndedAt != 0 {
		at := db.Time(p.EndedAt)
		out.EndedAt = &at
	}
	if p.State == api.PushPushing {
		out.Progress = &api.ImageProgress{Phase: nodeapi.PhasePushing}
		if p.Size > 0 {
			out.Progress.Percent = int(min(100*p.Done/p.Size, 100))
		}
	}
	return out
}

// advancePush has the node push, and records the end. A node that cannot be reached is asked again until the time is over: what the registry has by then is not
// sent again.
func (s *Service) advancePush(ctx context.Context, id string) error {
	p, err := s.store.push(ctx, s.DB, id)
	if err != nil || p == nil || p.State != api.PushPushing {
		return err
	}
	r, err := s.store.get(ctx, s.DB, p.ImageID)
	if err != nil || r == nil {
		return err
	}
	ref, err := registry.Parse(p.Reference)
	if err != nil {
		return err
	}
	auth, err := s.auth(ctx, p.OrgID, ref.Host)
	if err != nil {
		return err
	}
	left := db.Time(p.BegunAt).Add(s.PullTimeout).Sub(s.Now())
	pctx, cancel := context.WithTimeout(ctx, max(left, time.Second))
	defer cancel()
	var told time.Time
	err = s.Node.Push(pctx, nodeapi.ImageRequest{Scope: p.OrgID, Ref: p.Reference, Digest: r.Digest, Auth: auth}, func(at nodeapi.ImageProgress) {
		if now := time.Now(); now.Sub(told) >= tellEvery {
			told = now
			s.tellPush(ctx, p, at)
		}
	})
	switch {
	case err == nil:
		p.State = api.PushDone
	case ctx.Err() != nil:
		return ctx.Err() // this server ends
	case pctx.Err() != nil || left <= 0:
		p.State, p.Reason, p.Error = api.PushFailed, "timeout", "the image was not pushed within "+s.PullTimeout.String()
	case errs.Is(err, errs.HostUnavailable):
		return err
	default:
		e := errs.From(err)
		if e.Code == errs.Internal {
			s.Logger.Error("image not pushed", "image", p.ImageID, "error", err)
		}
		p.State, p.Error, p.Reason = api.PushFailed, e.Whole(), e.Reason
		if p.Reason == "" {
			p.Reason = "failed"
		}
	}
	return s.DB.Tx(ctx, func(tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, `UPDATE image_pushes SET state = $1, error = $2, reason = $3, done_bytes = size_bytes, ended_at = $4 WHERE id = $5 AND state = 'pushing'`,
			p.State, p.Error, p.Reason, db.Micros(s.Now()), p.ID)
		if err != nil {
			return fmt.Errorf("end push: %w", err)
		}
		s.DB.NotifyAfter(tx, Topic(p.ImageID))
		kind, data := "image.pushed", map[string]any{"reference": p.Reference, "digest": r.Digest}
		if p.State == api.PushFailed {
			kind, data["reason"] = "image.pushFailed", p.Reason
		}
		return s.Events.Append(ctx, tx, r.OrgID, r.WorkspaceID, kind, r.ID, data)
	})
}

func (s *Service) tellPush(ctx context.Context, p *push, at nodeapi.ImageProgress) {
	err := s.DB.TxRelaxed(ctx, func(tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, `UPDATE image_pushes SET done_bytes = $1, size_bytes = $2 WHERE id = $3 AND state = 'pushing'`, at.Done, at.Total, p.ID)
		return err
	})
	if err != nil && ctx.Err() == nil {
		s.Logger.Warn("progress not recorded", "image", p.ImageID, "error", err)
	}
}

// pushing counts the pushes of an image that are under way.
func (store) pushing(ctx context.Context, q op.Tx, imageID string) (n int, err error) {
	if err := q.QueryRowContext(ctx, `SELECT COUNT(*) FROM image_pushes WHERE image_id = $1 AND state = 'pushing'`, imageID).Scan(&n); err != nil {
		return 0, fmt.Errorf("count pushes: %w", err)
	}
	return n, nil
}

func (s store) push(ctx context.Context, q op.Tx, id string) (*push, error) {
	return firstPush(s.pushes(ctx, q, `id = $1`, id))
}

func (s store) pushTo(ctx context.Context, q op.Tx, imageID, reference string) (*push, error) {
	return firstPush(s.pushes(ctx, q, `image_id = $1 AND reference = $2`, imageID, reference))
}

func firstPush(all []*push, err error) (*push, error) {
	if err != nil || len(all) == 0 {
		return nil, err
	}
	return all[0], nil
}

func (store) pushes(ctx context.Context, q op.Tx, where string, args ...any) (all []*push, err error) {
	rows, err := q.QueryContext(ctx, `SELECT `+pushColumns+` FROM image_pushes WHERE `+where+` ORDER BY begun_at DESC, id`, args...)
	if err != nil {
		return nil, fmt.Errorf("list pushes: %w", err)
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	for rows.Next() {
		var p push
		if err := rows.Scan(&p.ID, &p.ImageID, &p.OrgID, &p.Reference, &p.State, &p.Error, &p.Reason, &p.Done, &p.Size, &p.BegunAt, &p.EndedAt); err != nil {
			return nil, fmt.Errorf("read push: %w", err)
		}
		all = append(all, &p)
	}
	return all, rows.Err()
}
