package snapshot

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/berthrun/berth/api"
	"github.com/berthrun/berth/api/op"
	"github.com/berthrun/berth/internal/db"
	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/id"
)

const (
	// failedFor and tombstoneFor are how long rows outlive what they stand for.
	failedFor    = time.Hour
	tombstoneFor = 24 * time.Hour
	auditEvery   = 30 * time.Second
	// makeFor is how long a snapshot is tried whose node cannot be asked.
	makeFor = 10 * time.Minute
)

// Run carries every snapshot on until the context ends, and returns once all workers have stopped: what was interrupted goes on at the next Run.
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
			s.Logger.Warn("snapshots not looked at", "error", err)
		}
		if time.Since(audited) >= auditEvery {
			if err := s.audit(ctx); err != nil && ctx.Err() == nil {
				s.Logger.Warn("snapshots not compared with the node", "error", err)
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
	now := s.Now()
	rows, err := s.store.due(ctx, s.DB, s.Storage != nil, db.Micros(now.Add(-failedFor)), db.Micros(now.Add(-tombstoneFor)))
	if err != nil {
		return err
	}
	for _, r := range rows {
		s.nudge(r.ID)
	}
	return nil
}

// audit removes saves of snapshots that there are not.
func (s *Service) audit(ctx context.Context) error {
	if !s.Node.Capabilities().Saves {
		return nil
	}
	// The node is listed first: a snapshot made meanwhile has a row by the time the rows are read.
	saves, err := s.Node.Saves(ctx)
	if err != nil {
		return err
	}
	living, err := s.store.living(ctx, s.DB)
	if err != nil {
		return err
	}
	for _, sv := range saves {
		state := living[sv.Name]
		if !strings.HasPrefix(sv.Name, string(id.Snapshot)+"_") || state == api.SnapshotCreating || state == api.SnapshotReady {
			continue
		}
		if err := s.Node.Forget(ctx, sv.Name); err != nil {
			s.Logger.Warn("save of no snapshot not forgotten", "save", sv.Name, "error", err)
		}
	}
	return nil
}

// nudge has a worker look at a snapshot, soon. Without Run it does nothing: Run looks at everything when it begins.
func (s *Service) nudge(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ctx == nil || s.ctx.Err() != nil {
		return
	}
	if _, busy := s.working[id]; busy {
		s.working[id] = true
		return
	}
	s.working[id] = false
	ctx := s.ctx
	s.wg.Go(func() { s.work(ctx, id) })
}

func (s *Service) work(ctx context.Context, id string) {
	for {
		err := s.advance(ctx, id)
		if err != nil && ctx.Err() == nil && !errors.Is(err, errLostRace) {
			s.Logger.Warn("snapshot step failed, will try again", "snapshot", id, "error", err)
		}
		s.mu.Lock()
		again := s.working[id] && ctx.Err() == nil && err == nil
		if again {
			s.working[id] = false
		} else {
			delete(s.working, id) // what failed is tried again at the next tick
		}
		s.mu.Unlock()
		if !again {
			return
		}
	}
}

// advance makes the next step of a snapshot.
func (s *Service) advance(ctx context.Context, id string) error {
	r, err := s.store.get(ctx, s.DB, id)
	if err != nil || r == nil {
		return err
	}
	switch r.State {
	case api.SnapshotCreating:
		return s.make(ctx, r)
	case api.SnapshotReady:
		return s.keep(ctx, r)
	case api.SnapshotDeleting:
		return s.remove(ctx, r)
	case api.SnapshotFailed:
		if db.Time(r.StateAt).Add(failedFor).After(s.Now()) {
			return nil
		}
		return s.move(ctx, r, api.SnapshotDeleting)
	case api.SnapshotDeleted:
		if db.Time(r.StateAt).Add(tombstoneFor).After(s.Now()) {
			return nil
		}
		_, err := s.DB.ExecContext(ctx, `DELETE FROM snapshots WHERE id = $1 AND state = 'deleted'`, r.ID)
		return err
	}
	return nil
}

// make has the sandbox saved and lets it go.
func (s *Service) make(ctx context.Context, r *row) error {
	sv, err := s.Sandboxes.Save(ctx, r.SandboxID, r.ID, r.Mode == api.ModeMemory)
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case errs.Is(err, errs.HostUnavailable) && s.Now().Before(db.Time(r.StateAt).Add(makeFor)):
		return err // the node comes back
	}
	// Before the snapshot is said to be done, so that whoever waited for it may copy the sandbox again.
	if rerr := s.Sandboxes.Release(ctx, r.SandboxID, r.ID); rerr != nil {
		return rerr
	}
	if err != nil {
		s.Logger.Warn("snapshot failed", "snapshot", r.ID, "sandbox", r.SandboxID, "error", err)
		r.Error = errs.From(err).Message
		return s.move(ctx, r, api.SnapshotFailed)
	}
	r.DiskBytes, r.MemBytes, r.TakenAt = sv.DiskBytes, sv.MemoryBytes, db.Micros(sv.At)
	if sv.At.IsZero() {
		r.TakenAt = db.Micros(s.Now())
	}
	if err := s.move(ctx, r, api.SnapshotReady); err != nil {
		return err
	}
	s.nudge(r.ID)
	return nil
}

// keepAgain is when a copy that failed is tried again: what is wrong with a store of objects seldom passes in a second.
const keepAgain = 30 * time.Second

// keep copies a snapshot off its node.
func (s *Service) keep(ctx context.Context, r *row) error {
	if s.Storage == nil || r.Stored {
		return nil
	}
	now := s.Now()
	s.mu.Lock()
	rests := s.rests[r.ID].After(now)
	s.mu.Unlock()
	if rests {
		return nil
	}
	if err := s.Storage.Keep(ctx, r.stored()); err != nil {
		s.mu.Lock()
		s.rests[r.ID] = now.Add(keepAgain)
		s.mu.Unlock()
		return err
	}
	s.mu.Lock()
	delete(s.rests, r.ID)
	s.mu.Unlock()
	return s.DB.Tx(ctx, func(tx *sql.Tx) error {
		if _, err := tx.ExecContext(ctx, `UPDATE snapshots SET stored = 1 WHERE id = $1`, r.ID); err != nil {
			return fmt.Errorf("record stored snapshot: %w", err)
		}
		s.DB.NotifyAfter(tx, topic(r.ID))
		return nil
	})
}

// remove takes everything away that a deleting snapshot has.
func (s *Service) remove(ctx context.Context, r *row) error {
	if err := s.Sandboxes.Release(ctx, r.SandboxID, r.ID); err != nil {
		return err
	}
	if err := s.Node.Forget(ctx, r.ID); err != nil {
		return err
	}
	if s.Storage != nil {
		if err := s.Storage.Drop(ctx, r.stored()); err != nil {
			return err
		}
	}
	return s.move(ctx, r, api.SnapshotDeleted)
}

// moveTx makes one transition in a transaction, with the event that tells of it.
func (s *Service) moveTx(ctx context.Context, tx op.Tx, r *row, to string) error {
	from := r.State
	r.StateAt = db.Micros(s.Now())
	if err := s.store.move(ctx, tx, r, to); err != nil {
		return err
	}
	s.DB.NotifyAfter(tx, topic(r.ID))
	data := map[string]any{"from": from, "to": to, "sandboxId": r.SandboxID}
	if r.Error != "" && to == api.SnapshotFailed {
		data["error"] = r.Error
	}
	return s.Events.Append(ctx, tx, r.OrgID, r.WorkspaceID, "snapshot."+to, r.ID, data)
}

// move makes one transition in a transaction of its own.
func (s *Service) move(ctx context.Context, r *row, to string) error {
	before := *r
	err := s.DB.Tx(ctx, func(tx *sql.Tx) error {
		*r = before // the transaction may run more than once
		return s.moveTx(ctx, tx, r, to)
	})
	if err != nil {
		*r = before
	}
	return err
}
