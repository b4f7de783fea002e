package template

import (
	"testing"

	"github.com/berthrun/berth/internal/errs"
)

// TestReasonSaysWhatToDo: whoever reads a build's status has nothing but its reason.
func TestReasonSaysWhatToDo(t *testing.T) {
	for _, tt := range []struct {
		e    *errs.Error
		want string
	}{
		{errs.E(errs.InvalidState, "exit code 3: no"), "exit code 3: no"},
		{errs.E(errs.InvalidInput, "a is not there").Suggest("Look for it."), "a is not there. Look for it."},
		{errs.E(errs.InvalidInput, "Gone.").Suggest("Look for it."), "Gone. Look for it."},
		{errs.E(errs.InvalidState, "exit code 1: one\nare you root?").Suggest("Put USER root before it."), "exit code 1: one\nare you root?\nPut USER root before it."},
	} {
		if got := reason(tt.e); got != tt.want {
			t.Errorf("%q, want %q", got, tt.want)
		}
	}
}

func TestWantsRoot(t *testing.T) {
	for tail, want := range map[string]bool{
		": E: Unable to acquire the dpkg frontend lock (/var/lib/dpkg/lock-frontend), are you root?": true,
		": touch: cannot touch '/opt/x': Permission denied":                                          true,
		": chown: changing ownership of '/x': Operation not permitted":                               true,
		": npm ERR! code E404": false,
		"":                      false,
	} {
		if wantsRoot(tail) != want {
			t.Errorf("%q: %v", tail, !want)
		}
	}
}
