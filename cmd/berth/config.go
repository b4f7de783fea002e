package main

import (
	"encoding/json"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/berthrun/berth/internal/cli"
	"github.com/berthrun/berth/internal/config"
)

func configCommand(env func(string) string) *cobra.Command {
	s := newSettings(env)
	origins := false
	c := &cobra.Command{
		Use: "config", Short: "Print the configuration in effect, without passwords", Args: cli.NoArgs,
		Long: "Prints what a server started here and now would be told by file, environment and flags, as a file that it could read. Passwords are left out.",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := s.load(); err != nil {
				return err
			}
			if asJSON(cmd) {
				return s.printJSON(cmd)
			}
			return s.Print(cmd.OutOrStdout(), origins)
		},
	}
	s.flags(c, everyKey)
	c.Flags().BoolVar(&origins, "origins", false, "say for each value where it came from")
	c.AddCommand(configCheck(), configReference(), configTemplate())
	return c
}

// asJSON reports whether -o json was given.
func asJSON(cmd *cobra.Command) bool {
	f := cmd.Flag("output")
	return f != nil && f.Value.String() == "json"
}

func (s *settings) printJSON(cmd *cobra.Command) error {
	type value struct {
		Key    string `json:"key"`
		Value  any    `json:"value"`
		Origin string `json:"origin"`
	}
	all := []value{}
	for _, k := range config.Keys() {
		all = append(all, value{k.Path, k.Printable(&s.Config), s.Origins[k.Path].String()})
	}
	enc := json.NewEncoder(cmd.OutOrStdout())
	enc.SetIndent("", "  ")
	enc.SetEscapeHTML(false)
	return enc.Encode(map[string]any{"file": s.File, "values": all})
}

func configCheck() *cobra.Command {
	return &cobra.Command{
		Use: "check FILE", Short: "Check a configuration file", Args: cli.OneArg,
		Long: "Reads a file as a server would, by itself: without environment and flags. It names every key that is wrong, and its line.",
		RunE: func(cmd *cobra.Command, args []string) error {
			none := func(string) string { return "" }
			if _, err := config.Load(config.Options{File: args[0], Env: none, DataDir: cli.DataDir(none)}); err != nil {
				return err
			}
			_, err := fmt.Fprintf(cmd.OutOrStdout(), "%s is good.\n", args[0])
			return err
		},
	}
}

func configReference() *cobra.Command {
	return &cobra.Command{
		Use: "reference", Short: "Print what every key means, as Markdown", Args: cli.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := fmt.Fprint(cmd.OutOrStdout(), config.Reference())
			return err
		},
	}
}

func configTemplate() *cobra.Command {
	return &cobra.Command{
		Use: "template", Short: "Print a configuration file with every key, commented out", Args: cli.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := fmt.Fprint(cmd.OutOrStdout(), config.Template())
			return err
		},
	}
}
