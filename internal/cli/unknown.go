package cli

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// elsewhere are verbs as people know them from other tools, with what they are called here, the likeliest first.
var elsewhere = map[string][]string{
	"ls": {"list"}, "ps": {"list"}, "rm": {"delete", "remove"}, "remove": {"delete"}, "destroy": {"delete"}, "kill": {"delete", "signal"},
	"run": {"create", "exec", "start"}, "new": {"create"}, "up": {"create"}, "inspect": {"get"}, "show": {"get"}, "describe": {"get"}, "info": {"get"},
	"attach": {"shell"}, "console": {"shell"}, "resume": {"wake"}, "unpause": {"wake"}, "clone": {"fork"}, "checkpoint": {"snapshot"}, "commit": {"snapshot"},
	"cat": {"read"}, "mv": {"move"}, "upload": {"cp"}, "download": {"cp"}, "copy": {"cp"}, "stats": {"metrics"}, "top": {"metrics"}, "rename": {"update"},
	"load": {"import"}, "save": {"export"}, "login": {"set"}, "logout": {"delete"}, "whoami": {"get"},
}

// group is run by commands that only hold others: without arguments they show help, anything else is no command of theirs.
func group(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return cmd.Help()
	}
	return noCommand(cmd, args[0])
}

// noCommand says that a command holds none of this name, and which is probably meant.
func noCommand(cmd *cobra.Command, name string) error {
	hint := "; " + cmd.CommandPath() + " --help lists what there is"
	if near := meant(cmd, name); len(near) > 0 {
		hint = "; did you mean: " + strings.Join(near, ", ") + "?"
	}
	return usagef("%s has no command %q%s", cmd.CommandPath(), name, hint)
}

// meant are the commands that a name probably means: one that has it further down, one that is called so elsewhere, one that is written alike.
func meant(cmd *cobra.Command, name string) []string {
	if many := name + "s"; slices.ContainsFunc(cmd.Commands(), func(c *cobra.Command) bool { return c.Name() == many }) { // docker volume, berth volumes
		return []string{strings.TrimPrefix(cmd.CommandPath()+" "+many, " ")}
	}
	for _, verb := range slices.Concat([]string{name}, elsewhere[name]) {
		if found := holding(cmd, verb); len(found) > 0 {
			return found
		}
	}
	cmd.SuggestionsMinimumDistance = 2
	return cmd.SuggestionsFor(name)
}

// holding gives the commands of this name that a command holds, itself or in its groups.
func holding(cmd *cobra.Command, name string) (found []string) {
	for _, c := range cmd.Commands() {
		if c.Name() == name && c.IsAvailableCommand() {
			return []string{c.Name()}
		}
		for _, inner := range c.Commands() {
			if inner.Name() == name && cmd == cmd.Root() {
				found = append(found, inner.CommandPath())
			}
		}
	}
	slices.SortStableFunc(found, func(a, b string) int { return about(b) - about(a) })
	return found[:min(3, len(found))]
}

// about puts sandboxes before everything else: they are what is mostly meant.
func about(path string) int {
	if strings.Contains(path, " sandboxes ") {
		return 1
	}
	return 0
}

// unwanted says that a command takes no such argument, and how it is written.
func unwanted(cmd *cobra.Command, arg string) error {
	if arg == "true" || arg == "false" {
		return usagef("%s takes no argument %q; the value of a flag that is on or off stands behind =, such as --flag=%s", cmd.CommandPath(), arg, arg)
	}
	return usagef("%s takes no argument %q; usage: %s", cmd.CommandPath(), arg, cmd.UseLine())
}

// NoArgs refuses arguments; of a command that holds others it says which there are.
func NoArgs(cmd *cobra.Command, args []string) error {
	switch {
	case len(args) == 0:
		return nil
	case cmd.HasAvailableSubCommands():
		return noCommand(cmd, args[0])
	}
	return unwanted(cmd, args[0])
}

// OneArg wants one argument.
func OneArg(cmd *cobra.Command, args []string) error {
	switch len(args) {
	case 0:
		return usagef("%s needs an argument; usage: %s", cmd.CommandPath(), cmd.UseLine())
	case 1:
		return nil
	}
	return unwanted(cmd, args[1])
}

// badFlag says what is wrong with a flag, and of what runs in a sandbox that its own flags stand behind --.
func badFlag(cmd *cobra.Command, err error) error {
	unknown, long := errors.AsType[*pflag.NotExistError](err)
	if !long {
		return usageError{err}
	}
	if strings.Contains(cmd.Use, "[ARG]...") && cmd.Flags().NArg() > 0 {
		return usageError{fmt.Errorf("%w; what runs in the sandbox stands behind --: %s %s -- PROGRAM [ARG]", err, cmd.CommandPath(), cmd.Flags().Arg(0))}
	}
	if near := alike(cmd, unknown.GetSpecifiedName()); len(near) > 0 {
		return usageError{fmt.Errorf("%w; did you mean: %s?", err, strings.Join(near, ", "))}
	}
	return usageError{fmt.Errorf("%w; %s --help lists the flags", err, cmd.CommandPath())}
}

// alike are the flags that somebody probably means who writes a name that no flag has: one that holds it as a word, such as resources.memory-mib for
// memory, or one more or less than it in number.
func alike(cmd *cobra.Command, name string) (near []string) {
	if len(name) < 3 { // it stands in too many
		return nil
	}
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		words := strings.FieldsFunc(f.Name, func(r rune) bool { return r == '-' || r == '.' })
		whole := strings.Join(words, "-")
		if !f.Hidden && (f.Name == name+"s" || f.Name+"s" == name || slices.Contains(words, name) || strings.HasPrefix(whole, name+"-") || strings.HasSuffix(whole, "-"+name)) {
			near = append(near, "--"+f.Name)
		}
	})
	return near[:min(3, len(near))]
}
