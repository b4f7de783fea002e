package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/berthrun/berth/internal/cli"
	"github.com/berthrun/berth/internal/controlplane"
	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/image/bootstrap"
	"github.com/berthrun/berth/internal/nodeagent"
)

func serveCommand(env func(string) string) *cobra.Command {
	s := newSettings(env)
	c := &cobra.Command{
		Use: "serve", Short: "Serve MCP and the HTTP API, with this machine as the node", Args: cli.NoArgs,
		Long: "Serves MCP and the HTTP API. Sandboxes go on when the server ends, and are found again when it starts. " +
			"The first signal (SIGTERM, Ctrl-C) lets calls under way finish, a second one ends at once; SIGHUP reads the log level again.",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := s.load(); err != nil {
				return err
			}
			return s.run(cmd)
		},
	}
	s.flags(c, everyKey)
	return c
}

func devCommand(env func(string) string) *cobra.Command {
	s := newSettings(env)
	s.temporary = true
	c := &cobra.Command{
		Use: "dev", Short: "Serve from a temporary folder and leave nothing behind", Args: cli.NoArgs,
		Long: "Serves like serve, with data in a temporary folder. When it ends, its sandboxes and data are deleted; the base image stays in the images of the usual " +
			"data folder, so that it is made once. It reads no configuration file but one that is named. Command lines reach it by the variables that it prints.",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := s.load(); err != nil {
				return err
			}
			s.Images.Dir = s.imageDir()
			s.sweep(cmd)
			dir, err := os.MkdirTemp("", devPrefix)
			if err != nil {
				return fmt.Errorf("make a temporary folder: %w", err)
			}
			s.Data = dir
			err = s.run(cmd)
			ctx, cancel := context.WithTimeout(context.WithoutCancel(cmd.Context()), 2*time.Minute)
			defer cancel()
			if left := nodeagent.Remove(ctx, s.node(bootstrap.NewBar(io.Discard), slog.New(slog.DiscardHandler))); left != nil {
				return errors.Join(err, left) // the next dev tries again
			}
			return errors.Join(err, os.RemoveAll(dir))
		},
	}
	s.flags(c, butData)
	return c
}

// devPrefix begins the names of temporary data folders.
const devPrefix = "berth-dev-"

// sweep removes what an earlier dev that was killed has left: its sandboxes, their runtime, its folder. One that still runs holds its lock.
func (s *settings) sweep(cmd *cobra.Command) {
	dirs, _ := filepath.Glob(filepath.Join(os.TempDir(), devPrefix+"*"))
	for _, dir := range dirs {
		unlock, err := lock(dir)
		if err != nil {
			continue
		}
		left, loaded := *s, *s.Loaded
		left.Loaded, loaded.Data = &loaded, dir
		ctx, cancel := context.WithTimeout(cmd.Context(), time.Minute)
		err = nodeagent.Remove(ctx, left.node(bootstrap.NewBar(io.Discard), slog.New(slog.DiscardHandler)))
		cancel()
		unlock()
		if err == nil {
			err = os.RemoveAll(dir)
		}
		if err != nil {
			_, _ = fmt.Fprintf(cmd.ErrOrStderr(), "berth: what an earlier dev left in %s is not removed: %v\n", dir, err)
		}
	}
}

// ready is what a program that started the server wants to know.
type ready struct {
	URL    string `json:"url"`
	MCPURL string `json:"mcpUrl,omitempty"`
	Key    string `json:"key,omitempty"`
}

// run serves until the command's context ends.
func (s *settings) run(cmd *cobra.Command) (err error) {
	ctx := cmd.Context()
	level := new(slog.LevelVar)
	log := s.logger(cmd.ErrOrStderr(), level)
	stopHUP := s.onHUP(log, level)
	defer stopHUP()
	manager := newSystemd(s.env, log) // before any program is started, which would hear of it
	if err := os.MkdirAll(s.Data, 0o700); err != nil {
		return fmt.Errorf("make the data folder: %w", err)
	}
	unlock, err := lock(s.Data)
	if err != nil {
		return err
	}
	defer unlock()
	ln, err := new(net.ListenConfig).Listen(ctx, "tcp", net.JoinHostPort(s.Listen.Address, strconv.Itoa(s.Listen.Port)))
	if err != nil {
		return errs.Wrap(errs.InvalidConfig, err, "cannot listen on %s port %d", s.Listen.Address, s.Listen.Port).Suggest("Choose another with --port, or 0 for a free one.")
	}
	defer ln.Close()
	if s.PublicURL == "" {
		s.PublicURL = "http://" + ln.Addr().String()
	}

	manager.starting()
	bar := bootstrap.NewBar(cmd.ErrOrStderr())
	agent, err := nodeagent.Open(ctx, s.node(bar, log))
	bar.Close()
	if err != nil {
		return err
	}
	defer func() {
		cctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Minute)
		defer cancel()
		err = errors.Join(err, agent.Close(cctx, s.temporary))
	}()
	h := &host{settings: s, log: log, out: cmd.OutOrStdout(), agent: agent, ln: ln, systemd: manager}
	return h.serve(ctx)
}

// announce tells a person and a program that the server serves.
func (h *host) announce(ctx context.Context, plane *controlplane.Plane) error {
	secret, err := plane.EnsureRoot(ctx)
	if err != nil {
		return err
	}
	if err := cli.UpdateCredential(h.Data, h.PublicURL, secret); err != nil {
		return err
	}
	r := ready{URL: h.PublicURL, Key: secret}
	if h.MCP.Enabled {
		r.MCPURL = h.PublicURL + h.MCP.Path
	}
	shown := r
	if h.systemd.manages() {
		shown.Key = "" // what is printed is kept in a journal that others than root read
	}
	if err := greet(h.out, shown); err != nil {
		return err
	}
	if h.ReadyFile == "" {
		return nil
	}
	b, err := json.Marshal(r)
	if err != nil {
		return fmt.Errorf("encode ready file: %w", err)
	}
	// Whoever waits for the file finds it whole.
	if err := os.WriteFile(h.ReadyFile+".tmp", append(b, '\n'), 0o600); err != nil {
		return fmt.Errorf("write ready file: %w", err)
	}
	if err := os.Rename(h.ReadyFile+".tmp", h.ReadyFile); err != nil {
		return fmt.Errorf("write ready file: %w", err)
	}
	return nil
}

// lock keeps a second server away from the data folder.
func lock(dir string) (unlock func(), err error) {
	f, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock the data folder: %w", err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		_ = f.Close()
		return nil, errs.E(errs.InvalidConfig, "another server uses %s", dir).Suggest("End it, or choose another folder with --data.")
	}
	return func() { _ = f.Close() }, nil
}
