package guest

import "testing"

func TestWholeRunes(t *testing.T) {
	for in, want := range map[string]string{
		"":                     "",
		"plain":                "plain",
		"né":                   "né",
		"n\xc3":                "n",
		"n\xe2\x82":            "n",
		"n\xf0\x9f\x98":        "n",
		"😀\xf0":                "😀",
		"\xe2\x82":             "\xe2\x82", // only a beginning
		"no\xff":               "no\xff",   // no text
		"\x80\x80\x80\x80\x80": "\x80\x80\x80\x80\x80",
	} {
		if got := string(WholeRunes([]byte(in))); got != want {
			t.Errorf("WholeRunes(%q) = %q, want %q", in, got, want)
		}
	}
}
