package mcpapi

import (
	"cmp"
	"context"
	"net/http"
	"slices"
	"strings"
	"sync"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/berthrun/berth/api/op"
	"github.com/berthrun/berth/internal/caller"
	"github.com/berthrun/berth/internal/catalog"
	"github.com/berthrun/berth/internal/errs"
)

const (
	// listTTL is how long, in milliseconds, a client may keep a list: it changes with an upgrade of the server only.
	listTTL = 60_000
	// mostEndpoints and mostLists bound what is kept made: toolsets can be put together in many ways, and so can scopes.
	mostEndpoints = 256
	mostLists     = 64
)

// endpoint is one address: its list of tools, and the SDK's handler for what is neither a list nor a call.
type endpoint struct {
	list     catalog.List
	infos    []op.Info // of the operations in the list
	rename   func(string) string
	protocol http.Handler
	extras   []*extra

	mu   sync.Mutex
	made map[string][]byte // lists of tools as JSON, by who may see what
}

// endpoints are made when they are asked for.
type endpoints struct {
	mu  sync.Mutex
	all map[string]*endpoint
}

// endpoint gives the endpoint of a list, or errs.Unavailable where this deployment has nothing of what its address names.
func (h *Handler) endpoint(l catalog.List) (*endpoint, error) {
	key := l.Path()
	h.ends.mu.Lock()
	defer h.ends.mu.Unlock()
	if e := h.ends.all[key]; e != nil {
		return e, nil
	}
	e, err := h.newEndpoint(l)
	if err != nil {
		return nil, err
	}
	if len(h.ends.all) >= mostEndpoints {
		clear(h.ends.all)
	}
	h.ends.all[key] = e
	return e, nil
}

func (h *Handler) newEndpoint(l catalog.List) (*endpoint, error) {
	var all []op.Info
	for _, o := range h.cfg.Registry.All() {
		all = append(all, o.Info)
	}
	e := &endpoint{list: l, rename: renaming(l, all), made: map[string][]byte{}}
	for _, info := range all {
		if l.Holds(info) {
			e.infos = append(e.infos, info)
		}
	}
	empty := emptyToolsets(l, all)
	if l.Chosen() && len(empty) == len(l.Toolsets) {
		return nil, errs.E(errs.Unavailable, "this deployment has no tools in %s: %s", strings.Join(l.Toolsets, " and "), strings.Join(missing(empty), "; ")).
			Because("toolset_unavailable").Suggest("Toolsets with tools here: %s. list_capabilities says what this deployment can do.", strings.Join(present(all), ", "))
	}
	options := &mcp.ServerOptions{
		Instructions: cmp.Or(h.cfg.Instructions, e.rename(instructions(l, missing(empty)))),
		Capabilities: &mcp.ServerCapabilities{Tools: &mcp.ToolCapabilities{}},
		SetCacheable: func(_ context.Context, _ mcp.Request, c *mcp.Cacheable) { c.TTLMs, c.CacheScope = listTTL, "private" },
	}
	add := extend(e, options)
	server := mcp.NewServer(&h.sdk, options)
	add(server)
	e.protocol = mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return server }, &mcp.StreamableHTTPOptions{
		Stateless: true, JSONResponse: true, PropagateRequestCancellation: true,
		DisableLocalhostProtection: true, MaxRequestBodyBytes: -1, // both done before
	})
	return e, nil
}

// emptyToolsets are those that the address names and this deployment has no tool in.
func emptyToolsets(l catalog.List, infos []op.Info) []catalog.Toolset {
	var empty []catalog.Toolset
	for _, s := range catalog.Toolsets() {
		if slices.Contains(l.Toolsets, s.Name) && !has(infos, s.Name) {
			empty = append(empty, s)
		}
	}
	return empty
}

func has(infos []op.Info, toolset string) bool {
	for _, info := range infos {
		if info.Toolset == toolset && info.Tool != "" {
			return true
		}
	}
	return false
}

func present(infos []op.Info) []string {
	var names []string
	for _, s := range catalog.Toolsets() {
		if has(infos, s.Name) {
			names = append(names, s.Name)
		}
	}
	return names
}

func missing(empty []catalog.Toolset) []string {
	var texts []string
	for _, s := range empty {
		texts = append(texts, s.Missing)
	}
	return texts
}

// listTools answers tools/list. The list is made once for everyone who may see the same; only the frame around it is the request's own.
func (x *exchange) listTools() {
	tools := x.end.toolsFor(x.caller, x.h.cfg.Visible)
	b := make([]byte, 0, len(tools)+512)
	b = append(b, `{"jsonrpc":"2.0","id":`...)
	b = append(b, x.msg.id...)
	b = append(b, `,"result":{"tools":`...)
	b = append(b, tools...)
	if x.modern {
		b = append(b, `,"ttlMs":`+listTTLText+`,"cacheScope":"private","resultType":"complete","_meta":{"`+mcp.MetaKeyServerInfo+`":`...)
		b = append(b, x.h.info...)
		b = append(b, '}')
	}
	x.write(http.StatusOK, append(b, "}}"...))
}

const listTTLText = "60000"

// toolsFor gives the JSON of the tools that the caller may see.
func (e *endpoint) toolsFor(c *caller.Caller, visible func(*caller.Caller, op.Info) bool) []byte {
	set := make([]byte, (len(e.infos)+7)/8)
	for i, info := range e.infos {
		if visible(c, info) {
			set[i/8] |= 1 << (i % 8)
		}
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if made := e.made[string(set)]; made != nil {
		return made
	}
	var seen []op.Info
	for i, info := range e.infos {
		if set[i/8]&(1<<(i%8)) != 0 {
			seen = append(seen, info)
		}
	}
	all := listed(e.list, toolsOf(e.list, seen, everyone), e.rename)
	for _, x := range e.extras {
		all = append(all, x.listed)
	}
	if len(e.made) >= mostLists {
		clear(e.made)
	}
	made := encode(all)
	e.made[string(set)] = made
	return made
}

func everyone(op.Info) bool { return true }
