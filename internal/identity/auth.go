package identity

import (
	"context"
	"errors"
	"time"

	"github.com/berthrun/berth/internal/caller"
	"github.com/berthrun/berth/internal/db"
	"github.com/berthrun/berth/internal/errs"
)

// known is a key that was looked up.
type known struct {
	key   *keyRow
	until time.Time // when it is looked up again
}

// How long a looked-up key is believed. A revocation by this server is told at once, by another one through the database at once too; this is what is left where
// that is lost.
const (
	believeFor = time.Second
	mostKnown  = 10_000
	useEvery   = time.Minute
)

// keysTopic is notified when a key is revoked.
const keysTopic = "identity/keys"

func errUnauthenticated() error {
	return errs.E(errs.Unauthenticated, "the credential is not valid").Suggest("Send a valid key as Authorization: Bearer. It may be mistyped, revoked or expired.")
}

// Authenticate gives the caller of a key, or errs.Unauthenticated. A malformed one is refused without a look-up.
func (s *Service) Authenticate(ctx context.Context, token string) (*caller.Caller, error) {
	if !wellFormed(token) {
		return nil, errUnauthenticated()
	}
	k, err := s.lookUp(ctx, hash(token))
	if err != nil {
		return nil, err
	}
	now := s.now(ctx)
	if k == nil || k.RevokedAt != 0 || k.ExpiresAt != 0 && k.ExpiresAt <= db.Micros(now) {
		return nil, errUnauthenticated()
	}
	s.note(k, now)
	return callerOf(k), nil
}

func (s *Service) lookUp(ctx context.Context, h string) (*keyRow, error) {
	now := time.Now()
	s.mu.Lock()
	if k := s.known[h]; k != nil && now.Before(k.until) {
		s.mu.Unlock()
		return k.key, nil
	}
	changes := s.changes
	s.mu.Unlock()
	row, err := s.store.byHash(ctx, s.cfg.DB, h)
	if err != nil {
		return nil, err
	}
	if row == nil {
		return nil, nil // unknown ones are not remembered: they could be made up without end
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if changes != s.changes {
		return row, nil // it may have been revoked since it was read
	}
	if len(s.known) >= mostKnown {
		clear(s.known)
	}
	s.known[h] = &known{key: row, until: now.Add(believeFor)}
	return row, nil
}

// note remembers that a key was used, to the minute.
func (s *Service) note(k *keyRow, now time.Time) {
	at := db.Micros(now.Truncate(useEvery))
	if at <= k.LastUsedAt {
		return
	}
	s.mu.Lock()
	s.used[k.ID] = at
	s.mu.Unlock()
}

// Run forgets keys that were revoked elsewhere and writes when keys were used, until the context ends.
func (s *Service) Run(ctx context.Context) error {
	signals, stop := s.cfg.DB.Subscribe(keysTopic)
	defer stop()
	tick := time.NewTicker(10 * time.Second)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			// What was used is worth one more try.
			wctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
			err := s.flush(wctx)
			cancel()
			return errors.Join(ctx.Err(), err)
		case <-signals:
			s.forget()
		case <-tick.C:
			if err := s.flush(ctx); err != nil && ctx.Err() == nil {
				s.cfg.Logger.Warn("last use of keys not written", "error", err)
			}
		}
	}
}

func (s *Service) forget() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.changes++
	clear(s.known)
}

func (s *Service) flush(ctx context.Context) error {
	s.mu.Lock()
	used := s.used
	s.used = map[string]int64{}
	s.mu.Unlock()
	if len(used) == 0 {
		return nil
	}
	return s.store.used(ctx, s.cfg.DB, used)
}
