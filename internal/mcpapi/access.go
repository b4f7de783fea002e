package mcpapi

import (
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"github.com/berthrun/berth/internal/caller"
	"github.com/berthrun/berth/internal/errs"
)

const (
	wellKnown = "/.well-known/oauth-protected-resource"
	scopes    = "mcp:read mcp:write"
)

// checkSource refuses what a web page of somebody else sends: a foreign Origin, or a name that was made to point at this machine.
func (x *exchange) checkSource() *rpcError {
	local, _ := x.r.Context().Value(http.LocalAddrContextKey).(net.Addr)
	if name := hostName(x.r.Host); local != nil && loopback(hostName(local.String())) && !loopback(name) && !x.h.hosts[name] {
		return problem(http.StatusForbidden, codeRefused, "this Host is not served here: set the public URL to the name that clients use")
	}
	origin := x.r.Header.Get("Origin")
	if x.h.cfg.Anonymous != nil { // there is no credential that a page could borrow
		allowOrigin(x.w.Header(), "*")
		return nil
	}
	if x.r.Method == http.MethodOptions && origin != "" { // the check below lets every safe method through
		asked := x.r.Clone(x.r.Context())
		asked.Method = http.MethodPost
		if x.h.origins.Check(asked) != nil {
			return problem(http.StatusForbidden, codeRefused, "this Origin may not call")
		}
	}
	if x.h.origins.Check(x.r) != nil {
		return problem(http.StatusForbidden, codeRefused, "this Origin may not call")
	}
	if origin != "" {
		allowOrigin(x.w.Header(), origin)
	}
	return nil
}

func allowOrigin(head http.Header, origin string) {
	head.Set("Access-Control-Allow-Origin", origin)
	head.Set("Access-Control-Expose-Headers", "WWW-Authenticate, X-Request-Id")
	if origin != "*" {
		head.Add("Vary", "Origin")
	}
}

func (x *exchange) preflight() {
	head := x.w.Header()
	head.Set("Access-Control-Allow-Methods", "POST, OPTIONS")
	head.Set("Access-Control-Allow-Headers", "Authorization, Content-Type, Accept, Mcp-Protocol-Version, Mcp-Method, Mcp-Name, Mcp-Session-Id, Last-Event-ID")
	head.Set("Access-Control-Max-Age", "600")
	x.w.WriteHeader(http.StatusNoContent)
}

// authenticate fills in the caller from the bearer token.
func (x *exchange) authenticate() *rpcError {
	if q := x.r.URL.RawQuery; strings.Contains(q, "berth_") || strings.Contains(q, "access_token=") {
		return problem(http.StatusBadRequest, codeRefused, "a credential in a URL ends up in logs: send it as Authorization: Bearer, and revoke this one")
	}
	if x.h.cfg.Anonymous != nil {
		who, err := x.h.cfg.Anonymous(x.r)
		if err != nil {
			return x.refused(err)
		}
		return x.as(who)
	}
	scheme, token, _ := strings.Cut(x.r.Header.Get("Authorization"), " ")
	token = strings.TrimSpace(token)
	if !strings.EqualFold(scheme, "Bearer") || token == "" {
		return x.challenge(errs.E(errs.Unauthenticated, "a credential is needed").
			Suggest("Send Authorization: Bearer and a key or token of this deployment."), "")
	}
	who, err := x.h.cfg.Authenticate(x.r.Context(), token)
	if err != nil {
		e := errs.From(err)
		if e.Code == errs.Unauthenticated {
			return x.challenge(e, `, error="invalid_token"`)
		}
		return x.refused(err)
	}
	return x.as(who)
}

// refused answers a request whose caller could not be established for another reason than the credential.
func (x *exchange) refused(err error) *rpcError {
	x.logInternal(err)
	e := errs.From(err)
	if e.RetryAfter > 0 {
		x.w.Header().Set("Retry-After", strconv.FormatInt(int64((e.RetryAfter+time.Second-1)/time.Second), 10))
	}
	answer := problem(e.Code.Status(), codeRefused, e.Message)
	answer.Data = x.errorText(e)
	return answer
}

// as fills in the caller.
func (x *exchange) as(who *caller.Caller) *rpcError {
	c := *who
	c.Face, c.Client, c.RequestID = caller.FaceMCP, x.userAgent(), x.requestID
	c.SourceIP = x.h.cfg.SourceIP(x.r)
	c.ReadOnly = c.ReadOnly || x.list.ReadOnly
	x.caller = &c
	return nil
}

func (x *exchange) challenge(e *errs.Error, extra string) *rpcError {
	head := x.w.Header()
	head.Set("WWW-Authenticate", `Bearer resource_metadata="`+x.h.publicURL(x.r)+wellKnown+x.h.cfg.Base+`", scope="`+scopes+`"`+extra)
	if head.Get("Access-Control-Allow-Origin") == "" {
		allowOrigin(head, "*")
	}
	answer := problem(http.StatusUnauthorized, codeRefused, e.Message)
	answer.Data = x.errorText(e)
	return answer
}

func (x *exchange) userAgent() string { return printable(x.r.UserAgent(), 200) }

// publicURL is the configured one, or what the request says.
func (h *Handler) publicURL(r *http.Request) string {
	if h.cfg.PublicURL != "" {
		return h.cfg.PublicURL
	}
	scheme := "http"
	if r.TLS != nil {
		scheme = "https"
	}
	return scheme + "://" + r.Host
}

// metadata is the document of RFC 9728. It names no authorization server while there is none.
type metadata struct {
	Resource       string   `json:"resource"`
	Name           string   `json:"resource_name"`
	BearerMethods  []string `json:"bearer_methods_supported"`
	Scopes         []string `json:"scopes_supported"`
	Authorizations []string `json:"authorization_servers,omitempty"`
}

func (h *Handler) serveMetadata(w http.ResponseWriter, r *http.Request) {
	allowOrigin(w.Header(), "*")
	switch r.Method {
	case http.MethodGet, http.MethodHead:
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Cache-Control", "public, max-age=300")
		_, _ = w.Write(encode(metadata{
			Resource: h.publicURL(r) + h.cfg.Base, Name: "Berth", BearerMethods: []string{"header"}, Scopes: strings.Fields(scopes),
		}))
	case http.MethodOptions:
		w.Header().Set("Access-Control-Allow-Methods", "GET, OPTIONS")
		w.Header().Set("Access-Control-Allow-Headers", "Mcp-Protocol-Version")
		w.WriteHeader(http.StatusNoContent)
	default:
		w.Header().Set("Allow", "GET, HEAD, OPTIONS")
		w.WriteHeader(http.StatusMethodNotAllowed)
	}
}

// hostName is the host of an address, without port and brackets, in lower case.
func hostName(addr string) string {
	if host, _, err := net.SplitHostPort(addr); err == nil {
		addr = host
	}
	return strings.ToLower(strings.Trim(addr, "[]"))
}

func loopback(host string) bool {
	if host == "localhost" {
		return true
	}
	ip, err := netip.ParseAddr(host)
	return err == nil && ip.IsLoopback()
}
