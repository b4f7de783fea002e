package xtest

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// groups is where control groups are mounted.
const groups = "/sys/fs/cgroup"

// machine is a systemd that runs as the first process of its own namespaces, over this machine's files (testdata/boot).
type machine struct {
	t      *testing.T
	shared string   // the folder that it has at /mnt/shared
	dirs   []string // its control groups, one a hierarchy
	first  int      // systemd's process id, out here
	cmd    *exec.Cmd
}

// layouts are the ways to mount control groups that this machine can show to another: version 2 alone, and where there is version 1, both.
func layouts() []string {
	if _, err := os.Stat(filepath.Join(groups, "cgroup.controllers")); err == nil {
		return []string{"unified"}
	}
	return []string{"unified", "hybrid"}
}

// hierarchies are the folders below which there are control groups.
func hierarchies() []string {
	if _, err := os.Stat(filepath.Join(groups, "cgroup.procs")); err == nil {
		return []string{groups}
	}
	var all []string
	files, _ := filepath.Glob(groups + "/*/cgroup.procs")
	for _, file := range files {
		if _, err := os.Readlink(filepath.Dir(file)); err != nil { // another name of one is a link
			all = append(all, filepath.Dir(file))
		}
	}
	return all
}

// boot starts a machine, and ends it and all that runs in it with the test.
func boot(t *testing.T, layout, shared string) *machine {
	t.Helper()
	base, err := filepath.Abs(need(t, "BERTH_BASE_DIR"))
	if err != nil {
		t.Fatal(err)
	}
	m := &machine{t: t, shared: shared}
	join := ""
	for _, dir := range hierarchies() {
		group := filepath.Join(dir, fmt.Sprintf("berth-test-machine-%d-%s", os.Getpid(), layout))
		if err := os.Mkdir(group, 0o755); err != nil {
			t.Fatal(err)
		}
		m.dirs = append(m.dirs, group)
		t.Cleanup(func() { removeGroups(t, group) })
		for _, file := range []string{"cpuset.cpus", "cpuset.mems"} { // of version 1: empty, and then nothing can join
			if b, err := os.ReadFile(filepath.Join(dir, file)); err == nil {
				_ = os.WriteFile(filepath.Join(group, file), b, 0)
			}
		}
		join += "echo 0 > " + filepath.Join(group, "cgroup.procs") + "; "
	}
	// It ends with this process, and its first process with it.
	m.cmd = exec.Command("sh", "-ec", join+`exec unshare --mount --pid --fork --kill-child --cgroup --uts --ipc --net "$@"`, //nolint:gosec // of this repository
		"sh", "testdata/boot", t.TempDir(), shared, layout, base)
	m.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setsid: true}
	var out strings.Builder
	m.cmd.Stdout, m.cmd.Stderr = &out, &out
	if err := m.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	over := make(chan struct{})
	go func() {
		defer close(over)
		_ = m.cmd.Wait()
	}()
	t.Cleanup(func() {
		_ = m.cmd.Process.Kill()
		<-over
	})
	t.Cleanup(func() { // before it ends
		if t.Failed() && m.first != 0 {
			t.Logf("the journal:\n%s", m.output("journalctl", "--no-pager", "-o", "short-monotonic"))
		}
	})
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(20 * time.Millisecond) {
		select {
		case <-over:
			t.Fatalf("the machine does not start: %s", out.String())
		default:
		}
		if m.first == 0 {
			m.first = firstOf(m.cmd.Process.Pid)
		} else if strings.TrimSpace(m.output("systemctl", "is-system-running", "--wait")) == "running" {
			return m
		}
		if time.Now().After(deadline) {
			t.Fatalf("the machine does not come up: %s", m.output("systemctl", "--failed", "--no-pager"))
		}
	}
}

// firstOf gives systemd below an unshare; 0 where it is not there yet.
func firstOf(unshare int) int {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", unshare, unshare))
	if err != nil {
		return 0
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(b)))
	if err != nil {
		return 0
	}
	if exe, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", pid)); err != nil || filepath.Base(exe) != "systemd" {
		return 0
	}
	return pid
}

// removeGroups removes a group with those below it. The kernel has no event for the last of its tasks' leaving it.
func removeGroups(t *testing.T, group string) {
	t.Helper()
	var failed error
	for deadline := time.Now().Add(30 * time.Second); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		var below []string
		_ = filepath.WalkDir(group, func(path string, e os.DirEntry, err error) error {
			if err == nil && e.IsDir() {
				below = append(below, path)
			}
			return nil
		})
		failed = nil
		for i := len(below) - 1; i >= 0; i-- {
			if err := unix.Rmdir(below[i]); err != nil {
				failed = fmt.Errorf("%s: %w", below[i], err)
			}
		}
		if failed == nil {
			return
		}
	}
	t.Errorf("left: %v", failed)
}

// command is a program in the machine.
func (m *machine) command(args ...string) *exec.Cmd {
	cmd := exec.Command("nsenter", append([]string{ //nolint:gosec // as the test says
		"-t", strconv.Itoa(m.first), "--mount", "--pid", "--uts", "--ipc", "--net", "--cgroup", "--root", "--wd",
		"env", "-i", "PATH=/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL=C", "DEBIAN_FRONTEND=noninteractive",
	}, args...)...)
	return cmd
}

// output is what a program in the machine writes, whether or not it fails.
func (m *machine) output(args ...string) string {
	out, _ := m.command(args...).CombinedOutput()
	return string(out)
}

// run runs a program in the machine, which must succeed.
func (m *machine) run(args ...string) string {
	m.t.Helper()
	out, err := m.command(args...).CombinedOutput()
	if err != nil {
		m.t.Fatalf("%v: %v\n%s", args, err, out)
	}
	return strings.TrimSpace(string(out))
}

// path is a file of the machine, out here.
func (m *machine) path(name string) string {
	return filepath.Join("/proc", strconv.Itoa(m.first), "root", name)
}

// write writes a file of the machine.
func (m *machine) write(name, content string) {
	m.t.Helper()
	if err := os.MkdirAll(filepath.Dir(m.path(name)), 0o755); err != nil {
		m.t.Fatal(err)
	}
	if err := os.WriteFile(m.path(name), []byte(content), 0o600); err != nil {
		m.t.Fatal(err)
	}
}

// show is a property of the service.
func (m *machine) show(property string) string {
	m.t.Helper()
	return m.run("systemctl", "show", "--value", "-p", property, "berth.service")
}

// started names the processes of the machine whose program's name contains one of the words, each with the time of its start: a process that is the same later.
func (m *machine) started(words ...string) []string {
	m.t.Helper()
	dirs, err := filepath.Glob(m.path("proc/[0-9]*"))
	if err != nil || len(dirs) == 0 {
		m.t.Fatal("the machine has no processes")
	}
	var all []string
	for _, dir := range dirs {
		args, _ := os.ReadFile(filepath.Join(dir, "cmdline")) //nolint:gosec // of the kernel
		stat, err := os.ReadFile(filepath.Join(dir, "stat"))  //nolint:gosec // as above
		name, _, _ := strings.Cut(string(args), "\x00")
		if err != nil || !slices.ContainsFunc(words, func(word string) bool { return strings.Contains(filepath.Base(name), word) }) {
			continue
		}
		fields := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
		all = append(all, fmt.Sprintf("%s %s since %s", filepath.Base(dir), filepath.Base(name), fields[19]))
	}
	return all
}

// pid is the process id of what started gives.
func pid(started string) string {
	id, _, _ := strings.Cut(started, " ")
	return id
}
