package cli

import (
	"strings"
	"unicode"

	"github.com/berthrun/berth/api/op"
)

// kebab makes ttl-seconds of ttlSeconds and memory-mib of memoryMiB.
func kebab(name string) string {
	name = strings.NewReplacer("MiB", "Mib", "GiB", "Gib").Replace(name)
	var b strings.Builder
	lower := false
	for _, r := range name {
		if unicode.IsUpper(r) && lower {
			b.WriteByte('-')
		}
		lower = !unicode.IsUpper(r)
		b.WriteRune(unicode.ToLower(r))
	}
	return b.String()
}

// placeholder names an argument in usage lines: SANDBOX_ID of sandboxId.
func placeholder(name string) string {
	return strings.ToUpper(strings.ReplaceAll(kebab(name), "-", "_"))
}

// kindOf names what a flag takes, with its unit.
func kindOf(name string, s *op.Schema) string {
	switch {
	case s.Type == "boolean":
		return "bool"
	case s.Type == "object":
		return "KEY=VALUE"
	case s.Type == "array" && mounts(s.Items):
		return "NAME[:PATH][:ro]"
	case s.Type == "array":
		return kindOf(name, s.Items)
	case strings.HasSuffix(name, "Seconds"):
		return "seconds"
	case strings.HasSuffix(name, "MiB"):
		return "MiB"
	case strings.HasSuffix(name, "GiB"):
		return "GiB"
	case s.Type == "integer", s.Type == "number":
		return "number"
	case s.Format == "date-time":
		return "time"
	case s.Type == "":
		return "json"
	}
	return "text"
}
