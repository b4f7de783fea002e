// Command berth-runtime holds the gVisor sandboxes of one machine. It is the only program that links gVisor, runs as root, and is spoken to
// over a Unix socket; `berth` starts it. Ending it, by any means, leaves the sandboxes running; started again, it takes them back.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"os"
	"os/signal"
	"runtime"
	"syscall"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/runsc/version"

	"github.com/berthrun/berth/internal/disk"
	"github.com/berthrun/berth/internal/runtime/gvisor/supervisor"
	"github.com/berthrun/berth/internal/runtime/gvisor/wire"
)

// The first thread stays that of main for ever: gVisor reads the namespaces of the process from it, and a goroutine that enters another
// namespace must never run on it.
func init() { runtime.LockOSThread() }

func main() {
	if supervisor.Reexec(os.Args) {
		return
	}
	root := &cobra.Command{Use: "berth-runtime", Short: "Hold the gVisor sandboxes of this machine", SilenceUsage: true, SilenceErrors: true}
	root.AddCommand(serveCommand(), versionCommand())
	if err := root.Execute(); err != nil {
		fmt.Fprintln(os.Stderr, "berth-runtime:", err)
		os.Exit(1)
	}
}

func versionCommand() *cobra.Command {
	return &cobra.Command{
		Use: "version", Short: "Print gVisor's version stamp", Args: cobra.NoArgs,
		Run: func(c *cobra.Command, _ []string) { fmt.Fprintln(c.OutOrStdout(), version.Version()) },
	}
}

type flags struct {
	root, socket, guest, cgroupMount, cgroupParent, subnet, log, disk string
	readyFD                                                           int
}

func serveCommand() *cobra.Command {
	var f flags
	c := &cobra.Command{
		Use: "serve", Short: "Serve on a Unix socket until SIGTERM", Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error { return serve(f) },
	}
	c.Flags().StringVar(&f.root, "root", "", "folder of all that is kept (required)")
	c.Flags().StringVar(&f.socket, "socket", "", "path of the socket (required)")
	c.Flags().StringVar(&f.guest, "guest", "", "program that becomes pid 1 in every sandbox (required)")
	c.Flags().StringVar(&f.cgroupMount, "cgroup-mount", "/sys/fs/cgroup", "where control groups are mounted")
	c.Flags().StringVar(&f.cgroupParent, "cgroup-parent", "berth", "control group that holds those of the sandboxes")
	c.Flags().StringVar(&f.subnet, "subnet", "", "IPv4 network of the sandboxes, such as 10.88.0.0/16 (default: the first free one from there)")
	c.Flags().StringVar(&f.log, "log", "", "file to log to (default: standard error)")
	c.Flags().StringVar(&f.disk, "disk", "", "how disks are kept: btrfs, btrfs-image or plain (default: the best there is)")
	c.Flags().IntVar(&f.readyFD, "ready-fd", -1, "descriptor to write an empty line to once it serves, or what it failed of as JSON")
	for _, name := range []string{"root", "socket", "guest"} {
		_ = c.MarkFlagRequired(name) // fails for an unknown flag only
	}
	return c
}

func serve(f flags) error {
	if os.Geteuid() != 0 {
		return errors.New("must run as root")
	}
	cfg := supervisor.Config{Root: f.root, Guest: f.guest, CgroupMount: f.cgroupMount, CgroupParent: f.cgroupParent, Disk: disk.Kind(f.disk)}
	if f.subnet != "" {
		p, err := netip.ParsePrefix(f.subnet)
		if err != nil {
			return fmt.Errorf("--subnet: %w", err)
		}
		cfg.Subnet = p
	}
	out, err := detach(f.log)
	if err != nil {
		return err
	}
	cfg.Log = slog.New(slog.NewTextHandler(out, nil))
	supervisor.QuietGVisor(out)
	var ready *os.File
	if f.readyFD > 2 {
		unix.CloseOnExec(f.readyFD)
		ready = os.NewFile(uintptr(f.readyFD), "ready")
		cfg.Ready = func() { _ = errors.Join(writeLine(ready, ""), ready.Close()) } // whoever started this may be gone
	}
	if err := run(cfg, f.socket); err != nil {
		cfg.Log.Error("ended", "error", err)
		if ready != nil {
			b, _ := json.Marshal(wire.FromError(err)) // of strings and numbers only
			_ = writeLine(ready, string(b))
		}
		os.Exit(1)
	}
	return nil
}

func writeLine(w io.Writer, s string) error {
	_, err := io.WriteString(w, s+"\n")
	return err
}

func run(cfg supervisor.Config, socket string) error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	s, err := supervisor.Open(ctx, cfg)
	if err != nil {
		return err
	}
	cfg.Log.Info("serving", "socket", socket, "hello", s.Hello())
	return s.Serve(ctx, socket)
}

// detach puts /dev/null in the place of the three standard descriptors, which every sandbox inherits, and gives what to log to instead.
// The environment goes too: nothing of it is for sandboxes.
func detach(log string) (io.Writer, error) {
	var out io.Writer
	if log != "" {
		f, err := openLog(log, mostLog)
		if err != nil {
			return nil, fmt.Errorf("open log: %w", err)
		}
		out = f
	} else {
		fd, err := unix.FcntlInt(2, unix.F_DUPFD_CLOEXEC, 3)
		if err != nil {
			return nil, fmt.Errorf("keep standard error: %w", err)
		}
		out = os.NewFile(uintptr(fd), "log")
	}
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	defer null.Close()
	for fd := range 3 {
		if err := unix.Dup3(int(null.Fd()), fd, 0); err != nil {
			return nil, fmt.Errorf("detach standard descriptors: %w", err)
		}
	}
	os.Clearenv()
	_ = os.Setenv("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
	return out, nil
}
