package supervisor

import (
	"context"
	"errors"
	"fmt"
	"path"

	"golang.org/x/sys/unix"

	"github.com/berthrun/berth/internal/disk"
	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/runtime"
)

// basePrefix begins the names of disks that are made to take the place of a sandbox's own.
const basePrefix = "base."

func baseDisk(id string) string { return basePrefix + id }

// Rebase gives a stopped sandbox another disk.
func (s *Supervisor) Rebase(ctx context.Context, spec runtime.Spec, opts runtime.RebaseOptions) (runtime.Status, error) {
	if err := s.check(&spec); err != nil {
		return runtime.Status{}, err
	}
	if opts.Save != "" && !idForm().MatchString(opts.Save) {
		return runtime.Status{}, errs.E(errs.InvalidInput, "%q is no name of a save", opts.Save)
	}
	keep := ""
	if opts.Keep != "" {
		if keep = path.Base(opts.Keep); opts.Keep != "/"+keep || keep == ".." || keep == "." {
			return runtime.Status{}, errs.E(errs.InvalidInput, "%q is no folder below the root", opts.Keep)
		}
	}
	return s.change(ctx, spec.ID, spec.Generation, func(sb *sandbox, r record) (runtime.Status, error) {
		r, err := s.settled(sb, r)
		switch {
		case err != nil:
			return runtime.Status{}, err
		case r.Phase != stopped:
			return runtime.Status{}, errPhase(&r)
		case r.Rebased == spec.Generation:
			return s.keepGeneration(sb, r)
		}
		if r, err = s.letGo(sb, r); err != nil {
			return runtime.Status{}, err
		}
		if err := s.newBase(sb, r, spec, opts.Save, keep); err != nil {
			return runtime.Status{}, errors.Join(full(err, "rebase_failed", "the sandbox's new disk could not be made"), s.disks.Remove(baseDisk(sb.id)))
		}
		r.Spec, r.Phase, r.Rebased, r.Fresh, r.Since = spec, replacing, spec.Generation, true, s.now()
		if err := sb.put(r); err != nil {
			return runtime.Status{}, errors.Join(err, s.disks.Remove(baseDisk(sb.id)))
		}
		if err := s.rebased(sb, r); err != nil {
			return runtime.Status{}, s.unsettled(sb, err)
		}
		return s.announce(sb), nil
	})
}

// newBase makes the disk that is to take the place of a sandbox's own, durably.
func (s *Supervisor) newBase(sb *sandbox, r record, spec runtime.Spec, save, keep string) error {
	base, limit := baseDisk(sb.id), spec.Resources.DiskGiB<<30
	if err := s.disks.Remove(base); err != nil {
		return err
	}
	if save == "" {
		if err := s.disks.Create(base, limit); err != nil {
			return err
		}
	} else if err := s.copySave(save, spec.Image, base, limit); err != nil {
		return err
	}
	if keep != "" {
		layers, err := disk.Stack(s.path(), r.Spec.Image)
		if err != nil {
			return fmt.Errorf("find image: %w", err)
		}
		if err := s.disks.Mount(sb.id, s.mount(sb.id), layers...); err != nil {
			return err
		}
		_, err = s.disks.Graft(sb.id, s.mount(sb.id), base, keep, layers...)
		if err := errors.Join(err, s.unmountDisk(sb.id)); err != nil {
			if errors.Is(err, unix.ENOTDIR) {
				return errs.Wrap(errs.InvalidState, err, "/%s of the sandbox is no folder and cannot be kept", keep).Because("not_directory").
					Suggest("Start the sandbox, make it a folder, and call again.")
			}
			return err
		}
	}
	return s.disks.Sync()
}

// copySave copies the disk of a save, which is of an image, under a new name.
func (s *Supervisor) copySave(save, image, to string, limit int64) error {
	k := s.share(save)
	if k == nil {
		return errNoSave(save)
	}
	defer k.lock.RUnlock()
	if k.save.Image != image {
		return errs.E(errs.InvalidInput, "the save %s is of another image", save).Because("image")
	}
	return s.disks.Copy(savePrefix+save, to, limit)
}

// rebased puts the new disk of a sandbox in the place of its own, and records that it is stopped again. Interrupted, it is finished by a repeated call.
func (s *Supervisor) rebased(sb *sandbox, r record) error {
	if err := s.disks.Replace(baseDisk(sb.id), sb.id); err != nil {
		return err
	}
	r.Phase = stopped
	return sb.put(r)
}
