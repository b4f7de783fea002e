package client_test

import (
	"fmt"
	"os"
	"testing"

	"github.com/berthrun/berth/internal/xtest"
)

// TestMain serves a whole system for the examples, under the two variables that a program of somebody else would have.
func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	t := &program{}
	defer t.end()
	s := xtest.Start(t, xtest.Options{})
	for name, value := range map[string]string{"BERTH_URL": s.URL, "BERTH_API_KEY": s.Key} {
		if err := os.Setenv(name, value); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
	}
	return m.Run()
}

// program is what a system needs of a test, for the test program as a whole.
type program struct {
	testing.TB
	cleanups []func()
}

func (p *program) end() {
	for i := len(p.cleanups) - 1; i >= 0; i-- {
		p.cleanups[i]()
	}
}

// Cleanup implements testing.TB.
func (p *program) Cleanup(f func()) { p.cleanups = append(p.cleanups, f) }

// Helper implements testing.TB.
func (p *program) Helper() {}

// Logf implements testing.TB.
func (p *program) Logf(format string, args ...any) { fmt.Fprintf(os.Stderr, format, args...) }

// Errorf implements testing.TB.
func (p *program) Errorf(format string, args ...any) { p.Fatalf(format, args...) }

// Fatal implements testing.TB.
func (p *program) Fatal(args ...any) { p.Fatalf("%s", fmt.Sprint(args...)) }

// Fatalf implements testing.TB.
func (p *program) Fatalf(format string, args ...any) { panic(fmt.Sprintf(format, args...)) }

// TempDir implements testing.TB.
func (p *program) TempDir() string {
	dir, err := os.MkdirTemp("", "berth-examples-")
	if err != nil {
		p.Fatal(err)
	}
	p.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}
