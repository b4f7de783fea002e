package unpack

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"

	"golang.org/x/sys/unix"

	"github.com/berthrun/berth/internal/errs"
)

func errTooLarge() error {
	return errs.E(errs.LimitExceeded, "a layer of the image unpacks to more than is allowed").Because("image_too_large").
		Suggest("Use a smaller image.")
}

func bad(format string, args ...any) *errs.Error {
	return errs.E(errs.InvalidInput, "a layer of the image cannot be unpacked: "+format, args...).Because("bad_layer").
		Suggest("Build the image again with a current tool, or use another one.")
}

// explain gives an error its code.
func explain(err error) error {
	if _, ok := errors.AsType[*errs.Error](err); ok || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	switch {
	case errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EDQUOT):
		return errs.Wrap(errs.NoCapacity, err, "the node's disk is full").Because("disk_full").Suggest("Delete images or sandboxes that are not needed.")
	case errors.Is(err, tar.ErrHeader), errors.Is(err, tar.ErrFieldTooLong), errors.Is(err, io.ErrUnexpectedEOF):
		return errs.Wrap(errs.InvalidInput, err, "a layer of the image is no whole tar archive").Because("bad_layer")
	case errors.Is(err, unix.ELOOP), errors.Is(err, unix.EXDEV), errors.Is(err, unix.ENOTDIR), errors.Is(err, unix.ENAMETOOLONG), errors.Is(err, unix.EMLINK):
		return errs.Wrap(errs.InvalidInput, err, "a layer of the image has a name that leads nowhere").Because("bad_layer")
	}
	return fmt.Errorf("unpack layer: %w", err)
}
