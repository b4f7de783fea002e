package template

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/berthrun/berth/api/op"
	"github.com/berthrun/berth/internal/db"
	"github.com/berthrun/berth/internal/id"
)

// The states of a layer.
const (
	layerBuilding = "building" // its step runs
	layerReady    = "ready"    // found by its key
	layerOld      = "old"      // another one has its key now
	layerDeleting = "deleting"
)

// layer is what a step left behind, in the database.
type layer struct {
	ID, OrgID, Key, State string
	BuildID               string
	Memory                bool
	Image, Token          string
	DiskBytes             int64
	Wanted, Stored        bool
	LeaseUntil            int64
	CreatedAt, UsedAt     int64
}

const layerColumns = `id, org_id, cache_key, state, build_id, memory, image, token, disk_bytes, wanted, stored, lease_until, created_at, used_at`

func scanLayer(s scanner) (*layer, error) {
	var l layer
	err := s.Scan(&l.ID, &l.OrgID, &l.Key, &l.State, &l.BuildID, &l.Memory, &l.Image, &l.Token, &l.DiskBytes, &l.Wanted, &l.Stored, &l.LeaseUntil, &l.CreatedAt, &l.UsedAt)
	return &l, err
}

// layer finds a layer by id, nil where there is none.
func (store) layer(ctx context.Context, q op.Tx, id string) (*layer, error) {
	l, err := scanLayer(q.QueryRowContext(ctx, `SELECT `+layerColumns+` FROM template_layers WHERE id = $1`, id))
	return one(l, err, "layer")
}

// cached finds the layer of a key, nil where there is none. With build it must be that build's own.
func (store) cached(ctx context.Context, q op.Tx, orgID, key, build string) (*layer, error) {
	l, err := scanLayer(q.QueryRowContext(ctx, `SELECT `+layerColumns+` FROM template_layers
		WHERE org_id = $1 AND cache_key = $2 AND state = 'ready' AND (build_id = $3 OR $3 = '')`, orgID, key, build))
	return one(l, err, "layer")
}

// touch notes that a layer is in use: it is not collected for a while. It is false where it is not there to be used.
func (store) touch(ctx context.Context, tx op.Tx, id string, now int64) (bool, error) {
	res, err := tx.ExecContext(ctx, `UPDATE template_layers SET used_at = $1 WHERE id = $2 AND state IN ('ready', 'old')`, now, id)
	if err != nil {
		return false, fmt.Errorf("touch layer: %w", err)
	}
	n, _ := res.RowsAffected()
	return n == 1, nil
}

const (
	// leaseFor is how long a server that was killed is waited for, leaseEvery how often one that lives says so.
	leaseFor   = 10 * time.Second
	leaseEvery = 2 * time.Second
)

// claim finds the layer of a key, or makes the caller's build the one that makes it. While another build makes it, it waits for that.
func (s *Service) claim(ctx context.Context, b *build, key string, force bool) (l *layer, mine bool, err error) {
	own := ""
	if force {
		own = b.ID
	}
	err = s.DB.Wait(ctx, layerTopic(b.OrgID), func(ctx context.Context) (bool, error) {
		l, mine = nil, false
		err := s.DB.Tx(ctx, func(tx *sql.Tx) error {
			l, mine = nil, false
			now, err := s.DB.Now(ctx, tx)
			if err != nil {
				return err
			}
			if l, err = s.store.cached(ctx, tx, b.OrgID, key, own); err != nil || l != nil {
				return err
			}
			at := db.Micros(now)
			if _, err := tx.ExecContext(ctx, `UPDATE template_layers SET state = 'deleting' WHERE org_id = $1 AND cache_key = $2 AND state = 'building'
				AND (lease_until < $3 OR build_id = $4)`, b.OrgID, key, at, b.ID); err != nil {
				return fmt.Errorf("end lost layer: %w", err)
			}
			fresh := &layer{ID: id.New(id.Layer), OrgID: b.OrgID, Key: key, State: layerBuilding, BuildID: b.ID, LeaseUntil: db.Micros(now.Add(leaseFor)), CreatedAt: at, UsedAt: at}
			res, err := tx.ExecContext(ctx, `INSERT INTO template_layers (id, org_id, cache_key, state, build_id, lease_until, created_at, used_at)
				VALUES ($1, $2, $3, $4, $5, $6, $7, $8) ON CONFLICT DO NOTHING`, fresh.ID, fresh.OrgID, fresh.Key, fresh.State, fresh.BuildID, fresh.LeaseUntil, at, at)
			if err != nil {
				return fmt.Errorf("insert layer: %w", err)
			}
			if n, _ := res.RowsAffected(); n == 1 {
				l, mine = fresh, true
			}
			return nil
		})
		return l != nil, err
	})
	if err == nil && !mine {
		err = s.DB.TxRelaxed(ctx, func(tx *sql.Tx) error {
			_, err := s.store.touch(ctx, tx, l.ID, db.Micros(s.Now()))
			return err
		})
	}
	return l, mine, err
}

// errLostLease says that another server took over: this one has been away for too long.
var errLostLease = errors.New("another server has taken over")

// keepLayer makes a layer that was saved the one of its key. An earlier one of the key makes room for it.
func (s *Service) keepLayer(ctx context.Context, l *layer) error {
	return s.DB.Tx(ctx, func(tx *sql.Tx) error {
		if _, err := tx.ExecContext(ctx, `UPDATE template_layers SET state = 'old' WHERE org_id = $1 AND cache_key = $2 AND state = 'ready'`, l.OrgID, l.Key); err != nil {
			return fmt.Errorf("replace layer: %w", err)
		}
		at := db.Micros(s.Now())
		res, err := tx.ExecContext(ctx, `UPDATE template_layers SET state = 'ready', memory = $1, image = $2, token = $3, disk_bytes = $4, used_at = $5
			WHERE id = $6 AND state = 'building'`, db.Flag(l.Memory), l.Image, l.Token, l.DiskBytes, at, l.ID)
		if err != nil {
			return fmt.Errorf("keep layer: %w", err)
		}
		if n, _ := res.RowsAffected(); n == 0 {
			return errLostLease
		}
		s.DB.NotifyAfter(tx, layerTopic(l.OrgID))
		return nil
	})
}

// dropLayer gives up a layer: what is on the node is removed by whoever looks next.
func (s *Service) dropLayer(ctx context.Context, l *layer) error {
	return s.DB.Tx(ctx, func(tx *sql.Tx) error {
		if _, err := tx.ExecContext(ctx, `UPDATE template_layers SET state = 'deleting' WHERE id = $1`, l.ID); err != nil {
			return fmt.Errorf("drop layer: %w", err)
		}
		s.DB.NotifyAfter(tx, layerTopic(l.OrgID))
		return nil
	})
}
