// Package gvisor is the driver of sandboxes on gVisor. It owns the conversation with berth-runtime, the process that holds them, and that
// process's life: it starts it, starts it again when it was killed, and replaces it by another version, none of which touches a sandbox.
//
// It does not link gVisor and needs no rights but those to the socket (and to start the process): supervisor, below it, is what runs there.
package gvisor

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/runtime"
	"github.com/berthrun/berth/internal/runtime/gvisor/wire"
)

// Config of a Driver. Binary, Root, Socket and Guest are required.
type Config struct {
	Binary       string        // the program berth-runtime
	Root         string        // the folder of all that it keeps; images are in Root/images/<id>/rootfs
	Socket       string        // where it listens
	Guest        string        // the program that becomes pid 1 inside
	CgroupMount  string        // default /sys/fs/cgroup
	CgroupParent string        // default berth
	Subnet       string        // of the sandboxes; default the first free /16 from 10.88.0.0 on
	Disk         string        // btrfs, btrfs-image or plain; default the best there is
	LogFile      string        // of the process; default Root/log/runtime.log
	StartTimeout time.Duration // for the process to answer, taking sandboxes back included; default a minute
	Log          *slog.Logger
}

// Driver implements runtime.Driver. Its methods may be called concurrently.
type Driver struct {
	cfg    Config
	log    *slog.Logger
	http   *http.Client
	hello  wire.Hello // of the process as it was at Open
	binary string     // hash of Config.Binary
	guest  string     // hash of Config.Guest

	ctx   context.Context // until Close
	stop  context.CancelFunc
	work  sync.WaitGroup
	start chan struct{} // whoever starts the process holds its token

	mu     sync.Mutex
	deaths map[string]*death // of sandboxes that are dialed, by id
	parked chan struct{}     // not nil after Shutdown, and closed at the next start: until then nothing starts by itself
}

var _ runtime.Driver = (*Driver)(nil)

// Open connects to the process of a root folder, starting or replacing it as needed, and keeps it alive until Close.
func Open(ctx context.Context, cfg Config) (*Driver, error) {
	if cfg.StartTimeout <= 0 {
		cfg.StartTimeout = time.Minute
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	d := &Driver{cfg: cfg, log: cfg.Log, start: make(chan struct{}, 1), deaths: map[string]*death{}}
	d.ctx, d.stop = context.WithCancel(context.Background())
	d.http = &http.Client{Transport: &http.Transport{
		DialContext:         func(ctx context.Context, _, _ string) (net.Conn, error) { return d.connect(ctx) },
		MaxIdleConnsPerHost: 16,
		IdleConnTimeout:     time.Minute,
		DisableCompression:  true,
	}}
	hello, err := d.takeOver(ctx)
	if err != nil {
		d.stop()
		d.http.CloseIdleConnections()
		return nil, err
	}
	d.hello = hello
	d.work.Add(1)
	go d.supervise()
	return d, nil
}

// Name is gvisor.
func (d *Driver) Name() string { return "gvisor" }

// Capabilities are those of the process as it was at Open.
func (d *Driver) Capabilities() runtime.Capabilities {
	return runtime.Capabilities{Pause: true, Memory: true, Saves: true, Instant: d.hello.Snapshot, Quota: d.hello.Quota, Volumes: true}
}

// Hello asks the process what it is.
func (d *Driver) Hello(ctx context.Context) (wire.Hello, error) {
	var out wire.Hello
	return out, d.call(ctx, http.MethodGet, wire.PathHello, nil, &out)
}

// Create implements runtime.Driver.
func (d *Driver) Create(ctx context.Context, spec runtime.Spec) (runtime.Status, error) {
	return d.status(ctx, wire.PathCreate, spec)
}

// Start implements runtime.Driver.
func (d *Driver) Start(ctx context.Context, spec runtime.Spec) (runtime.Status, error) {
	return d.status(ctx, wire.PathStart, spec)
}

// Stop implements runtime.Driver.
func (d *Driver) Stop(ctx context.Context, id string, generation int64, opts runtime.StopOptions) (runtime.Status, error) {
	return d.status(ctx, wire.PathStop, wire.Ref{ID: id, Generation: generation, GraceMS: opts.Grace.Milliseconds()})
}

// Delete implements runtime.Driver.
func (d *Driver) Delete(ctx context.Context, id string, generation int64) error {
	return d.call(ctx, http.MethodPost, wire.PathDelete, wire.Ref{ID: id, Generation: generation}, nil)
}

// Get implements runtime.Driver.
func (d *Driver) Get(ctx context.Context, id string) (runtime.Status, error) {
	return d.status(ctx, wire.PathGet, wire.Ref{ID: id})
}

// List implements runtime.Driver.
func (d *Driver) List(ctx context.Context) ([]runtime.Status, error) {
	var out []runtime.Status
	return out, d.call(ctx, http.MethodGet, wire.PathList, nil, &out)
}

// Stats implements runtime.Driver.
func (d *Driver) Stats(ctx context.Context, id string) (runtime.Stats, error) {
	var out runtime.Stats
	return out, d.call(ctx, http.MethodPost, wire.PathStats, wire.Ref{ID: id}, &out)
}

// Update implements runtime.Driver. New memory is told to the programs inside at the next boot; its limit counts at once.
func (d *Driver) Update(ctx context.Context, id string, generation int64, r runtime.Resources) error {
	return d.call(ctx, http.MethodPost, wire.PathUpdate, wire.Ref{ID: id, Generation: generation, Resources: r}, nil)
}

// Pause implements runtime.Driver.
func (d *Driver) Pause(ctx context.Context, id string, generation int64) (runtime.Status, error) {
	return d.status(ctx, wire.PathPause, wire.Ref{ID: id, Generation: generation})
}

// Resume implements runtime.Driver.
func (d *Driver) Resume(ctx context.Context, id string, generation int64) (runtime.Status, error) {
	return d.status(ctx, wire.PathResume, wire.Ref{ID: id, Generation: generation})
}

// Close lets go of the process, which goes on with its sandboxes. Connections that were dialed stay open.
func (d *Driver) Close() error {
	d.stop()
	d.work.Wait()
	d.http.CloseIdleConnections()
	return nil
}

func (d *Driver) status(ctx context.Context, path string, in any) (runtime.Status, error) {
	var out runtime.Status
	return out, d.call(ctx, http.MethodPost, path, in, &out)
}

// errNoProcess says that nothing was sent, as nobody listens.
var errNoProcess = errors.New("berth-runtime does not answer")

// reads are the calls that change nothing.
var reads = map[string]bool{wire.PathGet: true, wire.PathList: true, wire.PathStats: true, wire.PathSaves: true, wire.PathVolumes: true, wire.PathCopies: true}

// call makes one call. Where nobody listens the process is started first; a call that was under way when it ended is repeated only where that changes nothing.
// The socket of one that was killed may take connections for a moment longer.
func (d *Driver) call(ctx context.Context, method, path string, in, out any) error {
	err := d.try(ctx, method, path, in, out)
	switch e := errs.From(err); {
	case errors.Is(err, errNoProcess):
	case reads[path] && e != nil && e.Reason == "runtime_restarted":
	default:
		return err
	}
	if err := d.ensure(ctx); err != nil {
		return err
	}
	return d.try(ctx, method, path, in, out)
}

func (d *Driver) try(ctx context.Context, method, path string, in, out any) error {
	resp, err := d.request(ctx, method, path, in)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return readError(resp.Body)
	}
	if out == nil {
		out = &struct{}{}
	}
	if err := json.NewDecoder(resp.Body).Decode(out); err != nil {
		return d.broken(ctx, err)
	}
	_, _ = io.Copy(io.Discard, resp.Body) // so that the connection is used again
	return nil
}

func (d *Driver) request(ctx context.Context, method, path string, in any) (*http.Response, error) {
	var body io.Reader
	if in != nil {
		b, err := json.Marshal(in)
		if err != nil {
			return nil, errs.Wrap(errs.Internal, err, "the call cannot be encoded")
		}
		body = bytes.NewReader(b)
	}
	req, err := http.NewRequestWithContext(ctx, method, "http://berth-runtime"+path, body)
	if err != nil {
		return nil, errs.Wrap(errs.Internal, err, "the call cannot be made")
	}
	resp, err := d.http.Do(req)
	if err != nil {
		return nil, d.broken(ctx, err)
	}
	return resp, nil
}

// broken gives the error for a call that got no answer.
func (d *Driver) broken(ctx context.Context, err error) error {
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case errors.Is(err, errNoProcess):
		return unavailable(err)
	}
	return errs.Wrap(errs.HostUnavailable, err, "the runtime of this node ended during the call").Because("runtime_restarted").
		After(time.Second).Suggest("Read the sandbox to see how far the call came, then try again.")
}

func unavailable(err error) error {
	return errs.Wrap(errs.HostUnavailable, err, "the runtime of this node does not answer").Because("runtime_down").After(time.Second)
}

func readError(r io.Reader) error {
	var e wire.Error
	if err := json.NewDecoder(io.LimitReader(r, 1<<20)).Decode(&e); err != nil || e.Code == "" {
		return errs.Wrap(errs.Internal, err, "the runtime of this node answered something unknown")
	}
	return e.Err()
}

// connect opens a connection to the process.
func (d *Driver) connect(ctx context.Context) (*net.UnixConn, error) {
	var dialer net.Dialer
	c, err := dialer.DialContext(ctx, "unix", d.cfg.Socket)
	if err != nil {
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		return nil, errors.Join(errNoProcess, err)
	}
	return c.(*net.UnixConn), nil
}
