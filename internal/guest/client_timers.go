package guest

import (
	"context"
	"net/http"
	"time"
)

// FeatureTimers is the feature of GET /timers.
const FeatureTimers = "timers"

// Timers says when the next timer is due that can be seen from outside of a process: GET /timers. Those are commands that sleep, the tables of a cron that
// runs, and the jobs of an at that does.
type Timers struct {
	NextMS int64 `json:"nextMs"` // from now; -1 where there is none
}

// NextTimer reads how long it is until the next timer is due, negative where there is none.
func (c *Client) NextTimer(ctx context.Context) (time.Duration, error) {
	var out Timers
	if err := c.do(ctx, call{method: http.MethodGet, path: "/timers"}, &out); err != nil {
		return 0, err
	}
	if out.NextMS < 0 {
		return -1, nil
	}
	if out.NextMS > mostSleep.Milliseconds() {
		return 0, protocolError("its timers are absurd")
	}
	return time.Duration(out.NextMS) * time.Millisecond, nil
}
