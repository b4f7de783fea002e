package runtimetest

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"testing"
	"time"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/guest"
	"github.com/berthrun/berth/internal/id"
	"github.com/berthrun/berth/internal/runtime"
)

// onDisk proves Suspend, Wake, Rewind and Settle.
func (s *suite) onDisk(t *testing.T) {
	s.each(t, []part{
		{"suspend and wake", s.suspendAndWake, false},
		{"suspend a frozen one", s.suspendFrozen, false},
		{"suspend again and again", s.suspendRepeated, false},
		{"stop and delete a suspended one", s.endSuspended, false},
		{"damaged memory", s.damagedMemory, true},
		{"rewind", s.rewind, false},
		{"rewind after a death", s.rewindDead, false},
		{"generations", s.suspendGenerations, true},
		{"wrong states", s.suspendStates, true},
		{"limits changed while asleep", s.suspendUpdate, false},
		{"connections", s.suspendConnections, true},
		{"many calls at once", s.crowd, false},
		{"calls that are given up", s.givenUp, true},
	})
}

func asleep(id string, generation int64) runtime.Status {
	return runtime.Status{ID: id, Generation: generation, State: runtime.Paused, Depth: runtime.OnDisk}
}

// suspend brings a sandbox to disk.
func (s *suite) suspend(t *testing.T, spec *runtime.Spec) {
	t.Helper()
	spec.Generation++
	st, err := s.Driver.Suspend(s.ctx(t), spec.ID, spec.Generation)
	if err != nil {
		t.Fatalf("Suspend: %v", err)
	}
	want(t, st, asleep(spec.ID, spec.Generation))
}

// wake brings one back, and waits for its guest.
func (s *suite) wake(t *testing.T, spec *runtime.Spec) *client {
	t.Helper()
	spec.Generation++
	st, err := s.Driver.Wake(s.ctx(t), *spec)
	if err != nil {
		t.Fatalf("Wake: %v", err)
	}
	want(t, st, runtime.Status{ID: spec.ID, Generation: spec.Generation, State: runtime.Running})
	g := s.guest(t, *spec)
	g.hello()
	return g
}

// wantAsleep checks that a sandbox is on disk and that nothing else of it is there.
func (s *suite) wantAsleep(t *testing.T, spec runtime.Spec) {
	t.Helper()
	st, err := s.Driver.Get(s.ctx(t), spec.ID)
	if err != nil {
		t.Fatal(err)
	}
	want(t, st, asleep(spec.ID, spec.Generation))
	_, err = s.Driver.Dial(s.ctx(t), spec.ID, guest.Port)
	wantError(t, "dial a suspended one", err, errs.InvalidState, "paused")
	if _, err = s.Driver.Stats(s.ctx(t), spec.ID); !errs.Is(err, errs.InvalidState) {
		t.Errorf("stats of a suspended one: %v, want %s", err, errs.InvalidState)
	}
	if s.Tasks != nil {
		if n := s.Tasks(t, spec.ID); n != 0 {
			t.Errorf("a suspended sandbox has %d processes", n)
		}
	}
}

func (s *suite) suspendAndWake(t *testing.T) {
	spec, _ := s.made(t)
	g := s.guest(t, spec)
	boot := g.hello().BootID
	g.write("/root/kept", "kept")
	g.count()
	events, err := s.Driver.Watch(s.ctx(t))
	if err != nil {
		t.Fatal(err)
	}
	s.await(t, events, spec.ID, in(runtime.Running))
	s.suspend(t, &spec)
	want(t, s.await(t, events, spec.ID, in(runtime.Paused)), asleep(spec.ID, spec.Generation))
	if st, err := s.Driver.Suspend(s.ctx(t), spec.ID, spec.Generation); err != nil || st.Depth != runtime.OnDisk {
		t.Errorf("suspend it again = %+v, %v", st, err)
	}
	s.wantAsleep(t, spec)
	g = s.wake(t, &spec)
	want(t, s.await(t, events, spec.ID, in(runtime.Running)), runtime.Status{ID: spec.ID, Generation: spec.Generation, State: runtime.Running})
	if st, err := s.Driver.Wake(s.ctx(t), spec); err != nil || st.State != runtime.Running {
		t.Errorf("wake it again = %+v, %v", st, err)
	}
	for range 2 {
		if err := s.Driver.Settle(s.ctx(t), spec.ID, spec.Generation); err != nil {
			t.Fatalf("Settle: %v", err)
		}
	}
	if got := g.hello().BootID; got != boot {
		t.Error("the guest was booted anew")
	}
	g.wantFile("/root/kept", "kept")
	g.counted(g.counted(0) + 3)
}

func (s *suite) suspendFrozen(t *testing.T) {
	spec, _ := s.made(t)
	g := s.guest(t, spec)
	boot := g.hello().BootID
	g.count()
	if s.Driver.Capabilities().Pause {
		spec.Generation++
		if _, err := s.Driver.Pause(s.ctx(t), spec.ID, spec.Generation); err != nil {
			t.Fatal(err)
		}
		if got := s.wake(t, &spec).hello().BootID; got != boot { // a frozen one can be woken too
			t.Error("the guest was booted anew")
		}
		if _, err := s.Driver.Pause(s.ctx(t), spec.ID, spec.Generation); err != nil {
			t.Fatal(err)
		}
	}
	s.suspend(t, &spec)
	if s.Driver.Capabilities().Pause {
		// It is as deep asleep as can be: a pause changes nothing, and only a wake brings it back.
		if st, err := s.Driver.Pause(s.ctx(t), spec.ID, spec.Generation); err != nil || st.Depth != runtime.OnDisk {
			t.Errorf("pause a suspended one = %+v, %v", st, err)
		}
		if _, err := s.Driver.Resume(s.ctx(t), spec.ID, spec.Generation); !errs.Is(err, errs.InvalidState) {
			t.Errorf("resume a suspended one: %v, want %s", err, errs.InvalidState)
		}
	}
	s.wantAsleep(t, spec)
	g = s.wake(t, &spec)
	if got := g.hello().BootID; got != boot {
		t.Error("the guest was booted anew")
	}
	g.counted(g.counted(0) + 3)
}

// suspendRepeated is what the field gets wrong: the second pause loses what was written after the first, or the second wake fails.
func (s *suite) suspendRepeated(t *testing.T) {
	spec, _ := s.made(t)
	g := s.guest(t, spec)
	boot := g.hello().BootID
	g.count()
	for i := range 4 {
		g.write(fmt.Sprintf("/root/round%d", i), fmt.Sprint(i))
		g.write("/root/same", fmt.Sprint("in round ", i))
		before := g.counted(0)
		if i%2 == 1 && s.Driver.Capabilities().Pause {
			if _, err := s.Driver.Pause(s.ctx(t), spec.ID, spec.Generation); err != nil {
				t.Fatal(err)
			}
		}
		s.suspend(t, &spec)
		g = s.wake(t, &spec)
		if i != 2 { // once a wake is not settled when the next pause comes
			if err := s.Driver.Settle(s.ctx(t), spec.ID, spec.Generation); err != nil {
				t.Fatal(err)
			}
		}
		for j := range i + 1 {
			g.wantFile(fmt.Sprintf("/root/round%d", j), fmt.Sprint(j))
		}
		g.wantFile("/root/same", fmt.Sprint("in round ", i))
		g.counted(before + 2)
	}
	if got := g.hello().BootID; got != boot {
		t.Error("the guest was booted anew")
	}
}

func (s *suite) endSuspended(t *testing.T) {
	spec, _ := s.made(t)
	g := s.guest(t, spec)
	boot := g.hello().BootID
	g.write("/root/kept", "kept")
	g.count()
	s.suspend(t, &spec)
	events, err := s.Driver.Watch(s.ctx(t))
	if err != nil {
		t.Fatal(err)
	}
	want(t, s.await(t, events, spec.ID, in(runtime.Paused)), asleep(spec.ID, spec.Generation))
	spec.Generation++
	for range 2 {
		st, err := s.Driver.Stop(s.ctx(t), spec.ID, spec.Generation, runtime.StopOptions{Grace: time.Second})
		if err != nil {
			t.Fatalf("stop a suspended one: %v", err)
		}
		want(t, st, runtime.Status{ID: spec.ID, Generation: spec.Generation, State: runtime.Stopped, Reason: runtime.ReasonRequested})
	}
	s.await(t, events, spec.ID, in(runtime.Stopped))
	_, err = s.Driver.Wake(s.ctx(t), spec)
	wantError(t, "wake a stopped one", err, errs.InvalidState, "stopped")
	if _, err := s.Driver.Start(s.ctx(t), spec); err != nil {
		t.Fatalf("start it on its disk: %v", err)
	}
	g = s.guest(t, spec)
	if got := g.hello().BootID; got == boot {
		t.Error("it was not booted anew")
	}
	g.wantFile("/root/kept", "kept")
	s.suspend(t, &spec)
	spec.Generation++
	for range 2 {
		if err := s.Driver.Delete(s.ctx(t), spec.ID, spec.Generation); err != nil {
			t.Fatalf("delete a suspended one: %v", err)
		}
	}
	s.await(t, events, spec.ID, in(runtime.Deleted))
	_, err = s.Driver.Wake(s.ctx(t), spec)
	wantError(t, "wake a deleted one", err, errs.NotFound, "")
	s.nothingLeft(t)
}

func (s *suite) damagedMemory(t *testing.T) {
	if s.Damage == nil {
		t.Skip("the harness damages nothing")
	}
	for how, reason := range map[string]string{"truncated": runtime.MemoryDamaged, "missing": runtime.MemoryMissing, "foreign": runtime.MemoryForeign} {
		t.Run(how, func(t *testing.T) {
			spec, _ := s.made(t)
			g := s.guest(t, spec)
			boot := g.hello().BootID
			g.write("/root/kept", "kept")
			s.suspend(t, &spec)
			s.Damage(t, spec.ID, how)
			for range 2 {
				spec.Generation++
				_, err := s.Driver.Wake(s.ctx(t), spec)
				wantError(t, "wake it", err, errs.Unavailable, reason)
				s.wantAsleep(t, spec)
			}
			spec.Generation++
			if _, err := s.Driver.Stop(s.ctx(t), spec.ID, spec.Generation, runtime.StopOptions{}); err != nil {
				t.Fatal(err)
			}
			if _, err := s.Driver.Start(s.ctx(t), spec); err != nil {
				t.Fatalf("start it on its disk: %v", err)
			}
			g = s.guest(t, spec)
			if got := g.hello().BootID; got == boot {
				t.Error("it was not booted anew")
			}
			g.wantFile("/root/kept", "kept")
			s.suspend(t, &spec)
			s.wake(t, &spec).wantFile("/root/kept", "kept")
			s.suspend(t, &spec)
			s.Damage(t, spec.ID, how)
			spec.Generation++
			if err := s.Driver.Delete(s.ctx(t), spec.ID, spec.Generation); err != nil {
				t.Fatal(err)
			}
			s.nothingLeft(t)
		})
	}
}

func (s *suite) rewind(t *testing.T) {
	spec, _ := s.made(t)
	_, err := s.Driver.Rewind(s.ctx(t), spec.ID, spec.Generation)
	wantError(t, "rewind one that never slept", err, errs.InvalidState, "settled")
	if !s.rewinds(t) {
		return
	}
	g := s.guest(t, spec)
	boot := g.hello().BootID
	g.write("/root/text", "before")
	if s.Forked {
		g.count()
	}
	s.suspend(t, &spec)
	for round := range 3 {
		g = s.wake(t, &spec)
		g.wantFile("/root/text", "before")
		g.wantFile("/root/new", "")
		var at int
		if s.Forked {
			at = g.counted(0)
			g.counted(at + 3)
		}
		g.write("/root/text", "after")
		g.write("/root/new", "new")
		g.configure(guest.Configure{Token: id.New("tok")})
		spec.Generation++
		for range 2 {
			st, err := s.Driver.Rewind(s.ctx(t), spec.ID, spec.Generation)
			if err != nil {
				t.Fatalf("rewind %d: %v", round, err)
			}
			want(t, st, asleep(spec.ID, spec.Generation))
		}
		s.wantAsleep(t, spec)
	}
	g = s.wake(t, &spec) // with the token of then
	if got := g.hello().BootID; got != boot {
		t.Error("the guest was booted anew")
	}
	g.wantFile("/root/text", "before")
	g.wantFile("/root/new", "")
	if s.Forked {
		g.counted(g.counted(0) + 3)
	}
	if err := s.Driver.Settle(s.ctx(t), spec.ID, spec.Generation); err != nil {
		t.Fatal(err)
	}
	g.write("/root/text", "later")
	_, err = s.Driver.Rewind(s.ctx(t), spec.ID, spec.Generation)
	wantError(t, "rewind a settled one", err, errs.InvalidState, "settled")
	g.hello()
	g.wantFile("/root/text", "later")
}

// rewinds reports whether the driver keeps what Rewind needs. It may do without where that would take long, and says so then, with the sandbox as it was.
func (s *suite) rewinds(t *testing.T) bool {
	t.Helper()
	spec, _ := s.made(t)
	s.suspend(t, &spec)
	g := s.wake(t, &spec)
	g.write("/root/text", "after")
	spec.Generation++
	_, err := s.Driver.Rewind(s.ctx(t), spec.ID, spec.Generation)
	if err == nil {
		s.wantAsleep(t, spec)
		return true
	}
	wantError(t, "rewind", err, errs.InvalidState, "settled")
	if s.Driver.Capabilities().Instant {
		t.Error("a driver that copies disks at once keeps none for a rewind")
	}
	g.hello()
	g.wantFile("/root/text", "after")
	return false
}

// rewindDead goes back to the memory of one that was woken and died before anyone was content with it.
func (s *suite) rewindDead(t *testing.T) {
	if !s.rewinds(t) {
		return
	}
	spec, _ := s.made(t)
	g := s.guest(t, spec)
	boot := g.hello().BootID
	g.write("/root/text", "before")
	s.suspend(t, &spec)
	g = s.wake(t, &spec)
	g.write("/root/text", "after")
	events, err := s.Driver.Watch(s.ctx(t))
	if err != nil {
		t.Fatal(err)
	}
	s.await(t, events, spec.ID, in(runtime.Running))
	s.Kill(t, spec.ID)
	s.await(t, events, spec.ID, in(runtime.Stopped))
	spec.Generation++
	st, err := s.Driver.Rewind(s.ctx(t), spec.ID, spec.Generation)
	if err != nil {
		t.Fatalf("rewind a dead one: %v", err)
	}
	want(t, st, asleep(spec.ID, spec.Generation))
	s.await(t, events, spec.ID, in(runtime.Paused))
	g = s.wake(t, &spec)
	if got := g.hello().BootID; got != boot {
		t.Error("the guest was booted anew")
	}
	g.wantFile("/root/text", "before")
}

func (s *suite) suspendGenerations(t *testing.T) {
	spec, _ := s.made(t)
	spec.Generation = 9
	s.suspend(t, &spec)
	old, ctx := spec, s.ctx(t)
	old.Generation = 9
	stale := func(st runtime.State) {
		t.Helper()
		calls := map[string]func() error{
			"suspend": func() error { _, err := s.Driver.Suspend(ctx, old.ID, old.Generation); return err },
			"wake":    func() error { _, err := s.Driver.Wake(ctx, old); return err },
			"rewind":  func() error { _, err := s.Driver.Rewind(ctx, old.ID, old.Generation); return err },
			"settle":  func() error { return s.Driver.Settle(ctx, old.ID, old.Generation) },
			"stop":    func() error { _, err := s.Driver.Stop(ctx, old.ID, old.Generation, runtime.StopOptions{}); return err },
			"delete":  func() error { return s.Driver.Delete(ctx, old.ID, old.Generation) },
		}
		if s.Driver.Capabilities().Saves {
			calls["save"] = func() error {
				_, err := s.Driver.Save(ctx, old.ID, old.Generation, "stale", runtime.SaveOptions{})
				return err
			}
		}
		for name, call := range calls {
			wantError(t, name, call(), errs.InvalidState, "stale_generation")
		}
		if got, err := s.Driver.Get(ctx, spec.ID); err != nil || got.State != st || got.Generation != spec.Generation {
			t.Errorf("Get = %+v, %v; want %s of generation %d", got, err, st, spec.Generation)
		}
	}
	stale(runtime.Paused)
	s.wake(t, &spec)
	stale(runtime.Running)
	if !s.rewinds(t) {
		return
	}
	if _, err := s.Driver.Rewind(ctx, spec.ID, spec.Generation); err != nil {
		t.Errorf("a stale settle let go of what a rewind needs: %v", err)
	}
}

func (s *suite) suspendStates(t *testing.T) {
	spec := s.spec(t)
	ctx := s.ctx(t)
	_, suspend := s.Driver.Suspend(ctx, spec.ID, 1)
	_, wake := s.Driver.Wake(ctx, spec)
	_, rewind := s.Driver.Rewind(ctx, spec.ID, 1)
	settle := s.Driver.Settle(ctx, spec.ID, 1)
	for name, err := range map[string]error{"suspend": suspend, "wake": wake, "rewind": rewind, "settle": settle} {
		wantError(t, name+" an unknown one", err, errs.NotFound, "")
	}
	if _, err := s.Driver.Create(ctx, spec); err != nil {
		t.Fatal(err)
	}
	s.guest(t, spec).hello()
	if err := s.Driver.Settle(ctx, spec.ID, spec.Generation); err != nil {
		t.Errorf("settle what never slept: %v", err)
	}
	s.suspend(t, &spec)
	_, err := s.Driver.Start(ctx, spec)
	wantError(t, "start a suspended one", err, errs.InvalidState, "paused")
	_, err = s.Driver.Create(ctx, spec)
	wantError(t, "create a suspended one", err, errs.AlreadyExists, "paused")
	s.wantAsleep(t, spec)
	spec.Generation++
	if _, err := s.Driver.Stop(ctx, spec.ID, spec.Generation, runtime.StopOptions{}); err != nil {
		t.Fatal(err)
	}
	_, err = s.Driver.Suspend(ctx, spec.ID, spec.Generation)
	wantError(t, "suspend a stopped one", err, errs.InvalidState, "stopped")
	_, err = s.Driver.Rewind(ctx, spec.ID, spec.Generation)
	wantError(t, "rewind a stopped one", err, errs.InvalidState, "settled")
}

// suspendUpdate changes the limits of a sandbox before and while it sleeps, which keeps no wake and no copy from working.
func (s *suite) suspendUpdate(t *testing.T) {
	spec, _ := s.made(t)
	boot := s.guest(t, spec).hello().BootID
	update := func(memory int64) {
		t.Helper()
		spec.Generation++
		spec.Resources.MemoryMiB, spec.Resources.DiskGiB = memory, 2
		if err := s.Driver.Update(s.ctx(t), spec.ID, spec.Generation, spec.Resources); err != nil {
			t.Fatalf("Update: %v", err)
		}
	}
	awake := func() {
		t.Helper()
		if got := s.wake(t, &spec).hello().BootID; got != boot {
			t.Error("the guest was booted anew")
		}
	}
	update(384)
	s.suspend(t, &spec)
	awake()
	s.suspend(t, &spec)
	update(512)
	s.wantAsleep(t, spec)
	awake()
	s.suspend(t, &spec)
	update(256)
	awake()
	update(320)
	if s.Driver.Capabilities().Saves {
		copied, _ := s.copied(t, spec, s.save(t, spec, runtime.SaveOptions{Memory: true}), runtime.CloneOptions{})
		if got := s.withToken(t, copied, spec.GuestToken).hello().BootID; got != boot {
			t.Error("the copy was booted anew")
		}
	}
}

// suspendConnections: one that was open before lives on or breaks, and never hangs.
func (s *suite) suspendConnections(t *testing.T) {
	spec, _ := s.made(t)
	conn, err := s.Driver.Dial(s.ctx(t), spec.ID, guest.Port)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	s.suspend(t, &spec)
	s.wake(t, &spec)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		req, _ := http.NewRequestWithContext(context.Background(), http.MethodGet, "http://guest/hello", nil)
		req.Header.Set(guest.TokenHeader, spec.GuestToken)
		if req.Write(conn) == nil {
			_, _ = io.ReadAtLeast(conn, make([]byte, 4096), 1)
		}
	}()
	select {
	case <-ended:
	case <-time.After(s.Patience):
		t.Error("a connection from before hangs")
	}
}
