package runtimetest

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/guest"
	"github.com/berthrun/berth/internal/id"
	"github.com/berthrun/berth/internal/runtime"
)

// saves proves Save, Clone, Saves and Forget.
func (s *suite) saves(t *testing.T) {
	s.each(t, []part{
		{"of every state", s.saveStates, true},
		{"again", s.saveAgain, false},
		{"dialed", s.saveDialed, false},
		{"refused", s.saveRefused, true},
		{"clone", s.clone, false},
		{"clone refused", s.cloneRefused, true},
		{"clone twice at once", func(t *testing.T) { s.cloneMany(t, 2) }, true},
		{"clone five times at once", func(t *testing.T) { s.cloneMany(t, 5) }, false},
		{"clone of a deleted one", s.cloneOfDeleted, false},
		{"clone of a clone", s.cloneOfClone, true},
		{"clone that sleeps", s.cloneSleeps, false},
		{"damaged", s.saveDamaged, true},
		{"forget", s.forget, false},
	})
}

// save keeps a sandbox under a new name, until the end of the test.
func (s *suite) save(t *testing.T, spec runtime.Spec, opts runtime.SaveOptions) string {
	t.Helper()
	name := id.New("snap")
	s.forgotten(t, name)
	got, err := s.Driver.Save(s.ctx(t), spec.ID, spec.Generation, name, opts)
	if err != nil {
		t.Fatalf("Save: %v", err)
	}
	s.wantSave(t, got, spec, name, opts.Memory)
	return name
}

// forgotten forgets a save at the end of the test.
func (s *suite) forgotten(t *testing.T, name string) {
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), s.Patience)
		defer cancel()
		if err := s.Driver.Forget(ctx, name); err != nil {
			t.Errorf("forget at the end: %v", err)
		}
	})
}

func (s *suite) wantSave(t *testing.T, got runtime.Save, of runtime.Spec, name string, memory bool) {
	t.Helper()
	if got.Name != name || got.SandboxID != of.ID || got.Image != of.Image || got.Resources != of.Resources || got.Memory != memory || got.At.IsZero() {
		t.Errorf("save = %+v; want %s of %+v, memory %v", got, name, of, memory)
	}
	if memory != (got.MemoryBytes > 0) || memory != (got.Runtime != "") || memory != (got.Guest != "") {
		t.Errorf("save with memory %v has %d bytes of runtime %q, guest %q", memory, got.MemoryBytes, got.Runtime, got.Guest)
	}
	all, err := s.Driver.Saves(s.ctx(t))
	if err != nil {
		t.Fatal(err)
	}
	for _, one := range all {
		if one.Name == name {
			one.At, got.At = one.At.UTC(), got.At.UTC()
			if one != got {
				t.Errorf("Saves has %+v, want %+v", one, got)
			}
			return
		}
	}
	t.Errorf("Saves = %+v, without %s", all, name)
}

// copied makes a sandbox of a save. Its guest has the token of the sandbox that was saved, where it has that memory.
func (s *suite) copied(t *testing.T, of runtime.Spec, name string, opts runtime.CloneOptions) (runtime.Spec, runtime.Status) {
	t.Helper()
	spec := s.spec(t)
	spec.Resources, spec.Image = of.Resources, of.Image
	st, err := s.Driver.Clone(s.ctx(t), spec, name, opts)
	if err != nil {
		t.Fatalf("Clone: %v", err)
	}
	want(t, st, runtime.Status{ID: spec.ID, Generation: spec.Generation, State: runtime.Running})
	return spec, st
}

// withToken is the guest of a copy, which is asked with the token of another.
func (s *suite) withToken(t *testing.T, spec runtime.Spec, token string) *client {
	t.Helper()
	spec.GuestToken = token
	return s.guest(t, spec)
}

// saveDialed connects to a sandbox again and again while it is saved: it goes on in a moment, and is reached then.
func (s *suite) saveDialed(t *testing.T) {
	spec, _ := s.made(t)
	s.guest(t, spec).hello()
	saved := make(chan error, 1)
	go func() {
		var failed error
		for range 3 {
			name := id.New("snap")
			_, err := s.Driver.Save(t.Context(), spec.ID, spec.Generation, name, runtime.SaveOptions{Memory: s.Driver.Capabilities().Memory, Brief: true})
			failed = errors.Join(failed, err, s.Driver.Forget(t.Context(), name))
		}
		saved <- failed
	}()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		if conn, err := s.Driver.Dial(s.ctx(t), spec.ID, guest.Port); err != nil {
			t.Errorf("Dial while it is saved: %v", err)
		} else {
			conn.Close()
		}
		select {
		case err := <-saved:
			if err != nil {
				t.Error(err)
			}
			return
		case <-tick.C:
		}
	}
}

// saveStates saves a sandbox in each of its states, which it stays in, and tries what was saved.
func (s *suite) saveStates(t *testing.T) {
	can := s.Driver.Capabilities()
	states := map[string]func(t *testing.T, spec *runtime.Spec){"running": func(*testing.T, *runtime.Spec) {}}
	states["stopped"] = func(t *testing.T, spec *runtime.Spec) {
		if _, err := s.Driver.Stop(s.ctx(t), spec.ID, spec.Generation, runtime.StopOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	if can.Pause {
		states["frozen"] = func(t *testing.T, spec *runtime.Spec) {
			if _, err := s.Driver.Pause(s.ctx(t), spec.ID, spec.Generation); err != nil {
				t.Fatal(err)
			}
		}
	}
	if can.Memory {
		states["suspended"] = s.suspend
		states["woken"] = func(t *testing.T, spec *runtime.Spec) { s.suspend(t, spec); s.wake(t, spec) }
	}
	for state, bring := range states {
		t.Run(state, func(t *testing.T) {
			spec, _ := s.made(t)
			g := s.guest(t, spec)
			boot := g.hello().BootID
			g.write("/root/text", "before")
			if s.Forked {
				g.count()
			}
			bring(t, &spec)
			before, err := s.Driver.Get(s.ctx(t), spec.ID)
			if err != nil {
				t.Fatal(err)
			}
			disk := s.save(t, spec, runtime.SaveOptions{})
			var memory string
			switch {
			case state == "stopped":
				_, err := s.Driver.Save(s.ctx(t), spec.ID, spec.Generation, id.New("snap"), runtime.SaveOptions{Memory: true})
				if can.Memory {
					wantError(t, "memory of a stopped one", err, errs.InvalidState, "stopped")
				} else {
					wantError(t, "memory of a stopped one", err, errs.Unavailable, "not_supported")
				}
			case can.Memory:
				memory = s.save(t, spec, runtime.SaveOptions{Memory: true, Brief: state == "frozen"})
			}
			after, err := s.Driver.Get(s.ctx(t), spec.ID)
			if err != nil || after != before {
				t.Errorf("after the save = %+v, %v; want as before, %+v", after, err, before)
			}
			// What it does afterwards is in no save.
			if after.State == runtime.Running {
				g.write("/root/text", "after")
			}

			booted, _ := s.copied(t, spec, disk, runtime.CloneOptions{})
			c := s.guest(t, booted)
			if got := c.hello().BootID; got == boot {
				t.Error("a copy of a disk was not booted")
			}
			c.wantFile("/root/text", "before")
			if memory != "" {
				woken, _ := s.copied(t, spec, memory, runtime.CloneOptions{})
				c = s.withToken(t, woken, spec.GuestToken)
				if got := c.hello().BootID; got != boot {
					t.Error("a copy with memory was booted anew")
				}
				c.wantFile("/root/text", "before")
				if s.Forked {
					c.counted(c.counted(0) + 3)
				}
				booted, _ = s.copied(t, spec, memory, runtime.CloneOptions{FromDisk: true})
				c = s.guest(t, booted)
				if got := c.hello().BootID; got == boot {
					t.Error("a copy from the disk was not booted")
				}
				c.wantFile("/root/text", "before")
			}
			s.wantGoesOn(t, spec, after, boot)
		})
	}
}

// wantGoesOn brings a sandbox back from whatever state it is in and looks whether it is whole.
func (s *suite) wantGoesOn(t *testing.T, spec runtime.Spec, st runtime.Status, boot string) {
	t.Helper()
	text := "before"
	switch {
	case st.State == runtime.Stopped:
		if _, err := s.Driver.Start(s.ctx(t), spec); err != nil {
			t.Fatal(err)
		}
		boot = ""
	case st.Depth == runtime.Frozen:
		if _, err := s.Driver.Resume(s.ctx(t), spec.ID, spec.Generation); err != nil {
			t.Fatal(err)
		}
	case st.Depth == runtime.OnDisk:
		s.wake(t, &spec)
	default:
		text = "after"
	}
	g := s.guest(t, spec)
	if got := g.hello().BootID; boot != "" && got != boot {
		t.Error("the sandbox that was saved was booted anew")
	}
	g.wantFile("/root/text", text)
	if s.Forked && boot != "" {
		g.counted(g.counted(0) + 3)
	}
}

func (s *suite) saveAgain(t *testing.T) {
	spec, _ := s.made(t)
	g := s.guest(t, spec)
	g.write("/root/text", "first")
	name, opts := id.New("snap"), runtime.SaveOptions{Memory: s.Driver.Capabilities().Memory}
	s.forgotten(t, name)
	var wg sync.WaitGroup
	ctx, got, failed := s.ctx(t), make([]runtime.Save, 3), make([]error, 3)
	for i := range got {
		wg.Go(func() { got[i], failed[i] = s.Driver.Save(ctx, spec.ID, spec.Generation, name, opts) })
	}
	wg.Wait()
	g.write("/root/text", "second")
	again, err := s.Driver.Save(ctx, spec.ID, spec.Generation, name, opts)
	if err != nil {
		t.Fatal(err)
	}
	s.wantSave(t, again, spec, name, opts.Memory)
	for i := range got {
		if failed[i] != nil || !sameSave(got[i], again) {
			t.Errorf("save %d at once = %+v, %v; want %+v", i, got[i], failed[i], again)
		}
	}
	copied, _ := s.copied(t, spec, name, runtime.CloneOptions{FromDisk: true})
	c := s.guest(t, copied)
	c.hello()
	c.wantFile("/root/text", "first")
}

func sameSave(a, b runtime.Save) bool {
	a.At, b.At = a.At.UTC(), b.At.UTC()
	return a == b
}

func (s *suite) saveRefused(t *testing.T) {
	spec, _ := s.made(t)
	for _, name := range []string{"", "../snap", "a/b", "."} {
		_, err := s.Driver.Save(s.ctx(t), spec.ID, spec.Generation, name, runtime.SaveOptions{})
		wantError(t, "save as "+name, err, errs.InvalidInput, "")
	}
	_, err := s.Driver.Save(s.ctx(t), id.New(id.Sandbox), 1, id.New("snap"), runtime.SaveOptions{})
	wantError(t, "save an unknown one", err, errs.NotFound, "")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := s.Driver.Save(ctx, spec.ID, spec.Generation, id.New("snap"), runtime.SaveOptions{}); !errors.Is(err, context.Canceled) {
		t.Errorf("Save = %v, want that it was cancelled", err)
	}
	if all, err := s.Driver.Saves(s.ctx(t)); err != nil || len(all) != 0 {
		t.Errorf("Saves = %+v, %v; want none", all, err)
	}
	s.guest(t, spec).hello()
}

func (s *suite) clone(t *testing.T) {
	spec, first := s.made(t)
	g := s.guest(t, spec)
	boot := g.hello().BootID
	g.write("/root/text", "before")
	opts := runtime.SaveOptions{Memory: s.Driver.Capabilities().Memory}
	name := s.save(t, spec, opts)
	events, err := s.Driver.Watch(s.ctx(t))
	if err != nil {
		t.Fatal(err)
	}
	copied, st := s.copied(t, spec, name, runtime.CloneOptions{})
	want(t, s.await(t, events, copied.ID, in(runtime.Running)), runtime.Status{ID: copied.ID, Generation: 1, State: runtime.Running})
	if st.Address == first.Address {
		t.Errorf("the copy has the address of the original, %s", st.Address)
	}
	token := copied.GuestToken
	if opts.Memory {
		token = spec.GuestToken
	}
	c := s.withToken(t, copied, token)
	if got := c.hello().BootID; (got == boot) != opts.Memory {
		t.Errorf("the copy has the boot id %s, the original %s", got, boot)
	}
	again, err := s.Driver.Clone(s.ctx(t), copied, name, runtime.CloneOptions{})
	if err != nil || again != st {
		t.Errorf("the same clone again = %+v, %v; want %+v", again, err, st)
	}
	// From here on they have nothing in common.
	c.configure(guest.Configure{Token: copied.GuestToken, Entropy: []byte(id.New("ent"))})
	s.guest(t, copied).hello()
	if opts.Memory {
		if code, _, err := s.withToken(t, copied, token).do("GET", "/hello", nil); err != nil || code != 401 {
			t.Errorf("the copy still takes the token of the original: %d, %v", code, err)
		}
	}
	c.write("/root/text", "of the copy")
	c.write("/root/new", "new")
	g.wantFile("/root/text", "before")
	g.wantFile("/root/new", "")
	g.write("/root/text", "of the original")
	c.wantFile("/root/text", "of the copy")
	if g.random() == c.random() {
		t.Error("the copy has the random numbers of the original")
	}
	s.Kill(t, spec.ID)
	s.await(t, events, spec.ID, in(runtime.Stopped))
	c.hello()
	// A copy is a sandbox like any other: it stops and starts on its disk.
	if _, err := s.Driver.Stop(s.ctx(t), copied.ID, 2, runtime.StopOptions{Grace: time.Second}); err != nil {
		t.Fatal(err)
	}
	copied.Generation = 3
	_, err = s.Driver.Clone(s.ctx(t), copied, name, runtime.CloneOptions{})
	wantError(t, "clone to a stopped one", err, errs.AlreadyExists, "stopped")
	if _, err := s.Driver.Start(s.ctx(t), copied); err != nil {
		t.Fatal(err)
	}
	c = s.guest(t, copied)
	c.hello()
	c.wantFile("/root/text", "of the copy")
}

func (s *suite) cloneRefused(t *testing.T) {
	from, _ := s.made(t)
	name := s.save(t, from, runtime.SaveOptions{})
	for what, tt := range map[string]struct {
		change func(*runtime.Spec)
		name   string
		code   errs.Code
	}{
		"unknown save":     {func(*runtime.Spec) {}, id.New("snap"), errs.NotFound},
		"a path as save":   {func(*runtime.Spec) {}, "../" + name, errs.NotFound},
		"no memory":        {func(sp *runtime.Spec) { sp.Resources.MemoryMiB = 0 }, name, errs.InvalidInput},
		"a path as id":     {func(sp *runtime.Spec) { sp.ID = "../../etc" }, name, errs.InvalidInput},
		"no network":       {func(sp *runtime.Spec) { sp.Network = "lan" }, name, errs.InvalidInput},
		"another image":    {func(sp *runtime.Spec) { sp.Image = "nosuchimage" }, name, errs.NotFound},
		"older generation": {func(sp *runtime.Spec) { sp.ID, sp.Generation = from.ID, 0 }, name, errs.InvalidState},
	} {
		t.Run(what, func(t *testing.T) {
			spec := s.spec(t)
			tt.change(&spec)
			_, err := s.Driver.Clone(s.ctx(t), spec, tt.name, runtime.CloneOptions{})
			if e := errs.CodeOf(err); e != tt.code && (what != "a path as save" || e != errs.InvalidInput) {
				t.Errorf("Clone: %v with code %s, want %s", err, e, tt.code)
			}
			if all, err := s.Driver.List(s.ctx(t)); err != nil || len(all) != 1 {
				t.Errorf("List = %v, %v; want only the one that was saved", all, err)
			}
		})
	}
	s.guest(t, from).hello()
}

// cloneMany makes copies at once: each has its own disk, address, token and random numbers, and the original goes on.
func (s *suite) cloneMany(t *testing.T, n int) {
	from, first := s.made(t)
	g := s.guest(t, from)
	g.count()
	g.write("/root/me", from.ID)
	opts := runtime.SaveOptions{Memory: s.Driver.Capabilities().Memory, Brief: true}
	name := s.save(t, from, opts)
	specs := make([]runtime.Spec, n)
	for i := range specs {
		specs[i] = s.spec(t)
	}
	var wg sync.WaitGroup
	ctx, got, failed := s.ctx(t), make([]runtime.Status, n), make([]error, n)
	for i, spec := range specs {
		wg.Go(func() { got[i], failed[i] = s.Driver.Clone(ctx, spec, name, runtime.CloneOptions{}) })
	}
	wg.Wait()
	addresses, random, guests := map[string]bool{first.Address: true}, map[string]bool{}, make([]*client, n)
	for i, spec := range specs {
		if failed[i] != nil {
			t.Fatalf("clone %d: %v", i, failed[i])
		}
		want(t, got[i], runtime.Status{ID: spec.ID, Generation: 1, State: runtime.Running})
		if addresses[got[i].Address] {
			t.Errorf("two sandboxes have the address %s", got[i].Address)
		}
		addresses[got[i].Address] = true
		token := spec.GuestToken
		if opts.Memory {
			token = from.GuestToken
		}
		c := s.withToken(t, spec, token)
		c.hello()
		c.configure(guest.Configure{Token: spec.GuestToken, Entropy: []byte(id.New("ent"))})
		c.wantFile("/root/me", from.ID)
		c.write("/root/me", spec.ID)
		if r := c.random(); random[r] {
			t.Error("two copies have the same random numbers")
		} else {
			random[r] = true
		}
		guests[i] = c
	}
	for i, c := range guests {
		c.wantFile("/root/me", specs[i].ID)
		if s.Forked && opts.Memory {
			c.counted(c.counted(0) + 3)
		}
	}
	g.wantFile("/root/me", from.ID)
	g.counted(g.counted(0) + 3)
}

func (s *suite) cloneOfDeleted(t *testing.T) {
	from, _ := s.made(t)
	g := s.guest(t, from)
	boot := g.hello().BootID
	g.write("/root/text", "before")
	opts := runtime.SaveOptions{Memory: s.Driver.Capabilities().Memory}
	name := s.save(t, from, opts)
	from.Generation++
	if err := s.Driver.Delete(s.ctx(t), from.ID, from.Generation); err != nil {
		t.Fatal(err)
	}
	copied, _ := s.copied(t, from, name, runtime.CloneOptions{})
	token := copied.GuestToken
	if opts.Memory {
		token = from.GuestToken
	}
	c := s.withToken(t, copied, token)
	if got := c.hello().BootID; (got == boot) != opts.Memory {
		t.Errorf("the copy has the boot id %s, the original had %s", got, boot)
	}
	c.wantFile("/root/text", "before")
	// The old id is free again, for a copy too.
	from.Generation++
	if _, err := s.Driver.Clone(s.ctx(t), from, name, runtime.CloneOptions{}); err != nil {
		t.Fatalf("clone to the id of the original: %v", err)
	}
	s.guest(t, from).hello()
}

func (s *suite) cloneOfClone(t *testing.T) {
	spec, _ := s.made(t)
	token := spec.GuestToken
	opts := runtime.SaveOptions{Memory: s.Driver.Capabilities().Memory}
	for i, path := range []string{"/root/a", "/root/b", "/root/c"} {
		g := s.withToken(t, spec, token)
		g.hello()
		g.write(path, path)
		if i == 0 && s.Forked {
			g.count()
		}
		spec, _ = s.copied(t, spec, s.save(t, spec, opts), runtime.CloneOptions{})
		if !opts.Memory {
			token = spec.GuestToken
		}
	}
	g := s.withToken(t, spec, token)
	g.hello()
	for _, path := range []string{"/root/a", "/root/b", "/root/c"} {
		g.wantFile(path, path)
	}
	if s.Forked && opts.Memory {
		g.counted(g.counted(0) + 3)
	}
}

// cloneSleeps suspends and wakes a copy: what it has of its save is in its own memory file.
func (s *suite) cloneSleeps(t *testing.T) {
	if !s.Driver.Capabilities().Memory {
		t.Skip("the driver keeps no memory")
	}
	from, _ := s.made(t)
	g := s.guest(t, from)
	boot := g.hello().BootID
	g.write("/root/text", "before")
	if s.Forked {
		g.count()
	}
	name := s.save(t, from, runtime.SaveOptions{Memory: true, Brief: true})
	spec, _ := s.copied(t, from, name, runtime.CloneOptions{})
	c := s.withToken(t, spec, from.GuestToken)
	c.hello()
	c.configure(guest.Configure{Token: spec.GuestToken})
	c.write("/root/new", "new")
	if err := s.Driver.Forget(s.ctx(t), name); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		s.suspend(t, &spec)
		c = s.wake(t, &spec)
	}
	if got := c.hello().BootID; got != boot {
		t.Error("the copy was booted anew")
	}
	c.wantFile("/root/text", "before")
	c.wantFile("/root/new", "new")
	if s.Forked {
		c.counted(c.counted(0) + 3)
	}
	g.hello()
	g.wantFile("/root/new", "")
}

func (s *suite) saveDamaged(t *testing.T) {
	if s.Damage == nil || !s.Driver.Capabilities().Memory {
		t.Skip("the harness damages nothing")
	}
	for how, reason := range map[string]string{"truncated": runtime.MemoryDamaged, "missing": runtime.MemoryMissing, "foreign": runtime.MemoryForeign} {
		t.Run(how, func(t *testing.T) {
			from, _ := s.made(t)
			g := s.guest(t, from)
			g.write("/root/text", "before")
			name := s.save(t, from, runtime.SaveOptions{Memory: true})
			s.Damage(t, name, how)
			spec := s.spec(t)
			_, err := s.Driver.Clone(s.ctx(t), spec, name, runtime.CloneOptions{})
			wantError(t, "clone it", err, errs.Unavailable, reason)
			_, err = s.Driver.Get(s.ctx(t), spec.ID)
			wantError(t, "what was not cloned", err, errs.NotFound, "")
			if _, err := s.Driver.Clone(s.ctx(t), spec, name, runtime.CloneOptions{FromDisk: true}); err != nil {
				t.Fatalf("clone its disk: %v", err)
			}
			c := s.guest(t, spec)
			c.hello()
			c.wantFile("/root/text", "before")
			g.hello()
		})
	}
}

func (s *suite) forget(t *testing.T) {
	from, _ := s.made(t)
	g := s.guest(t, from)
	g.write("/root/text", "before")
	opts := runtime.SaveOptions{Memory: s.Driver.Capabilities().Memory}
	name, other := s.save(t, from, opts), s.save(t, from, runtime.SaveOptions{})
	spec, _ := s.copied(t, from, name, runtime.CloneOptions{})
	for range 2 {
		if err := s.Driver.Forget(s.ctx(t), name); err != nil {
			t.Fatal(err)
		}
	}
	_, err := s.Driver.Clone(s.ctx(t), s.spec(t), name, runtime.CloneOptions{})
	wantError(t, "clone a forgotten one", err, errs.NotFound, "")
	if all, err := s.Driver.Saves(s.ctx(t)); err != nil || len(all) != 1 || all[0].Name != other {
		t.Errorf("Saves = %+v, %v; want only %s", all, err, other)
	}
	token := spec.GuestToken
	if opts.Memory {
		token = from.GuestToken
	}
	c := s.withToken(t, spec, token)
	c.hello()
	c.wantFile("/root/text", "before")
	g.hello()
	// The name can be used again.
	from.Generation++
	g.write("/root/text", "later")
	if _, err := s.Driver.Save(s.ctx(t), from.ID, from.Generation, name, runtime.SaveOptions{}); err != nil {
		t.Fatal(err)
	}
	later, _ := s.copied(t, from, name, runtime.CloneOptions{})
	c = s.guest(t, later)
	c.hello()
	c.wantFile("/root/text", "later")
	for _, n := range []string{name, other} {
		if err := s.Driver.Forget(s.ctx(t), n); err != nil {
			t.Fatal(err)
		}
	}
	for _, sp := range []runtime.Spec{from, spec, later} {
		if err := s.Driver.Delete(s.ctx(t), sp.ID, 1<<20); err != nil {
			t.Fatal(err)
		}
	}
	s.nothingLeft(t)
}
