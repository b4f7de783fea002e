// Package cli owns the command line: one command for every operation, derived from the api package, and how inputs, results, errors and exit codes
// look in a terminal.
//
// It makes every call over HTTP through the client, as anybody's program does, and holds no privilege. Commands that run a server come from outside.
package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/berthrun/berth/api"
	"github.com/berthrun/berth/client"
	"github.com/berthrun/berth/internal/errs"
)

// The exit codes. A command that runs something in a sandbox ends with that program's own instead.
const (
	exitOK          = 0
	exitFailed      = 1
	exitUsage       = 2
	exitCannotRun   = 126
	exitInterrupted = 130
)

// Commands is what the program adds to the derived commands.
type Commands struct {
	Version string
	// Extra are whole commands, such as serve, dev, prepare and doctor. Their errors are shown like all others; ExitError sets an exit code.
	Extra []*cobra.Command
	// Under are commands below a group of derived ones, by the group's name, such as verify of audit.
	Under map[string][]*cobra.Command
	// Pages are pages of the manual beside those of commands, by file name, such as berth.yaml.5.
	Pages map[string]string
	// DataDir is where the server of this machine keeps its data; nil: see DataDir.
	DataDir func() string
}

// ExitError ends the program with a code and without a message: what there was to say has been said.
type ExitError struct{ Code int }

// Error implements error.
func (e ExitError) Error() string { return fmt.Sprintf("exit code %d", e.Code) }

// usageError is a command line that makes no sense.
type usageError struct{ error }

func (e usageError) Unwrap() error { return e.error }

func usagef(format string, args ...any) error { return usageError{fmt.Errorf(format, args...)} }

// app is one run of the program.
type app struct {
	env            func(string) string
	stdin          io.Reader
	stdout, stderr io.Writer
	version        string

	url, key, output string
	timeout          time.Duration
	quiet            bool
	dataDir          func() string
	local            bool // the server that was called is the one of this machine
	mine             bool // the list that is printed holds only what this key made
	runs             bool // the exit code is that of what runs in the sandbox
}

// Main runs the command line and gives the exit code. args are without the program's name; env reads the environment.
func Main(ctx context.Context, args []string, env func(string) string, stdin io.Reader, stdout, stderr io.Writer, more Commands) int {
	a := &app{env: env, stdin: stdin, stdout: stdout, stderr: stderr, version: more.Version, dataDir: more.DataDir}
	if a.dataDir == nil {
		a.dataDir = func() string { return DataDir(env) }
	}
	root := a.root(more)
	root.SetArgs(append([]string{}, args...)) // nil would mean os.Args
	err := root.ExecuteContext(ctx)
	if err == nil {
		return exitOK
	}
	if exit, ok := errors.AsType[ExitError](err); ok {
		return exit.Code
	}
	if ctx.Err() != nil && errors.Is(err, context.Canceled) {
		a.say("interrupted")
		return exitInterrupted
	}
	a.printError(err)
	if _, ok := errors.AsType[usageError](err); ok {
		return exitUsage
	}
	if e, ok := asError(err); ok && a.runs && e.Reason == "cannot_run" {
		return exitCannotRun
	}
	return exitFailed
}

func (a *app) root(more Commands) *cobra.Command {
	root := &cobra.Command{
		Use: "berth", Short: "Compute for AI agents on machines you own",
		Long: "Berth gives AI agents sandboxes on machines you own.\n\n" +
			"The server is given by --url and --key, or BERTH_URL and BERTH_API_KEY, or else it is the one that runs on this machine.",
		SilenceUsage: true, SilenceErrors: true, Args: cobra.ArbitraryArgs, RunE: group, Version: first(a.version, "unknown"),
	}
	root.SetVersionTemplate("berth {{.Version}}\n")
	root.SetIn(a.stdin)
	root.SetOut(a.stdout)
	root.SetErr(a.stderr)
	root.SetFlagErrorFunc(badFlag)
	f := root.PersistentFlags()
	f.StringVar(&a.url, "url", "", "the server's address (BERTH_URL)")
	f.StringVar(&a.key, "key", "", "an API key; BERTH_API_KEY keeps it out of the list of processes")
	f.StringVarP(&a.output, "output", "o", "table", "table or json")
	f.BoolVarP(&a.quiet, "quiet", "q", false, "print ids and content alone, and no notes")
	f.DurationVar(&a.timeout, "timeout", 0, "give up after this long, such as 30s (default: never)")
	root.PersistentPreRunE = func(*cobra.Command, []string) error {
		if a.output != "table" && a.output != "json" {
			return usagef("-o is table or json, not %q", a.output)
		}
		return nil
	}
	root.AddGroup(&cobra.Group{ID: "operations", Title: "Operations:"}, &cobra.Group{ID: "server", Title: "This machine:"})
	for _, c := range a.derived(api.All(), more.Under) {
		c.GroupID = "operations"
		root.AddCommand(c)
	}
	for _, c := range more.Extra {
		c.GroupID = "server"
		root.AddCommand(c)
	}
	root.AddCommand(a.operations(), a.versionCommand(), a.man(root, more.Pages))
	return root
}

func (a *app) versionCommand() *cobra.Command {
	return &cobra.Command{
		Use: "version", Short: "Print the version", Args: NoArgs,
		RunE: func(*cobra.Command, []string) error {
			_, err := fmt.Fprintln(a.stdout, a.version)
			return err
		},
	}
}

// context is the command's context, ended by --timeout.
func (a *app) context(cmd *cobra.Command) (context.Context, context.CancelFunc) {
	if a.timeout > 0 {
		return context.WithTimeout(cmd.Context(), a.timeout)
	}
	return context.WithCancel(cmd.Context())
}

// note says something beside the result.
func (a *app) note(format string, args ...any) {
	if !a.quiet {
		a.say(format, args...)
	}
}

func (a *app) say(format string, args ...any) { fmt.Fprintf(a.stderr, "berth: "+format+"\n", args...) }

// printError writes an error for a person, or with -o json as the API writes it.
func (a *app) printError(err error) {
	e, ok := asError(err)
	if ok && a.output != "json" {
		a.noteWoke(e.Details["woke"])
	}
	if ok && a.output == "json" {
		fields := map[string]any{"code": e.Code, "message": e.Message}
		for name, v := range map[string]string{"suggestion": e.Suggestion, "requestId": e.RequestID, "reason": e.Reason} {
			if v != "" {
				fields[name] = v
			}
		}
		if e.RetryAfter > 0 {
			fields["retryAfterMs"] = e.RetryAfter.Milliseconds()
		}
		if len(e.Details) > 0 {
			fields["details"] = e.Details
		}
		_ = writeJSON(a.stderr, map[string]any{"error": fields}) // there is nowhere left to say that it failed
		return
	}
	if ok && a.timeout > 0 && errors.Is(err, context.DeadlineExceeded) {
		a.say("nothing came within --timeout %s (%s): the call was given up here; what it began may go on", a.timeout, e.Code)
		return
	}
	a.say("%s", lines(err.Error()))
	if !ok {
		return
	}
	if a.local && e.Code == "UNAVAILABLE" && e.RequestID == "" {
		fmt.Fprintln(a.stderr, "  The server of this machine does not answer. Start it with: sudo berth serve, or systemctl start berth; berth doctor says what is wrong.")
		return
	}
	if e.Suggestion != "" {
		fmt.Fprintf(a.stderr, "  %s\n", plain(commandsFor(e.Suggestion)))
	}
	if e.RequestID != "" {
		fmt.Fprintf(a.stderr, "  request %s\n", plain(e.RequestID))
	}
}

// asError finds the error that a server answered, or that a command which runs one met here.
func asError(err error) (*client.Error, bool) {
	if e, ok := errors.AsType[*client.Error](err); ok {
		return e, true
	}
	if e, ok := errors.AsType[*errs.Error](err); ok {
		return &client.Error{
			Code: string(e.Code), Message: e.Message, Suggestion: e.Suggestion, Reason: e.Reason, RetryAfter: e.RetryAfter, Details: e.Details,
		}, true
	}
	return nil, false
}
