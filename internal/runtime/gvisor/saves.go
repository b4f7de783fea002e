package gvisor

import (
	"context"
	"net/http"

	"github.com/berthrun/berth/internal/runtime"
	"github.com/berthrun/berth/internal/runtime/gvisor/wire"
)

// Suspend implements runtime.Driver.
func (d *Driver) Suspend(ctx context.Context, id string, generation int64) (runtime.Status, error) {
	return d.status(ctx, wire.PathSuspend, wire.Ref{ID: id, Generation: generation})
}

// Wake implements runtime.Driver.
func (d *Driver) Wake(ctx context.Context, spec runtime.Spec) (runtime.Status, error) {
	return d.status(ctx, wire.PathWake, spec)
}

// Rewind implements runtime.Driver.
func (d *Driver) Rewind(ctx context.Context, id string, generation int64) (runtime.Status, error) {
	return d.status(ctx, wire.PathRewind, wire.Ref{ID: id, Generation: generation})
}

// Settle implements runtime.Driver.
func (d *Driver) Settle(ctx context.Context, id string, generation int64) error {
	return d.call(ctx, http.MethodPost, wire.PathSettle, wire.Ref{ID: id, Generation: generation}, nil)
}

// Save implements runtime.Driver.
func (d *Driver) Save(ctx context.Context, id string, generation int64, name string, opts runtime.SaveOptions) (runtime.Save, error) {
	var out runtime.Save
	return out, d.call(ctx, http.MethodPost, wire.PathSave, wire.Ref{ID: id, Generation: generation, Name: name, Save: opts}, &out)
}

// Clone implements runtime.Driver.
func (d *Driver) Clone(ctx context.Context, spec runtime.Spec, name string, opts runtime.CloneOptions) (runtime.Status, error) {
	return d.status(ctx, wire.PathClone, wire.Clone{Spec: spec, Name: name, Options: opts})
}

// Saves implements runtime.Driver.
func (d *Driver) Saves(ctx context.Context) ([]runtime.Save, error) {
	var out []runtime.Save
	return out, d.call(ctx, http.MethodGet, wire.PathSaves, nil, &out)
}

// Rebase implements runtime.Driver.
func (d *Driver) Rebase(ctx context.Context, spec runtime.Spec, opts runtime.RebaseOptions) (runtime.Status, error) {
	return d.status(ctx, wire.PathRebase, wire.Rebase{Spec: spec, Options: opts})
}

// Forget implements runtime.Driver.
func (d *Driver) Forget(ctx context.Context, name string) error {
	return d.call(ctx, http.MethodPost, wire.PathForget, wire.Ref{Name: name}, nil)
}
