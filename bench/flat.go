package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"net"
	"net/http"
	"os"
	"path/filepath"
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
// Shorter soaks are judged by the same slope.
var growth = []struct {
	name string
	part float64
	much float64
	unit string
}{
	{"memory of the server", 0.20, 32 << 20, "bytes"},
	{"descriptors of the server", 0.20, 32, ""},
	{"threads of the server", 0.20, 8, ""},
	{"goroutines of the server", 0.20, 64, ""},
	{"memory of the runtime", 0.20, 32 << 20, "bytes"},
	{"descriptors of the runtime", 0.20, 32, ""},
	{"threads of the runtime", 0.20, 8, ""},
	{"files of the data folder", 0.30, 200, ""},
}

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
	if g, err := s.goroutines(); err == nil {
		v["goroutines of the server"] = g
	}
	n := 0.0
	if root == "" {
		return v
	}
	_ = filepath.WalkDir(filepath.Dir(root), func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return nil //nolint:nilerr // it is being removed
		}
		if d.IsDir() && (d.Name() == "mounts" || d.Name() == "disks" || d.Name() == "images") {
			return fs.SkipDir
		}
		n++
		return nil
	})
	v["files of the data folder"] = n
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

// judge fits a line through each reading after the warm-up and says what grows.
func judge(samples []sample, long time.Duration) (string, bool) {
	var t strings.Builder
	t.WriteString("| reading | mean | growth in 30 min | may be | |\n|---|---|---|---|---|\n")
	flat := true
	for _, g := range growth {
		var x, y []float64
		for _, s := range samples {
			if v, ok := s.values[g.name]; ok && s.at > long/warmUp {
				x, y = append(x, s.at.Minutes()), append(y, v)
			}
		}
		if len(x) < 3 {
			fmt.Fprintf(&t, "| %s | too few readings | | | |\n", g.name)
			continue
		}
		slope, mean := fit(x, y)
		grown, most := slope*30, math.Max(g.part*mean, g.much)
		verdict := "flat"
		if grown > most {
			verdict, flat = "grows", false
		}
		fmt.Fprintf(&t, "| %s | %s | %s | %s | %s |\n", g.name, amount(mean, g.unit), amount(grown, g.unit), amount(most, g.unit), verdict)
	}
	return t.String(), flat
}

// fit is the least-squares line: its slope, and the mean.
func fit(x, y []float64) (slope, mean float64) {
	n := float64(len(x))
	var sx, sy, sxx, sxy float64
	for i := range x {
		sx, sy, sxx, sxy = sx+x[i], sy+y[i], sxx+x[i]*x[i], sxy+x[i]*y[i]
	}
	if d := n*sxx - sx*sx; d != 0 {
		slope = (n*sxy - sx*sy) / d
	}
	return slope, sy / n
}

func amount(v float64, unit string) string {
	if unit == "bytes" {
		return fmt.Sprintf("%.1f MiB", v/(1<<20))
	}
	return fmt.Sprintf("%.1f", v)
}

// goroutines asks the server's private listener.
func (s *server) goroutines() (float64, error) {
	c := http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", s.debug)
		},
	}}
	res, err := c.Get("http://berth/metrics")
	if err != nil {
		return 0, err
	}
	defer res.Body.Close()
	lines := bufio.NewScanner(res.Body)
	for lines.Scan() {
		if rest, ok := strings.CutPrefix(lines.Text(), "go_goroutines "); ok {
			return strconv.ParseFloat(rest, 64)
		}
	}
	return 0, errors.New("no go_goroutines among the metrics")
}
