package snapshot

import (
	"context"
	"fmt"

	"github.com/berthrun/berth/api"
	"github.com/berthrun/berth/api/op"
)

// Source gives what a sandbox that is made of a snapshot of the caller's organization begins with, or errs.NotFound.
func (s *Service) Source(ctx context.Context, id string) (Source, error) {
	r, err := s.find(ctx, s.DB, id)
	if err != nil {
		return Source{}, err
	}
	return r.Source, nil
}

// Usable refuses, in the transaction that takes it into use, a snapshot that is not ready. Whoever deletes it meanwhile waits for this transaction.
func (s *Service) Usable(ctx context.Context, tx op.Tx, id string) error {
	// An update of nothing, so that a delete at the same moment comes before or after.
	if _, err := tx.ExecContext(ctx, `UPDATE snapshots SET state = state WHERE id = $1`, id); err != nil {
		return fmt.Errorf("hold snapshot: %w", err)
	}
	r, err := s.store.get(ctx, tx, id)
	switch {
	case err != nil:
		return err
	case r == nil || goes(r):
		return errNotFound(id)
	case r.State != api.SnapshotReady:
		return errNotReady(r)
	}
	return nil
}

// Fetch brings a snapshot to the node, where it is kept elsewhere too.
func (s *Service) Fetch(ctx context.Context, id string) error {
	if s.Storage == nil {
		return nil
	}
	r, err := s.store.get(ctx, s.DB, id)
	if err != nil || r == nil || !r.Stored {
		return err
	}
	return s.Storage.Fetch(ctx, r.stored())
}

// UsingImage counts the snapshots that lie above an image.
func (s *Service) UsingImage(ctx context.Context, tx op.Tx, imageID string) (n int, err error) {
	err = tx.QueryRowContext(ctx, `SELECT COUNT(*) FROM snapshots WHERE image_id = $1 AND state <> 'failed' AND state <> 'deleted'`, imageID).Scan(&n)
	if err != nil {
		return 0, fmt.Errorf("count snapshots of image: %w", err)
	}
	return n, nil
}

// UsingBuilds gives the ids of snapshots of sandboxes that were made of one of these builds of a template, at most a few.
func (s *Service) UsingBuilds(ctx context.Context, tx op.Tx, builds []string) (all []string, err error) {
	for _, b := range builds {
		rows, err := tx.QueryContext(ctx, `SELECT id FROM snapshots WHERE build_id = $1 AND state <> 'failed' AND state <> 'deleted' LIMIT 10`, b)
		if err != nil {
			return nil, fmt.Errorf("list snapshots of build: %w", err)
		}
		for rows.Next() {
			var one string
			if err := rows.Scan(&one); err != nil {
				_ = rows.Close()
				return nil, fmt.Errorf("list snapshots of build: %w", err)
			}
			all = append(all, one)
		}
		err = rows.Err()
		_ = rows.Close()
		if err != nil {
			return nil, fmt.Errorf("list snapshots of build: %w", err)
		}
	}
	return all, nil
}
