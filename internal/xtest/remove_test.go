package xtest

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berthrun/berth/api"
)

// TestRemove ends a server and then berth-runtime in different ways, as people do by hand, and has berth remove take away what is left: the sandboxes that
// go on, their mounts, their disks' image and its device.
func TestRemove(t *testing.T) {
	for name, end := range map[string]func(t *testing.T, pid int){
		"runtime ended in order": func(t *testing.T, pid int) { endProcess(t, pid, syscall.SIGTERM) },
		"runtime killed":         func(t *testing.T, pid int) { endProcess(t, pid, syscall.SIGKILL) },
		"runtime hangs": func(t *testing.T, pid int) {
			signal(t, pid, syscall.SIGSTOP)
			t.Cleanup(func() { _ = syscall.Kill(pid, syscall.SIGCONT) }) // where it is still there
		},
		"runtime serves": func(*testing.T, int) {},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := StartReal(t)
			data := filepath.Join(r.Dir, "data")
			runs(t, r)
			r.Stop()
			pid, err := r.runtimePID()
			if err != nil {
				t.Fatal(err)
			}
			end(t, pid)
			if len(r.Processes()) < 2 || len(machineHas(t, data)) == 0 {
				t.Fatalf("before, it has the processes %v, and %v", r.Processes(), machineHas(t, data))
			}
			out, code := removes(t, r)
			if code != 0 || !strings.Contains(out, "Removed.") {
				t.Errorf("exit %d: %s", code, out)
			}
			if left := append(r.Processes(), machineHas(t, data)...); len(left) > 0 {
				t.Errorf("left:\n%s", strings.Join(left, "\n"))
			}
			if _, err := os.Stat(data); !os.IsNotExist(err) {
				t.Errorf("the data folder: %v", err)
			}
		})
	}
}

// TestRemoveSaysWhatIsLeft keeps a mount in the data folder in use: it is named, nothing of the data is removed, and a second try removes all.
func TestRemoveSaysWhatIsLeft(t *testing.T) {
	r := StartReal(t)
	data := filepath.Join(r.Dir, "data")
	runs(t, r)
	r.Stop()
	pid, err := r.runtimePID()
	if err != nil {
		t.Fatal(err)
	}
	endProcess(t, pid, syscall.SIGTERM)
	at := filepath.Join(data, "node", "mounts", "in use")
	if err := errors.Join(os.Mkdir(at, 0o700), unix.Mount("tmpfs", at, "tmpfs", 0, "")); err != nil {
		t.Fatal(err)
	}
	f, err := os.Create(filepath.Join(at, "file"))
	if err != nil {
		t.Fatal(err)
	}
	out, code := removes(t, r)
	if code == 0 || strings.Contains(out, "Removed.") || !strings.Contains(out, at+" is still mounted") || !strings.Contains(out, "run it again") {
		t.Errorf("exit %d: %s", code, out)
	}
	if _, err := os.Stat(filepath.Join(data, "berth.db")); err != nil {
		t.Error(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	if out, code := removes(t, r); code != 0 {
		t.Errorf("again: exit %d: %s", code, out)
	}
	if left := append(r.Processes(), machineHas(t, data)...); len(left) > 0 {
		t.Errorf("left:\n%s", strings.Join(left, "\n"))
	}
}

// runs has a sandbox run.
func runs(t *testing.T, r *Real) {
	t.Helper()
	id := Must(t, r.Client, api.CreateSandbox, api.CreateSandboxIn{WaitIn: wait(30), Resources: &api.ResourcesIn{MemoryMiB: 256}}).Sandbox.ID
	eventually(t, func() bool { return Must(t, r.Client, api.GetSandbox, in(id)).Sandbox.State == api.StateRunning })
}

// removes runs berth remove.
func removes(t *testing.T, r *Real) (out string, code int) {
	t.Helper()
	cmd := exec.Command(r.bin, "remove", "--yes", "--data", filepath.Join(r.Dir, "data")) //nolint:gosec // the program under test
	b, err := cmd.CombinedOutput()
	if e, ok := errors.AsType[*exec.ExitError](err); ok {
		return string(b), e.ExitCode()
	}
	if err != nil {
		t.Fatal(err)
	}
	return string(b), 0
}

// machineHas lists the mounts and loop devices of this machine that name a folder.
func machineHas(t *testing.T, dir string) []string {
	t.Helper()
	b, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for line := range strings.Lines(string(b)) {
		if strings.Contains(line, dir+"/") {
			all = append(all, strings.TrimSpace(line))
		}
	}
	devices, _ := filepath.Glob("/sys/block/loop*/loop/backing_file")
	for _, file := range devices {
		if b, _ := os.ReadFile(file); strings.HasPrefix(string(b), dir+"/") {
			all = append(all, file)
		}
	}
	return all
}

func signal(t *testing.T, pid int, sig syscall.Signal) {
	t.Helper()
	if err := syscall.Kill(pid, sig); err != nil {
		t.Fatal(err)
	}
}

// endProcess ends a process that is no child of this one and waits until it has.
func endProcess(t *testing.T, pid int, sig syscall.Signal) {
	t.Helper()
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd) //nolint:errcheck // it is read no more
	signal(t, pid, sig)
	for {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, int(time.Minute/time.Millisecond))
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if n != 1 {
			t.Fatalf("process %d does not end: %v", pid, err)
		}
		return
	}
}
