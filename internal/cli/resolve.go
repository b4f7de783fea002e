package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/berthrun/berth/api"
	"github.com/berthrun/berth/client"
	"github.com/berthrun/berth/internal/id"
)

// onlyName is what a sandbox may be called.
var onlyName = regexp.MustCompile(`^[a-z0-9][a-z0-9._-]{0,62}$`)

// resolve puts a sandbox's id in place of its name, where the input names one.
func (c *command) resolve(cmd *cobra.Command, in map[string]any) error {
	name, _ := in["sandboxId"].(string)
	if !namesSandbox(name) {
		return nil
	}
	conn, err := c.connect()
	if err != nil {
		return err
	}
	ctx, cancel := c.context(cmd)
	defer cancel()
	in["sandboxId"], err = sandboxID(ctx, conn, name)
	return err
}

// namesSandbox reports whether an argument is a sandbox's name and not an id, nor something that is neither.
func namesSandbox(arg string) bool { return !id.Valid(id.Sandbox, arg) && onlyName.MatchString(arg) }

// sandboxID gives the id of the sandbox that has a name, or the argument where it is no name. Nobody's is NOT_FOUND.
func sandboxID(ctx context.Context, conn *client.Client, arg string) (string, error) {
	if !namesSandbox(arg) {
		return arg, nil
	}
	out, err := client.Call(ctx, conn, api.ListSandboxes, api.ListSandboxesIn{Name: arg, Scope: "all"})
	if err != nil {
		return "", err
	}
	if len(out.Items) > 1 { // one that is being deleted may still have the name of the one that is meant
		out.Items = slices.DeleteFunc(out.Items, func(s api.Sandbox) bool { return s.State == api.StateDeleting })
	}
	switch len(out.Items) {
	case 1:
		return out.Items[0].ID, nil
	case 0:
		return "", &client.Error{Code: "NOT_FOUND", Message: "no sandbox is called " + arg, Suggestion: "berth sandboxes list shows what there is."}
	}
	var ids []string
	for _, s := range out.Items {
		ids = append(ids, s.ID)
	}
	return "", usagef("%d sandboxes are called %s: %s", len(ids), arg, strings.Join(ids, ", "))
}

// completeTime bounds how long the shell waits for what can come next.
const completeTime = 2 * time.Second

// complete offers what the server has for the argument that comes next.
func (c *command) complete(cmd *cobra.Command, args []string, typed string) ([]cobra.Completion, cobra.ShellCompDirective) {
	none := cobra.ShellCompDirectiveNoFileComp
	if len(args) >= len(c.args) {
		if c.tail {
			return nil, cobra.ShellCompDirectiveDefault
		}
		return nil, none
	}
	conn, err := c.connect()
	if err != nil {
		return nil, none
	}
	ctx, cancel := context.WithTimeout(cmd.Context(), completeTime)
	defer cancel()
	var offers []cobra.Completion
	switch c.args[len(args)].name {
	case "sandboxId":
		offers = sandboxesFor(ctx, conn)
	case "processId":
		offers = processesFor(ctx, conn, args)
	case "keyId":
		offers = keysFor(ctx, conn)
	default:
		return nil, cobra.ShellCompDirectiveDefault
	}
	return slices.DeleteFunc(offers, func(o string) bool { return !strings.HasPrefix(o, typed) }), none
}

// sandboxesFor offers names and ids; an error offers nothing, as a shell has no place for it.
func sandboxesFor(ctx context.Context, conn *client.Client) (offers []cobra.Completion) {
	out, err := client.Call(ctx, conn, api.ListSandboxes, api.ListSandboxesIn{})
	if err != nil {
		return nil
	}
	for _, s := range out.Items {
		if s.Name != "" {
			offers = append(offers, cobra.CompletionWithDesc(s.Name, s.State+" "+s.ID))
		}
		offers = append(offers, cobra.CompletionWithDesc(s.ID, strings.TrimSpace(s.State+" "+s.Name)))
	}
	return offers
}

func processesFor(ctx context.Context, conn *client.Client, args []string) (offers []cobra.Completion) {
	sandbox, err := sandboxID(ctx, conn, args[0])
	if err != nil {
		return nil
	}
	out, err := client.Call(ctx, conn, api.ListProcesses, api.ListProcessesIn{SandboxIn: api.SandboxIn{SandboxID: sandbox}})
	if err != nil {
		return nil
	}
	for _, p := range out.Items {
		offers = append(offers, cobra.CompletionWithDesc(p.ID, p.State+" "+clip(plain(p.Command))))
	}
	return offers
}

func keysFor(ctx context.Context, conn *client.Client) (offers []cobra.Completion) {
	out, err := client.Call(ctx, conn, api.ListKeys, api.ListKeysIn{})
	if err != nil {
		return nil
	}
	for _, k := range out.Items {
		offers = append(offers, cobra.CompletionWithDesc(k.ID, plain(k.Name)))
	}
	return offers
}

// ids prints nothing but the ids of a result, one a line, for scripts.
func (a *app) ids(raw json.RawMessage) error {
	var out map[string]any
	if err := json.Unmarshal(raw, &out); err != nil {
		return fmt.Errorf("decode output: %w", err)
	}
	var all []string
	items, isList := out["items"].([]any)
	if isList {
		for _, item := range items {
			if s := idOf(item); s != "" {
				all = append(all, s)
			}
		}
	} else {
		for _, v := range out {
			if s := idOf(v); s != "" {
				all = append(all, s)
			}
		}
		if s := idOf(out); s != "" && len(all) == 0 {
			all = append(all, s)
		}
	}
	var errAll error
	for _, s := range all {
		_, err := fmt.Fprintln(a.stdout, plain(s))
		errAll = errors.Join(errAll, err)
	}
	return errAll
}

// idOf is what names a thing in a result.
func idOf(v any) string {
	m, _ := v.(map[string]any)
	for _, name := range []string{"id", "sandboxId", "processId", "path", "key", "name"} {
		if s, ok := m[name].(string); ok && s != "" {
			return s
		}
	}
	return ""
}
