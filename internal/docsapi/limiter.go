package docsapi

import (
	"net/netip"
	"sync"
	"time"

	"github.com/berthrun/berth/internal/errs"
)

// mostSources bounds what is remembered of addresses.
const mostSources = 20_000

// limiter holds back addresses that call too often: each has a bucket of so many calls, which fills again within a minute.
type limiter struct {
	perMinute float64
	now       func() time.Time
	mu        sync.Mutex
	all       map[string]bucket
}

type bucket struct {
	left float64
	at   time.Time
}

func newLimiter(perMinute int, now func() time.Time) *limiter {
	if now == nil {
		now = time.Now
	}
	return &limiter{perMinute: float64(perMinute), now: now, all: map[string]bucket{}}
}

// allow counts one call of an address. One too many is errs.RateLimited.
func (l *limiter) allow(source string) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.now()
	who := network(source)
	b, known := l.all[who]
	if !known {
		if len(l.all) >= mostSources {
			l.forget(now)
		}
		b = bucket{left: l.perMinute, at: now}
	}
	b.left = min(l.perMinute, b.left+max(now.Sub(b.at), 0).Minutes()*l.perMinute)
	b.at = now
	if b.left < 1 {
		l.all[who] = b
		wait := time.Duration((1 - b.left) / l.perMinute * float64(time.Minute))
		return errs.E(errs.RateLimited, "too many calls from this address in a short time").Because("calls_per_minute").After(max(wait, time.Millisecond)).
			Suggest("Wait for retryAfterMs, then try again; call less often.")
	}
	b.left--
	l.all[who] = b
	return nil
}

// forget takes out the addresses whose buckets are full again, and all of them where that makes no room.
func (l *limiter) forget(now time.Time) {
	for who, b := range l.all {
		if now.Sub(b.at) >= time.Minute {
			delete(l.all, who)
		}
	}
	if len(l.all) >= mostSources {
		clear(l.all)
	}
}

// network is who is behind an address: with IPv6 everybody has a whole network of 64 bits.
func network(source string) string {
	ip, err := netip.ParseAddr(source)
	if err != nil || !ip.Is6() || ip.Is4In6() {
		return source
	}
	p, err := ip.WithZone("").Prefix(64)
	if err != nil {
		return source
	}
	return p.String()
}
