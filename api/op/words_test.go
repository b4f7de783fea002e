package op

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestWords(t *testing.T) {
	got := (Write | Idempotent | Wakes | OpenWorld).Words()
	if diff := cmp.Diff([]string{"write", "idempotent", "wakes", "openWorld"}, got); diff != "" {
		t.Errorf("words (-want +got):\n%s", diff)
	}
	if got := (Read | Destructive | Creates).Words(); !cmp.Equal(got, []string{"read", "destructive", "creates"}) {
		t.Errorf("words are %v", got)
	}
}
