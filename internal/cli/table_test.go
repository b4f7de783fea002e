package cli

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/berthrun/berth/api/op"
)

func TestFigures(t *testing.T) {
	for _, c := range []struct{ name, in, want string }{
		{"cpuPercent", "3.0999999999999996", "3.1"},
		{"memoryUsedMiB", "12.34567", "12.35"},
		{"vcpu", "0.5", "0.5"},
		{"vcpu", "2", "2"},
		{"size", "12", "12"},
		{"size", "5000000", "5000000 (4.8 MiB)"},
		{"generation", "5000000", "5000000"},
		{"stdoutBytes", "1073741824", "1073741824 (1.0 GiB)"},
		{"x", "1e3", "1000"},
		{"x", "9007199254740993", "9007199254740993"},
	} {
		if got := figure(c.name, json.Number(c.in)); got != c.want {
			t.Errorf("%s %s became %q, want %q", c.name, c.in, got, c.want)
		}
	}
}

// TestTableFitsTheTerminal makes columns narrower, never the first.
func TestTableFitsTheTerminal(t *testing.T) {
	id := "sbx_" + strings.Repeat("a", 20)
	rows := [][]string{{"ID", "NAME", "COMMAND"}, {id, "grüße", strings.Repeat("long ", 20)}, {id, strings.Repeat("n", 40), "-"}}
	for _, width := range []int{0, 200, 80, 50, 10} {
		var b bytes.Buffer
		if err := table(&b, width, rows); err != nil {
			t.Fatal(err)
		}
		lines := strings.Split(strings.TrimRight(b.String(), "\n"), "\n")
		for _, line := range lines {
			if n := utf8.RuneCountInString(strings.TrimRight(line, " ")); width >= 50 && n > width {
				t.Errorf("at %d a line has %d characters: %s", width, n, line)
			}
		}
		if !strings.HasPrefix(lines[1], id) || strings.Index(lines[0], "NAME") != strings.Index(lines[2], "n") {
			t.Errorf("at %d:\n%s", width, b.String())
		}
	}
}

// TestTheLastColumnHasRoom keeps of a text in the last column what another would lose.
func TestTheLastColumnHasRoom(t *testing.T) {
	s := &op.Schema{Properties: map[string]*op.Schema{"a": {Type: "string"}, "b": {Type: "string"}}}
	long := strings.Repeat("x", 300)
	got := rows(s, []string{"a", "b"}, []any{map[string]any{"a": long, "b": long}})[1]
	if utf8.RuneCountInString(got[0]) != maxCell || utf8.RuneCountInString(got[1]) != maxLast {
		t.Errorf("%d and %d characters", utf8.RuneCountInString(got[0]), utf8.RuneCountInString(got[1]))
	}
}
