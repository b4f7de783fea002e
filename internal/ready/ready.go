// Package ready owns what makes a create quick: sandboxes that were booted before anybody asked, and saves of booted sandboxes (seeds) from which
// others are brought back instead of booting.
//
// How many are kept ready of a kind follows from how many were asked for lately, within a budget of memory. One that is ready is a row: whoever deletes
// that row in the transaction in which it makes the sandbox's own has it, and nobody else. The package does not know sandboxes as callers see them.
package ready

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/berthrun/berth/internal/db"
	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/guest"
	"github.com/berthrun/berth/internal/runtime"
)

// Kind is what sandboxes must have in common for one to be taken in place of another.
type Kind struct {
	Image                         string // the id of a prepared image
	VCPUMilli, MemoryMiB, DiskGiB int64
	Internet                      bool
}

// seed is the kind that a seed is of: the disk's limit does not matter to it.
func (k Kind) seed() Kind { k.DiskGiB = 0; return k }

// Member is a ready sandbox that was taken, or a seed.
type Member struct {
	ID    string // of the sandbox, or the name of the save
	Token string // that its guest has
}

// Config is what a Pool is made of. DB and Driver are required.
type Config struct {
	DB     *db.DB
	Driver runtime.Driver
	// MemoryMiB is the budget for ready sandboxes; 0 keeps none, and makes no seeds.
	MemoryMiB int64
	// Pids is how many tasks a sandbox of so much memory may have; 1024 where it is nil. One that is taken keeps it.
	Pids   func(memoryMiB int64) int64
	Tick   time.Duration // how often it is looked whether there are enough; 1 s where 0
	Now    func() time.Time
	Logger *slog.Logger
}

// memberMiB is what a ready sandbox takes of the budget: gVisor's kernel and file server, and the guest.
const memberMiB = 24

// Pool keeps sandboxes ready. Its methods may be called concurrently, and by several servers of one database.
type Pool struct {
	cfg    Config
	demand demand
	wake   chan struct{}

	begun     bool      // what an earlier server left half made was given up; of Run alone
	inspected time.Time // last; of Run alone

	mu    sync.Mutex
	tally map[Kind]*tally
	last  time.Time // that somebody made a sandbox
}

// tally counts what became of the creates of a kind since this process began.
type tally struct{ taken, missed int64 }

// New makes a Pool. Run fills it.
func New(c Config) *Pool {
	if c.Tick == 0 {
		c.Tick = time.Second
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	if c.Pids == nil {
		c.Pids = func(int64) int64 { return 1024 }
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return &Pool{cfg: c, demand: demand{asked: map[Kind][]time.Time{}}, wake: make(chan struct{}, 1), tally: map[Kind]*tally{}}
}

// on reports whether anything is kept ready here.
func (p *Pool) on() bool { return p.cfg.MemoryMiB >= memberMiB }

// Status is what a Pool has of one kind.
type Status struct {
	Kind
	Ready, Making, Target int
	Taken, Missed         int64 // creates that got one, and that found none, since the server began
	Seed                  bool  // there is a save to bring others back from
}

// Status reports every kind that is wanted or there, in no order.
func (p *Pool) Status(ctx context.Context) ([]Status, error) {
	have, err := p.counts(ctx)
	if err != nil {
		return nil, err
	}
	seeds, err := p.seeds(ctx)
	if err != nil {
		return nil, err
	}
	targets := p.targets()
	kinds := map[Kind]bool{}
	for k := range have {
		kinds[k] = true
	}
	for k := range targets {
		kinds[k] = true
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for k := range p.tally {
		kinds[k] = true
	}
	out := make([]Status, 0, len(kinds))
	for k := range kinds {
		s := Status{Kind: k, Ready: have[k].ready, Making: have[k].making, Target: targets[k], Seed: seeds[k.seed()] != ""}
		if t := p.tally[k]; t != nil {
			s.Taken, s.Missed = t.taken, t.missed
		}
		out = append(out, s)
	}
	return out, nil
}

// count notes what became of a create, once it is certain.
func (p *Pool) count(k Kind, taken bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.last = time.Now()
	t := p.tally[k]
	if t == nil {
		t = &tally{}
		p.tally[k] = t
	}
	if taken {
		t.taken++
	} else {
		t.missed++
	}
}

// Asked notes that a sandbox of a kind was made, from a ready one or not: more of them may be kept.
func (p *Pool) Asked(k Kind, taken bool) {
	if !p.on() {
		return
	}
	p.count(k, taken)
	p.demand.add(k, p.cfg.Now())
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

// client talks to the guest of a sandbox that nobody has yet.
func (p *Pool) client(id, token string) *guest.Client {
	return guest.NewClient(dialer(p.cfg.Driver, id), func() string { return token })
}

func (k Kind) spec(id, token string) runtime.Spec {
	network := runtime.NetworkNone
	if k.Internet {
		network = runtime.NetworkInternet
	}
	disk := k.DiskGiB
	return runtime.Spec{
		ID: id, Generation: 1, Image: k.Image, Network: network, Hostname: runtime.DefaultHostname(id), GuestToken: token,
		Resources: runtime.Resources{VCPU: float64(k.VCPUMilli) / 1000, MemoryMiB: k.MemoryMiB, DiskGiB: disk},
	}
}

// unusable reports whether a save cannot be used here any more, as after an upgrade of the runtime.
func unusable(err error) bool {
	e := errs.From(err)
	if e == nil {
		return false
	}
	return runtime.MemoryUnusable(e.Reason) || e.Code == errs.NotFound
}
