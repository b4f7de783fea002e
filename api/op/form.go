package op

import (
	"strconv"
	"strings"
)

// forms says in words what a pattern asks for. An id's form follows from its pattern; a pattern that is not here is shown itself.
var forms = map[string]string{
	`^[a-z0-9][a-z0-9._-]{0,62}$`:                                      "must have 1 to 63 of a-z, 0-9, dot, _ and -, and begin with a letter or digit",
	`^([a-z0-9][a-z0-9._-]{0,62})?$`:                                   "must be empty, or have 1 to 63 of a-z, 0-9, dot, _ and -, and begin with a letter or digit",
	`^[a-z0-9][a-z0-9._-]{0,62}(:[A-Za-z0-9_][A-Za-z0-9._-]{0,127})?$`: "must be a name of a-z, 0-9, dot, _ and -, which may have a tag: name or name:tag",
	`^[A-Za-z0-9._:-]{1,128}$`:                                         "must have 1 to 128 of A-Z, a-z, 0-9, dot, _, : and -",
	`^[a-zA-Z0-9][a-zA-Z0-9._:-]{0,127}$`:                              "must be a template's name or id",
	`^[A-Za-z0-9_][A-Za-z0-9._-]{0,127}$`:                              "must be a tag such as 12 or latest",
	`^[A-Za-z0-9_][A-Za-z0-9_.-]{0,31}$`:                               "must be a user's name",
	`^[A-Za-z0-9_][A-Za-z0-9_.:-]{0,63}$`:                              "must be a user's name or number, such as root or 1000:1000",
	`^[0-9a-f]{64}$`:                                                   "must be a SHA-256 sum: 64 of 0-9 and a-f",
	`^0?[0-7]{3,4}$`:                                                   "must be an octal mode such as 0644",
	`^[0-9]{1,6}(s|m|h|d)$`:                                            "must be a number with a unit, such as 90s, 30m, 8h or 3d",
	`^([0-9]{1,6}(s|m|h|d)|never)$`:                                    "must be a number with a unit, such as 30m, 8h or 3d, or never",
	`^(read|write|admin|[a-z]+:([a-zA-Z]+|\*)(:([a-zA-Z]+|\*))?)$`:     "must be read, write, admin, or a pattern of actions such as compute:sandboxes:*",
}

// idTail ends the pattern of every id.
const idTail = "_[a-z0-9]{20}$"

// idPrefix gives the kind of thing whose ids a pattern takes, and "" for another pattern.
func idPrefix(pattern string) string {
	begin, ok := strings.CutSuffix(pattern, idTail)
	if !ok || !strings.HasPrefix(begin, "^") || strings.ContainsAny(begin, `[(\`) {
		return ""
	}
	return begin[1:]
}

// form says what a pattern asks for, as the rest of a sentence about the value.
func form(pattern string) string {
	if kind := idPrefix(pattern); kind != "" {
		return "must be an id: " + kind + "_ and 20 characters of a-z and 0-9"
	}
	if words := forms[pattern]; words != "" {
		return words
	}
	return "must match " + pattern
}

// figure writes a number as a person does, without an exponent.
func figure(n float64) string { return strconv.FormatFloat(n, 'f', -1, 64) }
