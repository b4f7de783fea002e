package httpapi

import (
	"net/http"
	"net/netip"
	"slices"
	"strings"
)

// SourceIP makes a function that gives the address a request came from: the peer's, or behind trusted proxies the last address in X-Forwarded-For
// that is none of them. What a proxy that is not trusted says counts for nothing. It is empty where the peer has no IP address.
func SourceIP(trusted []netip.Prefix) func(r *http.Request) string {
	isProxy := func(ip netip.Addr) bool {
		return slices.ContainsFunc(trusted, func(p netip.Prefix) bool { return p.Contains(ip) })
	}
	return func(r *http.Request) string {
		peer, err := netip.ParseAddrPort(r.RemoteAddr)
		if err != nil {
			return ""
		}
		ip := peer.Addr().Unmap().WithZone("")
		hops := strings.Split(strings.Join(r.Header.Values("X-Forwarded-For"), ","), ",")
		for i := len(hops) - 1; i >= 0 && isProxy(ip); i-- {
			next, ok := parseHop(hops[i])
			if !ok {
				break
			}
			ip = next
		}
		return ip.String()
	}
}

func parseHop(s string) (netip.Addr, bool) {
	s = strings.TrimSpace(s)
	if ap, err := netip.ParseAddrPort(s); err == nil {
		return ap.Addr().Unmap().WithZone(""), true
	}
	ip, err := netip.ParseAddr(strings.Trim(s, "[]"))
	return ip.Unmap().WithZone(""), err == nil
}
