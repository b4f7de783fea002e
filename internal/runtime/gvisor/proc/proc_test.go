package proc

import (
	"errors"
	"os"
	"os/exec"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func start(t *testing.T, args ...string) (*exec.Cmd, Process, *os.File) {
	t.Helper()
	cmd := exec.Command(args[0], args[1:]...)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	p, err := Identify(cmd.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	f, err := p.Open()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = p.Kill(time.Second)
		_ = cmd.Wait()
		f.Close()
	})
	return cmd, p, f
}

func TestWaitAndExit(t *testing.T) {
	for name, tt := range map[string]struct {
		script string
		ok     func(unix.WaitStatus) bool
	}{
		"a status": {"exit 7", func(s unix.WaitStatus) bool { return s.Exited() && s.ExitStatus() == 7 }},
		"a signal": {"kill -9 $$", func(s unix.WaitStatus) bool { return s.Signaled() && s.Signal() == unix.SIGKILL }},
	} {
		t.Run(name, func(t *testing.T) {
			cmd, p, f := start(t, "sh", "-c", "sleep 0.05; "+tt.script)
			if Ended(f) {
				t.Error("it ended before it did")
			}
			if e := ExitOf(p, f); e.Known {
				t.Errorf("its exit is known before its end: %+v", e)
			}
			if err := Wait(f); err != nil {
				t.Fatal(err)
			}
			if e := ExitOf(p, f); !e.Known || !tt.ok(e.Status) {
				t.Errorf("as a zombie: %+v", e)
			}
			_ = cmd.Wait()
			// Reaped, older kernels do not tell any more; none tells anything wrong.
			if e := ExitOf(p, f); e.Known && !tt.ok(e.Status) {
				t.Errorf("reaped: %+v", e)
			} else {
				t.Logf("reaped: %+v", e)
			}
		})
	}
}

// A number that another process has now is neither opened nor killed.
func TestAnotherProcessIsLeftAlone(t *testing.T) {
	_, p, f := start(t, "sleep", "60")
	wrong := Process{PID: p.PID, Start: p.Start - 1}
	if _, err := wrong.Open(); !errors.Is(err, ErrGone) {
		t.Errorf("Open = %v, want ErrGone", err)
	}
	if err := wrong.Kill(time.Second); err != nil {
		t.Errorf("Kill = %v, want none", err)
	}
	if Ended(f) {
		t.Error("a process was killed for another's number")
	}
	for _, none := range []Process{{}, {PID: -1}} {
		if err := none.Kill(time.Second); err != nil {
			t.Errorf("Kill of %+v = %v", none, err)
		}
	}
	if err := p.Kill(10 * time.Second); err != nil {
		t.Fatal(err)
	}
	if !Ended(f) {
		t.Error("Kill came back before the process had ended")
	}
}

func TestWaitEndsWithItsFile(t *testing.T) {
	_, _, f := start(t, "sleep", "60")
	done := make(chan error, 1)
	go func() { done <- Wait(f) }()
	f.Close()
	if err := <-done; err == nil {
		t.Error("Wait of a closed file says that the process ended")
	}
}

// A program is found by the value of its flag, and by nothing that only looks like it.
func TestServing(t *testing.T) {
	root := t.TempDir()
	_, p, _ := start(t, "sleep", "--", "60")
	for name, tt := range map[string]struct {
		program, flag, value string
		found                bool
	}{
		"its own":           {"sleep", "--", "60", true},
		"another value":     {"sleep", "--", "6", false},
		"another program":   {"slee", "--", "60", false},
		"a value, no flag":  {"sleep", "60", "", false},
		"nobody's anything": {"berth-runtime", "--root", root, false},
	} {
		all, err := Serving(tt.program, tt.flag, tt.value)
		if err != nil {
			t.Fatal(err)
		}
		if slices.Contains(all, p) != tt.found {
			t.Errorf("%s: %+v, found %v", name, all, tt.found)
		}
	}
}
