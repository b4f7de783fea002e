// Command berth is the whole of Berth in one program: the server with its node, and the command line for it.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/berthrun/berth/internal/cli"
)

// version is set when a release is built.
var version = "0.1.0-dev"

func main() {
	ctx, stop := context.WithCancel(context.Background())
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	go func() {
		// The first signal ends what runs in order; a second one ends the program, also when it comes at once.
		<-signals
		signal.Stop(signals)
		stop()
	}()
	code := cli.Main(ctx, os.Args[1:], os.Getenv, os.Stdin, os.Stdout, os.Stderr, cli.Commands{
		Version: version,
		Extra:   commands(os.Getenv),
		Under:   map[string][]*cobra.Command{"audit": {verifyCommand(os.Getenv)}},
		Pages:   map[string]string{"berth.yaml.5": configPage()},
		DataDir: func() string { return dataDir(os.Getenv) },
	})
	stop()
	os.Exit(code)
}

// commands are those that this program adds to the derived ones.
func commands(env func(string) string) []*cobra.Command {
	return []*cobra.Command{serveCommand(env), devCommand(env), prepareCommand(env), removeCommand(env), configCommand(env), doctorCommand(env)}
}
