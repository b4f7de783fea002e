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

// finders give the id of what has a name, by the member that wants the id. What is no name they leave to the check of the input.
var finders = map[string]func(ctx context.Context, conn *client.Client, name string) (string, error){
	"sandboxId": sandboxID, "snapshotId": snapshotID, "imageId": imageID, "volumeId": volumeID, "templateId": templateID,
}

// resolve puts ids in place of the names of a sandbox, a snapshot, a volume, a template or an image, where the input names one.
func (c *command) resolve(cmd *cobra.Command, in map[string]any) error {
	ctx, cancel := c.context(cmd)
	defer cancel()
	for member, find := range finders {
		name, _ := in[member].(string)
		if p := c.info.In.Properties[member]; name == "" || p == nil || matches(p.Pattern, name) {
			continue
		}
		conn, err := c.connect()
		if err != nil {
			return err
		}
		if in[member], err = find(ctx, conn, name); err != nil {
			return err
		}
	}
	return nil
}

func matches(pattern, v string) bool {
	ok, err := regexp.MatchString(pattern, v)
	return err == nil && ok
}

// snapshotID gives the id of the snapshot that has a name.
func snapshotID(ctx context.Context, conn *client.Client, name string) (string, error) {
	if !onlyName.MatchString(name) {
		return name, nil
	}
	out, err := client.Call(ctx, conn, api.ListSnapshots, api.ListSnapshotsIn{Name: name, Scope: "all"})
	if err != nil {
		return "", err
	}
	for _, s := range out.Items {
		if s.State != api.StateDeleting || len(out.Items) == 1 {
			return s.ID, nil
		}
	}
	return "", &client.Error{Code: "NOT_FOUND", Message: "no snapshot is called " + name, Suggestion: "berth snapshots list shows what there is."}
}

// volumeID gives the id of the volume that has a name.
func volumeID(ctx context.Context, conn *client.Client, name string) (string, error) {
	if id.Valid(id.Volume, name) || !onlyName.MatchString(name) {
		return name, nil
	}
	out, err := client.Call(ctx, conn, api.ListVolumes, api.ListVolumesIn{Name: name, Scope: "all"})
	if err != nil {
		return "", err
	}
	for _, v := range out.Items {
		if v.State != api.VolumeDeleting || len(out.Items) == 1 {
			return v.ID, nil
		}
	}
	return "", &client.Error{Code: "NOT_FOUND", Message: "no volume is called " + name, Suggestion: "berth volumes list shows what there is."}
}

// templateID gives the id of the template that has a name.
func templateID(ctx context.Context, conn *client.Client, name string) (string, error) {
	if only, tag, ok := strings.Cut(name, ":"); ok && onlyName.MatchString(only) {
		return "", usagef("%s names what the tag %s means; this is about the whole template: give %s", name, tag, only)
	}
	if id.Valid(id.Template, name) || !onlyName.MatchString(name) {
		return name, nil
	}
	out, err := client.Call(ctx, conn, api.ListTemplates, api.ListTemplatesIn{Name: name})
	if err != nil {
		return "", err
	}
	for _, t := range out.Items {
		switch {
		case t.Name == name && t.BuiltIn:
			return "", usagef("%s is built in: there is nothing to read or change of it; build a template of your own that begins with it", name)
		case t.Name == name:
			return t.ID, nil
		}
	}
	return "", &client.Error{Code: "NOT_FOUND", Message: "no template is called " + name, Suggestion: "berth templates list shows what there is."}
}

// imageName is what may name an image here.
var imageName = regexp.MustCompile(`^[a-z0-9][a-zA-Z0-9._:/@-]*$`)

func imageID(ctx context.Context, conn *client.Client, name string) (string, error) {
	if !imageName.MatchString(name) {
		return name, nil
	}
	return findImage(ctx, conn, name)
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
	if secret, ok := out["secret"].(string); ok { // it is shown this once
		_, err := fmt.Fprintln(a.stdout, plain(secret))
		return err
	}
	var all []string
	items, isList := out["items"].([]any)
	if isList {
		for _, item := range items {
			m, _ := item.(map[string]any)
			if line, ok := m["message"].(string); ok { // of a log
				all = append(all, line)
			} else if s := idOf(item); s != "" {
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
	for _, name := range []string{"id", "sandboxId", "processId", "snapshotId", "volumeId", "backupId", "imageId", "templateId", "contextId", "keyId", "poolId", "host", "page", "path", "key", "name"} {
		if s, ok := m[name].(string); ok && s != "" {
			return s
		}
	}
	return ""
}
