package bootstrap

import (
	"bytes"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// The stages of mmdebstrap's work that can be counted.
const (
	stageIndex  = "reading the package index"
	stageSystem = "installing the base system"
	stageTools  = "installing the tools"
)

// installed is the line by which apt says how many packages it is about to install.
var installed = regexp.MustCompile(`^\d+ upgraded, (\d+) newly installed`)

// watcher reads mmdebstrap's output and tells how far it is. Each package counts three times: downloaded, unpacked, set up.
type watcher struct {
	opts    Options
	partial []byte
	stage   string
	done    int64
	total   int64
	last    []string // the newest lines
	errors  []string // the lines that say what failed
}

func newWatcher(opts Options) *watcher {
	w := &watcher{opts: opts, stage: stageIndex}
	opts.progress(w.stage, 0, 0)
	return w
}

// Write takes output in pieces of any size.
func (w *watcher) Write(p []byte) (int, error) {
	if _, err := w.opts.log().Write(p); err != nil {
		return 0, err
	}
	w.partial = append(w.partial, p...)
	for {
		i := bytes.IndexByte(w.partial, '\n')
		if i < 0 {
			return len(p), nil
		}
		w.line(strings.TrimSpace(string(w.partial[:i])))
		w.partial = w.partial[i+1:]
	}
}

// line takes one line of output.
func (w *watcher) line(s string) {
	w.remember(s)
	if m := installed.FindStringSubmatch(s); m != nil {
		n, _ := strconv.ParseInt(m[1], 10, 64)
		w.enter(n * 3)
		return
	}
	if w.total == 0 || w.done >= w.total {
		return
	}
	if strings.HasPrefix(s, "Get:") || strings.HasPrefix(s, "Unpacking ") || strings.HasPrefix(s, "Setting up ") {
		w.done++
		w.opts.progress(w.stage, w.done, w.total)
	}
}

// enter ends the stage before and begins the next one.
func (w *watcher) enter(total int64) {
	w.finishStage()
	if w.stage == stageIndex {
		w.stage = stageSystem
	} else {
		w.stage = stageTools
	}
	w.done, w.total = 0, total
	w.opts.progress(w.stage, 0, total)
}

// finishStage says that a stage is complete, also where some of its packages were there already.
func (w *watcher) finishStage() {
	if w.total == 0 {
		w.total = 1
	}
	if w.done < w.total {
		w.done = w.total
		w.opts.progress(w.stage, w.done, w.total)
	}
}

// end is called when the program has ended.
func (w *watcher) end(ok bool) {
	if len(w.partial) > 0 {
		w.line(strings.TrimSpace(string(w.partial)))
		w.partial = nil
	}
	if ok {
		w.finishStage()
	}
}

// remember keeps the newest lines and those that say what failed.
func (w *watcher) remember(s string) {
	if s == "" {
		return
	}
	w.last = append(w.last, s)
	if len(w.last) > 30 {
		w.last = slices.Delete(w.last, 0, 1)
	}
	if len(w.errors) < 5 && (strings.HasPrefix(s, "E: ") || strings.HasPrefix(s, "Err:") || strings.HasPrefix(s, "dpkg: error")) {
		w.errors = append(w.errors, s)
	}
}

// tail is the newest output, for the log.
func (w *watcher) tail() string { return strings.Join(w.last, "\n") }

// reason is the first thing that failed, or the last thing said.
func (w *watcher) reason() string {
	switch {
	case len(w.errors) > 0:
		return w.errors[0]
	case len(w.last) > 0:
		return w.last[len(w.last)-1]
	}
	return "mmdebstrap said nothing"
}
