//go:build linux

package guest

import (
	"bytes"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/berthrun/berth/internal/errs"
	"github.com/google/go-cmp/cmp"
)

func TestExec(t *testing.T) {
	r := newRig(t)
	long := strings.Repeat("x", 200<<10)
	for name, tt := range map[string]struct {
		in             Start
		code           int
		signal         string
		stdout, stderr string
	}{
		"plain command":           {in: Start{Command: "true"}},
		"failing plain command":   {in: Start{Command: "false"}, code: 1},
		"through the shell":       {in: Start{Command: "echo a; echo b >&2; exit 7"}, code: 7, stdout: "a\n", stderr: "b\n"},
		"argv is not a shell's":   {in: Start{Argv: []string{"printf", "%s|", "$HOME", "a b", ""}}, stdout: "$HOME|a b||"},
		"a builtin stays one":     {in: Start{Command: "type cd"}, stdout: "cd is a shell builtin\n"},
		"heredoc":                 {in: Start{Command: "cat <<E\none\ntwo\nE\n"}, stdout: "one\ntwo\n"},
		"exit ends only itself":   {in: Start{Command: "exit 3"}, code: 3},
		"stdin is empty":          {in: Start{Command: "cat; echo done"}, stdout: "done\n"},
		"stdin is given whole":    {in: Start{Command: "wc -c", Stdin: []byte("12345")}, stdout: "5\n"},
		"stdin beyond a pipe":     {in: Start{Command: "wc -c", Stdin: bytes.Repeat([]byte("y"), 1<<20)}, stdout: "1048576\n"},
		"stdin nobody reads":      {in: Start{Command: "exit 0", Stdin: bytes.Repeat([]byte("y"), 1<<20)}},
		"a command beyond argv":   {in: Start{Command: "v=" + long + "; echo ${#v}"}, stdout: "204800\n"},
		"stdin with a long one":   {in: Start{Command: ": " + long + "\ncat", Stdin: []byte("in")}, stdout: "in"},
		"a killed process":        {in: Start{Command: "kill -KILL $$"}, code: 137, signal: "KILL"},
		"a terminated process":    {in: Start{Command: "kill -TERM $$"}, code: 143, signal: "TERM"},
		"a killed child's status": {in: Start{Command: "{ sh -c 'kill -KILL $$'; } 2>/dev/null; echo $?"}, stdout: "137\n"},
		"not there":               {in: Start{Command: "no-such-program-here"}, code: 127, stderr: "no-such-program-here: command not found\n"},
		"bytes are not text":      {in: Start{Command: `printf '\xff\xfe\x00\xc3'`}, stdout: "\xff\xfe\x00\xc3"},
		"environment":             {in: Start{Command: "echo $A-$LANG-$HOME-$USER", Env: map[string]string{"A": "1"}, User: "root"}, stdout: "1-C.UTF-8-/root-root\n"},
		"another user":            {in: Start{Command: "id -u; id -g; id -G", User: other}, stdout: "65534\n65534\n65534\n"},
		"a user without a name":   {in: Start{Command: "id -u; id -g; pwd", User: "12345:54321", Cwd: "/"}, stdout: "12345\n54321\n/\n"},
		"no terminal":             {in: Start{Command: "test -t 0 || test -t 1; echo $?"}, stdout: "1\n"},
		"a session of its own":    {in: Start{Command: "test $$ = $(ps -o sid= -p $$) && echo yes"}, stdout: "yes\n"},
	} {
		t.Run(name, func(t *testing.T) {
			r := &rig{Client: r.Client, t: t, root: r.root}
			tt.in.ID = "proc_" + strings.Map(func(c rune) rune {
				if c == ' ' || c == '\'' {
					return '_'
				}
				return c
			}, name)
			res := r.exec(tt.in)
			stderr := string(res.Stderr.Head)
			if i := strings.Index(stderr, "line 1: "); i >= 0 {
				stderr = stderr[i+8:]
			}
			got := []any{res.Process.Running, res.Process.ExitCode, res.Process.Signal, string(res.Stdout.Head), stderr}
			want := []any{false, tt.code, tt.signal, tt.stdout, tt.stderr}
			if d := cmp.Diff(want, got); d != "" {
				t.Error(d)
			}
		})
	}
}

func TestExecCannotRun(t *testing.T) {
	r := newRig(t)
	if err := os.Mkdir(r.path("closed"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(r.path("text"), []byte("not a program"), 0o755); err != nil {
		t.Fatal(err)
	}
	for name, tt := range map[string]struct {
		in      Start
		code    errs.Code
		reason  string
		message string
	}{
		"user":             {Start{Command: "true", User: "nobody-by-that-name"}, errs.InvalidInput, "cannot_run", "there is no user"},
		"directory":        {Start{Command: "true", Cwd: r.path("missing")}, errs.InvalidInput, "cannot_run", "there is no directory"},
		"file as one":      {Start{Command: "true", Cwd: r.path("text")}, errs.InvalidInput, "cannot_run", "is not a directory"},
		"closed directory": {Start{Command: "true", Cwd: r.path("closed"), User: other}, errs.InvalidInput, "cannot_run", "may not enter"},
		"program":          {Start{Argv: []string{"no-such-program"}}, errs.InvalidInput, "cannot_run", "there is no program"},
		"program by path":  {Start{Argv: []string{"/no/such"}}, errs.InvalidInput, "cannot_run", "/no/such cannot be run"},
		"not a program":    {Start{Argv: []string{r.path("text")}}, errs.InvalidInput, "cannot_run", "cannot be run"},
		"nothing":          {Start{}, errs.InvalidInput, "", "either a command or an argv"},
		"both":             {Start{Command: "a", Argv: []string{"b"}}, errs.InvalidInput, "", "either a command or an argv"},
		"nul":              {Start{Command: "a\x00b"}, errs.InvalidInput, "", "NUL"},
		"variable":         {Start{Command: "true", Env: map[string]string{"A=B": "c"}}, errs.InvalidInput, "", "environment variable"},
		"huge environment": {Start{Command: "true", Env: map[string]string{"A": strings.Repeat("x", MaxEnvBytes)}}, errs.InvalidInput, "too_large", "environment"},
		"absurd terminal":  {Start{Command: "true", PTY: &Size{Cols: 1 << 20, Rows: 1}}, errs.InvalidInput, "", "columns"},
	} {
		t.Run(name, func(t *testing.T) {
			tt.in.ID = r.id()
			_, err := r.Exec(t.Context(), tt.in, time.Minute)
			wantCode(t, err, tt.code, tt.reason)
			if !strings.Contains(err.Error(), tt.message) {
				t.Errorf("message = %q, want it to say %q", err, tt.message)
			}
			if _, err := r.Process(t.Context(), tt.in.ID); !errs.Is(err, errs.NotFound) {
				t.Errorf("a process that could not be started is remembered: %v", err)
			}
		})
	}
}

// A plain command is executed without a shell, and nothing of that can be seen.
func TestPlainCommand(t *testing.T) {
	env := []string{"PATH=" + defaultPath}
	for command, want := range map[string]string{
		"true": "true", "id -u": "id", "/bin/ls -la /tmp": "/bin/ls",
		"echo a": "", "true x": "", "a=b id": "", "ls *": "", "ls ~": "", "id; id": "", "id | cat": "", "id > x": "", "id &": "", "$x": "", "'id'": "", "ls {a,b}": "",
		"no-such-program": "", "./x": "", "": "", " ": "", "id\nid": "", "cd /": "", "ls #x": "", "! id": "", "time id": "",
	} {
		got := ""
		if p := plainCommand(command, env); p != nil {
			got = p.argv[0]
		}
		if got != want {
			t.Errorf("plainCommand(%q) = %q, want %q", command, got, want)
		}
	}
	if plainCommand("id", append(env, "BASH_ENV=/x")) != nil || plainCommand("id", append(env, "BASH_FUNC_id%%=() { :; }")) != nil {
		t.Error("what the shell would read first was passed over")
	}
	if plainCommand("id", []string{"PATH=.:/usr/bin"}) != nil {
		t.Error("a relative search path was passed over")
	}
}

// Symptom 20: a command is not limited by what fits into one argument; nor is a repeated start a second one.
func TestStartIsOnce(t *testing.T) {
	r := newRig(t)
	in := Start{ID: r.id(), Command: "echo x >> count; sleep 0.1; cat count", Cwd: r.root}
	var wg sync.WaitGroup
	pids := make([]int, 16)
	for i := range pids {
		wg.Go(func() {
			res, err := r.Exec(t.Context(), in, time.Minute)
			if err != nil {
				t.Error(err)
				return
			}
			pids[i] = res.Process.PID
			if got := string(res.Stdout.Head); got != "x\n" {
				t.Errorf("output = %q, want one line", got)
			}
		})
	}
	wg.Wait()
	for _, pid := range pids {
		if pid != pids[0] {
			t.Errorf("pids = %v, want one", pids)
		}
	}
}

// Symptom 12: a timeout ends grandchildren too, also those that left the group or the session, and nobody waits for pipes that they held.
func TestTimeoutEndsTheWholeTree(t *testing.T) {
	r := newRig(t)
	for name, command := range map[string]string{
		"child":            "sleep 1000; true",
		"background child": "sleep 1000 & echo $! > %; wait",
		"ignores TERM":     "trap '' TERM; sleep 1000 & echo $! > %; wait",
		"own group":        "set -m; sleep 1000 & echo $! > %; wait",
		"own session":      "setsid sleep 1000 & echo $! > %; wait",
		"stopped":          "sleep 1000 & echo $! > %; kill -STOP $! $$; wait",
	} {
		t.Run(name, func(t *testing.T) {
			r := &rig{Client: r.Client, t: t, root: r.root}
			file := r.path(strings.ReplaceAll(name, " ", ""))
			res := r.exec(Start{ID: "proc_" + strings.ReplaceAll(name, " ", "_"), Command: strings.ReplaceAll(command, "%", file), TimeoutMS: 300})
			p := res.Process
			if p.Running || !p.TimedOut || p.ExitCode != 137 || p.Signal != "KILL" {
				t.Errorf("process = %+v, want it killed by its timeout", p)
			}
			if d := p.EndedAt.Sub(p.StartedAt); d > 5*time.Second {
				t.Errorf("took %s", d)
			}
			if b, err := os.ReadFile(file); err == nil {
				pid, _ := strconv.Atoi(strings.TrimSpace(string(b)))
				if alive(pid) {
					t.Errorf("the grandchild %d is still alive", pid)
				}
			}
		})
	}
}

// alive reports whether a pid is a process that has not ended.
func alive(pid int) bool {
	for _, k := range tasks() {
		if k.pid == pid {
			return !k.dead
		}
	}
	return false
}

// Symptoms 10, 13: exec answers when the main process has ended, with all that it wrote, though a daemon holds the pipe.
func TestDaemonDoesNotHoldExec(t *testing.T) {
	r := newRig(t)
	in := Start{ID: r.id(), Command: "(echo daemon; exec sleep 1000) & echo main; exit 4"}
	res := r.exec(in)
	t.Cleanup(func() { _ = syscall.Kill(-res.Process.PID, syscall.SIGKILL) })
	if res.Process.ExitCode != 4 || !strings.Contains(string(res.Stdout.Head), "main\n") {
		t.Errorf("result = %+v %q", res.Process, res.Stdout.Head)
	}
	if res.Process.EndedAt.Sub(res.Process.StartedAt) > 5*time.Second {
		t.Error("the daemon was waited for")
	}
}

// All that the main process wrote is in the answer, however the end of its pipes is raced with its own.
func TestNothingIsLostAtTheEnd(t *testing.T) {
	r := newRig(t)
	for range 50 {
		res := r.exec(Start{Command: "sleep 100 & p=$!; head -c 60000 /dev/zero; echo end; disown; (sleep 0.05; kill $p) & exit 0"})
		if res.Stdout.Total != 60004 {
			t.Fatalf("total = %d, want 60004", res.Stdout.Total)
		}
	}
}

// Symptom 17: what was configured is in every command and terminal from then on.
func TestConfiguredEnv(t *testing.T) {
	r := newRig(t)
	configure := func(env map[string]string) {
		t.Helper()
		if _, err := r.Configure(t.Context(), Configure{Env: env}); err != nil {
			t.Fatal(err)
		}
	}
	show := func(pty *Size) string {
		t.Helper()
		res := r.exec(Start{Command: "echo [$A,$B]", Env: map[string]string{"B": "call"}, PTY: pty})
		return strings.TrimSpace(string(res.Stdout.Head))
	}
	configure(map[string]string{"A": "made", "B": "made"})
	configure(nil)
	if got := []string{show(nil), show(&Size{})}; !cmp.Equal(got, []string{"[made,call]", "[made,call]"}) {
		t.Errorf("env = %v", got)
	}
	configure(map[string]string{})
	if got := show(nil); got != "[,call]" {
		t.Errorf("env after clearing = %s", got)
	}
}

// Symptom 18: a terminal has a size, also when none was given, and a resize reaches what runs in it.
func TestTerminal(t *testing.T) {
	r := newRig(t)
	p := r.start(Start{Command: "trap 'stty size; echo resized' WINCH; stty size; test -t 0 && test -t 1 && test -t 2 && echo $TERM; tty; while read l; do echo got:$l; done", PTY: &Size{}, User: other})
	r.until(p.ID, "24 80\r\nxterm-256color\r\n/dev/pts/")
	if err := r.Resize(t.Context(), p.ID, Size{Cols: 132, Rows: 43}); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Input(t.Context(), "", p.ID, Input{Data: []byte("h\xc3\xa9\r")}); err != nil {
		t.Fatal(err)
	}
	r.until(p.ID, "43 132\r\nresized\r\n")
	r.until(p.ID, "got:h\xc3\xa9\r\n")
	if a, err := r.Activity(t.Context()); err != nil || a.Terminals != 1 || a.Foreground != 0 {
		t.Errorf("activity = %+v, %v", a, err)
	}
	if _, err := r.Input(t.Context(), "", p.ID, Input{EOF: true}); err != nil {
		t.Fatal(err)
	}
	if end := r.ended(p.ID); end.ExitCode != 0 && end.ExitCode != 1 {
		t.Errorf("exit = %+v", end)
	}
}

// The last bytes of a terminal are not lost.
func TestTerminalOutputIsWhole(t *testing.T) {
	r := newRig(t)
	for range 20 {
		res := r.exec(Start{Command: "head -c 30000 /dev/zero | tr '\\0' x; echo end", PTY: &Size{}})
		if got := string(res.Stdout.Head); res.Stdout.Total != 30005 || !strings.HasSuffix(got, "xend\r\n") {
			t.Fatalf("total = %d, end %q", res.Stdout.Total, got[max(0, len(got)-10):])
		}
	}
}

// Symptom 15: an open input is written in parts, ended, and refused afterwards; a closed one says so.
func TestInput(t *testing.T) {
	r := newRig(t)
	p := r.start(Start{Command: "while read l; do echo got:$l; done; echo over", OpenStdin: true, Stdin: []byte("zero\n")})
	r.until(p.ID, "got:zero\n")
	for _, word := range []string{"one", "two"} {
		if n, err := r.Input(t.Context(), "op-"+word, p.ID, Input{Data: []byte(word + "\n")}); err != nil || n != 4 {
			t.Fatalf("input = %d, %v", n, err)
		}
		r.until(p.ID, "got:"+word+"\n")
	}
	// A repeated input has one effect.
	if _, err := r.Input(t.Context(), "op-two", p.ID, Input{Data: []byte("two\n")}); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Input(t.Context(), "op-end", p.ID, Input{EOF: true}); err != nil {
		t.Fatal(err)
	}
	if got := r.until(p.ID, "over\n"); got != "got:zero\ngot:one\ngot:two\nover\n" {
		t.Errorf("output = %q", got)
	}
	r.ended(p.ID)
	_, err := r.Input(t.Context(), "op-late", p.ID, Input{Data: []byte("x")})
	wantCode(t, err, errs.InvalidState, "process_ended")

	closed := r.start(Start{Command: "sleep 1000"})
	_, err = r.Input(t.Context(), "op-none", closed.ID, Input{Data: []byte("x")})
	wantCode(t, err, errs.InvalidState, "no_stdin")
}

func TestSignals(t *testing.T) {
	r := newRig(t)
	p := r.start(Start{Command: "trap 'echo hup' HUP; trap 'echo int; exit 9' INT; echo ready; while :; do sleep 0.01; done"})
	r.until(p.ID, "ready\n")
	if _, err := r.Signal(t.Context(), "op1", p.ID, "HUP"); err != nil {
		t.Fatal(err)
	}
	r.until(p.ID, "hup\n")
	if _, err := r.Signal(t.Context(), "op2", p.ID, "INT"); err != nil {
		t.Fatal(err)
	}
	if end := r.ended(p.ID); end.ExitCode != 9 || end.Signal != "" || end.TimedOut {
		t.Errorf("end = %+v", end)
	}
	_, err := r.Signal(t.Context(), "op3", p.ID, "TERM")
	wantCode(t, err, errs.InvalidState, "process_ended")
	_, err = r.Signal(t.Context(), "op4", p.ID, "SEGV")
	wantCode(t, err, errs.InvalidInput, "")
	_, err = r.Signal(t.Context(), "op5", "proc_unknown", "TERM")
	wantCode(t, err, errs.NotFound, "")
}

func TestActivity(t *testing.T) {
	r := newRig(t)
	r.start(Start{Command: "sleep 1000"})
	r.start(Start{Command: "sleep 1000", Background: true})
	a, err := r.Activity(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if a.Foreground != 1 || a.Terminals != 0 || time.Since(a.Last) > time.Minute {
		t.Errorf("activity = %+v", a)
	}
	before := a.Last
	if a, _ = r.Activity(t.Context()); !a.Last.Equal(before) {
		t.Error("asking for the activity is one")
	}
	if _, err := r.Stat(t.Context(), "/", ""); err != nil {
		t.Fatal(err)
	}
	if a, _ = r.Activity(t.Context()); !a.Last.After(before) {
		t.Error("a file call is no activity")
	}
}

func TestProcessesAreListedAndForgotten(t *testing.T) {
	r := newRig(t)
	first := r.exec(Start{Command: "true"}).Process.ID
	running := r.start(Start{Command: "sleep 1000"}).ID
	for range MaxProcesses - 1 {
		r.exec(Start{Command: "true"})
	}
	list, err := r.Processes(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if len(list) != MaxProcesses || list[0].ID != running || !list[0].Running {
		t.Errorf("%d processes, the first %+v", len(list), list[0])
	}
	_, err = r.Process(t.Context(), first)
	wantCode(t, err, errs.NotFound, "")
}

func BenchmarkExecTrue(b *testing.B) {
	r := newRig(b)
	for _, command := range []string{"true", "true;"} {
		b.Run(command, func(b *testing.B) {
			for b.Loop() {
				if _, err := r.Exec(b.Context(), Start{ID: r.id(), Command: command, Cwd: "/"}, time.Minute); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
