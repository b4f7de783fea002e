package guest

import (
	"fmt"
	"strings"
	"unicode/utf8"
)

// failure is an error that is answered to the host as an Error.
type failure struct {
	code, message string
}

func (f *failure) Error() string { return f.message }

// fail makes a failure from one of the Code constants and a message for the caller.
func fail(code, format string, args ...any) error {
	return &failure{code, fmt.Sprintf(format, args...)}
}

// clip shortens a string to at most n bytes without cutting a character, and makes it UTF-8.
func clip(s string, n int) string {
	if !utf8.ValidString(s) {
		s = strings.ToValidUTF8(s, "?")
	}
	if len(s) <= n {
		return s
	}
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n]
}

// How much of a process's command and directory is told.
const (
	maxCommandShown = 4 << 10
	listedCommand   = 256
	listedCwd       = 1024
)

// validID accepts what an id may be: it is part of a path of the protocol.
func validID(id string) bool {
	if id == "" || len(id) > 64 {
		return false
	}
	for i := range len(id) {
		if c := id[i]; (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') && c != '_' && c != '-' {
			return false
		}
	}
	return true
}
