//go:build !conformance

package mcpapi

import "github.com/modelcontextprotocol/go-sdk/mcp"

// extend adds what only the build for the conformance suite has: nothing.
func extend(*endpoint, *mcp.ServerOptions) func(*mcp.Server) { return func(*mcp.Server) {} }
