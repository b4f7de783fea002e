package ready

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/guest"
	"github.com/berthrun/berth/internal/id"
	"github.com/berthrun/berth/internal/runtime"
)

// makeTime bounds the making of one.
const makeTime = 2 * time.Minute

// idleSeeds is how long a seed that is not used is kept.
const idleSeeds = 24 * time.Hour

// SeedPrefix begins the names of seeds' saves.
const SeedPrefix = "seed_"

// How long nobody may have made a sandbox before others are made ready: a boot takes the cores from the first commands of one that was just taken. Where
// somebody always does, they are made all the same.
const (
	quiet    = 500 * time.Millisecond
	mostRest = 3 * time.Second
)

// rest waits until it is quiet.
func (p *Pool) rest(ctx context.Context) {
	for begin := time.Now(); ctx.Err() == nil; {
		p.mu.Lock()
		wait := min(quiet-time.Since(p.last), mostRest-time.Since(begin))
		p.mu.Unlock()
		if wait <= 0 {
			return
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
		}
	}
}

// Run keeps as many ready as are wanted until the context ends. One is made at a time: callers' own creates come first.
func (p *Pool) Run(ctx context.Context) error {
	tick := time.NewTicker(p.cfg.Tick)
	defer tick.Stop()
	pause := p.cfg.Tick
	for ctx.Err() == nil {
		p.rest(ctx)
		more, err := p.step(ctx)
		if err != nil && ctx.Err() == nil {
			p.cfg.Logger.Warn("ready sandboxes not looked after", "error", err)
			pause = min(2*pause, time.Minute)
			select {
			case <-time.After(pause):
			case <-ctx.Done():
			}
			continue
		}
		pause = p.cfg.Tick
		if more {
			continue
		}
		select {
		case <-tick.C:
		case <-p.wake:
		case <-ctx.Done():
		}
	}
	return ctx.Err()
}

// step removes what is to go and makes at most one. more says that there is more to do at once.
func (p *Pool) step(ctx context.Context) (more bool, err error) {
	if !p.begun {
		if err := p.abandon(ctx); err != nil {
			return false, err
		}
		p.begun = true
	}
	if err := p.clean(ctx); err != nil {
		return false, err
	}
	targets := p.targets()
	if now := p.cfg.Now(); now.Sub(p.inspected) >= inspectEvery {
		if err := errors.Join(p.inspect(ctx), p.wither(ctx, targets)); err != nil {
			return false, err
		}
		p.inspected = now
	}
	have, err := p.counts(ctx)
	if err != nil {
		return false, err
	}
	for k, c := range have {
		if c.ready <= targets[k] {
			continue
		}
		id, err := p.oldest(ctx, k)
		if err != nil || id == "" {
			return false, err
		}
		if _, err := p.set(ctx, sandboxesTable, id, ready, dropping); err != nil {
			return false, err
		}
		return true, nil
	}
	for k, n := range targets {
		if have[k].ready+have[k].making >= n {
			continue
		}
		if err := p.sow(ctx, k); err != nil {
			return false, err
		}
		return true, p.make(ctx, k)
	}
	return false, nil
}

// wither gives up the seeds of kinds that nobody has asked for in a long time.
func (p *Pool) wither(ctx context.Context, wanted map[Kind]int) error {
	for k := range wanted {
		if err := p.renew(ctx, k.seed()); err != nil {
			return err
		}
	}
	return p.giveUp(ctx, p.cfg.Now().Add(-idleSeeds))
}

// inspectEvery is how often it is looked whether those that are ready still run.
const inspectEvery = 15 * time.Second

// inspect gives up those that do not run any more, as after a restart of the machine.
func (p *Pool) inspect(ctx context.Context) error {
	there, err := p.names(ctx, `SELECT id FROM ready_sandboxes WHERE state = 'ready'`)
	if err != nil || len(there) == 0 {
		return err
	}
	all, err := p.cfg.Driver.List(ctx)
	if err != nil {
		return err
	}
	for _, st := range all {
		if st.State == runtime.Running {
			delete(there, st.ID)
		}
	}
	for sandbox := range there {
		if _, err := p.set(ctx, sandboxesTable, sandbox, ready, dropping); err != nil {
			return err
		}
	}
	return nil
}

// clean removes from the node what the rows say is to go.
func (p *Pool) clean(ctx context.Context) error {
	gone, err := p.stale(ctx, sandboxesTable)
	if err != nil {
		return err
	}
	for sandbox := range gone {
		if _, err := p.set(ctx, sandboxesTable, sandbox, making, dropping); err != nil {
			return err
		}
		if err := p.cfg.Driver.Delete(ctx, sandbox, last); err != nil {
			return err
		}
		if err := p.forget(ctx, sandboxesTable, sandbox); err != nil {
			return err
		}
	}
	if gone, err = p.stale(ctx, seedsTable); err != nil {
		return err
	}
	for name := range gone {
		if err := p.cfg.Driver.Forget(ctx, name); err != nil && !errs.Is(err, errs.Unavailable) {
			return err
		}
		if err := p.forget(ctx, seedsTable, name); err != nil {
			return err
		}
	}
	return nil
}

// last is a generation that no sandbox comes to.
const last = int64(1) << 62

// make makes one sandbox ready: brought back from a seed, or booted.
func (p *Pool) make(ctx context.Context, k Kind) error {
	sandbox, token := id.New(id.Sandbox), guest.NewToken()
	if err := p.begin(ctx, k, sandbox, token); err != nil {
		return err
	}
	mctx, cancel := context.WithTimeout(ctx, makeTime)
	defer cancel()
	err := p.bring(mctx, k, sandbox, token)
	if err == nil {
		var ok bool
		if ok, err = p.set(ctx, sandboxesTable, sandbox, making, ready); err == nil && ok {
			return nil
		}
	}
	ctx = context.WithoutCancel(ctx)
	_, serr := p.set(ctx, sandboxesTable, sandbox, making, dropping)
	if err != nil {
		return errors.Join(fmt.Errorf("make ready sandbox: %w", err), serr)
	}
	return serr
}

// bring gets a sandbox up whose guest has the given token.
func (p *Pool) bring(ctx context.Context, k Kind, sandbox, token string) error {
	seed, err := p.Seed(ctx, k)
	if err != nil {
		return err
	}
	if seed == nil {
		return p.boot(ctx, k, sandbox, token)
	}
	_, err = p.cfg.Driver.Clone(ctx, k.spec(sandbox, seed.Token), seed.ID, runtime.CloneOptions{})
	switch {
	case unusable(err):
		if err := p.Spoiled(ctx, seed.ID); err != nil {
			return err
		}
		return p.boot(ctx, k, sandbox, token)
	case err != nil:
		return err
	}
	return p.greet(ctx, k, sandbox, seed.Token, token)
}

func (p *Pool) boot(ctx context.Context, k Kind, sandbox, token string) error {
	if _, err := p.cfg.Driver.Create(ctx, k.spec(sandbox, token)); err != nil {
		return err
	}
	return p.greet(ctx, k, sandbox, token, token)
}

// greet waits for a guest, which has a token, gives it another and what nobody shares with it, and has it do what its first command would do for all
// after it.
func (p *Pool) greet(ctx context.Context, k Kind, sandbox, has, token string) error {
	g := p.client(sandbox, has)
	defer g.Close()
	if _, err := g.Hello(ctx); err != nil {
		return err
	}
	c := guest.Configure{
		Hostname: runtime.DefaultHostname(sandbox), UnixNanos: p.cfg.Now().UnixNano(), Entropy: guest.NewEntropy(), Token: token, Pids: p.cfg.Pids(k.MemoryMiB),
	}
	if _, err := g.Configure(ctx, c); err != nil {
		return err
	}
	own := p.client(sandbox, token)
	defer own.Close()
	return own.Warm(ctx)
}

// sow makes the seed of a kind where there is none: a sandbox is booted, warmed by a command, saved and deleted.
func (p *Pool) sow(ctx context.Context, k Kind) error {
	c := p.cfg.Driver.Capabilities()
	if !c.Memory || !c.Saves {
		return nil
	}
	k = k.seed()
	seeds, err := p.seeds(ctx)
	if err != nil || seeds[k] != "" {
		return err
	}
	name, token := SeedPrefix+id.New(id.Sandbox)[len(id.Sandbox)+1:], guest.NewToken()
	ok, err := p.beginSeed(ctx, k, name, token)
	if err != nil || !ok {
		return err
	}
	sctx, cancel := context.WithTimeout(ctx, makeTime)
	defer cancel()
	if err := p.save(sctx, k, name, token); err != nil {
		ctx = context.WithoutCancel(ctx)
		_, serr := p.set(ctx, seedsTable, name, making, dropping)
		return errors.Join(fmt.Errorf("make seed: %w", err), serr)
	}
	_, err = p.set(ctx, seedsTable, name, making, ready)
	return err
}

// save boots a sandbox that is only there to be saved. It has a row like the others, so that it is removed whatever happens.
func (p *Pool) save(ctx context.Context, k Kind, name, token string) (err error) {
	sandbox := id.New(id.Sandbox)
	if err := p.begin(ctx, k, sandbox, token); err != nil {
		return err
	}
	defer func() {
		ctx := context.WithoutCancel(ctx)
		_, serr := p.set(ctx, sandboxesTable, sandbox, making, dropping)
		err = errors.Join(err, serr)
	}()
	if err := p.boot(ctx, k, sandbox, token); err != nil {
		return err
	}
	g := p.client(sandbox, token)
	defer g.Close()
	if err := g.Sync(ctx); err != nil {
		return err
	}
	g.Close()
	_, err = p.cfg.Driver.Save(ctx, sandbox, 1, name, runtime.SaveOptions{Memory: true})
	return err
}

func dialer(d runtime.Driver, sandbox string) func(ctx context.Context) (net.Conn, error) {
	return func(ctx context.Context) (net.Conn, error) { return d.Dial(ctx, sandbox, guest.Port) }
}
