package doctor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"syscall"
)

// base is the address of the server on this machine.
func (d *doctor) base() string {
	host, port, err := net.SplitHostPort(d.Listen)
	if err != nil {
		return ""
	}
	if a, err := netip.ParseAddr(host); err == nil && a.IsUnspecified() {
		host = "127.0.0.1"
	}
	return "http://" + net.JoinHostPort(host, port)
}

// move looks for the server where that of this data folder has said that it listens: it may have been started with other flags than these.
func (d *doctor) move(ctx context.Context) (note string) {
	u, err := url.Parse(d.Left)
	if err != nil || d.PublicURL != "" || u.Scheme != "http" || u.Port() == "" || !isLoopback(u.Hostname()) || d.Left == d.base() {
		return ""
	}
	if status, body, err := d.get(ctx, http.MethodGet, d.Left+"/healthz", ""); err != nil || status != http.StatusOK || !isBerth(body) {
		return ""
	}
	note = "; it was started with another address than is said here, " + d.Listen
	d.Listen = u.Host
	return note
}

// get asks for a page and gives its status and the beginning of its body.
func (d *doctor) get(ctx context.Context, method, url, body string) (int, string, error) {
	ctx, cancel := context.WithTimeout(ctx, probeTime)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, url, strings.NewReader(body))
	if err != nil {
		return 0, "", err
	}
	if body != "" {
		req.Header.Set("Content-Type", "application/json")
		req.Header.Set("Accept", "application/json, text/event-stream")
	}
	res, err := d.HTTP.Do(req)
	if err != nil {
		return 0, "", err
	}
	defer res.Body.Close()
	b, err := io.ReadAll(io.LimitReader(res.Body, 64<<10))
	return res.StatusCode, string(b), err
}

// server asks the one of this machine how it is, and reports whether it runs.
func (d *doctor) server(ctx context.Context) bool {
	note := d.move(ctx)
	status, body, err := d.get(ctx, http.MethodGet, d.base()+"/healthz", "")
	if err != nil || status != http.StatusOK || !isBerth(body) {
		d.add("server", OK, "it does not run on "+d.Listen, "")
		return false
	}
	status, body, err = d.get(ctx, http.MethodGet, d.base()+"/readyz", "")
	switch {
	case err != nil:
		d.add("server", Error, "it does not answer whether it is ready: "+err.Error(), "Read its log: journalctl -u berth")
	case status != http.StatusOK:
		d.add("server", Error, fmt.Sprintf("it is not ready (%d): %s", status, message(body)), "Read its log: journalctl -u berth")
	default:
		d.add("server", OK, "it runs on "+d.Listen+" and is ready"+note, "")
	}
	return true
}

func isBerth(body string) bool {
	var h struct{ Status, Version string }
	return json.Unmarshal([]byte(body), &h) == nil && h.Status == "ok"
}

func message(body string) string {
	var e struct{ Error struct{ Message string } }
	if json.Unmarshal([]byte(body), &e) == nil && e.Error.Message != "" {
		return e.Error.Message
	}
	return "no reason is given"
}

func (d *doctor) ports(running bool) {
	if running {
		return // it has its port
	}
	ln, err := net.Listen("tcp", d.Listen) //nolint:noctx // it ends at once
	switch {
	case err == nil:
		_ = ln.Close()
		d.add("server.port", OK, d.Listen+" is free", "")
	case errors.Is(err, syscall.EADDRINUSE):
		d.add("server.port", Error, d.Listen+" is taken by another program", "End it, or set listen.port to another.")
	case errors.Is(err, syscall.EACCES):
		d.add("server.port", Skipped, "only root may listen on "+d.Listen, again)
	default:
		d.add("server.port", Error, err.Error(), "Set listen.address to an address of this machine.")
	}
}

// public looks at the address under which callers reach the server.
func (d *doctor) public(ctx context.Context) {
	if d.PublicURL == "" {
		if host, _, err := net.SplitHostPort(d.Listen); err == nil && !isLoopback(host) {
			d.add("server.publicUrl", Warn, "it listens on "+d.Listen+" without TLS, and no public URL is set", "Put a TLS proxy in front and set publicUrl and listen.trustedProxies: keys travel in clear text.")
		}
		return
	}
	u, err := url.Parse(d.PublicURL)
	if err != nil {
		return // the configuration refuses it
	}
	switch {
	case u.Scheme == "http" && !isLoopback(u.Hostname()):
		d.add("server.publicUrl", Warn, d.PublicURL+" is not TLS", "Keys travel in clear text: put a TLS proxy in front and use its https:// address.")
	case u.Scheme == "https" && !d.Proxies:
		d.add("server.publicUrl", Warn, d.PublicURL+" is behind a proxy that is not trusted", "Set listen.trustedProxies to its address: else all callers seem to come from it.")
	}
	status, body, err := d.get(ctx, http.MethodGet, strings.TrimRight(d.PublicURL, "/")+"/healthz", "")
	switch {
	case err != nil:
		d.add("server.reachable", Warn, d.PublicURL+" does not answer: "+short(err), "Check DNS, the proxy and the firewall; a machine may be unable to reach its own public address.")
	case status != http.StatusOK || !isBerth(body):
		d.add("server.reachable", Warn, fmt.Sprintf("%s/healthz answers %d and is not Berth", d.PublicURL, status), "Let the proxy pass every path on.")
	default:
		d.add("server.reachable", OK, d.PublicURL+" answers", "")
	}
}

func short(err error) string {
	if u, ok := errors.AsType[*url.Error](err); ok {
		err = u.Err
	}
	return err.Error()
}

func isLoopback(host string) bool {
	a, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && a.IsLoopback()
}

const listTools = `{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{}}`

// gates asks every MCP endpoint for its tools without a credential. One that gives them is open to everybody; one that cannot be asked says nothing.
func (d *doctor) gates(ctx context.Context, running bool) {
	var urls []string
	if d.MCPPath != "" && running {
		urls = append(urls, d.base()+d.MCPPath)
	}
	if d.MCPPath != "" && d.PublicURL != "" {
		urls = append(urls, strings.TrimRight(d.PublicURL, "/")+d.MCPPath)
	}
	for _, at := range append(urls, d.MCPURLs...) {
		status, _, err := d.get(ctx, http.MethodPost, at, listTools)
		switch {
		case err != nil:
		case status >= 200 && status < 300:
			d.add("host.mcp.ungated", Error, at+" lists its tools to anybody", "Whoever reaches it can use them: take away what authenticates in its place, or take it off the network.")
		case status == http.StatusUnauthorized:
			d.add("host.mcp.gated", OK, at+" asks for a credential", "")
		}
	}
}
