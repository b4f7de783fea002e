package netns

import (
	"net/netip"
	"testing"
)

func TestFilterResolv(t *testing.T) {
	for _, tt := range []struct {
		name, in, want string
		ok             bool
	}{
		{"plain", "nameserver 10.0.0.2\nsearch a b\n", "nameserver 10.0.0.2\nsearch a b\n", true},
		{"a stub on loopback", "nameserver 127.0.0.53\noptions edns0\n", "options edns0\n", false},
		{"both", "nameserver 127.0.0.1\nnameserver 9.9.9.9\n", "nameserver 9.9.9.9\n", true},
		{"IPv6, which sandboxes lack", "nameserver fe80::1\nnameserver 2001:db8::1\n", "", false},
		{"comments and nonsense", "# x y\n; a b\nnameserver\nnameserver x\nsortlist 1 2\n", "", false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, ok := filterResolv(tt.in)
			if got != tt.want || ok != tt.ok {
				t.Errorf("filterResolv = %q, %v; want %q, %v", got, ok, tt.want, tt.ok)
			}
		})
	}
}

func FuzzFilterResolv(f *testing.F) {
	f.Add("nameserver 1.1.1.1\n")
	f.Fuzz(func(t *testing.T, text string) {
		out, ok := filterResolv(text)
		if again, ok2 := filterResolv(out); again != out || ok2 != ok {
			t.Errorf("filtering again changes %q to %q", out, again)
		}
	})
}

func TestSlots(t *testing.T) {
	m := &Manager{cfg: Config{Subnet: netip.MustParsePrefix("10.88.0.0/16"), Instance: "abcde"}}
	if got := m.Slots(); got != 16384 {
		t.Errorf("Slots = %d", got)
	}
	for slot, want := range map[int]string{0: "10.88.0.2", 1: "10.88.0.6", 63: "10.88.0.254", 64: "10.88.1.2", 16383: "10.88.255.254"} {
		if got := m.Address(slot).String(); got != want {
			t.Errorf("Address(%d) = %s, want %s", slot, got, want)
		}
	}
	if got := m.Link(16383, false); len(got) > 15 {
		t.Errorf("the name %s is too long for an interface", got)
	}
}
