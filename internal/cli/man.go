package cli

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// man writes the manual: a page of section 1 for every command, and the pages that come from outside.
func (a *app) man(root *cobra.Command, extra map[string]string) *cobra.Command {
	return &cobra.Command{
		Use: "man DIR", Short: "Write the manual's pages into a folder", Args: OneArg, DisableFlagsInUseLine: true,
		Long: "Writes a page for every command into DIR/man1, and those of files into DIR/man5, where man finds them: man -M DIR berth.",
		RunE: func(_ *cobra.Command, args []string) error {
			pages := map[string]string{}
			manPages(root, pages)
			for name, text := range extra {
				pages[name] = text
			}
			for name, text := range pages {
				dir := filepath.Join(args[0], "man"+strings.TrimPrefix(filepath.Ext(name), "."))
				err := errors.Join(os.MkdirAll(dir, 0o755), os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644)) //nolint:gosec // pages for everybody
				if err != nil {
					return fmt.Errorf("write %s: %w", name, err)
				}
			}
			return nil
		},
	}
}

// manPages adds the pages of a command and of all below it.
func manPages(c *cobra.Command, pages map[string]string) {
	if c.Hidden || c.Name() == "help" || c.Name() == "completion" {
		return
	}
	pages[strings.ReplaceAll(c.CommandPath(), " ", "-")+".1"] = manPage(c)
	for _, below := range c.Commands() {
		manPages(below, pages)
	}
}

// manPage is one command's page in the language of man.
func manPage(c *cobra.Command) string {
	var b strings.Builder
	name := strings.ReplaceAll(c.CommandPath(), " ", "-")
	fmt.Fprintf(&b, ".TH %s 1 \"\" \"%s\" \"Berth\"\n.SH NAME\n%s \\- %s\n", strings.ToUpper(Roff(name)), Roff("Berth "+c.Root().Version), Roff(name), Roff(first(c.Short, c.Name())))
	fmt.Fprintf(&b, ".SH SYNOPSIS\n.B %s\n.SH DESCRIPTION\n", Roff(c.UseLine()))
	for _, p := range strings.Split(first(c.Long, c.Short), "\n\n") {
		for _, line := range strings.Split(p, "\n") {
			b.WriteString(Roff(line) + "\n.br\n")
		}
		b.WriteString(".PP\n")
	}
	manFlags(&b, "OPTIONS", c.LocalFlags())
	manFlags(&b, "OPTIONS OF ALL COMMANDS", c.InheritedFlags())
	if !c.HasParent() {
		b.WriteString(".SH ENVIRONMENT\n.TP\n.B BERTH_URL\nThe server's address.\n.TP\n.B BERTH_API_KEY\nThe key.\n.TP\n.B BERTH_DATA\nThe data folder of the server of this machine.\n" +
			".SH EXIT STATUS\n0: done. 1: refused or failed. 2: the command line makes no sense. 130: interrupted. A command that runs something in a sandbox ends with that program's own.\n")
	}
	var see []string
	if c.HasParent() {
		see = append(see, strings.ReplaceAll(c.Parent().CommandPath(), " ", "-")+"(1)")
	}
	for _, below := range c.Commands() {
		if !below.Hidden && below.Name() != "help" && below.Name() != "completion" {
			see = append(see, strings.ReplaceAll(below.CommandPath(), " ", "-")+"(1)")
		}
	}
	if len(see) > 0 {
		fmt.Fprintf(&b, ".SH SEE ALSO\n%s\n", Roff(strings.Join(see, ", ")))
	}
	return b.String()
}

func manFlags(b *strings.Builder, title string, flags *pflag.FlagSet) {
	if !flags.HasAvailableFlags() {
		return
	}
	fmt.Fprintf(b, ".SH %s\n", title)
	flags.VisitAll(func(f *pflag.Flag) {
		if f.Hidden {
			return
		}
		kind, text := pflag.UnquoteUsage(f)
		short := ""
		if f.Shorthand != "" {
			short = "-" + f.Shorthand + ", "
		}
		fmt.Fprintf(b, ".TP\n.B %s\n%s\n", Roff(strings.TrimSpace(short+"--"+f.Name+" "+kind)), Roff(first(text, "-")))
	})
}

// Roff writes text so that man shows it as it is: its own characters are escaped, and no line begins with a request.
func Roff(s string) string {
	s = strings.NewReplacer(`\`, `\e`, "-", `\-`, "\t", "    ").Replace(s)
	var b strings.Builder
	if strings.HasPrefix(s, ".") || strings.HasPrefix(s, "'") {
		b.WriteString(`\&`)
	}
	for _, r := range s {
		if r > 0x7e {
			fmt.Fprintf(&b, `\[u%04X]`, r)
			continue
		}
		b.WriteRune(r)
	}
	return b.String()
}
