package main

import (
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// lines passes on what is logged.
type lines chan string

func (l lines) Write(p []byte) (int, error) {
	l <- string(p)
	return len(p), nil
}

// TestHUPReadsTheLogLevelAgain changes the level of a running server's log by its file; a file that is broken changes nothing.
func TestHUPReadsTheLogLevelAgain(t *testing.T) {
	file := filepath.Join(t.TempDir(), "berth.yaml")
	write := func(text string) {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("log: {level: info}\n")
	s := newSettings(func(string) string { return "" })
	s.file = file
	if err := s.load(); err != nil {
		t.Fatal(err)
	}
	out, level := make(lines, 10), new(slog.LevelVar)
	log := s.logger(out, level)
	defer s.onHUP(log, level)()
	hup := func(want string) {
		t.Helper()
		if err := syscall.Kill(os.Getpid(), syscall.SIGHUP); err != nil {
			t.Fatal(err)
		}
		select {
		case line := <-out:
			if !strings.Contains(line, want) {
				t.Errorf("logged %s", line)
			}
		case <-time.After(10 * time.Second):
			t.Fatal("nothing was logged")
		}
	}
	write("log: {level: debug}\n")
	hup("level=debug")
	if level.Level() != slog.LevelDebug {
		t.Errorf("the level is %v", level.Level())
	}
	write("log: {level: loud}\n")
	hup("the configuration was not read again")
	if level.Level() != slog.LevelDebug {
		t.Errorf("a broken file set the level to %v", level.Level())
	}
}
