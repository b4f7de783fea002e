package gvisor

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/berthrun/berth/internal/bundle"
	"github.com/berthrun/berth/internal/guest"
	"github.com/berthrun/berth/internal/id"
	"github.com/berthrun/berth/internal/runtime"
)

// TestUpgrade has the release before suspend a sandbox and save another, and this one wake and copy them: by the programs that made them, which are kept for
// as long as something needs them.
func TestUpgrade(t *testing.T) {
	dir := need(t, "BERTH_PREVIOUS_DIR")
	old := filepath.Join(dir, "berth-runtime")
	newGuest := need(t, "BERTH_GUEST_BIN")
	r := newRig(t, func(c *Config) { c.Binary, c.Guest = old, filepath.Join(dir, "berth-guest") })
	r.cfg.Log.Info("the release before", "runtime", old)
	client := func(id string) *guest.Client {
		g := guest.NewClient(func(ctx context.Context) (net.Conn, error) { return r.Dial(ctx, id, guest.Port) }, func() string { return "token" })
		t.Cleanup(g.Close)
		return g
	}
	spec := r.spec()
	if _, err := r.Create(r.ctx(), spec); err != nil {
		t.Fatal(err)
	}
	g := client(spec.ID)
	before, err := g.Hello(r.ctx())
	if err != nil {
		t.Fatal(err)
	}
	write := guest.FileWrite{Path: "/root/file", Data: []byte("kept"), User: "root"}
	if _, err := g.WriteFile(r.ctx(), "", write); err != nil {
		t.Fatal(err)
	}
	g.Close()
	if _, err := r.Save(r.ctx(), spec.ID, 2, "snap_old", runtime.SaveOptions{Memory: true}); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Suspend(r.ctx(), spec.ID, 2); err != nil {
		t.Fatal(err)
	}
	if err := r.Driver.Close(); err != nil {
		t.Fatal(err)
	}

	r.cfg.Binary, r.cfg.Guest = need(t, "BERTH_RUNTIME_BIN"), newGuest
	r.open()
	hello, err := r.Hello(r.ctx())
	if err != nil {
		t.Fatal(err)
	}
	was, err := bundle.HashFile(old)
	if err != nil || hello.RuntimeSHA256 == was {
		t.Fatalf("the runtime was not replaced: %s, %v", hello.RuntimeSHA256, err)
	}
	copied := spec
	copied.ID = id.New(id.Sandbox)
	if _, err := r.Clone(r.ctx(), copied, "snap_old", runtime.CloneOptions{}); err != nil {
		t.Fatalf("copy what the release before saved: %v", err)
	}
	if _, err := r.Wake(r.ctx(), spec2(spec, 3)); err != nil {
		t.Fatalf("wake what the release before suspended: %v", err)
	}
	for _, id := range []string{spec.ID, copied.ID} {
		g := client(id)
		after, err := g.Hello(r.ctx())
		if err != nil || after.BootID != before.BootID {
			t.Errorf("its guest is %+v, %v; want %+v", after, err, before)
		}
		data, err := g.ReadFile(r.ctx(), guest.FileRead{Path: "/root/file", User: "root"})
		if err != nil || string(data.Data) != "kept" {
			t.Errorf("its file is %q, %v", data.Data, err)
		}
		boot, _ := r.processes(id)
		exe, err := bundle.HashFile(filepath.Join("/proc", strconv.Itoa(boot.PID), "exe"))
		if err != nil || exe != was {
			t.Errorf("its kernel is the program %s, %v; want that which made it, %s", exe, err, was)
		}
		g.Close()
	}
	kept := func() int {
		all, err := filepath.Glob(filepath.Join(r.cfg.Root, "programs", "*"))
		if err != nil {
			t.Fatal(err)
		}
		return len(all)
	}
	if kept() == 0 {
		t.Error("the program of the release before is not kept")
	}
	// Booted anew it is this release's, and once nothing needs the old programs they go.
	if _, err := r.Stop(r.ctx(), spec.ID, 4, runtime.StopOptions{Grace: time.Second}); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Start(r.ctx(), spec2(spec, 5)); err != nil {
		t.Fatal(err)
	}
	boot, _ := r.processes(spec.ID)
	if exe, err := bundle.HashFile(filepath.Join("/proc", strconv.Itoa(boot.PID), "exe")); err != nil || exe != hello.RuntimeSHA256 {
		t.Errorf("after a boot its kernel is the program %s, %v; want %s", exe, err, hello.RuntimeSHA256)
	}
	if err := r.Delete(r.ctx(), copied.ID, 9); err != nil {
		t.Fatal(err)
	}
	if err := r.Forget(r.ctx(), "snap_old"); err != nil {
		t.Fatal(err)
	}
	r.killRuntime()
	if _, err := r.Hello(r.ctx()); err != nil {
		t.Fatal(err)
	}
	if n := kept(); n != 0 {
		t.Errorf("%d programs are kept that nothing needs", n)
	}
	guests, err := filepath.Glob(filepath.Join(r.cfg.Root, "guest-*"))
	if err != nil || len(guests) != 1 {
		t.Errorf("kept guests: %v, %v", guests, err)
	}
	if _, err := os.Stat(filepath.Join(r.cfg.Root, "saves", "snap_old")); !os.IsNotExist(err) {
		t.Errorf("the save's folder: %v", err)
	}
}
