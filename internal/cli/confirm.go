package cli

import (
	"bufio"
	"fmt"
	"os"
	"slices"
	"strings"

	"golang.org/x/term"

	"github.com/berthrun/berth/api"
	"github.com/berthrun/berth/api/op"
)

// asks reports whether a person is asked first: for what destroys, except where the command line already says all that will happen.
func (c *command) asks() bool {
	said := []string{
		api.Exec.Name, api.StartProcess.Name, api.ProcessSignal.Name, api.WriteFile.Name, api.EditFile.Name, api.MoveFile.Name, api.CancelBuild.Name,
	}
	return c.info.Hints.Has(op.Destructive) && !slices.Contains(said, c.info.Name)
}

// confirm asks on a terminal. Without one nobody could answer: a program says --yes.
func (c *command) confirm(args []string) error {
	if !c.asks() || c.yes {
		return nil
	}
	return c.ask(c.info.Title + " " + plain(strings.Join(args, " ")))
}

// ask asks a question that is to be answered with yes.
func (c *command) ask(question string) error {
	if !isTerminal(c.stdin) {
		return usagef("%s: nobody can be asked here; say --yes", strings.ToLower(c.info.Title[:1])+c.info.Title[1:])
	}
	fmt.Fprintf(c.stderr, "%s? [y/N] ", question)
	line, err := bufio.NewReader(c.stdin).ReadString('\n')
	if err != nil && line == "" {
		fmt.Fprintln(c.stderr)
	}
	switch strings.ToLower(strings.TrimSpace(line)) {
	case "y", "yes":
		return nil
	}
	c.note("nothing was done")
	return ExitError{exitFailed}
}

func isTerminal(v any) bool {
	f, ok := v.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}
