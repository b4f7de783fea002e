package cli

import (
	"context"
	"strings"

	"github.com/berthrun/berth/client"
)

// sshDomain ends the names under which SSH clients know sandboxes.
const sshDomain = ".berth"

// sandboxID gives the id of a sandbox that is named by its id or its name.
func (a *app) sandboxID(ctx context.Context, c *client.Client, name string) (string, error) {
	name = strings.TrimSuffix(name, sshDomain)
	if !sandboxName.MatchString(name) {
		return "", usagef("%q is neither the id nor the name of a sandbox", name)
	}
	return sandboxID(ctx, c, name)
}
