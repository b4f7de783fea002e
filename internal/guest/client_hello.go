package guest

import (
	"context"
	"net/http"
	"time"

	"github.com/berthrun/berth/internal/errs"
)

// How Hello asks again until the guest has booted.
const (
	helloFirst = 2 * time.Millisecond
	helloMost  = 20 * time.Millisecond
	helloTry   = time.Second
)

// Hello asks the guest who it is, again and again until it answers: at most for HelloTimeout, and then the error is UNAVAILABLE, reason
// guest_unresponsive, or HOST_UNAVAILABLE where no connection came as far as the sandbox. A guest of an unknown protocol is UNAVAILABLE, reason guest_version.
func (c *Client) Hello(ctx context.Context) (Hello, error) {
	end := time.NewTimer(HelloTimeout)
	defer end.Stop()
	pause := time.NewTimer(0)
	defer pause.Stop()
	<-pause.C
	before := c.reached.Load()
	for wait := helloFirst; ; wait = min(2*wait, helloMost) {
		var h Hello
		err := c.do(ctx, call{method: http.MethodGet, path: "/hello", safe: true, timeout: helloTry}, &h)
		if err == nil {
			err := checkHello(&h)
			if err == nil {
				c.features.known.Store(&h)
			}
			return h, err
		}
		if !bootable(err) {
			return Hello{}, err
		}
		pause.Reset(wait)
		select {
		case <-pause.C:
		case <-ctx.Done():
			return Hello{}, ctx.Err()
		case <-end.C:
			if c.reached.Load() == before {
				// Nobody got as far as the sandbox: it is the node that has to come back, as when its runtime is just starting again.
				return Hello{}, errs.Wrap(errs.HostUnavailable, err, "the sandbox cannot be reached on its node").After(time.Second)
			}
			return Hello{}, unresponsive(err)
		}
	}
}

// bootable reports whether an error may pass once the guest has booted.
func bootable(err error) bool {
	e := errs.From(err)
	return e.Code == errs.HostUnavailable || e.Code == errs.Unavailable && e.Reason != "guest_token"
}

func checkHello(h *Hello) error {
	if len(h.Build) > maxName || len(h.BootID) > maxName || len(h.Features) > 64 {
		return protocolError("it says too much of itself")
	}
	for _, f := range h.Features {
		if len(f) > 64 {
			return protocolError("it says too much of itself")
		}
	}
	if h.MinProtocol > Protocol || h.Protocol < MinProtocol || h.MinProtocol > h.Protocol {
		return errs.E(errs.Unavailable, "the program inside the sandbox speaks protocols %d to %d, the host %d to %d", h.MinProtocol, h.Protocol, MinProtocol, Protocol).
			Because("guest_version").Suggest("Stop and start the sandbox: it then gets the host's own version.")
	}
	return nil
}

// Has reports whether the guest has a feature.
func (h *Hello) Has(feature string) bool {
	for _, f := range h.Features {
		if f == feature {
			return true
		}
	}
	return false
}

// Configure renews what a copy must not share. What was known of processes is forgotten with it, since a restore turns them back.
func (c *Client) Configure(ctx context.Context, in Configure) (Configured, error) {
	return c.configure(ctx, in, false)
}

// Activity reads what keeps the sandbox from idling.
func (c *Client) Activity(ctx context.Context) (Activity, error) {
	var out Activity
	if err := c.do(ctx, call{method: http.MethodGet, path: "/activity"}, &out); err != nil {
		return Activity{}, err
	}
	if out.Foreground < 0 || out.Terminals < 0 || out.Foreground > MaxProcesses || out.Terminals > MaxProcesses || !sane(out.Last) {
		return Activity{}, protocolError("its activity is absurd")
	}
	return out, nil
}

// Metrics reads the sandbox's usage.
func (c *Client) Metrics(ctx context.Context) (Metrics, error) {
	var out Metrics
	if err := c.do(ctx, call{method: http.MethodGet, path: "/metrics"}, &out); err != nil {
		return Metrics{}, err
	}
	for _, n := range []int64{out.MemoryTotal, out.MemoryUsed, out.DiskTotal, out.DiskUsed, int64(out.Processes)} {
		if n < 0 || n > maxStream {
			return Metrics{}, protocolError("its metrics are absurd")
		}
	}
	if out.CPUSeconds < 0 || out.UptimeSeconds < 0 || out.Load1 < 0 || !sane(out.At) {
		return Metrics{}, protocolError("its metrics are absurd")
	}
	return out, nil
}

// Sync writes everything to the sandbox's disk.
func (c *Client) Sync(ctx context.Context) error {
	return c.do(ctx, call{method: http.MethodPost, path: "/sync", safe: true, timeout: longTimeout}, &struct{}{})
}

// Shutdown ends everything in the sandbox and then the guest: it is gone soon after the answer.
func (c *Client) Shutdown(ctx context.Context, grace time.Duration) error {
	in := Shutdown{GraceMS: grace.Milliseconds()}
	return c.do(ctx, call{method: http.MethodPost, path: "/shutdown", body: in, timeout: grace + callTimeout}, &struct{}{})
}
