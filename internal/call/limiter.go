package call

import (
	"context"
	"database/sql"
	"fmt"
	"sync"
	"time"

	"github.com/berthrun/berth/internal/caller"
	"github.com/berthrun/berth/internal/db"
	"github.com/berthrun/berth/internal/errs"
)

const (
	defaultPerMinute = 600
	// chunkFor is how long leased tokens are good.
	chunkFor = 10 * time.Second
	// maxBuckets bounds what is remembered of callers.
	maxBuckets = 10_000
)

// BucketsConfig says what Buckets work with. DB is needed.
type BucketsConfig struct {
	DB        *db.DB
	PerMinute int // calls of one caller; 0: 600, negative: no limit
	// Override gives an organization's own number of calls a minute, negative where it has none of its own. May be nil.
	Override func(ctx context.Context, org string) (int64, error)
	Now      func() time.Time // nil: time.Now
}

// Buckets is the Limiter: a token bucket a caller, full at its calls a minute. It stands in the database; a server leases tokens from it in chunks,
// so that most calls touch no database and all servers together keep the limit.
type Buckets struct {
	cfg BucketsConfig
	mu  sync.Mutex
	all map[string]*bucket
}

type bucket struct {
	mu        sync.Mutex
	tokens    int64 // leased and not spent
	until     time.Time
	emptyTill time.Time // the database has none before
}

// NewBuckets makes Buckets.
func NewBuckets(cfg BucketsConfig) *Buckets {
	if cfg.PerMinute == 0 {
		cfg.PerMinute = defaultPerMinute
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	return &Buckets{cfg: cfg, all: map[string]*bucket{}}
}

// PerMinute is how many calls a minute each caller of the organization has; negative: no limit.
func (l *Buckets) PerMinute(ctx context.Context, org string) (int64, error) {
	if l.cfg.Override != nil {
		n, err := l.cfg.Override(ctx, org)
		if err != nil {
			return 0, fmt.Errorf("look up rate limit: %w", err)
		}
		if n >= 0 {
			return n, nil
		}
	}
	return int64(l.cfg.PerMinute), nil
}

// Allow implements Limiter.
func (l *Buckets) Allow(ctx context.Context, c *caller.Caller) error {
	b := l.bucket(c.PrincipalID)
	b.mu.Lock()
	defer b.mu.Unlock()
	now := l.cfg.Now()
	if now.Before(b.emptyTill) {
		return limited(b.emptyTill.Sub(now))
	}
	if b.tokens == 0 || !now.Before(b.until) {
		perMinute, err := l.PerMinute(ctx, c.OrgID)
		if err != nil {
			return err
		}
		n, wait, err := l.lease(ctx, c.PrincipalID, perMinute)
		if err != nil {
			return err
		}
		b.tokens, b.until = n, now.Add(chunkFor)
		if n == 0 {
			b.emptyTill = now.Add(wait)
			return limited(wait)
		}
	}
	b.tokens--
	return nil
}

func limited(wait time.Duration) error {
	return errs.E(errs.RateLimited, "too many calls in a short time").Because("calls_per_minute").After(max(wait, time.Millisecond)).
		Suggest("Wait for retryAfterMs, then try again; call less often.")
}

func (l *Buckets) bucket(who string) *bucket {
	l.mu.Lock()
	defer l.mu.Unlock()
	if b := l.all[who]; b != nil {
		return b
	}
	if len(l.all) >= maxBuckets {
		clear(l.all) // what they had leased is lost to them; the database refills it
	}
	b := &bucket{}
	l.all[who] = b
	return b
}

// lease takes a chunk of tokens from the database's bucket, or says how long it takes until there is one.
func (l *Buckets) lease(ctx context.Context, who string, perMinute int64) (n int64, wait time.Duration, err error) {
	chunk := min(max(perMinute/20, 1), 100)
	switch {
	case perMinute == 0:
		return 0, time.Minute, nil
	case perMinute < 0:
		return 1 << 60, 0, nil
	}
	err = l.cfg.DB.TxRelaxed(ctx, func(tx *sql.Tx) error {
		now, err := l.cfg.DB.Now(ctx, tx)
		if err != nil {
			return err
		}
		full := perMinute * 1000
		var milli, updated int64
		if err := tx.QueryRowContext(ctx, `
			INSERT INTO buckets (scope, milli, updated_at) VALUES ($1, $2, $3)
			ON CONFLICT (scope) DO UPDATE SET milli = buckets.milli RETURNING milli, updated_at`, who, full, db.Micros(now)).Scan(&milli, &updated); err != nil {
			return fmt.Errorf("lock bucket: %w", err)
		}
		since := min(max(db.Micros(now)-updated, 0), time.Minute.Microseconds())
		milli = min(full, milli+since*full/time.Minute.Microseconds())
		if n = min(chunk, milli/1000); n == 0 {
			wait = time.Duration((1000-milli)*int64(time.Minute)/full) + time.Millisecond
			return nil
		}
		_, err = tx.ExecContext(ctx, `UPDATE buckets SET milli = $2, updated_at = $3 WHERE scope = $1`, who, milli-n*1000, db.Micros(now))
		return err
	})
	if err != nil {
		return 0, 0, fmt.Errorf("lease calls: %w", err)
	}
	return n, wait, nil
}
