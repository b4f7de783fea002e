// Package quota owns how much an organization may have and has: limits with their overrides, what is used, and the count that sets it right.
//
// It does not know what is counted: areas take and give back in the transaction of their change, and register a function that counts their rows.
package quota

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/berthrun/berth/api"
	"github.com/berthrun/berth/api/op"
	"github.com/berthrun/berth/internal/db"
	"github.com/berthrun/berth/internal/errs"
)

// The keys of what is counted for an organization.
const (
	SandboxesRunning = "sandboxes.running"
	SandboxesTotal   = "sandboxes.total"
	VCPURunning      = "vcpu.running"   // mCPU
	MemoryRunning    = "memory.running" // MiB
	DiskTotal        = "disk.total"     // GiB, of sandboxes in full while stopped, and of volumes
	VolumesTotal     = "volumes.total"
)

// The keys of limits that are not counted.
const (
	DiskMin        = "disk.perSandboxMin" // GiB
	DiskMax        = "disk.perSandboxMax" // GiB
	CallsPerMinute = "calls.perMinute"
)

// None is the value of a limit that does not limit.
const None int64 = -1

var units = []struct{ key, unit string }{
	{SandboxesRunning, "count"},
	{SandboxesTotal, "count"},
	{VCPURunning, "mCPU"},
	{MemoryRunning, "MiB"},
	{DiskTotal, "GiB"},
	{VolumesTotal, "count"},
}

// Counter counts what an organization has of the keys that an area takes. It names each of its keys, with 0 where there is nothing.
type Counter func(ctx context.Context, q db.Querier, org string) (map[string]int64, error)

// Config says what a Service works with.
type Config struct {
	DB *db.DB
	// Defaults are the limits of an organization without an override, by key; None or absent: no limit. DiskMin and DiskMax are 10 and 30 where absent.
	Defaults map[string]int64
	Logger   *slog.Logger  // nil: discards
	Every    time.Duration // between two counts; 0: an hour
}

// Service knows limits and their use.
type Service struct {
	cfg      Config
	counters []Counter
}

// New makes a Service.
func New(cfg Config) *Service {
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	if cfg.Every == 0 {
		cfg.Every = time.Hour
	}
	defaults := map[string]int64{DiskMin: 10, DiskMax: 30}
	for k, v := range cfg.Defaults {
		defaults[k] = v
	}
	cfg.Defaults = defaults
	return &Service{cfg: cfg}
}

// Count registers what sets the use right, before Run.
func (s *Service) Count(c Counter) { s.counters = append(s.counters, c) }

// Take adds to what an organization uses, in the transaction of the change itself. What would go over a limit is errs.LimitExceeded, whose details name
// key, limit, used and requested; then the transaction must be undone. Negative amounts give back, never below 0.
func (s *Service) Take(ctx context.Context, tx op.Tx, org string, delta map[string]int64) error {
	limits, err := s.limits(ctx, tx, org)
	if err != nil {
		return err
	}
	keys := make([]string, 0, len(delta))
	for k := range delta {
		keys = append(keys, k)
	}
	slices.Sort(keys) // the same order in every transaction
	for _, k := range keys {
		switch n := delta[k]; {
		case n > 0:
			err = take(ctx, tx, org, k, n, limit(limits, k))
		case n < 0:
			_, err = tx.ExecContext(ctx, `
				UPDATE usage SET used = CASE WHEN used + $3 < 0 THEN 0 ELSE used + $3 END WHERE scope = $1 AND key = $2`, org, k, n)
		}
		if err != nil {
			return fmt.Errorf("take quota: %w", err)
		}
	}
	return nil
}

func take(ctx context.Context, tx op.Tx, org, key string, n, limit int64) error {
	if limit == None {
		limit = 1 << 60
	}
	if n <= limit {
		res, err := tx.ExecContext(ctx, `
			INSERT INTO usage (scope, key, used) VALUES ($1, $2, $3)
			ON CONFLICT (scope, key) DO UPDATE SET used = usage.used + excluded.used WHERE usage.used + excluded.used <= $4`, org, key, n, limit)
		if err != nil {
			return err
		}
		if rows, err := res.RowsAffected(); err != nil || rows > 0 {
			return err
		}
	}
	var used int64
	err := tx.QueryRowContext(ctx, `SELECT used FROM usage WHERE scope = $1 AND key = $2`, org, key).Scan(&used)
	if err != nil && !errors.Is(err, sql.ErrNoRows) {
		return err
	}
	return errs.E(errs.LimitExceeded, "the organization's limit on %s is %d %s; %d are used and %d more were asked for", key, limit, unit(key), used, n).
		Suggest("Stop or delete what is no longer needed, ask for less, or have an administrator raise the limit.").
		With("key", key).With("limit", limit).With("used", used).With("requested", n)
}

func unit(key string) string {
	for _, u := range units {
		if u.key == key && u.unit != "count" {
			return u.unit
		}
	}
	return "in all"
}

func limit(limits map[string]int64, key string) int64 {
	if v, ok := limits[key]; ok && v >= 0 {
		return v
	}
	return None
}

// limits are the defaults with the organization's overrides.
func (s *Service) limits(ctx context.Context, q db.Querier, org string) (map[string]int64, error) {
	all := make(map[string]int64, len(s.cfg.Defaults))
	for k, v := range s.cfg.Defaults {
		all[k] = v
	}
	return all, scan(ctx, q, all, `SELECT key, value FROM limits WHERE scope = $1`, org)
}

func scan(ctx context.Context, q db.Querier, into map[string]int64, query string, args ...any) error {
	rows, err := q.QueryContext(ctx, query, args...)
	if err != nil {
		return fmt.Errorf("read quotas: %w", err)
	}
	defer rows.Close()
	for rows.Next() {
		var k string
		var v int64
		if err := rows.Scan(&k, &v); err != nil {
			return fmt.Errorf("read quota: %w", err)
		}
		into[k] = v
	}
	return rows.Err()
}

// Limit is one limit of an organization, None where there is none.
func (s *Service) Limit(ctx context.Context, org, key string) (int64, error) {
	all, err := s.limits(ctx, s.cfg.DB, org)
	return limit(all, key), err
}

// Disk is the least and the most GiB that one sandbox of an organization may have. most is None where there is no limit.
func (s *Service) Disk(ctx context.Context, org string) (least, most int64, err error) {
	all, err := s.limits(ctx, s.cfg.DB, org)
	return max(limit(all, DiskMin), 1), limit(all, DiskMax), err
}

// SetLimit overrides a limit of an organization. None takes the limit away.
func (s *Service) SetLimit(ctx context.Context, tx op.Tx, org, key string, value int64) error {
	_, err := tx.ExecContext(ctx, `
		INSERT INTO limits (scope, key, value) VALUES ($1, $2, $3) ON CONFLICT (scope, key) DO UPDATE SET value = excluded.value`, org, key, value)
	if err != nil {
		return fmt.Errorf("set limit: %w", err)
	}
	return nil
}

// List gives every counted limit of an organization with its use, in a fixed order.
func (s *Service) List(ctx context.Context, org string) ([]api.Limit, error) {
	limits, err := s.limits(ctx, s.cfg.DB, org)
	if err != nil {
		return nil, err
	}
	used := map[string]int64{}
	if err := scan(ctx, s.cfg.DB, used, `SELECT key, used FROM usage WHERE scope = $1`, org); err != nil {
		return nil, err
	}
	all := make([]api.Limit, 0, len(units))
	for _, u := range units {
		l := api.Limit{Key: u.key, Used: used[u.key], Unit: u.unit}
		if v := limit(limits, u.key); v != None {
			l.Limit = &v
		}
		all = append(all, l)
	}
	return all, nil
}
