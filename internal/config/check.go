package config

import (
	"net"
	"net/netip"
	"net/url"
	"path/filepath"
	"strings"
)

// check says what is wrong with values that are each of their type.
func (l *Loaded) check() (problems []problem) {
	bad := func(path, text string) {
		problems = append(problems, problem{path, l.Origins[path].Where, text})
	}
	if l.PublicURL != "" && !isBaseURL(l.PublicURL) {
		bad("publicUrl", "must be an absolute http or https URL without a query, such as https://berth.example.com")
	}
	if l.Listen.Address != "" && strings.ContainsAny(l.Listen.Address, "/ ") {
		bad("listen.address", "must be an address or a host name")
	}
	for _, p := range l.Listen.TrustedProxies {
		if _, err := Network(p); err != nil {
			bad("listen.trustedProxies", "must be addresses or networks such as 10.0.0.0/8, not "+shown(p))
		}
	}
	if u := l.Database.URL; strings.Contains(u, "://") && !hasScheme(u, "postgres", "postgresql", "sqlite") {
		bad("database.url", "must begin with postgres:// or sqlite://, or be the path of a file")
	}
	if !strings.HasPrefix(l.MCP.Path, "/") || strings.Trim(l.MCP.Path, "/") == "" || strings.ContainsAny(l.MCP.Path, "?#{} ") || strings.Contains(l.MCP.Path, "//") {
		bad("mcp.path", "must be an absolute path such as /mcp")
	}
	for _, o := range l.MCP.Origins {
		if u, err := url.Parse(o); err != nil || u.Scheme == "" || u.Host == "" || u.Path != "" || u.RawQuery != "" || u.User != nil {
			bad("mcp.origins", "must be origins such as https://app.example.com, not "+shown(o))
		}
	}
	if s := l.Node.Subnet; s != "" {
		if p, err := netip.ParsePrefix(s); err != nil || !p.Addr().Is4() || p.Bits() > 28 {
			bad("node.subnet", "must be an IPv4 network of at least 16 addresses such as 10.88.0.0/16, not "+shown(s))
		}
	}
	if n := l.Sandboxes.IdleSeconds; n > 0 && n < 60 {
		bad("sandboxes.idleSeconds", "must be 0 or from 60 to 86400")
	}
	if text := l.debugProblem(); text != "" {
		bad("debug.listen", text)
	}
	return problems
}

// debugProblem holds the private listener to places that only this machine reaches.
func (l *Loaded) debugProblem() string {
	at := l.Debug.Listen
	if at == "" {
		return ""
	}
	if path, ok := strings.CutPrefix(at, "unix:"); ok {
		if !filepath.IsAbs(path) || len(path) > 100 {
			return "must be unix: and an absolute path of at most 100 characters"
		}
		return ""
	}
	host, port, err := net.SplitHostPort(at)
	if err != nil || port == "" {
		return "must be unix:/path or address:port, not " + shown(at)
	}
	if addr, err := netip.ParseAddr(host); host != "localhost" && (err != nil || !addr.IsLoopback()) && !l.Debug.AllowRemote {
		return "is no loopback address, and whoever reaches it reads the server's memory; debug.allowRemote allows it"
	}
	return ""
}

func hasScheme(u string, schemes ...string) bool {
	for _, s := range schemes {
		if strings.HasPrefix(u, s+"://") {
			return true
		}
	}
	return false
}

func isBaseURL(s string) bool {
	u, err := url.Parse(s)
	return err == nil && (u.Scheme == "http" || u.Scheme == "https") && u.Host != "" && u.RawQuery == "" && u.Fragment == "" && u.User == nil
}

// Network reads an address or a network.
func Network(text string) (netip.Prefix, error) {
	if !strings.Contains(text, "/") {
		a, err := netip.ParseAddr(text)
		if err != nil {
			return netip.Prefix{}, err
		}
		return netip.PrefixFrom(a.WithZone(""), a.BitLen()), nil
	}
	return netip.ParsePrefix(text)
}
