package errs

import "testing"

func TestWhole(t *testing.T) {
	for _, tt := range []struct {
		e    *Error
		want string
	}{
		{E(InvalidState, "exit code 3: no"), "exit code 3: no"},
		{E(InvalidInput, "a is not there").Suggest("Look for it."), "a is not there. Look for it."},
		{E(InvalidInput, "Gone.").Suggest("Look for it."), "Gone. Look for it."},
		{E(InvalidState, "exit code 1: one\nare you root?").Suggest("Put USER root before it."), "exit code 1: one\nare you root?\nPut USER root before it."},
	} {
		if got := tt.e.Whole(); got != tt.want {
			t.Errorf("%q, want %q", got, tt.want)
		}
	}
}
