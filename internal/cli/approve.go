package cli

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/berthrun/berth/api"
	"github.com/berthrun/berth/client"
)

// asked is the canonical request as it is approved.
type asked struct {
	Operation string
	Action    string
	Resource  struct{ Kind, ID, Name, Organization string }
	Arguments json.RawMessage
	Cost      map[string]int64
	Workspace string
	Person    string
	Agent     string
	App       string
	Key       string
	Expires   time.Time
}

// readBefore shows what is to be approved, of the very bytes whose digest is sent, and asks. Whoever names the digest has read it.
func (c *command) readBefore(cmd *cobra.Command, in map[string]any) error {
	if in["digest"] != nil {
		return nil
	}
	id, _ := in["confirmationId"].(string)
	conn, err := c.connect()
	if err != nil {
		return err
	}
	ctx, cancel := c.context(cmd)
	defer cancel()
	got, err := client.Call(ctx, conn, api.GetConfirmation, api.ConfirmationIn{ConfirmationID: id})
	if err != nil {
		return c.named(err)
	}
	sum := sha256.Sum256([]byte("berth/confirm/v1\x00" + got.Confirmation.Draft))
	if hex.EncodeToString(sum[:]) != got.Confirmation.Digest {
		return errors.New("the server's digest is not that of the request that it shows: nothing was approved")
	}
	if err := c.renderAsked(got.Confirmation); err != nil {
		return err
	}
	in["digest"] = got.Confirmation.Digest
	if c.yes {
		return nil
	}
	return c.ask("Approve exactly this")
}

func (c *command) renderAsked(f api.Confirmation) error {
	var a asked
	if err := json.Unmarshal([]byte(f.Draft), &a); err != nil {
		return fmt.Errorf("read request: %w", err)
	}
	var args bytes.Buffer
	if err := json.Indent(&args, a.Arguments, "  ", "  "); err != nil {
		return fmt.Errorf("read arguments: %w", err)
	}
	line := func(name, value string) {
		if value != "" {
			fmt.Fprintf(c.stderr, "%-11s %s\n", name+":", plain(value))
		}
	}
	line("operation", a.Operation)
	line(a.Resource.Kind, a.Resource.ID)
	line("named", a.Resource.Name)
	for limit, n := range a.Cost {
		line("takes", fmt.Sprintf("%d of %s", n, limit))
	}
	line("person", a.Person)
	line("agent", a.Agent)
	line("app", a.App)
	line("key", a.Key)
	line("workspace", a.Workspace)
	line("until", a.Expires.Local().Format(time.DateTime))
	fmt.Fprintln(c.stderr, "arguments, written by whoever asks:")
	for l := range bytes.Lines(args.Bytes()) {
		fmt.Fprintf(c.stderr, "  %s\n", plain(string(bytes.TrimRight(l, "\n"))))
	}
	return nil
}
