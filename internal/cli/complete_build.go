package cli

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/berthrun/berth/api"
	"github.com/berthrun/berth/client"
)

// templatesFor offers names and ids of what was built.
func templatesFor(ctx context.Context, conn *client.Client, _ []string) (all []cobra.Completion) {
	out, err := client.Call(ctx, conn, api.ListTemplates, api.ListTemplatesIn{PageIn: offered})
	if err != nil {
		return nil
	}
	for _, t := range out.Items {
		if !t.BuiltIn {
			all = append(all, described(t.Name, t.ID), described(t.ID, t.Name))
		}
	}
	return all
}

// buildsFor offers ids, the newest first.
func buildsFor(ctx context.Context, conn *client.Client, _ []string) (all []cobra.Completion) {
	out, err := client.Call(ctx, conn, api.ListBuilds, api.ListBuildsIn{PageIn: offered})
	if err != nil {
		return nil
	}
	for _, b := range out.Items {
		all = append(all, described(b.ID, b.Status, b.Name, fmt.Sprintf("version %d", b.Version)))
	}
	return all
}
