package fake

import (
	"context"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/runtime"
)

func unsupported() error {
	return errs.E(errs.Unavailable, "the fake driver cannot do this").Because("not_supported")
}

// Pause implements runtime.Driver.
func (d *Driver) Pause(context.Context, string, int64) (runtime.Status, error) {
	return runtime.Status{}, unsupported()
}

// Resume implements runtime.Driver.
func (d *Driver) Resume(context.Context, string, int64) (runtime.Status, error) {
	return runtime.Status{}, unsupported()
}

// Suspend implements runtime.Driver.
func (d *Driver) Suspend(context.Context, string, int64) (runtime.Status, error) {
	return runtime.Status{}, unsupported()
}

// Wake implements runtime.Driver.
func (d *Driver) Wake(context.Context, runtime.Spec) (runtime.Status, error) {
	return runtime.Status{}, unsupported()
}

// Rewind implements runtime.Driver.
func (d *Driver) Rewind(context.Context, string, int64) (runtime.Status, error) {
	return runtime.Status{}, unsupported()
}

// Settle implements runtime.Driver.
func (d *Driver) Settle(context.Context, string, int64) error { return unsupported() }

// Save implements runtime.Driver.
func (d *Driver) Save(context.Context, string, int64, string, runtime.SaveOptions) (runtime.Save, error) {
	return runtime.Save{}, unsupported()
}

// Clone implements runtime.Driver.
func (d *Driver) Clone(context.Context, runtime.Spec, string, runtime.CloneOptions) (runtime.Status, error) {
	return runtime.Status{}, unsupported()
}

// Saves implements runtime.Driver.
func (d *Driver) Saves(context.Context) ([]runtime.Save, error) { return nil, unsupported() }

// Forget implements runtime.Driver.
func (d *Driver) Forget(context.Context, string) error { return unsupported() }
