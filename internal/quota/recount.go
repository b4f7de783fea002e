package quota

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"
)

// Run counts now and every hour, until the context ends; it gives its error.
func (s *Service) Run(ctx context.Context) error {
	tick := time.NewTicker(s.cfg.Every)
	defer tick.Stop()
	for {
		if err := s.Recount(ctx); err != nil && ctx.Err() == nil {
			s.cfg.Logger.Error("quotas were not counted", "error", err)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
	}
}

// Recount sets the use of every organization to what the registered counters count.
func (s *Service) Recount(ctx context.Context) error {
	orgs, err := s.organizations(ctx)
	if err != nil {
		return err
	}
	var all []error
	for _, org := range orgs {
		all = append(all, s.cfg.DB.Tx(ctx, func(tx *sql.Tx) error { return s.recount(ctx, tx, org) }))
	}
	return errors.Join(all...)
}

func (s *Service) organizations(ctx context.Context) ([]string, error) {
	rows, err := s.cfg.DB.QueryContext(ctx, `SELECT id FROM organizations UNION SELECT scope FROM usage`)
	if err != nil {
		return nil, fmt.Errorf("list organizations: %w", err)
	}
	defer rows.Close()
	var orgs []string
	for rows.Next() {
		var org string
		if err := rows.Scan(&org); err != nil {
			return nil, fmt.Errorf("read organization: %w", err)
		}
		orgs = append(orgs, org)
	}
	return orgs, rows.Err()
}

// recount locks the rows first and counts afterwards: a Take that is under way either has committed before the count or waits until it is set.
func (s *Service) recount(ctx context.Context, tx *sql.Tx, org string) error {
	counted, err := s.count(ctx, tx, org)
	if err != nil {
		return err
	}
	keys := slices.Sorted(maps.Keys(counted))
	for _, k := range keys {
		_, err := tx.ExecContext(ctx, `
			INSERT INTO usage (scope, key, used) VALUES ($1, $2, 0) ON CONFLICT (scope, key) DO UPDATE SET used = usage.used`, org, k)
		if err != nil {
			return fmt.Errorf("lock quota: %w", err)
		}
	}
	if counted, err = s.count(ctx, tx, org); err != nil {
		return err
	}
	for _, k := range keys {
		res, err := tx.ExecContext(ctx, `UPDATE usage SET used = $3 WHERE scope = $1 AND key = $2 AND used <> $3`, org, k, counted[k])
		if err != nil {
			return fmt.Errorf("set quota: %w", err)
		}
		if n, err := res.RowsAffected(); err == nil && n > 0 {
			s.cfg.Logger.Warn("a quota was set right", "org_id", org, "key", k, "used", counted[k])
		}
	}
	return nil
}

func (s *Service) count(ctx context.Context, tx *sql.Tx, org string) (map[string]int64, error) {
	all := map[string]int64{}
	for _, c := range s.counters {
		counted, err := c(ctx, tx, org)
		if err != nil {
			return nil, fmt.Errorf("count: %w", err)
		}
		for k, n := range counted {
			all[k] += n
		}
	}
	return all, nil
}
