package bootstrap

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// output is what mmdebstrap and apt print, shortened.
const output = `I: running apt-get update...
Get:1 http://m.test/debian bookworm InRelease [151 kB]
0 upgraded, 1 newly installed, 0 to remove and 0 not upgraded.
Get:1 http://m.test/debian bookworm/main amd64 bash amd64 5.2 [1 kB]
I: installing essential packages...
Unpacking bash (5.2) ...
Setting up bash (5.2) ...
0 upgraded, 2 newly installed, 0 to remove and 0 not upgraded.
Get:1 http://m.test/debian bookworm/main amd64 git amd64 2 [1 kB]
Unpacking git (2) ...
Unpacking jq (1) ...
Setting up git (2) ...
Setting up jq (1) ...
I: success in 1 seconds`

func TestWatcherCounts(t *testing.T) {
	want := []string{
		"reading the package index 0/0", "reading the package index 1/1",
		"installing the base system 0/3", "installing the base system 1/3", "installing the base system 2/3", "installing the base system 3/3",
		"installing the tools 0/6", "installing the tools 1/6", "installing the tools 2/6", "installing the tools 3/6", "installing the tools 4/6", "installing the tools 5/6",
		"installing the tools 6/6", // one package was there already: the end says so
	}
	for _, size := range []int{1, 7, len(output)} {
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			var got []string
			var log bytes.Buffer
			w := newWatcher(Options{Log: &log, Progress: func(stage string, done, total int64) {
				got = append(got, fmt.Sprintf("%s %d/%d", stage, done, total))
			}})
			for rest := output; rest != ""; {
				n := min(size, len(rest))
				if _, err := w.Write([]byte(rest[:n])); err != nil {
					t.Fatal(err)
				}
				rest = rest[n:]
			}
			w.end(true)
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("progress (-want +got):\n%s", diff)
			}
			if log.String() != output {
				t.Errorf("log is not the output: %q", log.String())
			}
		})
	}
}

func TestWatcherReason(t *testing.T) {
	for _, tt := range []struct{ name, text, want string }{
		{"the first error", "E: no such package\nE: apt-get failed\nI: cleaning up\n", "E: no such package"},
		{"else the last line", "I: one\nkilled", "killed"},
		{"else nothing", "", "mmdebstrap said nothing"},
	} {
		w := newWatcher(Options{})
		if _, err := w.Write([]byte(tt.text)); err != nil {
			t.Fatal(err)
		}
		w.end(false)
		if got := w.reason(); got != tt.want {
			t.Errorf("%s: %q, want %q", tt.name, got, tt.want)
		}
	}
	w := newWatcher(Options{})
	fmt.Fprint(w, strings.Repeat("line\n", 100))
	if got := strings.Count(w.tail(), "line"); got != 30 {
		t.Errorf("the tail has %d lines, want 30", got)
	}
}

type fullDisk struct{}

func (fullDisk) Write([]byte) (int, error) { return 0, errors.New("disk full") }

func TestWatcherReportsLogFailure(t *testing.T) {
	w := newWatcher(Options{Log: fullDisk{}})
	if _, err := w.Write([]byte("x\n")); err == nil {
		t.Error("a log that cannot be written went unnoticed")
	}
}

func TestBar(t *testing.T) {
	steps := func(b *Bar) {
		b.Progress("index", 0, 0)
		b.Progress("index", 1, 1)
		for i := range int64(9) {
			b.Progress("tools", i, 8)
			b.Progress("tools", i, 8) // says nothing new
		}
		b.Close()
	}
	var plain bytes.Buffer
	steps(NewBar(&plain))
	want := "index …\nindex: 100 % (1 of 1)\ntools: 0 % (0 of 8)\ntools: 25 % (2 of 8)\ntools: 50 % (4 of 8)\ntools: 75 % (6 of 8)\ntools: 100 % (8 of 8)\n"
	if diff := cmp.Diff(want, plain.String()); diff != "" {
		t.Errorf("plain (-want +got):\n%s", diff)
	}
	var drawn bytes.Buffer
	steps(&Bar{w: &drawn, tty: true})
	if got := strings.Count(drawn.String(), "\n"); got != 2 {
		t.Errorf("a terminal got %d lines, want one a stage: %q", got, drawn.String())
	}
	if last := drawn.String()[strings.LastIndex(drawn.String(), "\r"):]; !strings.Contains(last, strings.Repeat("█", barWidth)) || !strings.Contains(last, "8/8") {
		t.Errorf("the last bar is not full: %q", last)
	}
}
