package config

import (
	"encoding/json"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strconv"
	"strings"
)

// set puts a decoded value of the file into the configuration; what is said of a wrong one never repeats a secret.
func (k *Key) set(c *Config, v any) error {
	f := k.field(c)
	switch k.Type {
	case "string":
		s, ok := v.(string)
		if !ok {
			return k.wrong(v)
		}
		return k.setText(f, s)
	case "boolean":
		b, ok := v.(bool)
		if !ok {
			return k.wrong(v)
		}
		f.SetBool(b)
		return nil
	case "integer", "number":
		n, ok := v.(json.Number)
		if !ok {
			return k.wrong(v)
		}
		return k.setNumber(f, n.String())
	case "list":
		return k.setList(f, v)
	}
	return k.setMap(f, v)
}

func (k *Key) setText(f reflect.Value, s string) error {
	if len(k.Enum) > 0 && s != "" && !slices.Contains(k.Enum, s) {
		return k.wrong(s)
	}
	if strings.ContainsFunc(s, func(r rune) bool { return r < 0x20 || r == 0x7f }) {
		return fmt.Errorf("must not have control characters")
	}
	f.SetString(s)
	return nil
}

func (k *Key) setNumber(f reflect.Value, s string) error {
	n, err := strconv.ParseFloat(s, 64)
	if err != nil || math.IsNaN(n) || n < k.Min || n > k.Max {
		return k.wrong(s)
	}
	if k.Type == "number" {
		f.SetFloat(n)
		return nil
	}
	i, err := strconv.ParseInt(s, 10, 64)
	if err != nil {
		return k.wrong(s)
	}
	f.SetInt(i)
	return nil
}

func (k *Key) setList(f reflect.Value, v any) error {
	items, ok := v.([]any)
	if !ok {
		return k.wrong(v)
	}
	list := make([]string, 0, len(items))
	for i, item := range items {
		s, ok := item.(string)
		if !ok || s == "" {
			return fmt.Errorf("item %d must be a text", i+1)
		}
		list = append(list, s)
	}
	f.Set(reflect.ValueOf(list))
	return nil
}

func (k *Key) setMap(f reflect.Value, v any) error {
	members, ok := v.(map[string]any)
	if !ok {
		return k.wrong(v)
	}
	all := make(map[string]int64, len(members))
	for name, m := range members {
		if !slices.Contains(k.Keys, name) {
			return fmt.Errorf("%q is no name here%s", clipped(name), hint(nearest(name, k.Keys)))
		}
		n, ok := m.(json.Number)
		if !ok {
			return fmt.Errorf("%s must be a whole number", name)
		}
		i, err := strconv.ParseInt(n.String(), 10, 64)
		if err != nil || float64(i) < k.Min || float64(i) > k.Max {
			return fmt.Errorf("%s must be a whole number of at least %s, not %s", name, plainNumber(k.Min), clipped(n.String()))
		}
		all[name] = i
	}
	f.Set(reflect.ValueOf(all))
	return nil
}

// parse reads the values of a flag or a variable, which are texts, into the configuration.
func (k *Key) parse(c *Config, texts []string) error {
	last := texts[len(texts)-1]
	switch k.Type {
	case "boolean":
		b, err := strconv.ParseBool(last)
		if err != nil {
			return k.wrong(last)
		}
		return k.set(c, b)
	case "integer", "number":
		return k.set(c, json.Number(strings.TrimSpace(last)))
	case "list":
		items := []any{}
		for _, t := range texts {
			for part := range strings.SplitSeq(t, ",") {
				if part = strings.TrimSpace(part); part != "" {
					items = append(items, part)
				}
			}
		}
		return k.set(c, items)
	case "map":
		members := map[string]any{}
		for _, t := range texts {
			for pair := range strings.SplitSeq(t, ",") {
				if strings.TrimSpace(pair) == "" {
					continue
				}
				name, n, ok := strings.Cut(pair, "=")
				if !ok {
					return fmt.Errorf("%q is not of the form key=value", clipped(pair))
				}
				members[strings.TrimSpace(name)] = json.Number(strings.TrimSpace(n))
			}
		}
		return k.set(c, members)
	}
	return k.set(c, last)
}

// wrong says what a key takes and what it was given.
func (k *Key) wrong(got any) error {
	if k.Secret {
		return fmt.Errorf("must be %s", k.Takes())
	}
	if s, ok := got.(string); ok && (k.Type == "integer" || k.Type == "number") && numeric(s) {
		got = json.Number(s)
	}
	return fmt.Errorf("must be %s, not %s", k.Takes(), shown(got))
}

func numeric(s string) bool {
	_, err := strconv.ParseFloat(s, 64)
	return err == nil
}

func shown(v any) string {
	switch v := v.(type) {
	case nil:
		return "nothing"
	case string:
		return strconv.Quote(clipped(v))
	case []any:
		return "a list"
	case map[string]any:
		return "a map"
	}
	return clipped(fmt.Sprint(v))
}

// clipped keeps a message short whatever stands in the file.
func clipped(s string) string {
	if r := []rune(s); len(r) > 60 {
		return string(r[:59]) + "…"
	}
	return s
}

// nearest gives the name that somebody probably meant, or nothing.
func nearest(name string, names []string) string {
	best, at := "", 4
	for _, n := range names {
		d := distance(strings.ToLower(name), strings.ToLower(n))
		if d < at && d*2 <= max(len(n), 2) {
			best, at = n, d
		}
	}
	return best
}

// distance counts the letters to change, add or take away between two words.
func distance(a, b string) int {
	if len(a) > 64 || len(b) > 64 {
		return 64
	}
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		before := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := before
			if a[i] != b[j] {
				cost++
			}
			before = row[j+1]
			row[j+1] = min(cost, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}

func hint(near string) string {
	if near == "" {
		return ""
	}
	return "; did you mean " + near + "?"
}
