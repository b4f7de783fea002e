package registry

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"syscall"
	"time"

	"github.com/berthrun/berth/internal/errs"
)

// Policy says which registries may be reached beside those at public addresses. Hosts are written as in references, with the port where there is one.
type Policy struct {
	Allowed  []string // whatever address they have
	Insecure []string // so too, and without TLS
}

// special are the networks that the public does not reach or that mean this machine: nothing is fetched from them for a caller.
var special = prefixes(
	"0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12", "192.0.0.0/24", "192.0.2.0/24", "192.88.99.0/24",
	"192.168.0.0/16", "198.18.0.0/15", "198.51.100.0/24", "203.0.113.0/24", "224.0.0.0/4", "240.0.0.0/4",
	"::/96", "::ffff:0:0/96", "64:ff9b::/96", "64:ff9b:1::/48", "100::/64", "2001::/23", "2001:db8::/32", "2002::/16", "3fff::/20", "5f00::/16",
	"fc00::/7", "fe80::/10", "fec0::/10", "ff00::/8",
)

func prefixes(all ...string) []netip.Prefix {
	out := make([]netip.Prefix, len(all))
	for i, p := range all {
		out[i] = netip.MustParsePrefix(p)
	}
	return out
}

// Public reports whether an address is one that everybody reaches.
func Public(a netip.Addr) bool {
	a = a.WithZone("").Unmap()
	if !a.IsValid() || !a.IsGlobalUnicast() {
		return false
	}
	for _, p := range special {
		if p.Contains(a) {
			return false
		}
	}
	return true
}

func (p Policy) allowed(hostPort string) bool {
	return listed(p.Allowed, hostPort) || p.insecure(hostPort)
}

func (p Policy) insecure(hostPort string) bool { return listed(p.Insecure, hostPort) }

// listed compares as references are written: a host without a port means the usual ones.
func listed(hosts []string, hostPort string) bool {
	hostPort = strings.ToLower(hostPort)
	for _, h := range hosts {
		h = HostName(h)
		if h == HostName(hostPort) {
			return true
		}
		for _, usual := range []string{":443", ":80"} {
			if h+usual == hostPort || "["+strings.Trim(h, "[]")+"]"+usual == hostPort || h == hostPort+usual {
				return true
			}
		}
	}
	return false
}

func errAddress(host string) *errs.Error {
	return errs.E(errs.Forbidden, "the registry %s is not at a public address", clip(host)).Because("registry_address").
		Suggest("Use a registry that the internet reaches, or have the operator allow this one (images.allowedRegistries).").With("host", clip(host))
}

// transport is http.Transport within the policy: whatever host a registry sends us to, the address is looked at once it is known and before anything is
// sent to it, so that no name can mean one address when it is checked and another when it is used. Proxies of the environment are not used, as they
// would dial instead of us.
func (p Policy) transport() *http.Transport {
	return &http.Transport{
		DialContext:            p.dial,
		ForceAttemptHTTP2:      true,
		MaxIdleConns:           32,
		MaxIdleConnsPerHost:    8,
		IdleConnTimeout:        time.Minute,
		TLSHandshakeTimeout:    15 * time.Second,
		ResponseHeaderTimeout:  30 * time.Second,
		MaxResponseHeaderBytes: 64 << 10,
		DisableCompression:     true,
	}
}

func (p Policy) dial(ctx context.Context, network, hostPort string) (net.Conn, error) {
	d := net.Dialer{Timeout: 15 * time.Second}
	if !p.allowed(hostPort) {
		d.Control = func(_, address string, _ syscall.RawConn) error {
			at, err := netip.ParseAddrPort(address)
			if err != nil || !Public(at.Addr()) {
				return errAddress(hostPort)
			}
			return nil
		}
	}
	conn, err := d.DialContext(ctx, network, hostPort)
	if e, ok := errors.AsType[*errs.Error](err); ok {
		return nil, e
	}
	return conn, err
}

// guard refuses requests that the policy does not allow before they are made, and answers that are too large to be read whole.
type guard struct {
	policy Policy
	next   http.RoundTripper
}

// RoundTrip implements http.RoundTripper.
func (g *guard) RoundTrip(r *http.Request) (*http.Response, error) {
	switch {
	case r.URL.Scheme == "https":
	case r.URL.Scheme == "http" && g.policy.insecure(r.URL.Host):
	default:
		return nil, errs.E(errs.Forbidden, "the registry %s is only reached with TLS", clip(r.URL.Host)).Because("registry_insecure").
			Suggest("Have the operator list it as one without TLS (images.insecureRegistries).")
	}
	resp, err := g.next.RoundTrip(r)
	if err != nil {
		return nil, fmt.Errorf("ask %s: %w", clip(r.URL.Host), err)
	}
	return resp, nil
}
