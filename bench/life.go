package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"
)

// holder is a program that touches so many MiB, prints the longest time that it stood still at each record, and goes on for ever.
const holder = `
import sys, time
held = bytearray(int(sys.argv[1]) << 20)
for i in range(0, len(held), 4096):
    held[i] = 1 + i % 255
print("held", flush=True)
longest, last = 0.0, time.time()
while True:
    time.sleep(0.005)
    now = time.time()
    if now - last > longest:
        longest = now - last
        print("%.1f" % (longest * 1000), flush=True)
    last = now
`

// lifeParts are what life measures, each by itself too.
var lifeParts = []string{"frozen", "resumed", "booted", "forks", "wake", "claims"}

// life: pause, wake, fork and creates of what was booted before, beside gVisor's own checkpoints. Its sandboxes have disks that can be copied at once.
func (b *bench) life(ctx context.Context, _ *server, rootfs string) error {
	s, err := b.serve(ctx, "--disk", "btrfs-image")
	if err != nil {
		return err
	}
	defer s.stop()
	for _, part := range []struct {
		name string
		run  func() error
	}{
		{"frozen", func() error { return b.frozen(ctx, rootfs) }},
		{"resumed", func() error { return b.resumed(ctx, s, rootfs) }},
		{"booted", func() error { return b.booted(ctx, s, rootfs) }},
		{"forks", func() error { return b.forks(ctx, s, rootfs) }},
		{"wake", func() error {
			return errors.Join(b.wake(ctx, s, rootfs, 20, 0), b.wake(ctx, s, rootfs, 1024, 1))
		}},
		{"claims", func() error { return b.claims(ctx, rootfs) }},
	} {
		if b.only != "" && b.only != "life" && b.only != part.name {
			continue
		}
		if err := part.run(); err != nil {
			return fmt.Errorf("%s: %w", part.name, err)
		}
	}
	return nil
}

// hold starts the holder in a sandbox and waits until it holds its memory.
func (s *server) hold(ctx context.Context, sandbox string, mib int) (process string, err error) {
	write := map[string]any{"sandboxId": sandbox, "path": "/workspace/hold.py", "data": holder}
	if err := s.call(ctx, "write_file", write, nil); err != nil {
		return "", err
	}
	var out struct{ Process struct{ ID string } }
	start := map[string]any{"sandboxId": sandbox, "command": "python3 /workspace/hold.py " + strconv.Itoa(mib)}
	if err := s.call(ctx, "start_process", start, &out); err != nil {
		return "", err
	}
	for ctx.Err() == nil {
		text, err := s.output(ctx, sandbox, out.Process.ID)
		if err != nil || strings.Contains(text, "held") {
			return out.Process.ID, err
		}
		time.Sleep(100 * time.Millisecond)
	}
	return "", ctx.Err()
}

func (s *server) output(ctx context.Context, sandbox, process string) (string, error) {
	var out struct{ Data string }
	err := s.call(ctx, "read_process_output", map[string]any{"sandboxId": sandbox, "processId": process}, &out)
	return out.Data, err
}

// wake: from paused on disk to the first command.
func (b *bench) wake(ctx context.Context, s *server, rootfs string, mib, n int) error {
	sandbox, err := s.sandbox(ctx, max(512, 2*mib))
	if err != nil {
		return err
	}
	defer s.delete(context.WithoutCancel(ctx), sandbox) //nolint:errcheck // the server goes too
	if _, err := s.hold(ctx, sandbox, mib); err != nil {
		return err
	}
	r, err := b.heldRaw(ctx, rootfs, 3000+n, mib)
	if err != nil {
		return err
	}
	defer r.end()
	image := filepath.Join(r.dir, "image")
	if err := r.checkpoint(ctx, image, false); err != nil {
		return err
	}
	var ours []time.Duration
	var theirs rawTimes
	for i := range b.rounds/2 + 1 {
		if err := s.call(ctx, "pause_sandbox", map[string]any{"sandboxId": sandbox}, nil); err != nil {
			return err
		}
		if i == 0 {
			if err := b.asleep(s, sandbox, mib); err != nil {
				return err
			}
		}
		d, err := timed(func() error { return s.true(ctx, sandbox) })
		if err != nil {
			return err
		}
		if i > 0 {
			ours = append(ours, d)
		}
		if err := theirs.add(i > 0, func(direct bool) (time.Duration, error) { return r.restored(ctx, image, direct) }); err != nil {
			return err
		}
	}
	best, name := theirs.best("and `runsc exec true`")
	b.add(fmt.Sprintf("wake from disk to the first command, %d MiB touched", mib), ours, name, best, 1.0)
	return nil
}

// asleep reads what is left of a sandbox that is paused on disk.
func (b *bench) asleep(s *server, sandbox string, mib int) error {
	dirs, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		return err
	}
	left := 0
	for _, f := range dirs {
		if text, err := os.ReadFile(f); err == nil && bytes.Contains(text, []byte(sandbox)) && bytes.HasPrefix(text, []byte("runsc-")) {
			left++
		}
	}
	groups, err := filepath.Glob("/sys/fs/cgroup/*/berth/*/" + sandbox)
	if err != nil {
		return err
	}
	b.rows = append(b.rows, row{
		what: fmt.Sprintf("paused on disk, %d MiB touched: processes and memory groups left", mib), peer: "of the sandbox, on the host", must: "none",
		figure: fmt.Sprintf("%d and %d", left, len(groups)), met: left == 0 && len(groups) == 0,
	})
	return nil
}

// frozen: from paused in memory to the first command, beside a running sandbox.
func (b *bench) frozen(ctx context.Context, rootfs string) error {
	g, end, err := b.driverAlone(ctx, rootfs)
	if err != nil {
		return err
	}
	defer end()
	var thawed, running []time.Duration
	for i := range b.rounds + 1 {
		if err := g.pause(ctx); err != nil {
			return err
		}
		d, err := timed(func() error {
			if err := g.resume(ctx); err != nil {
				return err
			}
			return g.true(ctx)
		})
		if err != nil {
			return err
		}
		p, err := timed(func() error { return g.true(ctx) })
		if err != nil {
			return err
		}
		if i > 0 {
			thawed, running = append(thawed, d), append(running, p)
		}
	}
	more := median(thawed) - median(running)
	b.rows = append(b.rows, row{
		what: "wake from frozen to the first command", peer: "more than a command in a running sandbox", must: "≤ 10 ms",
		figure: fmt.Sprintf("%.1f ms", float64(more.Microseconds())/1000), met: more <= 10*time.Millisecond,
	})
	return nil
}

// resumed: a create that brings back a booted state.
func (b *bench) resumed(ctx context.Context, s *server, rootfs string) error {
	sandbox, err := s.sandbox(ctx, 512)
	if err != nil {
		return err
	}
	defer s.delete(context.WithoutCancel(ctx), sandbox) //nolint:errcheck // the server goes too
	var snap struct{ Snapshot struct{ ID string } }
	if err := s.call(ctx, "snapshot_sandbox", map[string]any{"sandboxId": sandbox, "mode": "memory"}, &snap); err != nil {
		return err
	}
	r, err := b.heldRaw(ctx, rootfs, 4000, 1)
	if err != nil {
		return err
	}
	defer r.end()
	image := filepath.Join(r.dir, "image")
	if err := r.checkpoint(ctx, image, false); err != nil {
		return err
	}
	create := func(in map[string]any) (took, cpu time.Duration, err error) {
		var out sandboxOut
		before, err := cpuTime()
		if err != nil {
			return 0, 0, err
		}
		took, err = timed(func() error {
			if err := s.call(ctx, "create_sandbox", in, &out); err != nil {
				return err
			}
			return s.true(ctx, out.Sandbox.ID)
		})
		if err != nil {
			return 0, 0, err
		}
		after, err := cpuTime()
		return took, after - before, errors.Join(err, s.delete(ctx, out.Sandbox.ID))
	}
	var ours, cpu, cold []time.Duration
	var theirs rawTimes
	for i := range b.rounds + 1 {
		d, used, err := create(map[string]any{"snapshotId": snap.Snapshot.ID})
		if err != nil {
			return err
		}
		_, booted, err := create(map[string]any{"resources": map[string]any{"memoryMiB": 512}})
		if err != nil {
			return err
		}
		if i > 0 {
			ours, cpu, cold = append(ours, d), append(cpu, used), append(cold, booted)
		}
		if err := theirs.add(i > 0, func(direct bool) (time.Duration, error) { return r.restored(ctx, image, direct) }); err != nil {
			return err
		}
	}
	best, name := theirs.best("and `runsc exec true`")
	b.add("create by resume of a booted state to the first command", ours, name, best, 1.1)
	b.add("CPU time of that, of the whole machine", cpu, "a cold create to its first command", cold, 1.0)
	return nil
}

// cpuTime is the time that all of this machine's cores have worked.
func cpuTime() (time.Duration, error) {
	text, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0, err
	}
	line, _, _ := strings.Cut(string(text), "\n")
	fields := strings.Fields(line)
	if len(fields) < 8 {
		return 0, fmt.Errorf("/proc/stat says %q", line)
	}
	ticks := int64(0)
	for _, k := range []int{1, 2, 3, 6, 7} { // user, nice, system, irq, softirq
		n, err := strconv.ParseInt(fields[k], 10, 64)
		if err != nil {
			return 0, fmt.Errorf("read /proc/stat: %w", err)
		}
		ticks += n
	}
	return time.Duration(ticks) * 10 * time.Millisecond, nil // USER_HZ is 100 everywhere
}

// forks: ten copies of one sandbox, and how long the original stands still.
func (b *bench) forks(ctx context.Context, s *server, rootfs string) error {
	const mib, copies = 150, 10 // with what else is in it, below 200 MB
	sandbox, err := s.sandbox(ctx, 512)
	if err != nil {
		return err
	}
	defer s.delete(context.WithoutCancel(ctx), sandbox) //nolint:errcheck // the server goes too
	process, err := s.hold(ctx, sandbox, mib)
	if err != nil {
		return err
	}
	fill := map[string]any{"sandboxId": sandbox, "command": "head -c 300000000 /dev/urandom > /workspace/disk; sync"}
	if err := s.call(ctx, "run_command", fill, nil); err != nil {
		return err
	}
	first, err := b.heldRaw(ctx, rootfs, 5000, mib)
	if err != nil {
		return err
	}
	defer first.end()
	image := filepath.Join(first.dir, "image")
	if err := first.checkpoint(ctx, image, false); err != nil {
		return err
	}
	fork := func(count int, then func(ids []string) error) error {
		var out struct {
			Items []struct{ SandboxID string }
		}
		if err := s.call(ctx, "fork_sandbox", map[string]any{"sandboxId": sandbox, "count": count, "waitSeconds": 30}, &out); err != nil {
			return err
		}
		var ids []string
		for _, c := range out.Items {
			ids = append(ids, c.SandboxID)
		}
		return then(ids)
	}
	drop := func(ids []string) error {
		for _, c := range ids {
			if err := s.delete(ctx, c); err != nil {
				return err
			}
		}
		return nil
	}
	// How long it stands still is seen while one copy is made: ten that come up at once take the cores from it too.
	for range 3 {
		if err := fork(1, drop); err != nil {
			return err
		}
	}
	text, err := s.output(ctx, sandbox, process)
	if err != nil {
		return err
	}
	lines := strings.Fields(text)
	still, err := strconv.ParseFloat(lines[len(lines)-1], 64)
	if err != nil {
		return err
	}
	var ours []time.Duration
	var theirs rawTimes
	for round := range forkRounds {
		var made []string
		d, err := timed(func() error {
			return fork(copies, func(ids []string) error {
				made = ids
				return each(len(ids), func(i int) error { return s.true(ctx, ids[i]) })
			})
		})
		if err != nil {
			return err
		}
		if err := drop(made); err != nil {
			return err
		}
		ours = append(ours, d)
		if err := theirs.add(true, func(direct bool) (time.Duration, error) {
			return b.rawCopies(ctx, rootfs, image, direct, copies, 5100+100*round)
		}); err != nil {
			return err
		}
	}
	best, name := theirs.best("of one checkpoint, ten times, and `runsc exec true`, two at a time")
	b.add("10 forks to the first command in each", ours, name, best, 1.0)
	b.rows = append(b.rows, row{
		what: "the original of a fork stands still, 150 MiB touched, 300 MB on its disk", peer: "the longest gap in its clock over three forks", must: "≤ 250 ms",
		figure: fmt.Sprintf("%.0f ms", still), met: still <= 250,
	})
	return nil
}

// forkRounds is how often ten copies are made.
const forkRounds = 3

// each runs something two at a time.
func each(n int, fn func(i int) error) error {
	var wg sync.WaitGroup
	var mu sync.Mutex
	var failed error
	turn := make(chan struct{}, 2)
	for i := range n {
		turn <- struct{}{}
		wg.Go(func() {
			defer func() { <-turn }()
			if err := fn(i); err != nil {
				mu.Lock()
				failed = errors.Join(failed, err)
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	return failed
}

// claims: creates from the ready pool.
func (b *bench) claims(ctx context.Context, rootfs string) error {
	s, err := b.serve(ctx, "--ready-memory-mib", "512")
	if err != nil {
		return err
	}
	defer s.stop()
	g, end, err := b.driverAlone(ctx, rootfs)
	if err != nil {
		return err
	}
	defer end()
	var whole, claim, alone []time.Duration
	for i := range b.rounds + 2 {
		if i > 1 {
			if err := s.awaitReady(ctx); err != nil {
				return err
			}
		}
		begin := time.Now()
		sandbox, err := s.sandbox(ctx, 512)
		if err != nil {
			return err
		}
		made := time.Since(begin)
		if err := s.true(ctx, sandbox); err != nil {
			return err
		}
		d := time.Since(begin)
		p, err := timed(func() error { return g.true(ctx) })
		if err != nil {
			return err
		}
		if err := s.delete(ctx, sandbox); err != nil {
			return err
		}
		if i > 1 {
			whole, claim, alone = append(whole, d), append(claim, made), append(alone, p)
		}
	}
	b.add("create from a ready pool to the first finished command", whole, "one command of the guest alone", alone, 1.5)
	m := median(claim)
	b.rows = append(b.rows, row{
		what: "create from a ready pool, the claim", peer: "through MCP", must: "≤ 10 ms", figure: fmt.Sprintf("%.1f ms", float64(m.Microseconds())/1000),
		met: m <= 10*time.Millisecond,
	})
	return nil
}

// awaitReady waits until the pool has all that it wants to have: while it boots another, what is measured is two things on few cores.
func (s *server) awaitReady(ctx context.Context) error {
	for ctx.Err() == nil {
		var out struct {
			Items []struct {
				Ready []struct{ Ready, Making, Target int }
			}
		}
		if err := s.call(ctx, "list_pools", nil, &out); err != nil {
			return err
		}
		for _, p := range out.Items {
			for _, r := range p.Ready {
				if r.Target > 0 && r.Ready >= r.Target && r.Making == 0 {
					return nil
				}
			}
		}
		time.Sleep(50 * time.Millisecond)
	}
	return ctx.Err()
}
