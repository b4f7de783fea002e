package op

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/berthrun/berth/internal/errs"
)

// maxOpenDepth bounds the nesting of values whose schema is open.
const maxOpenDepth = 32

func decodeInto[In any](s *Schema, raw []byte) (*In, error) {
	if err := Check(s, raw); err != nil {
		return nil, err
	}
	in := new(In)
	if len(bytes.TrimSpace(raw)) == 0 {
		return in, nil
	}
	if err := json.Unmarshal(raw, in); err != nil {
		return nil, invalid("", "cannot be read: %v", err)
	}
	return in, nil
}

// Check holds raw JSON against a schema that this package built. The first problem, in the order of the document, is an errs.InvalidInput whose
// details name its JSON path; members that are missing are named last. Duplicate members, members that differ from a known one only in case,
// trailing data and invalid UTF-8 are problems too. No bytes at all count as an empty object.
func Check(s *Schema, raw []byte) error {
	if len(bytes.TrimSpace(raw)) == 0 {
		raw = []byte("{}")
	}
	if !utf8.Valid(raw) {
		return invalid("", "is not valid UTF-8")
	}
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.UseNumber()
	if err := checkValue(dec, s, "", 0); err != nil {
		return err
	}
	if _, err := dec.Token(); err != io.EOF {
		return invalid("", "has more after the first JSON value")
	}
	return nil
}

func invalid(path, format string, args ...any) *errs.Error {
	shown := path
	if shown == "" {
		shown = "the input"
	}
	return errs.E(errs.InvalidInput, "%s %s", shown, fmt.Sprintf(format, args...)).
		Suggest("Correct the argument and call again.").With("path", path)
}

func checkValue(dec *json.Decoder, s *Schema, path string, depth int) error {
	tok, err := dec.Token()
	if err != nil {
		return invalid(path, "is not valid JSON")
	}
	switch t := tok.(type) {
	case json.Delim:
		if t == '{' {
			return checkObject(dec, s, path, depth)
		}
		return checkArray(dec, s, path, depth)
	case string:
		return checkString(s, path, t)
	case json.Number:
		return checkNumber(s, path, t)
	case bool:
		return want(s, "boolean", path)
	default:
		if s.Type == "" {
			return nil
		}
		return invalid(path, "must not be null; leave it out instead")
	}
}

func want(s *Schema, got, path string) error {
	if s.Type == "" || s.Type == got {
		return nil
	}
	return invalid(path, "must be %s, not %s", article(s.Type), article(got))
}

func article(kind string) string {
	if strings.ContainsRune("aeiou", rune(kind[0])) {
		return "an " + kind
	}
	return "a " + kind
}

func checkObject(dec *json.Decoder, s *Schema, path string, depth int) error {
	if err := want(s, "object", path); err != nil {
		return err
	}
	if depth > maxOpenDepth {
		return invalid(path, "is nested too deeply")
	}
	seen := map[string]bool{}
	for dec.More() {
		tok, err := dec.Token()
		if err != nil {
			return invalid(path, "is not valid JSON")
		}
		name := tok.(string)
		at := join(path, name)
		if seen[name] {
			return invalid(at, "is given twice")
		}
		seen[name] = true
		member, err := memberSchema(s, name, at)
		if err != nil {
			return err
		}
		if err := checkValue(dec, member, at, depth+1); err != nil {
			return err
		}
	}
	if _, err := dec.Token(); err != nil {
		return invalid(path, "is not valid JSON")
	}
	if s.MaxProperties != nil && len(seen) > *s.MaxProperties {
		return invalid(path, "must have at most %d members", *s.MaxProperties)
	}
	for _, name := range s.Required {
		if !seen[name] {
			return invalid(join(path, name), "is required")
		}
	}
	return nil
}

func memberSchema(s *Schema, name, at string) (*Schema, error) {
	if p, ok := s.Properties[name]; ok {
		return p, nil
	}
	switch extra := s.AdditionalProperties.(type) {
	case *Schema:
		return extra, nil
	case nil:
		return &Schema{}, nil
	}
	for known := range s.Properties {
		if strings.EqualFold(known, name) {
			return nil, invalid(at, "is not known; it is spelled %s", known)
		}
	}
	return nil, invalid(at, "is not known; known are: %s", strings.Join(s.Order, ", "))
}

func checkArray(dec *json.Decoder, s *Schema, path string, depth int) error {
	if err := want(s, "array", path); err != nil {
		return err
	}
	if depth > maxOpenDepth {
		return invalid(path, "is nested too deeply")
	}
	items := s.Items
	if items == nil {
		items = &Schema{}
	}
	n := 0
	for ; dec.More(); n++ {
		if err := checkValue(dec, items, path+"["+strconv.Itoa(n)+"]", depth+1); err != nil {
			return err
		}
	}
	if _, err := dec.Token(); err != nil {
		return invalid(path, "is not valid JSON")
	}
	if s.MinItems != nil && n < *s.MinItems {
		return invalid(path, "must have at least %d items", *s.MinItems)
	}
	if s.MaxItems != nil && n > *s.MaxItems {
		return invalid(path, "must have at most %d items", *s.MaxItems)
	}
	return nil
}

var patterns sync.Map // of compiled expressions: schemas are built from tags, so they are few

// longestName is where content begins: what is at most so long is a name, which a database must be able to hold.
const longestName = 8192

func checkString(s *Schema, path, v string) error {
	if err := want(s, "string", path); err != nil {
		return err
	}
	if s.MinLength != nil && utf8.RuneCountInString(v) < *s.MinLength {
		return invalid(path, "must have at least %d characters", *s.MinLength)
	}
	if (s.MaxLength == nil || *s.MaxLength <= longestName) && strings.ContainsRune(v, 0) {
		return invalid(path, "must not hold NUL")
	}
	if s.MaxLength != nil && utf8.RuneCountInString(v) > *s.MaxLength {
		return invalid(path, "must have at most %d characters", *s.MaxLength)
	}
	if len(s.Enum) > 0 && !slices.Contains(s.Enum, v) {
		return invalid(path, "must be one of: %s", strings.Join(s.Enum, ", "))
	}
	if s.Pattern != "" {
		re, ok := patterns.Load(s.Pattern)
		if !ok {
			re, _ = patterns.LoadOrStore(s.Pattern, regexp.MustCompile(s.Pattern))
		}
		if !re.(*regexp.Regexp).MatchString(v) {
			e := invalid(path, "%s", form(s.Pattern))
			if idPrefix(s.Pattern) != "" {
				return e.Suggest("A name is no id: the list of such things shows their ids.")
			}
			return e
		}
	}
	if s.Format == "date-time" {
		if _, err := time.Parse(time.RFC3339Nano, v); err != nil {
			return invalid(path, "must be a time such as 2026-01-02T15:04:05Z")
		}
	}
	return nil
}

// maxSafe is the largest integer that every JSON reader keeps exactly.
const maxSafe = 1 << 53

func checkNumber(s *Schema, path string, v json.Number) error {
	if s.Type == "integer" {
		n, err := v.Int64()
		if err != nil || n > maxSafe || n < -maxSafe {
			return invalid(path, "must be a whole number")
		}
	} else if err := want(s, "number", path); err != nil {
		return err
	}
	n, err := v.Float64()
	if err != nil || math.IsInf(n, 0) {
		return invalid(path, "must be a finite number")
	}
	if s.Minimum != nil && n < *s.Minimum {
		return invalid(path, "must be at least %s", figure(*s.Minimum))
	}
	if s.Maximum != nil && n > *s.Maximum {
		return invalid(path, "must be at most %s", figure(*s.Maximum))
	}
	return nil
}

// join makes the path of a member. A name from outside is cut and quoted so that a message stays one short line.
func join(path, name string) string {
	if len(name) > 64 {
		name = name[:64] + "…"
	}
	if strings.ContainsFunc(name, func(r rune) bool { return r < 0x20 || r == 0x7f || r == '.' || r == utf8.RuneError }) {
		name = strconv.Quote(name)
	}
	if path == "" {
		return name
	}
	return path + "." + name
}
