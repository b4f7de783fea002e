//go:build !conformance

package mcpapi

import "github.com/modelcontextprotocol/go-sdk/mcp"

// extend adds what only a test build has: nothing.
func (h *Handler) extend(*endpoint, *mcp.Server) {}
