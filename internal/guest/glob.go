package guest

import (
	"path"
	"strings"
)

// maxGlobNames bounds the names of a pattern.
const maxGlobNames = 64

// glob is a pattern for paths relative to a directory: names as path.Match has them, and ** for any number of names.
type glob struct {
	names []string
}

// globState is the set of places in a pattern that the names so far may have led to: a bit for each.
type globState []bool

// parseGlob checks a pattern. The empty one is nil and matches everything.
func parseGlob(pattern string) (*glob, error) {
	if pattern == "" {
		return nil, nil
	}
	g := &glob{}
	for name := range strings.SplitSeq(strings.TrimPrefix(pattern, "./"), "/") {
		if name == "" || name == "." || name == ".." {
			return nil, fail(CodeInvalid, "a glob is relative to the directory, without empty names, . and ..")
		}
		if _, err := path.Match(name, ""); err != nil {
			return nil, fail(CodeInvalid, "%q is not a glob", clip(name, 128))
		}
		if n := len(g.names); name == "**" && n > 0 && g.names[n-1] == "**" {
			continue
		}
		g.names = append(g.names, name)
	}
	if len(g.names) > maxGlobNames {
		return nil, fail(CodeInvalid, "a glob has at most %d names", maxGlobNames)
	}
	return g, nil
}

// deep reports whether the pattern can match below the directory itself.
func (g *glob) deep() bool { return g != nil && (len(g.names) > 1 || g.names[0] == "**") }

// start is the state before the first name.
func (g *glob) start() globState {
	if g == nil {
		return nil
	}
	st := make(globState, len(g.names)+1)
	st[0] = true
	g.skip(st)
	return st
}

// skip lets every ** stand for no name.
func (g *glob) skip(st globState) {
	for i, name := range g.names {
		if st[i] && name == "**" {
			st[i+1] = true
		}
	}
}

// step gives the state after one more name.
func (g *glob) step(st globState, name string) globState {
	if g == nil {
		return nil
	}
	next := make(globState, len(st))
	for i, pattern := range g.names {
		if !st[i] {
			continue
		}
		if pattern == "**" {
			next[i] = true
		} else if ok, _ := path.Match(pattern, name); ok {
			next[i+1] = true
		}
	}
	g.skip(next)
	return next
}

// matches reports whether the names so far are what the pattern wants.
func (g *glob) matches(st globState) bool { return g == nil || st[len(st)-1] }

// canGoOn reports whether more names may match.
func (g *glob) canGoOn(st globState) bool {
	if g == nil {
		return true
	}
	for _, on := range st[:len(st)-1] {
		if on {
			return true
		}
	}
	return false
}
