package cli

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/berthrun/berth/api/op"
)

// flag is one member of an input as a flag: a scalar, or an array of scalars or a map of strings by repetition.
type flag struct {
	path   []string
	schema *op.Schema
	given  []string
}

// Set implements pflag.Value.
func (f *flag) Set(v string) error {
	if err := isText(v); err != nil {
		return err
	}
	switch f.schema.Type {
	case "array", "object":
		f.given = append(f.given, v)
	default:
		f.given = []string{v}
	}
	_, err := f.value()
	return err
}

// String implements pflag.Value.
func (f *flag) String() string { return strings.Join(f.given, ",") }

// Type implements pflag.Value; help shows it as what the flag takes.
func (f *flag) Type() string { return kindOf(f.path[len(f.path)-1], f.schema) }

func (f *flag) value() (any, error) {
	switch f.schema.Type {
	case "array":
		items := make([]any, len(f.given))
		for i, v := range f.given {
			item, err := item(f.schema.Items, v)
			if err != nil {
				return nil, err
			}
			items[i] = item
		}
		return items, nil
	case "object":
		members := make(map[string]any, len(f.given))
		for _, pair := range f.given {
			key, v, ok := strings.Cut(pair, "=")
			if !ok || key == "" {
				return nil, fmt.Errorf("must be KEY=VALUE")
			}
			members[key] = v
		}
		return members, nil
	}
	v, err := scalar(f.schema, f.given[0])
	if unit := f.Type(); err != nil && f.schema.Type == "integer" && unit != "number" {
		err = fmt.Errorf("%w of %s", err, unit)
	}
	return v, err
}

// item reads one value of a list.
func item(s *op.Schema, v string) (any, error) {
	if mounts(s) {
		return mount(v)
	}
	return scalar(s, v)
}

// mounts reports whether an object says where a volume is mounted.
func mounts(s *op.Schema) bool {
	return s.Properties["volume"] != nil && s.Properties["readOnly"] != nil
}

// mount reads NAME[:PATH][:ro], as other tools write a mount.
func mount(v string) (any, error) {
	rest, readOnly := strings.CutSuffix(v, ":ro")
	name, path, _ := strings.Cut(rest, ":")
	if name == "" || strings.Contains(path, ":") {
		return nil, fmt.Errorf("must be NAME[:PATH][:ro]")
	}
	m := map[string]any{"volume": name}
	if path != "" {
		m["path"] = path
	}
	if readOnly {
		m["readOnly"] = true
	}
	return m, nil
}

func scalar(s *op.Schema, v string) (any, error) {
	switch s.Type {
	case "integer":
		n, err := strconv.ParseInt(v, 10, 64)
		if err != nil {
			return nil, fmt.Errorf("must be a whole number")
		}
		return n, nil
	case "number":
		n, err := strconv.ParseFloat(v, 64)
		if err != nil || n != n || n-n != 0 {
			return nil, fmt.Errorf("must be a number")
		}
		return n, nil
	case "boolean":
		b, err := strconv.ParseBool(v)
		if err != nil {
			return nil, fmt.Errorf("must be true or false")
		}
		return b, nil
	case "":
		if json.Valid([]byte(v)) {
			return json.RawMessage(v), nil
		}
	}
	return v, nil
}

// inputs are the flags of one command.
type inputs struct {
	list    []*flag
	file    string
	letters map[string]string // short flags of this command alone
}

// letters are the short flags of commands that run something, as other tools have them.
var letters = map[string]string{"env": "e", "user": "u", "cwd": "w"}

// addFlags gives a command a flag for every member of its input that a flag can express and that is not taken otherwise.
func (in *inputs) addFlags(cmd *cobra.Command, s *op.Schema, taken []string) {
	in.add(cmd, s, nil, taken)
	cmd.Flags().StringVar(&in.file, "input", "", "`file` with the whole input as JSON, - for standard input; flags and arguments go over it")
}

func (in *inputs) add(cmd *cobra.Command, s *op.Schema, prefix, taken []string) {
	for _, name := range s.Order {
		p := s.Properties[name]
		path := append(slices.Clone(prefix), name)
		switch {
		case len(prefix) == 0 && slices.Contains(taken, name):
			continue
		case p.Type == "object" && len(p.Properties) > 0:
			in.add(cmd, p, path, nil)
			continue
		case p.Type == "array" && (p.Items.Type == "object" && !mounts(p.Items) || p.Items.Type == "array"), p.Type == "object" && !ofStrings(p):
			continue // only by --input
		}
		f := &flag{path: path, schema: p}
		in.list = append(in.list, f)
		letter := in.letters[flagName(path)]
		if runs := s.Properties["argv"] != nil; runs {
			letter = letters[flagName(path)]
		}
		added := cmd.Flags().VarPF(f, flagName(path), letter, usage(path, p))
		if p.Type == "boolean" {
			added.NoOptDefVal = "true"
		}
		if values := enumOf(p); len(values) > 0 {
			// It fails only for a flag that does not exist.
			_ = cmd.RegisterFlagCompletionFunc(flagName(path), cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp))
		}
	}
}

func ofStrings(p *op.Schema) bool {
	values, ok := p.AdditionalProperties.(*op.Schema)
	return ok && values.Type == "string"
}

func flagName(path []string) string {
	names := make([]string, len(path))
	for i, p := range path {
		names[i] = kebab(p)
	}
	return strings.Join(names, ".")
}

func enumOf(p *op.Schema) []string {
	if p.Type == "array" {
		return p.Items.Enum
	}
	return p.Enum
}

// usage is a flag's help: what it means, what it takes, its default.
func usage(path []string, p *op.Schema) string {
	var parts []string
	if words := first(p.Description, meanings[path[len(path)-1]]); words != "" {
		parts = append(parts, strings.ReplaceAll(words, "`", "'"))
	}
	if values := enumOf(p); len(values) > 0 {
		parts = append(parts, "One of: "+strings.Join(values, ", ")+".")
	}
	switch {
	case p.Minimum != nil && p.Maximum != nil:
		parts = append(parts, fmt.Sprintf("%s to %s.", number(*p.Minimum), number(*p.Maximum)))
	case p.Minimum != nil:
		parts = append(parts, fmt.Sprintf("At least %s.", number(*p.Minimum)))
	}
	if p.Default != nil {
		parts = append(parts, fmt.Sprintf("Default: %v.", p.Default))
	}
	if p.Type == "boolean" && (p.Default == true || path[0] == "autoWake" || path[0] == "wakeOnTimers") {
		parts = append(parts, "--"+flagName(path)+"=false turns it off.")
	}
	if p.Type == "array" || p.Type == "object" {
		parts = append(parts, "Can be repeated.")
	}
	return strings.Join(parts, " ")
}

func number(n float64) string { return strconv.FormatFloat(n, 'f', -1, 64) }

// base reads --input: an object whose numbers stay as they are written.
func (in *inputs) base(stdin io.Reader) (map[string]any, error) {
	if in.file == "" {
		return map[string]any{}, nil
	}
	raw, err := readAll(in.file, stdin)
	if err != nil {
		return nil, err
	}
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.UseNumber()
	if !utf8.Valid(raw) {
		return nil, usagef("--input is no text in UTF-8")
	}
	var members map[string]any
	if err := dec.Decode(&members); err != nil || members == nil || dec.More() {
		return nil, usagef("--input is not one JSON object")
	}
	return members, nil
}

// put sets the members whose flags were given.
func (in *inputs) put(flags *pflag.FlagSet, members map[string]any) error {
	for _, f := range in.list {
		if !flags.Changed(flagName(f.path)) {
			continue
		}
		v, err := f.value()
		if err != nil {
			return usagef("--%s %v", flagName(f.path), err)
		}
		at := members
		for _, name := range f.path[:len(f.path)-1] {
			inner, ok := at[name].(map[string]any)
			if !ok {
				inner = map[string]any{}
				at[name] = inner
			}
			at = inner
		}
		at[f.path[len(f.path)-1]] = v
	}
	return nil
}

// readAll reads a file, or standard input for -.
func readAll(name string, stdin io.Reader) ([]byte, error) {
	if name == "-" {
		b, err := io.ReadAll(stdin)
		if err != nil {
			return nil, fmt.Errorf("read standard input: %w", err)
		}
		return b, nil
	}
	return os.ReadFile(name)
}
