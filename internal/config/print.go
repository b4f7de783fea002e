package config

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/url"
	"regexp"
	"slices"
	"strings"
)

// Print writes the effective configuration as a file that could be read again, but for passwords; with origins each value says where it came from.
func (l *Loaded) Print(w io.Writer, origins bool) error {
	var b strings.Builder
	section := ""
	for _, k := range Keys() {
		indent, name := "", k.Path
		if group, rest, ok := strings.Cut(k.Path, "."); ok {
			indent, name = "  ", rest
			if group != section {
				fmt.Fprintf(&b, "%s:\n", group)
				section = group
			}
		}
		text, err := inline(k.Printable(&l.Config))
		if err != nil {
			return fmt.Errorf("write %s: %w", k.Path, err)
		}
		fmt.Fprintf(&b, "%s%s: %s", indent, name, text)
		if origins {
			fmt.Fprintf(&b, "  # %s", l.Origins[k.Path])
		}
		b.WriteByte('\n')
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// Printable is the value without what is secret in it.
func (k *Key) Printable(c *Config) any {
	v := k.Value(c)
	if s, ok := v.(string); ok && k.Secret {
		return Redact(s)
	}
	return v
}

// plainText are texts that need no quotes in YAML.
var plainText = regexp.MustCompile(`^(/|[a-z]+[./-])[A-Za-z0-9_./-]*$|^(debug|info|warn|error|text|json|plain)$`)

// inline writes a value in one line of YAML.
func inline(v any) (string, error) {
	switch v := v.(type) {
	case []string:
		parts := make([]string, len(v))
		for i, s := range v {
			one, err := inline(s)
			if err != nil {
				return "", err
			}
			parts[i] = one
		}
		return "[" + strings.Join(parts, ", ") + "]", nil
	case map[string]int64:
		parts := make([]string, 0, len(v))
		for _, name := range slices.Sorted(maps.Keys(v)) {
			parts = append(parts, fmt.Sprintf("%s: %d", name, v[name]))
		}
		return "{" + strings.Join(parts, ", ") + "}", nil
	case string:
		if plainText.MatchString(v) {
			return v, nil
		}
	}
	var b strings.Builder
	enc := json.NewEncoder(&b) // JSON is YAML
	enc.SetEscapeHTML(false)
	err := enc.Encode(v)
	return strings.TrimSpace(b.String()), err
}

const hidden = "REDACTED"

var secretParam = regexp.MustCompile(`(?i)(pass|secret|token|key|credential)`)

// Redact takes the passwords out of an address: of its user, and of parameters that sound like one. What is no address and not a path is hidden whole.
func Redact(s string) string {
	if !strings.Contains(s, "://") {
		if strings.Contains(s, "=") || strings.Contains(s, "@") {
			return hidden // a form that is not accepted, but may hold a password
		}
		return s
	}
	u, err := url.Parse(s)
	if err != nil {
		return hidden
	}
	if _, has := u.User.Password(); has {
		u.User = url.UserPassword(u.User.Username(), hidden)
	}
	q, err := url.ParseQuery(u.RawQuery)
	if err != nil {
		return hidden
	}
	for name := range q {
		if secretParam.MatchString(name) {
			q.Set(name, hidden)
		}
	}
	u.RawQuery = q.Encode()
	return u.String()
}
