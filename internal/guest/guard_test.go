//go:build linux

package guest

import (
	"os"
	"testing"
	"time"
)

const gvisorMeminfo = "MemTotal:         524288 kB\nMemFree:               0 kB\nMemAvailable:          0 kB\nAnonPages:        600000 kB\nShmem:              1000 kB\nMapped:           100000 kB\nnonsense\nX: y kB\n"

func TestParseMemory(t *testing.T) {
	for name, tt := range map[string]struct {
		text   string
		gvisor bool
		want   memoryState
	}{
		"gvisor":  {gvisorMeminfo, true, memoryState{512 << 20, 600_000 << 10}},
		"linux":   {gvisorMeminfo, false, memoryState{512 << 20, 512 << 20}},
		"free":    {"MemTotal: 100 kB\nMemFree: 30 kB\n", false, memoryState{100 << 10, 70 << 10}},
		"over":    {"MemTotal: 100 kB\nMemAvailable: 130 kB\n", false, memoryState{100 << 10, 0}},
		"nothing": {"", true, memoryState{}},
		"no free": {"MemTotal: 100 kB\n", true, memoryState{total: 100 << 10}},
	} {
		t.Run(name, func(t *testing.T) {
			if got := parseMemory([]byte(tt.text), tt.gvisor); got != tt.want {
				t.Errorf("got %+v, want %+v", got, tt.want)
			}
		})
	}
}

// The less is left, the sooner it is looked again: at its highest speed a program cannot take what is left and the host's own reserve between two looks.
func TestGuardPause(t *testing.T) {
	for _, total := range []int64{128 << 20, 512 << 20, 4 << 30, 64 << 30} {
		for used := int64(0); used <= total; used += total / 64 {
			m := memoryState{total, used}
			pause := guardPause(m)
			if pause < guardFastest || pause > guardSlowest {
				t.Fatalf("%+v: %v", m, pause)
			}
			if taken := int64(float64(guardSpeed) * pause.Seconds()); taken > m.left()+128<<20+total/8 {
				t.Errorf("%+v: %d bytes may be taken in %v", m, taken, pause)
			}
		}
		if r := guardReserve(total); r < guardLeast || r > guardMost || r > total/8 {
			t.Errorf("of %d, %d are kept free", total, r)
		}
	}
}

// A kill is written to the process that it belongs to, also where only a child of it was killed, and to no other.
func TestGuardMarks(t *testing.T) {
	r := newRig(t)
	g := &guard{s: r.server, asked: map[int]bool{}}
	hog := r.start(Start{Command: "echo $$; sleep 1000 & setsid sleep 1001 & wait"})
	other := r.start(Start{Command: "sleep 1002; true"})
	child := 0
	for child == 0 {
		for _, k := range tasks() {
			if k.parent == hog.PID && k.session != hog.PID {
				child = k.pid
			}
		}
		time.Sleep(time.Millisecond)
	}
	g.mark(tasks(), child)
	for _, p := range []Process{hog, other} {
		if _, err := r.Signal(t.Context(), "", p.ID, "KILL"); err != nil {
			t.Fatal(err)
		}
	}
	if got := r.ended(hog.ID); !got.OutOfMemory || got.ExitCode != 137 {
		t.Errorf("the process whose child was killed: %+v", got)
	}
	if got := r.ended(other.ID); got.OutOfMemory {
		t.Errorf("another process: %+v", got)
	}
}

// The guest is never chosen, nor what was killed already.
func TestGuardChooses(t *testing.T) {
	r := newRig(t)
	small := r.start(Start{Argv: []string{"sleep", "1000"}})
	g := &guard{s: r.server, asked: map[int]bool{}}
	table := []task{{pid: 1}, {pid: os.Getpid()}, {pid: small.PID}, {pid: small.PID + 100000, dead: true}}
	if pid, size := g.largest(table); pid != small.PID || size <= 0 {
		t.Errorf("chose %d with %d bytes, want %d", pid, size, small.PID)
	}
	g.asked[small.PID] = true
	if pid, _ := g.largest(table); pid != 0 {
		t.Errorf("chose %d again", pid)
	}
}
