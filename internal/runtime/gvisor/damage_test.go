package gvisor

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/berthrun/berth/internal/runtime"
)

// whileDown changes something while no runtime runs, and has it started again.
func (r *rig) whileDown(change func()) {
	r.t.Helper()
	if err := r.Shutdown(r.ctx(), false); err != nil {
		r.t.Fatal(err)
	}
	change()
	if _, err := r.List(r.ctx()); err != nil {
		r.t.Fatalf("start again: %v", err)
	}
}

// truncate cuts a file in half.
func truncate(t *testing.T, path string) {
	t.Helper()
	info, err := os.Stat(path)
	if err == nil {
		err = os.Truncate(path, info.Size()/2)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// A sandbox whose own record is damaged becomes a stopped one that has its disk.
func TestDamagedRecord(t *testing.T) {
	for name, damage := range map[string]func(t *testing.T, path string){
		"truncated": truncate,
		"empty": func(t *testing.T, path string) {
			if err := os.Truncate(path, 0); err != nil {
				t.Fatal(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			hurt, well := r.create(), r.create()
			r.write(hurt.ID, "/root/kept", "kept")
			r.whileDown(func() { damage(t, filepath.Join(r.cfg.Root, "sandboxes", hurt.ID, "record.json")) })
			st, err := r.Get(r.ctx(), hurt.ID)
			if err != nil || st.State != runtime.Stopped {
				t.Fatalf("Get = %+v, %v; want a stopped one", st, err)
			}
			r.awaitGuest(well.ID)
			hurt.Generation = 2
			if _, err := r.Start(r.ctx(), hurt); err != nil {
				t.Fatal(err)
			}
			r.awaitGuest(hurt.ID)
			if text, err := r.read(hurt.ID, "/root/kept"); err != nil || text != "kept" {
				t.Errorf("its disk: %q, %v", text, err)
			}
		})
	}
}

// A sandbox whose file of gVisor's is damaged goes on; it can be reached, paused, stopped, started and deleted.
func TestDamagedGVisorState(t *testing.T) {
	r := newRig(t)
	spec, other := r.create(), r.create()
	r.write(spec.ID, "/root/kept", "kept")
	r.whileDown(func() {
		truncate(t, filepath.Join(r.cfg.Root, "gvisor", spec.ID+"_sandbox:"+spec.ID+".state"))
		truncate(t, filepath.Join(r.cfg.Root, "gvisor", other.ID+"_sandbox:"+other.ID+".state"))
	})
	r.awaitGuest(spec.ID)
	if _, err := r.Pause(r.ctx(), spec.ID, 2); err != nil {
		t.Errorf("it cannot be paused: %v", err)
	}
	if _, err := r.Stop(r.ctx(), spec.ID, 3, runtime.StopOptions{}); err != nil {
		t.Fatal(err)
	}
	spec.Generation = 4
	if _, err := r.Start(r.ctx(), spec); err != nil {
		t.Fatal(err)
	}
	r.awaitGuest(spec.ID)
	if text, err := r.read(spec.ID, "/root/kept"); err != nil || text != "kept" {
		t.Errorf("its disk: %q, %v", text, err)
	}
	if err := r.Delete(r.ctx(), other.ID, 2); err != nil {
		t.Fatal(err)
	}
}

// edit changes one record.
func (r *rig) edit(id string, change func(rec map[string]any)) {
	r.t.Helper()
	path := filepath.Join(r.cfg.Root, "sandboxes", id, "record.json")
	b, err := os.ReadFile(path)
	var rec map[string]any
	if err == nil {
		err = json.Unmarshal(b, &rec)
	}
	if err == nil {
		change(rec)
		b, err = json.Marshal(rec)
	}
	if err == nil {
		err = os.WriteFile(path, b, 0o600)
	}
	if err != nil {
		r.t.Fatal(err)
	}
}

// After a restart of the machine sandboxes are stopped for that reason, and whatever process has their numbers now is left alone.
func TestHostRestart(t *testing.T) {
	r := newRig(t)
	spec := r.create()
	r.write(spec.ID, "/root/kept", "kept")
	r.whileDown(func() {
		r.kill(t, spec.ID)
		r.edit(spec.ID, func(rec map[string]any) {
			rec["bootId"] = "another"
			rec["boot"] = map[string]any{"pid": os.Getpid(), "start": 1}
			rec["gofer"] = map[string]any{"pid": os.Getpid(), "start": 1}
		})
	})
	st, err := r.Get(r.ctx(), spec.ID)
	if err != nil || st.State != runtime.Stopped || st.Reason != runtime.ReasonHostRestart {
		t.Errorf("Get = %+v, %v; want stopped, %s", st, err, runtime.ReasonHostRestart)
	}
	spec.Generation = 2
	if _, err := r.Start(r.ctx(), spec); err != nil {
		t.Fatal(err)
	}
	r.awaitGuest(spec.ID)
	if text, err := r.read(spec.ID, "/root/kept"); err != nil || text != "kept" {
		t.Errorf("its disk: %q, %v", text, err)
	}
}

// A number that belongs to another process now is not taken for the sandbox, and never killed. The other process here is the test itself.
func TestReusedPID(t *testing.T) {
	r := newRig(t)
	spec := r.create()
	r.whileDown(func() {
		r.kill(t, spec.ID)
		r.edit(spec.ID, func(rec map[string]any) {
			for _, name := range []string{"boot", "gofer"} {
				old := rec[name].(map[string]any)
				rec[name] = map[string]any{"pid": os.Getpid(), "start": old["start"]}
			}
		})
	})
	st, err := r.Get(r.ctx(), spec.ID)
	if err != nil || st.State != runtime.Stopped || st.Reason != runtime.ReasonKilled {
		t.Errorf("Get = %+v, %v; want stopped, %s", st, err, runtime.ReasonKilled)
	}
	if err := r.Delete(r.ctx(), spec.ID, 2); err != nil {
		t.Fatal(err)
	}
}

// Sandboxes run in groups of version 2, which they join by themselves too. This needs a hierarchy of it, which may lack controllers: then
// limits are not enforced and the runtime says so.
func TestCgroupV2(t *testing.T) {
	mount := ""
	for _, m := range []string{"/sys/fs/cgroup", "/sys/fs/cgroup/unified"} {
		var st unix.Statfs_t
		if unix.Statfs(m, &st) == nil && st.Type == unix.CGROUP2_SUPER_MAGIC {
			mount = m
		}
	}
	if mount == "" {
		t.Skip("needs a cgroup hierarchy of version 2, which this machine does not mount")
	}
	r := newRig(t, func(c *Config) { c.CgroupMount = mount })
	hello, err := r.Hello(r.ctx())
	if err != nil || hello.Cgroups != "v2" {
		t.Fatalf("Hello = %+v, %v", hello, err)
	}
	t.Logf("warnings: %q", hello.Warnings)
	for _, spec := range r.createMany(6) {
		boot, gofer := r.processes(spec.ID)
		for _, pid := range append(tree(t, boot.PID), tree(t, gofer.PID)...) {
			if got := unifiedGroup(t, pid); filepath.Base(got) != spec.ID {
				t.Errorf("process %d of %s is in %s", pid, spec.ID, got)
			}
		}
		if st, err := r.Stats(r.ctx(), spec.ID); err != nil || st.CPUSeconds <= 0 {
			t.Errorf("stats = %+v, %v", st, err)
		}
		if err := r.Delete(r.ctx(), spec.ID, 2); err != nil {
			t.Fatal(err)
		}
	}
	if left, _ := filepath.Glob(filepath.Join(mount, "berth", r.instance(), "sbx_*")); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}

func unifiedGroup(t *testing.T, pid int) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "cgroup"))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(b)) {
		if g, ok := strings.CutPrefix(line, "0::"); ok {
			return strings.TrimSpace(g)
		}
	}
	return ""
}
