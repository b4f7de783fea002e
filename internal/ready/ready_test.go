package ready

import (
	"context"
	"database/sql"
	"errors"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/berthrun/berth/internal/db"
	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/guest"
	"github.com/berthrun/berth/internal/runtime"
	"github.com/berthrun/berth/internal/runtime/fake"
)

var small = Kind{Image: "base", VCPUMilli: 1000, MemoryMiB: 256, DiskGiB: 10, Internet: true}

func open(t *testing.T, budget int64, can runtime.Capabilities) (*Pool, *fake.Driver) {
	t.Helper()
	dir := t.TempDir()
	d, err := db.Open(t.Context(), db.Config{URL: filepath.Join(dir, "db")})
	if err != nil {
		t.Fatal(err)
	}
	f := fake.New(fake.Config{Dir: filepath.Join(dir, "boxes"), Images: []string{"base"}, Can: can})
	t.Cleanup(func() { err := errors.Join(f.Close(), d.Close()); _ = err })
	return New(Config{DB: d, Driver: f, MemoryMiB: budget, Tick: 10 * time.Millisecond}), f
}

// settle makes steps until there is nothing to do.
func settle(t *testing.T, p *Pool) {
	t.Helper()
	for {
		more, err := p.step(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if !more {
			return
		}
	}
}

func take(t *testing.T, p *Pool, k Kind) *Member {
	t.Helper()
	var m *Member
	err := p.cfg.DB.Tx(t.Context(), func(tx *sql.Tx) (err error) { m, err = p.Take(t.Context(), tx, k); return err })
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func status(t *testing.T, p *Pool, k Kind) Status {
	t.Helper()
	all, err := p.Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range all {
		if s.Kind == k {
			return s
		}
	}
	return Status{}
}

func TestDemandIsMet(t *testing.T) {
	p, f := open(t, 10*memberMiB, fake.Everything())
	if m := take(t, p, small); m != nil {
		t.Fatalf("took %v before any was made", m)
	}
	for range 3 {
		p.Asked(small, false)
	}
	settle(t, p)
	if got := status(t, p, small); got.Ready != 3 || got.Making != 0 || got.Target != 3 || got.Missed != 3 || !got.Seed {
		t.Errorf("status = %+v", got)
	}
	tokens := map[string]bool{}
	for range 3 {
		m := take(t, p, small)
		if m == nil || tokens[m.Token] {
			t.Fatalf("took %v", m)
		}
		tokens[m.Token] = true
		g := guest.NewClient(dialer(f, m.ID), func() string { return m.Token })
		if _, err := g.Hello(t.Context()); err != nil {
			t.Errorf("the guest of one that was taken: %v", err)
		}
		if all, err := g.Processes(t.Context()); err != nil || len(all) != 0 {
			t.Errorf("what warmed it is seen: %v, %v", all, err)
		}
		g.Close()
		if err := f.Delete(t.Context(), m.ID, 2); err != nil {
			t.Error(err)
		}
	}
	if m := take(t, p, small); m != nil {
		t.Errorf("took a fourth: %v", m)
	}
	other := small
	other.MemoryMiB = 512
	settle(t, p)
	if m := take(t, p, other); m != nil {
		t.Errorf("took one of another kind: %v", m)
	}
}

// One is given to nobody twice, however many ask at once; and one whose taker's transaction came to nothing is ready again.
func TestTakenOnce(t *testing.T) {
	p, _ := open(t, 10*memberMiB, fake.Everything())
	for range 4 {
		p.Asked(small, false)
	}
	settle(t, p)
	undone := errors.New("undone")
	err := p.cfg.DB.Tx(t.Context(), func(tx *sql.Tx) error {
		if m, err := p.Take(t.Context(), tx, small); err != nil || m == nil {
			t.Errorf("took %v, %v", m, err)
		}
		return undone
	})
	if !errors.Is(err, undone) {
		t.Fatal(err)
	}
	var mu sync.Mutex
	var wg sync.WaitGroup
	taken := map[string]int{}
	for range 16 {
		wg.Go(func() {
			var m *Member
			err := p.cfg.DB.Tx(t.Context(), func(tx *sql.Tx) (err error) { m, err = p.Take(t.Context(), tx, small); return err })
			if err != nil {
				t.Error(err)
			} else if m != nil {
				mu.Lock()
				taken[m.ID]++
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	if len(taken) != 4 {
		t.Errorf("taken: %v, want 4 of them", taken)
	}
	for id, n := range taken {
		if n != 1 {
			t.Errorf("%s was given %d times", id, n)
		}
	}
}

func TestBudget(t *testing.T) {
	p, _ := open(t, 3*memberMiB+1, runtime.Capabilities{})
	other := small
	other.MemoryMiB = 512
	for range 5 {
		p.Asked(small, false)
	}
	p.Asked(other, false)
	settle(t, p)
	if a, b := status(t, p, small), status(t, p, other); a.Ready != 2 || b.Ready != 1 || a.Seed {
		t.Errorf("status = %+v and %+v", a, b)
	}
	// What nobody asks for any more goes.
	later := time.Now().Add(remember + time.Minute)
	p.cfg.Now = func() time.Time { return later }
	settle(t, p)
	if a, b := status(t, p, small), status(t, p, other); a.Ready != 0 || b.Ready != 0 {
		t.Errorf("later: %+v and %+v", a, b)
	}
	if left, err := p.cfg.Driver.List(t.Context()); err != nil || len(left) != 0 {
		t.Errorf("left on the node: %v, %v", left, err)
	}
	off, _ := open(t, 0, fake.Everything())
	off.Asked(small, false)
	settle(t, off)
	if got := status(t, off, small); got.Ready != 0 || got.Target != 0 {
		t.Errorf("without a budget: %+v", got)
	}
}

// What a server that ended left half made is removed, and made again.
func TestInterrupted(t *testing.T) {
	p, f := open(t, 10*memberMiB, fake.Everything())
	settle(t, p)
	if err := p.begin(t.Context(), small, "sbx_00000000000000000000", "token"); err != nil {
		t.Fatal(err)
	}
	if _, err := f.Create(t.Context(), small.spec("sbx_00000000000000000000", "token")); err != nil {
		t.Fatal(err)
	}
	owned, _, err := p.Owned(t.Context())
	if err != nil || !owned["sbx_00000000000000000000"] {
		t.Errorf("Owned = %v, %v", owned, err)
	}
	settle(t, p)
	if all, _ := f.List(t.Context()); len(all) != 1 {
		t.Errorf("one that is being made was removed at once: %v", all)
	}
	later := time.Now().Add(makeTime + 2*time.Minute)
	p.cfg.Now = func() time.Time { return later }
	settle(t, p)
	if all, _ := f.List(t.Context()); len(all) != 0 {
		t.Errorf("left: %v", all)
	}
}

// A seed that cannot be used is made anew, and until then sandboxes boot.
func TestSpoiledSeed(t *testing.T) {
	p, f := open(t, 10*memberMiB, fake.Everything())
	p.Asked(small, false)
	settle(t, p)
	seed, err := p.Seed(t.Context(), small)
	if err != nil || seed == nil {
		t.Fatal(err)
	}
	if err := f.Forget(t.Context(), seed.ID); err != nil {
		t.Fatal(err)
	}
	p.Asked(small, true)
	settle(t, p)
	next, err := p.Seed(t.Context(), small)
	if err != nil || next != nil && next.ID == seed.ID {
		t.Errorf("the spoiled seed is still there: %v, %v", next, err)
	}
	if got := status(t, p, small); got.Ready != 2 {
		t.Errorf("status = %+v", got)
	}
	p.Asked(small, true)
	settle(t, p)
	if next, err = p.Seed(t.Context(), small); err != nil || next == nil || next.ID == seed.ID {
		t.Errorf("the next seed is %v, %v", next, err)
	}
	saves, err := f.Saves(t.Context())
	if err != nil || len(saves) != 1 {
		t.Errorf("saves: %v, %v", saves, err)
	}
}

// TestSeedsWither keeps the seed of what is asked for now and then, and lets go of one that is not.
func TestSeedsWither(t *testing.T) {
	p, _ := open(t, 10*memberMiB, fake.Everything())
	now := time.Now()
	p.cfg.Now = func() time.Time { return now }
	p.Asked(small, false)
	settle(t, p)
	for range 3 {
		now = now.Add(idleSeeds - time.Hour)
		p.Asked(small, false)
		settle(t, p)
	}
	if seed, err := p.Seed(t.Context(), small); err != nil || seed == nil {
		t.Fatalf("the seed of what is asked for: %v, %v", seed, err)
	}
	now = now.Add(idleSeeds + time.Hour)
	settle(t, p)
	if seed, err := p.Seed(t.Context(), small); err != nil || seed != nil {
		t.Errorf("the seed of what nobody asks for any more: %v, %v", seed, err)
	}
	settle(t, p)
	if saves, err := p.cfg.Driver.Saves(t.Context()); err != nil || len(saves) != 0 {
		t.Errorf("what the node keeps: %+v, %v", saves, err)
	}
}

func TestRun(t *testing.T) {
	p, f := open(t, 4*memberMiB, fake.Everything())
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- p.Run(ctx) }()
	p.Asked(small, false)
	for status(t, p, small).Ready == 0 {
		select {
		case err := <-done:
			t.Fatal(err)
		case <-time.After(5 * time.Millisecond):
		}
	}
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	if all, _ := f.List(context.Background()); len(all) == 0 {
		t.Error("the end of a server took the ready sandboxes with it")
	}
}

// What was just taken has the machine to itself; but nobody who asks without end keeps others from being made.
func TestRest(t *testing.T) {
	p, _ := open(t, 4*memberMiB, fake.Everything())
	rested := func() time.Duration {
		begin := time.Now()
		p.rest(t.Context())
		return time.Since(begin)
	}
	if d := rested(); d >= quiet {
		t.Errorf("before anybody asked it waits %s", d)
	}
	p.Asked(small, true)
	if d := rested(); d < quiet*9/10 || d >= mostRest {
		t.Errorf("after one asked it waits %s", d)
	}
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	go func() {
		for ctx.Err() == nil {
			p.Asked(small, true)
			time.Sleep(quiet / 10)
		}
	}()
	time.Sleep(quiet / 10)
	if d := rested(); d < mostRest*9/10 {
		t.Errorf("while others ask it waits %s", d)
	}
}

// One that died is not given to anybody once that is seen, and another takes its place.
func TestDeadOnesGo(t *testing.T) {
	p, f := open(t, 10*memberMiB, fake.Everything())
	p.Asked(small, false)
	settle(t, p)
	all, err := f.List(t.Context())
	if err != nil || len(all) != 1 {
		t.Fatalf("%v, %v", all, err)
	}
	f.Kill(all[0].ID, runtime.ReasonKilled)
	later := time.Now().Add(inspectEvery)
	p.cfg.Now = func() time.Time { return later }
	settle(t, p)
	m := take(t, p, small)
	if m == nil || m.ID == all[0].ID {
		t.Fatalf("took %v, and %s died", m, all[0].ID)
	}
	if st, err := f.Get(t.Context(), m.ID); err != nil || st.State != runtime.Running {
		t.Errorf("it is %+v, %v", st, err)
	}
}

// What a server was making when it was killed is not waited for by the next one.
func TestHalfMadeIsGivenUp(t *testing.T) {
	p, f := open(t, 10*memberMiB, fake.Everything())
	if err := p.begin(t.Context(), small, "sbx_00000000000000000000", "token"); err != nil {
		t.Fatal(err)
	}
	if _, err := f.Create(t.Context(), small.spec("sbx_00000000000000000000", "token")); err != nil {
		t.Fatal(err)
	}
	if ok, err := p.beginSeed(t.Context(), small.seed(), "seed_halfmade", "token"); err != nil || !ok {
		t.Fatal(ok, err)
	}
	next := New(p.cfg)
	next.Asked(small, false)
	settle(t, next)
	if got := status(t, next, small); got.Ready != 1 || got.Making != 0 || !got.Seed {
		t.Errorf("status = %+v, want one ready, none being made, and a seed", got)
	}
	if _, err := f.Get(t.Context(), "sbx_00000000000000000000"); !errs.Is(err, errs.NotFound) {
		t.Errorf("what was half made: %v, want that it is gone", err)
	}
}
