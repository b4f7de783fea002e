package vault

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/berthrun/berth/internal/db"
)

// Collected says what a Collect did.
type Collected struct {
	Packs int   // objects that were deleted
	Bytes int64 // of them
	Moved int   // packs whose few needed chunks were put together into others
}

// unwritten is how long it is remembered that a pack was never finished: its object may still come from somebody who has lost the lease.
const unwritten = 24 * time.Hour

// Collect deletes what no tree needs and nobody saves or reads, and puts together the rest of packs that are hardly needed. It may run beside everything
// else, on several servers too; interrupted, the next one goes on.
func (s *Store) Collect(ctx context.Context) (Collected, error) {
	var out Collected
	for _, step := range []func(context.Context) error{s.expire, s.retire, s.number, s.condemn} {
		if err := step(ctx); err != nil {
			return out, fmt.Errorf("collect chunks: %w", err)
		}
	}
	if err := s.remove(ctx, &out); err != nil {
		return out, fmt.Errorf("collect chunks: %w", err)
	}
	err := s.compact(ctx, &out)
	if err != nil {
		err = fmt.Errorf("compact chunks: %w", err)
	}
	return out, err
}

// step runs statements in a transaction of its own, with the database's time in microseconds as $1.
func (s *Store) step(ctx context.Context, at func(now time.Time) time.Time, statements ...string) error {
	return s.cfg.DB.Tx(ctx, func(tx *sql.Tx) error {
		now, err := s.cfg.DB.Now(ctx, tx)
		if err != nil {
			return err
		}
		for _, text := range statements {
			if _, err := tx.ExecContext(ctx, text, db.Micros(at(now))); err != nil {
				return err
			}
		}
		return nil
	})
}

// expire removes leases whose holders do not answer, and gives up what they were writing.
func (s *Store) expire(ctx context.Context) error {
	return s.step(ctx, func(now time.Time) time.Time { return now },
		`DELETE FROM chunk_leases WHERE expires_at <= $1`,
		`UPDATE chunk_packs SET state = 'deleting' WHERE state = 'writing' AND created_at <= $1
			AND NOT EXISTS (SELECT 1 FROM chunk_leases l WHERE l.turn = chunk_packs.lease)`)
}

// retire has packs that no tree needs not be handed out any more, and those that are needed after all be handed out again.
func (s *Store) retire(ctx context.Context) error {
	_, err := s.cfg.DB.ExecContext(ctx, `UPDATE chunk_packs SET retired = 0 WHERE state = 'ready' AND retired > 0
		AND EXISTS (SELECT 1 FROM chunk_uses u WHERE u.pack_id = chunk_packs.id)`)
	if err != nil {
		return err
	}
	return s.step(ctx, func(now time.Time) time.Time { return now.Add(-max(s.cfg.Grace, 0)) },
		`UPDATE chunk_packs SET retired = 1 WHERE state = 'ready' AND retired = 0 AND created_at <= $1
			AND NOT EXISTS (SELECT 1 FROM chunk_uses u WHERE u.pack_id = chunk_packs.id)
			AND NOT EXISTS (SELECT 1 FROM chunk_leases l WHERE l.turn = chunk_packs.lease)`)
}

// number gives retired packs a turn. Whoever takes a lease behind it cannot have been told of them.
func (s *Store) number(ctx context.Context) error {
	return s.cfg.DB.Tx(ctx, func(tx *sql.Tx) error {
		turn, err := s.store.turn(ctx, tx)
		if err != nil {
			return err
		}
		_, err = tx.ExecContext(ctx, `UPDATE chunk_packs SET retired = $1 WHERE state = 'ready' AND retired = 1`, turn)
		return err
	})
}

// condemn takes the index away from retired packs that nobody can know of any more.
func (s *Store) condemn(ctx context.Context) error {
	return s.cfg.DB.Tx(ctx, func(tx *sql.Tx) error {
		var ids []any
		err := each(ctx, tx, `UPDATE chunk_packs SET state = 'deleting' WHERE state = 'ready' AND retired > 1
			AND NOT EXISTS (SELECT 1 FROM chunk_uses u WHERE u.pack_id = chunk_packs.id)
			AND NOT EXISTS (SELECT 1 FROM chunk_leases l WHERE l.org_id = chunk_packs.org_id AND l.turn <= chunk_packs.retired)
			RETURNING id`, nil, func(scan func(...any) error) error {
			var id int64
			err := scan(&id)
			ids = append(ids, id)
			return err
		})
		if err != nil {
			return err
		}
		for len(ids) > 0 {
			n := min(len(ids), most)
			if _, err := tx.ExecContext(ctx, `DELETE FROM chunk_places WHERE pack_id IN (`+list(1, n)+`)`, ids[:n]...); err != nil {
				return err
			}
			ids = ids[n:]
		}
		return nil
	})
}

// remove deletes the objects of condemned packs, then their rows.
func (s *Store) remove(ctx context.Context, out *Collected) error {
	now, err := s.cfg.DB.Now(ctx, s.cfg.DB)
	if err != nil {
		return err
	}
	type pack struct {
		id                 int64
		org                string
		bytes, chunks, age int64
	}
	var all []pack
	err = each(ctx, s.cfg.DB, `SELECT id, org_id, bytes, chunks, created_at FROM chunk_packs WHERE state = 'deleting'`, nil, func(scan func(...any) error) error {
		var p pack
		err := scan(&p.id, &p.org, &p.bytes, &p.chunks, &p.age)
		all = append(all, p)
		return err
	})
	if err != nil {
		return err
	}
	for _, p := range all {
		if err := s.cfg.Blobs.Delete(ctx, key(p.org, p.id)); err != nil {
			return err
		}
		if p.chunks == 0 && p.age > db.Micros(now.Add(-unwritten)) {
			continue
		}
		if _, err := s.cfg.DB.ExecContext(ctx, `DELETE FROM chunk_packs WHERE id = $1 AND state = 'deleting'`, p.id); err != nil {
			return err
		}
		out.Packs++
		out.Bytes += p.bytes
	}
	return ctx.Err()
}

// compact moves the needed chunks of packs of which less than half is needed.
func (s *Store) compact(ctx context.Context, out *Collected) error {
	all, err := s.sparse(ctx)
	if err != nil {
		return err
	}
	for org, packs := range all {
		for len(packs) > 0 {
			n, err := s.move(ctx, org, packs)
			if err != nil && !errors.Is(err, errNotMoved) {
				return err
			}
			if err == nil {
				out.Moved += n
			}
			packs = packs[n:]
		}
	}
	return nil
}
