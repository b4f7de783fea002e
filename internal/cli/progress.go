package cli

import (
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/term"
)

// progress is a bar on a terminal; elsewhere it says nothing. Its methods may be called from any goroutine.
type progress struct {
	w     io.Writer
	width func() int // characters of a line; nil: no terminal
	now   func() time.Time

	mu    sync.Mutex
	name  string
	total int64 // 0: not known
	from  int64 // what was there before
	begun time.Time
	done  int64
	drawn time.Time
	shown int64 // what was done when it was drawn
}

func newProgress(w io.Writer) *progress {
	p := &progress{w: w, now: time.Now}
	if f, ok := w.(*os.File); ok && term.IsTerminal(int(f.Fd())) {
		p.width = func() int {
			if w, _, err := term.GetSize(int(f.Fd())); err == nil && w > 0 {
				return w
			}
			return 80
		}
	}
	return p
}

// begin starts the bar of one copy, of which from bytes are there already.
func (p *progress) begin(name string, total, from int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.name, p.total, p.from, p.begun, p.done = name, total, from, p.now(), from
}

// of says how much it is in all.
func (p *progress) of(total int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.total = total
}

// redraw is how often the bar changes.
const redraw = 100 * time.Millisecond

// at says how many bytes have gone so far.
func (p *progress) at(done int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.done = done
	if now := p.now(); now.Sub(p.drawn) >= redraw {
		p.draw(now)
	}
}

func (p *progress) draw(now time.Time) {
	if p.width == nil || p.begun.IsZero() {
		return
	}
	p.drawn, p.shown = now, p.done
	fmt.Fprint(p.w, "\r\x1b[K"+line(plain(p.name), p.from, p.done, p.total, now.Sub(p.begun), p.width()-1))
}

// close draws how far it came, however it ended, and ends the line of a bar that was drawn.
func (p *progress) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.drawn.IsZero() {
		if p.shown != p.done {
			p.draw(p.now())
		}
		fmt.Fprintln(p.w)
	}
	p.drawn, p.begun = time.Time{}, time.Time{}
}

// line is the bar as text of at most width characters.
func line(name string, from, done, total int64, took time.Duration, width int) string {
	tail := " " + size(done)
	if total > 0 {
		tail = fmt.Sprintf(" %3d %% of %s", min(done, total)*100/total, size(total))
	}
	if s := took.Seconds(); s > 0.2 && done >= from {
		tail += ", " + size(int64(float64(done-from)/s)) + "/s"
	}
	room := width - len(tail)
	if room < 4 {
		return strings.TrimSpace(tail)
	}
	shown := []rune(name)
	if most := max(room*2/5, 4); len(shown) > most {
		shown = append(shown[:most-1], '…')
	}
	s := string(shown)
	if bar := room - len(shown) - 3; total > 0 && bar >= 5 {
		full := int(min(done, total) * int64(bar) / total)
		s += " [" + strings.Repeat("=", full) + strings.Repeat(" ", bar-full) + "]"
	}
	return s + tail
}

// size is a number of bytes for a person.
func size(n int64) string {
	for _, u := range []struct {
		name string
		of   int64
	}{{"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10}} {
		if n >= u.of {
			return fmt.Sprintf("%.1f %s", float64(n)/float64(u.of), u.name)
		}
	}
	return fmt.Sprintf("%d B", n)
}
