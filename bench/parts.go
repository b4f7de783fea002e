package main

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"time"

	"github.com/berthrun/berth/internal/guest"
	"github.com/berthrun/berth/internal/id"
	"github.com/berthrun/berth/internal/runtime"
	"github.com/berthrun/berth/internal/runtime/gvisor"
)

func timed(fn func() error) (time.Duration, error) {
	begin := time.Now()
	err := fn()
	return time.Since(begin), err
}

// create: from nothing to the first finished command.
func (b *bench) create(ctx context.Context, s *server, rootfs string) error {
	var ours, theirs []time.Duration
	for i := range b.rounds + 1 {
		var sandbox string
		d, err := timed(func() (err error) {
			if sandbox, err = s.sandbox(ctx, 512); err != nil {
				return err
			}
			return s.true(ctx, sandbox)
		})
		if err != nil {
			return err
		}
		if err := s.delete(ctx, sandbox); err != nil {
			return err
		}
		var r *raw
		p, err := timed(func() (err error) {
			if r, err = b.newRaw(rootfs, i); err != nil {
				return err
			}
			if err := r.run(ctx); err != nil {
				return err
			}
			return r.true(ctx)
		})
		if r != nil {
			r.end()
		}
		if err != nil {
			return err
		}
		if i > 0 { // the first of each reads the image from the disk
			ours, theirs = append(ours, d), append(theirs, p)
		}
	}
	b.add("create to the first finished command, cold, through MCP", ours, "`runsc run` and `runsc exec true`", theirs, 1.1)
	return nil
}

// command: `true` in a running sandbox.
func (b *bench) command(ctx context.Context, s *server, rootfs string) error {
	sandbox, err := s.sandbox(ctx, 512)
	if err != nil {
		return err
	}
	defer s.delete(ctx, sandbox) //nolint:errcheck // the server goes too
	r, err := b.newRaw(rootfs, 1000)
	if err != nil {
		return err
	}
	defer r.end()
	if err := r.run(ctx); err != nil {
		return err
	}
	g, end, err := b.driverAlone(ctx, rootfs)
	if err != nil {
		return err
	}
	defer end()
	var ours, theirs, alone []time.Duration
	for i := range b.quick + 5 {
		d, err := timed(func() error { return s.true(ctx, sandbox) })
		if err != nil {
			return err
		}
		p, err := timed(func() error { return r.true(ctx) })
		if err != nil {
			return err
		}
		a, err := timed(func() error { return g.true(ctx) })
		if err != nil {
			return err
		}
		if i >= 5 {
			ours, theirs, alone = append(ours, d), append(theirs, p), append(alone, a)
		}
	}
	b.add("`run_command true` through MCP", ours, "`runsc exec true`", theirs, 0.6)
	b.add("`run_command true` through MCP", ours, "the guest alone", alone, 1.3)
	return nil
}

// alone is a sandbox by the driver, without a server.
type alone struct {
	d    *gvisor.Driver
	dir  string
	spec runtime.Spec
	*guest.Client
}

func (a *alone) true(ctx context.Context) error {
	_, err := a.Exec(ctx, guest.Start{ID: id.New(id.Process), Command: "true"}, 10*time.Second)
	return err
}

func (a *alone) pause(ctx context.Context) error {
	_, err := a.d.Pause(ctx, a.spec.ID, 1)
	return err
}

func (a *alone) resume(ctx context.Context) error {
	_, err := a.d.Wake(ctx, a.spec)
	return err
}

// driverAlone boots a sandbox by the driver and gives its guest. Before that, each change is made to what is not booted yet.
func (b *bench) driverAlone(ctx context.Context, rootfs string, changes ...func(*alone) error) (*alone, func(), error) {
	dir, err := os.MkdirTemp("", "berth-guest-")
	if err != nil {
		return nil, nil, err
	}
	if err := os.Symlink(filepath.Dir(filepath.Dir(rootfs)), filepath.Join(dir, "images")); err != nil {
		return nil, nil, err
	}
	d, err := gvisor.Open(ctx, gvisor.Config{Binary: b.runtime, Guest: b.guest, Root: dir, Socket: filepath.Join(dir, "runtime.sock")})
	if err != nil {
		return nil, nil, err
	}
	end := func() {
		_ = d.Shutdown(context.Background(), true)
		_ = d.Close()
		_ = os.RemoveAll(dir)
	}
	a := &alone{d: d, dir: dir, spec: runtime.Spec{
		ID: id.New(id.Sandbox), Generation: 1, Image: filepath.Base(filepath.Dir(rootfs)), Network: runtime.NetworkInternet, Hostname: "alone",
		GuestToken: "bench", Resources: runtime.Resources{VCPU: 1, MemoryMiB: 512, DiskGiB: 10},
	}}
	for _, change := range changes {
		if err := change(a); err != nil {
			end()
			return nil, nil, err
		}
	}
	if _, err := d.Create(ctx, a.spec); err != nil {
		end()
		return nil, nil, err
	}
	a.Client = guest.NewClient(func(ctx context.Context) (net.Conn, error) { return d.Dial(ctx, a.spec.ID, guest.Port) }, func() string { return a.spec.GuestToken })
	if _, err := a.Hello(ctx); err != nil {
		end()
		return nil, nil, err
	}
	return a, end, nil
}

// memory: what an idle sandbox costs, of many.
func (b *bench) memory(ctx context.Context, s *server, _ string) error {
	made := make([]string, 0, b.idle)
	defer func() {
		for _, sandbox := range made {
			_ = s.delete(context.Background(), sandbox)
		}
	}()
	before, err := pss()
	if err != nil {
		return err
	}
	for range b.idle {
		sandbox, err := s.sandbox(ctx, 256)
		if err != nil {
			return err
		}
		made = append(made, sandbox)
		if err := s.true(ctx, sandbox); err != nil {
			return err
		}
	}
	time.Sleep(10 * time.Second) // until they idle
	after, err := pss()
	if err != nil {
		return err
	}
	each := float64(after-before) / float64(b.idle) / (1 << 20)
	b.rows = append(b.rows, row{
		what: fmt.Sprintf("memory of an idle sandbox, %d of them", b.idle), peer: "PSS of all their processes", must: "≤ 20 MiB",
		figure: fmt.Sprintf("%.1f MiB each", each), met: each <= 20,
	})
	return b.own(ctx, s, b.idle)
}
