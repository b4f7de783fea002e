package mcpapi

import (
	"encoding/json"
	"net/http"
	"slices"
	"strings"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

const (
	revisionHeader = "Mcp-Protocol-Version"
	methodHeader   = "Mcp-Method"
	nameHeader     = "Mcp-Name"

	firstModern = "2026-07-28"
)

// callMethods are the methods of the protocol that are calls, with whether they need params.
var callMethods = map[string]bool{
	"initialize": true, "ping": false, "server/discover": false,
	"tools/list": false, "tools/call": true,
	"prompts/list": false, "prompts/get": true,
	"resources/list": false, "resources/templates/list": false, "resources/read": true, "resources/subscribe": true, "resources/unsubscribe": true,
	"completion/complete": true, "logging/setLevel": true, "subscriptions/listen": true,
}

// removed are the methods that the newest revision no longer has.
var removed = map[string]bool{"initialize": true, "ping": true, "logging/setLevel": true, "resources/subscribe": true, "resources/unsubscribe": true}

// check holds the message against its revision: known method, matching headers, complete _meta.
func (x *exchange) check() *rpcError {
	m := x.msg
	revision, err := x.revision()
	if err != nil {
		return err
	}
	x.modern = revision >= firstModern
	if m.method == "" {
		return nil
	}
	var ok bool
	if x.meta, ok = m.params.object("_meta"); !ok {
		return problem(http.StatusBadRequest, codeInvalidParams, "_meta must be an object")
	}
	needsParams, known := callMethods[m.method]
	switch {
	case m.id == nil && known:
		return problem(http.StatusBadRequest, codeInvalidRequest, m.method+" needs an id")
	case m.id == nil:
		return x.checkHeaders()
	case strings.HasPrefix(m.method, "notifications/"):
		return problem(http.StatusBadRequest, codeInvalidRequest, "a notification has no id")
	case !known, x.modern && removed[m.method], optional[m.method] && len(x.end.extras) == 0:
		return problem(x.status(http.StatusNotFound), codeNotFound, "the method "+quoted(m.method)+" is not supported")
	}
	if err := x.checkMeta(revision); err != nil {
		return err
	}
	if err := x.checkHeaders(); err != nil {
		return err
	}
	if needsParams && m.params == nil {
		return problem(x.status(http.StatusBadRequest), codeInvalidParams, m.method+" needs params")
	}
	return x.checkParams()
}

// revision gives the protocol revision that the request names, 2025-03-26 where it names none.
func (x *exchange) revision() (string, *rpcError) {
	given := x.r.Header.Values(revisionHeader)
	if len(given) == 0 {
		return "2025-03-26", nil
	}
	if len(given) > 1 {
		return "", problem(http.StatusBadRequest, codeHeaderMismatch, "the header "+revisionHeader+" is given twice")
	}
	supported := mcp.SupportedProtocolVersions()
	if !slices.Contains(supported, given[0]) {
		err := problem(http.StatusBadRequest, codeVersion, "the protocol version is not supported")
		err.Data = map[string]any{"supported": supported, "requested": given[0]}
		return "", err
	}
	return given[0], nil
}

// status is the given one for revisions that give errors a status of their own, 200 for older ones.
func (x *exchange) status(modern int) int {
	if x.modern {
		return modern
	}
	return http.StatusOK
}

func (x *exchange) checkMeta(revision string) *rpcError {
	named, given := x.meta[mcp.MetaKeyProtocolVersion]
	if !given && !x.modern {
		return nil
	}
	mismatch := func(text string) *rpcError { return problem(http.StatusBadRequest, codeHeaderMismatch, text) }
	missing := func(key string) *rpcError {
		return problem(http.StatusBadRequest, codeInvalidParams, "_meta."+key+" is missing or not valid")
	}
	var version string
	if json.Unmarshal(named, &version) != nil || version == "" {
		return missing(mcp.MetaKeyProtocolVersion)
	}
	if x.r.Header.Get(revisionHeader) == "" {
		return mismatch("the header " + revisionHeader + " is missing")
	}
	if version != revision {
		return mismatch("the header " + revisionHeader + " differs from _meta")
	}
	if !x.modern {
		return nil
	}
	if caps, ok := x.meta.object(mcp.MetaKeyClientCapabilities); !ok || caps == nil {
		return missing(mcp.MetaKeyClientCapabilities)
	}
	if _, ok := x.meta.object(mcp.MetaKeyClientInfo); !ok {
		return missing(mcp.MetaKeyClientInfo)
	}
	return nil
}

// checkHeaders holds the headers that repeat parts of the body, for proxies, against it.
func (x *exchange) checkHeaders() *rpcError {
	if !x.modern {
		return nil
	}
	if x.r.Header.Get(methodHeader) != x.msg.method {
		return problem(http.StatusBadRequest, codeHeaderMismatch, "the header "+methodHeader+" is missing or differs from the body")
	}
	member := map[string]string{"tools/call": "name", "prompts/get": "name", "resources/read": "uri"}[x.msg.method]
	if member == "" {
		return nil
	}
	name, ok := x.msg.params.text(member)
	if !ok {
		return nil // named by checkParams
	}
	if x.r.Header.Get(nameHeader) != name {
		return problem(http.StatusBadRequest, codeHeaderMismatch, "the header "+nameHeader+" is missing or differs from the body")
	}
	return nil
}

func (x *exchange) checkParams() *rpcError {
	p := x.msg.params
	bad := func(text string) *rpcError { return problem(x.status(http.StatusBadRequest), codeInvalidParams, text) }
	switch x.msg.method {
	case "initialize":
		if _, ok := p.text("protocolVersion"); !ok {
			return bad("params.protocolVersion is missing or not a string")
		}
	case "tools/call":
		if name, ok := p.text("name"); !ok || name == "" {
			return bad("params.name is missing or not a string")
		}
		if _, ok := p.object("arguments"); !ok {
			return bad("params.arguments must be an object")
		}
	case "tools/list":
		if c, given := p["cursor"]; given && string(c) != `""` && string(c) != "null" {
			return bad("params.cursor is not valid: the list has one page")
		}
	}
	return nil
}

// quoted shows text from outside on one short line.
func quoted(s string) string {
	if len(s) > 64 {
		s = s[:64] + "…"
	}
	return string(encode(strings.ToValidUTF8(s, "")))
}
