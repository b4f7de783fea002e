package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/berthrun/berth/internal/cli"
	"github.com/berthrun/berth/internal/controlplane"
	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/httpapi"
	"github.com/berthrun/berth/internal/image/bootstrap"
	"github.com/berthrun/berth/internal/nodeagent"
	"github.com/berthrun/berth/internal/nodeapi"
)

// drainTime is how long calls under way get when the server ends.
const drainTime = 10 * time.Second

func serveCommand(env func(string) string) *cobra.Command {
	s := &settings{}
	c := &cobra.Command{
		Use: "serve", Short: "Serve MCP and the HTTP API, with this machine as the node", Args: cobra.NoArgs,
		Long: "Serves MCP and the HTTP API. Sandboxes go on when the server ends, and are found again when it starts.",
		RunE: func(cmd *cobra.Command, _ []string) error { return s.run(cmd) },
	}
	c.Flags().StringVar(&s.data, "data", cli.DataDir(env), "the data folder (BERTH_DATA)")
	s.nodeFlags(c, env)
	s.serverFlags(c)
	return c
}

func devCommand(env func(string) string) *cobra.Command {
	s := &settings{temporary: true}
	c := &cobra.Command{
		Use: "dev", Short: "Serve from a temporary folder and leave nothing behind", Args: cobra.NoArgs,
		Long: "Serves like serve, with data in a temporary folder. When it ends, its sandboxes and data are deleted.",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if s.images == "" {
				s.images = filepath.Join(cli.DataDir(env), "images")
			}
			s.sweep(cmd)
			dir, err := os.MkdirTemp("", devPrefix)
			if err != nil {
				return fmt.Errorf("make a temporary folder: %w", err)
			}
			s.data = dir
			return errors.Join(s.run(cmd), os.RemoveAll(dir))
		},
	}
	s.nodeFlags(c, env)
	s.serverFlags(c)
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
		left := *s
		left.data = dir
		ctx, cancel := context.WithTimeout(cmd.Context(), time.Minute)
		err = nodeagent.Remove(ctx, left.node(bootstrap.NewBar(io.Discard), slog.New(slog.DiscardHandler)))
		cancel()
		unlock()
		if err = errors.Join(err, os.RemoveAll(dir)); err != nil {
			_, _ = fmt.Fprintf(cmd.ErrOrStderr(), "berth: what an earlier dev left in %s is not removed: %v\n", dir, err)
		}
	}
}

// ready is what a program that started the server wants to know.
type ready struct {
	URL    string `json:"url"`
	MCPURL string `json:"mcpUrl"`
	Key    string `json:"key,omitempty"`
}

// run serves until the command's context ends.
func (s *settings) run(cmd *cobra.Command) (err error) {
	ctx := cmd.Context()
	log, err := s.logger()
	if err != nil {
		return err
	}
	if err := os.MkdirAll(s.data, 0o700); err != nil {
		return fmt.Errorf("make the data folder: %w", err)
	}
	unlock, err := lock(s.data)
	if err != nil {
		return err
	}
	defer unlock()
	ln, err := new(net.ListenConfig).Listen(ctx, "tcp", net.JoinHostPort(s.listen, strconv.Itoa(s.port)))
	if err != nil {
		return errs.Wrap(errs.InvalidConfig, err, "cannot listen on %s port %d", s.listen, s.port).Suggest("Choose another with --port, or 0 for a free one.")
	}
	defer ln.Close()
	if s.publicURL == "" {
		s.publicURL = "http://" + ln.Addr().String()
	}

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
	return s.serve(ctx, cmd.OutOrStdout(), agent, ln)
}

// serve runs the control plane beside the node's agent. What they do between calls outlives the calls that are drained at the end.
func (s *settings) serve(ctx context.Context, out io.Writer, agent *nodeagent.Agent, ln net.Listener) error {
	log, err := s.logger()
	if err != nil {
		return err
	}
	background, end := context.WithCancel(context.WithoutCancel(ctx))
	defer end()
	work, background := errgroup.WithContext(background)
	pipe := nodeapi.NewPipe()
	defer pipe.Close()
	work.Go(func() error { return agent.Serve(background, pipe) })

	cfg, err := s.plane(log)
	if err != nil {
		return err
	}
	cfg.Node, cfg.Direct = pipe.Dial, agent.Dial
	plane, err := controlplane.Open(ctx, cfg)
	if err != nil {
		return err
	}
	work.Go(func() error { return plane.Run(background) })

	server := httpapi.NewServer(background, plane.Handler(), log)
	work.Go(func() error {
		if err := server.Serve(ln); !errors.Is(err, http.ErrServerClosed) {
			return fmt.Errorf("serve: %w", err)
		}
		return nil
	})
	err = s.announce(ctx, out, plane)
	if err == nil {
		select {
		case <-ctx.Done():
		case <-background.Done(): // something failed
		}
	}
	dctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), drainTime)
	defer cancel()
	if serr := server.Shutdown(dctx); serr != nil {
		_ = server.Close()
	}
	plane.Drain(dctx)
	end()
	return errors.Join(err, work.Wait(), plane.Close(dctx))
}

// announce tells a person and a program that the server serves.
func (s *settings) announce(ctx context.Context, out io.Writer, plane *controlplane.Plane) error {
	secret, err := plane.EnsureRoot(ctx)
	if err != nil {
		return err
	}
	if err := cli.UpdateCredential(s.data, s.publicURL, secret); err != nil {
		return err
	}
	if err := greet(out, s.publicURL, secret); err != nil {
		return err
	}
	if s.readyFile == "" {
		return nil
	}
	b, err := json.Marshal(ready{URL: s.publicURL, MCPURL: s.publicURL + "/mcp", Key: secret})
	if err != nil {
		return fmt.Errorf("encode ready file: %w", err)
	}
	// Whoever waits for the file finds it whole.
	if err := os.WriteFile(s.readyFile+".tmp", append(b, '\n'), 0o600); err != nil {
		return fmt.Errorf("write ready file: %w", err)
	}
	if err := os.Rename(s.readyFile+".tmp", s.readyFile); err != nil {
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
