package registry

import (
	"testing"

	"github.com/berthrun/berth/internal/errs"
)

func TestCheckHost(t *testing.T) {
	for _, host := range []string{"ghcr.io", "registry.example.com:5000", "localhost:5000", "10.0.0.5", "127.0.0.1:5000", "[::1]:5000", "xn--bcher-kva.example", "a_b.example"} {
		if err := CheckHost(host); err != nil {
			t.Errorf("%q: %v", host, err)
		}
	}
	for _, host := range []string{"", "..", "a/b", "a@b", "a b", "a\nb", "a\x00b", "\U0001f600", "\u009b2J", "a\u202eb", "a\xffb"} {
		if err := CheckHost(host); !errs.Is(err, errs.InvalidInput) {
			t.Errorf("%q is taken: %v", host, err)
		}
	}
}
