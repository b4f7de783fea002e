package cli

import (
	"context"
	"strings"

	"github.com/berthrun/berth/api"
	"github.com/berthrun/berth/client"
	"github.com/berthrun/berth/internal/id"
)

// sshDomain ends the names under which SSH clients know sandboxes.
const sshDomain = ".berth"

// sandboxID gives the id of a sandbox that is named by its id or its name.
func (a *app) sandboxID(ctx context.Context, c *client.Client, name string) (string, error) {
	name = strings.TrimSuffix(name, sshDomain)
	if id.Valid(id.Sandbox, name) {
		return name, nil
	}
	if !sandboxName.MatchString(name) {
		return "", usagef("%q is neither the id nor the name of a sandbox", name)
	}
	out, err := client.Call(ctx, c, api.ListSandboxes, api.ListSandboxesIn{Name: name, Scope: "all"})
	if err != nil {
		return "", err
	}
	switch len(out.Items) {
	case 1:
		return out.Items[0].ID, nil
	case 0:
		return "", &client.Error{Code: "NOT_FOUND", Message: "there is no sandbox " + name, Suggestion: "berth sandboxes list --scope all shows which there are."}
	}
	return "", usagef("several sandboxes have the name %s: give an id", name)
}
