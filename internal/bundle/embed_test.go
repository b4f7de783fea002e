//go:build bundle

package bundle

import (
	"debug/elf"
	"testing"
)

// TestCarried looks at the programs that a finished berth carries.
func TestCarried(t *testing.T) {
	p, err := Locate(Options{Dir: t.TempDir()})
	if err != nil {
		t.Fatalf("Locate: %v", err)
	}
	for _, bin := range []Binary{p.Runtime, p.Guest} {
		if got, err := HashFile(bin.Path); err != nil || got != bin.SHA256 {
			t.Errorf("%s: hash %s, error %v; want %s", bin.Path, got, err, bin.SHA256)
		}
		f, err := elf.Open(bin.Path)
		if err != nil {
			t.Errorf("%s: %v", bin.Path, err)
			continue
		}
		// In a sandbox there is no loader and no library to link with.
		if libs, err := f.ImportedLibraries(); err != nil || len(libs) > 0 {
			t.Errorf("%s needs %v, error %v; want a static program", bin.Path, libs, err)
		}
		if f.Section(".symtab") != nil {
			t.Errorf("%s is not stripped", bin.Path)
		}
		f.Close()
	}
}
