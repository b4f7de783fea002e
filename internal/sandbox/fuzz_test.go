package sandbox

import (
	"regexp"
	"testing"
	"time"
)

// FuzzDuration: what is taken as a duration is positive and bounded by what was typed.
func FuzzDuration(f *testing.F) {
	for _, s := range []string{"30m", "8h", "3d", "", "s", "-1s", "9999999999d", "1e3s", "1.5h", "２h"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if d, err := duration("by", s); err == nil && (d <= 0 || d%time.Second != 0) {
			t.Errorf("duration(%q) = %v", s, d)
		}
	})
}

// FuzzHostname: every name that a sandbox may have makes a name that a host may have.
func FuzzHostname(f *testing.F) {
	for _, s := range []string{"", "box", "my_box", "a.b", "end-", "-", "😀", "a\nb", "a--_.b"} {
		f.Add(s)
	}
	form := regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?$`)
	f.Fuzz(func(t *testing.T, name string) {
		if len(name) > 63 {
			return // no name is longer
		}
		if h := hostname(&row{ID: "sbx_abcdefghij0123456789", Name: name}); !form.MatchString(h) {
			t.Errorf("hostname(%q) = %q", name, h)
		}
	})
}
