package volume

import (
	"context"
	"database/sql"
	"fmt"
	"time"

	"github.com/berthrun/berth/internal/db"
)

// leaseFor is how long a copy stays with a server that no longer says that it works at it.
const leaseFor = 15 * time.Second

// hold has no other server work at a volume or a backup until free is called. mine is false where another one does. The context ends when another one has
// taken it over.
func (s *Service) hold(ctx context.Context, what string) (held context.Context, free func(), mine bool, err error) {
	if mine, err = s.lease(ctx, what); err != nil || !mine {
		return ctx, func() {}, mine, err
	}
	held, cancel := context.WithCancel(ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		tick := time.NewTicker(leaseFor / 4)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
			case <-held.Done():
				return
			}
			mine, err := s.lease(held, what)
			if err != nil && held.Err() == nil {
				s.Logger.Warn("lease not renewed", "volume", what, "error", err)
			}
			if err == nil && !mine {
				cancel()
				return
			}
		}
	}()
	return held, func() {
		cancel()
		<-ended
		fctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
		defer cancel()
		if _, err := s.DB.ExecContext(fctx, `DELETE FROM volume_leases WHERE id = $1 AND owner = $2`, what, s.me); err != nil {
			s.Logger.Warn("lease not given back, it will expire", "volume", what, "error", err)
		}
	}, true, nil
}

func (s *Service) lease(ctx context.Context, what string) (mine bool, err error) {
	err = s.DB.TxRelaxed(ctx, func(tx *sql.Tx) error {
		now, err := s.DB.Now(ctx, tx)
		if err != nil {
			return err
		}
		n, err := affected(tx.ExecContext(ctx, `INSERT INTO volume_leases (id, owner, until) VALUES ($1, $2, $3) ON CONFLICT (id) DO UPDATE SET owner = excluded.owner,
			until = excluded.until WHERE volume_leases.owner = excluded.owner OR volume_leases.until < $4`, what, s.me, db.Micros(now.Add(leaseFor)), db.Micros(now)))
		if err != nil {
			return fmt.Errorf("lease volume: %w", err)
		}
		mine = n > 0
		return nil
	})
	return mine, err
}
