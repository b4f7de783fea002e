package config

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"sigs.k8s.io/yaml"
)

// maxFile is the most bytes of a file that are read.
const maxFile = 1 << 20

// file is a configuration file that was read: the values of its keys by their paths.
type file struct {
	name   string
	text   []byte
	values map[string]any
}

// where names the place of a key in the file, with its line where that can be told.
func (f *file) where(path string) string {
	if n := lineOf(f.text, path); n > 0 {
		return f.name + ":" + strconv.Itoa(n)
	}
	return f.name
}

// decode reads a file: one document with keys that there are, each once and written as it is. Values are checked when they are set.
func decode(name string, text []byte) (*file, []problem) {
	f := &file{name: name, text: text, values: map[string]any{}}
	if len(text) > maxFile {
		return f, []problem{{where: name, text: fmt.Sprintf("the file is larger than %d bytes", maxFile)}}
	}
	if n := secondDocument(text); n > 0 {
		return f, []problem{{where: fmt.Sprintf("%s:%d", name, n), text: "a second document begins here, and only one is read"}}
	}
	raw, err := yaml.YAMLToJSONStrict(text)
	if err != nil {
		return f, []problem{{where: name, text: yamlMessage(err)}}
	}
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.UseNumber()
	var top any
	if err := dec.Decode(&top); err != nil {
		return f, []problem{{where: name, text: "it cannot be read as a configuration"}}
	}
	if top == nil {
		return f, nil // an empty file, or one of comments
	}
	members, ok := top.(map[string]any)
	if !ok {
		return f, []problem{{where: name, text: "the file is not a map of keys"}}
	}
	return f, f.collect(members)
}

// collect takes the values of known keys and says what is wrong with the others.
func (f *file) collect(members map[string]any) (problems []problem) {
	keys, sections := describe()
	known, groups := map[string]bool{}, map[string]bool{}
	for _, k := range keys {
		known[k.Path] = true
	}
	for _, s := range sections {
		groups[s.Path] = true
	}
	var walk func(prefix string, members map[string]any)
	walk = func(prefix string, members map[string]any) {
		for _, name := range slices.Sorted(maps.Keys(members)) {
			path, v := prefix+name, members[name]
			inner, isMap := v.(map[string]any)
			switch {
			case known[path] && v == nil, groups[path] && v == nil: // named without a value: the default
			case known[path]:
				f.values[path] = v
			case groups[path] && isMap:
				walk(path+".", inner)
			case groups[path]:
				problems = append(problems, problem{path, f.where(path), "must be a map of keys, not " + shown(v)})
			default:
				problems = append(problems, problem{clipped(path), f.where(path), "there is no such key" + hint(f.meant(path, name, keys, sections))})
			}
		}
	}
	walk("", members)
	return problems
}

// meant gives the key that an unknown one was probably meant to be: one of the same level, else one of the same name elsewhere.
func (f *file) meant(path, name string, keys []Key, sections []Section) string {
	prefix := strings.TrimSuffix(path, name)
	var same, all []string
	for _, k := range keys {
		all = append(all, k.Path)
	}
	for _, s := range sections {
		all = append(all, s.Path)
	}
	for _, p := range all {
		if rest, ok := strings.CutPrefix(p, prefix); ok && !strings.Contains(rest, ".") {
			same = append(same, p)
		}
	}
	if near := nearest(path, same); near != "" {
		return near
	}
	for _, p := range all {
		if last := p[strings.LastIndexByte(p, '.')+1:]; strings.EqualFold(last, name) || strings.EqualFold(spaced(last, '_'), name) {
			return p
		}
	}
	return nearest(path, all)
}

var yamlLine = regexp.MustCompile(`line (\d+): (.*)`)

// yamlMessage makes one line of what the YAML reader says.
func yamlMessage(err error) string {
	text := strings.Join(strings.Fields(err.Error()), " ")
	for _, prefix := range []string{"error converting YAML to JSON: ", "yaml: ", "unmarshal errors: "} {
		text = strings.TrimPrefix(text, prefix)
	}
	if m := yamlLine.FindStringSubmatch(text); m != nil {
		rest := strings.ReplaceAll(m[2], "already set in map", "is there twice")
		return "line " + m[1] + ": " + clippedTo(rest, 200)
	}
	return clippedTo(text, 200)
}

func clippedTo(s string, most int) string {
	if r := []rune(s); len(r) > most {
		return string(r[:most-1]) + "…"
	}
	return s
}

// secondDocument gives the line in which a second document begins, 0 where there is none.
func secondDocument(text []byte) int {
	content := false
	for i, line := range strings.Split(string(text), "\n") {
		if (line == "---" || strings.HasPrefix(line, "--- ") || line == "---\r") && content {
			return i + 1
		}
		if t := strings.TrimSpace(line); t != "" && !strings.HasPrefix(t, "#") && !strings.HasPrefix(t, "%") {
			content = true
		}
	}
	return 0
}

var keyLine = regexp.MustCompile(`^( *)["']?([A-Za-z0-9_.-]+)["']?\s*:(\s|$)`)

// lineOf finds the line of a key by its indentation, 0 where the file is written in another style.
func lineOf(text []byte, path string) int {
	type level struct {
		indent int
		path   string
	}
	var open []level
	for i, line := range strings.Split(string(text), "\n") {
		m := keyLine.FindStringSubmatch(strings.TrimSuffix(line, "\r"))
		if m == nil {
			continue
		}
		for len(open) > 0 && open[len(open)-1].indent >= len(m[1]) {
			open = open[:len(open)-1]
		}
		at := m[2]
		if len(open) > 0 {
			at = open[len(open)-1].path + "." + at
		}
		if at == path {
			return i + 1
		}
		open = append(open, level{len(m[1]), at})
	}
	return 0
}
