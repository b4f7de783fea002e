package catalog

import (
	"slices"
	"strings"

	"github.com/berthrun/berth/api/op"
	"github.com/berthrun/berth/internal/errs"
)

// Profile is a form of the list.
type Profile string

// The profiles that an address can ask for by ?profile=.
const (
	Plain   Profile = ""        // each verb its own tool
	Compact Profile = "compact" // one tool a product, whose argument action names the verb
	ChatGPT Profile = "chatgpt" // no lasting credential in a result, no names and internal ids of the account
)

// every is the toolset that stands for all.
const every = "all"

// List is which tools an address asks for, and in which form. Its zero value is the list of a first session.
type List struct {
	Toolsets []string // in the order of Toolsets; empty: what an agent's first session needs, everything that reads, or every product
	All      bool     // every toolset
	Profile  Profile
	ReadOnly bool
}

// Parse reads an address: the path below the endpoint, such as "", "readonly" and "x/files,sandboxes/readonly", and the values of profile in its query.
// A path that is none or names an unknown toolset is errs.NotFound, a profile that is not known errs.InvalidInput, one that is not here yet
// errs.Unavailable.
func Parse(path string, profiles []string) (List, error) {
	var l List
	rest, ok := strings.CutSuffix("/"+path, "/readonly")
	l.ReadOnly = ok
	if names, ok := strings.CutPrefix(rest, "/x/"); ok {
		if err := l.choose(strings.Split(names, ",")); err != nil {
			return List{}, err
		}
	} else if rest != "" && rest != "/" {
		return List{}, errs.E(errs.NotFound, "there is no MCP endpoint at this path").Because("no_endpoint").
			Suggest("Use the endpoint itself, or below it readonly, x/{toolset}[,{toolset}] or x/{toolset}/readonly. Toolsets: %s.", toolsetNames())
	}
	return l, l.form(profiles)
}

func (l *List) choose(names []string) error {
	chosen := map[string]bool{}
	for _, name := range names {
		known := name == every || slices.ContainsFunc(Toolsets(), func(s Toolset) bool { return s.Name == name })
		if !known {
			return errs.E(errs.NotFound, "there is no toolset %q", shorten(name)).Because("unknown_toolset").
				Suggest("The toolsets are %s.", toolsetNames())
		}
		chosen[name] = true
	}
	if l.All = chosen[every]; l.All {
		return nil
	}
	for _, s := range Toolsets() {
		if chosen[s.Name] {
			l.Toolsets = append(l.Toolsets, s.Name)
		}
	}
	return nil
}

func (l *List) form(profiles []string) error {
	if len(profiles) > 1 {
		return errs.E(errs.InvalidInput, "profile is given more than once").Because("unknown_profile").Suggest("Choose one of compact and chatgpt.")
	}
	if len(profiles) == 0 {
		return nil
	}
	switch p := Profile(profiles[0]); p {
	case Plain, Compact, ChatGPT:
		l.Profile = p
		return nil
	case "code":
		return errs.E(errs.Unavailable, "the profile code is not part of this version").Because("profile_unavailable").Suggest("Use ?profile=compact for few tokens.")
	}
	return errs.E(errs.InvalidInput, "there is no profile %q", shorten(profiles[0])).Because("unknown_profile").
		Suggest("The profiles are compact and chatgpt; without one each verb is a tool of its own.")
}

func toolsetNames() string {
	names := make([]string, 0, 16)
	for _, s := range Toolsets() {
		names = append(names, s.Name)
	}
	return strings.Join(append(names, every), ", ")
}

func shorten(s string) string {
	s = strings.ToValidUTF8(s, "")
	if r := []rune(s); len(r) > 64 {
		return string(r[:64]) + "…"
	}
	return s
}

// Path is the shortest address of the list below the endpoint, with a slash before it where it is not empty, and its query.
func (l List) Path() string {
	var path string
	switch {
	case l.All:
		path = "/x/" + every
	case len(l.Toolsets) > 0:
		path = "/x/" + strings.Join(l.Toolsets, ",")
	}
	if l.ReadOnly {
		path += "/readonly"
	}
	if l.Profile != Plain {
		path += "?profile=" + string(l.Profile)
	}
	return path
}

// Chosen reports whether the address names toolsets, so that others are meant to be out of reach.
func (l List) Chosen() bool { return len(l.Toolsets) > 0 && !l.All }

// Holds reports whether an operation is in the list.
func (l List) Holds(info op.Info) bool {
	switch {
	case !l.Offers(info), l.Chosen() && !slices.Contains(l.Toolsets, info.Toolset):
		return false
	case l.Chosen(), l.All, l.ReadOnly, l.Profile == Compact:
		return true
	}
	return slices.Contains(firstSession, info.Tool)
}

// Offers reports whether the list's form lets an operation through at all, whichever its toolset.
func (l List) Offers(info op.Info) bool {
	return info.Tool != "" && (!l.ReadOnly || info.Hints.Has(op.Read)) && (l.Profile != ChatGPT || !matchesAny(notInChat, info.Name))
}

func matchesAny(patterns []string, name string) bool {
	return slices.ContainsFunc(patterns, func(p string) bool {
		prefix, open := strings.CutSuffix(p, "*")
		return p == name || open && strings.HasPrefix(name, prefix)
	})
}

// Place gives the tool that does an operation in this list, and the action of a tool that does several.
func (l List) Place(info op.Info) (tool, verb string) {
	if l.Profile != Compact {
		return info.Tool, info.Verb
	}
	if verb, ok := products[info.Name]; ok {
		return info.Toolset, verb
	}
	plural, verb, _ := strings.Cut(info.Name, ".")
	if plural == info.Toolset {
		return info.Toolset, verb
	}
	return info.Toolset, plural + "_" + verb
}

// Conceals reports whether the list takes a member, at whichever depth, out of the results of an operation.
func (l List) Conceals(operation, member string) bool {
	return l.Profile == ChatGPT && (slices.Contains(credentials, member) || slices.Contains(concealed[operation], member))
}
