package sandbox

import (
	"cmp"
	"context"
	"math"
	"slices"
	"time"

	"github.com/berthrun/berth/api"
	"github.com/berthrun/berth/api/op"
	"github.com/berthrun/berth/internal/db"
	"github.com/berthrun/berth/internal/errs"
)

const (
	mostPoints  = 300
	defaultSpan = time.Hour
	heldFor     = 60_000 // milliseconds that a reading of memory and disk stands for at most
)

// steps are the lengths that a series chooses from, in seconds.
var steps = []int{15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 21600, 43200, 86400}

// draftEnded is the draft of a reading that is kept after the sandbox has ended, for as long as its tombstone.
func (s *Service) draftEnded(ctx context.Context, id string) (*op.Draft, error) {
	r, err := s.findDeleted(ctx, s.DB, id)
	if err != nil {
		return nil, err
	}
	return &op.Draft{Resource: r.resource()}, nil
}

func (s *Service) actMetrics(ctx context.Context, in *api.SandboxMetricsIn, _ *op.Draft) (*api.SandboxMetricsOut, error) {
	r, err := s.findDeleted(ctx, s.DB, in.SandboxID)
	if err != nil {
		return nil, err
	}
	_ = s.reading(ctx, r) // so that a new one has a point
	start, end := s.window(r, in)
	if start >= end {
		return nil, errs.E(errs.InvalidInput, "start must be before end").Suggest("The sandbox was made at %s.", db.Time(r.CreatedAt).Format(time.RFC3339)).With("path", "start")
	}
	samples, err := s.store.readings(ctx, s.DB, r.ID, start, end)
	if err != nil {
		return nil, err
	}
	samples = append(samples, s.samples.unstored(r.ID)...)
	slices.SortFunc(samples, func(a, b sample) int { return cmp.Compare(a.at, b.at) })
	step := stepOf(end-start, in.StepSeconds)
	disk := r.DiskGiB
	out := &api.SandboxMetricsOut{
		Start: db.Time(start), End: db.Time(end), StepSeconds: step,
		Resources: api.Resources{VCPU: float64(r.VCPUMilli) / 1000, MemoryMiB: r.MemoryMiB, DiskGiB: &disk},
	}
	var whole total
	var bins []bin
	for _, p := range samples {
		if p.at <= start || p.at > end {
			continue
		}
		whole.add(p)
		// A sample belongs to the step in which its span ended; the steps begin at start.
		at := (p.at - 1 - start) / (int64(step) * 1e6)
		if len(bins) == 0 || bins[len(bins)-1].at != at {
			bins = append(bins, bin{at: at})
		}
		bins[len(bins)-1].add(p)
	}
	for _, b := range bins {
		out.Points = append(out.Points, b.point(db.Time(start+b.at*int64(step)*1e6)))
	}
	if whole.span > 0 {
		out.Summary = whole.summary()
	}
	return out, nil
}

// window gives the time that is asked for, in microseconds.
func (s *Service) window(r *row, in *api.SandboxMetricsIn) (start, end int64) {
	end = db.Micros(s.Now())
	switch {
	case in.End != nil:
		end = min(end, db.Micros(*in.End))
	case r.State == api.StateStopped, r.State == api.StateDeleted, r.State == api.StateFailed:
		end = max(r.EndedAt, r.StartedAt, r.CreatedAt) + 1
		if r.State == api.StateDeleted {
			end = r.StateAt
		}
	}
	start = max(end-defaultSpan.Microseconds(), r.CreatedAt)
	if in.Start != nil {
		start = max(db.Micros(*in.Start), r.CreatedAt)
	}
	return start, end
}

// stepOf is the length of a step in seconds: as asked for, but never so short that there would be more than mostPoints.
func stepOf(span int64, asked int) int {
	least := int(math.Ceil(float64(span) / 1e6 / mostPoints))
	if asked >= least && asked > 0 {
		return asked
	}
	for _, n := range steps {
		if n >= least {
			return n
		}
	}
	return least
}

// total adds samples up, weighted by their time.
type total struct {
	span, held         int64 // milliseconds
	cpu                int64
	memory, disk       float64 // KiB × milliseconds
	processes, counted int64
	cpuMin, cpuMax     float64
	memMin, memMax     int64
	diskMin, diskMax   int64
}

func (t *total) add(p sample) {
	pct := p.percent()
	if t.span == 0 {
		t.cpuMin, t.cpuMax, t.memMin, t.memMax, t.diskMin, t.diskMax = pct, pct, p.memory, p.memory, p.disk, p.disk
	}
	t.span += p.span
	t.cpu += p.cpu
	// After a gap the CPU time is that of all of it; what was held then is not known.
	held := min(p.span, heldFor)
	t.held += held
	t.memory += float64(p.memory) * float64(held)
	t.disk += float64(p.disk) * float64(held)
	t.cpuMin, t.cpuMax = min(t.cpuMin, pct), max(t.cpuMax, pct)
	t.memMin, t.memMax = min(t.memMin, p.memory), max(t.memMax, p.memory)
	t.diskMin, t.diskMax = min(t.diskMin, p.disk), max(t.diskMax, p.disk)
	if p.processes >= 0 {
		t.processes = p.processes
		t.counted++
	}
}

func (t *total) averages() (cpu, memory, disk float64) {
	held := float64(t.held)
	return round(float64(t.cpu) / float64(t.span) / 10), round(t.memory / held / 1024), round(t.disk / held / 1024)
}

func (t *total) summary() *api.MetricsSummary {
	cpu, memory, disk := t.averages()
	return &api.MetricsSummary{
		CPUPercent:    api.Spread{Min: round(t.cpuMin), Average: cpu, Max: round(t.cpuMax)},
		MemoryUsedMiB: api.Spread{Min: mibOf(t.memMin), Average: memory, Max: mibOf(t.memMax)},
		DiskUsedMiB:   api.Spread{Min: mibOf(t.diskMin), Average: disk, Max: mibOf(t.diskMax)},
	}
}

// bin is one step of a series.
type bin struct {
	at int64 // which step
	total
}

func (b *bin) point(at time.Time) api.MetricsPoint {
	cpu, memory, disk := b.averages()
	p := api.MetricsPoint{At: at, CPUPercent: cpu, MemoryUsedMiB: memory, DiskUsedMiB: disk}
	if b.counted > 0 {
		n := int(b.processes)
		p.Processes = &n
	}
	return p
}

func mibOf(kib int64) float64 { return round(float64(kib) / 1024) }

// round leaves two decimals.
func round(f float64) float64 { return math.Round(f*100) / 100 }
