package runtimetest

import (
	"context"
	"errors"
	"net/http"
	"sync"
	"testing"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/id"
	"github.com/berthrun/berth/internal/runtime"
)

func (s *suite) create(t *testing.T) {
	spec, st := s.made(t)
	want(t, st, runtime.Status{ID: spec.ID, Generation: 1, State: runtime.Running})
	got, err := s.Driver.Get(s.ctx(t), spec.ID)
	if err != nil || got != st {
		t.Errorf("Get = %+v, %v; want what Create gave, %+v", got, err, st)
	}
	all, err := s.Driver.List(s.ctx(t))
	if err != nil || len(all) != 1 || all[0] != st {
		t.Errorf("List = %+v, %v; want only %+v", all, err, st)
	}
	stranger := s.guest(t, spec)
	stranger.token = "wrong"
	if code, _, err := stranger.do(http.MethodGet, "/hello", nil); err != nil || code != http.StatusUnauthorized {
		t.Errorf("hello with a wrong token: %d, %v; want 401", code, err)
	}
}

func (s *suite) createAgain(t *testing.T) {
	spec, st := s.made(t)
	boot := s.guest(t, spec).hello().BootID
	again, err := s.Driver.Create(s.ctx(t), spec)
	if err != nil || again != st {
		t.Errorf("the same again = %+v, %v; want %+v", again, err, st)
	}
	spec.Generation = 5
	newer, err := s.Driver.Create(s.ctx(t), spec)
	if err != nil {
		t.Fatalf("with a newer generation: %v", err)
	}
	want(t, newer, runtime.Status{ID: spec.ID, Generation: 5, State: runtime.Running})
	spec.Generation = 4
	_, err = s.Driver.Create(s.ctx(t), spec)
	wantError(t, "with an older generation", err, errs.InvalidState, "stale_generation")
	if got := s.guest(t, spec).hello().BootID; got != boot {
		t.Error("a repeated create booted it again")
	}
	if _, err := s.Driver.Stop(s.ctx(t), spec.ID, 6, runtime.StopOptions{}); err != nil {
		t.Fatal(err)
	}
	spec.Generation = 7
	_, err = s.Driver.Create(s.ctx(t), spec)
	wantError(t, "of a stopped one", err, errs.AlreadyExists, "stopped")
}

func (s *suite) createSame(t *testing.T) {
	spec := s.spec(t)
	var wg sync.WaitGroup
	got, failed := make([]runtime.Status, 4), make([]error, 4)
	ctx := s.ctx(t)
	for i := range got {
		wg.Go(func() { got[i], failed[i] = s.Driver.Create(ctx, spec) })
	}
	wg.Wait()
	for i := range got {
		if failed[i] != nil || got[i] != got[0] {
			t.Errorf("create %d = %+v, %v; want %+v", i, got[i], failed[i], got[0])
		}
	}
	s.guest(t, spec).hello()
}

func (s *suite) createRefused(t *testing.T) {
	for name, tt := range map[string]struct {
		change func(*runtime.Spec)
		code   errs.Code
	}{
		"unknown image":   {func(sp *runtime.Spec) { sp.Image = "nosuchimage" }, errs.NotFound},
		"no cpu":          {func(sp *runtime.Spec) { sp.Resources.VCPU = 0 }, errs.InvalidInput},
		"no memory":       {func(sp *runtime.Spec) { sp.Resources.MemoryMiB = 0 }, errs.InvalidInput},
		"a path as id":    {func(sp *runtime.Spec) { sp.ID = "../../etc" }, errs.InvalidInput},
		"a path as image": {func(sp *runtime.Spec) { sp.Image = "../" + sp.Image }, errs.InvalidInput},
		"no network":      {func(sp *runtime.Spec) { sp.Network = "lan" }, errs.InvalidInput},
	} {
		t.Run(name, func(t *testing.T) {
			spec := s.spec(t)
			tt.change(&spec)
			_, err := s.Driver.Create(s.ctx(t), spec)
			wantError(t, "Create", err, tt.code, "")
			if all, err := s.Driver.List(s.ctx(t)); err != nil || len(all) != 0 {
				t.Errorf("List = %v, %v; want none", all, err)
			}
		})
	}
}

// createCancelled gives up at once: the sandbox is whole or not there, and can be deleted.
func (s *suite) createCancelled(t *testing.T) {
	spec := s.spec(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := s.Driver.Create(ctx, spec); !errors.Is(err, context.Canceled) {
		t.Errorf("Create = %v, want that it was cancelled", err)
	}
	events, err := s.Driver.Watch(s.ctx(t))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel = context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		_, err := s.Driver.Create(ctx, spec)
		done <- err
	}()
	cancel()
	if err := <-done; err != nil && !errors.Is(err, context.Canceled) {
		t.Errorf("Create = %v, want that it was cancelled, or done", err)
	}
	// Whatever came of it, the same call brings it to its end.
	if _, err := s.Driver.Create(s.ctx(t), spec); err != nil {
		t.Fatalf("Create after a cancelled one: %v", err)
	}
	s.await(t, events, spec.ID, func(st runtime.Status) bool { return st.State == runtime.Running })
	s.guest(t, spec).hello()
}

func (s *suite) createMany(t *testing.T) {
	specs := make([]runtime.Spec, s.Parallel)
	for i := range specs {
		specs[i] = s.spec(t)
	}
	var wg sync.WaitGroup
	ctx, got, failed := s.ctx(t), make([]runtime.Status, len(specs)), make([]error, len(specs))
	for i, spec := range specs {
		wg.Go(func() { got[i], failed[i] = s.Driver.Create(ctx, spec) })
	}
	wg.Wait()
	addresses := map[string]bool{}
	for i, spec := range specs {
		if failed[i] != nil {
			t.Fatalf("create %d: %v", i, failed[i])
		}
		want(t, got[i], runtime.Status{ID: spec.ID, Generation: 1, State: runtime.Running})
		if addresses[got[i].Address] {
			t.Errorf("two sandboxes have the address %s", got[i].Address)
		}
		addresses[got[i].Address] = true
		g := s.guest(t, spec)
		g.hello()
		g.write("/root/me", spec.ID)
	}
	for _, spec := range specs {
		if text, err := s.guest(t, spec).read("/root/me"); err != nil || text != spec.ID {
			t.Errorf("%s reads %q, %v: its disk is not its own", spec.ID, text, err)
		}
	}
}

func (s *suite) stopKeepsDisk(t *testing.T) {
	spec, _ := s.made(t)
	g := s.guest(t, spec)
	for _, path := range []string{"/root/kept", "/tmp/kept", "/var/deep/er/kept"} {
		g.write(path, "text of "+path)
	}
	for i := range 2 {
		st, err := s.Driver.Stop(s.ctx(t), spec.ID, 2, runtime.StopOptions{})
		if err != nil {
			t.Fatalf("stop %d: %v", i, err)
		}
		want(t, st, runtime.Status{ID: spec.ID, Generation: 2, State: runtime.Stopped, Reason: runtime.ReasonRequested})
	}
	if _, err := s.Driver.Stats(s.ctx(t), spec.ID); err == nil {
		t.Error("a stopped sandbox has stats")
	}
	_, err := s.Driver.Dial(s.ctx(t), spec.ID, 1)
	wantError(t, "dial a stopped one", err, errs.InvalidState, "stopped")
	spec.Generation, spec.GuestToken = 3, id.New("tok")
	for i := range 2 {
		st, err := s.Driver.Start(s.ctx(t), spec)
		if err != nil {
			t.Fatalf("start %d: %v", i, err)
		}
		want(t, st, runtime.Status{ID: spec.ID, Generation: 3, State: runtime.Running})
	}
	g = s.guest(t, spec)
	g.hello()
	for _, path := range []string{"/root/kept", "/tmp/kept", "/var/deep/er/kept"} {
		if got, err := g.read(path); err != nil || got != "text of "+path {
			t.Errorf("%s after the start: %q, %v", path, got, err)
		}
	}
}

func (s *suite) delete(t *testing.T) {
	spec, _ := s.made(t)
	s.guest(t, spec).write("/root/old", "old")
	for i := range 2 {
		if err := s.Driver.Delete(s.ctx(t), spec.ID, 2); err != nil {
			t.Fatalf("delete %d: %v", i, err)
		}
	}
	_, err := s.Driver.Get(s.ctx(t), spec.ID)
	wantError(t, "get a deleted one", err, errs.NotFound, "")
	_, err = s.Driver.Start(s.ctx(t), spec)
	wantError(t, "start a deleted one", err, errs.NotFound, "")
	spec.Generation = 3
	if _, err := s.Driver.Create(s.ctx(t), spec); err != nil {
		t.Fatalf("create it anew: %v", err)
	}
	g := s.guest(t, spec)
	g.hello()
	if text, err := g.read("/root/old"); err == nil {
		t.Errorf("a new sandbox of the same id has the old disk: %q", text)
	}
	if _, err := s.Driver.Stop(s.ctx(t), spec.ID, 4, runtime.StopOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := s.Driver.Delete(s.ctx(t), spec.ID, 5); err != nil {
		t.Errorf("delete a stopped one: %v", err)
	}
}

func (s *suite) generations(t *testing.T) {
	spec := s.spec(t)
	spec.Generation = 10
	if _, err := s.Driver.Create(s.ctx(t), spec); err != nil {
		t.Fatal(err)
	}
	old := spec
	old.Generation = 9
	_, err := s.Driver.Start(s.ctx(t), old)
	wantError(t, "start", err, errs.InvalidState, "stale_generation")
	_, err = s.Driver.Stop(s.ctx(t), spec.ID, 9, runtime.StopOptions{})
	wantError(t, "stop", err, errs.InvalidState, "stale_generation")
	wantError(t, "delete", s.Driver.Delete(s.ctx(t), spec.ID, 9), errs.InvalidState, "stale_generation")
	wantError(t, "update", s.Driver.Update(s.ctx(t), spec.ID, 9, spec.Resources), errs.InvalidState, "stale_generation")
	got, err := s.Driver.Get(s.ctx(t), spec.ID)
	if err != nil {
		t.Fatal(err)
	}
	want(t, got, runtime.Status{ID: spec.ID, Generation: 10, State: runtime.Running})
	s.guest(t, spec).hello()
}

func (s *suite) unknown(t *testing.T) {
	spec := s.spec(t)
	ctx := s.ctx(t)
	_, get := s.Driver.Get(ctx, spec.ID)
	_, start := s.Driver.Start(ctx, spec)
	_, stop := s.Driver.Stop(ctx, spec.ID, 1, runtime.StopOptions{})
	_, dial := s.Driver.Dial(ctx, spec.ID, 1)
	_, stats := s.Driver.Stats(ctx, spec.ID)
	update := s.Driver.Update(ctx, spec.ID, 1, spec.Resources)
	for name, err := range map[string]error{"get": get, "start": start, "stop": stop, "dial": dial, "stats": stats, "update": update} {
		wantError(t, name, err, errs.NotFound, "")
	}
	if err := s.Driver.Delete(ctx, spec.ID, 1); err != nil {
		t.Errorf("delete: %v", err)
	}
}
