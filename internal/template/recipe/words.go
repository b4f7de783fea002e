package recipe

import (
	"maps"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/moby/buildkit/frontend/dockerfile/shell"

	"github.com/berthrun/berth/internal/errs"
)

// What words may grow to by their variables: a value that doubles itself a few dozen times would be all of the memory.
const (
	maxWord   = 128 << 10 // bytes: of one argument, Linux takes no more
	maxInline = 4 << 20   // bytes of a heredoc's file
	maxConfig = 512 << 10 // bytes of a stage's environment and labels, and of its arguments
	maxNames  = 2000      // of them
)

// replaces is ${name/pattern/text}, whose result may be as long as the value times the text.
var replaces = regexp.MustCompile(`\$\{\w+//?`)

// process replaces the variables of a word.
func process(lex *shell.Lex, word string, env shell.EnvGetter) (string, error) {
	return replace(lex, word, env, maxWord)
}

func replace(lex *shell.Lex, word string, env shell.EnvGetter, limit int) (string, error) {
	if strings.ContainsRune(word, 0) || !utf8.ValidString(word) {
		return "", errs.E(errs.InvalidInput, "a word is no text in UTF-8").Suggest("Write such bytes into a file, and COPY it.")
	}
	m := &meter{EnvGetter: env, left: limit}
	if replaces.MatchString(word) {
		m.left = 4 << 10
		if len(word) > 4<<10 {
			return "", tooLong()
		}
	}
	out, _, err := lex.ProcessWord(word, m)
	switch {
	case m.left < 0 || (len(out) > limit && len(out) > len(word)):
		return "", tooLong()
	case err != nil:
		return "", errs.E(errs.InvalidInput, "%v", err).Suggest("Correct what follows the dollar sign, or put a backslash before it.")
	}
	return out, nil
}

func tooLong() error {
	return errs.E(errs.InvalidInput, "a word is too long once its variables are replaced").Suggest("Keep values below %d KiB; write longer ones into a file.", maxWord>>10)
}

// meter gives no more than so many bytes of values out.
type meter struct {
	shell.EnvGetter
	left int
}

// Get implements shell.EnvGetter.
func (m *meter) Get(name string) (string, bool) {
	v, ok := m.EnvGetter.Get(name)
	if m.left -= len(v); m.left < 0 {
		return "", ok
	}
	return v, ok
}

// scope is what a step's variables are looked up in: the environment before arguments.
type scope struct{ w *Walk }

// Get implements shell.EnvGetter.
func (s scope) Get(name string) (string, bool) {
	if v, ok := s.w.config.Lookup(name); ok {
		return v, true
	}
	v, ok := s.w.args[name]
	return v, ok
}

// Keys implements shell.EnvGetter.
func (s scope) Keys() []string {
	keys := slices.Collect(maps.Keys(s.w.args))
	for _, e := range s.w.config.Env {
		k, _, _ := strings.Cut(e, "=")
		keys = append(keys, k)
	}
	return keys
}
