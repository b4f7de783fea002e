package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestManual writes the manual and has groff, which man runs, read every page without a complaint.
func TestManual(t *testing.T) {
	dir := t.TempDir()
	if code, _, errOut := berth(t, nil, "man", dir); code != 0 {
		t.Fatal(errOut)
	}
	pages, err := filepath.Glob(filepath.Join(dir, "man*", "*"))
	if err != nil || len(pages) < 30 {
		t.Fatalf("%d pages, %v", len(pages), err)
	}
	for _, name := range []string{"man1/berth.1", "man1/berth-sandboxes-create.1", "man1/berth-doctor.1", "man5/berth.yaml.5"} {
		b, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil || !strings.HasPrefix(string(b), ".TH ") {
			t.Errorf("%s: %v", name, err)
		}
	}
	groff, err := exec.LookPath("groff")
	if err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatal("groff is not installed")
		}
		t.Skip("groff is not installed")
	}
	out, err := exec.Command(groff, append([]string{"-man", "-Tutf8", "-ww", "-z"}, pages...)...).CombinedOutput() //nolint:gosec // pages of ours
	if err != nil || len(out) > 0 {
		t.Errorf("groff: %v\n%.2000s", err, out)
	}
	text, err := os.ReadFile(filepath.Join(dir, "man5/berth.yaml.5"))
	if err != nil || !strings.Contains(string(text), "\n.B listen.port\n") || !strings.Contains(string(text), "BERTH_LISTEN_PORT") {
		t.Errorf("the page of the file: %v\n%.500s", err, text)
	}
}
