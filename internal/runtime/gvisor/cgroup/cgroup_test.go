package cgroup

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// fakeV2 is a folder that looks like a hierarchy of version 2. The kernel fills new groups; here that is done by hand.
func fakeV2(t *testing.T, controllers string) (*Manager, func(id string)) {
	t.Helper()
	mount := t.TempDir()
	write := func(path, text string) {
		t.Helper()
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	write(filepath.Join(mount, "cgroup.controllers"), controllers)
	write(filepath.Join(mount, "cgroup.subtree_control"), "")
	write(filepath.Join(mount, "berth", "x", "cgroup.subtree_control"), controllers)
	m := &Manager{mount: mount, parent: "berth/x", v2: true}
	have := strings.Fields(controllers)
	for _, c := range []string{"memory", "cpu", "pids"} {
		if !contains(have, c) {
			m.missing = append(m.missing, c)
		}
	}
	return m, func(id string) {
		for _, name := range []string{"memory.max", "memory.swap.max", "cpu.max", "pids.max"} {
			write(filepath.Join(mount, "berth", "x", id, name), "")
		}
	}
}

func TestV2Limits(t *testing.T) {
	for _, tt := range []struct {
		name   string
		limits Limits
		want   map[string]string
	}{
		{"all", Limits{VCPU: 1.5, MemoryBytes: 1 << 30, Pids: 100}, map[string]string{"memory.max": "1073741824", "memory.swap.max": "0", "cpu.max": "150000 100000", "pids.max": "100"}},
		{"none", Limits{}, map[string]string{"memory.max": "max", "memory.swap.max": "", "cpu.max": "max 100000", "pids.max": "max"}},
		{"a sliver of a core", Limits{VCPU: 0.001}, map[string]string{"memory.max": "max", "memory.swap.max": "", "cpu.max": "1000 100000", "pids.max": "max"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			m, fill := fakeV2(t, "memory cpu pids")
			fill("a")
			if err := m.Create("a", tt.limits); err != nil {
				t.Fatal(err)
			}
			got := map[string]string{}
			for name := range tt.want {
				b, _ := os.ReadFile(filepath.Join(m.mount, "berth/x/a", name))
				got[name] = string(b)
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}

func TestV2Readings(t *testing.T) {
	m, fill := fakeV2(t, "memory cpu pids")
	fill("a")
	dir := filepath.Join(m.mount, "berth/x/a")
	for name, text := range map[string]string{
		"cpu.stat": "usage_usec 1500000\nuser_usec 1\n", "memory.current": "4096\n", "memory.peak": "8192\n", "pids.current": "3\n",
		"memory.events": "low 0\noom 2\noom_kill 1\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := m.Stats("a")
	if diff := cmp.Diff(Stats{CPUSeconds: 1.5, MemoryBytes: 4096, MemoryPeak: 8192, Pids: 3}, got); err != nil || diff != "" {
		t.Errorf("Stats: %v, -want +got:\n%s", err, diff)
	}
	if got := m.OOMKills("a"); got != 1 {
		t.Errorf("OOMKills = %d, want 1", got)
	}
	if _, err := m.Stats("gone"); err == nil {
		t.Error("a group that is not there was read")
	}
}

func TestParentStaysBelow(t *testing.T) {
	for _, parent := range []string{"/abs", "../up"} {
		if _, err := Open(t.TempDir(), parent); err == nil {
			t.Errorf("Open took the parent %q", parent)
		}
	}
}

// The kernel's own groups: a child joins, is counted, and the group is removed after it.
func TestRealGroups(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	m, err := Open(Mount, "berth-test/"+strings.ToLower(t.Name()))
	if err != nil {
		t.Skipf("no cgroups here: %v", err)
	}
	t.Cleanup(m.Close)
	t.Logf("version %s, missing %v", m.Version(), m.Missing())
	if err := m.Create("a", Limits{VCPU: 1, MemoryBytes: 64 << 20, Pids: 32}); err != nil {
		t.Fatal(err)
	}
	script := ""
	for _, p := range m.Procs("a") {
		script += "echo 0 > " + p + "; "
	}
	cmd := exec.Command("sh", "-c", script+"echo in; read end")
	in, _ := cmd.StdinPipe()
	out, _ := cmd.StdoutPipe()
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := out.Read(make([]byte, 3)); err != nil {
		t.Fatal(err)
	}
	if got := m.Members("a"); len(got) != 1 || got[0] != cmd.Process.Pid {
		t.Errorf("Members = %v, want [%d]", got, cmd.Process.Pid)
	}
	if st, err := m.Stats("a"); err != nil || len(m.Missing()) == 0 && (st.Pids != 1 || st.MemoryBytes == 0) {
		t.Errorf("Stats = %+v, %v", st, err)
	}
	if err := m.Update("a", Limits{VCPU: 2, MemoryBytes: 128 << 20, Pids: 64}); err != nil {
		t.Errorf("raise limits: %v", err)
	}
	if err := m.Update("a", Limits{VCPU: 1, MemoryBytes: 32 << 20, Pids: 16}); err != nil {
		t.Errorf("lower limits: %v", err)
	}
	in.Close()
	_ = cmd.Wait()
	for range 2 {
		if err := m.Remove("a"); err != nil {
			t.Fatal(err)
		}
	}
	if left, err := m.List(); err != nil || len(left) != 0 {
		t.Errorf("List = %v, %v; want none", left, err)
	}
}
