package mcpapi

import (
	"context"
	"encoding/json"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/berthrun/berth/api/op"
	"github.com/berthrun/berth/internal/caller"
)

// listTTL is how long, in milliseconds, a client may keep a list: it changes with an upgrade of the server only.
const listTTL = 60_000

// tool is an operation and how it is listed. The schemas are marshaled once.
type tool struct {
	op     *op.Operation
	listed *mcp.Tool
}

// toolsOf gives the operations that have a tool, in the registry's order; of a read-only endpoint those that change nothing.
func toolsOf(r *op.Registry, readOnly bool) []tool {
	var tools []tool
	spelled := map[string]string{}
	for _, o := range r.All() {
		if o.Tool == "" || (readOnly && !o.Hints.Has(op.Read)) {
			continue
		}
		tools = append(tools, tool{op: o, listed: &mcp.Tool{
			Name: o.Tool, Title: o.Title, Description: o.Doc,
			InputSchema: raw(o.In), OutputSchema: raw(refer(o.Out, o.Tool, spelled)),
			Annotations: annotations(o.Hints),
		}})
	}
	return tools
}

func annotations(h op.Hints) *mcp.ToolAnnotations {
	destructive, open := h.Has(op.Destructive), h.Has(op.OpenWorld)
	return &mcp.ToolAnnotations{
		ReadOnlyHint: h.Has(op.Read), IdempotentHint: h.Has(op.Idempotent), DestructiveHint: &destructive, OpenWorldHint: &open,
	}
}

func raw(s *op.Schema) json.RawMessage { return encode(s) }

// referFrom is how many characters of schema are worth a reference.
const referFrom = 300

// refer gives an output schema in which an object that an earlier tool has spelled out is only named. A list of tools is read by a model at a price
// for each word, and the same sandbox would otherwise be described seven times; what a client validates stays true, because outputs are open.
func refer(s *op.Schema, name string, spelled map[string]string) *op.Schema {
	c := *s
	if s.Items != nil {
		c.Items = referMember(s.Items, name, spelled)
	}
	if len(s.Properties) > 0 {
		c.Properties = make(map[string]*op.Schema, len(s.Properties))
		for _, member := range s.Order {
			c.Properties[member] = referMember(s.Properties[member], name, spelled)
		}
	}
	return &c
}

func referMember(s *op.Schema, name string, spelled map[string]string) *op.Schema {
	if s.Type == "object" && len(s.Properties) > 0 {
		bare := *s
		bare.Description = ""
		key := string(raw(&bare))
		if first, ok := spelled[key]; ok && first != name {
			return &op.Schema{Type: "object", Description: "As in " + first + "."}
		}
		if len(key) >= referFrom {
			spelled[key] = name
		}
	}
	return refer(s, name, spelled)
}

// visible gives the tools that the caller may see.
func (h *Handler) visible(e *endpoint, c *caller.Caller) []*mcp.Tool {
	list := make([]*mcp.Tool, 0, len(e.tools))
	for _, t := range e.tools {
		if h.cfg.Visible(c, t.op.Info) {
			list = append(list, t.listed)
		}
	}
	return list
}

// listTools answers tools/list in place of the SDK, which would give every caller the same.
func (h *Handler) listTools(e *endpoint) mcp.Middleware {
	return func(next mcp.MethodHandler) mcp.MethodHandler {
		return func(ctx context.Context, method string, req mcp.Request) (mcp.Result, error) {
			if method != "tools/list" {
				return next(ctx, method, req)
			}
			return &mcp.ListToolsResult{
				Tools:     h.visible(e, caller.From(ctx)),
				Cacheable: mcp.Cacheable{TTLMs: listTTL, CacheScope: "private"},
			}, nil
		}
	}
}
