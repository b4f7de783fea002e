//go:build linux

package guest

import (
	"bytes"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// ticks is how many units /proc counts a second in; Linux and gVisor agree.
const ticks = 100

// Where the tables of cron and the jobs of at are.
var (
	cronTables = []string{"/etc/crontab", "/etc/cron.d/*", "/var/spool/cron/*", "/var/spool/cron/crontabs/*"}
	atJobs     = []string{"/var/spool/cron/atjobs/*", "/var/spool/at/*", "/var/spool/atjobs/*"}
)

// timers answers when the next timer is due that can be seen from outside of a process.
func (s *Server) timers(w http.ResponseWriter, _ *http.Request) {
	out := Timers{NextMS: -1}
	due := func(left time.Duration) {
		ms := max(left, 0).Milliseconds()
		if out.NextMS < 0 || ms < out.NextMS {
			out.NextMS = ms
		}
	}
	var cron, at bool
	for _, p := range s.looked() {
		switch p.name {
		case "cron", "crond":
			cron = true
		case "atd":
			at = true
		case "sleep":
			if d, ok := sleepTime(p.args); ok {
				due(d - p.age)
			}
		}
	}
	now := s.now().Local()
	if cron {
		for _, path := range s.globs(cronTables) {
			if text, err := readSome(path); err == nil {
				if next := nextCron(text, now); !next.IsZero() {
					due(next.Sub(now))
				}
			}
		}
	}
	if at {
		for _, path := range s.globs(atJobs) {
			if next, ok := atTime(filepath.Base(path)); ok {
				due(next.Sub(now))
			}
		}
	}
	answer(w, out, nil)
}

// sleeper is a process as its files in /proc tell of it.
type sleeper struct {
	name string
	args []string
	age  time.Duration
}

// looked gives the processes of the sandbox; where it is not one, those that this guest started and their children.
func (s *Server) looked() []sleeper {
	uptime := uptime()
	ours := map[int]bool{}
	table := tasks()
	if !s.cfg.Init {
		for _, p := range s.processes.all() {
			if st := p.state(); st.Running && st.PID > 0 {
				ours[st.PID] = true
				spread(ours, table, st.PID, nil)
			}
		}
	}
	var all []sleeper
	for _, t := range table {
		if t.dead || !s.cfg.Init && !ours[t.pid] {
			continue
		}
		dir := filepath.Join("/proc", strconv.Itoa(t.pid))
		line, err := os.ReadFile(filepath.Join(dir, "cmdline"))
		if err != nil || len(line) == 0 {
			continue
		}
		args := strings.Split(strings.TrimSuffix(string(line), "\x00"), "\x00")
		one := sleeper{name: filepath.Base(args[0]), args: args[1:]}
		if one.name == "busybox" && len(args) > 1 {
			one.name, one.args = args[1], args[2:]
		}
		if stat, err := os.ReadFile(filepath.Join(dir, "stat")); err == nil {
			one.age = max(uptime-started(stat), 0)
		}
		all = append(all, one)
	}
	return all
}

// started reads from /proc/PID/stat how long after the kernel a process was started.
func started(stat []byte) time.Duration {
	end := bytes.LastIndexByte(stat, ')')
	f := bytes.Fields(stat[end+1:])
	if end < 0 || len(f) < 20 {
		return 0
	}
	n, _ := strconv.ParseInt(string(f[19]), 10, 64)
	return time.Duration(n) * time.Second / ticks
}

// uptime is how long the kernel runs.
func uptime() time.Duration {
	text, err := os.ReadFile("/proc/uptime")
	f := strings.Fields(string(text))
	if err != nil || len(f) == 0 {
		return 0
	}
	n, _ := strconv.ParseFloat(f[0], 64)
	return time.Duration(n * float64(time.Second))
}

func (s *Server) globs(patterns []string) []string {
	var all []string
	for _, p := range patterns {
		paths, _ := filepath.Glob(s.host(p)) // the patterns are well formed
		all = append(all, paths...)
	}
	return all
}

// readSome reads a regular file that is not large.
func readSome(path string) (string, error) {
	info, err := os.Stat(path)
	if err != nil {
		return "", err
	}
	if !info.Mode().IsRegular() || info.Size() > 1<<20 {
		return "", os.ErrInvalid
	}
	b, err := os.ReadFile(path)
	return string(b), err
}
