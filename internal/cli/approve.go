package cli

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/berthrun/berth/api"
	"github.com/berthrun/berth/client"
)

// asked is the canonical request as it is approved.
type asked struct {
	V            int
	Organization string
	Operation    string
	Action       string
	Resource     struct {
		Kind, ID, Name, Organization, Workspace string
		Version                                 int64
	}
	Arguments json.RawMessage
	Cost      map[string]int64
	Uses      map[string]string
	Workspace string
	Principal string
	Person    string
	Agent     string
	App       string
	Key       string
	Nonce     string
	Expires   time.Time
}

// draftVersion is the form of requests that is understood here.
const draftVersion = 1

// readAsked reads a request. One that says more than is understood here is refused: it would not be shown whole.
func readAsked(draft string) (*asked, error) {
	var a asked
	dec := json.NewDecoder(strings.NewReader(draft))
	dec.DisallowUnknownFields()
	err := dec.Decode(&a)
	if err == nil && a.V != draftVersion {
		err = fmt.Errorf("its form is %d, known is %d", a.V, draftVersion)
	}
	if err != nil {
		return nil, fmt.Errorf("this request cannot be shown whole, and was not approved; is berth older than the server? %w", err)
	}
	return &a, nil
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
	a, err := readAsked(got.Confirmation.Draft)
	if err == nil {
		err = c.renderAsked(a)
	}
	if err != nil {
		return err
	}
	in["digest"] = got.Confirmation.Digest
	if c.yes {
		return nil
	}
	// What was first may have scrolled away behind the arguments.
	return c.ask(plain(strings.TrimSpace(a.Operation+" "+a.Resource.ID)) + ": Approve exactly this")
}

func (c *command) renderAsked(a *asked) error {
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
	for _, name := range slices.Sorted(maps.Keys(a.Uses)) {
		line("means", name+" "+a.Uses[name])
	}
	for _, limit := range slices.Sorted(maps.Keys(a.Cost)) {
		line("takes", fmt.Sprintf("%d of %s", a.Cost[limit], limit))
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
