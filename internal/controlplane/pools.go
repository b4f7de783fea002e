package controlplane

import (
	"cmp"
	"context"
	"slices"

	"github.com/berthrun/berth/api"
	"github.com/berthrun/berth/api/op"
	"github.com/berthrun/berth/internal/draft"
	"github.com/berthrun/berth/internal/nodeapi"
	"github.com/berthrun/berth/internal/ready"
	"github.com/berthrun/berth/internal/sandbox"
)

// readies gives ready sandboxes to those who make sandboxes.
type readies struct{ pool *ready.Pool }

// Take implements sandbox.Ready.
func (r readies) Take(ctx context.Context, tx op.Tx, k sandbox.ReadyKind) (id, token string, err error) {
	return member(r.pool.Take(ctx, tx, ready.Kind(k)))
}

// Seed implements sandbox.Ready.
func (r readies) Seed(ctx context.Context, k sandbox.ReadyKind) (name, token string, err error) {
	return member(r.pool.Seed(ctx, ready.Kind(k)))
}

func member(m *ready.Member, err error) (string, string, error) {
	if m == nil {
		return "", "", err
	}
	return m.ID, m.Token, err
}

// Spoiled implements sandbox.Ready.
func (r readies) Spoiled(ctx context.Context, name string) error { return r.pool.Spoiled(ctx, name) }

// Asked implements sandbox.Ready.
func (r readies) Asked(k sandbox.ReadyKind, taken bool) { r.pool.Asked(ready.Kind(k), taken) }

// Owned implements sandbox.Ready.
func (r readies) Owned(ctx context.Context) (map[string]bool, error) {
	sandboxes, _, err := r.pool.Owned(ctx)
	return sandboxes, err
}

// localPool is the id of the pool that this machine is.
const localPool = "local"

func registerPools(r *op.Registry, node *nodeapi.Client, pool *ready.Pool) {
	op.Handle(r, api.ListPools, op.Handler[api.ListPoolsIn, api.ListPoolsOut]{
		Draft: draft.OnOrganization[api.ListPoolsIn],
		Act: func(ctx context.Context, _ *api.ListPoolsIn, _ *op.Draft) (*api.ListPoolsOut, error) {
			info, err := node.Info(ctx)
			if err != nil {
				return nil, err
			}
			kinds, err := pool.Status(ctx)
			if err != nil {
				return nil, err
			}
			out := api.Pool{ID: localPool, Driver: info.Driver, Nodes: 1, VCPU: info.CPUs, MemoryMiB: info.MemoryMiB, Ready: make([]api.ReadyKind, len(kinds))}
			for i, k := range kinds {
				out.Ready[i] = api.ReadyKind{
					Image: nameOf(info, k.Image), VCPU: float64(k.VCPUMilli) / 1000, MemoryMiB: k.MemoryMiB, DiskGiB: k.DiskGiB, Internet: k.Internet,
					Ready: k.Ready, Making: k.Making, Target: k.Target, Taken: k.Taken, Missed: k.Missed, Seed: k.Seed,
				}
			}
			slices.SortFunc(out.Ready, func(a, b api.ReadyKind) int {
				return cmp.Or(cmp.Compare(a.Image, b.Image), cmp.Compare(a.VCPU, b.VCPU), cmp.Compare(a.MemoryMiB, b.MemoryMiB), cmp.Compare(a.DiskGiB, b.DiskGiB))
			})
			return &api.ListPoolsOut{Items: []api.Pool{out}}, nil
		},
	})
}

// nameOf is an image's name where it has one, else its id.
func nameOf(info nodeapi.Info, image string) string {
	for name, id := range info.Images {
		if id == image {
			return name
		}
	}
	return image
}
