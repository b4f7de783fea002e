package cli

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/berthrun/berth/api"
	"github.com/berthrun/berth/api/op"
	"github.com/berthrun/berth/client"
)

// completeTime bounds how long the shell waits for what can come next.
const completeTime = 2 * time.Second

// offered is a page of what is offered: the largest that a list gives.
var offered = op.PageIn{Limit: 200}

// offer asks the server for what an argument may be, given the arguments before it. An error offers nothing: a shell has no place for it.
type offer func(ctx context.Context, conn *client.Client, args []string) []cobra.Completion

// offers are by an argument's name; others are left to the shell, which knows files.
func offers(name string) offer {
	switch name {
	case "sandboxId":
		return sandboxesFor
	case "processId":
		return processesFor
	case "keyId":
		return keysFor
	case "volumeId":
		return volumesFor
	case "backupId":
		return backupsFor
	case "imageId":
		return imagesFor
	case "templateId":
		return templatesFor
	case "buildId":
		return buildsFor
	case "host":
		return registriesFor
	case "page":
		return pagesFor
	}
	return nil
}

// complete offers what the server has for the argument that comes next.
func (c *command) complete(cmd *cobra.Command, args []string, typed string) ([]cobra.Completion, cobra.ShellCompDirective) {
	if len(args) >= len(c.args) {
		if c.tail {
			return nil, cobra.ShellCompDirectiveDefault
		}
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	from := offers(c.args[len(args)].name)
	if from == nil {
		return nil, cobra.ShellCompDirectiveDefault
	}
	return c.offer(cmd, args, typed, from), cobra.ShellCompDirectiveNoFileComp
}

// completeFirst offers for the first argument of a command that is no operation.
func (a *app) completeFirst(from offer) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, typed string) ([]cobra.Completion, cobra.ShellCompDirective) {
		if len(args) > 0 {
			return nil, cobra.ShellCompDirectiveDefault
		}
		return a.offer(cmd, args, typed, from), cobra.ShellCompDirectiveNoFileComp
	}
}

// completePlace offers sandboxes for one side of a copy, and this machine's files where none begins as what was typed.
func (a *app) completePlace(cmd *cobra.Command, args []string, typed string) ([]cobra.Completion, cobra.ShellCompDirective) {
	if len(args) > 1 || strings.Contains(typed, ":") {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	found := a.offer(cmd, args, typed, sandboxesFor)
	if typed == "" || len(found) == 0 {
		return nil, cobra.ShellCompDirectiveDefault
	}
	for i, o := range found {
		name, about, _ := strings.Cut(o, "\t")
		found[i] = cobra.CompletionWithDesc(name+":", about)
	}
	return found, cobra.ShellCompDirectiveNoFileComp | cobra.ShellCompDirectiveNoSpace
}

func (a *app) offer(cmd *cobra.Command, args []string, typed string, from offer) []cobra.Completion {
	conn, err := a.connect()
	if err != nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(cmd.Context(), completeTime)
	defer cancel()
	return slices.DeleteFunc(from(ctx, conn, args), func(o string) bool { return !strings.HasPrefix(o, typed) })
}

// sandboxesFor offers names and ids.
func sandboxesFor(ctx context.Context, conn *client.Client, _ []string) (all []cobra.Completion) {
	out, err := client.Call(ctx, conn, api.ListSandboxes, api.ListSandboxesIn{PageIn: offered})
	if err != nil {
		return nil
	}
	for _, s := range out.Items {
		if s.Name != "" {
			all = append(all, described(s.Name, s.State, s.ID))
		}
		all = append(all, described(s.ID, s.State, s.Name))
	}
	return all
}

func processesFor(ctx context.Context, conn *client.Client, args []string) (all []cobra.Completion) {
	sandbox, err := sandboxID(ctx, conn, args[0])
	if err != nil {
		return nil
	}
	out, err := client.Call(ctx, conn, api.ListProcesses, api.ListProcessesIn{PageIn: offered, SandboxIn: api.SandboxIn{SandboxID: sandbox}})
	if err != nil {
		return nil
	}
	for _, p := range out.Items {
		all = append(all, described(p.ID, p.State, p.Command))
	}
	return all
}

func keysFor(ctx context.Context, conn *client.Client, _ []string) (all []cobra.Completion) {
	out, err := client.Call(ctx, conn, api.ListKeys, api.ListKeysIn{PageIn: offered})
	if err != nil {
		return nil
	}
	for _, k := range out.Items {
		all = append(all, described(k.ID, k.Name))
	}
	return all
}

// volumesFor offers names and ids.
func volumesFor(ctx context.Context, conn *client.Client, _ []string) (all []cobra.Completion) {
	out, err := client.Call(ctx, conn, api.ListVolumes, api.ListVolumesIn{PageIn: offered})
	if err != nil {
		return nil
	}
	for _, v := range out.Items {
		all = append(all, described(v.Name, v.State, v.ID), described(v.ID, v.State, v.Name))
	}
	return all
}

// backupsFor offers ids.
func backupsFor(ctx context.Context, conn *client.Client, _ []string) (all []cobra.Completion) {
	out, err := client.Call(ctx, conn, api.ListBackups, api.ListBackupsIn{PageIn: offered})
	if err != nil {
		return nil
	}
	for _, b := range out.Items {
		all = append(all, described(b.ID, b.State, b.VolumeName))
	}
	return all
}

// imagesFor offers ids.
func imagesFor(ctx context.Context, conn *client.Client, _ []string) []cobra.Completion {
	return images(ctx, conn, false)
}

// namesOfImages offers ids and, before them, what they are called here.
func namesOfImages(ctx context.Context, conn *client.Client, _ []string) []cobra.Completion {
	return images(ctx, conn, true)
}

func images(ctx context.Context, conn *client.Client, named bool) (all []cobra.Completion) {
	out, err := client.Call(ctx, conn, api.ListImages, api.ListImagesIn{PageIn: offered})
	if err != nil {
		return nil
	}
	for _, i := range out.Items {
		for _, tag := range i.Tags {
			if named {
				all = append(all, described(i.Name+":"+tag, i.State, i.ID))
			}
		}
		all = append(all, described(i.ID, i.State, i.Name, strings.Join(i.Tags, ",")))
	}
	return all
}

func registriesFor(ctx context.Context, conn *client.Client, _ []string) (all []cobra.Completion) {
	out, err := client.Call(ctx, conn, api.ListRegistries, api.ListRegistriesIn{PageIn: offered})
	if err != nil {
		return nil
	}
	for _, r := range out.Items {
		all = append(all, described(r.Host, r.Username))
	}
	return all
}

func pagesFor(ctx context.Context, conn *client.Client, _ []string) (all []cobra.Completion) {
	out, err := client.Call(ctx, conn, api.ListDocs, api.None{})
	if err != nil {
		return nil
	}
	for _, p := range out.Items {
		all = append(all, described(p.Page, p.Title))
	}
	return all
}

// described is what is offered and what is said about it, neither of which steers a terminal.
func described(what string, about ...string) cobra.Completion {
	return cobra.CompletionWithDesc(plain(what), clip(plain(strings.Join(strings.Fields(strings.Join(about, " ")), " "))))
}
