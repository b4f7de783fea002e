package docs

import (
	"strings"
	"unicode"
)

// words gives the terms of a text as they are indexed: in lower case, without endings, names such as idempotencyKey, run_command and read-only both whole and
// in their parts, and without the words that every text has.
func words(text string) []string {
	var all []string
	for _, name := range strings.FieldsFunc(text, func(r rune) bool { return !unicode.IsLetter(r) && !unicode.IsDigit(r) && r != '_' && r != '-' }) {
		name = strings.Trim(name, "_-")
		parts := split(name)
		if len(parts) > 1 {
			all = append(all, strings.ToLower(strings.ReplaceAll(name, "-", "")))
		}
		for _, p := range parts {
			if p = strings.ToLower(p); !common[p] {
				all = append(all, stem(p))
			}
		}
	}
	return all
}

// split divides a name at underscores, hyphens, and where a capital follows a small letter.
func split(name string) []string {
	var parts []string
	start := 0
	for i, r := range name {
		switch {
		case r == '_' || r == '-':
			if i > start {
				parts = append(parts, name[start:i])
			}
			start = i + 1
		case i > start && unicode.IsUpper(r) && unicode.IsLower(rune(name[i-1])):
			parts = append(parts, name[start:i])
			start = i
		}
	}
	if start < len(name) {
		parts = append(parts, name[start:])
	}
	return parts
}

// stem takes off the commonest English endings, so that "deleting", "deletes" and "delete" are one term.
func stem(w string) string {
	if len(w) < 4 {
		return w
	}
	for _, e := range []struct {
		end, by string
		least   int // letters that must be left
	}{
		{"sses", "ss", 1},
		{"ies", "y", 2},
		{"ations", "at", 3},
		{"ation", "at", 3},
		{"ings", "", 3},
		{"ing", "", 3},
		{"edly", "", 3},
		{"ed", "", 3},
		{"ers", "", 4},
		{"er", "", 4},
		{"ly", "", 4},
		{"es", "", 3},
		{"s", "", 3},
	} {
		if rest, ok := strings.CutSuffix(w, e.end); ok && len(rest) >= e.least && !strings.HasSuffix(w, "ss") {
			w = rest + e.by
			break
		}
	}
	w = strings.TrimSuffix(w, "e")
	if n := len(w); n > 3 && w[n-1] == w[n-2] && !strings.ContainsRune("lsz", rune(w[n-1])) {
		w = w[:n-1] // stopp, runn
	}
	return w
}

// common words say nothing about what a text is about.
var common = set("a an and are as at be been but by can cannot could did do does doing for from had has have how i if in into is it its itself me my " +
	"of on or our out should so some such than that the their them then there these they this those to too up use used using want was we were what when " +
	"where which who why will with would you your about after also any because get gets give happen happens make need one only other berth please tell way")

// aliases are words that people use for what the pages call otherwise. They count less than a word that the query has.
var aliases = map[string]string{
	"upload": "write put copy content", "download": "read get copy content", "vm": "sandbox", "container": "sandbox", "machine": "sandbox", "box": "sandbox",
	"login": "sign key", "token": "key", "apikey": "key", "credential": "key", "password": "key", "auth": "key authenticate scope", "permission": "scope",
	"permissions": "scope", "lifetime": "life expire ttl", "ttl": "expire life timeout", "hibernate": "pause", "sleep": "stop idle pause", "resume": "wake start",
	"oom": "memory out", "ram": "memory", "cpu": "vcpu", "quota": "limit", "quotas": "limit", "throttle": "rate limit", "429": "rate_limited limit",
	"401": "unauthenticated key", "403": "forbidden scope", "404": "not_found", "409": "busy invalid_state", "500": "internal_error", "503": "unavailable",
	"504": "timeout", "duplicate": "idempotency retry", "twice": "idempotency retry", "dedupe": "idempotency", "retry": "idempotency", "stdin": "input",
	"stdout": "output", "stderr": "output", "logs": "log output", "background": "process start", "daemon": "process background", "server": "process serve",
	"shell": "terminal", "bash": "shell terminal", "tty": "terminal pty", "docker": "image", "oci": "image", "postgres": "database postgresql",
	"sqlite": "database", "install": "run prepare", "setup": "run install", "uninstall": "remove", "upgrade": "run restart", "proxy": "public url trusted",
	"https": "tls proxy", "price": "cost", "billing": "cost limit", "javascript": "typescript", "node": "typescript", "npm": "typescript", "golang": "go",
	"python": "api http", "curl": "http api", "rest": "http api", "sdk": "client", "library": "client", "editor": "connect client", "cursor": "connect page next",
	"maximum": "limit most", "max": "limit most", "minimum": "limit least", "symlink": "symbolic link planted", "symlinks": "symbolic link planted", "kill": "signal delete stop", "terminate": "delete stop signal", "destroy": "delete", "remove": "delete", "monitor": "metric observe", "prometheus": "metric",
	"grafana": "metric", "usage": "metric limit", "slow": "performance", "latency": "performance", "fast": "performance", "isolation": "security gvisor",
	"secure": "security", "safe": "security", "gpu": "capacity", "huge": "large stream", "big": "large stream", "large": "stream content",
}

func set(list string) map[string]bool {
	m := map[string]bool{}
	for w := range strings.FieldsSeq(list) {
		m[w] = true
	}
	return m
}
