package main

import (
	"fmt"
	"log/slog"
	"os"

	"github.com/spf13/cobra"

	"github.com/berthrun/berth/internal/cli"
	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/image/bootstrap"
	"github.com/berthrun/berth/internal/nodeagent"
)

func removeCommand(env func(string) string) *cobra.Command {
	s := newSettings(env)
	yes := false
	c := &cobra.Command{
		Use: "remove", Short: "Remove what serve keeps on this machine: sandboxes, images, data", Args: cli.NoArgs,
		Long: "Ends every sandbox and berth-runtime, takes its network table, groups and mounts off the machine, and removes the data folder. It cannot be undone. " +
			"The server must not run.",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := s.load(); err != nil {
				return err
			}
			if !yes {
				return errs.E(errs.InvalidInput, "everything in %s would be removed for good", s.Data).Suggest("Say so with --yes.")
			}
			if _, err := os.Stat(s.Data); err != nil {
				return fmt.Errorf("look at the data folder: %w", err)
			}
			unlock, err := lock(s.Data)
			if err != nil {
				return err
			}
			defer unlock()
			if err := nodeagent.Remove(cmd.Context(), s.node(bootstrap.NewBar(cmd.ErrOrStderr()), slog.New(slog.DiscardHandler))); err != nil {
				return err
			}
			if err := os.RemoveAll(s.Data); err != nil {
				return fmt.Errorf("remove the data folder: %w", err)
			}
			_, err = fmt.Fprintln(cmd.OutOrStdout(), "Removed.")
			return err
		},
	}
	c.Flags().BoolVar(&yes, "yes", false, "remove everything in the data folder")
	s.flags(c, nodeKeys)
	return c
}
