package guest

import (
	"context"
	"net/http"

	"github.com/berthrun/berth/internal/errs"
)

// Stamps reads when the processes that are remembered wrote what is kept of it. Of a guest without stamps every stream was written when its process started.
func (c *Client) Stamps(ctx context.Context) ([]StampedProcess, error) {
	switch err := c.Supports(ctx, FeatureStamps); {
	case errs.From(err) != nil && errs.From(err).Reason == "guest_feature":
		return c.unstamped(ctx)
	case err != nil:
		return nil, err
	}
	var out Stamped
	if err := c.do(ctx, call{method: http.MethodGet, path: "/stamps", limit: listAnswer}, &out); err != nil {
		return nil, err
	}
	if err := checkList(len(out.Processes), func(i int) *Process { return &out.Processes[i].Process }); err != nil {
		return nil, err
	}
	for i := range out.Processes {
		p := &out.Processes[i]
		for _, s := range []*StreamStamps{&p.Stdout, &p.Stderr} {
			if err := checkStamps(s); err != nil {
				return nil, err
			}
		}
	}
	return out.Processes, nil
}

func (c *Client) unstamped(ctx context.Context) ([]StampedProcess, error) {
	all, err := c.Processes(ctx)
	if err != nil {
		return nil, err
	}
	out := make([]StampedProcess, len(all))
	for i, p := range all {
		out[i] = StampedProcess{Process: p, Stdout: atStart(&p, p.StdoutBytes), Stderr: atStart(&p, p.StderrBytes)}
	}
	return out, nil
}

func atStart(p *Process, total int64) StreamStamps {
	s := StreamStamps{Total: total, Earliest: max(total-SpoolBytes, 0)}
	if total > 0 {
		s.Stamps = []Stamp{{0, p.StartedAt.UnixMicro()}}
	}
	return s
}

// checkStamps checks the stamps of one stream.
func checkStamps(s *StreamStamps) error {
	if s.Earliest < 0 || s.Total < s.Earliest || s.Total > maxStream || s.Total-s.Earliest > SpoolBytes || len(s.Stamps) > MaxStamps {
		return protocolError("a stream's stamps are absurd")
	}
	if len(s.Stamps) == 0 != (s.Total == 0) && s.Total != s.Earliest {
		return protocolError("a stream has bytes and no stamps")
	}
	last := Stamp{-1, earliest.UnixMicro()}
	for i, m := range s.Stamps {
		if m[0] <= last[0] || m[1] < last[1] || m[0] > s.Total || m[1] > latest.UnixMicro() || i == 0 && m[0] > s.Earliest {
			return protocolError("a stream's stamps are not in order")
		}
		last = m
	}
	return nil
}
