package main

import (
	"os"
	"os/exec"
	"strings"
	"testing"
)

// TestMakeRunIsTheProgramAlone holds make run to what serve does without it: the programs and the image of the tests are not what it serves.
func TestMakeRunIsTheProgramAlone(t *testing.T) {
	cmd := exec.CommandContext(t.Context(), "make", "-s", "-f", "-", "probe")
	cmd.Dir = "../.."
	cmd.Stdin = strings.NewReader("include Makefile\nprobe: ; @env\n")
	for _, v := range os.Environ() {
		if !strings.HasPrefix(v, "BERTH_") && !strings.HasPrefix(v, "MAKE") {
			cmd.Env = append(cmd.Env, v)
		}
	}
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("make: %v\n%s", err, out)
	}
	for line := range strings.Lines(string(out)) {
		if strings.HasPrefix(line, "BERTH_") {
			t.Errorf("what make runs is told %s", line)
		}
	}
}
