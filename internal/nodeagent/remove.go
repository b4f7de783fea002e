package nodeagent

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/berthrun/berth/internal/bundle"
	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/runtime/gvisor"
)

// orderly is how long berth-runtime gets to delete every sandbox and end, before that is done without it.
const orderly = 2 * time.Minute

// Remove ends what a node that is no more has left running: its sandboxes and berth-runtime, and takes off the machine what they had in it. It does so
// whether berth-runtime answers or was ended, and leaves the folder. Where there is nothing it does nothing; what it could not remove is its error.
func Remove(ctx context.Context, c Config) error {
	if _, err := os.Stat(c.Dir); errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if os.Geteuid() != 0 {
		return errs.E(errs.Forbidden, "only root can take a node's sandboxes off the machine").Suggest("Run it with sudo.")
	}
	octx, cancel := context.WithTimeout(ctx, orderly)
	asked := inOrder(octx, c)
	cancel()
	if err := gvisor.Clear(ctx, gvisor.Config{Root: c.Dir}); err != nil {
		return errs.Wrap(errs.Unavailable, errors.Join(err, asked), "not everything could be removed: %v", err).
			Suggest("End what uses it, then run it again. Nothing of the data folder is removed before.")
	}
	return nil
}

// inOrder asks berth-runtime to end with all its sandboxes, where it answers.
func inOrder(ctx context.Context, c Config) error {
	socket := filepath.Join(c.Dir, "runtime.sock")
	if !gvisor.Answers(ctx, socket) {
		return nil // nobody is there to be asked
	}
	programs, err := bundle.Locate(bundle.Options{Dir: c.Dir, Runtime: c.Runtime, Guest: c.Guest})
	if err != nil {
		return err
	}
	d, err := gvisor.Open(ctx, gvisor.Config{
		Binary: programs.Runtime.Path, Guest: programs.Guest.Path, Root: c.Dir, Socket: socket, Subnet: c.Subnet, Disk: c.Disk, Log: c.Logger,
	})
	if err != nil {
		return fmt.Errorf("reach berth-runtime: %w", err)
	}
	return errors.Join(d.Shutdown(ctx, true), d.Close())
}
