package sandbox

import (
	"context"

	"github.com/berthrun/berth/api"
	"github.com/berthrun/berth/api/op"
	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/guest"
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

// ordinary reports whether a new sandbox comes up as every one of its image does: it may be one that was booted before. One with volumes has to boot with them.
func (s *Service) ordinary(r *row) bool {
	return s.Ready != nil && r.Image != "" && r.SaveName == "" && r.ForkedFrom == "" && !r.mounted && r.Purpose == "" && r.BuildID == ""
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
		r.ID, r.GuestToken, r.SaveToken = id, token, token
		return true, nil
	}
	r.SaveName, r.SaveToken, err = s.Ready.Seed(ctx, r.kind())
	return false, err
}

// seeded reports whether a new sandbox is brought back from a seed.
func (r *row) seeded() bool {
	return r.SaveName != "" && r.SnapshotID == "" && r.ForkedFrom == "" && !r.layered()
}

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

// claimed reports whether a sandbox runs, since its first boot, that somebody else booted before.
func (r *row) claimed() bool {
	return r.State == api.StateRunning && r.BootGeneration == 1 && r.SaveName == "" && r.SaveToken != "" && r.SaveToken == r.GuestToken
}

// adopt makes a ready sandbox that was taken a running one, at once where it still runs. It has all that is its own already, but for what its guest is told
// before it is first used; a worker boots what has died since.
func (s *Service) adopt(ctx context.Context, taken *row) {
	st, err := s.Driver.Get(ctx, taken.ID)
	if err == nil && st.State == runtime.Running {
		r := *taken
		if err = s.up(ctx, &r); err == nil {
			s.begin(&r)
			return
		}
	}
	if err != nil && ctx.Err() == nil {
		s.Logger.Info("a ready sandbox was not taken at once", "sandbox", taken.ID, "error", err)
	}
	s.nudge(taken.ID)
}

// begin has a guest told what it is to know, while nobody waits for it yet.
func (s *Service) begin(r *row) {
	s.mu.Lock()
	ctx := s.ctx
	s.mu.Unlock()
	if ctx == nil || ctx.Err() != nil || !r.special() {
		return
	}
	s.wg.Go(func() {
		ctx, cancel := context.WithTimeout(ctx, useWait)
		defer cancel()
		if err := s.guest(r.ID, r.BootGeneration, r.GuestToken).Begun(ctx); err != nil && ctx.Err() == nil {
			s.Logger.Info("guest of a ready sandbox not told yet", "sandbox", r.ID, "error", err) // its first call tells it
		}
	})
}

// special reports whether a sandbox's guest is to know more than that of one which is ready for anybody.
func (r *row) special() bool {
	return r.ImageID != "" || len(r.Env) > 0 || hostname(r) != runtime.DefaultHostname(r.ID)
}

// first is what the guest of a sandbox is told before anything is asked of it: nil where a boot told it all, or it was ready for anybody and is to know no more.
func (s *Service) first(ctx context.Context, id string) (*guest.Configure, error) {
	r, err := s.store.get(ctx, s.DB, id)
	if err != nil || r == nil || !r.claimed() || !r.special() {
		return nil, err
	}
	c, err := s.own(ctx, r)
	if err != nil {
		return nil, err
	}
	c.UnixNanos = s.Now().UnixNano()
	return &c, nil
}

// asked tells what became of a create.
func (s *Service) asked(r *row, taken bool) {
	if s.ordinary(r) {
		s.Ready.Asked(r.kind(), taken)
	}
}
