package sandbox

import (
	"context"
	"fmt"

	"github.com/berthrun/berth/api"
)

// States counts the sandboxes of the deployment by state; deleted ones do not count.
func (s *Service) States(ctx context.Context) (map[string]float64, error) {
	rows, err := s.DB.QueryContext(ctx, `SELECT state, COUNT(*) FROM sandboxes WHERE state <> $1 GROUP BY state`, api.StateDeleted)
	if err != nil {
		return nil, fmt.Errorf("count sandboxes: %w", err)
	}
	defer rows.Close()
	counts := map[string]float64{}
	for rows.Next() {
		var state string
		var n float64
		if err := rows.Scan(&state, &n); err != nil {
			return nil, fmt.Errorf("count sandboxes: %w", err)
		}
		counts[state] = n
	}
	return counts, rows.Err()
}

// Working is how many sandboxes this server carries through moving states.
func (s *Service) Working() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.working)
}
