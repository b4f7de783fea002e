package bootstrap

import (
	"fmt"
	"io"
	"os"
	"strings"

	"golang.org/x/term"
)

// Bar shows progress to a person: one line a stage that fills on a terminal, plain lines elsewhere. Its Progress fits Options.Progress.
type Bar struct {
	w     io.Writer
	tty   bool
	stage string
	shown int64 // percent last shown of the stage; -1 is none
}

// barWidth is the number of cells of a full bar.
const barWidth = 30

// NewBar makes a bar that writes to w and draws where w is a terminal.
func NewBar(w io.Writer) *Bar {
	f, ok := w.(*os.File)
	return &Bar{w: w, tty: ok && term.IsTerminal(int(f.Fd()))}
}

// Progress shows how far a stage is; total 0 is unknown. Nothing is written where it would look the same.
func (b *Bar) Progress(stage string, done, total int64) {
	percent := int64(-1)
	if total > 0 {
		percent = min(done, total) * 100 / total
	}
	// Plain output would be flooded by every step: quarters do.
	if !b.tty && percent > 0 {
		percent = percent / 25 * 25
	}
	if stage == b.stage && percent == b.shown {
		return
	}
	if stage != b.stage {
		b.Close()
		b.stage = stage
	}
	b.shown = percent
	if b.tty {
		b.draw(percent, done, total)
		return
	}
	if percent < 0 {
		fmt.Fprintf(b.w, "%s …\n", stage)
	} else {
		fmt.Fprintf(b.w, "%s: %d %% (%d of %d)\n", stage, percent, done, total)
	}
}

// Close ends the line of a stage that is drawn.
func (b *Bar) Close() {
	if b.tty && b.stage != "" {
		fmt.Fprintln(b.w)
	}
	b.stage, b.shown = "", -1
}

// draw writes the line of a stage over itself.
func (b *Bar) draw(percent, done, total int64) {
	if percent < 0 {
		fmt.Fprintf(b.w, "\r\x1b[K%-45s …", b.stage)
		return
	}
	full := int(percent) * barWidth / 100
	fmt.Fprintf(b.w, "\r\x1b[K%-45s [%s%s] %3d %% %d/%d", b.stage, strings.Repeat("█", full), strings.Repeat("·", barWidth-full), percent, done, total)
}
