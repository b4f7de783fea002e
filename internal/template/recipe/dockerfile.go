package recipe

import (
	"errors"
	"maps"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/moby/buildkit/frontend/dockerfile/instructions"
	"github.com/moby/buildkit/frontend/dockerfile/parser"
	"github.com/moby/buildkit/frontend/dockerfile/shell"

	"github.com/berthrun/berth/internal/errs"
)

// Limits of a recipe.
const (
	MaxText   = 1 << 20 // bytes of a Dockerfile
	MaxSteps  = 1000    // of all stages
	MaxStages = 100

	maxWarnings = 100
)

// Options are what a Dockerfile is read with.
type Options struct {
	Target string            // the stage that the template becomes, by name or number; "" is the last
	Args   map[string]string // build arguments
	Arch   string            // as Go names it; "" is that of this program
}

// TemplatePrefix stands in a FROM before a template's id or name: FROM template://base.
const TemplatePrefix = "template://"

// standard are the frontends whose language this reads.
var standard = regexp.MustCompile(`^(docker\.io/)?docker/dockerfile(-upstream)?(:[\w.-]+)?(@[\w:.+-]+)?$`)

// Parse reads a Dockerfile. Errors are errs.InvalidInput, name the line, and say for what is not supported what to write in its place.
func Parse(text string, o Options) (*Recipe, error) {
	if len(text) > MaxText {
		return nil, errs.E(errs.InvalidInput, "a Dockerfile has at most %d KiB", MaxText>>10)
	}
	if strings.ContainsRune(text, 0) || !utf8.ValidString(text) {
		return nil, errs.E(errs.InvalidInput, "the Dockerfile is no text in UTF-8").Suggest("Save it as UTF-8.")
	}
	if syntax, _, loc, ok := parser.DetectSyntax([]byte(text)); ok && !standard.MatchString(syntax) {
		return nil, place("line", first(loc), errs.E(errs.InvalidInput, "# syntax=%s is not supported", syntax).
			Suggest("Leave the line out: the language of docker/dockerfile:1 is what is read here."))
	}
	ast, err := parser.Parse(strings.NewReader(text))
	if err != nil {
		return nil, unreadable(0, err)
	}
	r := &reading{
		Recipe: &Recipe{given: maps.Clone(o.Args), globals: platform(o.Arch), escape: ast.EscapeToken},
		names:  map[string]int{}, asked: map[string]bool{},
	}
	for _, w := range ast.Warnings {
		if w.Location != nil {
			r.warn(w.Location.Start.Line, "%s", w.Short)
		}
	}
	for _, n := range ast.AST.Children {
		if err := r.node(n); err != nil {
			return nil, err
		}
	}
	if len(r.Stages) == 0 {
		return nil, errs.E(errs.InvalidInput, "the Dockerfile has no FROM").Suggest("Begin it with FROM and an image, such as FROM debian:13, or FROM %sbase.", TemplatePrefix)
	}
	if err := r.target(o.Target); err != nil {
		return nil, err
	}
	r.unasked()
	return r.Recipe, nil
}

func platform(arch string) map[string]string {
	if arch == "" {
		arch = runtime.GOARCH
	}
	return map[string]string{
		"TARGETPLATFORM": "linux/" + arch, "TARGETOS": "linux", "TARGETARCH": arch, "TARGETVARIANT": "",
		"BUILDPLATFORM": "linux/" + arch, "BUILDOS": "linux", "BUILDARCH": arch, "BUILDVARIANT": "",
	}
}

// reading is a Recipe while it is read.
type reading struct {
	*Recipe
	names map[string]int  // of stages, in lower case
	asked map[string]bool // the arguments that an ARG names
	steps int
}

func (r *reading) warn(line int, format string, args ...any) {
	if len(r.Warnings) == maxWarnings {
		return
	}
	r.Warnings = append(r.Warnings, Warning{Line: line, Message: errs.E(errs.InvalidInput, format, args...).Message})
}

// node reads one instruction.
func (r *reading) node(n *parser.Node) error {
	cmd, err := instructions.ParseInstruction(n)
	if err != nil {
		return unreadable(n.StartLine, err)
	}
	switch c := cmd.(type) {
	case *instructions.Stage:
		return place("line", n.StartLine, r.from(n.StartLine, c))
	case *instructions.ArgCommand:
		for _, a := range c.Args {
			r.asked[a.Key] = true
		}
		if len(r.Stages) == 0 {
			return place("line", n.StartLine, r.global(c))
		}
	}
	if len(r.Stages) == 0 {
		return place("line", n.StartLine, errs.E(errs.InvalidInput, "%s stands before the first FROM", strings.ToUpper(n.Value)).
			Suggest("Only ARG may: begin with FROM and an image."))
	}
	s := Step{Line: n.StartLine}
	kept, err := r.convert(cmd.(instructions.Command), &s)
	if err != nil {
		return place("line", n.StartLine, err)
	}
	if !kept {
		return nil
	}
	if r.steps++; r.steps > MaxSteps {
		return place("line", n.StartLine, errs.E(errs.InvalidInput, "a build has at most %d steps", MaxSteps).Suggest("Join RUN steps with &&."))
	}
	st := &r.Stages[len(r.Stages)-1]
	st.Steps = append(st.Steps, s)
	return nil
}

// global reads an ARG before the first FROM.
func (r *reading) global(c *instructions.ArgCommand) error {
	for _, a := range c.Args {
		if v, ok := r.given[a.Key]; ok {
			r.globals[a.Key] = v
		} else if a.Value != nil {
			v, err := process(shell.NewLex(r.escape), *a.Value, names(r.globals))
			if err != nil {
				return err
			}
			r.globals[a.Key] = v
		}
	}
	return nil
}

func (r *reading) from(line int, c *instructions.Stage) error {
	for k := range r.globals { // what the platform is may be said by the call
		if v, ok := r.given[k]; ok {
			r.globals[k] = v
		}
	}
	lex := shell.NewLex(r.escape)
	ref, err := process(lex, c.BaseName, names(r.globals))
	if err != nil {
		return err
	}
	if ref == "" {
		return errs.E(errs.InvalidInput, "FROM %s names nothing: its variable is empty", c.BaseName).Suggest("Give it a default in an ARG before the FROM, or a build argument.")
	}
	on, err := process(lex, c.Platform, names(r.globals))
	if err != nil {
		return err
	}
	if want := platform(r.globals["TARGETARCH"])["TARGETPLATFORM"]; on != "" && on != want {
		return errs.E(errs.InvalidInput, "FROM --platform=%s is not supported", on).Suggest("Leave it out: images are taken for %s, on which this runs.", want)
	}
	if _, twice := r.names[c.Name]; twice && c.Name != "" {
		return errs.E(errs.InvalidInput, "two stages are named %s", c.Name).Suggest("Give each its own name.")
	}
	st := Stage{Name: c.Name, Line: line, Text: strings.Join(strings.Fields(c.SourceCode), " "), From: r.source(ref)}
	if len(r.Stages) == MaxStages {
		return errs.E(errs.InvalidInput, "a Dockerfile has at most %d stages", MaxStages).Suggest("Join some of them.")
	}
	if c.Name != "" {
		r.names[c.Name] = len(r.Stages)
	}
	r.Stages = append(r.Stages, st)
	return nil
}

// source says what a FROM names.
func (r *reading) source(ref string) Source {
	if i, ok := r.names[strings.ToLower(ref)]; ok {
		return Source{Kind: FromStage, Stage: i, Ref: ref}
	}
	if name, ok := strings.CutPrefix(ref, TemplatePrefix); ok {
		return Source{Kind: FromTemplate, Ref: name}
	}
	if ref == "scratch" {
		return Source{Kind: FromScratch}
	}
	return Source{Kind: FromImage, Ref: ref}
}

// target leaves the stages that the one asked for needs, itself the last.
func (r *reading) target(want string) error {
	last := len(r.Stages) - 1
	if want != "" {
		i, ok := r.names[strings.ToLower(want)]
		if n, err := strconv.Atoi(want); !ok && err == nil && n >= 0 && n <= last {
			i, ok = n, true
		}
		if !ok {
			return errs.E(errs.InvalidInput, "the Dockerfile has no stage %q", want).Suggest("Its stages are %s.", r.stages())
		}
		last = i
	}
	needed := make([]bool, last+1)
	needed[last] = true
	mark := func(s *Source) {
		if s != nil && s.Kind == FromStage {
			needed[s.Stage] = true
		}
	}
	for i := last; i >= 0; i-- {
		if !needed[i] {
			continue
		}
		mark(&r.Stages[i].From)
		for _, s := range r.Stages[i].Steps {
			if s.Files != nil {
				mark(s.Files.From)
			}
		}
	}
	r.keep(needed)
	return nil
}

func (r *reading) keep(needed []bool) {
	index, kept := make([]int, len(needed)), []Stage(nil)
	renumber := func(s *Source) {
		if s != nil && s.Kind == FromStage {
			s.Stage = index[s.Stage]
		}
	}
	for i, ok := range needed {
		if !ok {
			continue
		}
		st := r.Stages[i]
		index[i] = len(kept)
		renumber(&st.From)
		for _, s := range st.Steps {
			if s.Files != nil {
				renumber(s.Files.From)
			}
		}
		kept = append(kept, st)
	}
	r.Stages = kept
}

func (r *reading) stages() string {
	var out []string
	for i, s := range r.Stages {
		if s.Name != "" {
			out = append(out, s.Name)
		} else {
			out = append(out, strconv.Itoa(i))
		}
	}
	return strings.Join(out, ", ")
}

// unasked warns of arguments that the call gave and nothing names.
func (r *reading) unasked() {
	for _, k := range slices.Sorted(maps.Keys(r.given)) {
		_, known := platform("")[k]
		if !r.asked[k] && !known && !slices.Contains(proxies, k) {
			r.warn(0, "the build argument %s is named by no ARG", k)
		}
	}
}

// names makes a map what a shell.Lex asks.
type names map[string]string

// Get implements shell.EnvGetter.
func (n names) Get(k string) (string, bool) { v, ok := n[k]; return v, ok }

// Keys implements shell.EnvGetter.
func (n names) Keys() []string { return slices.Collect(maps.Keys(n)) }

// unreadable is an error of the parser.
func unreadable(line int, err error) error {
	var at *parser.LocationError
	if line == 0 && errors.As(err, &at) && len(at.Locations) > 0 {
		line = first(at.Locations[0])
	}
	return place("line", line, errs.E(errs.InvalidInput, "%v", err).Suggest("Correct the line; docs/templates.md lists the instructions."))
}

func first(loc []parser.Range) int {
	if len(loc) == 0 {
		return 0
	}
	return loc[0].Start.Line
}
