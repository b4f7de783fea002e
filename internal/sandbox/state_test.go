package sandbox

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/berthrun/berth/api"
)

var states = []string{
	api.StateCreating, api.StateRunning, api.StatePausing, api.StatePaused, api.StateWaking, api.StateStopping, api.StateStopped,
	api.StateStarting, api.StateFailed, api.StateDeleting, api.StateDeleted,
}

// The states of the design, each with those it leaves to. Every state but deleting and deleted also leaves to deleting.
const leaves = `
creating: running failed
running: pausing stopping stopped
pausing: paused running
paused: waking stopping
waking: running paused
stopping: stopped
stopped: starting
starting: running stopped
failed:
deleting: deleted
deleted:
`

func TestTransitionsAreTheDesigns(t *testing.T) {
	want := map[string]bool{}
	for line := range strings.Lines(strings.TrimSpace(leaves)) {
		from, list, _ := strings.Cut(strings.TrimSpace(line), ":")
		for _, to := range strings.Fields(list) {
			want[from+">"+to] = true
		}
		if from != api.StateDeleting && from != api.StateDeleted {
			want[from+">"+api.StateDeleting] = true
		}
	}
	got := map[string]bool{}
	for _, from := range states {
		for _, to := range states {
			if allowed(from, to) {
				got[from+">"+to] = true
			}
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("transitions (-design +code):\n%s", diff)
	}
}

// The operation table of the design: a column for each state, a row for each verb.
const operations = `
verb   creating starting waking running pausing stopping paused  stopped failed  deleting
use    wait     wait     wait   do      onward  onward   wake    boot    invalid invalid
poke   busy     busy     busy   do      onward  onward   wake    invalid invalid invalid
pause  busy     busy     busy   do      join    busy     nothing invalid invalid invalid
start  join     join     join   nothing onward  onward   wake    boot    invalid invalid
wake   join     join     join   nothing onward  onward   wake    invalid invalid invalid
stop   busy     busy     busy   do      join    join     do      nothing nothing invalid
fork   busy     busy     busy   do      busy    busy     do      invalid invalid invalid
snap   busy     busy     busy   do      busy    busy     do      do      invalid invalid
switch busy     busy     busy   do      busy    busy     invalid do      invalid invalid
update do       do       do     do      do      do       do      do      invalid invalid
delete do       do       do     do      do      do       do      do      do      join
`

func TestOperationsAreTheDesigns(t *testing.T) {
	rows := strings.Split(strings.TrimSpace(operations), "\n")
	columns := strings.Fields(rows[0])[1:]
	for _, line := range rows[1:] {
		cells := strings.Fields(line)
		for i, state := range columns {
			if got, want := decide(verb(cells[0]), state), answer(cells[i+1]); got != want {
				t.Errorf("%s of a sandbox that is %s: %s, want %s", cells[0], state, got, want)
			}
		}
	}
}

func TestUsageFollowsTheState(t *testing.T) {
	r := &row{VCPUMilli: 500, MemoryMiB: 1024, DiskGiB: 10}
	// Along any path from nothing to deleted everything that was taken is given back.
	for _, path := range [][]string{
		{"", "creating", "running", "stopping", "stopped", "starting", "running", "stopped", "deleting", "deleted"},
		{"", "creating", "failed", "deleting", "deleted"},
		{"", "creating", "running", "pausing", "paused", "waking", "paused", "stopping", "stopped", "deleting", "deleted"},
		{"", "creating", "running", "deleting", "deleted"},
	} {
		held := map[string]int64{}
		for i := 1; i < len(path); i++ {
			for k, v := range r.usageDelta(path[i-1], path[i]) {
				held[k] += v
				if held[k] < 0 {
					t.Errorf("%v: %s is %d after %s", path, k, held[k], path[i])
				}
			}
			if path[i] == "running" && held["memory.running"] != 1024 {
				t.Errorf("%v: running holds %v", path, held)
			}
			if path[i] == "stopped" && (held["memory.running"] != 0 || held["disk.total"] != 10) {
				t.Errorf("%v: stopped holds %v", path, held)
			}
		}
		for k, v := range held {
			if v != 0 {
				t.Errorf("%v: %d of %s is never given back", path, v, k)
			}
		}
	}
}

func TestDuration(t *testing.T) {
	for text, want := range map[string]string{"30m": "30m0s", "3d": "72h0m0s", "1s": "1s", "0m": "", "m": "", "5": ""} {
		d, err := duration("by", text)
		got := d.String()
		if err != nil {
			got = ""
		}
		if got != want {
			t.Errorf("duration(%q) = %q, want %q", text, got, want)
		}
	}
}
