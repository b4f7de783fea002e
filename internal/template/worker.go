package template

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/berthrun/berth/api"
	"github.com/berthrun/berth/internal/db"
	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/id"
)

const (
	auditEvery = 30 * time.Second
	keepAgain  = 30 * time.Second // after a copy off the node that failed
)

// Run carries every build on until the context ends, and returns once all workers have stopped: what was interrupted goes on at the next Run, here or on
// another server.
func (s *Service) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	s.mu.Lock()
	s.ctx = ctx
	s.mu.Unlock()
	tick := time.NewTicker(s.Tick)
	defer tick.Stop()
	var audited time.Time
	for ctx.Err() == nil {
		if err := s.look(ctx); err != nil && ctx.Err() == nil {
			s.Logger.Warn("builds not looked at", "error", err)
		}
		if time.Since(audited) >= auditEvery {
			if err := s.audit(ctx); err != nil && ctx.Err() == nil {
				s.Logger.Warn("layers not compared with the node", "error", err)
			} else {
				audited = time.Now()
			}
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
		}
	}
	s.wg.Wait()
	return ctx.Err()
}

// look has everything worked on that needs it.
func (s *Service) look(ctx context.Context) error {
	builds, err := s.store.unfinished(ctx, s.DB)
	if err != nil {
		return err
	}
	for _, b := range builds {
		s.nudge(b.ID)
	}
	layers, err := s.store.dueLayers(ctx, s.DB, s.Storage != nil)
	if err != nil {
		return err
	}
	for _, l := range layers {
		s.nudge(l.ID)
	}
	return nil
}

// nudge has a worker look at a build or a layer, soon. Without Run it does nothing: Run looks at everything when it begins.
func (s *Service) nudge(what string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ctx == nil || s.ctx.Err() != nil || s.rests[what].After(s.Now()) {
		return
	}
	if _, busy := s.working[what]; busy {
		s.working[what] = true
		return
	}
	s.working[what] = false
	ctx := s.ctx
	s.wg.Go(func() { s.work(ctx, what) })
}

func (s *Service) work(ctx context.Context, what string) {
	err := s.advance(ctx, what)
	s.mu.Lock()
	delete(s.working, what) // what is not done is found again at the next tick
	delete(s.rests, what)
	if err != nil {
		s.rests[what] = s.Now().Add(keepAgain)
		if strings.HasPrefix(what, string(id.Build)+"_") {
			s.rests[what] = s.Now().Add(time.Second)
		}
	}
	s.mu.Unlock()
	if err != nil && ctx.Err() == nil {
		s.Logger.Warn("step of a template failed, will try again", "id", what, "error", err)
	}
}

func (s *Service) advance(ctx context.Context, what string) error {
	if strings.HasPrefix(what, string(id.Layer)+"_") {
		return s.advanceLayer(ctx, what)
	}
	b, err := s.store.build(ctx, s.DB, what)
	if err != nil || b == nil || ended(b.Status) {
		return err
	}
	if b.Cancelled || s.late(b) {
		return s.carry(ctx, b) // it needs no turn to end
	}
	if err := s.turns.take(ctx, b.OrgID); err != nil {
		return err
	}
	defer s.turns.give(b.OrgID)
	return s.carry(ctx, b)
}

// waitTime is how long a build may wait for its turn.
const waitTime = 24 * time.Hour

func (s *Service) late(b *build) bool {
	now := s.Now()
	return b.StartedAt > 0 && db.Time(b.StartedAt).Add(s.BuildTime).Before(now) || db.Time(b.CreatedAt).Add(waitTime).Before(now)
}

// take leases a build for this server. It is false where another one has it, or it has ended.
func (s *Service) take(ctx context.Context, b *build) (taken bool, err error) {
	err = s.DB.Tx(ctx, func(tx *sql.Tx) error {
		now, err := s.DB.Now(ctx, tx)
		if err != nil {
			return err
		}
		if taken, err = s.store.lease(ctx, tx, b, s.server, db.Micros(now), db.Micros(now.Add(leaseFor))); err != nil {
			return err
		}
		s.DB.NotifyAfter(tx, topic(b.ID))
		return nil
	})
	return taken, err
}

var (
	errCancelled = errs.E(errs.InvalidState, "the build was cancelled").Because("cancelled")
	errNothing   = errors.New("another server works on it")
)

// carry builds a build to its end, where this server has it.
func (s *Service) carry(ctx context.Context, b *build) error {
	taken, err := s.take(ctx, b)
	if err != nil || !taken {
		return err
	}
	if b, err = s.store.build(ctx, s.DB, b.ID); err != nil || b == nil {
		return err
	}
	if err := s.sweep(ctx, b); err != nil {
		return err
	}
	log, err := s.openJournal(ctx, b.ID)
	if err != nil {
		return err
	}
	bctx, cancel := context.WithCancelCause(ctx)
	tctx, stop := context.WithDeadlineCause(bctx, time.Now().Add(db.Time(b.StartedAt).Add(s.BuildTime).Sub(s.Now())), errs.E(errs.Timeout, "the build took longer than %v", s.BuildTime).Because("timeout"))
	watched := make(chan struct{})
	wctx, unwatch := context.WithCancel(bctx)
	go func() {
		defer close(watched)
		s.hold(wctx, b, cancel)
	}()
	x := &execution{s: s, b: b, log: log}
	err = x.run(tctx)
	if tctx.Err() != nil {
		err = context.Cause(tctx)
	}
	stop()
	unwatch()
	<-watched
	x.leave(context.WithoutCancel(ctx))
	switch {
	case ctx.Err() != nil:
		log.say(b.Step, "the server stops; the build goes on with the next one")
		log.close()
		return s.letGo(context.WithoutCancel(ctx), b)
	case errors.Is(err, errLostLease) || errors.Is(err, errNothing):
		log.close()
		return nil
	case errs.Is(err, errs.HostUnavailable) && !s.late(b):
		log.say(b.Step, "the node cannot be reached; it is tried again")
		log.close()
		return err
	}
	return s.end(ctx, b, log, err)
}

// sweep ends the sandboxes that a server left which worked on a build before: what they hold is half a step.
func (s *Service) sweep(ctx context.Context, b *build) error {
	all, err := s.Sandboxes.All(ctx)
	if err != nil {
		return err
	}
	for sandbox, of := range all {
		if of == b.ID {
			err = errors.Join(err, s.Sandboxes.End(ctx, sandbox))
		}
	}
	return err
}

// hold keeps the lease of a build and of its layer, and ends it when it is cancelled or lost.
func (s *Service) hold(ctx context.Context, b *build, cancel context.CancelCauseFunc) {
	signals, stop := s.DB.Subscribe(topic(b.ID))
	defer stop()
	tick := time.NewTicker(leaseEvery)
	defer tick.Stop()
	renewed := time.Now()
	for {
		cancelled, err := false, error(nil)
		if err = s.DB.QueryRowContext(ctx, `SELECT cancelled FROM template_builds WHERE id = $1`, b.ID).Scan(&cancelled); err == nil && cancelled {
			cancel(errCancelled)
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-signals:
			continue
		case <-tick.C:
		}
		var mine bool
		err = s.DB.TxRelaxed(ctx, func(tx *sql.Tx) error {
			now, err := s.DB.Now(ctx, tx)
			if err != nil {
				return err
			}
			until := db.Micros(now.Add(leaseFor))
			res, err := tx.ExecContext(ctx, `UPDATE template_builds SET lease_until = $1 WHERE id = $2 AND owner = $3 AND status = 'building'`, until, b.ID, s.server)
			if err != nil {
				return err
			}
			n, _ := res.RowsAffected()
			mine = n == 1
			if mine {
				_, err = tx.ExecContext(ctx, `UPDATE template_layers SET lease_until = $1 WHERE build_id = $2 AND state = 'building'`, until, b.ID)
			}
			return err
		})
		switch {
		case err == nil && mine:
			renewed = time.Now()
		case err == nil, time.Since(renewed) > leaseFor:
			cancel(errLostLease)
			return
		}
	}
}

// letGo gives a build back, so that the next server need not wait for the end of the lease.
func (s *Service) letGo(ctx context.Context, b *build) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	_, err := s.DB.ExecContext(ctx, `UPDATE template_builds SET owner = '', lease_until = 0 WHERE id = $1 AND owner = $2 AND status = 'building'`, b.ID, s.server)
	if err != nil {
		return fmt.Errorf("let build go: %w", err)
	}
	return nil
}

// end records how a build ended. What it made comes into use with that, and not before.
func (s *Service) end(ctx context.Context, b *build, log *journal, err error) error {
	b.FinishedAt = db.Micros(s.Now())
	b.Status = api.BuildReady
	took := time.Duration(b.FinishedAt-b.StartedAt) * time.Microsecond
	if err != nil {
		e := errs.From(err)
		if e.Code == errs.Internal {
			s.Logger.Error("build failed", "build", b.ID, "error", err)
		}
		b.Status, b.Reason, b.Result = api.BuildError, e.Whole(), result{}
		if tail, _ := e.Details[tailOf].(string); tail != "" { // the log has it, as the command wrote it
			cut := *e
			cut.Message = strings.TrimSuffix(e.Message, tail)
			e = &cut
		}
		log.say(b.Step, "%s", e.Whole())
	} else {
		log.say(0, "ready: %s version %d, %d of %d steps from earlier builds, %v", b.name, b.Version, b.Cached, b.Steps, took.Round(10*time.Millisecond))
	}
	log.close()
	return s.DB.Tx(ctx, func(tx *sql.Tx) error {
		done, err := s.store.finish(ctx, tx, b, s.server)
		if err != nil || !done {
			return err
		}
		if b.Status == api.BuildReady {
			if err := s.publish(ctx, tx, b); err != nil {
				return err
			}
		}
		s.DB.NotifyAfter(tx, topic(b.ID))
		data := map[string]any{"buildId": b.ID, "version": b.Version}
		if b.Reason != "" {
			data["reason"] = b.Reason
		}
		return s.Events.Append(ctx, tx, b.OrgID, b.WorkspaceID, "template."+b.Status, b.TemplateID, data)
	})
}

// publish has the tags of a build mean it, unless they mean a newer one already.
func (s *Service) publish(ctx context.Context, tx *sql.Tx, b *build) error {
	for _, layer := range []string{b.Result.Disk, b.Result.Booted} {
		if layer == "" {
			continue
		}
		if _, err := tx.ExecContext(ctx, `UPDATE template_layers SET wanted = 1, used_at = $1 WHERE id = $2`, b.FinishedAt, layer); err != nil {
			return fmt.Errorf("want layer: %w", err)
		}
	}
	t, err := s.store.get(ctx, tx, b.TemplateID)
	if err != nil || t == nil || t.State != living {
		return err
	}
	now, err := s.store.tags(ctx, tx, b.TemplateID)
	if err != nil {
		return err
	}
	newer := map[string]bool{}
	for _, one := range now {
		newer[one.Tag] = one.Version > b.Version
	}
	for _, name := range []string{latest, b.Tag} {
		if name == "" || newer[name] {
			continue
		}
		if err := s.store.setTag(ctx, tx, b.TemplateID, name, b.ID); err != nil {
			return err
		}
	}
	return nil
}

// audit removes what nobody owns: sandboxes of builds that have ended, saves of layers that there are not; and gives up layers that no template needs.
func (s *Service) audit(ctx context.Context) error {
	sandboxes, err := s.Sandboxes.All(ctx)
	if err != nil {
		return err
	}
	for sandbox, of := range sandboxes {
		b, err := s.store.build(ctx, s.DB, of)
		if err != nil {
			return err
		}
		now, err := s.DB.Now(ctx, s.DB)
		if err != nil {
			return err
		}
		if b != nil && !ended(b.Status) && b.LeaseUntil >= db.Micros(now) {
			continue // whoever has it owns them
		}
		if err := s.Sandboxes.End(ctx, sandbox); err != nil {
			s.Logger.Warn("sandbox of a build not deleted", "sandbox", sandbox, "build", of, "error", err)
		}
	}
	if err := s.dropContexts(ctx); err != nil {
		return err
	}
	if err := s.collect(ctx); err != nil {
		return err
	}
	if !s.Node.Capabilities().Saves {
		return nil
	}
	// The node is listed first: a layer made meanwhile has a row by the time the rows are read.
	saves, err := s.Node.Saves(ctx)
	if err != nil {
		return err
	}
	there, err := s.store.layerIDs(ctx, s.DB)
	if err != nil {
		return err
	}
	for _, sv := range saves {
		if !strings.HasPrefix(sv.Name, string(id.Layer)+"_") || there[sv.Name] {
			continue
		}
		if err := s.Node.Forget(ctx, sv.Name); err != nil {
			s.Logger.Warn("save of no layer not forgotten", "save", sv.Name, "error", err)
		}
	}
	return nil
}
