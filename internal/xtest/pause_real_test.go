package xtest

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/berthrun/berth/api"
	"github.com/berthrun/berth/internal/cli"
)

// worker writes a database and a log in turn, serves a counter, and asks its own server over one connection that it keeps for as long as it lives.
const worker = `
import http.client, http.server, os, sqlite3, threading, time
db = sqlite3.connect("/workspace/rows.db", isolation_level=None)
db.execute("PRAGMA journal_mode=WAL")
db.execute("CREATE TABLE IF NOT EXISTS rows (n INTEGER PRIMARY KEY)")
log = open("/workspace/rows.log", "a")
count = 0
class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def do_GET(self):
        body = str(count).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def log_message(self, *a): pass
server = http.server.ThreadingHTTPServer(("0.0.0.0", 8000), Handler)
threading.Thread(target=server.serve_forever, daemon=True).start()
asked = broken = 0
def ask():
    global asked, broken
    conn = None
    while True:
        try:
            if conn is None:
                conn = http.client.HTTPConnection("127.0.0.1", 8000, timeout=20)
            conn.request("GET", "/")
            conn.getresponse().read()
            asked += 1
        except Exception:
            broken, conn = broken + 1, None
        time.sleep(0.01)
threading.Thread(target=ask, daemon=True).start()
while True:
    count += 1
    db.execute("INSERT INTO rows VALUES (?)", (count,))
    log.write("%d\n" % count)
    log.flush()
    with open("/workspace/state.new", "w") as f:
        f.write("%d %d %d" % (count, asked, broken))
    os.rename("/workspace/state.new", "/workspace/state")
    time.sleep(0.005)
`

// TestManyPauses pauses a sandbox at work again and again: as often as BERTH_TEST_PAUSES says, 20 times where it does not. Nothing is lost and nothing
// doubled, its server answers, and its connections live.
func TestManyPauses(t *testing.T) {
	cycles := 20
	if n, err := strconv.Atoi(os.Getenv("BERTH_TEST_PAUSES")); err == nil {
		cycles = n
	}
	r := StartReal(t)
	id := Sandbox(t, r.Client, api.CreateSandboxIn{Resources: &api.ResourcesIn{MemoryMiB: 512}})
	Must(t, r.Client, api.WriteFile, api.WriteFileIn{FileIn: file(id, "worker.py"), Data: worker})
	p := start(t, r.Client, id, "python3 worker.py")
	state := func() (count, asked, broken int) {
		t.Helper()
		out := Exec(t, r.Client, id, "cat /workspace/state")
		_, err := fmt.Sscan(out.Stdout, &count, &asked, &broken)
		if err != nil {
			t.Fatalf("state %q: %v", out.Stdout, err)
		}
		return count, asked, broken
	}
	eventually(t, func() bool { return Exec(t, r.Client, id, "cat /workspace/state").Stdout != "" })
	before, asked, _ := state()
	slowest := time.Duration(0)
	for i := range cycles {
		if sb := Must(t, r.Client, api.PauseSandbox, waiting(id, 30)).Sandbox; sb.State != api.StatePaused || sb.Depth != api.DepthDisk {
			t.Fatalf("pause %d: %+v", i, sb)
		}
		began := time.Now()
		out := Exec(t, r.Client, id, "curl -s --max-time 10 http://127.0.0.1:8000/")
		slowest = max(slowest, time.Since(began))
		if out.Woke != "memory" || out.ExitCode == nil || *out.ExitCode != 0 {
			t.Fatalf("wake %d: woke %q, exit %v, %s", i, out.Woke, out.ExitCode, out.Stderr)
		}
		if n, err := strconv.Atoi(out.Stdout); err != nil || n < before {
			t.Fatalf("wake %d: the server says %q, and it was at %d", i, out.Stdout, before)
		}
		eventually(t, func() bool {
			n, a, _ := state()
			going := n > before && a > asked
			if going {
				before, asked = n, a
			}
			return going
		})
	}
	_, _, broken := state()
	if broken > 0 {
		t.Errorf("its own connection broke %d times", broken)
	}
	Must(t, r.Client, api.ProcessSignal, api.ProcessSignalIn{ProcessIn: proc(id, p), Signal: "KILL"})
	check := Exec(t, r.Client, id, `python3 - <<'EOF'
import sqlite3
db = sqlite3.connect("/workspace/rows.db")
lines = [int(l) for l in open("/workspace/rows.log").read().split("\n") if l]
n, most = db.execute("SELECT COUNT(*), MAX(n) FROM rows").fetchone()
print(db.execute("PRAGMA integrity_check").fetchone()[0], n == most, lines == list(range(1, len(lines) + 1)), most - len(lines) in (0, 1))
EOF`)
	if strings.TrimSpace(check.Stdout) != "ok True True True" {
		t.Errorf("database whole, no row lost, no line lost or doubled, both alike: %s%s", check.Stdout, check.Stderr)
	}
	t.Logf("%d rows over %d pauses; the slowest wake with its command took %s", before, cycles, slowest)
}

// TestRealFork copies a sandbox at work: every copy has its processes and files, and a name, address, clock and chance of its own.
func TestRealFork(t *testing.T) {
	r := StartReal(t)
	id := Sandbox(t, r.Client, api.CreateSandboxIn{Name: "origin", Resources: &api.ResourcesIn{MemoryMiB: 512}})
	Exec(t, r.Client, id, "echo kept > file")
	p := start(t, r.Client, id, "i=0; while :; do i=$((i+1)); echo $i > count; sleep 0.05; done")
	eventually(t, func() bool { return Exec(t, r.Client, id, "cat count").Stdout != "" })
	out := Must(t, r.Client, api.ForkSandbox, api.ForkSandboxIn{SandboxIn: in(id), Count: 3, WaitIn: waiting(id, 30).WaitIn})
	if !out.Ready || len(out.Items) != 3 {
		t.Fatalf("fork: %+v", out)
	}
	all := []string{id}
	for _, c := range out.Items {
		all = append(all, c.SandboxID)
	}
	own := map[string]map[string]string{}
	for _, sandbox := range all {
		facts := map[string]string{
			"random":   Exec(t, r.Client, sandbox, "head -c 16 /dev/urandom | od -An -tx1").Stdout,
			"hostname": Exec(t, r.Client, sandbox, "hostname").Stdout,
			"address":  Exec(t, r.Client, sandbox, "hostname -I").Stdout,
		}
		for what, value := range facts {
			if own[what] == nil {
				own[what] = map[string]string{}
			}
			if other, ok := own[what][value]; ok && value != "" {
				t.Errorf("%s and %s have the same %s: %q", other, sandbox, what, value)
			}
			own[what][value] = sandbox
		}
		clock, err := strconv.ParseInt(strings.TrimSpace(Exec(t, r.Client, sandbox, "date +%s").Stdout), 10, 64)
		if skew := time.Since(time.Unix(clock, 0)); err != nil || skew.Abs() > 5*time.Second {
			t.Errorf("the clock of %s is off by %s, %v", sandbox, skew, err)
		}
		if got := Exec(t, r.Client, sandbox, "cat file").Stdout; got != "kept\n" {
			t.Errorf("the file of %s is %q", sandbox, got)
		}
		first := Exec(t, r.Client, sandbox, "cat count").Stdout
		eventually(t, func() bool { return Exec(t, r.Client, sandbox, "cat count").Stdout != first })
		Exec(t, r.Client, sandbox, "echo "+sandbox+" > file")
		if info := Must(t, r.Client, api.GetProcess, proc(sandbox, p)).Process; info.State != "running" {
			t.Errorf("the process of %s is %s", sandbox, info.State)
		}
	}
	for _, sandbox := range all {
		if got := strings.TrimSpace(Exec(t, r.Client, sandbox, "cat file").Stdout); got != sandbox {
			t.Errorf("%s has the file of %s", sandbox, got)
		}
	}
	// The copies' own traffic goes by their own addresses: a name is looked up, or refused, but none hangs.
	together(len(all), func(i int) {
		if out := Exec(t, r.Client, all[i], "timeout 20 getent hosts localhost"); out.TimedOut {
			t.Errorf("%s hangs", all[i])
		}
	})
}

// TestRealSnapshots keeps snapshots off their node, deletes their sandbox and what the node has of them, and makes sandboxes of them.
func TestRealSnapshots(t *testing.T) {
	r := StartReal(t)
	id := Sandbox(t, r.Client, api.CreateSandboxIn{Resources: &api.ResourcesIn{MemoryMiB: 512}})
	Exec(t, r.Client, id, "mkdir -p deep && echo kept > deep/file && ln -s deep/file link && sudo rm /etc/issue")
	start(t, r.Client, id, "i=0; while :; do i=$((i+1)); echo $i > count; sleep 0.05; done")
	eventually(t, func() bool { return Exec(t, r.Client, id, "cat count").Stdout != "" })
	snaps := map[string]string{}
	for _, mode := range []string{api.ModeMemory, api.ModeDisk} {
		s := Must(t, r.Client, api.SnapshotSandbox, api.SnapshotSandboxIn{SandboxIn: in(id), Mode: mode, Name: "of-" + mode}).Snapshot
		snaps[mode] = s.ID
	}
	for _, snap := range snaps {
		eventually(t, func() bool {
			s := Must(t, r.Client, api.GetSnapshot, api.SnapshotIn{SnapshotID: snap}).Snapshot
			return s.State == api.SnapshotReady && s.Stored
		})
	}
	Must(t, r.Client, api.DeleteSandbox, waiting(id, 30))
	// What this node has of them goes, as if they were used on another.
	r.Stop()
	r.KillRuntime()
	for _, snap := range snaps {
		if err := os.RemoveAll(filepath.Join(r.Dir, "data", "node", "saves", snap)); err != nil {
			t.Fatal(err)
		}
	}
	r.Serve()
	for mode, snap := range snaps {
		made := Must(t, r.Client, api.CreateSandbox, api.CreateSandboxIn{SnapshotID: snap, WaitIn: waiting(id, 30).WaitIn})
		if !made.Ready {
			t.Fatalf("%s: %+v", mode, made)
		}
		copied := made.Sandbox.ID
		if got := Exec(t, r.Client, copied, "cat link").Stdout; got != "kept\n" {
			t.Errorf("%s: the file is %q", mode, got)
		}
		if out := Exec(t, r.Client, copied, "test -e /etc/issue"); *out.ExitCode == 0 {
			t.Errorf("%s: a removed file of the image is back", mode)
		}
		first := Exec(t, r.Client, copied, "cat count").Stdout
		if mode == api.ModeMemory {
			eventually(t, func() bool { return Exec(t, r.Client, copied, "cat count").Stdout != first })
		}
	}
}

var sandboxID = regexp.MustCompile(`sbx_[a-z0-9]{20}`)

// TestReadyPool has creates take sandboxes that were booted before: none twice, each as if it had been made for its caller.
func TestReadyPool(t *testing.T) {
	r := StartReal(t, "--ready-memory-mib", "96")
	want := api.CreateSandboxIn{Resources: &api.ResourcesIn{MemoryMiB: 512}}
	ready := func() (k api.ReadyKind) {
		for _, p := range Must(t, r.Client, api.ListPools, api.ListPoolsIn{}).Items {
			for _, k := range p.Ready {
				if k.MemoryMiB == 512 {
					return k
				}
			}
		}
		return k
	}
	first := Sandbox(t, r.Client, want)
	eventually(t, func() bool { k := ready(); return k.Ready >= 1 && k.Missed == 1 })
	want.Name, want.Env = "mine", map[string]string{"COLOR": "blue"}
	second := Sandbox(t, r.Client, want)
	if k := ready(); k.Taken != 1 {
		t.Errorf("after a create: %+v", k)
	}
	if got := Exec(t, r.Client, second, "echo $COLOR; hostname; ps -e | grep -c true").Stdout; got != "blue\nmine\n0\n" {
		t.Errorf("the one that was ready says %q", got)
	}
	if all := Must(t, r.Client, api.ListProcesses, api.ListProcessesIn{SandboxIn: in(second)}).Items; len(all) != 1 {
		t.Errorf("its processes: %+v", all)
	}
	// Many at once: nobody gets another's.
	var mu sync.Mutex
	ids := map[string]bool{first: true, second: true}
	want.Name = ""
	together(4, func(int) {
		id := Sandbox(t, r.Client, want)
		mu.Lock()
		defer mu.Unlock()
		if ids[id] {
			t.Errorf("%s was given twice", id)
		}
		ids[id] = true
	})
	// They outlive a server, and the next one's look at the node. What a server that is killed was making is given up only in minutes.
	full := func() bool { k := ready(); return k.Ready >= 1 && k.Ready >= k.Target && k.Making == 0 }
	eventually(t, full)
	r.Kill()
	r.Serve()
	third := Sandbox(t, r.Client, want)
	if ids[third] {
		t.Errorf("%s was given twice", third)
	}
	if got := Exec(t, r.Client, third, "echo here").Stdout; got != "here\n" {
		t.Errorf("after a restart: %q", got)
	}
	// What its guest is to know is told before its first command, by whichever server has that, and kept apart from what changes meanwhile.
	eventually(t, full)
	want.Name, want.Env = "told", map[string]string{"COLOR": "red"}
	fourth := Sandbox(t, r.Client, want)
	r.Kill()
	r.Serve()
	if got := Exec(t, r.Client, fourth, "echo $COLOR; hostname").Stdout; got != "red\ntold\n" {
		t.Errorf("told by the next server: %q", got)
	}
	Must(t, r.Client, api.UpdateSandbox, api.UpdateSandboxIn{SandboxIn: in(fourth), Env: map[string]string{"COLOR": "green"}})
	r.Kill()
	r.Serve()
	if got := Exec(t, r.Client, fourth, "echo $COLOR").Stdout; got != "green\n" {
		t.Errorf("changed since: %q", got)
	}
	// One that nobody named is as one that was booted for its caller.
	plain := api.CreateSandboxIn{Resources: want.Resources}
	Sandbox(t, r.Client, plain) // asks for others
	eventually(t, full)
	taken := ready().Taken
	fifth := Sandbox(t, r.Client, plain)
	if k := ready(); k.Taken != taken+1 {
		t.Errorf("after a create: %+v", k)
	}
	const facts = "hostname | tr -d '\n'; cat /etc/hostname; grep -h . /sys/fs/cgroup/*/pids.max /sys/fs/cgroup/pids.max 2>/dev/null | sort | head -1; env | grep -c COLOR"
	if got, as := Exec(t, r.Client, fifth, facts).Stdout, Exec(t, r.Client, first, facts).Stdout; strings.ReplaceAll(got, fifth[4:12], "") != strings.ReplaceAll(as, first[4:12], "") {
		t.Errorf("one that was ready says %q, one that was booted %q", got, as)
	}
	// Those that died meanwhile are booted by the create that takes them.
	eventually(t, full)
	mine := map[string]bool{}
	for _, sb := range Must(t, r.Client, api.ListSandboxes, api.ListSandboxesIn{}).Items {
		mine[sb.ID] = true
	}
	ofPool := func() (pids []int) {
		for _, p := range processes() {
			if id := sandboxID.FindString(p.args); id != "" && !mine[id] && strings.Contains(p.args, r.Dir) {
				pids = append(pids, p.pid)
			}
		}
		return pids
	}
	for _, pid := range ofPool() {
		_ = syscall.Kill(pid, syscall.SIGKILL) // a kernel or its file server
	}
	eventually(t, func() bool { return len(ofPool()) == 0 })
	time.Sleep(200 * time.Millisecond) // until the node has seen it; one that dies later has died with its caller
	sixth := Sandbox(t, r.Client, plain)
	if got := Exec(t, r.Client, sixth, "echo here").Stdout; got != "here\n" {
		t.Errorf("one that had died: %q", got)
	}
	var out, errout bytes.Buffer
	env := map[string]string{"BERTH_URL": r.URL, "BERTH_API_KEY": r.Key, "BERTH_DATA": t.TempDir()}
	code := cli.Main(t.Context(), []string{"pools", "list"}, func(n string) string { return env[n] }, strings.NewReader(""), &out, &errout, cli.Commands{})
	if code != 0 || !strings.Contains(out.String(), "local") {
		t.Errorf("berth pools list: exit %d, %s%s", code, &out, &errout)
	}
}
