package recipe

import (
	"errors"
	"fmt"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/moby/buildkit/frontend/dockerfile/shell"

	"github.com/berthrun/berth/internal/errs"
)

const defaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// proxies may be given to a build without an ARG; a RUN sees them, its key does not.
var proxies = []string{"HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "https_proxy", "FTP_PROXY", "ftp_proxy", "NO_PROXY", "no_proxy", "ALL_PROXY", "all_proxy"}

// Root is what the stage begins with in the end, through the stages that it is built on.
func (r *Recipe) Root(stage int) Source {
	for r.Stages[stage].From.Kind == FromStage {
		stage = r.Stages[stage].From.Stage
	}
	return r.Stages[stage].From
}

// Walk goes through the steps of one stage in order. Not for several goroutines.
type Walk struct {
	r       *Recipe
	stage   Stage
	next    int
	config  Config
	args    map[string]string // in effect
	defined map[string]string // NAME=value of each of them, which all RUN steps share
	cmd     bool              // a CMD of this stage was there
	err     error
}

// Walk begins the walk through a stage. base is the config of what Root names.
func (r *Recipe) Walk(stage int, base Config) *Walk {
	w := &Walk{r: r, stage: r.Stages[stage], args: map[string]string{}, defined: map[string]string{}}
	if from := r.Stages[stage].From; from.Kind == FromStage {
		below := r.Walk(from.Stage, base)
		for more := true; more && below.err == nil; {
			_, more, _ = below.Next()
		}
		w.config, w.args, w.defined, w.err = below.config, below.args, below.defined, below.err
		return w
	}
	w.config = base.Clone()
	if _, ok := w.config.Lookup("PATH"); !ok {
		w.config.setEnv("PATH", defaultPath)
	}
	return w
}

// Config is what the steps so far made of the base's.
func (w *Walk) Config() Config { return w.config.Clone() }

// Next gives what the next step does; false after the last. Errors are errs.InvalidInput and name the line.
func (w *Walk) Next() (Action, bool, error) {
	if w.err != nil || w.next == len(w.stage.Steps) {
		return Action{}, false, w.err
	}
	s := w.stage.Steps[w.next]
	w.next++
	a, err := w.step(s)
	if err != nil {
		w.err = at(s, err)
		return Action{}, false, w.err
	}
	a.Step, a.Title = s, title(s)
	return a, true, nil
}

func title(s Step) string { return strings.Join(strings.Fields(s.Text), " ") }

func (w *Walk) step(s Step) (Action, error) {
	switch s.Kind {
	case Run:
		return w.run(s), nil
	case Workdir:
		return w.workdir(s)
	case Copy, Add:
		return w.put(s)
	case Env, Label:
		return Action{}, w.pairs(s)
	case Arg:
		return Action{}, w.arg(s)
	case User:
		user, err := w.word(s, s.Args[0])
		if err == nil && user == "" {
			err = errs.E(errs.InvalidInput, "USER has no user").Suggest("Name one: USER root.")
		}
		if err == nil {
			w.config.User = user
		}
		return Action{}, err
	case Expose:
		return Action{}, w.expose(s)
	case Shell:
		w.config.Shell = s.Args
	case Entrypoint:
		if w.config.Entrypoint = w.command(s); !w.cmd {
			w.config.Cmd = nil // the base's was meant for the base's
		}
	case Cmd:
		w.config.Cmd, w.cmd = w.command(s), true
	default:
		return Action{}, errs.E(errs.InvalidInput, "%s is not an instruction that this can do", s.Kind)
	}
	return Action{}, nil
}

func (w *Walk) command(s Step) []string {
	if !s.Shell {
		return slices.Clone(s.Args)
	}
	return append(slices.Clone(w.config.shell()), strings.Join(s.Args, " "))
}

func (w *Walk) run(s Step) Action {
	e := &Exec{Argv: w.command(s), Dir: w.config.dir(), User: w.config.User, Stdin: s.Stdin}
	if s.User != "" {
		e.User = s.User
	}
	c := w.config.Clone()
	for _, k := range slices.Sorted(maps.Keys(w.args)) {
		if _, ok := c.Lookup(k); !ok {
			c.Env = append(c.Env, w.defined[k])
		}
	}
	for _, k := range proxies {
		v, given := w.r.given[k]
		if _, ok := c.Lookup(k); given && !ok {
			c.setEnv(k, v)
		}
	}
	e.Env = c.Env
	return Action{Exec: e, hidden: w.hidden()}
}

// hidden are the proxies that no ARG names: they change how a command reaches the network, not what it does.
func (w *Walk) hidden() []string {
	var out []string
	for _, k := range proxies {
		v, given := w.r.given[k]
		_, said := w.args[k]
		if _, set := w.config.Lookup(k); given && !said && !set {
			out = append(out, k+"="+v)
		}
	}
	return out
}

func (a Action) unseen(env string) bool { return slices.Contains(a.hidden, env) }

func (w *Walk) workdir(s Step) (Action, error) {
	dir, err := w.word(s, s.Args[0])
	if err != nil {
		return Action{}, err
	}
	if dir == "" {
		return Action{}, errs.E(errs.InvalidInput, "WORKDIR has no path").Suggest("Name a folder: WORKDIR /app.")
	}
	w.config.Dir = w.abs(dir)
	return Action{MakeDir: w.config.Dir, As: w.config.User}, nil
}

func (w *Walk) abs(p string) string {
	if !path.IsAbs(p) {
		p = path.Join(w.config.dir(), p)
	}
	return path.Clean(p)
}

func (w *Walk) pairs(s Step) error {
	type pair struct{ k, v string }
	out := make([]pair, len(s.Pairs))
	for i, p := range s.Pairs { // all of one instruction see what was there before it
		k, err := w.word(s, p.Key)
		if err != nil {
			return err
		}
		v, err := w.word(s, p.Value)
		if err != nil {
			return err
		}
		if k == "" || strings.ContainsAny(k, "=\x00") || strings.Contains(v, "\x00") {
			return errs.E(errs.InvalidInput, "%s has a name or value that cannot be: %q", s.Kind, k).Suggest("Write NAME=value.")
		}
		out[i] = pair{k, v}
	}
	for _, p := range out {
		if s.Kind == Env {
			w.config.setEnv(p.k, p.v)
			continue
		}
		if w.config.Labels == nil {
			w.config.Labels = map[string]string{}
		}
		w.config.Labels[p.k] = p.v
	}
	if w.config.tooLarge() {
		return errTooLarge("environment and labels")
	}
	return nil
}

func errTooLarge(what string) error {
	return errs.E(errs.InvalidInput, "the %s are more than %d names or %d KiB", what, maxNames, maxConfig>>10).Suggest("Write what is long into a file.")
}

func (w *Walk) arg(s Step) error {
	for _, p := range s.Pairs {
		k, err := w.word(s, p.Key)
		if err != nil {
			return err
		}
		v, ok := w.r.given[k]
		if !ok && p.Bare {
			v, ok = w.r.globals[k]
		} else if !ok {
			if v, err = w.word(s, p.Value); err != nil {
				return err
			}
			ok = true
		}
		if ok {
			w.args[k], w.defined[k] = v, k+"="+v
		}
	}
	n := 0
	for _, d := range w.defined {
		n += len(d)
	}
	if n > maxConfig || len(w.defined) > maxNames {
		return errTooLarge("arguments")
	}
	return nil
}

func (w *Walk) expose(s Step) error {
	for _, a := range s.Args {
		word, err := w.word(s, a)
		if err != nil {
			return err
		}
		for _, p := range strings.Fields(word) {
			port, err := exposed(p)
			if err != nil {
				return err
			}
			if !slices.Contains(w.config.Ports, port) {
				w.config.Ports = append(w.config.Ports, port)
			}
		}
	}
	slices.Sort(w.config.Ports)
	return nil
}

// exposed reads 8080, 8080/udp and 8000-8010.
func exposed(s string) (string, error) {
	ports, proto, _ := strings.Cut(s, "/")
	proto = strings.ToLower(proto)
	if proto == "" {
		proto = "tcp"
	}
	first, last, ranged := strings.Cut(ports, "-")
	if !ranged {
		last = first
	}
	a, errA := strconv.ParseUint(first, 10, 16)
	b, errB := strconv.ParseUint(last, 10, 16)
	if errA != nil || errB != nil || a == 0 || b < a || !slices.Contains([]string{"tcp", "udp", "sctp"}, proto) {
		return "", errs.E(errs.InvalidInput, "EXPOSE takes a port, not %q", s).Suggest("Write a number from 1 to 65535, such as 8080 or 8080/udp.")
	}
	return ports + "/" + proto, nil
}

func (w *Walk) put(s Step) (Action, error) {
	f := s.Files
	p := &Put{From: f.From, Parents: f.Parents, Unpack: f.Unpack, Exclude: slices.Clone(f.Exclude)}
	for _, src := range f.Sources {
		src, err := w.word(s, src)
		if err != nil {
			return Action{}, err
		}
		if s.Kind == Add {
			if err := local(src); err != nil {
				return Action{}, err
			}
		}
		p.Sources = append(p.Sources, src)
	}
	for _, in := range f.Inline {
		if in.Expand {
			lex := w.lex(s)
			lex.RawQuotes, lex.RawEscapes = true, true
			data, err := replace(lex, in.Data, scope{w}, maxInline)
			if err != nil {
				return Action{}, err
			}
			in.Data, in.Expand = data, false
		}
		p.Inline = append(p.Inline, in)
	}
	dest, err := w.word(s, f.Dest)
	if err != nil {
		return Action{}, err
	}
	if dest == "" {
		return Action{}, errs.E(errs.InvalidInput, "%s has no destination", s.Kind).Suggest("Name where the files go, such as /app/.")
	}
	p.Dest, p.DestDir = w.abs(dest), strings.HasSuffix(dest, "/") || path.Base(dest) == "." || path.Base(dest) == ".."
	if len(p.Sources)+len(p.Inline) > 1 && !p.DestDir {
		return Action{}, errs.E(errs.InvalidInput, "%s of several sources needs a folder, and %q is none", s.Kind, dest).Suggest("End it in /.")
	}
	if p.Owner, err = w.word(s, f.Owner); err != nil {
		return Action{}, err
	}
	if p.Owner == "" && s.plain {
		p.Owner = w.config.User
	}
	mode, err := w.word(s, f.Mode)
	if err != nil {
		return Action{}, err
	}
	if p.Mode, err = octal(mode); err != nil {
		return Action{}, err
	}
	return Action{Put: p}, nil
}

// local refuses what ADD would have to fetch.
func local(src string) error {
	for _, p := range []string{"http://", "https://", "git://", "ssh://", "git@"} {
		if strings.HasPrefix(strings.ToLower(src), p) {
			return errs.E(errs.InvalidInput, "ADD of %s is not supported", src).Suggest("Fetch it in a RUN with curl or git, or put it into the build's context and COPY it.")
		}
	}
	return nil
}

func octal(s string) (*int64, error) {
	if s == "" {
		return nil, nil
	}
	m, err := strconv.ParseUint(s, 8, 32)
	if err != nil || m > 0o7777 {
		return nil, errs.E(errs.InvalidInput, "--chmod takes permission bits in octal, not %q", s).Suggest("Write them as 0644 or 755; for u=rwX and the like use RUN chmod.")
	}
	mode := int64(m)
	return &mode, nil
}

func (w *Walk) word(s Step, word string) (string, error) { return process(w.lex(s), word, scope{w}) }

func (w *Walk) lex(s Step) *shell.Lex {
	lex := shell.NewLex(w.r.escape)
	if w.r.escape == 0 {
		lex = shell.NewLex('\\')
	}
	lex.SkipProcessQuotes = s.plain
	return lex
}

// at says where in the recipe an error is.
func at(s Step, err error) error {
	if s.plain {
		return place("step", s.Line, err)
	}
	return place("line", s.Line, err)
}

func place(what string, n int, err error) error {
	var e *errs.Error
	if n == 0 || !errors.As(err, &e) {
		return err
	}
	c := *e
	c.Message = fmt.Sprintf("%s %d: %s", what, n, e.Message)
	c.Details = maps.Clone(e.Details)
	if c.Details == nil {
		c.Details = map[string]any{}
	}
	c.Details[what] = n
	return &c
}
