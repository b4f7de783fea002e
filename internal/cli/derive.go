package cli

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/berthrun/berth/api"
	"github.com/berthrun/berth/api/op"
	"github.com/berthrun/berth/client"
	"github.com/berthrun/berth/internal/errs"
)

// command is one operation's command.
type command struct {
	*app
	info   op.Info
	args   []positional
	tail   bool // what to run in the sandbox follows
	inputs inputs
	from   string // of files.write: where the content comes from
	follow bool   // of processes.output
	yes    bool

	tty, keepStdin bool // of sandboxes.exec
	ssh            sshOptions
	build          building // of templates.build
	policies       policyFiles
}

// positional is an argument by its place.
type positional struct {
	name     string
	optional bool
}

// Usage is the usage line of an operation's command, such as "berth sandboxes get SANDBOX_ID [flags]".
func Usage(info op.Info) string {
	c := newCommand(&app{}, info)
	group, _, _ := strings.Cut(info.Name, ".")
	return "berth " + kebab(group) + " " + c.use()
}

// derived makes the commands of operations, grouped by the first half of their names, with those that come from outside.
func (a *app) derived(infos []op.Info, under map[string][]*cobra.Command) []*cobra.Command {
	var groups []*cobra.Command
	byName := map[string]*cobra.Command{}
	for _, info := range infos {
		name, _, _ := strings.Cut(info.Name, ".")
		g := byName[name]
		if g == nil {
			g = &cobra.Command{Use: kebab(name), Args: cobra.ArbitraryArgs, RunE: group}
			byName[name], groups = g, append(groups, g)
		}
		g.AddCommand(newCommand(a, info).cobra())
	}
	if g := byName["files"]; g != nil {
		g.AddCommand(a.copyCommand())
	}
	if g := byName["sandboxes"]; g != nil {
		g.AddCommand(a.shellCommand())
	}
	if g := byName["images"]; g != nil {
		g.AddCommand(a.importCommand(), a.exportCommand())
	}
	if g := byName["audit"]; g != nil {
		g.AddCommand(a.exportAuditCommand())
	}
	for _, g := range groups {
		g.AddCommand(under[g.Name()]...)
		var verbs []string
		for _, c := range g.Commands() {
			verbs = append(verbs, c.Name())
		}
		g.Short = strings.Join(verbs, ", ")
		g.Long = "Operations on " + g.Name() + "."
	}
	return groups
}

func newCommand(a *app, info op.Info) *command {
	c := &command{app: a, info: info, tail: runsSomething(info)}
	for _, name := range info.PathParams() {
		c.args = append(c.args, positional{name: name})
	}
	if strings.HasPrefix(info.Name, "files.") {
		for _, name := range []string{"path", "from", "to"} {
			if info.In.Properties[name] != nil {
				c.args = append(c.args, positional{name, !slices.Contains(info.In.Required, name)})
			}
		}
	}
	if info.Name == api.BuildTemplate.Name {
		c.args, c.inputs.letters = []positional{{"folder", true}}, map[string]string{"name": "t"}
	}
	if info.Name == api.TestPolicies.Name {
		c.args = append(c.args, positional{name: "file"})
	}
	for group, names := range map[string][]string{"docs.": {"query", "page"}, "images.pull": {"image"}, "images.push": {"reference"}, "registries.set": {"host"}, "volumes.create": {"name"}, "volumes.attach": {"sandboxId"}} {
		for _, name := range names {
			if strings.HasPrefix(info.Name, group) && info.In.Properties[name] != nil {
				c.args = append(c.args, positional{name: name})
			}
		}
	}
	return c
}

// runsSomething reports whether the operation takes a command xor an argv.
func runsSomething(info op.Info) bool {
	return info.In.Properties["command"] != nil && info.In.Properties["argv"] != nil
}

func (c *command) use() string {
	_, verb, _ := strings.Cut(c.info.Name, ".")
	parts := []string{kebab(verb)}
	for _, p := range c.args {
		name := placeholder(p.name)
		if p.optional {
			name = "[" + name + "]"
		}
		parts = append(parts, name)
	}
	for _, name := range c.info.In.Required {
		if strings.HasPrefix(c.info.Name, "policies.") {
			if c.ofPolicies() {
				parts = append(parts, "-f FILE")
			}
			continue
		}
		if p := c.info.In.Properties[name]; p.Type != "object" && !slices.ContainsFunc(c.args, func(a positional) bool { return a.name == name }) && c.info.Name != api.WriteFile.Name {
			parts = append(parts, "--"+kebab(name)+" "+strings.ToUpper(kindOf(name, p)))
		}
	}
	parts = append(parts, "[flags]")
	if c.tail {
		parts = append(parts, "(COMMAND | -- PROGRAM [ARG]...)")
	}
	return strings.Join(parts, " ")
}

func (c *command) cobra() *cobra.Command {
	cmd := &cobra.Command{
		Use: c.use(), DisableFlagsInUseLine: true, Short: c.info.Title, Long: c.long(), Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error { return c.run(cmd, args) }, ValidArgsFunction: c.complete,
	}
	taken := []string{"command", "argv"}
	if !c.tail {
		taken = nil
	}
	for _, p := range c.args {
		taken = append(taken, p.name)
	}
	switch c.info.Name {
	case api.WriteFile.Name:
		taken = append(taken, "data", "encoding")
		cmd.Flags().StringVar(&c.from, "from", "-", "`file` with the content, - for standard input")
	case api.Exec.Name:
		cmd.Flags().BoolVarP(&c.keepStdin, "interactive", "i", false, "send standard input as it comes, and give both streams as they are")
		cmd.Flags().BoolVarP(&c.tty, "tty", "t", false, "with a terminal; -it for a shell")
	case api.SSH.Name:
		c.sshFlags(cmd)
	case api.BuildTemplate.Name:
		c.build.flags(cmd)
		_, needs, _ := strings.Cut(cmd.Long, "\n\nHTTP:") // what is before it is said to programs
		cmd.Long, cmd.Example = buildHelp+"\n\nHTTP:"+needs, buildExample
	case api.ProcessOutput.Name:
		cmd.Flags().BoolVarP(&c.follow, "follow", "f", false, "go on until the process ends")
	case api.BuildLogs.Name:
		cmd.Flags().BoolVarP(&c.follow, "follow", "f", false, "go on until the build ends")
	}
	taken = append(taken, c.policyFlags(cmd)...)
	c.inputs.addFlags(cmd, c.info.In, taken)
	if c.asks() || c.info.Name == api.ApproveConfirmation.Name {
		cmd.Flags().BoolVarP(&c.yes, "yes", "y", false, "do not ask")
	}
	return cmd
}

func (c *command) long() string {
	var b strings.Builder
	b.WriteString(c.info.Doc)
	if params := c.info.PathParams(); params != nil && finders[params[0]] != nil {
		b.WriteString(" " + placeholder(params[0]) + " is an id or a name.")
	}
	if c.info.Hints.Has(op.Wakes) && !strings.Contains(c.info.Doc, "billed") {
		b.WriteString("\n\nIt starts the sandbox where that is stopped or asleep; while it runs it may be billed.")
	}
	fmt.Fprintf(&b, "\n\nHTTP: %s %s\nNeeds: %s", c.info.Method, c.info.Path, c.info.Action)
	if c.info.Tool != "" {
		fmt.Fprintf(&b, "\nMCP tool: %s", c.info.ShownTool())
	}
	return b.String()
}

func (c *command) run(cmd *cobra.Command, args []string) error {
	if c.info.Name == api.SSH.Name && c.inputs.file == "" && !cmd.Flags().Changed("public-key") {
		return c.runSSH(cmd, args)
	}
	in, err := c.input(cmd, args)
	if err != nil {
		return err
	}
	if err := c.resolve(cmd, in); err != nil {
		return err
	}
	c.mine = c.info.In.Properties["scope"] != nil && (in["scope"] == nil || in["scope"] == "mine")
	c.runs = c.info.Name == api.Exec.Name
	if c.tty || c.keepStdin {
		return c.interactive(cmd, in)
	}
	switch c.info.Name {
	case api.WriteFile.Name:
		return c.writeFile(cmd, in)
	case api.BuildTemplate.Name:
		return c.buildTemplate(cmd, in)
	case api.ApproveConfirmation.Name:
		if err := c.readBefore(cmd, in); err != nil {
			return err
		}
	case api.TestPolicies.Name:
		return c.testPolicies(cmd, in)
	case api.PutPolicies.Name, api.ValidatePolicies.Name:
		if err := c.readPolicies(in); err != nil {
			return err
		}
	}
	// Whoever says how long the call may wait gets what it gives by then.
	waits := carried[c.info.Name] != nil && in["waitSeconds"] == nil
	if waits {
		in["waitSeconds"] = 0
	}
	raw, err := c.encode(in)
	if err != nil {
		return err
	}
	conn, err := c.connect()
	if err != nil {
		return err
	}
	if err := c.confirm(args); err != nil {
		return err
	}
	ctx, cancel := c.context(cmd)
	defer cancel()
	switch c.info.Name {
	case api.Exec.Name:
		return c.exec(ctx, conn, raw)
	case api.ReadFile.Name:
		return c.readFile(ctx, conn, in)
	case api.ProcessOutput.Name:
		return c.processOutput(ctx, conn, raw)
	case api.BuildLogs.Name:
		if c.output == "table" {
			return c.readBuildLog(ctx, conn, raw)
		}
	case api.ReadDoc.Name:
		if c.output == "table" {
			return c.readDoc(ctx, conn, in)
		}
	case api.ValidatePolicies.Name:
		return c.checkPolicies(ctx, conn, raw)
	case api.GetPolicies.Name:
		if c.output == "table" {
			return c.showPolicies(ctx, conn, raw)
		}
	}
	out, err := conn.Do(ctx, c.info, raw)
	if err != nil {
		return c.refusedPolicies(c.named(err))
	}
	if c.info.Name == api.PutPolicies.Name && c.output == "table" {
		return c.putPolicies(out)
	}
	if waits {
		return c.carry(ctx, conn, out)
	}
	return c.print(c.info, out)
}

// input collects --input, flags and arguments into one object.
func (c *command) input(cmd *cobra.Command, args []string) (map[string]any, error) {
	for _, arg := range args {
		if err := isText(arg); err != nil {
			return nil, err
		}
	}
	members, err := c.inputs.base(c.stdin)
	if err != nil {
		return nil, err
	}
	if err := c.inputs.put(cmd.Flags(), members); err != nil {
		return nil, err
	}
	dash := cmd.ArgsLenAtDash()
	named := len(args)
	if c.tail {
		named = min(len(c.args), len(args))
		if dash >= 0 {
			named = min(named, dash)
		}
		if err := putCommand(members, args[named:], dash >= 0, cmd.CommandPath()); err != nil {
			return nil, err
		}
	}
	if named > len(c.args) {
		return nil, unwanted(cmd, args[len(c.args)])
	}
	for i, p := range c.args {
		switch {
		case i < named:
			members[p.name] = args[i]
		case members[p.name] == nil && !p.optional:
			return nil, usagef("%s needs %s; usage: %s", cmd.CommandPath(), placeholder(p.name), cmd.UseLine())
		}
	}
	return members, nil
}

// isText refuses what the API cannot say: in JSON, bytes that are no text would silently become others.
func isText(arg string) error {
	if !utf8.ValidString(arg) {
		return usagef("%s is no text in UTF-8: bytes can only be content", strconv.QuoteToASCII(clip(arg)))
	}
	return nil
}

// putCommand takes what to run: all behind -- as a program and its arguments, else one argument for the shell.
func putCommand(members map[string]any, args []string, dashed bool, name string) error {
	if len(args) == 0 {
		if members["command"] == nil && members["argv"] == nil {
			return usagef("%s needs what to run: one COMMAND for the shell, or a program and its arguments behind --", name)
		}
		return nil
	}
	delete(members, "command")
	delete(members, "argv")
	if len(args) == 1 && !dashed {
		members["command"] = args[0]
		return nil
	}
	members["argv"] = args
	return nil
}

// encode writes the input and holds what flags and arguments gave against the schema. What comes from --input the server judges: it may know more.
func (c *command) encode(in map[string]any) (json.RawMessage, error) {
	raw, err := json.Marshal(in)
	if err != nil {
		return nil, fmt.Errorf("encode input: %w", err)
	}
	if c.inputs.file != "" {
		return raw, nil
	}
	if err := op.Check(c.info.In, raw); err != nil {
		return nil, usagef("%w%s", err, c.flagOf(err))
	}
	return raw, nil
}

// named adds the flag to what a server says of a member that a flag gives.
func (c *command) named(err error) error {
	e, ok := errors.AsType[*client.Error](err)
	if !ok || e.Code != string(errs.InvalidInput) || c.output == "json" {
		return err
	}
	if name := c.flagOf(errs.E(errs.InvalidInput, "").With("path", e.Details["path"])); name != "" {
		said := *e
		said.Message += name
		return &said
	}
	return err
}

// flagOf names the flag of the member that an input error is about.
func (c *command) flagOf(err error) string {
	e, ok := errors.AsType[*errs.Error](err)
	if !ok {
		return ""
	}
	path, _ := e.Details["path"].(string)
	path, _, _ = strings.Cut(path, "[")
	for _, f := range c.inputs.list {
		if strings.Join(f.path, ".") == path {
			return " (--" + flagName(f.path) + ")"
		}
	}
	return ""
}
