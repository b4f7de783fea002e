package main

import (
	"encoding/json"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/berthrun/berth/internal/cli"
	"github.com/berthrun/berth/internal/doctor"
)

func doctorCommand(env func(string) string) *cobra.Command {
	s := newSettings(env)
	var urls []string
	c := &cobra.Command{
		Use: "doctor", Short: "Examine this machine and its deployment", Args: cli.NoArgs,
		Long: "Looks at what Berth needs of this machine and whether its server, database, image and addresses are as they should be. It changes nothing, " +
			"works with and without a running server, and says what it could not look at without root. The exit code is 1 where something is an error.",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := s.load(); err != nil {
				return err
			}
			c := doctor.Config{
				Data: s.Data, ImageDir: s.imageDir(), ConfigFile: s.File, Database: s.databaseURL(), PublicURL: s.PublicURL, MCPURLs: urls,
				Listen: net.JoinHostPort(s.Listen.Address, strconv.Itoa(s.Listen.Port)), Proxies: len(s.Listen.TrustedProxies) > 0,
				Runtime: s.Node.Runtime, Guest: s.Node.Guest, Disk: s.Node.Disk, TrustHostCA: s.Node.TrustHostCA, UID: os.Geteuid(),
			}
			var err error
			if c.Left, err = cli.LocalURL(s.Data); err != nil {
				return err
			}
			if s.MCP.Enabled {
				c.MCPPath = s.MCP.Path
			}
			return report(cmd, doctor.Run(cmd.Context(), c))
		},
	}
	s.flags(c, everyKey)
	c.Flags().StringArrayVar(&urls, "mcp-url", nil, "another MCP endpoint to ask for its tools without a credential. Can be repeated.")
	return c
}

func report(cmd *cobra.Command, checks []doctor.Check) error {
	count := map[string]int{}
	for _, c := range checks {
		count[c.Status]++
	}
	var err error
	if asJSON(cmd) {
		enc := json.NewEncoder(cmd.OutOrStdout())
		enc.SetIndent("", "  ")
		enc.SetEscapeHTML(false)
		err = enc.Encode(map[string]any{"status": doctor.Worst(checks), "errors": count[doctor.Error], "warnings": count[doctor.Warn], "checks": checks})
	} else {
		w := tabwriter.NewWriter(cmd.OutOrStdout(), 0, 8, 2, ' ', 0)
		for _, c := range checks {
			_, _ = fmt.Fprintf(w, "%s\t%s\t%s\n", c.Status, c.ID, oneLine(c.Found))
			if c.Do != "" {
				_, _ = fmt.Fprintf(w, "\t\t→ %s\n", oneLine(c.Do))
			}
		}
		_, _ = fmt.Fprintf(w, "\n%d errors, %d warnings, %d not looked at.\n", count[doctor.Error], count[doctor.Warn], count[doctor.Skipped])
		err = w.Flush()
	}
	if err == nil && count[doctor.Error] > 0 {
		return cli.ExitError{Code: 1}
	}
	return err
}

// oneLine keeps what another server said from steering the terminal.
func oneLine(s string) string {
	return strings.Map(func(r rune) rune {
		if r < 0x20 || r == 0x7f || r >= 0x80 && r < 0xa0 {
			return ' '
		}
		return r
	}, s)
}
