package main

import (
	"fmt"
	"io"
	"log/slog"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/berthrun/berth/internal/cli"
	"github.com/berthrun/berth/internal/config"
	"github.com/berthrun/berth/internal/controlplane"
	"github.com/berthrun/berth/internal/image/bootstrap"
	"github.com/berthrun/berth/internal/image/registry"
	"github.com/berthrun/berth/internal/nodeagent"
	"github.com/berthrun/berth/internal/quota"
	"github.com/berthrun/berth/internal/runtime"
)

// logger writes to the given stream at a level that can be changed.
func (s *settings) logger(w io.Writer, level *slog.LevelVar) *slog.Logger {
	level.Set(levelOf(s.Log.Level))
	o := &slog.HandlerOptions{Level: level}
	if s.Log.Format == "json" {
		return slog.New(slog.NewJSONHandler(w, o))
	}
	return slog.New(slog.NewTextHandler(w, o))
}

func levelOf(name string) slog.Level {
	var level slog.Level
	if err := level.UnmarshalText([]byte(name)); err != nil {
		return slog.LevelWarn // the configuration has only names that there are
	}
	return level
}

// node says what the node of this server runs on.
func (s *settings) node(bar *bootstrap.Bar, log *slog.Logger) nodeagent.Config {
	return nodeagent.Config{
		Dir: filepath.Join(s.Data, "node"), ImageDir: s.imageDir(), Runtime: s.Node.Runtime, Guest: s.Node.Guest, Subnet: s.Node.Subnet, Disk: s.Node.Disk,
		TrustHostCA: s.Node.TrustHostCA, Registries: registry.Policy{Allowed: s.Images.AllowedRegistries, Insecure: s.Images.InsecureRegistries}, Version: version, Progress: bar.Progress, Logger: log,
	}
}

// plane says what the control plane runs on; Node is the caller's to set.
func (s *settings) plane(log *slog.Logger) (controlplane.Config, error) {
	c := controlplane.Config{
		Database: s.databaseURL(), DatabaseConns: s.Database.MaxConns, Blobs: firstOf(s.Blobs.URL, filepath.Join(s.Data, "blobs")), PublicURL: s.PublicURL,
		Limits: machineLimits(), CallsPerMinute: s.Calls.PerMinute, CallsInFlight: s.Calls.InFlight, Version: version, Logger: log,
		KeyFile: firstOf(s.KeyFile, filepath.Join(s.Data, "secrets.key")), PublicMetrics: s.Metrics.Public, MCPOff: !s.MCP.Enabled, MCPPath: s.MCP.Path, MCPOrigins: s.MCP.Origins, MCPHosts: s.MCP.Hosts,
		SSHKeys:     filepath.Join(s.Data, "ssh_ca"),
		KeepDeleted: time.Duration(s.Keep.DeletedSeconds) * time.Second, KeepEvents: time.Duration(s.Keep.EventSeconds) * time.Second,
		KeepAudit: time.Duration(s.Keep.AuditSeconds) * time.Second,
		Patience:  time.Duration(s.Confirmations.WaitSeconds) * time.Second, ConfirmationLasts: time.Duration(s.Confirmations.LastSeconds) * time.Second,
	}
	c.Defaults.IdleSeconds, c.Defaults.TTLSeconds = s.Sandboxes.IdleSeconds, s.Sandboxes.TTLSeconds
	c.ReadyMemoryMiB = int64(s.Sandboxes.ReadyMemoryMiB)
	c.FrozenFor = time.Duration(s.Sandboxes.FrozenSeconds) * time.Second
	if c.FrozenFor == 0 {
		c.FrozenFor = -1
	}
	c.Defaults.Resources = runtime.Resources{VCPU: s.Sandboxes.VCPU, MemoryMiB: int64(s.Sandboxes.MemoryMiB), DiskGiB: int64(s.Sandboxes.DiskGiB)}
	for key, n := range s.Limits {
		c.Limits[key] = n
	}
	for _, text := range s.Listen.TrustedProxies {
		prefix, err := config.Network(text)
		if err != nil {
			return c, fmt.Errorf("read trusted proxies: %w", err)
		}
		c.TrustedProxies = append(c.TrustedProxies, prefix)
	}
	return c, nil
}

// machineLimits are the quotas of an organization on one machine. Memory may be promised four times over: it is a limit of each sandbox, and most use little.
func machineLimits() map[string]int64 {
	limits := map[string]int64{quota.SandboxesRunning: 100, quota.SandboxesTotal: 1000, quota.VolumesTotal: 1000}
	var si unix.Sysinfo_t
	if err := unix.Sysinfo(&si); err == nil {
		limits[quota.MemoryRunning] = int64(si.Totalram) * int64(si.Unit) >> 20 * 4 //nolint:gosec // far below the largest number
	}
	return limits
}

func prepareCommand(env func(string) string) *cobra.Command {
	s := newSettings(env)
	c := &cobra.Command{
		Use: "prepare", Short: "Prepare the base image, once", Args: cli.NoArgs,
		Long: "Makes the image that sandboxes start from, of this distribution's own packages. It needs root, and minutes the first time.",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := s.load(); err != nil {
				return err
			}
			bar := bootstrap.NewBar(cmd.ErrOrStderr())
			res, err := nodeagent.Prepare(cmd.Context(), s.node(bar, slog.New(slog.DiscardHandler)))
			bar.Close()
			if err != nil {
				return err
			}
			state := "prepared"
			if res.Cached {
				state = "ready"
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "The base image is %s: %d packages, %d MiB.\n", state, res.Packages, res.Bytes>>20)
			return err
		},
	}
	s.flags(c, nodeKeys)
	return c
}
