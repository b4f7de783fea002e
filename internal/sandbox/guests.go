package sandbox

import (
	"context"
	"errors"
	"net"
	"sync"
	"time"

	"github.com/berthrun/berth/api"
	"github.com/berthrun/berth/api/op"
	"github.com/berthrun/berth/internal/caller"
	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/guest"
	"github.com/berthrun/berth/internal/runtime"
)

// guestPool holds one client a booted sandbox, so that its connections are kept.
type guestPool struct {
	mu      sync.Mutex
	clients map[string]*guestEntry
}

type guestEntry struct {
	boot   int64
	client *guest.Client
}

// guest gives the client of a sandbox's boot. A client of an earlier boot is let go.
func (s *Service) guest(id string, boot int64, token string) *guest.Client {
	p := &s.guests
	p.mu.Lock()
	defer p.mu.Unlock()
	e := p.clients[id]
	if e != nil && e.boot == boot {
		return e.client
	}
	if e != nil {
		e.client.Close()
	}
	e = &guestEntry{boot: boot, client: s.connect(id, token)}
	e.client.Begin(func(ctx context.Context) (*guest.Configure, error) { return s.first(ctx, id) })
	p.clients[id] = e
	return e.client
}

// connect makes a client of a sandbox's guest.
func (s *Service) connect(id, token string) *guest.Client {
	c := guest.NewClient(
		func(ctx context.Context) (net.Conn, error) { return s.Driver.Dial(ctx, id, guest.Port) },
		func() string { return token },
	)
	if s.Observer != nil {
		c.Observe(s.Observer.Guest)
	}
	return c
}

func (s *Service) dropGuest(id string) {
	p := &s.guests
	p.mu.Lock()
	defer p.mu.Unlock()
	if e := p.clients[id]; e != nil {
		e.client.Close()
		delete(p.clients, id)
	}
	s.samples.mu.Lock()
	delete(s.samples.latest, id)
	s.samples.mu.Unlock()
}

func (s *Service) dropGuests() {
	p := &s.guests
	p.mu.Lock()
	defer p.mu.Unlock()
	for id, e := range p.clients {
		e.client.Close()
		delete(p.clients, id)
	}
}

// How it was woken, as results say it, and why, as its log does.
const (
	wokeByBoot   = "boot"
	wokeByMemory = "memory"
	causeUsed    = "used"
	causeTimer   = "timer"
)

// useWait is how long a call waits for a boot before it answers BUSY.
const useWait = 25 * time.Second

// Awake gives the guest of a sandbox that commands and files use. It waits for a boot under way, and wakes a paused and boots a stopped sandbox where that is
// allowed; woke then says how. Whoever may not wake it gets errs.InvalidState with reason asleep.
func (s *Service) Awake(ctx context.Context, id string) (g *guest.Client, woke string, err error) {
	return s.reach(ctx, id, verbUse)
}

// Running gives the guest of a running sandbox for what belongs to its processes: input and signals.
func (s *Service) Running(ctx context.Context, id string) (*guest.Client, error) {
	g, _, err := s.reach(ctx, id, verbPoke)
	return g, err
}

// Live gives the guest of a sandbox where it runs, else nil: what is stored must do.
func (s *Service) Live(ctx context.Context, id string) (*guest.Client, error) {
	r, err := s.find(ctx, s.DB, id)
	if err != nil || r.State != api.StateRunning {
		return nil, err
	}
	return answering(ctx, s.guest(r.ID, r.BootGeneration, r.GuestToken))
}

func (s *Service) reach(ctx context.Context, id string, v verb) (*guest.Client, string, error) {
	woke := ""
	until := time.Now().Add(op.Remaining(ctx, useWait))
	for {
		r, err := s.find(ctx, s.DB, id)
		if err != nil {
			return nil, woke, err
		}
		a := decide(v, r.State)
		if a == busy && woke != "" {
			a = wait // this call wakes it
		}
		switch a {
		case do:
			g, err := answering(ctx, s.guest(r.ID, r.BootGeneration, r.GuestToken))
			return g, woke, err
		case wait, onward:
			s.nudge(id)
			left := time.Until(until)
			if left <= 0 {
				return nil, woke, errBusy(r)
			}
			after, err := s.settle(ctx, id, left)
			if err != nil {
				return nil, woke, err
			}
			if moving(after.State) {
				return nil, woke, errBusy(after)
			}
			if after.State == api.StateStopped && after.StopReason == "boot_failed" {
				return nil, "", errNoBoot(after)
			}
			if after.State == api.StatePaused && after.WakeError != "" {
				return nil, "", errNoWake(after)
			}
		case boot, wake:
			if woke != "" { // somebody else stopped it again at once
				return nil, "", errBusy(r)
			}
			if c := caller.From(ctx); !r.AutoWake || c.ReadOnly || !s.MayWake(c) {
				return nil, "", errAsleep(r)
			}
			how, to := wokeByBoot, api.StateStarting
			if r.State == api.StatePaused {
				how, to = wokeByMemory, api.StateWaking
			}
			r.cause = causeUsed
			err := s.move(ctx, r, to)
			if err != nil && !errors.Is(err, errLostRace) {
				return nil, "", err
			}
			if err == nil {
				woke = how
			}
			s.nudge(id)
		case busy:
			return nil, woke, errBusy(r)
		default:
			return nil, woke, errInvalidState(r, v)
		}
	}
}

// Explain gives the error of a call on a guest a better one where the sandbox died under it.
func (s *Service) Explain(ctx context.Context, id string, err error) error {
	switch e := errs.From(err); {
	case e == nil:
		return nil
	case e.Code == errs.InvalidState && (e.Reason == string(runtime.Stopped) || e.Reason == string(runtime.Paused)): // it was found so when it was dialed again
	case e.Code == errs.HostUnavailable, e.Code == errs.Unavailable, e.Code == errs.Timeout, e.Code == errs.Upstream:
	case e.Code == errs.NotFound: // of a file, or its node no longer has the sandbox
		if r, gerr := s.store.get(context.WithoutCancel(ctx), s.DB, id); gerr == nil && (r == nil || goes(r)) {
			return errDeletedMeanwhile(id)
		}
		return err
	default:
		return err
	}
	r := s.awaitDeath(ctx, id)
	if r == nil {
		if errs.From(err).Reason == string(runtime.Paused) {
			return errPausedMeanwhile(api.StateRunning) // it was, and goes on
		}
		return err
	}
	if goes(r) {
		return errDeletedMeanwhile(id)
	}
	switch r.State {
	case api.StatePausing, api.StatePaused, api.StateWaking:
		return errPausedMeanwhile(r.State)
	}
	e := errs.E(errs.InvalidState, "the sandbox ended while the call ran: %s", r.StopReason).Because(r.StopReason).With("state", r.State)
	if r.StopReason == runtime.ReasonOutOfMemory {
		return e.Suggest("Its memory was used up. Use less, or create one with more resources.memoryMiB. Its files are kept: the next call starts it again.")
	}
	return e.Suggest("Its files are kept: the next call starts it again. Check what the call had done before.")
}

// deathTime is how long a sandbox whose guest does not answer is given to turn out dead.
const deathTime = 3 * time.Second

// awaitDeath gives a sandbox that has stopped or does so in a moment, else nil. A kernel that runs out of memory takes a while to die.
func (s *Service) awaitDeath(ctx context.Context, id string) *row {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), deathTime) // the call's own time may be over
	defer cancel()
	var dead *row
	err := s.DB.Wait(ctx, topic(id), func(ctx context.Context) (bool, error) {
		if st, err := s.Driver.Get(ctx, id); err == nil {
			s.report(ctx, st)
		}
		r, err := s.findDeleted(ctx, s.DB, id)
		if err == nil && r.State != api.StateRunning {
			dead = r
		}
		return dead != nil, err
	})
	if err != nil {
		return nil
	}
	return dead
}
