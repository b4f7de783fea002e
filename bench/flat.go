package main

import (
	"bufio"
	"context"
	"fmt"
	"io/fs"
	"maps"
	"math"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// sample is what was read at one moment.
type sample struct {
	at     time.Duration // since the beginning
	values map[string]float64
}

// growth is how much of each reading may be more at the end of half an hour than at its beginning: a part of its mean, or so much, whichever is more.
// Shorter soaks are judged by the same slope. left is how much more than before the soak there may be once all clients have left, where that says unboundedthing.
var growth = []struct {
	name string
	part float64
	much float64
	left float64
	unit string
}{
	{"memory of the server", 0.20, 32 << 20, unbounded, "bytes"},
	{"descriptors of the server", 0.20, 32, 48, ""}, // SQLite's readers stay open: at most 15 more, with up to three files each
	{"threads of the server", 0.20, 8, unbounded, ""},
	{"goroutines of the server", 0.20, 64, 32, ""},
	{"memory of the runtime", 0.20, 32 << 20, unbounded, "bytes"},
	{"descriptors of the runtime", 0.20, 32, 16, ""},
	{"threads of the runtime", 0.20, 8, unbounded, ""},
	{"files of the data folder", 0.30, 200, 20, ""},
	{"bytes of the data folder", 0.30, 32 << 20, unbounded, "bytes"},
	{"mounts in the data folder", 0.20, 20, 1, ""}, // gVisor's empty network namespace, made with the first sandbox
}

// unbounded is no bound.
const unbounded = math.MaxFloat64

// loadReading is reported and not judged.
const loadReading = "load of the machine"

// sample reads everything each ten seconds.
func (k *soak) sample(ctx context.Context) {
	for {
		k.mu.Lock()
		k.samples = append(k.samples, sample{time.Since(k.began), k.s.readings()})
		k.mu.Unlock()
		if !pause(ctx, 10*time.Second) {
			return
		}
	}
}

// readings are those of the server and of its berth-runtime.
func (s *server) readings() map[string]float64 {
	v := map[string]float64{}
	child, root := s.runtime()
	pids := map[string]int{"server": s.cmd.Process.Pid, "runtime": child}
	for name, pid := range pids {
		if pid == 0 {
			continue
		}
		dir := filepath.Join("/proc", strconv.Itoa(pid))
		status, err := os.ReadFile(filepath.Join(dir, "status"))
		if err != nil {
			continue
		}
		for line := range strings.Lines(string(status)) {
			f := strings.Fields(line)
			if len(f) < 2 {
				continue
			}
			n, _ := strconv.ParseFloat(f[1], 64)
			switch f[0] {
			case "VmRSS:":
				v["memory of the "+name] = n * 1024
			case "Threads:":
				v["threads of the "+name] = n
			}
		}
		if files, err := os.ReadDir(filepath.Join(dir, "fd")); err == nil {
			v["descriptors of the "+name] = float64(len(files))
		}
	}
	if own, err := s.metrics(); err == nil {
		v["goroutines of the server"] = own["go_goroutines"]
		v["heap of the server"] = own["go_memstats_heap_alloc_bytes"]
	}
	if load, err := os.ReadFile("/proc/loadavg"); err == nil {
		first, _, _ := strings.Cut(string(load), " ")
		v[loadReading], _ = strconv.ParseFloat(first, 64)
	}
	if root == "" {
		return v
	}
	if mounts, err := os.ReadFile("/proc/self/mountinfo"); err == nil {
		v["mounts in the data folder"] = float64(strings.Count(string(mounts), " "+root))
	}
	n, size := 0.0, 0.0
	_ = filepath.WalkDir(filepath.Dir(root), func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return nil //nolint:nilerr // it is being removed
		}
		if d.IsDir() && (d.Name() == "mounts" || d.Name() == "disks" || d.Name() == "images") {
			return fs.SkipDir
		}
		n++
		if info, err := d.Info(); err == nil && info.Mode().IsRegular() {
			size += float64(info.Size())
		}
		return nil
	})
	v["files of the data folder"], v["bytes of the data folder"] = n, size
	return v
}

// runtime finds the server's berth-runtime, which is its child, and the folder that it keeps.
func (s *server) runtime() (pid int, root string) {
	dirs, _ := filepath.Glob("/proc/[0-9]*")
	for _, dir := range dirs {
		b, err := os.ReadFile(filepath.Join(dir, "cmdline"))
		if err != nil {
			continue
		}
		args := strings.Split(string(b), "\x00")
		stat, err := os.ReadFile(filepath.Join(dir, "stat"))
		_, rest, _ := strings.Cut(string(stat), ") ")
		f := strings.Fields(rest)
		if err != nil || len(f) < 2 || f[1] != strconv.Itoa(s.cmd.Process.Pid) || len(args) < 4 || !strings.HasPrefix(filepath.Base(args[0]), "berth-runtime") {
			continue
		}
		pid, _ = strconv.Atoi(filepath.Base(dir))
		return pid, args[3]
	}
	return 0, ""
}

// series is every reading as comma-separated values, a line each moment.
func series(samples []sample) string {
	known := map[string]bool{}
	for _, s := range samples {
		for name := range s.values {
			known[name] = true
		}
	}
	names := slices.Sorted(maps.Keys(known))
	var t strings.Builder
	t.WriteString("seconds," + strings.Join(names, ",") + "\n")
	for _, s := range samples {
		fmt.Fprintf(&t, "%.0f", s.at.Seconds())
		for _, name := range names {
			t.WriteString(",")
			if v, ok := s.values[name]; ok {
				fmt.Fprintf(&t, "%.0f", v)
			}
		}
		t.WriteString("\n")
	}
	return t.String()
}

// judge fits a line through each reading after the warm-up and says what grows: its slope is more than may be by more than chance makes of readings
// that go up and down. Where that leaves it open, what is left after the last client says it; where that says nothing either, the soak was too short to tell.
func judge(samples []sample, long time.Duration, before, after map[string]float64) (string, bool) {
	var t strings.Builder
	t.WriteString("| reading | mean | growth in 30 min | give or take | may be | before | when all had left | |\n|---|---|---|---|---|---|---|---|\n")
	flat := true
	for _, g := range growth {
		var x, y []float64
		for _, s := range samples {
			if v, ok := s.values[g.name]; ok && s.at > long/warmUp {
				x, y = append(x, s.at.Minutes()), append(y, v)
			}
		}
		first, ok1 := before[g.name]
		last, ok2 := after[g.name]
		if len(x) < 3 || !ok1 || !ok2 {
			fmt.Fprintf(&t, "| %s | too few readings | | | | | | |\n", g.name)
			flat = false
			continue
		}
		slope, chance, mean := fit(x, y)
		grown, give, most := slope*30, 2*chance*30, math.Max(g.part*mean, g.much)
		verdict := "flat"
		switch {
		case last-first > g.left:
			verdict, flat = "left behind", false
		case grown-give > most:
			verdict, flat = "grows", false
		case grown+give > most && g.left == unbounded:
			verdict, flat = "cannot be told", false
		case grown+give > most:
			verdict = "swings, nothing is left"
		}
		fmt.Fprintf(&t, "| %s | %s | %s | %s | %s | %s | %s | %s |\n", g.name, amount(mean, g.unit), amount(grown, g.unit), amount(give, g.unit),
			amount(most, g.unit), amount(first, g.unit), amount(last, g.unit), verdict)
	}
	return t.String(), flat
}

// tidy reports whether a reading has nothing left behind.
func tidy(before, after map[string]float64) bool {
	for _, g := range growth {
		if after[g.name]-before[g.name] > g.left {
			return false
		}
	}
	return true
}

// fit is the least-squares line: its slope, the slope's standard error, and the mean. Readings that follow one another are alike, which the error allows for.
func fit(x, y []float64) (slope, chance, mean float64) {
	n := float64(len(x))
	var sx, sy, sxx, sxy float64
	for i := range x {
		sx, sy, sxx, sxy = sx+x[i], sy+y[i], sxx+x[i]*x[i], sxy+x[i]*y[i]
	}
	d, mean := n*sxx-sx*sx, sy/n
	if d == 0 {
		return 0, 0, mean
	}
	slope = (n*sxy - sx*sy) / d
	var squares, next, last float64
	for i := range x {
		off := y[i] - mean - slope*(x[i]-sx/n)
		squares, next, last = squares+off*off, next+off*last, off
	}
	if squares == 0 {
		return slope, 0, mean
	}
	alike := min(max(next/squares, 0), 0.9)
	return slope, math.Sqrt(squares / max(n-2, 1) * n / d * (1 + alike) / (1 - alike)), mean
}

func amount(v float64, unit string) string {
	if unit == "bytes" {
		return fmt.Sprintf("%.1f MiB", v/(1<<20))
	}
	return fmt.Sprintf("%.1f", v)
}

// metrics asks the server's private listener for the metrics that have no labels.
func (s *server) metrics() (map[string]float64, error) {
	c := http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", s.debug)
		},
	}}
	res, err := c.Get("http://berth/metrics")
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	all := map[string]float64{}
	lines := bufio.NewScanner(res.Body)
	for lines.Scan() {
		name, value, _ := strings.Cut(lines.Text(), " ")
		if v, err := strconv.ParseFloat(value, 64); err == nil {
			all[name] = v
		}
	}
	return all, lines.Err()
}
