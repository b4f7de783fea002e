package cli

import "testing"

// Only a ~ that begins a line means something, in however many pieces it arrives.
func TestEscape(t *testing.T) {
	for name, c := range map[string]struct {
		in   []string
		want string
		cmd  byte
	}{
		"at the start":      {[]string{"~."}, "", '.'},
		"after a line":      {[]string{"ls\r~."}, "ls\r", '.'},
		"in pieces":         {[]string{"ls\r", "~", "."}, "ls\r", '.'},
		"within a line":     {[]string{"cd ~.\r"}, "cd ~.\r", 0},
		"twice":             {[]string{"~~.\r"}, "~.\r", 0},
		"another":           {[]string{"\r~x"}, "\r~x", 0},
		"home":              {[]string{"\r~/a\r"}, "\r~/a\r", 0},
		"nothing behind it": {[]string{"~.rest"}, "", '.'},
		"help":              {[]string{"~?a"}, "a", '?'},
	} {
		e := &escape{on: true, start: true}
		got, cmd := "", byte(0)
		for _, in := range c.in {
			out, one := e.filter([]byte(in))
			got += string(out)
			if one != 0 {
				cmd = one
			}
		}
		if got != c.want || cmd != c.cmd {
			t.Errorf("%s: %q, %q", name, got, cmd)
		}
	}
	off := &escape{start: true}
	if out, cmd := off.filter([]byte("~.")); string(out) != "~." || cmd != 0 {
		t.Errorf("without a terminal: %q, %q", out, cmd)
	}
}
