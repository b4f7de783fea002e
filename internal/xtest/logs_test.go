package xtest

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/berthrun/berth/api"
	"github.com/berthrun/berth/client"
	"github.com/berthrun/berth/internal/db/dbtest"
)

// logs reads a whole log, page by page.
func logs(t testing.TB, c *client.Client, want api.SandboxLogsIn) []api.LogLine {
	t.Helper()
	var all []api.LogLine
	for range 1000 {
		out := Must(t, c, api.SandboxLogs, want)
		if out.Missing != "" {
			t.Errorf("missing: %s", out.Missing)
		}
		all = append(all, out.Items...)
		if out.NextCursor == nil {
			return all
		}
		want.Cursor = *out.NextCursor
	}
	t.Fatal("the log has no end")
	return nil
}

func messages(lines []api.LogLine) (all []string) {
	for _, l := range lines {
		all = append(all, l.Message)
	}
	return all
}

// between are the messages from the time of one line to the time of another, both with all that were written at the same moment.
func between(lines []api.LogLine, from, to int) (all []string) {
	for _, l := range lines {
		if !l.At.Before(lines[from].At) && !l.At.After(lines[to].At) {
			all = append(all, l.Message)
		}
	}
	return all
}

func written(lines []api.LogLine) (all []string) {
	for _, l := range lines {
		if l.Source == "process" {
			all = append(all, l.Message)
		}
	}
	return all
}

// TestLogs reads a sandbox's log by every filter while it runs, once it has stopped, in its next life, and after it was deleted.
func TestLogs(t *testing.T) {
	eachLife(t, nil, func(t *testing.T, l *life) {
		id := Sandbox(t, l.Client, api.CreateSandboxIn{})
		Exec(t, l.Client, id, "echo first; sleep 0.05; echo Oops >&2; sleep 0.05; echo 'last one'; exit 3")
		// Two that write in turns, in the order in which they did.
		a := start(t, l.Client, id, "for i in 1 2 3; do echo a$i; touch a$i; while ! test -e b$i; do sleep 0.02; done; sleep 0.03; done; printf unfinished; while ! test -e go; do sleep 0.02; done")
		b := start(t, l.Client, id, "for i in 1 2 3; do while ! test -e a$i; do sleep 0.02; done; sleep 0.03; echo b$i; touch b$i; done")
		read(t, l.Client, id, b, 15)
		eventually(t, func() bool { return strings.HasSuffix(read1(t, l.Client, id, a), "unfinished") })

		base := api.SandboxLogsIn{SandboxIn: in(id), Direction: "forward"}
		want := []string{"created from base", "running", "first", "Oops", "last one", "ended with exit code 3", "a1", "b1", "a2", "b2", "a3", "b3"}
		got := logs(t, l.Client, base)
		if d := cmp.Diff(want, messages(got)); d != "" {
			t.Errorf("forward (-want +got):\n%s", d)
		}
		for i := range got {
			if i > 0 && got[i].At.Before(got[i-1].At) {
				t.Errorf("line %d is before the one before it", i)
			}
		}
		if oops := got[3]; oops.Level != "error" || oops.Stream != "stderr" || oops.ProcessID == "" || got[1].State != api.StateRunning || got[5].Level != "warn" || got[5].Reason != "exit_code" {
			t.Errorf("what is said of lines: %+v", got)
		}
		back := base
		back.Direction, back.Limit = "", 1
		reversed := logs(t, l.Client, back)
		for i := range reversed {
			if reversed[i] != got[len(got)-1-i] {
				t.Errorf("backward, one a page: line %d is %+v", i, reversed[i])
			}
		}
		if len(reversed) != len(got) {
			t.Errorf("backward: %d lines, forward %d", len(reversed), len(got))
		}
		for name, tt := range map[string]struct {
			change func(*api.SandboxLogsIn)
			want   []string
		}{
			"level error":    {func(w *api.SandboxLogsIn) { w.Level = "error" }, []string{"Oops"}},
			"level warn":     {func(w *api.SandboxLogsIn) { w.Level = "warn" }, []string{"Oops", "ended with exit code 3"}},
			"search":         {func(w *api.SandboxLogsIn) { w.Search = "ONE" }, []string{"last one"}},
			"one process":    {func(w *api.SandboxLogsIn) { w.ProcessID = b }, []string{"b1", "b2", "b3"}},
			"stderr":         {func(w *api.SandboxLogsIn) { w.Stream = "stderr" }, []string{"Oops"}},
			"a time":         {func(w *api.SandboxLogsIn) { w.Start, w.End = &got[3].At, &got[4].At }, between(got, 3, 4)},
			"pages of three": {func(w *api.SandboxLogsIn) { w.Limit = 3 }, want},
			"nothing":        {func(w *api.SandboxLogsIn) { w.Search = "nowhere" }, nil},
		} {
			w := base
			tt.change(&w)
			if d := cmp.Diff(tt.want, messages(logs(t, l.Client, w))); d != "" {
				t.Errorf("%s (-want +got):\n%s", name, d)
			}
		}
		debug := base
		debug.Level, debug.ProcessID = "debug", b
		if m := messages(logs(t, l.Client, debug)); len(m) != 5 || !strings.HasPrefix(m[0], "started: for i in") || m[4] != "ended" {
			t.Errorf("debug: %q", m)
		}
		// A cursor is of its filters; an unknown process is one.
		page := Must(t, l.Client, api.SandboxLogs, api.SandboxLogsIn{SandboxIn: in(id), Limit: 1})
		if code := Code(t, l.Client, api.SandboxLogs, api.SandboxLogsIn{SandboxIn: in(id), Cursor: *page.NextCursor, Level: "error"}); code != "INVALID_CURSOR" {
			t.Errorf("another's cursor: %q", code)
		}
		if code := Code(t, l.Client, api.SandboxLogs, api.SandboxLogsIn{SandboxIn: in(id), ProcessID: "proc_aaaaaaaaaaaaaaaaaaaa"}); code != "NOT_FOUND" {
			t.Errorf("no such process: %q", code)
		}

		// Once it has stopped everything is there still, the unfinished line too.
		Exec(t, l.Client, id, "touch go")
		read(t, l.Client, id, a, 15)
		want = append(want, "unfinished")
		if d := cmp.Diff(want[2:], written(logs(t, l.Client, base))); d != "" {
			t.Errorf("ended (-want +got):\n%s", d)
		}
		l.stop(t, id)
		got = logs(t, l.Client, base)
		if d := cmp.Diff(want[2:], written(got)); d != "" {
			t.Errorf("stopped (-want +got):\n%s", d)
		}
		if end := got[len(got)-1]; end.State != api.StateStopped || end.Reason != "requested" || end.Level != "info" {
			t.Errorf("the end: %+v", end)
		}
		if sb := l.get(t, id); sb.State != api.StateStopped {
			t.Errorf("reading its log made it %s", sb.State)
		}
		// Its next life goes on where the log ended.
		if out := Exec(t, l.Client, id, "echo again"); out.Woke == "" {
			t.Errorf("it was not started: %+v", out)
		}
		m := messages(logs(t, l.Client, base))
		if d := cmp.Diff([]string{"is being stopped: it was asked to", "stopped: it was asked to", "started again: it was used", "running", "again"}, m[len(m)-5:]); d != "" {
			t.Errorf("started again (-want +got):\n%s", d)
		}
		Must(t, l.Client, api.DeleteSandbox, waiting(id, 30))
		m = messages(logs(t, l.Client, base))
		if d := cmp.Diff([]string{"again", "is being deleted", "deleted"}, m[len(m)-3:]); d != "" {
			t.Errorf("deleted (-want +got):\n%s", d)
		}
		l.pass(25 * time.Hour)
		eventually(t, func() bool { return Code(t, l.Client, api.SandboxLogs, base) == "NOT_FOUND" })
	})
}

// read1 gives what a process has written until now.
func read1(t testing.TB, c *client.Client, id, p string) string {
	t.Helper()
	return Must(t, c, api.ProcessOutput, api.ProcessOutputIn{ProcessIn: proc(id, p)}).Data
}

// TestLogsOfMuch: megabytes of lines, broken characters and endless ones are read in bounded pages, live and stored, and nothing is given twice.
func TestLogsOfMuch(t *testing.T) {
	l := newLife(t, dbtest.SQLite(t), nil)
	id := Sandbox(t, l.Client, api.CreateSandboxIn{})
	Exec(t, l.Client, id, `seq -f 'line %06g ------------------------------------------------------------------------' 1 20000`)
	Exec(t, l.Client, id, `head -c 30000 /dev/zero | tr '\0' x; echo; printf 'caf\303\251 \377 end\r\n'; head -c 9000 /dev/zero | tr '\0' '\303'`)
	for _, state := range []string{"live", "stored"} {
		if state == "stored" {
			l.stop(t, id)
		}
		all := written(logs(t, l.Client, api.SandboxLogsIn{SandboxIn: in(id), Direction: "forward", Limit: 1000}))
		n := 0
		seen := map[string]bool{}
		for _, m := range all {
			if strings.HasPrefix(m, "line ") {
				if n++; seen[m] {
					t.Fatalf("%s: %q comes twice", state, m)
				}
				seen[m] = true
			}
		}
		// The last MiB is kept, and its first line may be cut.
		if n < 12000 || !seen[fmt.Sprintf("line %06d ", 20000)+strings.Repeat("-", 72)] {
			t.Errorf("%s: %d lines", state, n)
		}
		rest := all[len(all)-3:]
		if len(rest[0]) != 8<<10 || rest[1] != "café � end" || rest[2] != "�" {
			t.Errorf("%s: the rest is %.60q", state, rest)
		}
		found := logs(t, l.Client, api.SandboxLogsIn{SandboxIn: in(id), Search: "line 01999"})
		if len(found) != 10 || !strings.HasPrefix(found[0].Message, "line 019999") {
			t.Errorf("%s: found %d", state, len(found))
		}
	}
}

// A boot that fails says why in the log.
func TestLogsOfAFailure(t *testing.T) {
	l := newLife(t, dbtest.SQLite(t), nil)
	l.failing("create", fmt.Errorf("no room for it"))
	e := refusal(t, l.Client, api.CreateSandbox, api.CreateSandboxIn{WaitIn: wait(30)})
	id, _ := e.Details["sandboxId"].(string)
	lines := logs(t, l.Client, api.SandboxLogsIn{SandboxIn: in(id), Level: "error"})
	if len(lines) != 1 || lines[0].State != api.StateFailed || !strings.HasPrefix(lines[0].Message, "failed") {
		t.Errorf("got %+v", lines)
	}
}
