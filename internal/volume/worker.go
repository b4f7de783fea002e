package volume

import (
	"context"
	"database/sql"
	"errors"
	"strings"
	"sync/atomic"
	"time"

	"github.com/berthrun/berth/api"
	"github.com/berthrun/berth/api/op"
	"github.com/berthrun/berth/internal/db"
	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/id"
	"github.com/berthrun/berth/internal/runtime"
)

const (
	// failedFor and tombstoneFor are how long rows outlive what they stand for.
	failedFor    = time.Hour
	tombstoneFor = 24 * time.Hour
	auditEvery   = 30 * time.Second
	// tryFor is how long a volume is tried whose node cannot be asked, or a backup whose node or storage cannot.
	tryFor = time.Hour
	// tryUnknown is the same of an error that says nothing of its cause.
	tryUnknown = 30 * time.Second
	// tryAgain is when a step that failed is tried again: what is wrong with a node or a store of objects seldom passes in a second.
	tryAgain = 5 * time.Second
	// tellEvery is how often the progress of a copy is written down.
	tellEvery = time.Second
)

// work is what is done at one volume or backup.
type work struct {
	again     bool // it was nudged meanwhile
	interrupt context.CancelFunc
}

// Run carries every volume and backup on until the context ends, and returns once all workers have stopped: what was interrupted goes on at the next Run.
func (s *Service) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	s.mu.Lock()
	s.ctx = ctx
	s.mu.Unlock()
	tick := time.NewTicker(s.Tick)
	defer tick.Stop()
	var audited, measured time.Time
	for ctx.Err() == nil {
		if err := s.look(ctx); err != nil && ctx.Err() == nil {
			s.Logger.Warn("volumes not looked at", "error", err)
		}
		if time.Since(measured) >= s.Measure {
			measured = time.Now()
			if err := s.measure(ctx); err != nil && ctx.Err() == nil {
				s.Logger.Warn("volumes not measured", "error", err)
			}
		}
		if time.Since(audited) >= auditEvery {
			if err := s.audit(ctx); err != nil && ctx.Err() == nil {
				s.Logger.Warn("volumes not compared with the node", "error", err)
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
	failed, deleted := db.Micros(now.Add(-failedFor)), db.Micros(now.Add(-tombstoneFor))
	all, err := s.store.due(ctx, s.DB, failed, deleted)
	if err != nil {
		return err
	}
	backups, err := s.store.dueBackups(ctx, s.DB, failed, deleted)
	if err != nil {
		return err
	}
	for _, id := range append(all, backups...) {
		s.nudge(id)
	}
	return s.keepPolicies(ctx)
}

// measure asks the node what is used of each volume.
func (s *Service) measure(ctx context.Context) error {
	if !s.Node.Capabilities().Volumes {
		return nil
	}
	there, err := s.Node.Volumes(ctx)
	if err != nil || len(there) == 0 {
		return err
	}
	now := db.Micros(s.Now())
	return s.DB.TxRelaxed(ctx, func(tx *sql.Tx) error {
		for _, v := range there {
			if _, err := tx.ExecContext(ctx, `UPDATE volumes SET used_bytes = $1, measured_at = $2 WHERE id = $3 AND state = 'ready'`, v.UsedBytes, now, v.ID); err != nil {
				return err
			}
		}
		return nil
	})
}

// audit removes volumes that failed or were deleted, and copies that no backup is made of. A volume without any row it keeps: a row is written before the node
// makes a volume and stays for long after the node has removed it, so only a database that was lost or brought back from a copy can lack it, and what is on the
// volume may be all that is left.
func (s *Service) audit(ctx context.Context) error {
	if !s.Node.Capabilities().Volumes {
		return nil
	}
	// The node is listed first: a volume or a copy made meanwhile has a row by the time the rows are read.
	there, err := s.Node.Volumes(ctx)
	if err != nil {
		return err
	}
	copies, err := s.Node.Copies(ctx)
	if err != nil {
		return err
	}
	known, err := s.store.states(ctx, s.DB)
	if err != nil {
		return err
	}
	for _, v := range there {
		switch known[v.ID] {
		case api.VolumeFailed, api.VolumeDeleted:
			if err := s.Node.RemoveVolume(ctx, v.ID); err != nil {
				s.Logger.Warn("volume that nobody has not removed", "volume", v.ID, "error", err)
			}
		case "":
			s.warnUnknown(v)
		}
	}
	making, err := s.store.making(ctx, s.DB, "")
	if err != nil {
		return err
	}
	wanted := map[string]bool{}
	for _, id := range making {
		wanted[id] = true
	}
	for _, name := range copies {
		if wanted[name] {
			continue
		}
		if err := s.Node.ForgetCopy(ctx, name); err != nil {
			s.Logger.Warn("copy of no backup not forgotten", "copy", name, "error", err)
		}
	}
	return nil
}

// warnUnknown tells of a volume that the database does not know, once.
func (s *Service) warnUnknown(v runtime.Volume) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.unknown[v.ID] {
		return
	}
	s.unknown[v.ID] = true
	s.Logger.Warn("keeping a volume that the database does not know", "volume", v.ID, "usedMiB", v.UsedBytes>>20, "see", "docs/running.md")
}

// nudge has a worker look at a volume or a backup, soon. Without Run it does nothing: Run looks at everything when it begins.
func (s *Service) nudge(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ctx == nil || s.ctx.Err() != nil {
		return
	}
	if w := s.working[id]; w != nil {
		w.again = true
		return
	}
	ctx, cancel := context.WithCancel(s.ctx)
	w := &work{interrupt: cancel}
	s.working[id] = w
	s.wg.Go(func() {
		defer cancel()
		s.work(ctx, id, w)
	})
}

// interrupt ends what a worker waits for: the volume or the backup goes another way.
func (s *Service) interrupt(id string) {
	s.mu.Lock()
	delete(s.rests, id)
	w := s.working[id]
	if w != nil {
		w.again = true
		w.interrupt()
	}
	s.mu.Unlock()
	if w == nil {
		s.nudge(id)
	}
}

func (s *Service) work(ctx context.Context, id string, w *work) {
	for {
		s.mu.Lock()
		rests := s.rests[id].After(time.Now())
		s.mu.Unlock()
		var err error
		if !rests {
			err = s.advance(ctx, id)
		}
		s.mu.Lock()
		interrupted := ctx.Err() != nil && s.ctx.Err() == nil
		if err != nil && ctx.Err() == nil && !errors.Is(err, errLostRace) {
			s.Logger.Warn("step of a volume failed, will try again", "volume", id, "error", err)
			s.rests[id] = time.Now().Add(tryAgain)
		} else if err == nil && !rests {
			delete(s.rests, id)
		}
		again := s.ctx.Err() == nil && w.again && (interrupted || err == nil && !rests)
		if !again {
			delete(s.working, id) // what failed is tried again at a tick
			s.mu.Unlock()
			return
		}
		w.again = false
		if interrupted {
			ctx, w.interrupt = context.WithCancel(s.ctx)
			defer w.interrupt()
		}
		s.mu.Unlock()
	}
}

// advance makes the next step of a volume or a backup.
func (s *Service) advance(ctx context.Context, what string) error {
	if strings.HasPrefix(what, string(id.Backup)+"_") {
		return s.advanceBackup(ctx, what)
	}
	r, err := s.store.get(ctx, s.DB, what)
	if err != nil || r == nil {
		return err
	}
	switch r.State {
	case api.VolumeCreating:
		return s.make(ctx, r)
	case api.VolumeReady:
		return s.grow(ctx, r)
	case api.VolumeDeleting:
		if err := s.Node.RemoveVolume(ctx, r.ID); err != nil {
			return err
		}
		return s.move(ctx, r, api.VolumeDeleted)
	case api.VolumeFailed:
		if db.Time(r.StateAt).Add(failedFor).After(s.Now()) {
			return nil
		}
		return s.move(ctx, r, api.VolumeDeleting)
	case api.VolumeDeleted:
		if db.Time(r.StateAt).Add(tombstoneFor).After(s.Now()) {
			return nil
		}
		_, err := s.DB.ExecContext(ctx, `DELETE FROM volumes WHERE id = $1 AND state = 'deleted'`, r.ID)
		return err
	}
	return nil
}

// make has the node make a volume, with what a backup holds where it is made of one.
func (s *Service) make(ctx context.Context, r *row) error {
	if r.FromBackup != "" {
		held, free, mine, err := s.hold(ctx, r.ID)
		if err != nil || !mine {
			return err
		}
		defer free()
		ctx = held
		if r, err = s.store.get(ctx, s.DB, r.ID); err != nil || r == nil || r.State != api.VolumeCreating {
			return err // another server has done it
		}
	}
	size := r.SizeGiB
	err := s.restore(ctx, r)
	if err == nil {
		err = s.Node.MakeVolume(ctx, r.ID, size)
	}
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case err == nil:
		r.MadeGiB = size
		return s.move(ctx, r, api.VolumeReady)
	case s.passes(err, r.CreatedAt):
		return err
	}
	s.Logger.Warn("volume not made", "volume", r.ID, "backup", r.FromBackup, "error", err)
	r.Error, r.Reason = explain(err)
	if err := s.Node.RemoveVolume(ctx, r.ID); err != nil { // the next look at the node removes it
		s.Logger.Warn("volume that was not made not removed", "volume", r.ID, "error", err)
	}
	return s.move(ctx, r, api.VolumeFailed)
}

// restore brings what a backup holds into a volume that is not there yet.
func (s *Service) restore(ctx context.Context, r *row) error {
	if r.FromBackup == "" {
		return nil
	}
	if s.Storage == nil {
		return unsupported("backups")
	}
	b, err := s.store.getBackup(ctx, s.DB, r.FromBackup)
	if err != nil {
		return err
	}
	if b == nil || b.State != api.BackupReady {
		return errNoBackup(r.FromBackup)
	}
	var done atomic.Int64
	defer s.tell(ctx, `UPDATE volumes SET done_bytes = $1 WHERE id = $2 AND state = 'creating'`, r.ID, &done)()
	return s.Storage.Load(ctx, b.stored(), r.ID, done.Store)
}

// tell writes the progress of a copy down while it goes on.
func (s *Service) tell(ctx context.Context, statement, id string, done *atomic.Int64) (end func()) {
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		tick := time.NewTicker(tellEvery)
		defer tick.Stop()
		var last int64
		for {
			select {
			case <-tick.C:
			case <-ctx.Done():
				return
			}
			n := done.Load()
			if n == last {
				continue
			}
			last = n
			err := s.DB.TxRelaxed(ctx, func(tx *sql.Tx) error {
				_, err := tx.ExecContext(ctx, statement, n, id)
				return err
			})
			if err != nil && ctx.Err() == nil {
				s.Logger.Warn("progress not recorded", "volume", id, "error", err)
			}
		}
	}()
	return func() {
		cancel()
		<-ended
	}
}

// passes reports whether what failed is tried again: for long where the node cannot be asked, for a moment where nobody knows what it is.
func (s *Service) passes(err error, since int64) bool {
	e, tries := errs.From(err), time.Duration(0)
	switch {
	case e.Code == errs.HostUnavailable, e.Code == errs.Busy, e.Reason == "lease_lost":
		tries = tryFor
	case e.Code == errs.Internal, e.Code == errs.Unavailable && e.Reason == "":
		tries = tryUnknown
	}
	return s.Now().Before(db.Time(since).Add(tries))
}

// explain gives an error for a row: its message and its reason in a word.
func explain(err error) (message, reason string) {
	e := errs.From(err)
	if reason = e.Reason; reason == "" {
		reason = "failed"
	}
	return e.Whole(), reason
}

// grow has the node give a volume the size that it is to have.
func (s *Service) grow(ctx context.Context, r *row) error {
	if r.MadeGiB >= r.SizeGiB {
		return nil
	}
	if err := s.Node.MakeVolume(ctx, r.ID, r.SizeGiB); err != nil {
		return err
	}
	return s.DB.Tx(ctx, func(tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, `UPDATE volumes SET made_gib = $1 WHERE id = $2 AND made_gib < $1`, r.SizeGiB, r.ID)
		s.DB.NotifyAfter(tx, topic(r.ID))
		return err
	})
}

// moveTx makes one transition in a transaction, with what it takes from or gives back to the quotas and the event that tells of it.
func (s *Service) moveTx(ctx context.Context, tx op.Tx, r *row, to string) error {
	from := r.State
	r.StateAt = db.Micros(s.Now())
	if err := s.store.move(ctx, tx, r, to); err != nil {
		return err
	}
	delta := r.usage(to)
	for k, v := range r.usage(from) {
		delta[k] -= v
	}
	if err := s.Quota.Take(ctx, tx, r.OrgID, delta); err != nil {
		return err
	}
	s.DB.NotifyAfter(tx, topic(r.ID))
	data := map[string]any{"from": from, "to": to, "name": r.Name}
	if to == api.VolumeFailed {
		data["error"], data["reason"] = r.Error, r.Reason
	}
	return s.Events.Append(ctx, tx, r.OrgID, r.WorkspaceID, "volume."+to, r.ID, data)
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
