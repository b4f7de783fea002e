package runtimetest

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/id"
	"github.com/berthrun/berth/internal/runtime"
)

// crowd makes many calls on one sandbox at once: each is done or refused for the state that it found, and the sandbox is whole afterwards.
func (s *suite) crowd(t *testing.T) {
	spec, _ := s.made(t)
	g := s.guest(t, spec)
	boot := g.hello().BootID
	g.count()
	ctx, can := s.ctx(t), s.Driver.Capabilities()
	calls := map[string]func() error{
		"suspend": func() error { _, err := s.Driver.Suspend(ctx, spec.ID, spec.Generation); return err },
		"wake":    func() error { _, err := s.Driver.Wake(ctx, spec); return err },
		"settle":  func() error { return s.Driver.Settle(ctx, spec.ID, spec.Generation) },
	}
	if can.Pause {
		calls["pause"] = func() error { _, err := s.Driver.Pause(ctx, spec.ID, spec.Generation); return err }
		calls["resume"] = func() error { _, err := s.Driver.Resume(ctx, spec.ID, spec.Generation); return err }
	}
	if can.Saves {
		calls["save"] = func() error {
			name := id.New("snap")
			_, err := s.Driver.Save(ctx, spec.ID, spec.Generation, name, runtime.SaveOptions{Memory: true, Brief: true})
			return errors.Join(err, s.Driver.Forget(ctx, name))
		}
	}
	var wg sync.WaitGroup
	for name, call := range calls {
		for range 2 {
			wg.Go(func() {
				if err := call(); err != nil && !errs.Is(err, errs.InvalidState) {
					t.Errorf("%s: %v", name, err)
				}
			})
		}
	}
	wg.Wait()
	g = s.wake(t, &spec)
	if got := g.hello().BootID; got != boot {
		t.Error("the guest was booted anew")
	}
	g.counted(g.counted(0) + 3)
}

// givenUp cancels each call at once and in its midst: it is done or not, and the same call brings it to its end.
func (s *suite) givenUp(t *testing.T) {
	spec, _ := s.made(t)
	g := s.guest(t, spec)
	boot := g.hello().BootID
	g.write("/root/text", "before")
	g.count()
	can := s.Driver.Capabilities()
	suspend := func(ctx context.Context) error {
		_, err := s.Driver.Suspend(ctx, spec.ID, spec.Generation)
		return err
	}
	wake := func(ctx context.Context) error { _, err := s.Driver.Wake(ctx, spec); return err }
	type step struct {
		name string
		call func(context.Context) error
	}
	steps := []step{{"suspend", suspend}, {"wake", wake}, {"settle", func(ctx context.Context) error { return s.Driver.Settle(ctx, spec.ID, spec.Generation) }}}
	copied := s.spec(t)
	if can.Saves {
		name := id.New("snap")
		s.forgotten(t, name)
		steps = append(steps, step{"save", func(ctx context.Context) error {
			_, err := s.Driver.Save(ctx, spec.ID, spec.Generation, name, runtime.SaveOptions{Memory: true})
			return err
		}}, step{"clone", func(ctx context.Context) error {
			_, err := s.Driver.Clone(ctx, copied, name, runtime.CloneOptions{})
			return err
		}})
	}
	for _, step := range steps {
		// As every caller does before its sandbox is saved: what was said over an open connection and not heard yet would be saved with it.
		g.http.CloseIdleConnections()
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if err := step.call(ctx); !errors.Is(err, context.Canceled) {
			t.Errorf("%s without time: %v, want that it was cancelled", step.name, err)
		}
		for _, after := range []time.Duration{0, time.Millisecond, 10 * time.Millisecond} {
			ctx, cancel := context.WithCancel(t.Context())
			timer := time.AfterFunc(after, cancel) // the moment is the point of the test
			if err := step.call(ctx); err != nil && !errors.Is(err, context.Canceled) {
				t.Errorf("%s cancelled after %v: %v, want that it was cancelled, or done", step.name, after, err)
			}
			timer.Stop()
			cancel()
		}
		if err := step.call(s.ctx(t)); err != nil {
			t.Fatalf("%s after cancelled ones: %v", step.name, err)
		}
	}
	g = s.guest(t, spec)
	if got := g.hello().BootID; got != boot {
		t.Error("the guest was booted anew")
	}
	g.wantFile("/root/text", "before")
	g.counted(g.counted(0) + 3)
	if can.Saves {
		c := s.withToken(t, copied, spec.GuestToken)
		if got := c.hello().BootID; got != boot {
			t.Error("the copy was booted anew")
		}
		c.wantFile("/root/text", "before")
		if all, err := s.Driver.Saves(s.ctx(t)); err != nil || len(all) != 1 {
			t.Errorf("Saves = %+v, %v; want one", all, err)
		}
	}
}
