package mcpapi

import (
	"strings"
	"unicode"
)

// early are the beginnings, in lower case, of the names and user agents of clients that give a call up after 60 seconds: editors and agents that
// keep the default of the TypeScript SDK, and that SDK itself, whose user agent is its runtime's.
var early = []string{
	"node", "bun/", "deno/", "undici", "inspector", "mcp-inspector", "mcp-remote", "@modelcontextprotocol/",
	"cursor", "codex", "windsurf", "cline", "roo", "continue", "claude-ai", "claude desktop", "openai", "chatgpt",
}

func givesUpEarly(client string) bool {
	client = strings.ToLower(client)
	for _, name := range early {
		if strings.HasPrefix(client, name) {
			return true
		}
	}
	return false
}

// printable keeps what can stand in a log line and an audit row.
func printable(s string, limit int) string {
	s = strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return -1
		}
		return r
	}, strings.ToValidUTF8(s, ""))
	if runes := []rune(s); len(runes) > limit {
		s = string(runes[:limit])
	}
	return s
}
