package cli

import (
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// bar is a progress on a terminal of a width, with a clock that stands until it is moved.
type bar struct {
	*progress
	out   strings.Builder
	clock time.Time
}

func newBar(width int) *bar {
	b := &bar{clock: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)}
	b.progress = &progress{w: &b.out, now: func() time.Time { return b.clock }}
	if width > 0 {
		b.width = func() int { return width }
	}
	return b
}

// after moves the clock and says how far the copy is.
func (b *bar) after(d time.Duration, done int64) {
	b.clock = b.clock.Add(d)
	b.at(done)
}

// drawn gives the states that were drawn, one a line, and whether the line was ended.
func (b *bar) drawn(t *testing.T) []string {
	t.Helper()
	s := b.out.String()
	if !strings.HasSuffix(s, "\n") || strings.Count(s, "\n") != 1 {
		t.Errorf("%q is not one line that has ended", s)
	}
	states := strings.Split(strings.TrimSuffix(s, "\n"), "\r\x1b[K")
	if states[0] != "" {
		t.Errorf("%q does not begin at the beginning of the line", s)
	}
	return states[1:]
}

// TestProgress holds what the bar draws against what was copied when.
func TestProgress(t *testing.T) {
	for name, tt := range map[string]struct {
		width       int
		total, from int64
		copied      func(b *bar)
		want        []string
	}{
		"a file": {60, 8 << 20, 0, func(b *bar) {
			b.after(0, 0)
			b.after(50*time.Millisecond, 1<<20) // too soon to be drawn
			b.after(950*time.Millisecond, 2<<20)
			b.after(time.Second, 8<<20)
		}, []string{
			"name [                                   ]   0 % of 8.0 MiB",
			"name [======                  ]  25 % of 8.0 MiB, 2.0 MiB/s",
			"name [========================] 100 % of 8.0 MiB, 4.0 MiB/s",
		}},
		"the end comes too soon to be drawn": {60, 1 << 10, 0, func(b *bar) {
			b.after(time.Second, 512)
			b.after(0, 1<<10)
		}, []string{
			"name [=============             ]  50 % of 1.0 KiB, 512 B/s",
			"name [========================] 100 % of 1.0 KiB, 1.0 KiB/s",
		}},
		"it ends with an error": {60, 100, 0, func(b *bar) {
			b.after(time.Second, 10)
			b.after(time.Millisecond, 60)
		}, []string{
			"name [==                           ]  10 % of 100 B, 10 B/s",
			"name [=================            ]  60 % of 100 B, 59 B/s",
		}},
		"it goes on from before": {60, 3 << 20, 1 << 20, func(b *bar) { b.after(time.Second, 2<<20) }, []string{
			"name [================        ]  66 % of 3.0 MiB, 1.0 MiB/s",
		}},
		"it is sent again": {60, 100, 0, func(b *bar) {
			b.after(time.Second, 80)
			b.after(time.Second, 10)
		}, []string{
			"name [=======================      ]  80 % of 100 B, 80 B/s",
			"name [===                           ]  10 % of 100 B, 5 B/s",
		}},
		"more than was said": {60, 100, 0, func(b *bar) { b.after(time.Second, 300) }, []string{"name [============================] 100 % of 100 B, 300 B/s"}},
		"no total": {60, 0, 0, func(b *bar) {
			b.after(0, 5)
			b.after(2*time.Second, 5<<30)
		}, []string{"name 5 B", "name 5.0 GiB, 2.5 GiB/s"}},
		"a narrow terminal": {20, 100, 0, func(b *bar) { b.after(0, 50) }, []string{"name  50 % of 100 B"}},
		"hardly a terminal": {8, 100, 0, func(b *bar) { b.after(0, 50) }, []string{"50 % of 100 B"}},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBar(tt.width)
			b.begin("name", tt.total, tt.from)
			tt.copied(b)
			b.close()
			b.close() // as the command does on its way out
			got := b.drawn(t)
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("drawn (-want +got):\n%s", diff)
			}
			for _, s := range got {
				if len([]rune(s)) >= tt.width && tt.width > 20 {
					t.Errorf("%q is wider than the terminal", s)
				}
			}
		})
	}
}

// TestProgressShowsNames cuts long names and shows what steers a terminal.
func TestProgressShowsNames(t *testing.T) {
	for name, want := range map[string]string{
		"a\x1b[2Jb\nc":           `a\x1b[2Jb\nc [=========          ]  50 % of 100 B`,
		strings.Repeat("x", 300): "xxxxxxxxxxxx… [=========         ]  50 % of 100 B",
		"\u202etxt":              `\u202etxt [===========           ]  50 % of 100 B`,
	} {
		b := newBar(50)
		b.begin(name, 100, 0)
		b.after(0, 50)
		b.close()
		if got := b.drawn(t); len(got) != 1 || got[0] != want {
			t.Errorf("%.20q is drawn as %q, want %q", name, got, want)
		}
	}
}

// TestProgressElsewhere draws nothing where there is no terminal, nor for a copy that never began.
func TestProgressElsewhere(t *testing.T) {
	b := newBar(0)
	b.begin("name", 100, 0)
	b.after(time.Second, 50)
	b.close()
	never := newBar(60)
	never.after(time.Second, 50)
	never.close()
	if b.out.Len() > 0 || never.out.Len() > 0 {
		t.Errorf("drawn: %q, %q", b.out.String(), never.out.String())
	}
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close() //nolint:errcheck // it is read only
	p := newProgress(w)
	p.begin("name", 1, 0)
	p.at(1)
	p.close()
	if p.width != nil {
		t.Error("a pipe has a width")
	}
	if err := errors.Join(w.Close(), r.SetReadDeadline(time.Now().Add(time.Minute))); err != nil {
		t.Fatal(err)
	}
	if n, _ := r.Read(make([]byte, 1)); n > 0 {
		t.Error("a pipe is drawn on")
	}
}
