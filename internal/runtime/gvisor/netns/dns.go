package netns

import (
	"net/netip"
	"os"
	"strings"
)

// resolverFiles are read in order; the second is where systemd-resolved names what it forwards to, the first then being a stub on loopback.
var resolverFiles = [...]string{"/etc/resolv.conf", "/run/systemd/resolve/resolv.conf"}

// Resolv is the text of /etc/resolv.conf for sandboxes: the host's, without name servers that only the host itself can reach. Where none
// remains, Fallback is used. A sandbox without a network gets none at all.
func Resolv(internet bool) string {
	if !internet {
		return "# this sandbox has no network\n"
	}
	for _, file := range resolverFiles {
		b, err := os.ReadFile(file)
		if err != nil {
			continue
		}
		if text, ok := filterResolv(string(b)); ok {
			return text
		}
	}
	return "nameserver " + strings.Join(Fallback[:], "\nnameserver ") + "\n"
}

// Fallback are public resolvers, used where the host's own cannot be reached from a sandbox.
var Fallback = [...]string{"1.1.1.1", "8.8.8.8"}

// filterResolv keeps the lines that make sense in a sandbox, and says whether a name server is among them.
func filterResolv(text string) (string, bool) {
	var b strings.Builder
	found := false
	for line := range strings.Lines(text) {
		f := strings.Fields(line)
		if len(f) < 2 {
			continue
		}
		switch f[0] {
		case "nameserver":
			a, err := netip.ParseAddr(f[1])
			if err != nil || !a.Is4() || a.IsLoopback() || a.IsUnspecified() || a.IsLinkLocalUnicast() {
				continue
			}
			found = true
		case "search", "domain", "options":
		default:
			continue
		}
		b.WriteString(strings.Join(f, " ") + "\n")
	}
	return b.String(), found
}

func hostNameservers() []netip.Addr {
	var out []netip.Addr
	for _, file := range resolverFiles {
		b, _ := os.ReadFile(file)
		for line := range strings.Lines(string(b)) {
			if f := strings.Fields(line); len(f) > 1 && f[0] == "nameserver" {
				if a, err := netip.ParseAddr(f[1]); err == nil && a.Is4() {
					out = append(out, a)
				}
			}
		}
	}
	return out
}
