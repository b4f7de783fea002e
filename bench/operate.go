package main

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// What the server's own process may take with idle sandboxes, what its program may weigh, and how long it may take until it serves.
const (
	idleFor     = 60 * time.Second
	mostCPU     = 5.0       // percent of one core
	mostRSS     = 150 << 20 // bytes
	mostProgram = 110 << 20
	mostStart   = 1500 * time.Millisecond
	starts      = 10
	clockTicks  = 100 // a second, in which Linux tells times to programs
)

// own measures the server's process while its sandboxes are idle.
func (b *bench) own(ctx context.Context, s *server, sandboxes int) error {
	pid := s.cmd.Process.Pid
	before, err := ticks(pid)
	if err != nil {
		return err
	}
	select {
	case <-time.After(idleFor):
	case <-ctx.Done():
		return ctx.Err()
	}
	after, err := ticks(pid)
	if err != nil {
		return err
	}
	rss, err := resident(pid)
	if err != nil {
		return err
	}
	cpu := float64(after-before) / clockTicks / idleFor.Seconds() * 100
	what := fmt.Sprintf("the server's own process, %d idle sandboxes", sandboxes)
	b.rows = append(b.rows,
		row{what: what, figure: fmt.Sprintf("%.1f %% of one core", cpu), peer: "over 60 s", must: "≤ 5 %", met: cpu <= mostCPU},
		row{what: what, figure: fmt.Sprintf("%.0f MiB", float64(rss)/(1<<20)), peer: "resident", must: "≤ 150 MiB", met: rss <= mostRSS})
	return nil
}

// ticks is the CPU time that a process has had.
func ticks(pid int) (int64, error) {
	data, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
	if err != nil {
		return 0, err
	}
	f := strings.Fields(string(data[bytes.LastIndexByte(data, ')')+1:])) // from the state on
	if len(f) < 13 {
		return 0, fmt.Errorf("read times of %d: %q", pid, data)
	}
	user, err := strconv.ParseInt(f[11], 10, 64)
	if err != nil {
		return 0, err
	}
	system, err := strconv.ParseInt(f[12], 10, 64)
	return user + system, err
}

// resident is the memory of a process, in bytes.
func resident(pid int) (int64, error) {
	data, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "status"))
	if err != nil {
		return 0, err
	}
	for sc := bufio.NewScanner(bytes.NewReader(data)); sc.Scan(); {
		if f := strings.Fields(sc.Text()); len(f) == 3 && f[0] == "VmRSS:" {
			kib, err := strconv.ParseInt(f[1], 10, 64)
			return kib << 10, err
		}
	}
	return 0, fmt.Errorf("the memory of %d is not told", pid)
}

// start measures the program: its size, and from its start until it serves, with a prepared image.
func (b *bench) start(ctx context.Context, _ *server, _ string) error {
	st, err := os.Stat(b.berth)
	if err != nil {
		return err
	}
	b.rows = append(b.rows, row{what: "the program, stripped", figure: fmt.Sprintf("%.0f MiB", float64(st.Size())/(1<<20)), must: "≤ 110 MiB", met: st.Size() <= mostProgram})
	var took []time.Duration
	for range starts {
		began := time.Now()
		s, err := b.serve(ctx)
		if err != nil {
			return err
		}
		took = append(took, time.Since(began))
		s.stop()
	}
	b.rows = append(b.rows, row{
		what: "start until it serves and a client is connected", figure: spread(took), peer: "prepared image", must: "≤ 1.5 s", met: median(took) <= mostStart,
	})
	return nil
}
