package template

import (
	"context"
	"database/sql"
	"fmt"
	"time"

	"github.com/berthrun/berth/api/op"
	"github.com/berthrun/berth/internal/db"
)

const (
	tombstoneFor = 24 * time.Hour      // of a deleted template
	buildsFor    = 30 * 24 * time.Hour // of a build that no tag means, with its log
)

// dueLayers gives the layers that somebody has to work on: those to be kept off their node, and those that go.
func (store) dueLayers(ctx context.Context, q op.Tx, keep bool) ([]*layer, error) {
	return collect(scanLayer)(q.QueryContext(ctx, `SELECT `+layerColumns+` FROM template_layers
		WHERE state = 'deleting' OR ($1 = 1 AND wanted = 1 AND stored = 0 AND state IN ('ready', 'old')) LIMIT 200`, db.Flag(keep)))
}

// layerIDs names the layers that may have a save on a node.
func (store) layerIDs(ctx context.Context, q op.Tx) (map[string]bool, error) {
	layers, err := collect(scanLayer)(q.QueryContext(ctx, `SELECT `+layerColumns+` FROM template_layers WHERE state <> 'deleting'`))
	ids := make(map[string]bool, len(layers))
	for _, l := range layers {
		ids[l.ID] = true
	}
	return ids, err
}

// advanceLayer keeps a layer off its node, or takes one away that goes.
func (s *Service) advanceLayer(ctx context.Context, name string) error {
	l, err := s.store.layer(ctx, s.DB, name)
	if err != nil || l == nil {
		return err
	}
	switch {
	case l.State == layerDeleting:
		if err := s.Node.Forget(ctx, l.ID); err != nil {
			return err
		}
		if s.Storage != nil {
			if err := s.Storage.Drop(ctx, l.OrgID, l.ID); err != nil {
				return err
			}
		}
		if _, err := s.DB.ExecContext(ctx, `DELETE FROM template_layers WHERE id = $1 AND state = 'deleting'`, l.ID); err != nil {
			return fmt.Errorf("remove layer: %w", err)
		}
	case l.Wanted && !l.Stored && l.State != layerBuilding && s.Storage != nil:
		if err := s.Storage.Keep(ctx, l.OrgID, l.ID); err != nil {
			return err
		}
		if _, err := s.DB.ExecContext(ctx, `UPDATE template_layers SET stored = 1 WHERE id = $1`, l.ID); err != nil {
			return fmt.Errorf("record stored layer: %w", err)
		}
	}
	return nil
}

// needed says which layers a build of a living template consists of: one that a tag means, that sandboxes may still be asked of, or that another is being
// built from.
const needed = `EXISTS (SELECT 1 FROM template_builds b JOIN templates t ON t.id = b.template_id AND t.state = 'living'
	WHERE b.status = 'ready' AND (b.layer = template_layers.id OR b.disk = template_layers.id)
	AND (b.used_at >= $1 OR EXISTS (SELECT 1 FROM template_tags g WHERE g.build_id = b.id)
		OR EXISTS (SELECT 1 FROM template_builds c WHERE c.parent = b.id AND c.status IN ('waiting', 'building'))))`

// collect gives up layers that no template needs and that no build has used for a while, and rows that have outlived what they stood for.
func (s *Service) collect(ctx context.Context) error {
	lost, err := s.DB.Now(ctx, s.DB) // leases are on the database's clock
	if err != nil {
		return err
	}
	now := s.Now()
	unused := db.Micros(now.Add(-s.CacheTime))
	layers, err := collect(scanLayer)(s.DB.QueryContext(ctx, `SELECT `+layerColumns+` FROM template_layers
		WHERE (state = 'building' AND lease_until < $2) OR (state = 'ready' AND used_at < $1 AND NOT `+needed+`) OR (state = 'old' AND NOT `+needed+`) LIMIT 200`,
		unused, db.Micros(lost.Add(-time.Hour))))
	if err != nil {
		return err
	}
	for _, l := range layers {
		gone := false
		err := s.DB.Tx(ctx, func(tx *sql.Tx) error {
			// Read again in the transaction: whoever takes it into use has touched it before, or finds it gone.
			res, err := tx.ExecContext(ctx, `UPDATE template_layers SET state = 'deleting' WHERE id = $1 AND state = $2 AND used_at = $3`, l.ID, l.State, l.UsedAt)
			if err != nil {
				return fmt.Errorf("give up layer: %w", err)
			}
			n, _ := res.RowsAffected()
			gone = n == 1
			made, err := s.Sandboxes.MadeOf(ctx, tx, l.ID)
			if err == nil && made > 0 {
				gone = false
				_, err = tx.ExecContext(ctx, `UPDATE template_layers SET state = $1, used_at = $2 WHERE id = $3`, l.State, db.Micros(now), l.ID)
			}
			return err
		})
		if err != nil {
			return err
		}
		if gone {
			s.nudge(l.ID)
		}
	}
	return s.purge(ctx, now)
}

// purge removes rows of deleted templates, and old builds of others with their logs.
func (s *Service) purge(ctx context.Context, now time.Time) error {
	gone := db.Micros(now.Add(-tombstoneFor))
	return s.DB.Tx(ctx, func(tx *sql.Tx) error {
		for _, q := range []struct {
			query string
			at    int64
		}{
			{`DELETE FROM template_tags WHERE template_id IN (SELECT id FROM templates WHERE state = 'deleted' AND updated_at < $1)`, gone},
			{`DELETE FROM templates WHERE state = 'deleted' AND updated_at < $1`, gone},
			{`DELETE FROM template_builds WHERE finished_at > 0 AND finished_at < $1 AND used_at < $1 AND NOT EXISTS (SELECT 1 FROM template_tags g WHERE g.build_id = template_builds.id)
				AND NOT EXISTS (SELECT 1 FROM sandboxes x WHERE x.build_id = template_builds.id AND x.state <> 'deleted')
				AND NOT EXISTS (SELECT 1 FROM snapshots x WHERE x.build_id = template_builds.id AND x.state <> 'deleted')`, db.Micros(now.Add(-buildsFor))},
		} {
			if _, err := tx.ExecContext(ctx, q.query, q.at); err != nil {
				return fmt.Errorf("purge templates: %w", err)
			}
		}
		return nil
	})
}
