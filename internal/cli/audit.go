package cli

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/berthrun/berth/api"
	"github.com/berthrun/berth/internal/audit"
	"github.com/berthrun/berth/internal/db"
)

// exportAuditCommand writes the audit log to standard output.
func (a *app) exportAuditCommand() *cobra.Command {
	var in api.ExportAuditIn
	cmd := &cobra.Command{
		Use: "export [flags]", DisableFlagsInUseLine: true, Short: "Export the audit log as JSON Lines",
		Long: "Writes the organization's audit log to standard output, one call a line, the oldest first, with hashes: berth audit verify FILE checks it without a server. " +
			"An export that ended early, or that has grown old, goes on with --after and the number of its last whole line.\n\n" +
			"HTTP: GET /v1/audit/export\nNeeds: audit:log:read",
		Example: "  berth audit export > audit.jsonl\n  berth audit export --after 1200 >> audit.jsonl",
		Args:    NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, cancel := a.context(cmd)
			defer cancel()
			conn, err := a.connect()
			if err != nil {
				return err
			}
			_, err = conn.ExportAudit(ctx, in, a.stdout)
			return err
		},
	}
	cmd.Flags().Int64Var(&in.After, "after", 0, "the `number` of the last row that was had before")
	return cmd
}

// VerifyCommand checks the audit log of a database, which settings find, or an export. flags adds the flags that database reads.
func VerifyCommand(flags func(*cobra.Command), database func() (string, error)) *cobra.Command {
	var noted, organization string
	cmd := &cobra.Command{
		Use: "verify [FILE] [flags]", DisableFlagsInUseLine: true, Short: "Check that the audit log is as it was recorded",
		Long: "Follows the hashes of the audit log of this machine's server, which may be running, or with FILE those of an export, without a server; - is standard input. It says how many rows " +
			"there are and that they are whole, or names the first one that was changed, removed or put in. The exit code is 1 where something is wrong.\n\n" +
			"Whoever may write to the database can make all of it anew, hashes too. Note the last number and hash elsewhere, and give them with --expect the next time.",
		Example: "  berth audit verify\n  berth audit verify audit.jsonl --expect 1200:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) > 1 {
				return unwanted(cmd, args[1])
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			expect, err := mark(noted)
			if err != nil {
				return err
			}
			var all []audit.Verdict
			if len(args) == 1 {
				all, err = verifyFile(cmd.InOrStdin(), args[0], organization, expect)
			} else {
				all, err = verifyDatabase(cmd.Context(), database, organization, expect)
			}
			if err != nil {
				return err
			}
			out, _ := cmd.Flags().GetString("output")
			return verdicts(cmd.OutOrStdout(), out == "json", all, expect)
		},
	}
	cmd.Flags().StringVar(&noted, "expect", "", "a row that has to be there as it was: `NUMBER:HASH`")
	cmd.Flags().StringVar(&organization, "organization", "", "look only at the log of the organization with this `id`")
	flags(cmd)
	return cmd
}

// mark reads NUMBER:HASH.
func mark(s string) (m audit.Mark, err error) {
	if s == "" {
		return m, nil
	}
	number, hash, _ := strings.Cut(s, ":")
	m.Hash = strings.ToLower(hash)
	m.Number, err = strconv.ParseInt(number, 10, 64)
	if b, bad := hex.DecodeString(m.Hash); err != nil || bad != nil || m.Number < 1 || len(b) != 32 {
		return m, usagef("--expect is a number, a colon and the 64 hexadecimal digits of a hash, not %q", s)
	}
	return m, nil
}

func verifyFile(stdin io.Reader, name, organization string, expect audit.Mark) ([]audit.Verdict, error) {
	src := io.NopCloser(stdin)
	if name != "-" {
		f, err := os.Open(name) //nolint:gosec // the caller's own choice
		if err != nil {
			return nil, err
		}
		src = f
	}
	defer src.Close()
	v, err := audit.VerifyExport(src, expect)
	if err != nil {
		return nil, fmt.Errorf("%s is no export of the audit log: %w", name, err)
	}
	if organization != "" && v.Rows > 0 && v.Organization != organization {
		return nil, fmt.Errorf("%s is the log of the organization %s", name, plain(v.Organization))
	}
	return []audit.Verdict{v}, nil
}

func verifyDatabase(ctx context.Context, database func() (string, error), organization string, expect audit.Mark) (_ []audit.Verdict, err error) {
	url, err := database()
	if err != nil {
		return nil, err
	}
	d, err := db.OpenToRead(ctx, url)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, d.Close()) }()
	return audit.Verify(ctx, d, organization, expect)
}

// verdicts prints what was found, for each organization.
func verdicts(w io.Writer, asJSON bool, all []audit.Verdict, expect audit.Mark) error {
	bad, seen := false, expect.Number == 0
	var lines []map[string]any
	var b strings.Builder
	for _, v := range all {
		bad, seen = bad || v.Wrong != nil, seen || v.Seen
		line := map[string]any{"organizationId": v.Organization, "rows": v.Rows, "whole": v.Wrong == nil}
		if v.Rows > 0 && v.Last.Number > 0 {
			line["first"], line["last"], line["hash"] = v.First.Number, v.Last.Number, v.Last.Hash
		}
		if v.Wrong != nil {
			line["wrongRow"], line["problem"] = v.Wrong.Number, v.Wrong.How
		}
		lines = append(lines, line)
		b.WriteString(verdict(&v))
	}
	if len(all) == 0 {
		b.WriteString("There are no rows yet.\n")
	}
	if !seen {
		fmt.Fprintf(&b, "Row %d with the hash %s is not there: the log was made anew, or the row is older than what is kept or exported.\n", expect.Number, expect.Hash)
	} else if expect.Number > 0 {
		fmt.Fprintf(&b, "Row %d is there as it was noted.\n", expect.Number)
	}
	var err error
	if asJSON {
		out := map[string]any{"organizations": lines, "whole": !bad && seen}
		if expect.Number > 0 {
			out["expected"] = seen
		}
		err = writeJSON(w, out)
	} else {
		_, err = io.WriteString(w, b.String())
	}
	if err == nil && (bad || !seen) {
		return ExitError{Code: exitFailed}
	}
	return err
}

func verdict(v *audit.Verdict) string {
	who := plain(first(v.Organization, "-"))
	if v.Wrong != nil {
		return fmt.Sprintf("%s: row %d is wrong: %s.\n", who, v.Wrong.Number, plain(v.Wrong.How))
	}
	if v.Rows == 0 {
		return who + ": no rows, whole.\n"
	}
	return fmt.Sprintf("%s: %d rows, first %d, last %d:%s, whole.\n", who, v.Rows, v.First.Number, v.Last.Number, v.Last.Hash)
}
