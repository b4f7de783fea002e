package cli

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"unicode/utf8"

	"golang.org/x/term"
)

// width is how many characters a line of the terminal holds, 0 where the output is none.
func (a *app) width() int {
	f, ok := a.stdout.(*os.File)
	if !ok || !term.IsTerminal(int(f.Fd())) {
		return 0
	}
	w, _, err := term.GetSize(int(f.Fd()))
	if err != nil {
		return 0
	}
	return w
}

const (
	gap      = 2 // characters between columns
	leastCol = 8 // characters that a column keeps on a narrow terminal
)

// table writes rows in columns, the widest made narrower where a line would not fit; the first column, which holds ids, is never cut.
func table(w io.Writer, width int, rows [][]string) error {
	if len(rows) == 0 {
		return nil
	}
	widths := make([]int, len(rows[0]))
	for _, r := range rows {
		for i, cell := range r {
			widths[i] = max(widths[i], utf8.RuneCountInString(cell))
		}
	}
	shrink(widths, width)
	var b strings.Builder
	for _, r := range rows {
		for i, cell := range r {
			cell = clipTo(cell, widths[i])
			b.WriteString(cell)
			if i < len(r)-1 {
				b.WriteString(strings.Repeat(" ", widths[i]-utf8.RuneCountInString(cell)+gap))
			}
		}
		b.WriteByte('\n')
	}
	_, err := io.WriteString(w, b.String())
	return err
}

func shrink(widths []int, width int) {
	if width <= 0 {
		return
	}
	for {
		total, widest := -gap, 0
		for i, n := range widths {
			total += n + gap
			if i > 0 && (widest == 0 || n > widths[widest]) {
				widest = i
			}
		}
		if total <= width || widest == 0 || widths[widest] <= leastCol {
			return
		}
		widths[widest]--
	}
}

func clipTo(s string, most int) string {
	if utf8.RuneCountInString(s) <= most {
		return s
	}
	return string([]rune(s)[:max(most-1, 0)]) + "…"
}

// figure writes a number for a person: at most two digits behind the point, and what counts bytes with its size in words.
func figure(name string, n json.Number) string {
	f, err := n.Float64()
	if err != nil {
		return n.String()
	}
	if strings.ContainsAny(n.String(), ".eE") {
		return strconv.FormatFloat(rounded(f), 'f', -1, 64)
	}
	if i, err := n.Int64(); err == nil && i >= 10<<10 && countsBytes(name) {
		return fmt.Sprintf("%s (%s)", n, humanBytes(i))
	}
	return n.String()
}

func rounded(f float64) float64 {
	r, err := strconv.ParseFloat(strconv.FormatFloat(f, 'f', 2, 64), 64)
	if err != nil {
		return f
	}
	return r
}

func countsBytes(name string) bool {
	return name == "size" || name == "bytes" || strings.HasSuffix(name, "Bytes")
}

func humanBytes(n int64) string {
	f, unit := float64(n), 0
	units := []string{"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"}
	for f >= 1024 && unit < len(units)-1 {
		f /= 1024
		unit++
	}
	if f >= 100 {
		return fmt.Sprintf("%.0f %s", f, units[unit])
	}
	return fmt.Sprintf("%.1f %s", f, units[unit])
}
