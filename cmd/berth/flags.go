package main

import (
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/berthrun/berth/internal/cli"
	"github.com/berthrun/berth/internal/controlplane"
	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/image/bootstrap"
	"github.com/berthrun/berth/internal/nodeagent"
	"github.com/berthrun/berth/internal/quota"
)

// settings are what a server is told by flags and environment.
type settings struct {
	data, images, database     string
	listen                     string
	port                       int
	publicURL, readyFile       string
	subnet, disk, trustCA      string
	limits, proxies            []string
	perMinute, inFlight        int
	idleSeconds                int
	logLevel                   string
	runtimeBinary, guestBinary string
	temporary                  bool // data and sandboxes go when the server ends
}

func (s *settings) nodeFlags(c *cobra.Command, env func(string) string) {
	f := c.Flags()
	f.StringVar(&s.images, "images", env("BERTH_BASE_DIR"), "the folder of prepared images (BERTH_BASE_DIR; default: images in the data folder)")
	f.StringVar(&s.trustCA, "trust-host-ca", "", "a PEM file of certificates that sandboxes trust too, for hosts behind an intercepting proxy")
	s.runtimeBinary, s.guestBinary = env("BERTH_RUNTIME_BIN"), env("BERTH_GUEST_BIN")
}

func (s *settings) serverFlags(c *cobra.Command) {
	f := c.Flags()
	f.StringVar(&s.listen, "listen", "127.0.0.1", "the address to listen on")
	f.IntVar(&s.port, "port", 7070, "the port to listen on; 0 takes a free one")
	f.StringVar(&s.publicURL, "public-url", "", "the address under which callers reach the server (default: where it listens)")
	f.StringVar(&s.readyFile, "ready-file", "", "a file to write {url, mcpUrl, key} to once the server serves; key only where one was made")
	f.StringVar(&s.database, "database", "", "a postgres:// URL, or the file of a SQLite database (default: berth.db in the data folder)")
	f.StringVar(&s.subnet, "subnet", "", "the network of sandboxes, such as 10.88.0.0/16 (default: the first free one)")
	f.StringVar(&s.disk, "disk", "", "how disks are kept: btrfs, btrfs-image or plain (default: the best there is)")
	f.StringArrayVar(&s.limits, "limit", nil, "a quota of an organization as key=value, such as sandboxes.running=50; -1 is none")
	f.IntVar(&s.perMinute, "calls-per-minute", 600, "calls of one caller a minute; -1 is no limit")
	f.IntVar(&s.inFlight, "calls-in-flight", 4, "MCP calls of one caller at the same time")
	f.IntVar(&s.idleSeconds, "idle-seconds", 0, "how long a sandbox may be idle where its create does not say (default 1800)")
	f.StringArrayVar(&s.proxies, "trusted-proxy", nil, "an address or network whose X-Forwarded-For is believed")
	f.StringVar(&s.logLevel, "log-level", "warn", "debug, info, warn or error")
}

func (s *settings) logger() (*slog.Logger, error) {
	var level slog.Level
	if err := level.UnmarshalText([]byte(s.logLevel)); err != nil {
		return nil, errs.E(errs.InvalidConfig, "log-level %q is none of debug, info, warn, error", s.logLevel)
	}
	return slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: level})), nil
}

// node says what the node of this server runs on.
func (s *settings) node(bar *bootstrap.Bar, log *slog.Logger) nodeagent.Config {
	c := nodeagent.Config{
		Dir: filepath.Join(s.data, "node"), ImageDir: s.images, Runtime: s.runtimeBinary, Guest: s.guestBinary, Subnet: s.subnet, Disk: s.disk,
		TrustHostCA: s.trustCA, Version: version, Progress: bar.Progress, Logger: log,
	}
	if c.ImageDir == "" {
		c.ImageDir = filepath.Join(s.data, "images")
	}
	return c
}

// plane says what the control plane runs on; Node is the caller's to set.
func (s *settings) plane(log *slog.Logger) (controlplane.Config, error) {
	c := controlplane.Config{
		Database: s.database, Blobs: filepath.Join(s.data, "blobs"), PublicURL: s.publicURL, Limits: machineLimits(),
		CallsPerMinute: s.perMinute, CallsInFlight: s.inFlight, Version: version, Logger: log,
	}
	c.Defaults.IdleSeconds = s.idleSeconds
	if c.Database == "" {
		c.Database = filepath.Join(s.data, "berth.db")
	}
	for _, l := range s.limits {
		key, text, _ := strings.Cut(l, "=")
		n, err := strconv.ParseInt(text, 10, 64)
		if err != nil || key == "" {
			return c, errs.E(errs.InvalidConfig, "limit %q is not of the form key=value", l)
		}
		c.Limits[key] = n
	}
	for _, text := range s.proxies {
		if !strings.Contains(text, "/") {
			if a, err := netip.ParseAddr(text); err == nil {
				text = fmt.Sprintf("%s/%d", text, a.BitLen())
			}
		}
		prefix, err := netip.ParsePrefix(text)
		if err != nil {
			return c, errs.E(errs.InvalidConfig, "trusted-proxy %q is no address or network", text)
		}
		c.TrustedProxies = append(c.TrustedProxies, prefix)
	}
	return c, nil
}

// machineLimits are the quotas of an organization on one machine. Memory may be promised four times over: it is a limit of each sandbox, and most use little.
func machineLimits() map[string]int64 {
	limits := map[string]int64{quota.SandboxesRunning: 100, quota.SandboxesTotal: 1000}
	var si unix.Sysinfo_t
	if err := unix.Sysinfo(&si); err == nil {
		limits[quota.MemoryRunning] = int64(si.Totalram) * int64(si.Unit) >> 20 * 4 //nolint:gosec // far below the largest number
	}
	return limits
}

func prepareCommand(env func(string) string) *cobra.Command {
	s := &settings{}
	c := &cobra.Command{
		Use: "prepare", Short: "Prepare the base image, once", Args: cobra.NoArgs,
		Long: "Makes the image that sandboxes start from, of this distribution's own packages. It needs root, and minutes the first time.",
		RunE: func(cmd *cobra.Command, _ []string) error {
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
	c.Flags().StringVar(&s.data, "data", cli.DataDir(env), "the data folder (BERTH_DATA)")
	s.nodeFlags(c, env)
	return c
}
