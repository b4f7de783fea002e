package op

import (
	"encoding/json"
	"fmt"
	"reflect"
	"strconv"
	"strings"
	"time"

	"github.com/berthrun/berth/internal/id"
)

// Schema is the part of JSON Schema 2020-12 that every client understands: no unions, no references, no null types.
type Schema struct {
	Type                 string             `json:"type,omitempty"`
	Description          string             `json:"description,omitempty"`
	Properties           map[string]*Schema `json:"properties,omitempty"`
	Required             []string           `json:"required,omitempty"`
	AdditionalProperties any                `json:"additionalProperties,omitempty"` // false, or the *Schema of a map's values
	Items                *Schema            `json:"items,omitempty"`
	Enum                 []string           `json:"enum,omitempty"`
	Pattern              string             `json:"pattern,omitempty"`
	Format               string             `json:"format,omitempty"`
	ContentEncoding      string             `json:"contentEncoding,omitempty"`
	Minimum              *float64           `json:"minimum,omitempty"`
	Maximum              *float64           `json:"maximum,omitempty"`
	MinLength            *int               `json:"minLength,omitempty"`
	MaxLength            *int               `json:"maxLength,omitempty"`
	MinItems             *int               `json:"minItems,omitempty"`
	MaxItems             *int               `json:"maxItems,omitempty"`
	MaxProperties        *int               `json:"maxProperties,omitempty"`
	Default              any                `json:"default,omitempty"`

	// Order is the order in which the properties were declared.
	Order []string `json:"-"`
	// Nullable marks an output member that may be null; its type is left open. Null is the type that it has otherwise.
	Nullable bool   `json:"-"`
	Null     string `json:"-"`
	// Secret marks an input member, or all values of one, that is never shown again: not to who approves the call either.
	Secret bool `json:"-"`
}

// Mode says whether objects refuse members that the schema does not name.
type Mode bool

// The modes: inputs are closed, outputs are open so that they can grow.
const (
	Closed Mode = true
	Open   Mode = false
)

// SchemaOf builds the schema of a struct type. Members without omitempty or omitzero are required. The tags are:
//
//	doc      description                      pattern  regular expression of a string
//	min max  of a number                      minlen maxlen  of a string, in characters
//	minitems maxitems  of an array            maxprops  of a map
//	enum     a,b,c (inputs only)              default  shown; applying it is the service's
//	id       an id of that kind: sets pattern (a list of ids: of each)
//	format   such as uri                      null  an output member that may be null
//	secret   an input member that is never shown again; of a map its values
//
// It panics on a type that has no portable schema: that is a programmer's error.
func SchemaOf[T any](m Mode) *Schema {
	return build(reflect.TypeFor[T](), m)
}

var (
	timeType = reflect.TypeFor[time.Time]()
	rawType  = reflect.TypeFor[json.RawMessage]()
)

func build(t reflect.Type, m Mode) *Schema {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	switch {
	case t == timeType:
		return &Schema{Type: "string", Format: "date-time"}
	case t == rawType, t.Kind() == reflect.Interface:
		return &Schema{}
	}
	switch t.Kind() {
	case reflect.String:
		return &Schema{Type: "string"}
	case reflect.Bool:
		return &Schema{Type: "boolean"}
	case reflect.Int, reflect.Int32, reflect.Int64:
		return &Schema{Type: "integer"}
	case reflect.Float64:
		return &Schema{Type: "number"}
	case reflect.Slice:
		if t.Elem().Kind() == reflect.Uint8 {
			return &Schema{Type: "string", ContentEncoding: "base64"}
		}
		return &Schema{Type: "array", Items: build(t.Elem(), m)}
	case reflect.Map:
		return &Schema{Type: "object", AdditionalProperties: build(t.Elem(), m)}
	case reflect.Struct:
		s := &Schema{Type: "object", Properties: map[string]*Schema{}}
		if m == Closed {
			s.AdditionalProperties = false
		}
		addFields(s, t, m)
		return s
	default:
		panic(fmt.Sprintf("op: %s has no portable schema", t))
	}
}

func addFields(s *Schema, t reflect.Type, m Mode) {
	for f := range t.Fields() {
		if f.Anonymous && f.Tag.Get("json") == "" {
			ft := f.Type
			for ft.Kind() == reflect.Pointer {
				ft = ft.Elem()
			}
			addFields(s, ft, m)
			continue
		}
		name, options, _ := strings.Cut(f.Tag.Get("json"), ",")
		if !f.IsExported() || name == "-" {
			continue
		}
		if name == "" {
			panic(fmt.Sprintf("op: %s.%s has no json name", t, f.Name))
		}
		p := build(f.Type, m)
		applyTags(p, f, m)
		if _, twice := s.Properties[name]; twice {
			panic(fmt.Sprintf("op: %s has %s twice", t, name))
		}
		s.Properties[name] = p
		s.Order = append(s.Order, name)
		if !strings.Contains(options, "omitempty") && !strings.Contains(options, "omitzero") {
			s.Required = append(s.Required, name)
		}
	}
}

func applyTags(p *Schema, f reflect.StructField, m Mode) {
	p.Description = f.Tag.Get("doc")
	target := p
	if p.Type == "array" {
		target = p.Items
	}
	if k := f.Tag.Get("id"); k != "" {
		target.Pattern = id.Pattern(id.Kind(k))
	}
	if v := f.Tag.Get("pattern"); v != "" {
		target.Pattern = v
	}
	if v := f.Tag.Get("enum"); v != "" && m == Closed {
		target.Enum = strings.Split(v, ",")
	}
	if v := f.Tag.Get("format"); v != "" {
		target.Format = v
	}
	target.Minimum, target.Maximum = number(f, "min"), number(f, "max")
	target.MinLength, target.MaxLength = integer(f, "minlen"), integer(f, "maxlen")
	p.MinItems, p.MaxItems, p.MaxProperties = integer(f, "minitems"), integer(f, "maxitems"), integer(f, "maxprops")
	if v := f.Tag.Get("default"); v != "" {
		p.Default = defaultOf(p.Type, v)
	}
	p.Secret = f.Tag.Get("secret") != ""
	if f.Tag.Get("null") != "" {
		p.Null, p.Type, p.Nullable = p.Type, "", true
	}
}

func number(f reflect.StructField, tag string) *float64 {
	v := f.Tag.Get(tag)
	if v == "" {
		return nil
	}
	n, err := strconv.ParseFloat(v, 64)
	if err != nil {
		panic(fmt.Sprintf("op: tag %s of %s: %v", tag, f.Name, err))
	}
	return &n
}

func integer(f reflect.StructField, tag string) *int {
	n := number(f, tag)
	if n == nil {
		return nil
	}
	i := int(*n)
	return &i
}

func defaultOf(kind, v string) any {
	switch kind {
	case "integer", "number":
		return json.Number(v)
	case "boolean":
		return v == "true"
	default:
		return v
	}
}

// fill gives a copy of an output in which nil slices and maps of required members are empty.
func fill(v any) any {
	rv := reflect.ValueOf(v)
	if !rv.IsValid() {
		return v
	}
	out := reflect.New(rv.Type()).Elem()
	out.Set(rv)
	fillValue(out)
	return out.Interface()
}

func fillValue(v reflect.Value) {
	switch v.Kind() {
	case reflect.Pointer:
		if !v.IsNil() && v.Elem().Kind() == reflect.Struct && v.Elem().Type() != timeType {
			c := reflect.New(v.Elem().Type())
			c.Elem().Set(v.Elem())
			fillValue(c.Elem())
			v.Set(c)
		}
	case reflect.Struct:
		if v.Type() == timeType {
			return
		}
		for i := range v.NumField() {
			if v.Type().Field(i).IsExported() {
				fillValue(v.Field(i))
			}
		}
	case reflect.Slice:
		if v.Type().Elem().Kind() == reflect.Uint8 {
			return
		}
		c := reflect.MakeSlice(v.Type(), v.Len(), v.Len())
		reflect.Copy(c, v)
		for i := range c.Len() {
			fillValue(c.Index(i))
		}
		v.Set(c)
	case reflect.Map:
		if v.IsNil() {
			v.Set(reflect.MakeMap(v.Type()))
		}
	}
}
