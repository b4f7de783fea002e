// Package supervisor owns every gVisor sandbox of a node: it is what berth-runtime serves, and the only package that links gVisor.
//
// One process holds all sandboxes, through gVisor's own packages; no process per sandbox waits beside it. It may be killed and started
// again at any moment: running sandboxes go on and are taken back, what was interrupted is finished or undone. What callers may ask is in
// package wire, what they see in package runtime. It does not know the states that users see, images' making, or what a guest does.
package supervisor

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/runsc/specutils"
	"gvisor.dev/gvisor/runsc/version"

	"github.com/berthrun/berth/internal/bundle"
	"github.com/berthrun/berth/internal/disk"
	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/runtime/gvisor/cgroup"
	"github.com/berthrun/berth/internal/runtime/gvisor/netns"
	"github.com/berthrun/berth/internal/runtime/gvisor/proc"
	"github.com/berthrun/berth/internal/runtime/gvisor/wire"
)

// Config of a Supervisor. Root and Guest are required.
type Config struct {
	Root         string       // the folder of all that is kept
	Guest        string       // the program that becomes pid 1 inside
	CgroupMount  string       // default cgroup.Mount
	CgroupParent string       // default berth
	Subnet       netip.Prefix // of all sandboxes; the invalid prefix finds a free one and keeps it
	Disk         disk.Kind    // default the best there is
	Parallel     int          // boots at a time; default the number of cores
	Now          func() time.Time
	Log          *slog.Logger
	Ready        func() // called once callers are answered; may be nil
}

// maxSocketPath is what the kernel allows for the address of a Unix socket; gVisor would put a longer one elsewhere.
const maxSocketPath = 107

// Supervisor holds the sandboxes.
type Supervisor struct {
	cfg    Config
	log    *slog.Logger
	lock   *os.File
	disks  *disk.Store
	nets   *netns.Manager
	groups *cgroup.Manager
	hello  wire.Hello
	guest  string // our own copy of it
	bootID string
	boots  chan struct{} // a slot for each boot at a time
	events *hub
	exe    sync.RWMutex // of specutils.ExePath
	direct atomic.Bool  // pages are written past the page cache

	ended  chan struct{} // closed when this process's part ends
	ending sync.Once

	work sync.WaitGroup // operations and watches of deaths
	ops  sync.WaitGroup // operations

	mu        sync.Mutex
	closing   bool // nothing new is made any more
	closed    bool
	sandboxes map[string]*sandbox
	slots     map[int]bool
	saves     map[string]*kept

	vols    sync.Mutex               // of who may mount, copy or remove which volume; taken before mu, and after a sandbox's turn
	copying map[string]chan struct{} // volumes that are copied while nobody writes to them: closed at the end of that
	copies  map[string]bool          // names of copies that are just made or removed
}

// Open takes the root folder for itself, prepares the machine, and takes back or cleans up what an earlier process left. It fails where another
// process has the folder.
func Open(ctx context.Context, cfg Config) (*Supervisor, error) {
	if cfg.CgroupMount == "" {
		cfg.CgroupMount = cgroup.Mount
	}
	if cfg.CgroupParent == "" {
		cfg.CgroupParent = "berth"
	}
	if cfg.Parallel <= 0 {
		cfg.Parallel = runtime.NumCPU()
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	root, err := filepath.Abs(cfg.Root)
	if err == nil {
		err = os.MkdirAll(root, 0o700)
	}
	if err == nil {
		root, err = filepath.EvalSymlinks(root)
	}
	if err != nil {
		return nil, fmt.Errorf("make root folder: %w", err)
	}
	cfg.Root = root
	s := &Supervisor{
		cfg: cfg, log: cfg.Log, bootID: proc.BootID(), boots: make(chan struct{}, cfg.Parallel), events: newHub(),
		sandboxes: map[string]*sandbox{}, slots: map[int]bool{}, saves: map[string]*kept{},
		ended: make(chan struct{}), copying: map[string]chan struct{}{}, copies: map[string]bool{},
	}
	if n := len(s.stateFile("sbx_00000000000000000000", "sock")); n > maxSocketPath {
		return nil, errs.E(errs.InvalidConfig, "the data folder's path is %d bytes too long for the sockets of sandboxes", n-maxSocketPath)
	}
	if err := s.open(ctx); err != nil {
		s.release()
		return nil, err
	}
	return s, nil
}

func (s *Supervisor) open(ctx context.Context) error {
	for _, dir := range []string{"images", "sandboxes", "gvisor", "mounts", "log", "saves", "volumes", "copies"} {
		if err := os.MkdirAll(s.path(dir), 0o700); err != nil {
			return fmt.Errorf("make folder: %w", err)
		}
	}
	lock, err := os.OpenFile(s.path("lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return fmt.Errorf("open lock: %w", err)
	}
	s.lock = lock
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return errs.Wrap(errs.Busy, err, "another berth-runtime has %s", s.cfg.Root).Because("root_in_use")
	}
	if err := s.describeSelf(); err != nil {
		return err
	}
	if s.groups, err = cgroup.Open(s.cfg.CgroupMount, filepath.Join(s.cfg.CgroupParent, s.instance())); err != nil {
		return fmt.Errorf("open cgroups: %w", err)
	}
	if s.nets, err = netns.Open(netns.Config{Dir: s.path("netns"), Instance: s.instance(), Subnet: s.cfg.Subnet}); err != nil {
		return fmt.Errorf("open network: %w", err)
	}
	if s.disks, err = disk.Open(s.path("disks"), s.cfg.Disk); err != nil {
		return fmt.Errorf("open disks: %w", err)
	}
	d := s.disks.Describe()
	s.hello.Subnet, s.hello.Cgroups, s.hello.Disk, s.hello.Quota, s.hello.Snapshot = s.nets.Subnet().String(), s.groups.Version(), string(d.Kind), d.Quota, d.Snapshot
	s.hello.Warnings = append(s.hello.Warnings, d.Missing...)
	for _, c := range s.groups.Missing() {
		s.hello.Warnings = append(s.hello.Warnings, "limits of "+c+" are not enforced: this kernel has no such cgroup controller")
	}
	s.work.Go(s.tryWrites)
	if err := s.recover(ctx); err != nil {
		return err
	}
	s.work.Go(s.keepRoom)
	return nil
}

// describeSelf hashes what runs and what will run inside. The guest is copied first: whoever replaces the file while sandboxes run must not
// change what is mounted in them.
func (s *Supervisor) describeSelf() error {
	self, err := bundle.HashFile("/proc/self/exe")
	if err != nil {
		return fmt.Errorf("hash program: %w", err)
	}
	guest, err := bundle.HashFile(s.cfg.Guest)
	if err != nil {
		return errs.Wrap(errs.InvalidConfig, err, "the guest program cannot be read")
	}
	s.guest = s.guestFile(guest)
	if have, err := bundle.HashFile(s.guest); err != nil || have != guest {
		if err := copyFile(s.cfg.Guest, s.guest); err != nil {
			return fmt.Errorf("copy guest: %w", err)
		}
	}
	s.hello = wire.Hello{
		Protocol: wire.Protocol, Stamp: version.Version(), RuntimeSHA256: self, GuestSHA256: guest, PID: os.Getpid(),
		StartedAt: s.cfg.Now().UTC(), Root: s.cfg.Root,
	}
	return nil
}

func copyFile(from, to string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	temp := to + ".new"
	out, err := os.OpenFile(temp, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o755)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	if err := errors.Join(err, out.Chmod(0o755), out.Sync(), out.Close()); err != nil {
		return err
	}
	return os.Rename(temp, to)
}

func (s *Supervisor) path(parts ...string) string {
	return filepath.Join(append([]string{s.cfg.Root}, parts...)...)
}

// instance tells the interfaces and groups of this root from those of another on the same machine.
func (s *Supervisor) instance() string { return wire.Instance(s.cfg.Root) }

// stateFile is one of the files that gVisor keeps for a sandbox: state, lock or sock.
func (s *Supervisor) stateFile(id, kind string) string {
	if kind == "sock" {
		return s.path("gvisor", "runsc-"+id+".sock")
	}
	return s.path("gvisor", id+"_sandbox:"+id+"."+kind)
}

// Hello says what this process is.
func (s *Supervisor) Hello() wire.Hello { return s.hello }

// Close ends this process's part and waits for what was begun. Sandboxes go on.
func (s *Supervisor) Close() error {
	s.ending.Do(func() { close(s.ended) })
	s.mu.Lock()
	s.closed = true
	all := make([]*sandbox, 0, len(s.sandboxes))
	for _, sb := range s.sandboxes {
		all = append(all, sb)
	}
	s.mu.Unlock()
	for _, sb := range all {
		sb.unwatch()
	}
	s.work.Wait()
	s.events.close()
	s.release()
	return nil
}

// CloseAll deletes every sandbox, removes what was put into the machine, and closes.
func (s *Supervisor) CloseAll(ctx context.Context) error {
	s.ending.Do(func() { close(s.ended) })
	s.mu.Lock()
	s.closing = true
	s.mu.Unlock()
	s.ops.Wait() // what is being made is deleted too
	for all := s.List(); len(all) > 0; all = s.List() {
		var failed error
		for _, st := range all {
			failed = errors.Join(failed, s.Delete(ctx, st.ID, st.Generation))
		}
		if failed != nil {
			return errors.Join(failed, s.Close())
		}
	}
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.work.Wait()
	specutils.UnmountNullNetNS(s.path("gvisor"))
	s.groups.Close()
	return errors.Join(s.nets.Close(), s.disks.Close(), s.Close())
}

func (s *Supervisor) release() {
	if s.nets != nil {
		s.nets.Release()
	}
	if s.lock != nil {
		s.lock.Close()
	}
}

// takeSlot reserves a place in the subnet; one slot stays a sandbox's own until it is deleted.
func (s *Supervisor) takeSlot() (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for n := range s.nets.Slots() {
		if !s.slots[n] {
			s.slots[n] = true
			return n, nil
		}
	}
	return 0, errs.E(errs.NoCapacity, "every address of this node's sandbox network is in use").Because("addresses")
}

func (s *Supervisor) giveSlot(n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.slots, n)
}
