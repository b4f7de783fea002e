// Package runtimetest owns the conformance suite of runtime.Driver: what every driver must do, tried against real sandboxes through the
// contract and the guest's protocol alone.
//
// It knows no driver. A driver's test gives it a Harness and calls Run.
package runtimetest

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/id"
	"github.com/berthrun/berth/internal/runtime"
)

// Harness is what the suite needs of a driver. Driver, Image and Kill are required.
type Harness struct {
	// Driver has no sandboxes yet, and nobody else uses it meanwhile. The suite does not close it.
	Driver runtime.Driver
	// Image is prepared: a guest that speaks /hello, /configure, /files/write, /files/read, /processes and /exec boots on it.
	Image string
	// Program is what is run inside, with two more words. "count F" appends the numbers from 1 on to the file F, one a line, several a second and for
	// ever; "random F" writes what the kernel gives at random to F, and ends; "pair F" appends the same numbers to F.a and then to F.b; "some F" writes 32 MiB to
	// F; "fill F" writes 1,280 MiB to F, and to the file said "1280 MiB" or why it could not. Paths are relative to /tmp.
	Program []string
	// Kill ends a running sandbox as something outside of the driver would, without waiting.
	Kill func(t *testing.T, id string)
	// Damage changes the memory file of a suspended sandbox, or of a save. how is truncated, missing or foreign (of another runtime).
	// Without it the tests of such files are left out.
	Damage func(t *testing.T, what, how string)
	// Tasks counts the processes on the host that belong to a sandbox; nil where it cannot be known.
	Tasks func(t *testing.T, id string) int
	// Left tells what the driver still has that belongs to no sandbox and no save; nil where it cannot be known.
	Left func(t *testing.T) []string
	// Forked says that copies with memory, and sandboxes that were rewound, have their processes, and not only what the guest knew.
	Forked bool
	// ReadOnly says that nothing can be written to a volume that is mounted to be read.
	ReadOnly bool
	// Folder is where a copy of a volume is on the host; nil where it cannot be known.
	Folder func(t *testing.T, name string) string
	// Brief leaves out the longest tests of pauses and copies, where another run on the same driver has them.
	Brief bool
	// Patience bounds every wait of the suite; default 30 s.
	Patience time.Duration
	// Parallel is how many sandboxes are made at once; default 6.
	Parallel int
}

// suite is one run: the harness and what its tests share.
type suite struct {
	Harness
}

// Run proves a driver. Every part is a subtest; at the end no sandbox is left.
func Run(t *testing.T, h Harness) {
	if h.Patience <= 0 {
		h.Patience = 30 * time.Second
	}
	if h.Parallel <= 0 {
		h.Parallel = 6
	}
	s := &suite{h}
	for _, tt := range []struct {
		name string
		run  func(*testing.T)
	}{
		{"create", s.create},
		{"create again", s.createAgain},
		{"create the same at once", s.createSame},
		{"create refused", s.createRefused},
		{"create cancelled", s.createCancelled},
		{"create many at once", s.createMany},
		{"stop keeps the disk", s.stopKeepsDisk},
		{"delete", s.delete},
		{"generations", s.generations},
		{"unknown ids", s.unknown},
		{"watch", s.watch},
		{"death", s.death},
		{"dial", s.dial},
		{"stats and update", s.statsAndUpdate},
		{"pause", s.pause},
		{"missing capabilities", s.missing},
	} {
		t.Run(tt.name, tt.run)
	}
	if h.Driver.Capabilities().Memory {
		t.Run("on disk", s.onDisk)
	}
	if h.Driver.Capabilities().Saves {
		t.Run("saves", s.saves)
		t.Run("rebase", s.rebase)
	}
	if h.Driver.Capabilities().Volumes {
		t.Run("volumes", s.volumes)
	}
	s.nothingLeft(t)
}

// part is one test of the suite.
type part struct {
	name string
	run  func(*testing.T)
	long bool // left out of a brief run
}

func (s *suite) each(t *testing.T, parts []part) {
	for _, p := range parts {
		if !p.long || !s.Brief {
			t.Run(p.name, p.run)
		}
	}
}

// nothingLeft checks that no sandbox is there, and nothing of one.
func (s *suite) nothingLeft(t *testing.T) {
	t.Helper()
	ctx := context.WithoutCancel(t.Context())
	if left, err := s.Driver.List(ctx); err != nil || len(left) != 0 {
		t.Errorf("sandboxes left: %v, %v; want none", left, err)
	}
	if s.Driver.Capabilities().Saves {
		if left, err := s.Driver.Saves(ctx); err != nil || len(left) != 0 {
			t.Errorf("saves left: %v, %v; want none", left, err)
		}
	}
	if s.Left != nil {
		if left := s.Left(t); len(left) != 0 {
			t.Errorf("left: %q; want nothing", left)
		}
	}
}

// spec is that of a new sandbox, which is deleted at the end of the test.
func (s *suite) spec(t *testing.T) runtime.Spec {
	t.Helper()
	spec := runtime.Spec{
		ID: id.New(id.Sandbox), Generation: 1, Image: s.Image, Network: runtime.NetworkInternet, Hostname: "box", GuestToken: id.New("tok"),
		Resources: runtime.Resources{VCPU: 1, MemoryMiB: 256, DiskGiB: 1},
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), s.Patience)
		defer cancel()
		if err := s.Driver.Delete(ctx, spec.ID, 1<<40); err != nil {
			t.Errorf("delete at the end: %v", err)
		}
	})
	return spec
}

func (s *suite) ctx(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), s.Patience)
	t.Cleanup(cancel)
	return ctx
}

// made creates a new sandbox and waits for its guest.
func (s *suite) made(t *testing.T) (runtime.Spec, runtime.Status) {
	t.Helper()
	spec := s.spec(t)
	st, err := s.Driver.Create(s.ctx(t), spec)
	if err != nil {
		t.Fatalf("Create: %v", err)
	}
	s.guest(t, spec).hello()
	return spec, st
}

// want compares a status but for its time and address.
func want(t *testing.T, got, want runtime.Status) {
	t.Helper()
	if diff := cmp.Diff(want, got, cmpopts.IgnoreFields(runtime.Status{}, "Since", "Address", "ExitStatus")); diff != "" {
		t.Errorf("status (-want +got):\n%s", diff)
	}
	if got.State == runtime.Running && got.Address == "" {
		t.Error("a running sandbox has no address")
	}
	if got.Since.IsZero() {
		t.Error("a status has no time")
	}
}

// wantError compares the code and, where given, the reason.
func wantError(t *testing.T, what string, err error, code errs.Code, reason string) {
	t.Helper()
	if !errs.Is(err, code) {
		t.Errorf("%s: error %v with code %q, want %s", what, err, errs.CodeOf(err), code)
		return
	}
	if e, ok := errors.AsType[*errs.Error](err); ok && reason != "" && e.Reason != reason {
		t.Errorf("%s: reason %q, want %q", what, e.Reason, reason)
	}
}
