package config

import (
	"fmt"
	"math"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"unicode"
)

// Key is one value of the configuration.
type Key struct {
	Path    string   // such as listen.port
	Env     string   // the variable that goes over the file
	Flag    string   // without dashes; it goes over the variable
	Type    string   // string, integer, number, boolean, list, map
	Default string   // as a person writes it; empty is none
	Shown   string   // what stands for an empty default
	Unit    string   // such as seconds
	Enum    []string // the values that it may have
	Keys    []string // of a map
	Min     float64
	Max     float64
	Bounded bool // by Min and Max
	Secret  bool // the value may hold a password
	Doc     string

	index []int // of the field
}

// Section is a group of keys.
type Section struct{ Path, Doc string }

// Keys lists every key in the order of the file.
func Keys() []Key {
	keys, _ := describe()
	return keys
}

// Sections lists the groups of keys in their order.
func Sections() []Section {
	_, sections := describe()
	return sections
}

func describe() (keys []Key, sections []Section) {
	var walk func(t reflect.Type, prefix string, index []int)
	walk = func(t reflect.Type, prefix string, index []int) {
		for i := range t.NumField() {
			f := t.Field(i)
			path := prefix + f.Tag.Get("json")
			at := append(slices.Clone(index), i)
			if f.Type.Kind() == reflect.Struct {
				sections = append(sections, Section{path, f.Tag.Get("doc")})
				walk(f.Type, path+".", at)
				continue
			}
			keys = append(keys, keyOf(f, path, at))
		}
	}
	walk(reflect.TypeFor[Config](), "", nil)
	return keys, sections
}

func keyOf(f reflect.StructField, path string, index []int) Key {
	k := Key{
		Path: path, Env: f.Tag.Get("env"), Flag: f.Tag.Get("flag"), Default: f.Tag.Get("default"), Shown: f.Tag.Get("shown"),
		Unit: f.Tag.Get("unit"), Secret: f.Tag.Get("secret") != "", Doc: f.Tag.Get("doc"), Min: math.Inf(-1), Max: math.Inf(1), index: index,
	}
	if k.Env == "" {
		k.Env = "BERTH_" + strings.ToUpper(spaced(path, '_'))
	}
	if k.Flag == "" {
		k.Flag = strings.ToLower(spaced(path, '-'))
	}
	if s := f.Tag.Get("enum"); s != "" {
		k.Enum = strings.Split(s, ",")
	}
	if s := f.Tag.Get("keys"); s != "" {
		k.Keys = strings.Split(s, ",")
	}
	bound := func(name string, to *float64) {
		if s := f.Tag.Get(name); s != "" {
			n, err := strconv.ParseFloat(s, 64)
			if err != nil {
				panic(fmt.Sprintf("config: bound %q of %s", s, path))
			}
			*to, k.Bounded = n, true
		}
	}
	bound("min", &k.Min)
	bound("max", &k.Max)
	switch f.Type.Kind() {
	case reflect.String:
		k.Type = "string"
	case reflect.Bool:
		k.Type = "boolean"
	case reflect.Int, reflect.Int64:
		k.Type = "integer"
	case reflect.Float64:
		k.Type = "number"
	case reflect.Slice:
		k.Type = "list"
	case reflect.Map:
		k.Type = "map"
	default:
		panic("config: " + path + " has a type that no key has")
	}
	return k
}

// spaced puts a separator where a new word begins: LISTEN_TRUSTED_PROXIES of listen.trustedProxies, memory-mib of memoryMiB.
func spaced(path string, sep rune) string {
	path = strings.NewReplacer("MiB", "Mib", "GiB", "Gib").Replace(path)
	var b strings.Builder
	lower := false
	for _, r := range path {
		switch {
		case r == '.':
			b.WriteRune(sep)
			lower = false
			continue
		case unicode.IsUpper(r) && lower:
			b.WriteRune(sep)
		}
		lower = !unicode.IsUpper(r)
		b.WriteRune(r)
	}
	return b.String()
}

// Takes says what a value of the key may be.
func (k *Key) Takes() string {
	switch {
	case len(k.Enum) > 0:
		return "one of " + strings.Join(k.Enum, ", ")
	case k.Type == "list":
		return "a list of texts"
	case k.Type == "map":
		return "a map of names to whole numbers"
	case k.Type == "boolean":
		return "true or false"
	case k.Type == "string":
		return "a text"
	}
	s := "a whole number"
	if k.Type == "number" {
		s = "a number"
	}
	if !math.IsInf(k.Min, 0) && !math.IsInf(k.Max, 0) {
		s += " from " + plainNumber(k.Min) + " to " + plainNumber(k.Max)
	}
	return s
}

func plainNumber(n float64) string { return strconv.FormatFloat(n, 'f', -1, 64) }

// field is the key's place in a configuration.
func (k *Key) field(c *Config) reflect.Value { return reflect.ValueOf(c).Elem().FieldByIndex(k.index) }

// Value gives the key's value in a configuration: a string, bool, int, float64, []string or map[string]int64.
func (k *Key) Value(c *Config) any { return k.field(c).Interface() }
