package id

import (
	"regexp"
	"testing"
)

func TestNewIsValidAndFresh(t *testing.T) {
	seen := map[string]bool{}
	re := regexp.MustCompile(Pattern(Sandbox))
	for range 1000 {
		s := New(Sandbox)
		if !Valid(Sandbox, s) || !re.MatchString(s) || seen[s] {
			t.Fatalf("New gave %q", s)
		}
		seen[s] = true
	}
}

func TestValid(t *testing.T) {
	for s, want := range map[string]bool{
		"sbx_abcdefghij0123456789":   true,
		"sbx_abcdefghij012345678":    false,
		"sbx_abcdefghij01234567890":  false,
		"sbx_ABCDEFGHIJ0123456789":   false,
		"proc_abcdefghij0123456789":  false,
		"sbx_abcdefghij012345678\n":  false,
		"sbx_../../../etc/passwd_ab": false,
		"":                           false,
	} {
		if got := Valid(Sandbox, s); got != want {
			t.Errorf("Valid(%q) = %v, want %v", s, got, want)
		}
	}
	if !Valid(Pool, "dc1:rack.2-a") || Valid(Pool, "a b") {
		t.Error("pool ids have a form of their own")
	}
}
