package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

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
