package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/berthrun/berth/internal/guest"
)

const token = "a-token-that-nobody-sees"

// built is the program, built once.
var built string

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "berth-guest")
	if err != nil {
		panic(err)
	}
	built = filepath.Join(dir, "berth-guest")
	cmd := exec.Command("go", "build", "-o", built, ".")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "build: %v\n%s", err, out)
		os.Exit(1)
	}
	code := m.Run()
	_ = os.RemoveAll(dir)
	os.Exit(code)
}

// box is a guest that is pid 1 of a namespace of processes of its own.
type box struct {
	*guest.Client
	cmd *exec.Cmd
	log *bytes.Buffer
	pid int // of the guest, seen from outside
}

// boot starts the guest as pid 1 in namespaces of its own, with its own /proc, on an address of its own.
func boot(t *testing.T) *box {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root for a namespace")
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := l.Addr().String()
	_ = l.Close()
	b := &box{log: &bytes.Buffer{}}
	// The files that a guest writes are covered, so that nothing changes on this machine.
	b.cmd = exec.Command("/bin/sh", "-c", `set -e
		mount -t proc proc /proc
		mount -t tmpfs none /mnt
		echo 127.0.0.1 localhost > /mnt/hosts; mount --bind /mnt/hosts /etc/hosts
		echo old > /mnt/hostname; mount --bind /mnt/hostname /etc/hostname
		exec "$0"`, built)
	b.cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "FIRST=1", "BERTH_GUEST_TOKEN=" + token, "BERTH_GUEST_ADDR=" + addr, "LAST=1"}
	b.cmd.Stderr = b.log
	b.cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: syscall.CLONE_NEWPID | syscall.CLONE_NEWNS | syscall.CLONE_NEWUTS, Unshareflags: syscall.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL,
	}
	made := false
	if _, err := os.Stat(guest.DefaultWorkDir); os.IsNotExist(err) {
		made = true
	}
	if err := b.cmd.Start(); err != nil {
		t.Skipf("no namespaces: %v", err)
	}
	b.pid = b.cmd.Process.Pid
	b.Client = guest.NewClient(func(ctx context.Context) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "tcp", addr)
	}, func() string { return token })
	t.Cleanup(func() {
		b.Close()
		_ = b.cmd.Process.Kill()
		_ = b.cmd.Wait()
		if made {
			_ = os.Remove(guest.DefaultWorkDir)
		}
		if t.Failed() {
			t.Logf("the guest said: %s", b.log)
		}
	})
	if _, err := b.Hello(t.Context()); err != nil {
		t.Fatalf("hello: %v\n%s", err, b.log)
	}
	return b
}

func (b *box) exec(t *testing.T, id, command string) string {
	t.Helper()
	res, err := b.Exec(t.Context(), guest.Start{ID: id, Command: command, Cwd: "/"}, time.Minute)
	if err != nil {
		t.Fatalf("exec %q: %v", command, err)
	}
	return string(res.Stdout.Head) + string(res.Stderr.Head)
}

// The token is in no environment and no argument that a process inside can read, not even root's look at pid 1.
func TestTokenIsHidden(t *testing.T) {
	b := boot(t)
	if got := b.exec(t, "proc_1", "env; cat /proc/*/cmdline | tr '\\0' '\\n'"); strings.Contains(got, token) || !strings.Contains(got, "PATH=") {
		t.Errorf("a child sees %q", got)
	}
	got := b.exec(t, "proc_2", "tr '\\0' '\\n' < /proc/1/environ")
	if strings.Contains(got, token) || !strings.Contains(got, "LAST=1") {
		t.Errorf("pid 1 shows %q", got)
	}
}

// As pid 1 it takes the status of every orphan: none stays as a zombie.
func TestOrphansAreReaped(t *testing.T) {
	b := boot(t)
	b.exec(t, "proc_1", "for i in 1 2 3 4 5 6 7 8 9 10; do (setsid sh -c 'sleep 0.05' &) ; done")
	for id := 2; ; id++ {
		out := b.exec(t, fmt.Sprint("proc_", id), "cat /proc/[0-9]*/stat")
		if !strings.Contains(out, "(sleep)") && !strings.Contains(out, ") Z ") {
			break
		}
		if id > 500 {
			t.Fatalf("still there: %s", out)
		}
	}
	// The statuses of our own are not lost among them.
	for i := range 50 {
		res, err := b.Exec(t.Context(), guest.Start{ID: fmt.Sprint("own_", i), Command: fmt.Sprintf("(setsid true &); exit %d", i), Cwd: "/"}, time.Minute)
		if err != nil || res.Process.Running || res.Process.ExitCode != i {
			t.Fatalf("exit %d: %+v, %v", i, res.Process, err)
		}
	}
}

// A copy's host name is renewed, in the kernel and in the files that programs read it from.
func TestHostname(t *testing.T) {
	b := boot(t)
	for i, name := range []string{"first", "second"} {
		if _, err := b.Configure(t.Context(), guest.Configure{Hostname: name}); err != nil {
			t.Fatal(err)
		}
		got := b.exec(t, fmt.Sprint("proc_", i), "uname -n; cat /etc/hostname /etc/hosts")
		if want := name + "\n" + name + "\n127.0.0.1 localhost\n127.0.1.1\t" + name + "\n"; got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

// A shutdown ends what runs, also what nobody knows of, and the guest with 0.
func TestShutdown(t *testing.T) {
	b := boot(t)
	b.exec(t, "proc_1", "setsid sh -c 'trap \"\" TERM; while :; do sleep 1; done' >/dev/null 2>&1 &")
	if _, err := b.StartProcess(t.Context(), guest.Start{ID: "proc_2", Command: "trap 'echo bye; exit 0' TERM; echo up; while :; do sleep 0.01; done", Cwd: "/"}); err != nil {
		t.Fatal(err)
	}
	if o, err := b.Output(t.Context(), "proc_2", guest.OutputQuery{Wait: time.Minute}); err != nil || string(o.Data) != "up\n" {
		t.Fatalf("output %q, %v", o.Data, err)
	}
	var said []byte
	err := b.ShutdownExport(t.Context(), 200*time.Millisecond, func(rec guest.ExportRecord) error {
		if rec.Chunk != nil && rec.Chunk.Stream == "stdout" {
			said = append(said, rec.Chunk.Data...)
		}
		return nil
	})
	if err != nil || string(said) != "up\nbye\n" {
		t.Errorf("export %q, %v", said, err)
	}
	state, err := b.cmd.Process.Wait()
	if err != nil || !state.Success() {
		t.Errorf("the guest ended with %v, %v", state, err)
	}
}

// SIGTERM, which a driver's stop sends, ends it as well.
func TestTerm(t *testing.T) {
	b := boot(t)
	if _, err := b.StartProcess(t.Context(), guest.Start{ID: "proc_1", Command: "sleep 1000", Cwd: "/"}); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(b.pid, syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	state, err := b.cmd.Process.Wait()
	if err != nil || !state.Success() {
		t.Errorf("the guest ended with %v, %v", state, err)
	}
}

func TestNeedsAToken(t *testing.T) {
	cmd := exec.Command(built)
	cmd.Env = []string{"BERTH_GUEST_ADDR=127.0.0.1:0"}
	stderr, _ := cmd.StderrPipe()
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	b, _ := io.ReadAll(stderr)
	if err := cmd.Wait(); err == nil || !strings.Contains(string(b), "BERTH_GUEST_TOKEN is not set") {
		t.Errorf("it ended with %v and said %q", err, b)
	}
}
