package runtimetest

import (
	"testing"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/id"
	"github.com/berthrun/berth/internal/runtime"
)

// rebase proves Rebase.
func (s *suite) rebase(t *testing.T) {
	s.each(t, []part{
		{"to an image", s.rebaseToImage, false},
		{"to a save", s.rebaseToSave, false},
		{"refused", s.rebaseRefused, true},
	})
}

func (s *suite) halt(t *testing.T, spec runtime.Spec) {
	t.Helper()
	if _, err := s.Driver.Stop(s.ctx(t), spec.ID, spec.Generation, runtime.StopOptions{}); err != nil {
		t.Fatal(err)
	}
}

// up is the guest of a sandbox that was just booted, once it answers.
func (s *suite) up(t *testing.T, spec runtime.Spec) *client {
	t.Helper()
	g := s.guest(t, spec)
	g.hello()
	return g
}

// rebased gives a stopped sandbox another disk and starts it.
func (s *suite) rebased(t *testing.T, spec *runtime.Spec, opts runtime.RebaseOptions) *client {
	t.Helper()
	spec.Generation++
	for range 2 { // a repeated call does nothing
		st, err := s.Driver.Rebase(s.ctx(t), *spec, opts)
		if err != nil {
			t.Fatalf("Rebase: %v", err)
		}
		want(t, st, runtime.Status{ID: spec.ID, Generation: spec.Generation, State: runtime.Stopped, Reason: runtime.ReasonRequested, ExitStatus: st.ExitStatus})
	}
	if _, err := s.Driver.Start(s.ctx(t), *spec); err != nil {
		t.Fatal(err)
	}
	return s.up(t, *spec)
}

func wantNoFile(t *testing.T, c *client, path string) {
	t.Helper()
	if text, err := c.read(path); err == nil {
		t.Errorf("%s holds %q on the new disk", path, text)
	}
}

func (s *suite) rebaseToImage(t *testing.T) {
	spec, _ := s.made(t)
	g := s.up(t, spec)
	g.write("/root/text", "old")
	g.write("/workspace/deep/text", "kept")
	s.halt(t, spec)
	g = s.rebased(t, &spec, runtime.RebaseOptions{Keep: "/workspace"})
	g.wantFile("/workspace/deep/text", "kept")
	wantNoFile(t, g, "/root/text")
	// What is written from then on stays, also where it is told again.
	g.write("/workspace/deep/more", "new")
	g.write("/root/text", "new")
	s.halt(t, spec)
	if _, err := s.Driver.Rebase(s.ctx(t), spec, runtime.RebaseOptions{}); err != nil {
		t.Errorf("a repeated call after a start: %v", err)
	}
	if _, err := s.Driver.Start(s.ctx(t), spec); err != nil {
		t.Fatal(err)
	}
	g = s.up(t, spec)
	g.wantFile("/workspace/deep/more", "new")
	g.wantFile("/root/text", "new")
	s.halt(t, spec)
	g = s.rebased(t, &spec, runtime.RebaseOptions{})
	wantNoFile(t, g, "/workspace/deep/text")
	wantNoFile(t, g, "/root/text")
}

func (s *suite) rebaseToSave(t *testing.T) {
	of, _ := s.made(t)
	g := s.up(t, of)
	g.write("/root/text", "of the save")
	g.write("/workspace/text", "of the save")
	g.write("/workspace/save", "of the save")
	name := s.save(t, of, runtime.SaveOptions{})
	spec, _ := s.made(t)
	g = s.up(t, spec)
	g.write("/root/more", "old")
	g.write("/workspace/text", "kept")
	s.halt(t, spec)
	g = s.rebased(t, &spec, runtime.RebaseOptions{Save: name, Keep: "/workspace"})
	g.wantFile("/root/text", "of the save")
	g.wantFile("/workspace/text", "kept")
	wantNoFile(t, g, "/workspace/save")
	wantNoFile(t, g, "/root/more")
	// Neither the save nor what is made of it sees what is written here.
	g.write("/root/text", "new")
	copied, _ := s.copied(t, of, name, runtime.CloneOptions{})
	s.up(t, copied).wantFile("/root/text", "of the save")
}

func (s *suite) rebaseRefused(t *testing.T) {
	spec, _ := s.made(t)
	s.up(t, spec).write("/root/text", "old")
	_, err := s.Driver.Rebase(s.ctx(t), spec, runtime.RebaseOptions{})
	wantError(t, "of a running one", err, errs.InvalidState, "running")
	unknown := spec
	unknown.ID = id.New(id.Sandbox)
	_, err = s.Driver.Rebase(s.ctx(t), unknown, runtime.RebaseOptions{})
	wantError(t, "of an unknown one", err, errs.NotFound, "")
	s.halt(t, spec)
	older := spec
	older.Generation--
	_, err = s.Driver.Rebase(s.ctx(t), older, runtime.RebaseOptions{})
	wantError(t, "of an older generation", err, errs.InvalidState, "stale_generation")
	spec.Generation++
	for _, keep := range []string{"workspace", "/", "/..", "/a/b", "/./a", "//a"} {
		_, err := s.Driver.Rebase(s.ctx(t), spec, runtime.RebaseOptions{Keep: keep})
		wantError(t, "keeping "+keep, err, errs.InvalidInput, "")
	}
	_, err = s.Driver.Rebase(s.ctx(t), spec, runtime.RebaseOptions{Save: id.New("snap")})
	wantError(t, "to an unknown save", err, errs.NotFound, "")
	if _, err := s.Driver.Start(s.ctx(t), spec); err != nil {
		t.Fatal(err)
	}
	s.up(t, spec).wantFile("/root/text", "old")
}
