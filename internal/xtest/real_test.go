package xtest

import (
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"

	"github.com/berthrun/berth/api"
)

// TestReal is a session with real sandboxes: the symptoms of the field, the tools of the base image, the network, the limits.
func TestReal(t *testing.T) {
	r := StartReal(t)
	t.Run("symptoms", func(t *testing.T) { symptoms(t, &r.System, true) })
	t.Run("base", func(t *testing.T) { base(t, r) })
	t.Run("found again after a restart", func(t *testing.T) { restart(t, r) })
	t.Run("no network", func(t *testing.T) { noNetwork(t, r) })
	t.Run("processes", func(t *testing.T) { manyProcesses(t, r) })
}

func base(t *testing.T, r *Real) {
	id := Sandbox(t, r.Client, api.CreateSandboxIn{})
	for command, want := range map[string]string{
		"whoami":                     "user",
		"echo $HOME":                 "/home/user",
		"pwd":                        "/workspace",
		"sudo -n whoami":             "root",
		"stat -c %U /workspace":      "user",
		"python3 -c 'print(6*7)'":    "42",
		"node -e 'console.log(6*7)'": "42",
		"npm --version >/dev/null && pip --version >/dev/null && git --version >/dev/null && curl --version >/dev/null && echo all": "all",
		"python3 -m venv v && v/bin/python -c 'print(1)'":                                    "1",
		"printf '#include <stdio.h>\\nint main(){puts(\"c\");}' > a.c && gcc a.c && ./a.out": "c",
		"ls /etc/ssl/certs/ca-certificates.crt":                                              "/etc/ssl/certs/ca-certificates.crt",
	} {
		out := Exec(t, r.Client, id, command)
		if strings.TrimSpace(out.Stdout) != want {
			t.Errorf("%s: %q, want %q (exit %v, stderr %q)", command, out.Stdout, want, out.ExitCode, out.Stderr)
		}
	}
	// A server inside, reached from inside.
	start(t, r.Client, id, "echo served > page; python3 -m http.server 8000")
	eventually(t, func() bool {
		return Exec(t, r.Client, id, "curl -s http://127.0.0.1:8000/page").Stdout == "served\n"
	})
}

// restart ends the server in order and starts it again: sandboxes and processes go on.
func restart(t *testing.T, r *Real) {
	id := Sandbox(t, r.Client, api.CreateSandboxIn{})
	p := start(t, r.Client, id, "echo before; while ! test -e /workspace/go; do sleep 0.1; done; echo after")
	before := Must(t, r.Client, api.GetSandbox, in(id)).Sandbox
	r.Stop()
	r.Serve()
	after := Must(t, r.Client, api.GetSandbox, in(id)).Sandbox
	if after.State != api.StateRunning || after.Generation != before.Generation {
		t.Errorf("found again as %s, generation %d; was %s, %d", after.State, after.Generation, before.State, before.Generation)
	}
	Exec(t, r.Client, id, "touch /workspace/go")
	if got := read(t, r.Client, id, p, 20); got != "before\nafter\n" {
		t.Errorf("its process wrote %q", got)
	}
}

// manyProcesses starts more than a sandbox may have: the rest is refused to the program that wants it, and the sandbox goes on.
func manyProcesses(t *testing.T, r *Real) {
	for _, user := range []string{"user", "root"} {
		id := Sandbox(t, r.Client, api.CreateSandboxIn{Resources: &api.ResourcesIn{MemoryMiB: 2048}})
		out := Must(t, r.Client, api.Exec, api.ExecIn{SandboxIn: in(id), CommandIn: api.CommandIn{User: user, Argv: []string{"python3", "-c", `
import os, signal, time
started = []
try:
    while len(started) < 1500:
        pid = os.fork()
        if pid == 0:
            time.sleep(60)
            os._exit(0)
        started.append(pid)
except OSError:
    pass
print(len(started))
for pid in started:
    os.kill(pid, signal.SIGKILL)
for pid in started:
    os.waitpid(pid, 0)
`}}})
		if n, err := strconv.Atoi(strings.TrimSpace(out.Stdout)); err != nil || n < 100 || n > 2048/6 {
			t.Errorf("%s started %q, want at most %d (%s)", user, out.Stdout, 2048/6, out.Stderr)
		}
		if out := Exec(t, r.Client, id, "echo on"); out.Stdout != "on\n" {
			t.Errorf("afterwards: %+v", out)
		}
	}
}

func noNetwork(t *testing.T, r *Real) {
	off := false
	id := Sandbox(t, r.Client, api.CreateSandboxIn{Network: &api.NetworkIn{Internet: &off}})
	// Nobody answers at this address; with a network the host would at least refuse or route it.
	out := Exec(t, r.Client, id, "python3 - <<'EOF'\nimport socket\ns = socket.socket(); s.settimeout(2)\ntry:\n  s.connect(('192.0.2.1', 80)); print('connected')\nexcept OSError as e:\n  print('no')\nEOF")
	if strings.TrimSpace(out.Stdout) != "no" {
		t.Errorf("%+v", out)
	}
}

// TestNothingIsLeft makes and deletes 200 sandboxes, four at a time.
func TestNothingIsLeft(t *testing.T) {
	if testing.Short() {
		t.Skip("it takes minutes")
	}
	r := StartReal(t)
	// The first one makes what is kept for all, and tells the mark of this server among others on the machine.
	first := created(t, r)
	mark := markOf(t, first)
	Must(t, r.Client, api.DeleteSandbox, api.SandboxWaitIn{WaitIn: wait(30), SandboxIn: in(first)})
	before := traces(t, r, mark)
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range 50 {
				id := created(t, r)
				if t.Failed() {
					return
				}
				out := Must(t, r.Client, api.DeleteSandbox, api.SandboxWaitIn{WaitIn: wait(30), SandboxIn: in(id)})
				if !out.Deleted {
					t.Errorf("%s is not gone after 30 s", id)
				}
			}
		})
	}
	wg.Wait()
	if diff := cmp.Diff(before, traces(t, r, mark)); diff != "" {
		t.Errorf("before and after (-before +after):\n%s", diff)
	}
}

func created(t *testing.T, r *Real) string {
	t.Helper()
	out := Must(t, r.Client, api.CreateSandbox, api.CreateSandboxIn{WaitIn: wait(30), Resources: &api.ResourcesIn{MemoryMiB: 256}})
	if !out.Ready {
		t.Errorf("not ready: %+v", out.Sandbox)
	}
	return out.Sandbox.ID
}

// markOf finds the mark that the runtime of a sandbox gives to what it puts into the machine: groups stand in a folder of that name.
func markOf(t *testing.T, sandbox string) string {
	t.Helper()
	found, _ := filepath.Glob("/sys/fs/cgroup/*/berth/*/" + sandbox)
	if len(found) == 0 {
		found, _ = filepath.Glob("/sys/fs/cgroup/berth/*/" + sandbox)
	}
	if len(found) == 0 {
		t.Fatalf("no group of %s", sandbox)
	}
	return filepath.Base(filepath.Dir(found[0]))
}

// traces lists what the sandboxes of one server leave on a machine: processes, mounts, namespaces, groups, interfaces, files.
func traces(t *testing.T, r *Real, mark string) map[string][]string {
	t.Helper()
	all := map[string][]string{}
	for _, p := range r.Processes() {
		_, args, _ := strings.Cut(p, " ")
		all["processes"] = append(all["processes"], args)
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(mounts)) {
		if strings.Contains(line, r.Dir) {
			all["mounts"] = append(all["mounts"], strings.Fields(line)[4])
		}
	}
	links, err := netlink.LinkList()
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range links {
		if strings.Contains(l.Attrs().Name, mark) {
			all["interfaces"] = append(all["interfaces"], l.Attrs().Name)
		}
	}
	for name, root := range map[string]string{"groups": "/sys/fs/cgroup", "files": filepath.Join(r.Dir, "data", "node")} {
		_ = filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
			if err == nil && (name != "groups" || d.IsDir() && strings.Contains(path, "/berth/"+mark)) && !strings.Contains(path, "/images/") && !strings.HasSuffix(path, ".log") {
				all[name] = append(all[name], path)
			}
			return nil
		})
	}
	for k := range all {
		slices.Sort(all[k])
	}
	return all
}
