package runtimetest

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"testing"
	"time"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/guest"
	"github.com/berthrun/berth/internal/id"
	"github.com/berthrun/berth/internal/runtime"
)

// await reads events until one of a sandbox is as wanted, and gives it.
func (s *suite) await(t *testing.T, events <-chan runtime.Event, id string, ok func(runtime.Status) bool) runtime.Status {
	t.Helper()
	deadline := time.After(s.Patience)
	var last runtime.Status
	for {
		select {
		case e, open := <-events:
			if !open {
				t.Fatalf("the watch ended; last event of %s: %+v", id, last)
			}
			if e.Status.ID != id {
				continue
			}
			if last = e.Status; ok(last) {
				return last
			}
		case <-deadline:
			t.Fatalf("no such event of %s; the last: %+v", id, last)
		}
	}
}

func in(state runtime.State) func(runtime.Status) bool {
	return func(st runtime.Status) bool { return st.State == state }
}

func (s *suite) watch(t *testing.T) {
	there, _ := s.made(t)
	ctx, cancel := context.WithCancel(s.ctx(t))
	defer cancel()
	events, err := s.Driver.Watch(ctx)
	if err != nil {
		t.Fatal(err)
	}
	first := s.await(t, events, there.ID, in(runtime.Running))
	want(t, first, runtime.Status{ID: there.ID, Generation: 1, State: runtime.Running})

	spec := s.spec(t)
	if _, err := s.Driver.Create(ctx, spec); err != nil {
		t.Fatal(err)
	}
	s.await(t, events, spec.ID, in(runtime.Running))
	if _, err := s.Driver.Stop(ctx, spec.ID, 2, runtime.StopOptions{}); err != nil {
		t.Fatal(err)
	}
	got := s.await(t, events, spec.ID, in(runtime.Stopped))
	want(t, got, runtime.Status{ID: spec.ID, Generation: 2, State: runtime.Stopped, Reason: runtime.ReasonRequested})
	if err := s.Driver.Delete(ctx, spec.ID, 3); err != nil {
		t.Fatal(err)
	}
	s.await(t, events, spec.ID, in(runtime.Deleted))

	cancel()
	deadline := time.After(s.Patience)
	for {
		select {
		case _, open := <-events:
			if !open {
				return
			}
		case <-deadline:
			t.Fatal("the channel stays open after the context ended")
		}
	}
}

func (s *suite) death(t *testing.T) {
	spec, _ := s.made(t)
	g := s.guest(t, spec)
	g.write("/root/kept", "kept")
	events, err := s.Driver.Watch(s.ctx(t))
	if err != nil {
		t.Fatal(err)
	}
	s.await(t, events, spec.ID, in(runtime.Running))
	s.Kill(t, spec.ID)
	got := s.await(t, events, spec.ID, in(runtime.Stopped))
	want(t, got, runtime.Status{ID: spec.ID, Generation: 1, State: runtime.Stopped, Reason: runtime.ReasonKilled})
	now, err := s.Driver.Get(s.ctx(t), spec.ID)
	if err != nil || now != got {
		t.Errorf("Get = %+v, %v; want what the event said, %+v", now, err, got)
	}
	spec.Generation = 2
	if _, err := s.Driver.Start(s.ctx(t), spec); err != nil {
		t.Fatalf("start after a death: %v", err)
	}
	g = s.guest(t, spec)
	g.hello()
	if text, err := g.read("/root/kept"); err != nil || text != "kept" {
		t.Errorf("the disk after a death: %q, %v", text, err)
	}
}

func (s *suite) dial(t *testing.T) {
	spec, _ := s.made(t)
	began := time.Now()
	if _, err := s.Driver.Dial(s.ctx(t), spec.ID, 9); err == nil {
		t.Error("a port that nobody listens on was dialed")
	} else if took := time.Since(began); took > s.Patience/2 {
		t.Errorf("the refusal took %v", took)
	}
	if _, err := s.Driver.Dial(s.ctx(t), spec.ID, 0); !errs.Is(err, errs.InvalidInput) {
		t.Errorf("dial port 0: %v, want %s", err, errs.InvalidInput)
	}
	// One that waits for an answer fails when the sandbox dies, with a call under way and without.
	idle, err := s.Driver.Dial(s.ctx(t), spec.ID, guest.Port)
	if err != nil {
		t.Fatal(err)
	}
	defer idle.Close()
	busy, err := s.Driver.Dial(s.ctx(t), spec.ID, guest.Port)
	if err != nil {
		t.Fatal(err)
	}
	defer busy.Close()
	req, _ := http.NewRequest(http.MethodGet, "http://guest/hello", nil)
	req.Header.Set(guest.TokenHeader, spec.GuestToken)
	if err := req.Write(busy); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadAtLeast(busy, make([]byte, 4096), 1); err != nil {
		t.Fatalf("read the answer: %v", err)
	}
	broken := make(chan error, 2)
	for _, c := range []net.Conn{idle, busy} {
		go func() {
			_, err := io.Copy(io.Discard, c)
			if err == nil {
				err = errors.New("ended in order")
			}
			broken <- err
		}()
	}
	s.Kill(t, spec.ID)
	for range 2 {
		select {
		case <-broken:
		case <-time.After(s.Patience):
			t.Fatal("a connection hangs after the death of its sandbox")
		}
	}
}

func (s *suite) statsAndUpdate(t *testing.T) {
	spec, _ := s.made(t)
	s.guest(t, spec).write("/root/big", string(make([]byte, 1<<20)))
	st, err := s.Driver.Stats(s.ctx(t), spec.ID)
	if err != nil {
		t.Fatal(err)
	}
	if st.CPUSeconds <= 0 || st.MemoryBytes <= 0 || st.MemoryBytes > 256<<20 || st.Pids <= 0 {
		t.Errorf("stats of a running sandbox: %+v", st)
	}
	res := spec.Resources
	res.VCPU, res.MemoryMiB = 2, 512
	if err := s.Driver.Update(s.ctx(t), spec.ID, 2, res); err != nil {
		t.Fatalf("Update: %v", err)
	}
	wantError(t, "update to nothing", s.Driver.Update(s.ctx(t), spec.ID, 3, runtime.Resources{}), errs.InvalidInput, "")
	got, err := s.Driver.Get(s.ctx(t), spec.ID)
	if err != nil {
		t.Fatal(err)
	}
	want(t, got, runtime.Status{ID: spec.ID, Generation: 2, State: runtime.Running})
	s.guest(t, spec).hello()
}

func (s *suite) pause(t *testing.T) {
	spec, _ := s.made(t)
	if !s.Driver.Capabilities().Pause {
		_, err := s.Driver.Pause(s.ctx(t), spec.ID, 2)
		wantError(t, "pause", err, errs.Unavailable, "not_supported")
		return
	}
	boot := s.guest(t, spec).hello().BootID
	for i := range 2 {
		st, err := s.Driver.Pause(s.ctx(t), spec.ID, 2)
		if err != nil {
			t.Fatalf("pause %d: %v", i, err)
		}
		want(t, st, runtime.Status{ID: spec.ID, Generation: 2, State: runtime.Paused, Depth: runtime.Frozen})
	}
	_, err := s.Driver.Dial(s.ctx(t), spec.ID, guest.Port)
	wantError(t, "dial a paused one", err, errs.InvalidState, "paused")
	for i := range 2 {
		st, err := s.Driver.Resume(s.ctx(t), spec.ID, 3)
		if err != nil {
			t.Fatalf("resume %d: %v", i, err)
		}
		want(t, st, runtime.Status{ID: spec.ID, Generation: 3, State: runtime.Running})
	}
	if got := s.guest(t, spec).hello().BootID; got != boot {
		t.Error("the guest was booted anew by a pause")
	}
	if _, err := s.Driver.Pause(s.ctx(t), spec.ID, 4); err != nil {
		t.Fatal(err)
	}
	st, err := s.Driver.Stop(s.ctx(t), spec.ID, 5, runtime.StopOptions{Grace: time.Second})
	if err != nil {
		t.Fatalf("stop a paused one: %v", err)
	}
	want(t, st, runtime.Status{ID: spec.ID, Generation: 5, State: runtime.Stopped, Reason: runtime.ReasonRequested})
}

func (s *suite) missing(t *testing.T) {
	spec, _ := s.made(t)
	c := s.Driver.Capabilities()
	if !c.Memory {
		_, err := s.Driver.Suspend(s.ctx(t), spec.ID, 2)
		wantError(t, "suspend", err, errs.Unavailable, "not_supported")
		_, err = s.Driver.Wake(s.ctx(t), spec)
		wantError(t, "wake", err, errs.Unavailable, "not_supported")
	}
	if !c.Saves {
		_, err := s.Driver.Save(s.ctx(t), spec.ID, 2, "snap_a", runtime.SaveOptions{})
		wantError(t, "save", err, errs.Unavailable, "not_supported")
		_, err = s.Driver.Clone(s.ctx(t), spec, "snap_a", runtime.CloneOptions{})
		wantError(t, "clone", err, errs.Unavailable, "not_supported")
	}
	if !c.Volumes {
		ctx, volume := s.ctx(t), id.New(id.Volume)
		_, volumes := s.Driver.Volumes(ctx)
		_, copies := s.Driver.Copies(ctx)
		_, create := s.Driver.Create(ctx, s.with(t, runtime.Mount{Volume: volume, Path: "/data"}))
		for name, err := range map[string]error{
			"volumes": volumes, "copies": copies, "create with a volume": create, "make volume": s.Driver.MakeVolume(ctx, volume, 1),
			"remove volume": s.Driver.RemoveVolume(ctx, volume), "copy volume": s.Driver.CopyVolume(ctx, volume, id.New(id.Backup)),
			"forget copy": s.Driver.ForgetCopy(ctx, id.New(id.Backup)),
		} {
			wantError(t, name, err, errs.Unavailable, "not_supported")
		}
	}
	s.guest(t, spec).hello()
}
