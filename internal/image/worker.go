package image

import (
	"context"
	"database/sql"
	"errors"
	"strings"
	"time"

	"github.com/berthrun/berth/api"
	"github.com/berthrun/berth/internal/db"
	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/nodeapi"
)

const (
	lookEvery  = 30 * time.Second
	endedFor   = 24 * time.Hour // how long rows outlive what has failed or was deleted
	orphanAge  = 10 * time.Minute
	tellEvery  = time.Second
	retryFirst = 500 * time.Millisecond
	retryMost  = 30 * time.Second
)

// Run carries pulls and deletions on until the context ends, and returns once all have stopped: what was interrupted goes on at the next Run.
func (s *Service) Run(ctx context.Context) error {
	s.mu.Lock()
	s.ctx = ctx
	s.mu.Unlock()
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	for n := 0; ctx.Err() == nil; n++ {
		if err := s.look(ctx, n%20 == 0); err != nil && ctx.Err() == nil {
			s.Logger.Warn("images not looked at", "error", err)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
		}
	}
	s.wg.Wait()
	return ctx.Err()
}

// look finds what is to be done. Now and then it compares the node with the rows.
func (s *Service) look(ctx context.Context, orphans bool) error {
	rows, err := s.store.moving(ctx, s.DB, db.Micros(s.Now().Add(-endedFor)))
	if err != nil {
		return err
	}
	for _, r := range rows {
		s.nudge(r.ID)
	}
	pushes, err := s.store.pushes(ctx, s.DB, `state = 'pushing'`)
	if err != nil {
		return err
	}
	for _, p := range pushes {
		s.nudge(p.ID)
	}
	if !orphans {
		return nil
	}
	there, err := s.Node.List(ctx)
	if err != nil {
		return err
	}
	for _, rec := range there {
		if s.Now().Sub(rec.Since) < orphanAge {
			continue // its row may be just being written
		}
		if wanted, err := s.store.wanted(ctx, s.DB, rec.Scope, rec.ID); err != nil || wanted {
			continue
		}
		s.Logger.Warn("removing an image that nobody has", "scope", rec.Scope, "digest", rec.ID)
		if err := s.Node.Remove(ctx, rec.Scope, rec.ID); err != nil {
			return err
		}
	}
	return nil
}

// nudge has somebody work on an image or a push. Without Run it does nothing.
func (s *Service) nudge(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ctx == nil || s.ctx.Err() != nil {
		return
	}
	if _, ok := s.working[id]; ok {
		s.working[id] = true
		return
	}
	s.working[id] = false
	s.wg.Go(func() { s.work(s.ctx, id) })
}

func (s *Service) work(ctx context.Context, id string) {
	delay := retryFirst
	for {
		err := s.advance(ctx, id)
		if err != nil && ctx.Err() == nil {
			s.Logger.Warn("image step failed, will try again", "image", id, "error", err)
		}
		s.mu.Lock()
		again := s.working[id] || err != nil
		if !again || ctx.Err() != nil {
			delete(s.working, id)
			s.mu.Unlock()
			return
		}
		s.working[id] = false
		s.mu.Unlock()
		if err != nil {
			select {
			case <-time.After(delay):
			case <-ctx.Done():
			}
			delay = min(2*delay, retryMost)
		}
	}
}

func (s *Service) advance(ctx context.Context, id string) error {
	if strings.HasPrefix(id, string(kindPush)+"_") {
		return s.advancePush(ctx, id)
	}
	r, err := s.store.get(ctx, s.DB, id)
	if err != nil || r == nil {
		return err
	}
	switch r.State {
	case api.ImagePulling:
		return s.pull(ctx, r)
	case api.ImageDeleting:
		return s.drop(ctx, r)
	case api.ImageFailed, api.ImageDeleted:
		if db.Time(r.StateAt).Before(s.Now().Add(-endedFor)) {
			return s.DB.Tx(ctx, func(tx *sql.Tx) error { return s.store.remove(ctx, tx, r.ID) })
		}
	}
	return nil
}

// pull has the node bring an image and records the end. A node that cannot be reached is asked again until the time is over.
func (s *Service) pull(ctx context.Context, r *row) error {
	left := db.Time(r.CreatedAt).Add(s.PullTimeout).Sub(s.Now())
	pctx, cancel := context.WithTimeout(ctx, max(left, time.Second))
	defer cancel()
	host, _ := splitName(r.Name)
	auth, err := s.auth(ctx, r.OrgID, host)
	if err != nil {
		return err
	}
	var told time.Time
	img, err := s.Node.Pull(pctx, nodeapi.ImageRequest{Scope: r.OrgID, Ref: r.Name + "@" + r.Digest, Digest: r.Digest, Auth: auth}, func(p nodeapi.ImageProgress) {
		if now := time.Now(); now.Sub(told) >= tellEvery {
			told = now
			s.tell(ctx, r.ID, p)
		}
	})
	switch {
	case err == nil:
		r.State, r.Phase, r.Done = api.ImageReady, "", img.Size
		r.Size, r.Unpacked, r.Layers, r.Config = img.Size, img.Unpacked, int64(img.Layers), img.Config
		if !img.Created.IsZero() {
			r.BuiltAt = db.Micros(img.Created)
		}
	case ctx.Err() != nil:
		return ctx.Err() // this server ends
	case pctx.Err() != nil || left <= 0:
		r.State, r.Reason, r.Error = api.ImageFailed, "timeout", "the image was not pulled within "+s.PullTimeout.String()
	case errs.Is(err, errs.HostUnavailable):
		return err
	default:
		e := errs.From(err)
		if e.Code == errs.Internal {
			s.Logger.Error("image not pulled", "image", r.ID, "error", err)
		}
		r.State, r.Error, r.Reason = api.ImageFailed, e.Whole(), e.Reason
		if r.Reason == "" {
			r.Reason = "failed"
		}
	}
	r.StateAt = db.Micros(s.Now())
	return s.DB.Tx(ctx, func(tx *sql.Tx) error {
		moved, err := s.store.move(ctx, tx, r, api.ImagePulling)
		if err != nil || !moved {
			return err
		}
		if r.State == api.ImageFailed {
			if err := s.store.untag(ctx, tx, r.ID); err != nil {
				return err
			}
		}
		return s.event(ctx, tx, r)
	})
}

func (s *Service) tell(ctx context.Context, id string, p nodeapi.ImageProgress) {
	err := s.DB.TxRelaxed(ctx, func(tx *sql.Tx) error { return s.store.progress(ctx, tx, id, p.Phase, p.Done) })
	if err != nil && ctx.Err() == nil {
		s.Logger.Warn("progress not recorded", "image", id, "error", err)
	}
}

// drop removes an image from the node, unless the same bytes have another name. Its row stays for a while, so that a repeated delete succeeds.
func (s *Service) drop(ctx context.Context, r *row) error {
	n, err := s.store.sharing(ctx, s.DB, r)
	if err != nil {
		return err
	}
	if n == 0 {
		if err := s.Node.Remove(ctx, r.OrgID, r.Digest); err != nil {
			return err
		}
	}
	err = s.DB.Tx(ctx, func(tx *sql.Tx) error {
		r.State, r.StateAt = api.ImageDeleted, db.Micros(s.Now())
		moved, err := s.store.move(ctx, tx, r, api.ImageDeleting)
		if err != nil || !moved {
			return err
		}
		return s.event(ctx, tx, r)
	})
	if errors.Is(err, context.Canceled) {
		return nil
	}
	return err
}
