// Command bench measures whole flows of a running Berth beside their peers in one run, and writes what it found as a table.
//
//	go run ./bench -berth bin/berth -runsc .build/runsc -base .build/base
//
// It needs root. Every pair is measured in turns, so that what else the machine does strikes both alike; ratios are of medians.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"
)

// bench is one run: what it was told, and what it found.
type bench struct {
	berth, runsc, runtime, guest, base string
	rounds, quick, idle                int
	only                               string
	turns                              int
	turn                               time.Duration
	rows                               []row
	soak                               time.Duration // instead of all else
	soakClients                        int
	pause                              time.Duration // of a client of a soak between two calls
	series                             string        // a file for every reading of a soak
	out                                string
}

// row is a line of the table.
type row struct {
	what   string
	ours   []time.Duration
	peer   string
	theirs []time.Duration
	must   string
	met    bool
	figure string // instead of a ratio
	rate   bool   // the times are of one call among many at once: more calls a second are better
	unit   string // of a rate; calls/s where empty
}

func main() {
	var b bench
	flag.StringVar(&b.berth, "berth", "bin/berth", "the program")
	flag.StringVar(&b.runsc, "runsc", ".build/runsc", "gVisor's own program, the peer")
	flag.StringVar(&b.runtime, "runtime", "bin/berth-runtime", "berth-runtime, for the guest alone")
	flag.StringVar(&b.guest, "guest", "bin/berth-guest", "berth-guest, for the guest alone")
	flag.StringVar(&b.base, "base", ".build/base", "the folder of prepared images")
	flag.IntVar(&b.rounds, "rounds", 15, "creates of each kind")
	flag.IntVar(&b.quick, "commands", 100, "commands of each kind")
	flag.IntVar(&b.idle, "idle", 100, "idle sandboxes whose memory is read")
	flag.StringVar(&b.only, "only", "", "create, command, content, mcp, memory, start, life (or of it: frozen, resumed, forks, wake, claims), builds, backups, snapshots or volumes")
	flag.DurationVar(&b.soak, "soak", 0, "soak for so long instead, such as 30m")
	flag.IntVar(&b.soakClients, "clients", 50, "clients of a soak")
	flag.DurationVar(&b.pause, "pause", 2*time.Second, "how long a client of a soak waits between two calls, in the mean")
	flag.StringVar(&b.series, "series", "", "a file to write every reading of a soak to, as comma-separated values")
	flag.StringVar(&b.out, "o", "", "a file to write the table to")
	flag.IntVar(&b.turns, "turns", 5, "turns of calls through MCP")
	flag.DurationVar(&b.turn, "turn", 3*time.Second, "how long each turn takes")
	helloServer := flag.Bool(helloFlag, false, "be the SDK's hello server, the peer of calls through MCP")
	flag.Parse()
	if *helloServer {
		fmt.Fprintln(os.Stderr, "bench:", hello())
		os.Exit(1)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := b.run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		stop()
		os.Exit(1)
	}
	table := b.table()
	if b.soak > 0 {
		return
	}
	fmt.Print(table)
	if b.out != "" && b.soak == 0 {
		if err := os.WriteFile(b.out, []byte(table), 0o644); err != nil { //nolint:gosec // a report for everybody
			fmt.Fprintln(os.Stderr, "bench:", err)
			os.Exit(1)
		}
	}
}

func (b *bench) run(ctx context.Context) error {
	for _, path := range []*string{&b.berth, &b.runsc, &b.runtime, &b.guest, &b.base} {
		abs, err := filepath.Abs(*path)
		if err != nil {
			return err
		}
		*path = abs
	}
	if b.soak > 0 {
		return b.soakAlone(ctx)
	}
	if b.only == "" || b.only == "snapshots" { // which needs no server
		if err := b.snapshots(ctx); err != nil {
			return fmt.Errorf("snapshots: %w", err)
		}
		if b.only != "" {
			return nil
		}
	}
	rootfs, err := b.rootfs()
	if err != nil {
		return err
	}
	if b.only == "" || b.only == "volumes" { // the driver alone
		if err := b.volumes(ctx, rootfs); err != nil {
			return fmt.Errorf("volumes: %w", err)
		}
		if b.only != "" {
			return nil
		}
	}
	s, err := b.serve(ctx)
	if err != nil {
		return err
	}
	defer s.stop()
	for _, part := range []struct {
		name string
		run  func(context.Context, *server, string) error
	}{{"create", b.create}, {"command", b.command}, {"content", b.content}, {"mcp", b.mcp}, {"memory", b.memory}, {"start", b.start}, {"life", b.life}, {"builds", b.builds}, {"backups", b.backups}} {
		if b.only != "" && b.only != part.name && (part.name != "life" || !slices.Contains(lifeParts, b.only)) {
			continue
		}
		if err := part.run(ctx, s, rootfs); err != nil {
			return fmt.Errorf("%s: %w", part.name, err)
		}
	}
	return nil
}

// rootfs is the tree of the one prepared image.
func (b *bench) rootfs() (string, error) {
	found, err := filepath.Glob(filepath.Join(b.base, "*", "rootfs"))
	if err != nil || len(found) == 0 {
		return "", fmt.Errorf("no image in %s: make base makes one", b.base)
	}
	return filepath.Abs(found[0])
}

func median(d []time.Duration) time.Duration { return at(d, 50) }

func at(d []time.Duration, percent int) time.Duration {
	if len(d) == 0 {
		return 0
	}
	s := slices.Sorted(slices.Values(d))
	return s[(len(s)-1)*percent/100]
}

func (r *row) ratio() float64 { return float64(median(r.ours)) / float64(median(r.theirs)) }

func (b *bench) add(what string, ours []time.Duration, peer string, theirs []time.Duration, most float64) {
	r := row{what: what, ours: ours, peer: peer, theirs: theirs, must: fmt.Sprintf("≤ %.1f ×", most)}
	r.met = r.ratio() <= most
	b.rows = append(b.rows, r)
}

func (b *bench) table() string {
	var t strings.Builder
	fmt.Fprintf(&t, "Measured on %d cores, %s/%s, %s. Medians, in brackets the 10th and 90th percentile.\n\n", runtime.NumCPU(), runtime.GOOS, runtime.GOARCH,
		time.Now().UTC().Format("2006-01-02"))
	t.WriteString("| what | Berth | peer | | ratio | must | |\n|---|---|---|---|---|---|---|\n")
	for _, r := range b.rows {
		verdict := "missed"
		if r.met {
			verdict = "met"
		}
		if r.rate {
			fmt.Fprintf(&t, "| %s | %s | %s | %s | %.2f | %s | %s |\n", r.what, r.perSecond(r.ours), r.peer, r.perSecond(r.theirs), 1/r.ratio(), r.must, verdict)
			continue
		}
		if r.figure != "" {
			fmt.Fprintf(&t, "| %s | %s | %s | | | %s | %s |\n", r.what, r.figure, r.peer, r.must, verdict)
			continue
		}
		fmt.Fprintf(&t, "| %s | %s | %s | %s | %.2f | %s | %s |\n", r.what, spread(r.ours), r.peer, spread(r.theirs), r.ratio(), r.must, verdict)
	}
	return t.String()
}

// perSecond gives how many calls a second times of one call are.
func (r *row) perSecond(d []time.Duration) string {
	unit := r.unit
	if unit == "" {
		unit = "calls/s"
	}
	n := func(d time.Duration) float64 { return float64(time.Second) / float64(max(d, 1)) }
	return fmt.Sprintf("%.0f %s (%.0f–%.0f, n=%d)", n(median(d)), unit, n(at(d, 90)), n(at(d, 10)), len(d))
}

func spread(d []time.Duration) string {
	ms := func(d time.Duration) string { return fmt.Sprintf("%.1f", float64(d.Microseconds())/1000) }
	return fmt.Sprintf("%s ms (%s–%s, n=%d)", ms(median(d)), ms(at(d, 10)), ms(at(d, 90)), len(d))
}
