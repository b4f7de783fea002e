package main

import (
	"github.com/spf13/cobra"

	"github.com/berthrun/berth/internal/cli"
)

// verifyCommand checks the audit log in the server's own database.
func verifyCommand(env func(string) string) *cobra.Command {
	s := newSettings(env)
	takes := func(path string) bool { return path == "data" || path == "database.url" }
	return cli.VerifyCommand(func(c *cobra.Command) { s.flags(c, takes) }, func() (string, error) {
		if err := s.load(); err != nil {
			return "", err
		}
		return s.databaseURL(), nil
	})
}
