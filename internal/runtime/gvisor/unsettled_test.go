package gvisor

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/runtime"
)

// A runtime that cannot come up is the node's trouble, which may pass: whoever boots something tries again until it does. It once was an internal error, of which
// a boot failed.
func TestRuntimeThatDoesNotComeUp(t *testing.T) {
	r := newRig(t)
	spec := r.spec()
	dir := filepath.Join(r.cfg.Root, "netns")
	if err := r.Shutdown(r.ctx(), false); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(os.Rename(dir, dir+".away"), os.WriteFile(dir, nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	_, err := r.Create(r.ctx(), spec)
	if e := errs.From(err); e == nil || e.Code != errs.HostUnavailable || e.Reason != "runtime_down" {
		t.Errorf("create: %v, want that the host is unavailable", err)
	}
	if err := errors.Join(os.Remove(dir), os.Rename(dir+".away", dir)); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Create(r.ctx(), spec); err != nil {
		t.Fatalf("once it can: %v", err)
	}
	r.awaitGuest(spec.ID)
}

// A process that is just ending may still have the folder: another one is started until it can be had.
func TestRuntimeThatIsJustEnding(t *testing.T) {
	r := newRig(t)
	if err := r.Shutdown(r.ctx(), false); err != nil {
		t.Fatal(err)
	}
	lock, err := os.OpenFile(filepath.Join(r.cfg.Root, "lock"), os.O_RDWR, 0)
	if err == nil {
		err = unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	}
	if err != nil {
		t.Fatal(err)
	}
	began, done := time.Now(), make(chan error, 1)
	go func() {
		_, err := r.List(r.ctx())
		done <- err
	}()
	for deadline := time.Now().Add(patience); ; time.Sleep(5 * time.Millisecond) {
		if b, _ := os.ReadFile(r.cfg.LogFile); strings.Contains(string(b), "another berth-runtime has") {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("no runtime was refused")
		}
	}
	lock.Close()
	if err := <-done; err != nil {
		t.Errorf("after %v: %v", time.Since(began), err)
	}
}

// A sandbox that cannot be settled when the runtime comes back does not keep it from the others. Its place in the network stays its own until all of it is gone,
// and whoever creates it again waits for that.
func TestUnsettledSandbox(t *testing.T) {
	r := newRig(t)
	hurt, well := r.create(), r.create()
	at, err := r.Get(r.ctx(), hurt.ID)
	if err != nil {
		t.Fatal(err)
	}
	// A group in its group cannot be removed by the runtime, as if a task of it did not end.
	var stuck []string
	for _, dir := range r.groupsOf(hurt.ID) {
		if err := os.Mkdir(filepath.Join(dir, "stuck"), 0o755); err != nil {
			t.Fatal(err)
		}
		stuck = append(stuck, filepath.Join(dir, "stuck"))
	}
	r.whileDown(func() { r.edit(hurt.ID, func(rec map[string]any) { rec["phase"] = "creating" }) })
	r.awaitGuest(well.ID)
	if all, err := r.List(r.ctx()); err != nil || len(all) != 1 || all[0].ID != well.ID {
		t.Errorf("List = %+v, %v; want only the other", all, err)
	}
	other := r.create()
	if st, err := r.Get(r.ctx(), other.ID); err != nil || st.Address == at.Address {
		t.Errorf("another has its address: %+v, %v", st, err)
	}
	_, err = r.Create(r.ctx(), hurt)
	if e := errs.From(err); e == nil || e.Code != errs.HostUnavailable || e.Reason != "unsettled" {
		t.Errorf("create: %v, want that the host is unavailable", err)
	}
	for _, dir := range stuck {
		if err := os.Remove(dir); err != nil {
			t.Error(err)
		}
	}
	if _, err := r.Create(r.ctx(), hurt); err != nil {
		t.Fatal(err)
	}
	r.awaitGuest(hurt.ID)
}

// The same for one whose stop was not finished.
func TestUnsettledStop(t *testing.T) {
	r := newRig(t)
	spec := r.create()
	r.write(spec.ID, "/root/kept", "kept")
	groups := r.groupsOf(spec.ID)
	for _, dir := range groups {
		if err := os.Mkdir(filepath.Join(dir, "stuck"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := r.Stop(r.ctx(), spec.ID, 2, runtime.StopOptions{}); err == nil {
		t.Fatal("it was stopped")
	}
	spec.Generation = 3
	_, err := r.Start(r.ctx(), spec)
	if e := errs.From(err); e == nil || e.Code != errs.HostUnavailable || e.Reason != "unsettled" {
		t.Errorf("start: %v, want that the host is unavailable", err)
	}
	for _, dir := range groups {
		if err := os.Remove(filepath.Join(dir, "stuck")); err != nil {
			t.Error(err)
		}
	}
	if _, err := r.Start(r.ctx(), spec); err != nil {
		t.Fatal(err)
	}
	r.awaitGuest(spec.ID)
	if text, err := r.read(spec.ID, "/root/kept"); err != nil || text != "kept" {
		t.Errorf("its disk: %q, %v", text, err)
	}
}

// groupsOf are the control groups of a sandbox.
func (r *rig) groupsOf(id string) []string {
	r.t.Helper()
	var out []string
	for _, pattern := range []string{"/sys/fs/cgroup/berth/", "/sys/fs/cgroup/*/berth/"} {
		dirs, _ := filepath.Glob(pattern + r.instance() + "/" + id)
		out = append(out, dirs...)
	}
	if len(out) == 0 {
		r.t.Fatal("no control group")
	}
	return out
}
