package api

import "testing"

func TestAllIsComplete(t *testing.T) {
	seen := map[string]bool{}
	for _, info := range All() {
		if seen[info.Name] {
			t.Errorf("%s is listed twice", info.Name)
		}
		seen[info.Name] = true
	}
	if len(seen) < 31 {
		t.Errorf("only %d operations are listed", len(seen))
	}
}
