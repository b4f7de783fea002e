package nodeapi

import (
	"context"

	"github.com/berthrun/berth/internal/runtime"
)

// handleSaves serves what pauses, wakes and copies sandboxes.
func handleSaves(s *Server, d runtime.Driver) {
	handle(s, "suspend", func(ctx context.Context, b idBody) (any, error) { return d.Suspend(ctx, b.ID, b.Generation) })
	handle(s, "wake", func(ctx context.Context, b specBody) (any, error) { return d.Wake(ctx, b.Spec) })
	handle(s, "rewind", func(ctx context.Context, b idBody) (any, error) { return d.Rewind(ctx, b.ID, b.Generation) })
	handle(s, "settle", func(ctx context.Context, b idBody) (any, error) { return nil, d.Settle(ctx, b.ID, b.Generation) })
	handle(s, "save", func(ctx context.Context, b idBody) (any, error) {
		return d.Save(ctx, b.ID, b.Generation, b.Name, b.Save)
	})
	handle(s, "clone", func(ctx context.Context, b specBody) (any, error) {
		return d.Clone(ctx, b.Spec, b.Name, runtime.CloneOptions{FromDisk: b.FromDisk})
	})
	handle(s, "saves", func(ctx context.Context, _ idBody) (any, error) { return d.Saves(ctx) })
	handle(s, "rebase", func(ctx context.Context, b rebaseBody) (any, error) { return d.Rebase(ctx, b.Spec, b.RebaseOptions) })
	handle(s, "forget", func(ctx context.Context, b idBody) (any, error) { return nil, d.Forget(ctx, b.Name) })
}

// Suspend implements runtime.Driver.
func (c *Client) Suspend(ctx context.Context, id string, generation int64) (st runtime.Status, err error) {
	return st, c.post(ctx, "suspend", idBody{ID: id, Generation: generation}, &st)
}

// Wake implements runtime.Driver.
func (c *Client) Wake(ctx context.Context, spec runtime.Spec) (st runtime.Status, err error) {
	return st, c.post(ctx, "wake", specBody{Spec: spec}, &st)
}

// Rewind implements runtime.Driver.
func (c *Client) Rewind(ctx context.Context, id string, generation int64) (st runtime.Status, err error) {
	return st, c.post(ctx, "rewind", idBody{ID: id, Generation: generation}, &st)
}

// Settle implements runtime.Driver.
func (c *Client) Settle(ctx context.Context, id string, generation int64) error {
	return c.post(ctx, "settle", idBody{ID: id, Generation: generation}, nil)
}

// Save implements runtime.Driver.
func (c *Client) Save(ctx context.Context, id string, generation int64, name string, opts runtime.SaveOptions) (out runtime.Save, err error) {
	return out, c.post(ctx, "save", idBody{ID: id, Generation: generation, Name: name, Save: opts}, &out)
}

// Clone implements runtime.Driver.
func (c *Client) Clone(ctx context.Context, spec runtime.Spec, name string, opts runtime.CloneOptions) (st runtime.Status, err error) {
	return st, c.post(ctx, "clone", specBody{Spec: spec, Name: name, FromDisk: opts.FromDisk}, &st)
}

// Saves implements runtime.Driver.
func (c *Client) Saves(ctx context.Context) (all []runtime.Save, err error) {
	return all, c.post(ctx, "saves", idBody{}, &all)
}

type rebaseBody struct {
	Spec runtime.Spec `json:"spec"`
	runtime.RebaseOptions
}

// Rebase implements runtime.Driver.
func (c *Client) Rebase(ctx context.Context, spec runtime.Spec, opts runtime.RebaseOptions) (st runtime.Status, err error) {
	return st, c.post(ctx, "rebase", rebaseBody{spec, opts}, &st)
}

// Forget implements runtime.Driver.
func (c *Client) Forget(ctx context.Context, name string) error {
	return c.post(ctx, "forget", idBody{Name: name}, nil)
}
