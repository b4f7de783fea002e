package recipe

import (
	"slices"
	"strconv"
	"strings"

	"github.com/moby/buildkit/frontend/dockerfile/instructions"
	"github.com/moby/buildkit/frontend/dockerfile/parser"

	"github.com/berthrun/berth/internal/errs"
)

// convert writes an instruction into s; false where it has no effect here.
func (r *reading) convert(cmd instructions.Command, s *Step) (bool, error) {
	s.Kind = Kind(strings.ToUpper(cmd.Name()))
	if c, ok := cmd.(interface{ String() string }); ok {
		s.Text = c.String()
	}
	switch c := cmd.(type) {
	case *instructions.RunCommand:
		return true, run(c, s)
	case *instructions.EnvCommand:
		s.Pairs = pairs(c.Env)
	case *instructions.LabelCommand:
		s.Pairs = pairs(c.Labels)
	case *instructions.MaintainerCommand:
		s.Kind, s.Pairs = Label, []Pair{{Key: "maintainer", Value: verbatim(c.Maintainer)}}
	case *instructions.ArgCommand:
		for _, a := range c.Args {
			s.Pairs = append(s.Pairs, Pair{Key: a.Key, Value: a.ValueString(), Bare: a.Value == nil})
		}
	case *instructions.WorkdirCommand:
		s.Args = []string{c.Path}
	case *instructions.UserCommand:
		s.Args = []string{c.User}
	case *instructions.ExposeCommand:
		s.Args = c.Ports
	case *instructions.ShellCommand:
		s.Args = c.Shell
	case *instructions.CmdCommand:
		s.Args, s.Shell = c.CmdLine, c.PrependShell
		return true, noFiles(s.Kind, c.ShellDependantCmdLine)
	case *instructions.EntrypointCommand:
		s.Args, s.Shell = c.CmdLine, c.PrependShell && len(c.CmdLine) > 0
		return true, noFiles(s.Kind, c.ShellDependantCmdLine)
	case *instructions.CopyCommand:
		f, err := r.copy(c)
		s.Files = f
		return true, err
	case *instructions.AddCommand:
		f, err := add(c)
		s.Files = f
		return true, err
	case *instructions.HealthCheckCommand:
		r.warn(s.Line, "HEALTHCHECK has no effect: give the build a readyCmd")
		return false, nil
	case *instructions.StopSignalCommand:
		r.warn(s.Line, "STOPSIGNAL has no effect: what runs in a sandbox is sent SIGTERM")
		return false, nil
	case *instructions.VolumeCommand:
		r.warn(s.Line, "VOLUME has no effect: attach a volume to the sandbox")
		return false, nil
	default:
		return false, errs.E(errs.InvalidInput, "%s is not supported", s.Kind).Suggest("Write what it does in the Dockerfile that builds on this one.")
	}
	return true, nil
}

func pairs(kvs instructions.KeyValuePairs) []Pair {
	var out []Pair
	for _, kv := range kvs {
		out = append(out, Pair{Key: kv.Key, Value: kv.Value})
	}
	return out
}

// verbatim is a word that stands for s as it is.
func verbatim(s string) string { return "'" + strings.ReplaceAll(s, "'", `'"'"'`) + "'" }

func noFiles(k Kind, c instructions.ShellDependantCmdLine) error {
	if len(c.Files) > 0 {
		return errs.E(errs.InvalidInput, "%s takes no heredoc", k).Suggest("COPY the heredoc to a file, and name the file.")
	}
	return nil
}

// instead says what to write in place of each kind of mount.
var instead = map[instructions.MountType]string{
	instructions.MountTypeCache:  "Leave it out: the step's result is kept as long as nothing before it changes.",
	instructions.MountTypeBind:   "COPY the files, and remove them in a later RUN where they should not stay.",
	instructions.MountTypeTmpfs:  "Leave it out and remove the files at the end of the command.",
	instructions.MountTypeSecret: "Nothing secret belongs into a template: give it to the sandbox when it is made.",
	instructions.MountTypeSSH:    "Fetch what needs the key before the build, and COPY it.",
}

func run(c *instructions.RunCommand, s *Step) error {
	if err := c.Expand(func(word string) (string, error) { return word, nil }); err != nil { // the kinds of mounts are only known after it
		return errs.E(errs.InvalidInput, "%v", err).Suggest("Leave --mount out: it is not supported.")
	}
	for _, m := range instructions.GetMounts(c) {
		return errs.E(errs.InvalidInput, "RUN --mount=type=%s is not supported", m.Type).Suggest("%s", instead[m.Type])
	}
	if n := instructions.GetNetwork(c); n != instructions.NetworkDefault {
		return errs.E(errs.InvalidInput, "RUN --network=%s is not supported", n).Suggest("Leave it out: every step has the network that the build's caller may use.")
	}
	if m := instructions.GetSecurity(c); m != instructions.SecuritySandbox {
		return errs.E(errs.InvalidInput, "RUN --security=%s is not supported", m).Suggest("Leave it out: a step is root in a sandbox of its own.")
	}
	if len(instructions.GetDevices(c)) > 0 {
		return errs.E(errs.InvalidInput, "RUN --device is not supported").Suggest("Leave it out, and do what needs the device when the sandbox runs.")
	}
	s.Args, s.Shell = slices.Clone(c.CmdLine), c.PrependShell
	if len(s.Args) == 0 || (len(s.Args) == 1 && s.Args[0] == "") {
		return errs.E(errs.InvalidInput, "RUN has no command").Suggest("Write one, or leave the line out.")
	}
	if len(c.Files) > 0 {
		return heredoc(c.Files, s)
	}
	return nil
}

// launch runs a script that it reads, as the file that it says it is.
const launch = `f=$(mktemp) && cat >"$f" && chmod 700 "$f" || exit; "$f" </dev/null; r=$?; rm -f "$f"; exit $r`

// heredoc makes of a RUN with heredocs one text for the shell: a single one is the text itself, or a program where it begins with #!; others the shell
// reads by itself.
func heredoc(files []instructions.ShellInlineFile, s *Step) error {
	if len(s.Args) != 1 || !s.Shell {
		return errs.E(errs.InvalidInput, "RUN takes no heredoc in its exec form").Suggest("Write RUN <<EOF, the script, and EOF.")
	}
	if parser.MustParseHeredoc(s.Args[0]) == nil {
		full := s.Args[0]
		for _, f := range files {
			full += "\n" + f.Data + f.Name
		}
		s.Args[0] = full
	} else {
		data := files[0].Data
		if files[0].Chomp {
			data = parser.ChompHeredocContent(data)
		}
		s.Args[0] = data
		if strings.HasPrefix(data, "#!") {
			s.Args, s.Shell, s.Stdin = []string{"/bin/sh", "-c", launch}, false, data
		}
	}
	for _, f := range files {
		s.Body += f.Data
	}
	return nil
}

func (r *reading) copy(c *instructions.CopyCommand) (*Files, error) {
	f := files(c.SourcesAndDest, c.ExcludePatterns, c.Chown, c.Chmod)
	f.Parents = c.Parents
	if c.From == "" {
		return f, nil
	}
	if len(f.Inline) > 0 {
		return nil, errs.E(errs.InvalidInput, "COPY --from takes no heredoc").Suggest("Write a COPY of its own for it.")
	}
	from, err := r.copyFrom(c.From)
	f.From = &from
	return f, err
}

// copyFrom says what --from names: an earlier stage by number or name, else an image or a template.
func (r *reading) copyFrom(ref string) (Source, error) {
	here := len(r.Stages) - 1
	if strings.Contains(ref, "$") {
		return Source{}, errs.E(errs.InvalidInput, "COPY --from=%s: variables are not replaced there", ref).Suggest("Give it a stage of its own: FROM %s AS source, and COPY --from=source.", ref)
	}
	if n, err := strconv.Atoi(ref); err == nil {
		if n < 0 || n >= here {
			return Source{}, errs.E(errs.InvalidInput, "COPY --from=%s: no earlier stage has this number", ref).Suggest("Stages count from 0; this is stage %d.", here)
		}
		return Source{Kind: FromStage, Stage: n, Ref: ref}, nil
	}
	if strings.EqualFold(ref, r.Stages[here].Name) {
		return Source{}, errs.E(errs.InvalidInput, "COPY --from=%s: a stage cannot copy from itself", ref).Suggest("Name an earlier stage, or leave --from out.")
	}
	return r.source(ref), nil
}

func add(c *instructions.AddCommand) (*Files, error) {
	if c.KeepGitDir != nil || c.Checksum != "" {
		return nil, errs.E(errs.InvalidInput, "ADD --keep-git-dir and --checksum are not supported").Suggest("Fetch it in a RUN with curl or git, and check it there.")
	}
	f := files(c.SourcesAndDest, c.ExcludePatterns, c.Chown, c.Chmod)
	f.Unpack = c.Unpack == nil || *c.Unpack
	for _, s := range f.Sources {
		if err := local(s); err != nil {
			return nil, err
		}
	}
	return f, nil
}

func files(s instructions.SourcesAndDest, exclude []string, chown, chmod string) *Files {
	f := &Files{Sources: slices.Clone(s.SourcePaths), Dest: s.DestPath, Exclude: slices.Clone(exclude), Owner: chown, Mode: chmod}
	for _, c := range s.SourceContents {
		f.Inline = append(f.Inline, Inline{Name: c.Path, Data: c.Data, Expand: c.Expand})
	}
	return f
}
