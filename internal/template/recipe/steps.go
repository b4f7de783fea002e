package recipe

import (
	"fmt"
	"strings"

	"github.com/berthrun/berth/internal/errs"
)

// Plain is one step as a call has it. Its members are those of api.TemplateStep, so that one converts to the other.
type Plain struct {
	Type        string
	Args        []string
	Command     string
	Key         string
	Value       string
	Path        string
	User        string
	Source      string
	Destination string
	Mode        string
	Force       bool
}

// FromSteps makes a recipe of one stage. Errors are errs.InvalidInput and name the step, from 1.
func FromSteps(from Source, steps []Plain) (*Recipe, error) {
	st := Stage{From: from, Text: strings.TrimSpace("FROM " + from.Ref)}
	for i, p := range steps {
		s := Step{Line: i + 1, Force: p.Force, plain: true}
		if err := p.into(&s); err != nil {
			return nil, at(s, err)
		}
		st.Steps = append(st.Steps, s)
	}
	return &Recipe{Stages: []Stage{st}}, nil
}

// member is a member of Plain that a type takes.
type member struct {
	name     string
	value    *string
	optional bool
}

func (p *Plain) members() map[string]member {
	return map[string]member{
		"command": {"command", &p.Command, false}, "key": {"key", &p.Key, false}, "value": {"value", &p.Value, false}, "path": {"path", &p.Path, false},
		"user": {"user", &p.User, false}, "source": {"source", &p.Source, false}, "destination": {"destination", &p.Destination, false}, "mode": {"mode", &p.Mode, false},
	}
}

// taken lists the members of each type in the order of args; those after the bar may be left out.
var taken = map[Kind]string{Run: "command|user", Env: "key value|", Workdir: "path|", User: "user|", Copy: "source destination|user mode"}

// into writes what the step says into s. The named members and args say the same thing.
func (p Plain) into(s *Step) error {
	s.Kind = Kind(strings.ToUpper(p.Type))
	names, known := taken[s.Kind]
	if !known {
		return errs.E(errs.InvalidInput, "a step's type is RUN, ENV, WORKDIR, USER or COPY, not %q", p.Type).Suggest("For other instructions write a dockerfile in place of steps.")
	}
	needed, optional, _ := strings.Cut(names, "|")
	if err := p.fill(s.Kind, strings.Fields(needed), strings.Fields(optional)); err != nil {
		return err
	}
	switch s.Kind {
	case Run:
		s.Args, s.Shell, s.User, s.Text = []string{p.Command}, true, p.User, "RUN "+p.Command
	case Env:
		s.Pairs, s.Text = []Pair{{Key: p.Key, Value: p.Value}}, "ENV "+p.Key+"="+p.Value
		for i := 2; i+1 < len(p.Args); i += 2 {
			s.Pairs = append(s.Pairs, Pair{Key: p.Args[i], Value: p.Args[i+1]})
			s.Text += " " + p.Args[i] + "=" + p.Args[i+1]
		}
	case Workdir:
		s.Args, s.Text = []string{p.Path}, "WORKDIR "+p.Path
	case User:
		s.Args, s.Text = []string{p.User}, "USER "+p.User
	case Copy:
		s.Files = &Files{Sources: []string{p.Source}, Dest: p.Destination, Owner: p.User, Mode: p.Mode}
		s.Text = "COPY " + p.Source + " " + p.Destination
	}
	return nil
}

func (p *Plain) fill(kind Kind, needed, optional []string) error {
	members, order := p.members(), append(append([]string{}, needed...), optional...)
	for _, name := range []string{"command", "key", "value", "path", "user", "source", "destination", "mode"} {
		m := members[name]
		if *m.value == "" {
			continue
		}
		if !strings.Contains(" "+strings.Join(order, " ")+" ", " "+name+" ") {
			return errs.E(errs.InvalidInput, "%s takes no %s", kind, name).Suggest("%s takes %s.", kind, strings.Join(order, ", "))
		}
		if len(p.Args) > 0 {
			return errs.E(errs.InvalidInput, "%s has args and %s", kind, name).Suggest("Say it once: in args or in members.")
		}
	}
	if kind == Env && len(p.Args)%2 == 1 {
		return errs.E(errs.InvalidInput, "ENV has a name without a value").Suggest("Give args as name, value, name, value.")
	}
	if kind != Env && len(p.Args) > len(order) {
		return errs.E(errs.InvalidInput, "%s has %d args", kind, len(p.Args)).Suggest("%s takes %s.", kind, strings.Join(order, ", "))
	}
	for i, a := range p.Args {
		if i < len(order) {
			*members[order[i]].value = a
		}
	}
	for _, name := range needed {
		if *members[name].value == "" && !(name == "value") {
			return errs.E(errs.InvalidInput, "%s has no %s", kind, name).Suggest("%s takes %s.", kind, fmt.Sprint(strings.Join(order, ", ")))
		}
	}
	return nil
}
