package sshd

import (
	"bytes"
	"os"
	"path/filepath"
	"sync"
	"testing"
)

// The keys are made once, for their owner alone, and never replaced silently.
func TestFileKeys(t *testing.T) {
	file := FileKeys(filepath.Join(t.TempDir(), "ssh_ca"))
	all := make([][]byte, 8)
	var wg sync.WaitGroup
	for i := range all {
		wg.Go(func() {
			b, err := file.Seeds(t.Context(), freshSeeds)
			if err != nil {
				t.Error(err)
			}
			all[i] = b
		})
	}
	wg.Wait()
	for _, b := range all {
		if len(b) == 0 || !bytes.Equal(b, all[0]) {
			t.Error("makers at the same time got different keys")
		}
	}
	if st, err := os.Stat(string(file)); err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v", st.Mode(), err)
	}
	if left, _ := filepath.Glob(string(file) + ".*"); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
	if err := os.Chmod(string(file), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := file.Seeds(t.Context(), freshSeeds); err == nil {
		t.Error("keys that others can read were used")
	}
	if err := os.WriteFile(string(file), []byte(`{"user":"AA=="}`), 0o600); err != nil || os.Chmod(string(file), 0o600) != nil {
		t.Fatal(err)
	}
	if _, err := New(Config{Keys: file}); err == nil {
		t.Error("damaged keys were used")
	}
}
