// Package cgroup owns the control groups of sandboxes, on version 1 and on version 2: limits, readings, and their removal.
//
// Nothing here moves a process. Whoever is to be held joins by itself, by writing 0 to the files that Procs names: only so do sandboxes
// that start at the same time not land in each other's group.
package cgroup

import (
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Mount is where the kernel's control groups are.
const Mount = "/sys/fs/cgroup"

// Limits of one group. Zero is unlimited.
type Limits struct {
	VCPU        float64
	MemoryBytes int64
	Pids        int64
}

// Stats are readings of one group. Zero where unknown.
type Stats struct {
	CPUSeconds  float64
	MemoryBytes int64
	MemoryPeak  int64
	Pids        int64
}

// Manager makes groups under one parent.
type Manager struct {
	mount    string
	parent   string
	v2       bool
	missing  []string
	v1Groups []string // the hierarchies in use
}

// Open finds the hierarchies under mount and makes the parent, a relative path such as berth/3f2a. It fails where neither version is mounted.
func Open(mount, parent string) (*Manager, error) {
	m := &Manager{mount: mount, parent: filepath.Clean(parent)}
	if filepath.IsAbs(m.parent) || strings.HasPrefix(m.parent, "..") {
		return nil, fmt.Errorf("cgroup parent %q is not a relative path", parent)
	}
	if _, err := os.Stat(filepath.Join(mount, "cgroup.controllers")); err == nil {
		m.v2 = true
		return m, m.openV2()
	}
	for _, name := range []string{"memory", "cpu", "cpuacct", "pids"} {
		if !isHierarchy(filepath.Join(mount, name)) {
			m.missing = append(m.missing, name)
			continue
		}
		m.v1Groups = append(m.v1Groups, name)
		if err := os.MkdirAll(filepath.Join(mount, name, m.parent), 0o755); err != nil {
			return nil, fmt.Errorf("make cgroup parent: %w", err)
		}
	}
	if len(m.v1Groups) == 0 {
		return nil, fmt.Errorf("no control groups under %s", mount)
	}
	return m, nil
}

func isHierarchy(dir string) bool {
	_, err := os.Stat(filepath.Join(dir, "cgroup.procs"))
	return err == nil
}

func (m *Manager) openV2() error {
	dir := m.mount
	for _, part := range append(strings.Split(m.parent, "/"), "") {
		for _, c := range []string{"memory", "cpu", "pids"} {
			// One at a time: a kernel without one of them must still give the others.
			_ = os.WriteFile(filepath.Join(dir, "cgroup.subtree_control"), []byte("+"+c), 0)
		}
		if part == "" {
			break
		}
		dir = filepath.Join(dir, part)
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return fmt.Errorf("make cgroup parent: %w", err)
		}
	}
	on, err := os.ReadFile(filepath.Join(dir, "cgroup.subtree_control"))
	if err != nil {
		return fmt.Errorf("read cgroup controllers: %w", err)
	}
	have := strings.Fields(string(on))
	for _, c := range []string{"memory", "cpu", "pids"} {
		if !contains(have, c) {
			m.missing = append(m.missing, c)
		}
	}
	return nil
}

func contains(all []string, s string) bool {
	for _, x := range all {
		if x == s {
			return true
		}
	}
	return false
}

// Version is v1 or v2.
func (m *Manager) Version() string {
	if m.v2 {
		return "v2"
	}
	return "v1"
}

// Missing names the controllers that this machine does not give: their limits are not enforced.
func (m *Manager) Missing() []string { return m.missing }

func (m *Manager) dirs(id string) []string {
	if m.v2 {
		return []string{filepath.Join(m.mount, m.parent, id)}
	}
	var out []string
	for _, name := range m.v1Groups {
		out = append(out, filepath.Join(m.mount, name, m.parent, id))
	}
	return out
}

// file is the path of a control file, in the hierarchy of a controller.
func (m *Manager) file(id, controller, name string) string {
	if m.v2 {
		return filepath.Join(m.mount, m.parent, id, name)
	}
	return filepath.Join(m.mount, controller, m.parent, id, name)
}

// Create makes a group, which may be there already, and sets its limits.
func (m *Manager) Create(id string, l Limits) error {
	for _, dir := range m.dirs(id) {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return fmt.Errorf("make cgroup: %w", err)
		}
	}
	return m.Update(id, l)
}

// Procs are the files to write 0 to in order to join a group.
func (m *Manager) Procs(id string) []string {
	var out []string
	for _, dir := range m.dirs(id) {
		out = append(out, filepath.Join(dir, "cgroup.procs"))
	}
	return out
}

// Update changes the limits of a group.
func (m *Manager) Update(id string, l Limits) error {
	const period = 100_000
	quota := int64(math.Round(l.VCPU * period))
	if l.VCPU > 0 && quota < 1000 {
		quota = 1000 // the kernel's least
	}
	var err error
	if m.v2 {
		cpu, mem, pids := "max "+strconv.Itoa(period), "max", "max"
		if quota > 0 {
			cpu = fmt.Sprintf("%d %d", quota, period)
		}
		if l.MemoryBytes > 0 {
			mem = strconv.FormatInt(l.MemoryBytes, 10)
		}
		if l.Pids > 0 {
			pids = strconv.FormatInt(l.Pids, 10)
		}
		err = errors.Join(m.set(id, "memory", "memory.max", mem), m.set(id, "cpu", "cpu.max", cpu), m.set(id, "pids", "pids.max", pids))
		if l.MemoryBytes > 0 {
			_ = m.set(id, "memory", "memory.swap.max", "0") // absent without swap accounting
		}
		return err
	}
	mem, cpu, pids := "-1", "-1", "max"
	if l.MemoryBytes > 0 {
		mem = strconv.FormatInt(l.MemoryBytes, 10)
	}
	if quota > 0 {
		cpu = strconv.FormatInt(quota, 10)
	}
	if l.Pids > 0 {
		pids = strconv.FormatInt(l.Pids, 10)
	}
	// With swap the limit of both together may never be below that of memory: lifted first, set last.
	_ = m.set(id, "memory", "memory.memsw.limit_in_bytes", "-1")
	err = m.set(id, "memory", "memory.limit_in_bytes", mem)
	_ = m.set(id, "memory", "memory.memsw.limit_in_bytes", mem)
	return errors.Join(err, m.set(id, "cpu", "cpu.cfs_period_us", strconv.Itoa(period)), m.set(id, "cpu", "cpu.cfs_quota_us", cpu), m.set(id, "pids", "pids.max", pids))
}

func (m *Manager) set(id, controller, name, value string) error {
	if contains(m.missing, controller) {
		return nil
	}
	f, err := os.OpenFile(m.file(id, controller, name), os.O_WRONLY, 0)
	if err == nil {
		_, err = f.WriteString(value)
		err = errors.Join(err, f.Close())
	}
	if err != nil {
		return fmt.Errorf("set cgroup limit: %w", err)
	}
	return nil
}

// Stats reads a group. It fails where the group is gone.
func (m *Manager) Stats(id string) (Stats, error) {
	if _, err := os.Stat(m.dirs(id)[0]); err != nil {
		return Stats{}, fmt.Errorf("read cgroup: %w", err)
	}
	var s Stats
	if m.v2 {
		s.CPUSeconds = float64(m.keyed(m.file(id, "cpu", "cpu.stat"), "usage_usec")) / 1e6
		s.MemoryBytes = m.number(m.file(id, "memory", "memory.current"))
		s.MemoryPeak = m.number(m.file(id, "memory", "memory.peak"))
	} else {
		s.CPUSeconds = float64(m.number(m.file(id, "cpuacct", "cpuacct.usage"))) / 1e9
		s.MemoryBytes = m.number(m.file(id, "memory", "memory.usage_in_bytes"))
		s.MemoryPeak = m.number(m.file(id, "memory", "memory.max_usage_in_bytes"))
	}
	s.Pids = m.number(m.file(id, "pids", "pids.current"))
	return s, nil
}

// OOMKills counts the processes of a group that the kernel killed for memory; 0 where unknown.
func (m *Manager) OOMKills(id string) int64 {
	if m.v2 {
		return m.keyed(m.file(id, "memory", "memory.events"), "oom_kill")
	}
	return m.keyed(m.file(id, "memory", "memory.oom_control"), "oom_kill")
}

func (m *Manager) number(path string) int64 {
	b, err := os.ReadFile(path)
	if err != nil {
		return 0
	}
	n, _ := strconv.ParseInt(strings.TrimSpace(string(b)), 10, 64)
	return n
}

func (m *Manager) keyed(path, key string) int64 {
	b, err := os.ReadFile(path)
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(b)) {
		if f := strings.Fields(line); len(f) == 2 && f[0] == key {
			n, _ := strconv.ParseInt(f[1], 10, 64)
			return n
		}
	}
	return 0
}

// Members are the process ids in a group; none where it is gone.
func (m *Manager) Members(id string) []int {
	seen := map[int]bool{}
	var out []int
	for _, path := range m.Procs(id) {
		b, _ := os.ReadFile(path)
		for _, f := range strings.Fields(string(b)) {
			if pid, err := strconv.Atoi(f); err == nil && !seen[pid] {
				seen[pid] = true
				out = append(out, pid)
			}
		}
	}
	return out
}

// Remove removes a group whose processes are ending; one that is gone is fine. It waits up to five seconds for the last of them to leave.
func (m *Manager) Remove(id string) error {
	deadline := time.Now().Add(5 * time.Second)
	for _, dir := range m.dirs(id) {
		for {
			err := unix.Rmdir(dir)
			if err == nil || errors.Is(err, unix.ENOENT) {
				break
			}
			if !errors.Is(err, unix.EBUSY) || time.Now().After(deadline) {
				return fmt.Errorf("remove cgroup %s: %w", dir, err)
			}
			// The kernel has no event for it: a dying task leaves its group a little after it stops counting as alive.
			time.Sleep(2 * time.Millisecond)
		}
	}
	return nil
}

// List names the groups under the parent.
func (m *Manager) List() ([]string, error) {
	seen := map[string]bool{}
	var out []string
	for _, dir := range m.dirs("") {
		entries, err := os.ReadDir(dir)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return nil, fmt.Errorf("list cgroups: %w", err)
		}
		for _, e := range entries {
			if e.IsDir() && !seen[e.Name()] {
				seen[e.Name()] = true
				out = append(out, e.Name())
			}
		}
	}
	return out, nil
}

// Close removes the parent, and its own parents, where they are empty.
func (m *Manager) Close() {
	for _, dir := range m.dirs("") {
		for range strings.Count(m.parent, "/") + 1 {
			if unix.Rmdir(dir) != nil {
				break
			}
			dir = filepath.Dir(dir)
		}
	}
}
