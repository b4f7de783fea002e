package sandbox

import (
	"context"

	"github.com/berthrun/berth/api/op"
	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/runtime"
)

// ReadyKind is what a sandbox must have in common with one that was made before, to be it.
type ReadyKind struct {
	Image                         string
	VCPUMilli, MemoryMiB, DiskGiB int64
	Internet                      bool
}

// Ready gives sandboxes, and saves of sandboxes, that were booted before anybody asked.
type Ready interface {
	// Take gives one of a kind to the transaction: its id and its guest's token, empty where there is none.
	Take(ctx context.Context, tx op.Tx, k ReadyKind) (id, token string, err error)
	// Seed names a save from which one is brought back instead of booting, and its guest's token, empty where there is none.
	Seed(ctx context.Context, k ReadyKind) (name, token string, err error)
	// Spoiled says that a seed could not be used.
	Spoiled(ctx context.Context, name string) error
	// Asked notes that one of a kind was made, from a ready one or not.
	Asked(k ReadyKind, taken bool)
	// Owned names the sandboxes on nodes that nobody has taken yet.
	Owned(ctx context.Context) (map[string]bool, error)
}

func (r *row) kind() ReadyKind {
	return ReadyKind{Image: r.Image, VCPUMilli: r.VCPUMilli, MemoryMiB: r.MemoryMiB, DiskGiB: r.DiskGiB, Internet: r.Internet}
}

// ordinary reports whether a new sandbox comes up as every one of its image does: it may be one that was booted before.
func (s *Service) ordinary(r *row) bool {
	return s.Ready != nil && r.Image != "" && r.SaveName == "" && r.ForkedFrom == ""
}

// claim makes a new row that of a ready sandbox where there is one; else it names what it may be brought back from.
func (s *Service) claim(ctx context.Context, tx op.Tx, r *row) (taken bool, err error) {
	if !s.ordinary(r) {
		return false, nil
	}
	id, token, err := s.Ready.Take(ctx, tx, r.kind())
	if err != nil {
		return false, err
	}
	if id != "" {
		r.ID, r.SaveToken = id, token
		return true, nil
	}
	r.SaveName, r.SaveToken, err = s.Ready.Seed(ctx, r.kind())
	return false, err
}

// seeded reports whether a new sandbox is brought back from a seed.
func (r *row) seeded() bool { return r.SaveName != "" && r.SnapshotID == "" && r.ForkedFrom == "" }

// fromSeed brings a new sandbox back from a seed, or boots it where the seed cannot be used any more, as after an upgrade.
func (s *Service) fromSeed(ctx context.Context, r *row) error {
	_, err := s.Driver.Clone(ctx, r.spec(), r.SaveName, runtime.CloneOptions{})
	if err == nil || !runtime.MemoryUnusable(reasonOf(err)) && !errs.Is(err, errs.NotFound) {
		return err
	}
	s.Logger.Info("a seed cannot be used: the sandbox boots", "sandbox", r.ID, "seed", r.SaveName, "error", err)
	if s.Ready != nil {
		if err := s.Ready.Spoiled(ctx, r.SaveName); err != nil {
			return err
		}
	}
	if err := s.store.unsave(ctx, s.DB, r); err != nil {
		return err
	}
	_, err = s.Driver.Create(ctx, r.spec())
	return err
}

// asked tells what became of a create.
func (s *Service) asked(r *row, taken bool) {
	if s.ordinary(r) {
		s.Ready.Asked(r.kind(), taken)
	}
}
