package id

import (
	"regexp"
	"testing"
)

// FuzzValid: what is said to be an id is one by the pattern that schemas publish, and the other way round.
func FuzzValid(f *testing.F) {
	f.Add(New(Sandbox))
	f.Add("sbx_")
	f.Add("sbx_AAAAAAAAAAAAAAAAAAAA\n")
	f.Add("pool:a.b-c")
	patterns := map[Kind]*regexp.Regexp{}
	for _, k := range []Kind{Sandbox, Process, Request, Pool} {
		patterns[k] = regexp.MustCompile(Pattern(k))
	}
	f.Fuzz(func(t *testing.T, s string) {
		for k, p := range patterns {
			if got, want := Valid(k, s), p.MatchString(s); got != want {
				t.Errorf("Valid(%s, %q) = %v, the pattern says %v", k, s, got, want)
			}
		}
	})
}
