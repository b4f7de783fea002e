package sandbox

import (
	"context"
	"database/sql"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/berthrun/berth/api"
	"github.com/berthrun/berth/internal/db"
)

// How sandboxes are read. A guest is asked only where something happens, since asking wakes it: a hundred idle sandboxes cost the server a hundred
// small calls to the node in every sampleEvery.
const (
	sampleEvery  = 15 * time.Second
	sampleWait   = 3 * time.Second // for one sandbox's answer
	sampleAtOnce = 4
	storeEvery   = time.Minute
	purgeEvery   = time.Hour
	readingsFor  = 7 * 24 * time.Hour
	busyPercent  = 2               // of a core: from there on a guest is asked every time
	guestEvery   = 5 * time.Minute // else
	mostPending  = 100_000         // samples that wait for a database that refuses them
)

// sampler holds the latest reading of each running sandbox, and the samples that are not stored yet.
type sampler struct {
	mu      sync.Mutex
	latest  map[string]reading
	pending map[string][]sample
	waiting int // samples in pending
	asking  map[string]chan struct{}
}

// reading is what was read last of a sandbox's boot.
type reading struct {
	boot      int64
	at        time.Time
	cpu       float64 // seconds since the boot
	guestAt   time.Time
	processes int64 // -1: unknown
	sample    sample
}

func (r reading) usage() *api.Usage {
	return &api.Usage{
		At: r.at.UTC(), CPUPercent: round(r.sample.percent()), MemoryUsedMiB: round(float64(r.sample.memory) / 1024), DiskUsedMiB: round(float64(r.sample.disk) / 1024),
	}
}

// runSampler reads every running sandbox again and again until the context ends.
func (s *Service) runSampler(ctx context.Context) {
	tick := time.NewTicker(s.SampleEvery)
	defer tick.Stop()
	var stored, purged time.Time
	for ctx.Err() == nil {
		if err := s.sampleAll(ctx); err != nil && ctx.Err() == nil {
			s.Logger.Warn("sandboxes not read", "error", err)
		}
		if now := time.Now(); now.Sub(stored) >= storeEvery {
			stored = now
			s.storeSamples(ctx)
		}
		if now := time.Now(); now.Sub(purged) >= purgeEvery {
			purged = now
			if err := s.store.oldReadings(ctx, s.DB, db.Micros(s.Now().Add(-readingsFor))); err != nil && ctx.Err() == nil {
				s.Logger.Warn("old readings not removed", "error", err)
			}
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
		}
	}
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
	defer cancel()
	s.storeSamples(last)
}

func (s *Service) sampleAll(ctx context.Context) error {
	rows, err := s.store.sampled(ctx, s.DB)
	if err != nil {
		return err
	}
	alive := make(map[string]bool, len(rows))
	var g errgroup.Group
	g.SetLimit(sampleAtOnce)
	for _, r := range rows {
		alive[r.id] = true
		g.Go(func() error {
			s.sample(ctx, r)
			return nil
		})
	}
	_ = g.Wait()
	s.samples.mu.Lock()
	defer s.samples.mu.Unlock()
	for id := range s.samples.latest {
		if !alive[id] {
			delete(s.samples.latest, id)
		}
	}
	return nil
}

// sample reads one sandbox. Nothing is noted where it does not answer: a gap stays a gap.
func (s *Service) sample(ctx context.Context, r sampled) (reading, bool) {
	sctx, cancel := context.WithTimeout(ctx, sampleWait)
	defer cancel()
	st, err := s.Driver.Stats(sctx, r.id)
	if err != nil {
		return reading{}, false
	}
	now := s.Now()
	s.samples.mu.Lock()
	last, ok := s.samples.latest[r.id]
	s.samples.mu.Unlock()
	if !ok || last.boot != r.boot || now.Before(last.at) {
		last = reading{boot: r.boot, at: db.Time(r.startedAt), processes: -1}
	}
	span := now.Sub(last.at)
	if span < time.Millisecond {
		return last, !last.guestAt.IsZero() || last.sample.span > 0
	}
	next := reading{boot: r.boot, at: now, cpu: st.CPUSeconds, guestAt: last.guestAt, processes: last.processes, sample: sample{
		at: db.Micros(now), span: max(span.Milliseconds(), 1), cpu: max(int64((st.CPUSeconds-last.cpu)*1e6), 0), memory: st.MemoryBytes >> 10, disk: st.DiskBytes >> 10, processes: -1,
	}}
	if last.sample.span == 0 {
		// The boot itself took CPU time too, before the sandbox counted as started.
		next.sample.cpu = min(next.sample.cpu, next.sample.span*r.vcpuMilli)
	}
	if next.sample.percent() >= busyPercent || now.Sub(last.guestAt) >= guestEvery {
		if m, err := s.guest(r.id, r.boot, r.token).Metrics(sctx); err == nil {
			next.guestAt, next.processes = now, int64(m.Processes)
			next.sample.processes = next.processes
			if next.sample.memory == 0 { // the driver cannot tell
				next.sample.memory = m.MemoryUsed >> 10
			}
		}
	}
	// What another server, or this one before it was started anew, has read already is not stored once more.
	s.samples.note(r.id, next, last.sample.span > 0 || span < time.Minute)
	return next, true
}

func (p *sampler) note(id string, r reading, keep bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.latest[id] = r
	if keep && p.waiting < mostPending {
		p.pending[id] = append(p.pending[id], r.sample)
		p.waiting++
	}
}

// storeSamples writes what is pending. What the database refuses waits for the next time.
func (s *Service) storeSamples(ctx context.Context) {
	p := &s.samples
	p.mu.Lock()
	pending := p.pending
	p.pending, p.waiting = map[string][]sample{}, 0
	p.mu.Unlock()
	var all []packed
	for id, samples := range pending {
		all = append(all, pack(id, samples)...)
	}
	if len(all) == 0 {
		return
	}
	err := s.DB.TxRelaxed(ctx, func(tx *sql.Tx) error { return s.store.storeReadings(ctx, tx, all) })
	if err == nil {
		return
	}
	s.Logger.Warn("readings not stored", "error", err)
	p.mu.Lock()
	defer p.mu.Unlock()
	for id, samples := range pending {
		if p.waiting+len(samples) <= mostPending {
			p.pending[id] = append(samples, p.pending[id]...)
			p.waiting += len(samples)
		}
	}
}

// unstored gives the samples of a sandbox that are not in the database yet.
func (p *sampler) unstored(id string) []sample {
	p.mu.Lock()
	defer p.mu.Unlock()
	return append([]sample(nil), p.pending[id]...)
}

// lastOf gives the newest of them.
func (p *sampler) lastOf(id string) *sample {
	all := p.unstored(id)
	if len(all) == 0 {
		return nil
	}
	return &all[len(all)-1]
}

// known gives the latest reading of a sandbox's boot; nil where there is none.
func (s *Service) known(r *row) *api.Usage {
	if r.State != api.StateRunning {
		return nil
	}
	s.samples.mu.Lock()
	defer s.samples.mu.Unlock()
	if last, ok := s.samples.latest[r.ID]; ok && last.boot == r.BootGeneration {
		return last.usage()
	}
	return nil
}

// reading gives the latest reading of a running sandbox, and takes one where there is none that is fresh. Those who ask at once share it.
func (s *Service) reading(ctx context.Context, r *row) *api.Usage {
	if r.State != api.StateRunning {
		return nil
	}
	p := &s.samples
	p.mu.Lock()
	last, ok := p.latest[r.ID]
	if ok && last.boot == r.BootGeneration && s.Now().Sub(last.at) < s.SampleEvery+sampleWait {
		p.mu.Unlock()
		return last.usage()
	}
	if asking := p.asking[r.ID]; asking != nil {
		p.mu.Unlock()
		select {
		case <-asking:
		case <-ctx.Done():
		}
		return s.known(r)
	}
	asking := make(chan struct{})
	p.asking[r.ID] = asking
	p.mu.Unlock()
	next, ok := s.sample(ctx, sampled{id: r.ID, token: r.GuestToken, boot: r.BootGeneration, startedAt: r.StartedAt, vcpuMilli: r.VCPUMilli})
	p.mu.Lock()
	delete(p.asking, r.ID)
	p.mu.Unlock()
	close(asking)
	if !ok {
		return nil
	}
	return next.usage()
}
