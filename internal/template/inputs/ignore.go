package inputs

import (
	"io"
	"os"
	"path"
	"path/filepath"
	"strings"

	"github.com/moby/patternmatcher"
	"github.com/moby/patternmatcher/ignorefile"

	"github.com/berthrun/berth/internal/errs"
)

// Ignore is the patterns of a .dockerignore. The zero value ignores nothing.
type Ignore struct {
	pm   *patternmatcher.PatternMatcher
	back []string // what a pattern with ! may bring back: the folders on the way there are looked into
}

// NewIgnore makes one of patterns. One that cannot be read is errs.InvalidInput.
func NewIgnore(patterns []string) (Ignore, error) {
	if len(patterns) == 0 {
		return Ignore{}, nil
	}
	pm, err := patternmatcher.New(patterns)
	if err == nil {
		_, err = pm.MatchesOrParentMatches("x") // compiles them
	}
	if err != nil {
		return Ignore{}, errs.E(errs.InvalidInput, "a pattern of what to leave out cannot be read: %v", err).Suggest("Patterns are as in a .dockerignore: *, ?, [a-z], ** and ! in front.")
	}
	ig := Ignore{pm: pm}
	for _, p := range pm.Patterns() {
		if p.Exclusion() {
			ig.back = append(ig.back, filepath.ToSlash(p.String()))
		}
	}
	return ig, nil
}

// ReadIgnore reads a .dockerignore.
func ReadIgnore(r io.Reader) (Ignore, error) {
	patterns, err := ignorefile.ReadAll(r)
	if err != nil {
		return Ignore{}, errs.E(errs.InvalidInput, "the .dockerignore cannot be read: %v", err).Suggest("It is a text file with one pattern a line.")
	}
	return NewIgnore(patterns)
}

// FindIgnore reads the file that says what to leave out of a folder: the Dockerfile's own, named as it is with .dockerignore behind, else the folder's
// .dockerignore. It ignores nothing where there is neither. dockerfile is its path, or "".
func FindIgnore(dir, dockerfile string) (Ignore, error) {
	var names []string
	if dockerfile != "" {
		names = append(names, dockerfile+".dockerignore")
	}
	for _, name := range append(names, filepath.Join(dir, ".dockerignore")) {
		f, err := os.Open(name)
		if os.IsNotExist(err) {
			continue
		}
		if err != nil {
			return Ignore{}, err
		}
		defer f.Close()
		return ReadIgnore(f)
	}
	return Ignore{}, nil
}

// within is what matching a folder said, which its entries need.
type within struct{ info patternmatcher.MatchInfo }

// match reports whether an entry is left out. up is what match gave for its folder.
func (ig Ignore) match(name string, up within) (bool, within, error) {
	if ig.pm == nil {
		return false, within{}, nil
	}
	out, info, err := ig.pm.MatchesUsingParentResults(filepath.FromSlash(name), up.info)
	return out, within{info}, err
}

// into reports whether a folder that is left out may hold something that is not.
func (ig Ignore) into(dir string) bool {
	for _, p := range ig.back {
		if strings.HasPrefix(p+"/", dir+"/") || strings.HasPrefix(dir+"/", p+"/") || strings.ContainsAny(p, "*?[") && reaches(p, dir) {
			return true
		}
	}
	return false
}

// reaches reports whether a pattern may match something below a folder.
func reaches(pattern, dir string) bool {
	ps, ds := strings.Split(pattern, "/"), strings.Split(dir, "/")
	for i, d := range ds {
		if i == len(ps) {
			return true // the pattern brings back a folder above
		}
		if ps[i] == "**" {
			return true
		}
		if ok, err := path.Match(ps[i], d); err == nil && !ok {
			return false
		}
	}
	return true
}
