package ready

import (
	"slices"
	"sync"
	"time"
)

// How demand becomes a number: as many are kept as were asked for in the busiest burst of the last while.
const (
	remember = 15 * time.Minute
	burst    = 10 * time.Second
	mostAsks = 10_000 // of a kind, that are remembered
)

// demand remembers when sandboxes of each kind were asked for.
type demand struct {
	mu    sync.Mutex
	asked map[Kind][]time.Time // ascending
}

func (d *demand) add(k Kind, now time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	times := append(d.asked[k], now)
	if len(times) > mostAsks {
		times = slices.Clone(times[len(times)-mostAsks/2:])
	}
	d.asked[k] = times
}

// want is the size of the busiest burst of a kind, and when it was last asked for.
type want struct {
	n    int
	last time.Time
}

// wants gives every kind that was asked for lately, and forgets the others.
func (d *demand) wants(now time.Time) map[Kind]want {
	d.mu.Lock()
	defer d.mu.Unlock()
	out := map[Kind]want{}
	for k, times := range d.asked {
		i, _ := slices.BinarySearchFunc(times, now.Add(-remember), time.Time.Compare)
		times = slices.Clone(times[i:])
		if len(times) == 0 {
			delete(d.asked, k)
			continue
		}
		d.asked[k] = times
		w, first := want{last: times[len(times)-1]}, 0
		for i, t := range times {
			for t.Sub(times[first]) > burst {
				first++
			}
			w.n = max(w.n, i-first+1)
		}
		out[k] = w
	}
	return out
}

// targets shares the budget among the kinds: each gets one before any gets a second, those asked for last first.
func (p *Pool) targets() map[Kind]int {
	out := map[Kind]int{}
	if !p.on() {
		return out
	}
	wants := p.demand.wants(p.cfg.Now())
	kinds := make([]Kind, 0, len(wants))
	for k := range wants {
		kinds = append(kinds, k)
	}
	slices.SortFunc(kinds, func(a, b Kind) int { return wants[b].last.Compare(wants[a].last) })
	left := int(p.cfg.MemoryMiB / memberMiB)
	for round := 1; left > 0; round++ {
		given := false
		for _, k := range kinds {
			if wants[k].n >= round && left > 0 {
				out[k]++
				left--
				given = true
			}
		}
		if !given {
			break
		}
	}
	return out
}
