package xtest

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/berthrun/berth/api"
)

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// raw makes one HTTP request by hand and gives all of its answer.
func raw(t testing.TB, r *Real, method, path, body string) string {
	t.Helper()
	c := dial(t, r)
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(time.Minute))
	fmt.Fprintf(c, "%s %s HTTP/1.1\r\nHost: berth\r\nAuthorization: Bearer %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s", method, path, r.Key, len(body), body)
	b, err := io.ReadAll(c)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func dial(t testing.TB, r *Real) net.Conn {
	t.Helper()
	c, err := net.Dial("tcp", strings.TrimPrefix(r.URL, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// reading of a process's files under /proc, in bytes, and of its open descriptors.
func resident(t testing.TB, pid int) (bytes int64, descriptors int) {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", pid))
	if err != nil {
		t.Fatal(err)
	}
	n, _ := strconv.ParseInt(strings.Fields(string(b))[1], 10, 64)
	files, _ := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	return n * int64(os.Getpagesize()), len(files)
}

// TestHardOutput has 3 GiB written by a command and by a process. Nothing of it is held but what is kept, and it is counted right.
func TestHardOutput(t *testing.T) {
	if testing.Short() {
		t.Skip("it takes a minute")
	}
	r := StartReal(t)
	watchCanary(t, r, 30*time.Second)
	id := Sandbox(t, r.Client, api.CreateSandboxIn{Resources: &api.ResourcesIn{VCPU: 2, MemoryMiB: 512}})
	const total = 3 << 30
	server, _ := resident(t, r.pid())
	// In large writes: the test is of what arrives, not of gVisor's pipes.
	command := fmt.Sprintf(`python3 -c 'import os
def put(b):
    while b: b = b[os.write(1, b):]
put(b"begin"); x = b"x" * 1048576
for _ in range(%d): put(x)
put(b"end")'`, total>>20)
	p := start(t, r.Client, id, command)
	out := Must(t, r.Client, api.Exec, api.ExecIn{SandboxIn: in(id), CommandIn: api.CommandIn{Command: command}, TimeoutSeconds: 600, WriteIn: key()})
	process := out.ProcessID
	if out.Running {
		eventuallyIn(t, 10*time.Minute, func() bool {
			return Must(t, r.Client, api.GetProcess, proc(id, process)).Process.State == "exited"
		})
	}
	eventuallyIn(t, 10*time.Minute, func() bool { return Must(t, r.Client, api.GetProcess, proc(id, p)).Process.State == "exited" })
	for name, id2 := range map[string]string{"the command": process, "the process": p} {
		got := Must(t, r.Client, api.ProcessOutput, api.ProcessOutputIn{ProcessIn: proc(id, id2), Offset: total - 8})
		if got.Process.StdoutBytes != total+8 || !strings.HasSuffix(got.Data, "end") || got.Process.ExitCode == nil || *got.Process.ExitCode != 0 || got.Process.OutOfMemory {
			t.Errorf("%s: %+v, ends with %q", name, got.Process, got.Data)
		}
		first := Must(t, r.Client, api.ProcessOutput, api.ProcessOutputIn{ProcessIn: proc(id, id2)})
		if first.EarliestOffset == 0 || first.Offset != first.EarliestOffset {
			t.Errorf("%s: its beginning is said to be kept: offset %d, earliest %d", name, first.Offset, first.EarliestOffset)
		}
	}
	if now, _ := resident(t, r.pid()); now > server+128<<20 {
		t.Errorf("the server grew from %d to %d bytes", server, now)
	}
	if sb := Must(t, r.Client, api.GetSandbox, in(id)).Sandbox; sb.State != api.StateRunning {
		t.Errorf("the sandbox is %s (%s)", sb.State, sb.StopReason)
	}
}

// eventuallyIn is eventually with another patience.
func eventuallyIn(t testing.TB, patience time.Duration, is func() bool) {
	t.Helper()
	end := time.Now().Add(patience)
	for !is() {
		if time.Now().After(end) {
			t.Fatal("it never became so")
		}
		time.Sleep(200 * time.Millisecond)
	}
}

// TestHardForkBomb: a fork bomb hits the limit of processes. Calls on its sandbox have an answer with a code in bounded time, it can be stopped, and nobody
// else notices.
func TestHardForkBomb(t *testing.T) {
	r := StartReal(t)
	watchCanary(t, r, 60*time.Second)
	id := Sandbox(t, r.Client, api.CreateSandboxIn{Resources: &api.ResourcesIn{VCPU: 0.5, MemoryMiB: 1024}})
	bomb := start(t, r.Client, id, "bomb() { bomb | bomb & }; bomb; sleep 300")
	answered := 0
	for n := range 4 {
		begun := time.Now()
		out, e := run(t, r.Client, id, api.CommandIn{Argv: []string{"true"}}, 10)
		switch took := time.Since(begun); {
		case took > 30*time.Second:
			t.Errorf("call %d was answered after %v: %+v", n, took, e)
		case e == nil && (out.ExitCode != nil || out.Running):
			answered++
		case e == nil:
			t.Errorf("call %d: %+v", n, out)
		case e.Code == "LIMIT_EXCEEDED" && e.Reason == "processes", e.Code == "UNAVAILABLE" && e.Reason == "guest_unresponsive", e.Code == "TIMEOUT", e.Code == "INVALID_STATE":
		default:
			t.Errorf("call %d: %+v", n, e)
		}
	}
	t.Logf("%d of 4 commands ran", answered)
	begun := time.Now()
	if out := Must(t, r.Client, api.StopSandbox, api.SandboxWaitIn{SandboxIn: in(id), WaitIn: wait(30)}); out.Sandbox.State != api.StateStopped {
		t.Fatalf("after %v it is %+v", time.Since(begun), out.Sandbox)
	}
	if p := Must(t, r.Client, api.GetProcess, proc(id, bomb)).Process; p.State == "running" {
		t.Errorf("the bomb: %+v", p)
	}
	if out := Exec(t, r.Client, id, "echo over"); out.Stdout != "over\n" {
		t.Errorf("%+v", out)
	}
}

// TestHardDisk fills a sandbox's disk: writing says so with a code, removing helps, others do not notice.
func TestHardDisk(t *testing.T) {
	r := StartReal(t, "--disk", "btrfs-image", "--limit", "disk.perSandboxMin=1")
	watchCanary(t, r, 60*time.Second)
	id := Sandbox(t, r.Client, api.CreateSandboxIn{Resources: &api.ResourcesIn{MemoryMiB: 256, DiskGiB: 1}})
	out, e := run(t, r.Client, id, api.CommandIn{Command: "head -c 2G /dev/zero > big; echo $?"}, 300)
	if e != nil || out.Stdout != "1\n" || !strings.Contains(out.Stderr, "quota exceeded") && !strings.Contains(out.Stderr, "No space left") {
		t.Fatalf("filling it: %+v %+v", out, e)
	}
	e = nil
	for n := 0; n < 64 && e == nil; n++ { // until what is left is gone
		_, e = writeFile(t, r, file(id, fmt.Sprintf("more%d", n)), strings.Repeat("x", 1<<20))
	}
	if e == nil || e.Code != "LIMIT_EXCEEDED" || e.Reason != "disk_full" || e.Suggestion == "" {
		t.Errorf("writing a file: %+v", e)
	}
	if out, e := run(t, r.Client, id, api.CommandIn{Command: "echo on"}, 10); e != nil || out.Stdout != "on\n" {
		t.Errorf("a command: %+v %+v", out, e)
	}
	Must(t, r.Client, api.RemoveFile, api.RemoveFileIn{FileIn: file(id, "big")})
	eventually(t, func() bool {
		_, e := writeFile(t, r, file(id, "again"), "x")
		return e == nil
	})
}

// TestHardClients has clients that send slowly, do not read, or go away. They are bounded in time and cost little; everybody else is served.
func TestHardClients(t *testing.T) {
	t.Parallel() // it waits more than it works
	r := StartReal(t)
	watchCanary(t, r, 30*time.Second)
	id := Sandbox(t, r.Client, api.CreateSandboxIn{Resources: &api.ResourcesIn{MemoryMiB: 256}})
	memory, descriptors := resident(t, r.pid())
	t.Run("headers that do not end", func(t *testing.T) {
		var wg sync.WaitGroup
		for range 50 {
			wg.Go(func() {
				c := dial(t, r)
				defer c.Close()
				_, _ = io.WriteString(c, "GET /v1/sandboxes HTTP/1.1\r\nHost: x\r\n")
				closedIn(t, c, 60*time.Second, func() bool { _, err := io.WriteString(c, "X: y\r\n"); return err == nil })
			})
		}
		wg.Wait()
	})
	t.Run("a body that does not end", func(t *testing.T) {
		c := dial(t, r)
		defer c.Close()
		fmt.Fprintf(c, "POST /v1/sandboxes HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %s\r\nContent-Type: application/json\r\nContent-Length: 1000\r\n\r\n{", r.Key)
		closedIn(t, c, 2*time.Minute, func() bool { _, err := io.WriteString(c, " "); return err == nil })
	})
	t.Run("idle ones", func(t *testing.T) {
		var conns []net.Conn
		for range 2000 {
			conns = append(conns, dial(t, r))
		}
		if out := Exec(t, r.Client, id, "echo served"); out.Stdout != "served\n" {
			t.Errorf("%+v", out)
		}
		if now, _ := resident(t, r.pid()); now > memory+128<<20 {
			t.Errorf("2000 of them cost %d bytes", now-memory)
		}
		for _, c := range conns {
			_ = c.Close()
		}
	})
	t.Run("one that never reads", func(t *testing.T) {
		Exec(t, r.Client, id, "head -c 8M /dev/urandom | base64 -w0 > big")
		for range 20 {
			c := dial(t, r)
			defer c.Close()
			_ = c.(*net.TCPConn).SetReadBuffer(4096)
			for range 50 {
				fmt.Fprintf(c, "GET /v1/sandboxes/%s/files/read?path=big&limit=262144 HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %s\r\n\r\n", id, r.Key)
			}
		}
		if out := Exec(t, r.Client, id, "echo served"); out.Stdout != "served\n" {
			t.Errorf("%+v", out)
		}
		if now, _ := resident(t, r.pid()); now > memory+256<<20 {
			t.Errorf("20 of them cost %d bytes", now-memory)
		}
	})
	t.Run("one that goes away", func(t *testing.T) {
		for range 20 {
			c := dial(t, r)
			body := `{"command":"sleep 3600","timeoutSeconds":5}`
			fmt.Fprintf(c, "POST /v1/sandboxes/%s/exec HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", id, r.Key, len(body), body)
			_ = c.(*net.TCPConn).SetLinger(0)
			_ = c.Close()
		}
	})
	eventuallyIn(t, 2*time.Minute, func() bool {
		_, now := resident(t, r.pid())
		return now <= descriptors+40
	})
}

// closedIn drips bytes until the server ends the connection, which it must in time.
func closedIn(t *testing.T, c net.Conn, most time.Duration, drip func() bool) {
	t.Helper()
	over := make(chan struct{})
	go func() {
		defer close(over)
		_, _ = io.Copy(io.Discard, bufio.NewReader(c))
	}()
	tick := time.NewTicker(2 * time.Second)
	defer tick.Stop()
	late := time.After(most)
	for {
		select {
		case <-over:
			return
		case <-tick.C:
			drip()
		case <-late:
			t.Errorf("the server kept the connection for %v", most)
			_ = c.Close()
			<-over
			return
		}
	}
}
