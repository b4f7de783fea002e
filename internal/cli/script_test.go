package cli_test

import (
	"context"
	"errors"
	"os"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
	"github.com/spf13/cobra"

	"github.com/berthrun/berth/internal/cli"
)

func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){"berth": func() {
		more := cli.Commands{Version: "1.2.3", Extra: []*cobra.Command{{
			Use: "serve", Short: "Serve", RunE: func(*cobra.Command, []string) error { return cli.ExitError{Code: 7} },
		}}, Under: map[string][]*cobra.Command{"audit": {cli.VerifyCommand(func(*cobra.Command) {}, func() (string, error) { return os.Getenv("AUDIT_DB"), nil })}}}
		os.Exit(cli.Main(context.Background(), os.Args[1:], os.Getenv, os.Stdin, os.Stdout, os.Stderr, more))
	}})
}

// TestScripts runs whole sessions of the command line against the HTTP API, each script against a server of its own.
func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata",
		RequireExplicitExec: true,
		Cmds:                map[string]func(*testscript.TestScript, bool, []string){"change": change},
		Condition: func(name string) (bool, error) {
			if name != "root" {
				return false, errors.New("unknown condition")
			}
			return os.Geteuid() == 0, nil
		},
		Setup: func(e *testscript.Env) error {
			bindAudit, err := auditOf(e)
			if err != nil {
				return err
			}
			srv, _ := startServer(bindAudit)
			e.Defer(srv.Close)
			e.Setenv("BERTH_URL", srv.URL)
			e.Setenv("BERTH_API_KEY", testKey)
			e.Setenv("BERTH_DATA", e.WorkDir+"/data")
			return nil
		},
	})
}
