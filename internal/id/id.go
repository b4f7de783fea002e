// Package id owns the form of every identifier: a prefix for its kind, "_" and 20 characters of [a-z0-9].
//
// It does not know what an id stands for or whether it exists. Pool ids may come from outside and have a form of their own.
package id

import (
	"crypto/rand"
	"regexp"
	"strings"
)

// Kind is the prefix of an id.
type Kind string

// The kinds.
const (
	Organization Kind = "org"
	Workspace    Kind = "ws"
	User         Kind = "user"
	Agent        Kind = "agent"
	Key          Kind = "key"
	Sandbox      Kind = "sbx"
	Process      Kind = "proc"
	Template     Kind = "sbxt"
	Image        Kind = "img"
	Node         Kind = "node"
	Pool         Kind = "pool"
	Event        Kind = "evt"
	Request      Kind = "req"
	Confirmation Kind = "cnf"
	Snapshot     Kind = "snap"
	Volume       Kind = "vol"
	Build        Kind = "bld"
	Backup       Kind = "bak"
	Layer        Kind = "lay"
	BuildContext Kind = "bctx"
)

const (
	alphabet = "abcdefghijklmnopqrstuvwxyz0123456789"
	length   = 20
)

// New makes a fresh id of a kind. It never fails: the system's random source ends the program when it cannot be read.
func New(k Kind) string {
	var b strings.Builder
	b.Grow(len(k) + 1 + length)
	b.WriteString(string(k))
	b.WriteByte('_')
	var buf [40]byte
	for n := 0; n < length; {
		_, _ = rand.Read(buf[:])
		for _, c := range buf {
			// 252 is the largest multiple of 36 below 256: above it the remainder would favour the first letters.
			if c < 252 && n < length {
				b.WriteByte(alphabet[c%36])
				n++
			}
		}
	}
	return b.String()
}

// Pattern is the regular expression that ids of a kind match, for schemas.
func Pattern(k Kind) string {
	if k == Pool {
		return `^[A-Za-z0-9._:-]{1,128}$`
	}
	return `^` + string(k) + `_[a-z0-9]{20}$`
}

var poolPattern = regexp.MustCompile(Pattern(Pool))

// Valid reports whether s has the form of an id of the kind.
func Valid(k Kind, s string) bool {
	if k == Pool {
		return poolPattern.MatchString(s)
	}
	rest, ok := strings.CutPrefix(s, string(k)+"_")
	if !ok || len(rest) != length {
		return false
	}
	for i := range len(rest) {
		if c := rest[i]; (c < 'a' || c > 'z') && (c < '0' || c > '9') {
			return false
		}
	}
	return true
}
