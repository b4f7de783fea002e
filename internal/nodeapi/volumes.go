package nodeapi

import (
	"context"

	"github.com/berthrun/berth/internal/runtime"
)

// volumeBody is what a call about volumes or their copies says. Fields that a call does not use are zero.
type volumeBody struct {
	ID      string `json:"id,omitempty"`
	SizeGiB int64  `json:"sizeGiB,omitempty"`
	Name    string `json:"name,omitempty"` // of a copy
}

// handleVolumes serves what makes, copies and removes volumes.
func handleVolumes(s *Server, d runtime.Driver) {
	handle(s, "make-volume", func(ctx context.Context, b volumeBody) (any, error) { return nil, d.MakeVolume(ctx, b.ID, b.SizeGiB) })
	handle(s, "remove-volume", func(ctx context.Context, b volumeBody) (any, error) { return nil, d.RemoveVolume(ctx, b.ID) })
	handle(s, "volumes", func(ctx context.Context, _ volumeBody) (any, error) { return d.Volumes(ctx) })
	handle(s, "copy-volume", func(ctx context.Context, b volumeBody) (any, error) { return nil, d.CopyVolume(ctx, b.ID, b.Name) })
	handle(s, "forget-copy", func(ctx context.Context, b volumeBody) (any, error) { return nil, d.ForgetCopy(ctx, b.Name) })
	handle(s, "copies", func(ctx context.Context, _ volumeBody) (any, error) { return d.Copies(ctx) })
}

// MakeVolume implements runtime.Driver.
func (c *Client) MakeVolume(ctx context.Context, id string, sizeGiB int64) error {
	return c.post(ctx, "make-volume", volumeBody{ID: id, SizeGiB: sizeGiB}, nil)
}

// RemoveVolume implements runtime.Driver.
func (c *Client) RemoveVolume(ctx context.Context, id string) error {
	return c.post(ctx, "remove-volume", volumeBody{ID: id}, nil)
}

// Volumes implements runtime.Driver.
func (c *Client) Volumes(ctx context.Context) (all []runtime.Volume, err error) {
	return all, c.post(ctx, "volumes", volumeBody{}, &all)
}

// CopyVolume implements runtime.Driver.
func (c *Client) CopyVolume(ctx context.Context, id, name string) error {
	return c.post(ctx, "copy-volume", volumeBody{ID: id, Name: name}, nil)
}

// ForgetCopy implements runtime.Driver.
func (c *Client) ForgetCopy(ctx context.Context, name string) error {
	return c.post(ctx, "forget-copy", volumeBody{Name: name}, nil)
}

// Copies implements runtime.Driver.
func (c *Client) Copies(ctx context.Context) (all []string, err error) {
	return all, c.post(ctx, "copies", volumeBody{}, &all)
}
