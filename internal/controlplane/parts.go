package controlplane

import (
	"context"
	"encoding/json"

	"github.com/berthrun/berth/api"
	"github.com/berthrun/berth/api/op"
	"github.com/berthrun/berth/internal/caller"
	"github.com/berthrun/berth/internal/draft"
	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/event"
	"github.com/berthrun/berth/internal/identity"
	"github.com/berthrun/berth/internal/nodeapi"
	"github.com/berthrun/berth/internal/sandbox"
)

// events lets the sandboxes' service append to the log.
type events struct{ log *event.Log }

// Append implements sandbox.Events.
func (e events) Append(ctx context.Context, tx op.Tx, org, workspace, kind, resource string, data map[string]any) error {
	return e.log.Append(ctx, tx, event.Event{Org: org, Workspace: workspace, Type: kind, Resource: resource, Data: data})
}

// Of implements sandbox.Events.
func (e events) Of(ctx context.Context, resource string, most int) ([]sandbox.Happening, error) {
	all, err := e.log.Of(ctx, resource, most)
	if err != nil {
		return nil, err
	}
	out := make([]sandbox.Happening, len(all))
	for i, one := range all {
		data, _ := one.Data.(json.RawMessage) // which Of gives
		out[i] = sandbox.Happening{At: one.At, Kind: one.Type, Data: data}
	}
	return out, nil
}

// images finds a template's image among those that the node has prepared.
type images struct{ node *nodeapi.Client }

// Image implements sandbox.Images.
func (i images) Image(ctx context.Context, template string) (string, error) {
	info, err := i.node.Info(ctx)
	if err != nil {
		return "", err
	}
	if id, ok := info.Images[template]; ok {
		return id, nil
	}
	return "", errs.E(errs.NotFound, "there is no template %s", template).Suggest("list_templates shows which exist; base always does.").With("path", "template")
}

// largest gives the cores and memory of the node, as it last told.
func largest(node *nodeapi.Client) func(ctx context.Context) (float64, int64, error) {
	return func(context.Context) (float64, int64, error) {
		info := node.Known()
		return float64(info.CPUs), info.MemoryMiB, nil
	}
}

// mayWake says whether a caller may start a sandbox by using it: not with a credential that may only read.
func (p *Plane) mayWake(c *caller.Caller) bool {
	for _, info := range []op.Info{startInfo, execInfo, writeInfo} {
		if p.identity.Visible(c, info) && (c.Approved || !identity.Holds(c, info)) {
			return true
		}
	}
	return false
}

// Their schemas are built once.
var startInfo, execInfo, writeInfo = api.StartSandbox.Info(), api.Exec.Info(), api.WriteFile.Info()

func registerCapabilities(r *op.Registry, node *nodeapi.Client, version string) {
	op.Handle(r, api.ListCapabilities, op.Handler[api.None, api.CapabilitiesOut]{
		Draft: draft.OnOrganization[api.None],
		Act: func(context.Context, *api.None, *op.Draft) (*api.CapabilitiesOut, error) {
			can := node.Capabilities()
			pool := "the pool's driver (" + node.Name() + ") cannot do it yet"
			return &api.CapabilitiesOut{Version: version, Items: []api.Capability{
				{Name: "sandboxes", Enabled: true},
				{Name: "processes", Enabled: true},
				{Name: "files", Enabled: true},
				capability("pause", can.Memory, pool),
				capability("fork", can.Memory && can.Saves, pool),
				capability("snapshots", can.Saves, pool),
				capability("templates", can.Saves, pool),
				capability("volumes", can.Volumes, pool),
				capability("backups", can.Volumes && node.Known().Trees, pool),
				capability("diskQuota", can.Quota, "a data folder whose disk store can limit; berth serve says which it uses"),
			}}, nil
		},
	})
}

func capability(name string, on bool, missing string) api.Capability {
	if on {
		missing = ""
	}
	return api.Capability{Name: name, Enabled: on, Missing: missing}
}
