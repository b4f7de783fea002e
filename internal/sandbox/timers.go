package sandbox

import (
	"context"
	"time"

	"github.com/berthrun/berth/internal/guest"
)

// nextTimer asks a guest when the next timer in it is due; zero where there is none that it knows of.
func (s *Service) nextTimer(ctx context.Context, g *guest.Client) (time.Time, error) {
	if g.Supports(ctx, guest.FeatureTimers) != nil {
		return time.Time{}, nil
	}
	left, err := g.NextTimer(ctx)
	if err != nil || left < 0 {
		return time.Time{}, err
	}
	return s.Now().Add(left), nil
}
