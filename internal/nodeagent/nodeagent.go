// Package nodeagent assembles a node: the programs it starts, its images, its driver, and the handler by which the control plane reaches them.
//
// It is one of the two places that know a concrete driver. It keeps no state of its own: the driver's is on the node, all else the control plane's.
package nodeagent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"github.com/berthrun/berth/internal/bundle"
	"github.com/berthrun/berth/internal/image/bootstrap"
	"github.com/berthrun/berth/internal/image/registry"
	"github.com/berthrun/berth/internal/nodeapi"
	"github.com/berthrun/berth/internal/runtime"
	"github.com/berthrun/berth/internal/runtime/gvisor"
)

// Config says what a node runs on.
type Config struct {
	Dir         string // of the node's own: sandboxes, images, programs
	ImageDir    string // of prepared images; Dir/images where empty
	Runtime     string // path of berth-runtime; the bundled one where empty
	Guest       string // path of berth-guest; the bundled one where empty
	Subnet      string // of sandboxes; the driver's default where empty
	Disk        string // kind of disk store; the best there is where empty
	TrustHostCA string // a PEM file whose certificates sandboxes trust too
	Registries  registry.Policy
	Version     string
	// Progress is told how far the preparation of the base image is.
	Progress func(stage string, done, total int64)
	// BuildLog receives the output of what prepares the base image.
	BuildLog io.Writer
	Logger   *slog.Logger
}

// Prepare makes the base image where it is not there yet, and gives it.
func Prepare(ctx context.Context, c Config) (bootstrap.Result, error) {
	return bootstrap.Prepare(ctx, bootstrap.Options{
		Dir: c.imageDir(), TrustHostCA: c.TrustHostCA, Progress: c.Progress, Log: c.BuildLog,
	})
}

func (c Config) imageDir() string {
	if c.ImageDir != "" {
		return c.ImageDir
	}
	return filepath.Join(c.Dir, "images")
}

// Agent is a running node.
type Agent struct {
	driver *gvisor.Driver
	images *images
	trees  *trees
	info   nodeapi.Info
	log    *slog.Logger
}

// Open prepares the base image, and starts berth-runtime or finds the one that runs.
func Open(ctx context.Context, c Config) (*Agent, error) {
	if os.Geteuid() != 0 {
		return nil, errors.New("a node needs root: it makes namespaces, mounts and cgroups for sandboxes")
	}
	programs, err := bundle.Locate(bundle.Options{Dir: c.Dir, Runtime: c.Runtime, Guest: c.Guest})
	if err != nil {
		return nil, err
	}
	base, err := Prepare(ctx, c)
	if err != nil {
		return nil, fmt.Errorf("prepare the base image: %w", err)
	}
	if err := linkImages(c); err != nil {
		return nil, err
	}
	d, err := gvisor.Open(ctx, gvisor.Config{
		Binary: programs.Runtime.Path, Guest: programs.Guest.Path, Root: c.Dir, Socket: filepath.Join(c.Dir, "runtime.sock"),
		Subnet: c.Subnet, Disk: c.Disk, Log: c.Logger,
	})
	if err != nil {
		return nil, fmt.Errorf("start berth-runtime: %w", err)
	}
	im, err := openImages(c)
	if err != nil {
		return nil, errors.Join(err, d.Close())
	}
	return &Agent{
		driver: d, images: im, trees: newTrees(c), log: c.Logger,
		info: nodeapi.Info{Driver: d.Name(), Capabilities: d.Capabilities(), Trees: true, Images: map[string]string{"base": base.ID}, Version: c.Version, CPUs: cores(), MemoryMiB: memoryMiB()},
	}, nil
}

// linkImages lets the driver find images that are prepared in another folder.
func linkImages(c Config) error {
	own := filepath.Join(c.Dir, "images")
	if c.ImageDir == "" || filepath.Clean(c.ImageDir) == own {
		return nil
	}
	target, err := filepath.Abs(c.ImageDir)
	if err != nil {
		return fmt.Errorf("locate images: %w", err)
	}
	if at, err := os.Readlink(own); err == nil && at == target {
		return nil
	}
	if err := os.MkdirAll(c.Dir, 0o700); err != nil {
		return fmt.Errorf("make the node's folder: %w", err)
	}
	if err := os.Symlink(target, own); err != nil {
		return fmt.Errorf("link images: %w", err)
	}
	return nil
}

// Dial connects to a port inside a sandbox, for a control plane in the same process.
func (a *Agent) Dial(ctx context.Context, id string, port int) (net.Conn, error) {
	return a.driver.Dial(ctx, id, port)
}

// Serve answers the control plane on the listener until the context ends.
func (a *Agent) Serve(ctx context.Context, ln net.Listener) error {
	return Serve(ctx, ln, a.driver, a.tell, a.images.store, a.trees, a.log)
}

// tell is what the node tells of itself now.
func (a *Agent) tell() nodeapi.Info {
	info := a.info
	info.AvailableMiB = availableMiB()
	return info
}

// Serve answers the control plane for any driver. im is nil on a node that keeps no images, tr on one whose saves have no files.
func Serve(ctx context.Context, ln net.Listener, d runtime.Driver, info func() nodeapi.Info, im nodeapi.Images, tr nodeapi.Trees, log *slog.Logger) error {
	handler := nodeapi.NewServer(d, info, log)
	if im != nil {
		handler.ServeImages(im)
	}
	if tr != nil {
		handler.ServeTrees(tr)
	}
	srv := &http.Server{
		Handler: handler, ReadHeaderTimeout: 10 * time.Second,
		BaseContext: func(net.Listener) context.Context { return ctx },
	}
	stop := context.AfterFunc(ctx, func() { _ = srv.Close() })
	defer stop()
	if err := srv.Serve(ln); !errors.Is(err, http.ErrServerClosed) && ctx.Err() == nil {
		return fmt.Errorf("serve node: %w", err)
	}
	return nil
}

// Close lets go of the driver; sandboxes go on. With deleteAll they and berth-runtime end first.
func (a *Agent) Close(ctx context.Context, deleteAll bool) error {
	var err error
	if deleteAll {
		err = a.driver.Shutdown(ctx, true)
	}
	a.images.client.Close()
	return errors.Join(err, a.driver.Close())
}
