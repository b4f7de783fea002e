package template

import "testing"

func TestWantsRoot(t *testing.T) {
	for tail, want := range map[string]bool{
		": E: Unable to acquire the dpkg frontend lock (/var/lib/dpkg/lock-frontend), are you root?": true,
		": touch: cannot touch '/opt/x': Permission denied":                                          true,
		": chown: changing ownership of '/x': Operation not permitted":                               true,
		": npm ERR! code E404": false,
		"":                     false,
	} {
		if wantsRoot(tail) != want {
			t.Errorf("%q: %v", tail, !want)
		}
	}
}
