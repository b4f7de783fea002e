package gvisor

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	goruntime "runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/berthrun/berth/internal/guest"
	"github.com/berthrun/berth/internal/runtime"
)

// descriptors are where the open files of a process lead, by number.
func openFiles(t *testing.T, pid int) map[int]string {
	t.Helper()
	dir := fmt.Sprintf("/proc/%d/fd", pid)
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	out := map[int]string{}
	for _, e := range entries {
		if to, err := os.Readlink(filepath.Join(dir, e.Name())); err == nil {
			n, _ := strconv.Atoi(e.Name())
			out[n] = to
		}
	}
	return out
}

func sockets(files map[int]string) []string {
	var out []string
	for _, f := range files {
		if strings.HasPrefix(f, "socket:") {
			out = append(out, f)
		}
	}
	return out
}

// Sandboxes that are created at once have as many sockets as one that is created alone, and none of them is another's. (In gVisor some are
// made without FD_CLOEXEC, so a boot that is executed at that moment inherits them.)
func TestDescriptorsDoNotLeakBetweenCreates(t *testing.T) {
	r := newRig(t)
	alone := r.create()
	boot, gofer := r.processes(alone.ID)
	wantBoot, wantGofer := len(sockets(openFiles(t, boot.PID))), len(sockets(openFiles(t, gofer.PID)))
	t.Logf("one alone: boot %d sockets, gofer %d", wantBoot, wantGofer)
	owner := map[string]string{}
	specs := r.createMany(12)
	for _, spec := range append(specs, alone) {
		boot, gofer := r.processes(spec.ID)
		ofBoot, ofGofer := openFiles(t, boot.PID), openFiles(t, gofer.PID)
		if got := len(sockets(ofBoot)); got != wantBoot {
			t.Errorf("boot has %d sockets, want %d: %v", got, wantBoot, ofBoot)
		}
		if got := len(sockets(ofGofer)); got != wantGofer {
			t.Errorf("gofer has %d sockets, want %d: %v", got, wantGofer, ofGofer)
		}
		for _, s := range append(sockets(ofBoot), sockets(ofGofer)...) {
			if other := owner[s]; other != "" && other != spec.ID {
				t.Errorf("%s belongs to %s and to %s", s, other, spec.ID)
			}
			owner[s] = spec.ID
		}
		for name, files := range map[string]map[int]string{"boot": ofBoot, "gofer": ofGofer} {
			for fd := range 3 {
				ok := files[fd] == "/dev/null" || files[fd] == ""
				if fd == 2 { // where gVisor's kernel says why it panics
					ok = ok || files[fd] == filepath.Join(r.cfg.Root, "sandboxes", spec.ID, "panic.log")
				}
				if !ok {
					t.Errorf("%s has %s as descriptor %d", name, files[fd], fd)
				}
			}
		}
	}
}

func (r *rig) createMany(n int) []runtime.Spec {
	r.t.Helper()
	specs, failed := make([]runtime.Spec, n), make([]error, n)
	ctx := r.ctx()
	var wg sync.WaitGroup
	for i := range specs {
		specs[i] = r.spec()
		wg.Go(func() { _, failed[i] = r.Create(ctx, specs[i]) })
	}
	wg.Wait()
	if err := errors.Join(failed...); err != nil {
		r.t.Fatal(err)
	}
	for _, s := range specs {
		r.awaitGuest(s.ID)
	}
	return specs
}

// tree is a process and all below it.
func tree(t *testing.T, root int) []int {
	t.Helper()
	parents := map[int]int{}
	stats, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, f := range stats {
		b, err := os.ReadFile(f)
		if err != nil {
			continue
		}
		var pid, ppid int
		var state string
		fmt.Sscanf(f, "/proc/%d/stat", &pid)
		fmt.Sscanf(string(b[strings.LastIndexByte(string(b), ')')+1:]), "%s %d", &state, &ppid)
		parents[pid] = ppid
	}
	out := []int{root}
	for pid := range parents {
		for p := parents[pid]; p > 1; p = parents[p] {
			if p == root {
				out = append(out, pid)
				break
			}
		}
	}
	return out
}

// Every process of a sandbox that was created beside others is in its own groups and namespaces, and the runtime itself has not moved.
func TestNamespacesAndCgroups(t *testing.T) {
	r := newRig(t)
	self, err := r.runtimePID()
	if err != nil {
		t.Fatal(err)
	}
	groupsOf := func(pid int) string {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	nsOf := func(pid int, kind string) string {
		to, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/%s", pid, kind))
		if err != nil {
			t.Fatal(err)
		}
		return to
	}
	before, hostNet := groupsOf(self), nsOf(self, "net")
	seen := map[string]string{}
	for _, spec := range r.createMany(8) {
		boot, gofer := r.processes(spec.ID)
		for _, pid := range append(tree(t, boot.PID), tree(t, gofer.PID)...) {
			for line := range strings.Lines(groupsOf(pid)) {
				f := strings.SplitN(strings.TrimSpace(line), ":", 3)
				switch f[1] {
				case "memory", "cpu", "cpuacct", "cpu,cpuacct", "pids":
					if !strings.HasSuffix(f[2], "/"+spec.ID) {
						t.Errorf("process %d of %s is in %s", pid, spec.ID, strings.TrimSpace(line))
					}
				}
			}
		}
		var st unix.Stat_t
		if err := unix.Stat(filepath.Join(r.cfg.Root, "netns", spec.ID), &st); err != nil {
			t.Fatal(err)
		}
		if got, want := nsOf(boot.PID, "net"), fmt.Sprintf("net:[%d]", st.Ino); got != want {
			t.Errorf("boot of %s is in %s, want %s", spec.ID, got, want)
		}
		for _, kind := range []string{"net", "mnt", "pid", "user"} {
			ns := nsOf(boot.PID, kind)
			if other := seen[ns]; other != "" {
				t.Errorf("%s and %s share %s", spec.ID, other, ns)
			}
			seen[ns] = spec.ID
		}
		var facts struct {
			PID         int
			Hostname    string
			MemTotalKiB string
			CPUs        int
			Addresses   []string
		}
		if _, err := r.ask(spec.ID, "GET", "/test/facts", nil, &facts); err != nil {
			t.Fatal(err)
		}
		now, _ := r.Get(r.ctx(), spec.ID)
		if facts.PID != 1 || facts.Hostname != "box" || facts.MemTotalKiB != "262144" || facts.CPUs != min(2, goruntime.NumCPU()) {
			t.Errorf("inside of %s: %+v", spec.ID, facts)
		}
		if diff := cmp.Diff([]string{"127.0.0.1/8", now.Address + "/30"}, facts.Addresses); diff != "" {
			t.Errorf("addresses inside (-want +got):\n%s", diff)
		}
	}
	if got := groupsOf(self); got != before {
		t.Errorf("the runtime moved from\n%s to\n%s", before, got)
	}
	tasks, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/ns/net", self))
	for _, f := range tasks {
		if to, err := os.Readlink(f); err == nil && to != hostNet {
			t.Errorf("thread %s of the runtime is in %s", f, to)
		}
	}
}

// internetOf makes a namespace that the host routes to, with the given addresses, and a listener on port 80 of all of them. It accepts and
// says who came.
func internetOf(t *testing.T, addresses ...string) <-chan string {
	t.Helper()
	host, err := os.Open("/proc/thread-self/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	defer host.Close()
	name := fmt.Sprintf("brt%d", os.Getpid())
	type result struct {
		ln  net.Listener
		err error
	}
	made := make(chan result, 1)
	go func() {
		goruntime.LockOSThread() // never given back: it ends with its namespace
		must := func(errs ...error) error { return errors.Join(errs...) }
		err := unix.Unshare(unix.CLONE_NEWNET)
		if err == nil {
			a := netlink.NewLinkAttrs()
			a.Name = "eth0"
			err = netlink.LinkAdd(&netlink.Veth{LinkAttrs: a, PeerName: name, PeerNamespace: netlink.NsFd(int(host.Fd()))})
		}
		if err == nil {
			l, _ := netlink.LinkByName("eth0")
			for _, a := range addresses {
				na, e := netlink.ParseAddr(a + "/32")
				err = must(err, e, netlink.AddrAdd(l, na))
			}
			err = must(err, netlink.LinkSetUp(l))
			_, all, _ := net.ParseCIDR("0.0.0.0/0")
			err = must(err, netlink.RouteAdd(&netlink.Route{LinkIndex: l.Attrs().Index, Dst: all, Scope: netlink.SCOPE_LINK}))
		}
		var ln net.Listener
		if err == nil {
			ln, err = net.Listen("tcp4", "0.0.0.0:80")
		}
		made <- result{ln, err}
	}()
	res := <-made
	t.Cleanup(func() {
		if l, err := netlink.LinkByName(name); err == nil {
			_ = netlink.LinkDel(l)
		}
	})
	if res.err != nil {
		t.Fatal(res.err)
	}
	t.Cleanup(func() { res.ln.Close() })
	l, err := netlink.LinkByName(name)
	if err != nil {
		t.Fatal(err)
	}
	own, _ := netlink.ParseAddr("198.51.100.1/32")
	if err := errors.Join(netlink.AddrAdd(l, own), netlink.LinkSetUp(l)); err != nil {
		t.Fatal(err)
	}
	for _, a := range addresses {
		_, dst, _ := net.ParseCIDR(a + "/32")
		if err := netlink.RouteAdd(&netlink.Route{LinkIndex: l.Attrs().Index, Dst: dst, Scope: netlink.SCOPE_LINK, Src: net.ParseIP("198.51.100.1")}); err != nil {
			t.Fatal(err)
		}
	}
	came := make(chan string, 16)
	go func() {
		for {
			c, err := res.ln.Accept()
			if err != nil {
				return
			}
			from, _, _ := net.SplitHostPort(c.RemoteAddr().String())
			select {
			case came <- from:
			default:
			}
			c.Close()
		}
	}()
	return came
}

func TestNetworkIsolation(t *testing.T) {
	r := newRig(t)
	came := internetOf(t, "198.51.100.2", "169.254.169.254")
	a, b := r.create(), r.create()
	none := r.create(func(s *runtime.Spec) { s.Network = runtime.NetworkNone })
	statusB, _ := r.Get(r.ctx(), b.ID)
	statusA, _ := r.Get(r.ctx(), a.ID)
	onHost, err := net.Listen("tcp4", "0.0.0.0:0")
	if err != nil {
		t.Fatal(err)
	}
	defer onHost.Close()
	go func() {
		for {
			c, err := onHost.Accept()
			if err != nil {
				return
			}
			c.Close()
		}
	}()
	port := fmt.Sprint(onHost.Addr().(*net.TCPAddr).Port)
	gateway := strings.TrimSuffix(statusA.Address, "2") + "1"
	for _, tt := range []struct {
		name, from, to string
		open           bool
	}{
		{"the internet", a.ID, "198.51.100.2:80", true},
		{"metadata", a.ID, "169.254.169.254:80", false},
		{"the host by its gateway address", a.ID, gateway + ":" + port, false},
		{"the host by another address", a.ID, "198.51.100.1:" + port, false},
		{"the guest of another sandbox", a.ID, net.JoinHostPort(statusB.Address, fmt.Sprint(guest.Port)), false},
		{"without a network, the internet", none.ID, "198.51.100.2:80", false},
		{"without a network, the host", none.ID, "198.51.100.1:" + port, false},
		{"without a network, a sandbox", none.ID, net.JoinHostPort(statusB.Address, fmt.Sprint(guest.Port)), false},
		{"itself", a.ID, "127.0.0.1:" + fmt.Sprint(guest.Port), true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, err := r.ask(tt.from, "POST", "/test/dial?to="+url.QueryEscape(tt.to), nil, nil)
			if open := err == nil; open != tt.open {
				t.Errorf("reached = %v (%v), want %v", open, err, tt.open)
			}
		})
	}
	select {
	case from := <-came:
		if from != "198.51.100.1" {
			t.Errorf("the internet sees %s, want the host's address: it is not masqueraded", from)
		}
	default:
		t.Error("the internet saw nobody")
	}
	t.Run("a user of the host", func(t *testing.T) {
		exe, err := os.Executable()
		if err != nil {
			t.Fatal(err)
		}
		for uid, want := range map[uint32]bool{0: true, 65534: false} {
			// Everyone may execute it from here.
			f, err := os.CreateTemp("/tmp", "dial")
			if err != nil {
				t.Fatal(err)
			}
			defer os.Remove(f.Name())
			in, _ := os.Open(exe)
			_, err = io.Copy(f, in)
			if err := errors.Join(err, in.Close(), f.Chmod(0o755), f.Close()); err != nil {
				t.Fatal(err)
			}
			cmd := exec.Command(f.Name())
			cmd.Env = []string{"BERTH_TEST_DIAL=" + net.JoinHostPort(statusB.Address, fmt.Sprint(guest.Port))}
			cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
			out, err := cmd.CombinedOutput()
			if got := err == nil; got != want {
				t.Errorf("uid %d reached the guest = %v (%v, %s), want %v", uid, got, err, out, want)
			}
		}
	})
}

// A tenant's links never lead the runtime out of the disk.
func TestPlantedLinks(t *testing.T) {
	r := newRig(t)
	spec := r.create()
	victim := t.TempDir()
	for _, name := range []string{"hosts", "resolv.conf", "kept"} {
		if err := os.WriteFile(filepath.Join(victim, name), []byte("mine"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for at, to := range map[string]string{"/tmp": victim, "/etc": victim} {
		if _, err := r.ask(spec.ID, "POST", "/test/symlink?at="+at+"&to="+to, nil, nil); err != nil && at != "/tmp" {
			t.Fatal(err) // /tmp is a mount: it may refuse
		}
	}
	if _, err := r.Stop(r.ctx(), spec.ID, 2, runtime.StopOptions{}); err != nil {
		t.Fatal(err)
	}
	// What a tenant cannot do from inside it could on another host, or before: the disk itself is the attacker.
	upper := filepath.Join(r.cfg.Root, "disks", "trees", spec.ID, "upper")
	if err := errors.Join(os.RemoveAll(filepath.Join(upper, "tmp")), os.Symlink(victim, filepath.Join(upper, "tmp"))); err != nil {
		t.Fatal(err)
	}
	spec.Generation = 3
	if _, err := r.Start(r.ctx(), spec); err != nil {
		t.Fatal(err)
	}
	r.awaitGuest(spec.ID)
	r.write(spec.ID, "/tmp/planted", "x")
	if text, err := r.read(spec.ID, "/tmp/kept"); err == nil {
		t.Errorf("the sandbox reads a file of the host: %q", text)
	}
	entries, _ := os.ReadDir(victim)
	if len(entries) != 3 {
		t.Errorf("the host's folder has %v, want the three files", entries)
	}
	for _, e := range entries {
		if b, _ := os.ReadFile(filepath.Join(victim, e.Name())); string(b) != "mine" {
			t.Errorf("%s of the host was changed to %q", e.Name(), b)
		}
	}
}
