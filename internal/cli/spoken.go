package cli

import (
	"regexp"
	"strings"

	"github.com/berthrun/berth/api"
)

var toolWord = regexp.MustCompile(`\b[a-z]+(?:_[a-z]+)+\b`)

// commandsFor puts commands in place of the tools that a suggestion names: servers suggest what agents call.
func commandsFor(suggestion string) string {
	return toolWord.ReplaceAllStringFunc(suggestion, func(tool string) string {
		for _, info := range api.All() {
			if info.Tool == tool && info.Verb == "" {
				group, verb, _ := strings.Cut(info.Name, ".")
				return "berth " + kebab(group) + " " + kebab(verb)
			}
		}
		return tool
	})
}

// lines is plain of a text that may have several lines; those after the first stand further in, so that none passes for another message.
func lines(s string) string {
	all := strings.Split(strings.TrimRight(s, "\n"), "\n")
	for i, line := range all {
		all[i] = plain(strings.TrimSuffix(line, "\r"))
	}
	return strings.Join(all, "\n    ")
}
