package identity

import (
	"context"
	"sync"
	"time"
)

const (
	// compareEvery is how often this server's clock is compared with the database's.
	compareEvery = time.Minute
	// noise is what a comparison is off by at most when both are right.
	noise = 100 * time.Millisecond
)

// clock is how far this server's clock is behind the database's, by which keys expire: else a key would live longer on one server than on another.
type clock struct {
	mu       sync.Mutex
	behind   time.Duration
	compared time.Time
}

// now is the time by the database's clock. Where the database does not tell it, it is as far from this server's as when it last did.
func (s *Service) now(ctx context.Context) time.Time {
	c := &s.clock
	c.mu.Lock()
	defer c.mu.Unlock()
	if began := time.Now(); c.compared.IsZero() || began.Sub(c.compared) >= compareEvery {
		if at, err := s.cfg.DB.Now(ctx, s.cfg.DB); err == nil {
			middle := began.Add(time.Since(began) / 2)
			if c.behind, c.compared = at.Sub(middle), began; c.behind.Abs() < noise {
				c.behind = 0
			}
		}
	}
	return s.cfg.Now().Add(c.behind)
}
