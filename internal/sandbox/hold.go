package sandbox

import (
	"context"
	"database/sql"
	"fmt"
	"time"

	"github.com/berthrun/berth/api"
	"github.com/berthrun/berth/api/op"
	"github.com/berthrun/berth/internal/db"
	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/runtime"
)

// HoldForSnapshot holds a sandbox of the caller's organization for a snapshot of this id, in the transaction that makes the snapshot: another, or a fork, is
// errs.Busy meanwhile. Its state is left alone.
func (s *Service) HoldForSnapshot(ctx context.Context, tx op.Tx, id, snapshot string) (Snapshot, error) {
	var held Snapshot
	err := decided(func() error {
		r, err := s.find(ctx, tx, id)
		if err != nil {
			return err
		}
		switch decide(verbSnap, r.State) {
		case do:
		case busy:
			return errBusy(r)
		default:
			return errInvalidState(r, verbSnap)
		}
		held = Snapshot{
			Template: r.Template, Image: r.Image, ImageRef: r.ImageRef, ImageID: r.ImageID, BuildID: r.BuildID, Resources: r.spec().Resources, Memory: r.State != api.StateStopped,
			Internet: r.Internet, Env: r.Env, GuestToken: r.GuestToken,
		}
		if held.Volumes, err = s.volumeNames(ctx, tx, r.ID); err != nil {
			return err
		}
		return s.store.hold(ctx, tx, r, snapshot)
	})
	return held, err
}

// Save has the node keep a sandbox as it is now, under the id of the snapshot that holds it. Errors with HOST_UNAVAILABLE may pass.
func (s *Service) Save(ctx context.Context, id, snapshot string, memory bool) (runtime.Save, error) {
	return s.save(ctx, id, snapshot, runtime.SaveOptions{Memory: memory})
}

// Release ends what HoldForSnapshot began.
func (s *Service) Release(ctx context.Context, id, snapshot string) error {
	return s.store.release(ctx, s.DB, id, snapshot)
}

// MadeOf counts the sandboxes that are being made of a snapshot.
func (s *Service) MadeOf(ctx context.Context, tx op.Tx, snapshot string) (n int, err error) {
	err = tx.QueryRowContext(ctx, `SELECT COUNT(*) FROM sandboxes WHERE save_name = $1 AND state = 'creating'`, snapshot).Scan(&n)
	if err != nil {
		return 0, fmt.Errorf("count sandboxes of snapshot: %w", err)
	}
	return n, nil
}

// hold has a sandbox held for a fork or a snapshot, on the condition that it is as r says. It is errs.Busy while another holds it.
func (s store) hold(ctx context.Context, tx op.Tx, r *row, by string) error {
	if r.OpID != "" {
		return errs.E(errs.Busy, "the sandbox is being copied").Because("copying").After(time.Second).
			Suggest("Call again in a second with the same idempotencyKey.").With("state", r.State)
	}
	res, err := tx.ExecContext(ctx, `UPDATE sandboxes SET op_id = $1 WHERE id = $2 AND state = $3 AND generation = $4 AND op_id = ''`, by, r.ID, r.State, r.Generation)
	if err != nil {
		return fmt.Errorf("hold sandbox: %w", err)
	}
	if n, _ := res.RowsAffected(); n == 0 {
		return errLostRace
	}
	return nil
}

// release ends a hold. Where another holds the sandbox nothing is done.
func (s store) release(ctx context.Context, d *db.DB, id, by string) error {
	return d.Tx(ctx, func(tx *sql.Tx) error {
		if _, err := tx.ExecContext(ctx, `UPDATE sandboxes SET op_id = '' WHERE id = $1 AND op_id = $2`, id, by); err != nil {
			return fmt.Errorf("release sandbox: %w", err)
		}
		d.NotifyAfter(tx, topic(id))
		return nil
	})
}

// ofSave gives the sandboxes that are made of a save, in their order.
func (s store) ofSave(ctx context.Context, q op.Tx, name string) ([]*row, error) {
	return collect(q.QueryContext(ctx, `SELECT `+columns+` FROM sandboxes WHERE save_name = $1 AND state <> 'deleted' ORDER BY created_at, id`, name))
}

// beginBoot begins the time that a new sandbox has to boot.
func (s store) beginBoot(ctx context.Context, q op.Tx, r *row, now time.Time) error {
	at := db.Micros(now)
	res, err := q.ExecContext(ctx, `UPDATE sandboxes SET state_at = $1 WHERE id = $2 AND state = $3 AND generation = $4`, at, r.ID, r.State, r.Generation)
	if err != nil {
		return fmt.Errorf("begin boot: %w", err)
	}
	if n, _ := res.RowsAffected(); n == 0 {
		return errLostRace
	}
	r.StateAt = at
	return nil
}

// unsave has a new sandbox boot instead of coming back from a save.
func (s store) unsave(ctx context.Context, q op.Tx, r *row) error {
	if _, err := q.ExecContext(ctx, `UPDATE sandboxes SET save_name = '', save_token = '' WHERE id = $1 AND generation = $2`, r.ID, r.Generation); err != nil {
		return fmt.Errorf("forget what a sandbox was to be made of: %w", err)
	}
	r.SaveName, r.SaveToken = "", ""
	return nil
}
