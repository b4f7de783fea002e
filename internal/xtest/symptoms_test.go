package xtest

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/berthrun/berth/api"
	"github.com/berthrun/berth/client"
)

// The symptoms that were seen in the field, by their numbers. Each subtest would catch its own.
func symptoms(t *testing.T, s *System, real bool) {
	c := s.Client
	id := Sandbox(t, c, api.CreateSandboxIn{Env: map[string]string{"MADE_WITH": "creation"}})

	t.Run("9 characters are not split across chunks", func(t *testing.T) {
		want := strings.Repeat("aé€😀", 500)
		p := start(t, c, id, "for i in $(seq 500); do printf 'aé€😀'; done")
		var got strings.Builder
		offset := int64(0)
		for {
			out := Must(t, c, api.ProcessOutput, api.ProcessOutputIn{ProcessIn: proc(id, p), Offset: offset, Limit: 17, WaitSeconds: 10})
			if out.Encoding != "utf-8" {
				t.Fatalf("at %d: encoding %s", offset, out.Encoding)
			}
			got.WriteString(out.Data)
			if offset = out.NextOffset; out.EOF {
				break
			}
		}
		if got.String() != want {
			t.Errorf("read %d bytes that differ from the %d written", got.Len(), len(want))
		}
	})

	t.Run("10 11 a death is not an exit 0", func(t *testing.T) {
		out := Exec(t, c, id, "kill -9 $$")
		if out.ExitCode == nil || *out.ExitCode != 137 || out.Signal != "KILL" {
			t.Errorf("killed: %+v", out)
		}
		out = Exec(t, c, id, "exit 7")
		if out.ExitCode == nil || *out.ExitCode != 7 || out.Signal != "" {
			t.Errorf("exit 7: %+v", out)
		}
	})

	t.Run("12 a timeout ends what holds the pipes", func(t *testing.T) {
		begin := time.Now()
		out := Must(t, c, api.Exec, api.ExecIn{SandboxIn: in(id), CommandIn: api.CommandIn{Command: "echo begun; (sleep 987 & sleep 987) & sleep 987"}, TimeoutSeconds: 1})
		if !out.TimedOut || out.Stdout != "begun\n" {
			t.Errorf("%+v", out)
		}
		if took := time.Since(begin); took > 10*time.Second {
			t.Errorf("it took %v", took)
		}
		if real {
			// The brackets keep the search from finding itself.
			if left := Exec(t, c, id, "cat /proc/[0-9]*/cmdline | tr '\\0' ' ' | grep -c 'sleep 98[7]'"); strings.TrimSpace(left.Stdout) != "0" {
				t.Errorf("%s of them still run", strings.TrimSpace(left.Stdout))
			}
		}
	})

	t.Run("13 a heredoc ends", func(t *testing.T) {
		if out := Exec(t, c, id, "cat <<'EOF'\nline one\nline two\nEOF\n"); out.Stdout != "line one\nline two\n" {
			t.Errorf("%+v", out)
		}
	})

	t.Run("14 a process is found again by another connection", func(t *testing.T) {
		p := start(t, c, id, "echo one; sleep 1; echo two")
		other := s.With(t, s.Key)
		if got := read(t, other, id, p, 15); got != "one\ntwo\n" {
			t.Errorf("output %q", got)
		}
		// And once more, long after it has ended and from the beginning.
		if got := read(t, s.With(t, s.Key), id, p, 15); got != "one\ntwo\n" {
			t.Errorf("read again: %q", got)
		}
	})

	t.Run("15 standard input is closed", func(t *testing.T) {
		begin := time.Now()
		out := Exec(t, c, id, "cat; echo ended")
		if out.Stdout != "ended\n" || time.Since(begin) > 10*time.Second {
			t.Errorf("after %v: %+v", time.Since(begin), out)
		}
	})

	t.Run("16 exit ends one command, not the session", func(t *testing.T) {
		Exec(t, c, id, "exit 1")
		if out := Exec(t, c, id, "echo still here"); out.Stdout != "still here\n" {
			t.Errorf("%+v", out)
		}
	})

	t.Run("17 the environment of the creation is there", func(t *testing.T) {
		if out := Exec(t, c, id, "echo $MADE_WITH"); out.Stdout != "creation\n" {
			t.Errorf("exec: %q", out.Stdout)
		}
		p := Must(t, c, api.StartProcess, api.StartProcessIn{SandboxIn: in(id), CommandIn: api.CommandIn{Command: "echo $MADE_WITH"}, PTY: true}).Process
		if got := read(t, c, id, p.ID, 15); strings.TrimSpace(got) != "creation" {
			t.Errorf("terminal: %q", got)
		}
	})

	t.Run("18 a terminal has its size", func(t *testing.T) {
		p := Must(t, c, api.StartProcess, api.StartProcessIn{SandboxIn: in(id), CommandIn: api.CommandIn{Command: "stty size"}, PTY: true, Cols: 132, Rows: 43}).Process
		if got := read(t, c, id, p.ID, 15); strings.TrimSpace(got) != "43 132" {
			t.Errorf("size %q", got)
		}
	})

	t.Run("19 what was written is there", func(t *testing.T) {
		data := strings.Repeat("0123456789abcdef", 1<<16) // 1 MiB
		sum := sha256.Sum256([]byte(data))
		w := Must(t, c, api.WriteFile, api.WriteFileIn{FileIn: file(id, "big.txt"), Data: data})
		if w.SHA256 != hex.EncodeToString(sum[:]) || w.File.Size != int64(len(data)) || !w.Created {
			t.Errorf("the answer: %+v", w)
		}
		if out := Exec(t, c, id, "sha256sum < big.txt"); !strings.HasPrefix(out.Stdout, w.SHA256) {
			t.Errorf("inside: %q", out.Stdout)
		}
	})

	t.Run("20 much standard input arrives", func(t *testing.T) {
		data := strings.Repeat("x", 300<<10)
		out := Must(t, c, api.Exec, api.ExecIn{SandboxIn: in(id), CommandIn: api.CommandIn{Command: "wc -c"}, Stdin: data})
		if strings.TrimSpace(out.Stdout) != fmt.Sprint(len(data)) {
			t.Errorf("%q", out.Stdout)
		}
	})

	if real { // on the fake driver all users are the host's
		t.Run("21 a planted symlink reaches nothing", func(t *testing.T) {
			Exec(t, c, id, "ln -s /etc/shadow shadow; ln -s /root/planted planted; ln -s / slash")
			if code := Code(t, c, api.ReadFile, api.ReadFileIn{FileIn: file(id, "shadow")}); code != "FORBIDDEN" {
				t.Errorf("reading through it: %q", code)
			}
			if code := Code(t, c, api.WriteFile, api.WriteFileIn{FileIn: file(id, "planted"), Data: "x"}); code != "FORBIDDEN" {
				t.Errorf("writing through it: %q", code)
			}
			if code := Code(t, c, api.WriteFile, api.WriteFileIn{FileIn: file(id, "slash/etc/passwd"), Data: "x"}); code != "FORBIDDEN" {
				t.Errorf("writing through a folder: %q", code)
			}
			if out := Exec(t, c, id, "sudo ls /root/planted 2>&1; grep -c root /etc/passwd"); !strings.Contains(out.Stdout, "No such file") || !strings.HasSuffix(strings.TrimSpace(out.Stdout), "1") {
				t.Errorf("inside: %q", out.Stdout)
			}
		})
	}

	t.Run("27 using it never shortens its life", func(t *testing.T) {
		before := Must(t, c, api.GetSandbox, in(id)).Sandbox.ExpiresAt
		Exec(t, c, id, "true")
		s.With(t, s.Key)
		Must(t, c, api.ReadFile, api.ReadFileIn{FileIn: file(id, "big.txt")})
		if after := Must(t, c, api.GetSandbox, in(id)).Sandbox.ExpiresAt; after == nil || after.Before(*before) {
			t.Errorf("it expires at %v, and did at %v", after, before)
		}
	})

	t.Run("33 nobody listens, nothing is lost, nobody is blocked", func(t *testing.T) {
		p := start(t, c, id, "seq -f '%08g' 100000") // 900,000 bytes
		eventually(t, func() bool {
			g := Must(t, c, api.GetProcess, proc(id, p))
			return g.Process.State == "exited"
		})
		begin := time.Now()
		if out := Exec(t, c, id, "echo meanwhile"); out.Stdout != "meanwhile\n" || time.Since(begin) > 10*time.Second {
			t.Errorf("another command: %+v", out)
		}
		got := read(t, c, id, p, 15)
		if len(got) != 900_000 || !strings.HasPrefix(got, "00000001\n") || !strings.HasSuffix(got, "00100000\n") {
			t.Errorf("%d bytes", len(got))
		}
	})

	t.Run("31 output is kept when it stops", func(t *testing.T) {
		ended := start(t, c, id, "echo before the end; exit 4")
		eventually(t, func() bool {
			return Must(t, c, api.GetProcess, proc(id, ended)).Process.State == "exited"
		})
		endless := start(t, c, id, "echo endless; exec sleep 1000")
		eventually(t, func() bool {
			return Must(t, c, api.GetProcess, proc(id, endless)).Process.StdoutBytes > 0
		})
		stopped := Must(t, c, api.StopSandbox, api.SandboxWaitIn{SandboxIn: in(id), WaitIn: wait(30)})
		if stopped.Sandbox.State != api.StateStopped || stopped.Sandbox.StopReason != "requested" {
			t.Fatalf("stop: %+v", stopped.Sandbox)
		}
		if got := read(t, c, id, ended, 0); got != "before the end\n" {
			t.Errorf("of the ended one: %q", got)
		}
		if got := read(t, c, id, endless, 0); got != "endless\n" {
			t.Errorf("of the endless one: %q", got)
		}
		p := Must(t, c, api.GetProcess, proc(id, ended)).Process
		if p.State != "exited" || p.ExitCode == nil || *p.ExitCode != 4 {
			t.Errorf("the ended one: %+v", p)
		}
		if p := Must(t, c, api.GetProcess, proc(id, endless)).Process; p.State == "running" {
			t.Errorf("the endless one: %+v", p)
		}
		if st := Must(t, c, api.GetSandbox, in(id)).Sandbox.State; st != api.StateStopped {
			t.Errorf("reading started it: %s", st)
		}
		// Its disk is kept, and using it boots it.
		out := Exec(t, c, id, "wc -c < big.txt")
		if strings.TrimSpace(out.Stdout) != fmt.Sprint(1<<20) || out.Woke != "boot" {
			t.Errorf("after the boot: %+v", out)
		}
	})
}

func proc(sandbox, process string) api.ProcessIn {
	return api.ProcessIn{SandboxID: sandbox, ProcessID: process}
}

// start starts a process in the background and gives its id.
func start(t testing.TB, c *client.Client, sandbox, command string) string {
	t.Helper()
	return Must(t, c, api.StartProcess, api.StartProcessIn{SandboxIn: in(sandbox), CommandIn: api.CommandIn{Command: command}}).Process.ID
}

// read reads a process's output to its end, or to what there is where it does not wait.
func read(t testing.TB, c *client.Client, sandbox, process string, waitSeconds int) string {
	t.Helper()
	var b strings.Builder
	for offset := int64(0); ; {
		out := Must(t, c, api.ProcessOutput, api.ProcessOutputIn{ProcessIn: proc(sandbox, process), Offset: offset, WaitSeconds: waitSeconds})
		b.WriteString(out.Data)
		if out.EOF || waitSeconds == 0 && out.NextOffset == offset {
			return b.String()
		}
		offset = out.NextOffset
	}
}

// eventually waits until something is so. It asks a server, which can be asked but does not call back.
func eventually(t testing.TB, is func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for !is() {
		select {
		case <-ctx.Done():
			t.Fatal("it never became so")
		case <-tick.C:
		}
	}
}

func TestSymptomsInProcess(t *testing.T) {
	s := Start(t, Options{})
	symptoms(t, &s.System, false)
}
