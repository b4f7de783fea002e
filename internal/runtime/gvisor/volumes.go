package gvisor

import (
	"context"
	"net/http"

	"github.com/berthrun/berth/internal/runtime"
	"github.com/berthrun/berth/internal/runtime/gvisor/wire"
)

// MakeVolume implements runtime.Driver.
func (d *Driver) MakeVolume(ctx context.Context, id string, sizeGiB int64) error {
	return d.call(ctx, http.MethodPost, wire.PathMakeVolume, wire.Ref{ID: id, SizeGiB: sizeGiB}, nil)
}

// RemoveVolume implements runtime.Driver.
func (d *Driver) RemoveVolume(ctx context.Context, id string) error {
	return d.call(ctx, http.MethodPost, wire.PathRemoveVolume, wire.Ref{ID: id}, nil)
}

// Volumes implements runtime.Driver.
func (d *Driver) Volumes(ctx context.Context) ([]runtime.Volume, error) {
	var out []runtime.Volume
	return out, d.call(ctx, http.MethodGet, wire.PathVolumes, nil, &out)
}

// CopyVolume implements runtime.Driver.
func (d *Driver) CopyVolume(ctx context.Context, id, name string) error {
	return d.call(ctx, http.MethodPost, wire.PathCopyVolume, wire.Ref{ID: id, Name: name}, nil)
}

// ForgetCopy implements runtime.Driver.
func (d *Driver) ForgetCopy(ctx context.Context, name string) error {
	return d.call(ctx, http.MethodPost, wire.PathForgetCopy, wire.Ref{Name: name}, nil)
}

// Copies implements runtime.Driver.
func (d *Driver) Copies(ctx context.Context) ([]string, error) {
	var out []string
	return out, d.call(ctx, http.MethodGet, wire.PathCopies, nil, &out)
}
