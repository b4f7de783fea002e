package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A log keeps its newest lines and has a bound, also one that was longer when it was opened.
func TestLogIsBounded(t *testing.T) {
	path := filepath.Join(t.TempDir(), "runtime.log")
	if err := os.WriteFile(path, []byte(strings.Repeat("o", 150)), 0o600); err != nil {
		t.Fatal(err)
	}
	l, err := openLog(path, 100)
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range []string{"1", "2", "3", "4", "5"} {
		if n, err := l.Write([]byte(strings.Repeat(line, 40))); n != 40 || err != nil {
			t.Fatal(n, err)
		}
	}
	for name, want := range map[string]string{path: "5", path + ".old": "34"} {
		b, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		if got := strings.ReplaceAll(string(b), strings.Repeat("3", 40), "3"); len(b) != 40*len(want) || !strings.HasPrefix(got, want[:1]) || !strings.HasSuffix(got, want[len(want)-1:]) {
			t.Errorf("%s is %q", name, b)
		}
	}
}
