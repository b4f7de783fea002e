// Package fake is a runtime driver for tests: every sandbox is a folder and a guest in this process, whose commands run on the host. It isolates
// nothing and is never offered to users.
//
// A pause stops the commands and holds every answer of the guest. A sandbox on disk is such a frozen one whose connections are gone, with a file that
// stands for its memory: the file is read and checked as a real one would be. A process cannot be copied, so that copies with memory, and sandboxes
// that were rewound, have the disk and what the guest itself had in memory (its boot id, token, environment and answers), but none of its processes and
// nothing of what they wrote. What is in the guest while it is paused cannot be stopped either: a call that had begun goes on and only its answer waits,
// and the timeouts of commands run out. A command that left its session and its parents is not found.
package fake

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/guest"
	"github.com/berthrun/berth/internal/id"
	"github.com/berthrun/berth/internal/runtime"
)

// Config says how the driver behaves.
type Config struct {
	Dir string // holds a folder for each sandbox; what else is kept is in folders whose names begin with a dot
	// Can is what the driver can do: any part of Everything, by default nothing.
	Can runtime.Capabilities
	// Images are the ids that sandboxes can be made of; any where nil.
	Images []string
	// Before is called with the method's name and the id of the sandbox (of the save, to forget one) before each change, and before stats; its error is
	// the call's. It may wait.
	Before func(ctx context.Context, method, id string) error
	Now    func() time.Time // the guests' too
	// Instead gives the address that answers in place of a sandbox's guest, which has the other; empty where the guest itself does. Nil is never.
	Instead func(id, guest string) string
}

// Driver is a runtime.Driver without isolation.
type Driver struct {
	cfg Config

	mu       sync.Mutex
	boxes    map[string]*box
	saves    map[string]*save
	claims   map[string][]runtime.Mount // of sandboxes that run or have a memory, by their ids
	watchers map[*watcher]struct{}
	wg       sync.WaitGroup
}

// box is one sandbox. Its lock orders the calls that change it.
type box struct {
	mu      sync.Mutex
	gone    bool
	status  runtime.Status // guarded by the driver's lock
	root    string
	spec    runtime.Spec  // of the last boot, with the resources as they were updated
	guest   *guest.Server // nil while nothing runs
	server  *http.Server
	addr    string
	gate    *gate         // of this boot's connections
	thaw    func()        // not nil while it is frozen
	halted  chan struct{} // closed when this boot ends
	calls   *calls        // connections that were dialed
	memory  *memory       // of a suspended one
	undo    *undo         // of one that was woken and is not settled
	rebased int64         // the generation of the call that gave it its disk
}

var _ runtime.Driver = (*Driver)(nil)

// New makes the driver.
func New(c Config) *Driver {
	if c.Now == nil {
		c.Now = time.Now
	}
	if c.Before == nil {
		c.Before = func(context.Context, string, string) error { return nil }
	}
	return &Driver{cfg: c, boxes: map[string]*box{}, saves: map[string]*save{}, claims: map[string][]runtime.Mount{}, watchers: map[*watcher]struct{}{}}
}

// Name implements runtime.Driver.
func (d *Driver) Name() string { return "fake" }

// Capabilities implements runtime.Driver.
func (d *Driver) Capabilities() runtime.Capabilities { return d.cfg.Can }

// Everything is all that the fake can do.
func Everything() runtime.Capabilities {
	return runtime.Capabilities{Pause: true, Memory: true, Saves: true, Volumes: true}
}

// enter finds a sandbox, locks it and checks the generation. With make a missing one is made.
func (d *Driver) enter(sandbox string, generation int64, create bool) (*box, error) {
	for {
		d.mu.Lock()
		b := d.boxes[sandbox]
		if b == nil && create {
			b = &box{root: filepath.Join(d.cfg.Dir, sandbox), calls: newCalls(), status: runtime.Status{ID: sandbox, State: runtime.Stopped, ExitStatus: -1, Since: d.cfg.Now()}}
			d.boxes[sandbox] = b
		}
		d.mu.Unlock()
		if b == nil {
			return nil, errs.E(errs.NotFound, "there is no sandbox %s on this node", sandbox)
		}
		b.mu.Lock()
		if b.gone {
			b.mu.Unlock()
			continue
		}
		d.mu.Lock()
		known := b.status.Generation
		if generation > known {
			b.status.Generation = generation
		}
		d.mu.Unlock()
		if generation < known {
			b.mu.Unlock()
			return nil, errs.E(errs.InvalidState, "generation %d is older than %d", generation, known).Because("stale_generation")
		}
		return b, nil
	}
}

// Create implements runtime.Driver.
func (d *Driver) Create(ctx context.Context, spec runtime.Spec) (runtime.Status, error) {
	return d.bring(ctx, "create", spec, true)
}

// Start implements runtime.Driver.
func (d *Driver) Start(ctx context.Context, spec runtime.Spec) (runtime.Status, error) {
	return d.bring(ctx, "start", spec, false)
}

func (d *Driver) bring(ctx context.Context, method string, spec runtime.Spec, create bool) (runtime.Status, error) {
	if err := ctx.Err(); err != nil {
		return runtime.Status{}, err
	}
	if err := d.check(spec); err != nil {
		return runtime.Status{}, err
	}
	b, err := d.enter(spec.ID, spec.Generation, create)
	if err != nil {
		return runtime.Status{}, err
	}
	defer b.mu.Unlock()
	st := d.statusOf(b)
	if st.State == runtime.Running {
		return st, nil
	}
	_, serr := os.Stat(b.root)
	fresh := errors.Is(serr, os.ErrNotExist)
	switch {
	case create && !fresh:
		return runtime.Status{}, errs.E(errs.AlreadyExists, "the sandbox is there already").Because(string(st.State))
	case st.State == runtime.Paused:
		return runtime.Status{}, wrongState(st)
	}
	err = d.cfg.Before(ctx, method, spec.ID)
	if !fresh && b.spec.Image != spec.Image {
		err = errs.E(errs.InvalidInput, "the disk of sandbox %s is of image %s", spec.ID, b.spec.Image).Because("image")
	}
	if err == nil {
		d.settle(b)
		err = d.boot(b, spec, nil)
	}
	if err != nil {
		if fresh {
			d.drop(b)
		}
		return runtime.Status{}, err
	}
	return d.set(b, runtime.Running, ""), nil
}

// wrongState says that a call cannot be made of a sandbox as it is.
func wrongState(st runtime.Status) error {
	return errs.E(errs.InvalidState, "sandbox %s is %s", st.ID, st.State).Because(string(st.State))
}

func (d *Driver) check(spec runtime.Spec) error {
	if !id.Valid(id.Sandbox, spec.ID) || strings.ContainsAny(spec.Image, "/.") {
		return errs.E(errs.InvalidInput, "the id of the sandbox or of its image is malformed")
	}
	if spec.Network != runtime.NetworkInternet && spec.Network != runtime.NetworkNone {
		return errs.E(errs.InvalidInput, "there is no network %q", spec.Network)
	}
	if d.cfg.Images != nil && !slices.Contains(d.cfg.Images, spec.Image) {
		return errs.E(errs.NotFound, "there is no image %s on this node", spec.Image)
	}
	if spec.Resources.VCPU <= 0 || spec.Resources.MemoryMiB <= 0 {
		return errs.E(errs.InvalidInput, "a sandbox needs CPU and memory")
	}
	if len(spec.Mounts) > 0 && !d.cfg.Can.Volumes {
		return unsupported()
	}
	return runtime.CheckMounts(spec.Mounts)
}

// boot starts a guest on the sandbox's folder; with a state it goes on where that was taken.
func (d *Driver) boot(b *box, spec runtime.Spec, state *guest.State) error {
	if err := os.MkdirAll(filepath.Join(b.root, "workspace"), 0o777); err != nil {
		return fmt.Errorf("make sandbox folder: %w", err)
	}
	for _, dir := range []string{"tmp", "home"} {
		if err := os.MkdirAll(filepath.Join(b.root, dir), 0o777); err != nil {
			return fmt.Errorf("make sandbox folder: %w", err)
		}
	}
	if err := d.claim(spec.ID, spec.Mounts); err != nil {
		return err
	}
	b.spec = spec
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err == nil {
		err = d.attach(b, spec.ID, spec.Mounts)
	}
	if err != nil {
		d.detach(b)
		if state == nil {
			d.release(spec.ID)
		}
		if ln != nil {
			_ = ln.Close()
		}
		return fmt.Errorf("begin guest: %w", err)
	}
	g := guest.NewServer(guest.Config{Token: spec.GuestToken, Build: "fake", Root: b.root, Now: d.cfg.Now, State: state})
	b.gate = newGate()
	ln = gated{ln, b.gate}
	srv := &http.Server{Handler: g.Handler(), ReadHeaderTimeout: 10 * time.Second}
	b.guest, b.server, b.addr = g, srv, ln.Addr().String()
	d.wg.Go(func() { _ = srv.Serve(ln) })
	halted := make(chan struct{})
	b.halted = halted
	at := b.gate
	d.wg.Go(func() {
		select {
		case <-g.Done():
			at.pass(halted)
			d.ended(b, g, srv)
		case <-halted:
		}
	})
	return nil
}

// ended notes that a guest ended by itself, once it has given its last answers.
func (d *Driver) ended(b *box, g *guest.Server, srv *http.Server) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	_ = srv.Shutdown(ctx)
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.guest == g {
		d.end(b) // its last answers may be on their way to whoever asked
		d.died(b)
		d.set(b, runtime.Stopped, runtime.ReasonExited)
	}
}

// halt ends the guest, all that it started, and what was said to it.
func (d *Driver) halt(b *box) {
	if b.guest == nil {
		return
	}
	d.end(b)
	b.calls.reset()
}

// end ends the guest and all that it started.
func (d *Driver) end(b *box) {
	g, srv := b.guest, b.server
	b.guest, b.server, b.addr, b.thaw = nil, nil, "", nil
	close(b.halted)
	_ = srv.Close()
	g.Close()
	d.detach(b)
}

// died lets go of the volumes of one that ended, unless it can be rewound.
func (d *Driver) died(b *box) {
	if b.undo == nil {
		d.release(b.status.ID)
	}
}

// Kill ends a sandbox as if its kernel had died, for tests.
func (d *Driver) Kill(id, reason string) {
	d.mu.Lock()
	b := d.boxes[id]
	d.mu.Unlock()
	if b == nil {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.memory != nil {
		return // there is nothing to kill
	}
	d.halt(b)
	d.died(b)
	d.set(b, runtime.Stopped, reason)
}

// Stop implements runtime.Driver.
func (d *Driver) Stop(ctx context.Context, id string, generation int64, _ runtime.StopOptions) (runtime.Status, error) {
	b, err := d.enter(id, generation, false)
	if err != nil {
		return runtime.Status{}, err
	}
	defer b.mu.Unlock()
	// Its guest may have ended already, when it was asked to: that is no reason to pass this by.
	if err := d.cfg.Before(ctx, "stop", id); err != nil {
		return runtime.Status{}, err
	}
	if st := d.statusOf(b); st.State == runtime.Stopped {
		return st, nil
	}
	d.halt(b)
	d.letGo(b)
	d.settle(b)
	d.release(id)
	return d.set(b, runtime.Stopped, runtime.ReasonRequested), nil
}

// Delete implements runtime.Driver.
func (d *Driver) Delete(ctx context.Context, id string, generation int64) error {
	b, err := d.enter(id, generation, false)
	if errs.Is(err, errs.NotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	defer b.mu.Unlock()
	if err := d.cfg.Before(ctx, "delete", id); err != nil {
		return err
	}
	d.halt(b)
	d.drop(b)
	return nil
}

// drop forgets a sandbox whose lock is held.
func (d *Driver) drop(b *box) {
	b.gone = true
	d.letGo(b)
	d.settle(b)
	d.release(b.status.ID)
	_ = os.RemoveAll(b.root)
	d.set(b, runtime.Deleted, "")
	d.mu.Lock()
	delete(d.boxes, b.status.ID)
	d.mu.Unlock()
}

func (d *Driver) statusOf(b *box) runtime.Status {
	d.mu.Lock()
	defer d.mu.Unlock()
	return b.status
}

func (d *Driver) set(b *box, state runtime.State, reason string) runtime.Status {
	return d.setDepth(b, state, "", reason)
}

func (d *Driver) setDepth(b *box, state runtime.State, depth runtime.Depth, reason string) runtime.Status {
	d.mu.Lock()
	defer d.mu.Unlock()
	b.status.State, b.status.Depth, b.status.Reason, b.status.Since, b.status.Address = state, depth, reason, d.cfg.Now(), b.addr
	if depth == runtime.OnDisk {
		b.status.Address = ""
	}
	for w := range d.watchers {
		w.put(b.status)
	}
	return b.status
}

// Get implements runtime.Driver.
func (d *Driver) Get(_ context.Context, id string) (runtime.Status, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	b := d.boxes[id]
	if b == nil {
		return runtime.Status{}, errs.E(errs.NotFound, "there is no sandbox %s on this node", id)
	}
	return b.status, nil
}

// List implements runtime.Driver.
func (d *Driver) List(context.Context) ([]runtime.Status, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	all := make([]runtime.Status, 0, len(d.boxes))
	for _, b := range d.boxes {
		all = append(all, b.status)
	}
	return all, nil
}

// Dial implements runtime.Driver: the guest's port is its own, any other is this host's.
func (d *Driver) Dial(ctx context.Context, id string, port int) (net.Conn, error) {
	st, calls, err := d.called(id)
	if err != nil {
		return nil, err
	}
	if st.State != runtime.Running {
		return nil, wrongState(st)
	}
	if port < 1 || port > 65535 {
		return nil, errs.E(errs.InvalidInput, "there is no port %d", port)
	}
	addr := st.Address
	if port != guest.Port {
		addr = net.JoinHostPort("127.0.0.1", fmt.Sprint(port))
	}
	if port == guest.Port && d.cfg.Instead != nil {
		if other := d.cfg.Instead(id, addr); other != "" {
			addr = other
		}
	}
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, errs.Wrap(errs.HostUnavailable, err, "port %d in the sandbox does not answer", port)
	}
	c := calls.add(conn.(*net.TCPConn))
	if now, _, err := d.called(id); err != nil || now.State != runtime.Running { // it changed after the look
		_ = c.Close()
		if err != nil {
			return nil, err
		}
		return nil, wrongState(now)
	}
	return c, nil
}

func (d *Driver) called(id string) (runtime.Status, *calls, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	b := d.boxes[id]
	if b == nil {
		return runtime.Status{}, nil, errs.E(errs.NotFound, "there is no sandbox %s on this node", id)
	}
	return b.status, b.calls, nil
}

// Stats implements runtime.Driver: the size of the sandbox's folder, and nothing else that a folder has.
func (d *Driver) Stats(ctx context.Context, id string) (runtime.Stats, error) {
	st, err := d.Get(ctx, id)
	if err != nil {
		return runtime.Stats{}, err
	}
	if st.State != runtime.Running && st.Depth != runtime.Frozen {
		return runtime.Stats{}, errs.E(errs.InvalidState, "the sandbox does not run").Because("stopped")
	}
	if err := d.cfg.Before(ctx, "stats", id); err != nil {
		return runtime.Stats{}, err
	}
	s := runtime.Stats{DiskBytes: size(filepath.Join(d.cfg.Dir, id))}
	s.CPUSeconds, s.MemoryBytes, s.Pids = d.cfg.Now().Sub(st.Since).Seconds(), 1, 1 // there is one process for all
	return s, nil
}

// Update implements runtime.Driver: there is nothing to limit.
func (d *Driver) Update(_ context.Context, id string, generation int64, r runtime.Resources) error {
	if r.VCPU <= 0 || r.MemoryMiB <= 0 {
		return errs.E(errs.InvalidInput, "a sandbox needs CPU and memory")
	}
	b, err := d.enter(id, generation, false)
	if err != nil {
		return err
	}
	b.spec.Resources = r
	b.mu.Unlock()
	return nil
}

// Close implements runtime.Driver. Unlike a real driver's sandboxes these live in this process, so they end.
func (d *Driver) Close() error {
	d.mu.Lock()
	boxes := make([]*box, 0, len(d.boxes))
	for _, b := range d.boxes {
		boxes = append(boxes, b)
	}
	d.mu.Unlock()
	for _, b := range boxes {
		b.mu.Lock()
		d.halt(b)
		b.mu.Unlock()
	}
	d.wg.Wait()
	return nil
}
