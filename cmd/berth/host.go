package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/berthrun/berth/internal/controlplane"
	"github.com/berthrun/berth/internal/debug"
	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/httpapi"
	"github.com/berthrun/berth/internal/nodeagent"
	"github.com/berthrun/berth/internal/nodeapi"
)

// cutTime is how long calls that are cut off get to say so to their callers.
const cutTime = 2 * time.Second

// answerTime is how long the answers of calls that have ended get to be sent.
const answerTime = time.Second

// afterGrace is how long an end may take once calls under way have had their time.
const afterGrace = 80 * time.Second

// host is one running server: the control plane beside the node's agent.
type host struct {
	*settings
	log     *slog.Logger
	out     io.Writer
	agent   *nodeagent.Agent
	ln      net.Listener
	systemd *systemd
}

// serve runs until the context ends or something fails. What control plane and node do between calls outlives the calls that are drained at the end.
func (h *host) serve(ctx context.Context) error {
	background, end := context.WithCancel(context.WithoutCancel(ctx))
	defer end()
	work, background := errgroup.WithContext(background)
	pipe := nodeapi.NewPipe()
	defer pipe.Close()
	work.Go(func() error { return h.agent.Serve(background, pipe) })

	cfg, err := h.plane(h.log)
	if err != nil {
		return err
	}
	cfg.Node, cfg.Direct = pipe.Dial, h.agent.Dial
	plane, err := controlplane.Open(ctx, cfg)
	if err != nil {
		return err
	}
	work.Go(func() error { return plane.Run(background) })

	if err := h.debug(background, work, plane); err != nil {
		end()
		return errors.Join(err, work.Wait(), plane.Close(ctx))
	}
	calls, cut := context.WithCancelCause(background)
	defer cut(nil)
	server := httpapi.NewServer(calls, plane.Handler(), h.log)
	work.Go(func() error {
		if err := server.Serve(h.ln); !errors.Is(err, http.ErrServerClosed) {
			return fmt.Errorf("serve: %w", err)
		}
		return nil
	})
	if err = h.announce(ctx, plane); err == nil {
		addr := h.ln.Addr().String()
		h.systemd.ready(addr)
		work.Go(func() error { h.systemd.watch(background, addr); return nil })
		select {
		case <-ctx.Done():
		case <-background.Done(): // something failed
		}
	}
	grace := time.Duration(h.ShutdownSeconds) * time.Second
	h.systemd.stopping(grace + afterGrace)
	dctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), grace)
	defer cancel()
	h.drain(dctx, plane, cut)
	// The calls have ended; their answers may still be on their way.
	actx, cancel := context.WithTimeout(context.WithoutCancel(ctx), answerTime)
	defer cancel()
	if server.Shutdown(actx) != nil {
		_ = server.Close()
	}
	cctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	end()
	return errors.Join(err, work.Wait(), plane.Close(cctx))
}

// debug serves the private listener where there is one, until the context ends.
func (h *host) debug(ctx context.Context, work *errgroup.Group, plane *controlplane.Plane) error {
	if h.Debug.Listen == "" {
		return nil
	}
	ln, err := debug.Listen(ctx, h.Debug.Listen)
	if err != nil {
		return errs.Wrap(errs.InvalidConfig, err, "cannot listen on debug.listen %s", h.Debug.Listen)
	}
	server := httpapi.NewServer(ctx, debug.Handler(debug.Config{Metrics: plane.Metrics(), State: plane.State, Version: version}), h.log)
	stop := context.AfterFunc(ctx, func() { _ = server.Close() })
	work.Go(func() error {
		defer stop()
		if err := server.Serve(ln); !errors.Is(err, http.ErrServerClosed) {
			return fmt.Errorf("serve the private listener: %w", err)
		}
		return nil
	})
	h.log.Info("the private listener serves", "address", ln.Addr().String())
	return nil
}

// drain lets what is under way finish while nothing new begins and /readyz says so, and cuts off what is still going when the context ends.
func (h *host) drain(ctx context.Context, plane *controlplane.Plane, cut context.CancelCauseFunc) {
	began := time.Now()
	plane.EndStreams()
	left := plane.Quiesce(ctx)
	if left > 0 {
		h.log.Warn("calls are cut off", "calls", left, "after", time.Since(began).Round(time.Millisecond))
		cut(errs.E(errs.Unavailable, "the server is ending").Because("shutting_down").After(2 * time.Second).
			Suggest("Repeat the call, a write with the same idempotencyKey, once the server is back: what has begun is carried on."))
		last, cancel := context.WithTimeout(context.WithoutCancel(ctx), cutTime)
		defer cancel()
		plane.Quiesce(last)
	}
	plane.Drain(ctx)
}

// onHUP reads the log level again at every SIGHUP, until stop.
func (s *settings) onHUP(log *slog.Logger, level *slog.LevelVar) (stop func()) {
	hup := make(chan os.Signal, 1)
	signal.Notify(hup, syscall.SIGHUP)
	over, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		for {
			select {
			case <-over:
				return
			case <-hup:
			}
			again := *s
			if err := again.load(); err != nil {
				log.Error("the configuration was not read again", "error", err)
				continue
			}
			level.Set(levelOf(again.Log.Level))
			log.Info("the log level was read again", "level", again.Log.Level)
		}
	}()
	return func() {
		signal.Stop(hup)
		close(over)
		<-ended
	}
}
