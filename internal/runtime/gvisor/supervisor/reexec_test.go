package supervisor

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/berthrun/berth/internal/guest"
	"github.com/berthrun/berth/internal/runtime"
)

func TestSubcommand(t *testing.T) {
	for args, want := range map[string]string{
		"runsc-sandbox --root=/r --log-fd=3 boot --bundle=/b id": "boot",
		"runsc-gofer --root=/r gofer --bundle /b id":             "gofer",
		"exe umount --sync-fd=3 /proc":                           "umount",
		"berth-runtime serve --root boot":                        "",
		"berth-runtime":                                          "",
		"":                                                       "",
	} {
		if got, _ := subcommand(strings.Fields(args)); got != want {
			t.Errorf("subcommand(%q) = %q, want %q", args, got, want)
		}
	}
}

func TestHighestDonated(t *testing.T) {
	for args, want := range map[string]int{
		"x boot":             2,
		"x --log-fd=3 boot":  3,
		"x --log-fd=-1 boot": 2,
		"x --a-fd=4 boot --io-fds=7 --io-fds=9 --spec-fd=8 id": 9,
		"x boot --pass-fd=11:3":                                11,
		"x boot --cpu-num=40 --total-memory 99 id-fd=50":       2,
	} {
		if got := highestDonated(strings.Fields(args)); got != want {
			t.Errorf("highestDonated(%q) = %d, want %d", args, got, want)
		}
	}
}

func FuzzHighestDonated(f *testing.F) {
	f.Add("--log-fd=3", "--pass-fd=1:2")
	f.Fuzz(func(t *testing.T, a, b string) {
		if got := highestDonated([]string{a, b}); got < 2 {
			t.Errorf("highestDonated(%q, %q) = %d", a, b, got)
		}
	})
}

// A sandbox is not spared where the server is, and stays the first to go where all are.
func TestUnprotect(t *testing.T) {
	for before, want := range map[string]string{"-500\n": "0", "-1000\n": "0", "0\n": "0\n", "300\n": "300\n"} {
		file := filepath.Join(t.TempDir(), "oom_score_adj")
		if err := os.WriteFile(file, []byte(before), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := unprotect(file); err != nil {
			t.Fatal(err)
		}
		if got, _ := os.ReadFile(file); string(got) != want {
			t.Errorf("%q became %q, want %q", before, got, want)
		}
	}
}

// What a boot is told of the machine is ours, wherever gVisor has put its own.
func TestWithMachine(t *testing.T) {
	args := strings.Fields("x --root=/r boot --bundle=/b --total-host-memory 8 --total-memory 8 --spec-fd=3 id")
	got := withMachine(args, 2, join{TotalMemory: 5, CPUs: 2})
	want := strings.Fields("x --root=/r boot --total-memory=5 --cpu-num=2 --bundle=/b --total-host-memory 8 --spec-fd=3 id")
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	if diff := cmp.Diff(args, withMachine(args, 2, join{})); diff != "" {
		t.Errorf("with nothing to say (-want +got):\n%s", diff)
	}
}

// Only descriptors above the donated ones that survived an execution are closed.
func TestCloseLeaked(t *testing.T) {
	open := func(at int, cloexec bool) int {
		t.Helper()
		fd, err := unix.FcntlInt(0, unix.F_DUPFD, at)
		if err != nil {
			t.Skipf("no descriptor to copy: %v", err)
		}
		if cloexec {
			unix.CloseOnExec(fd)
		}
		t.Cleanup(func() { _ = unix.Close(fd) })
		return fd
	}
	donated, leaked, own := open(700, false), open(800, false), open(900, true)
	if err := closeLeaked(donated); err != nil {
		t.Fatal(err)
	}
	for name, tt := range map[string]struct {
		fd   int
		open bool
	}{"donated": {donated, true}, "leaked": {leaked, false}, "own": {own, true}} {
		_, err := unix.FcntlInt(uintptr(tt.fd), unix.F_GETFD, 0)
		if got := err == nil; got != tt.open {
			t.Errorf("%s is open = %v, want %v", name, got, tt.open)
		}
	}
}

// A process that cannot join its groups must not become a sandbox.
func TestPrepareFailsClosed(t *testing.T) {
	dir := t.TempDir()
	args := func() []string { return []string{"x", "boot", "--bundle=" + dir, "id"} }
	if err := prepare("boot", args(), 1); err == nil {
		t.Error("without a file that says what to join")
	}
	write := func(text string) {
		if err := os.WriteFile(filepath.Join(dir, joinFile), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(`{"procs":["` + dir + `/missing/cgroup.procs"]}`)
	if err := prepare("boot", args(), 1); err == nil {
		t.Error("with a group that is not there")
	}
	write(`{"procs":[`)
	if err := prepare("boot", args(), 1); err == nil {
		t.Error("with half a file")
	}
	procs := filepath.Join(dir, "cgroup.procs")
	write(`{"procs":["` + procs + `"]}`)
	if err := os.WriteFile(procs, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := prepare("gofer", []string{"x", "gofer", "--bundle", dir, "id"}, 1); err != nil {
		t.Errorf("gofer: %v", err)
	}
	if b, _ := os.ReadFile(procs); string(b) != "0" {
		t.Errorf("it wrote %q to its group, want 0", b)
	}
}

func TestGuestAddress(t *testing.T) {
	if want := ":" + strconv.Itoa(guest.Port); guestAddress != want {
		t.Errorf("guestAddress = %s, want %s", guestAddress, want)
	}
	if guestProtocol != guest.Protocol {
		t.Errorf("guestProtocol = %d, want %d", guestProtocol, guest.Protocol)
	}
}

func TestVisibleCPUs(t *testing.T) {
	for _, tt := range []struct {
		vcpu       float64
		host, want int
	}{{0.5, 8, 2}, {1, 8, 2}, {2.5, 8, 3}, {16, 8, 8}, {1, 1, 1}} {
		if got := visibleCPUs(tt.vcpu, tt.host); got != tt.want {
			t.Errorf("visibleCPUs(%v, %d) = %d, want %d", tt.vcpu, tt.host, got, tt.want)
		}
	}
}

func TestRecord(t *testing.T) {
	dir := t.TempDir()
	r := record{Spec: runtime.Spec{ID: "sbx_a"}, Generation: 3, Phase: running, Slot: 7}
	if err := r.save(dir); err != nil {
		t.Fatal(err)
	}
	got, err := loadRecord(dir, "sbx_a")
	if err != nil || got.Generation != 3 || got.Phase != running || got.Slot != 7 {
		t.Errorf("loadRecord = %+v, %v", got, err)
	}
	if _, err := loadRecord(dir, "sbx_b"); err == nil {
		t.Error("the record of another sandbox was taken")
	}
	if info, err := os.Stat(filepath.Join(dir, recordFile)); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v; want 0600, as it holds the guest's token", info.Mode(), err)
	}
}

// FuzzRecord: whatever is in the file, it is a whole record of the sandbox or an error.
func FuzzRecord(f *testing.F) {
	f.Add([]byte(`{"spec":{"ID":"sbx_a"},"phase":"running"}`))
	f.Add([]byte(`{"spec":{"ID":"sbx_a"},"pha`))
	f.Fuzz(func(t *testing.T, b []byte) {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, recordFile), b, 0o600); err != nil {
			t.Fatal(err)
		}
		if r, err := loadRecord(dir, "sbx_a"); err == nil && (r.Spec.ID != "sbx_a" || !r.Phase.known() || r.Slot < 0 || r.Boot.PID < 0) {
			t.Errorf("taken: %+v", r)
		}
	})
}

func TestFurnish(t *testing.T) {
	outside := t.TempDir()
	for _, tt := range []struct {
		name    string
		prepare func(root string) error
		fresh   bool
		resolv  string // afterwards; empty does not look
	}{
		{"an empty image", func(string) error { return nil }, true, resolvMark + "nameserver 10.0.0.1\n"},
		{"links out of it", func(root string) error {
			return firstError(os.Symlink(outside, filepath.Join(root, "tmp")), os.Mkdir(filepath.Join(root, "etc"), 0o755),
				os.Symlink(filepath.Join(outside, "hosts"), filepath.Join(root, "etc", "hosts")))
		}, true, ""},
		{"etc is a link", func(root string) error { return os.Symlink(outside, filepath.Join(root, "etc")) }, true, ""},
		{"a user's own resolv.conf", func(root string) error {
			return firstError(os.Mkdir(filepath.Join(root, "etc"), 0o755), os.WriteFile(filepath.Join(root, "etc", "resolv.conf"), []byte("mine"), 0o644))
		}, false, "mine"},
		{"our resolv.conf of an earlier boot", func(root string) error {
			return firstError(os.Mkdir(filepath.Join(root, "etc"), 0o755), os.WriteFile(filepath.Join(root, "etc", "resolv.conf"), []byte(resolvMark+"old"), 0o644))
		}, false, resolvMark + "nameserver 10.0.0.1\n"},
		{"a pipe as resolv.conf", func(root string) error {
			return firstError(os.Mkdir(filepath.Join(root, "etc"), 0o755), unix.Mkfifo(filepath.Join(root, "etc", "resolv.conf"), 0o644))
		}, false, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			root := t.TempDir()
			if err := tt.prepare(root); err != nil {
				t.Fatal(err)
			}
			if err := furnish(root, "box", "nameserver 10.0.0.1\n", tt.fresh); err != nil {
				t.Fatal(err)
			}
			if info, err := os.Lstat(filepath.Join(root, "tmp")); err != nil || !info.IsDir() || info.Mode().Perm() != 0o777 {
				t.Errorf("/tmp: %v, %v", info, err)
			}
			if tt.resolv != "" {
				if b, err := os.ReadFile(filepath.Join(root, "etc", "resolv.conf")); string(b) != tt.resolv {
					t.Errorf("resolv.conf = %q, %v; want %q", b, err, tt.resolv)
				}
			}
			if entries, _ := os.ReadDir(outside); len(entries) > 0 {
				t.Errorf("written outside: %v", entries)
			}
		})
	}
}

func firstError(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}
