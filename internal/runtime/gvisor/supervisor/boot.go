package supervisor

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	goruntime "runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"gvisor.dev/gvisor/pkg/sentry/state/checkpointfiles"
	"gvisor.dev/gvisor/runsc/config"
	"gvisor.dev/gvisor/runsc/container"
	"gvisor.dev/gvisor/runsc/flag"
	"gvisor.dev/gvisor/runsc/specutils"

	"github.com/berthrun/berth/internal/disk"
	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/runtime"
	"github.com/berthrun/berth/internal/runtime/gvisor/netns"
	"github.com/berthrun/berth/internal/runtime/gvisor/proc"
)

// The forms of what becomes part of a path. Every id of the house fits.
var (
	idForm    = form(`^[a-z0-9][a-z0-9_-]{0,39}$`)
	imageForm = form(`^[A-Za-z0-9][A-Za-z0-9._:-]{0,127}$`)
	hostForm  = form(`^[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?$`)
)

// form compiles an expression at its first use: every start of a sandbox runs this program's initialization, several times.
func form(expr string) func() *regexp.Regexp {
	return sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(expr) })
}

// The files in a sandbox's folder that gVisor writes what goes wrong to.
const (
	errorLog = "gvisor.log"
	panicLog = "panic.log"
)

// Create makes a sandbox and boots it.
func (s *Supervisor) Create(ctx context.Context, spec runtime.Spec) (runtime.Status, error) {
	if err := s.check(&spec); err != nil {
		return runtime.Status{}, err
	}
	return s.do(ctx, spec.ID, true, func(ctx context.Context, sb *sandbox) (runtime.Status, error) {
		return s.make(ctx, sb, spec, func(r record) (origin, error) {
			return origin{fresh: true}, s.disks.Create(sb.id, r.Spec.Resources.DiskGiB<<30)
		})
	})
}

// Start boots a stopped one.
func (s *Supervisor) Start(ctx context.Context, spec runtime.Spec) (runtime.Status, error) {
	if err := s.check(&spec); err != nil {
		return runtime.Status{}, err
	}
	return s.do(ctx, spec.ID, false, func(ctx context.Context, sb *sandbox) (runtime.Status, error) { return s.start(ctx, sb, spec) })
}

func (s *Supervisor) check(spec *runtime.Spec) error {
	if spec.Hostname == "" {
		spec.Hostname = "sandbox"
	}
	r := spec.Resources
	switch {
	case !idForm().MatchString(spec.ID):
		return errs.E(errs.InvalidInput, "%q is no id of a sandbox", spec.ID)
	case !imageForm().MatchString(spec.Image):
		return errs.E(errs.InvalidInput, "%q is no id of an image", spec.Image)
	case !hostForm().MatchString(spec.Hostname):
		return errs.E(errs.InvalidInput, "%q is no host name", spec.Hostname)
	case !(r.VCPU > 0) || r.VCPU > 1024 || r.MemoryMiB < 64 || r.MemoryMiB > 1<<24 || r.DiskGiB < 0 || r.DiskGiB > 1<<20 || r.Pids < 0:
		return errs.E(errs.InvalidInput, "the resources are out of range: vcpu more than 0, memoryMiB at least 64, diskGiB and pids at least 0")
	case spec.Network != runtime.NetworkInternet && spec.Network != runtime.NetworkNone:
		return errs.E(errs.InvalidInput, "%q is no network", spec.Network)
	case strings.ContainsAny(spec.GuestToken, "\x00\n"):
		return errs.E(errs.InvalidInput, "the guest's token has a character that it may not have")
	}
	if err := runtime.CheckMounts(spec.Mounts); err != nil {
		return err
	}
	// In one order, as a memory's are compared.
	spec.Mounts = slices.SortedFunc(slices.Values(spec.Mounts), func(a, b runtime.Mount) int { return strings.Compare(a.Path, b.Path) })
	if _, err := disk.Stack(s.path(), spec.Image); err != nil {
		s.log.Debug("image is not there", "image", spec.Image, "error", err)
		return errs.E(errs.NotFound, "image %s is not prepared on this node", spec.Image).Because("image")
	}
	return nil
}

// origin is what a boot begins with.
type origin struct {
	fresh  bool    // an empty disk
	memory *memory // of a kernel that is brought back; nil boots
	dir    string  // of the memory
	undone bool    // nothing is left of a boot that fails
}

// make makes a sandbox: begin makes its disk and says how it boots.
func (s *Supervisor) make(ctx context.Context, sb *sandbox, spec runtime.Spec, begin func(record) (origin, error)) (runtime.Status, error) {
	if r, ok := sb.record(); ok {
		r, err := newer(r, spec.Generation)
		if err != nil {
			return runtime.Status{}, err
		}
		switch r.Phase {
		case running, suspending, saving:
			return s.keepGeneration(sb, r)
		case creating, deleting:
			// What is left of one whose undoing failed: nobody has seen it, or is to see it again.
			if err := s.undo(sb, r); err != nil {
				return runtime.Status{}, s.unsettled(sb, err)
			}
		case paused, suspended, waking:
			return runtime.Status{}, errs.E(errs.AlreadyExists, "sandbox %s exists and is paused", sb.id).Because("paused").Suggest("Wake it.")
		default:
			return runtime.Status{}, errs.E(errs.AlreadyExists, "sandbox %s exists and is stopped", sb.id).Because("stopped").Suggest("Start it.")
		}
	}
	if err := s.disks.Fits(0); err != nil {
		return runtime.Status{}, errs.Wrap(errs.NoCapacity, err, "the node's disk is full").Because("disk_full").Suggest("Remove snapshots or sandboxes, or have the operator add room.")
	}
	if err := s.takeTurnToBoot(ctx); err != nil {
		return runtime.Status{}, err
	}
	defer func() { <-s.boots }()
	slot, err := s.takeSlot()
	if err != nil {
		return runtime.Status{}, err
	}
	r := record{Spec: spec, Generation: spec.Generation, Phase: creating, ExitStatus: -1, Since: s.now(), Slot: slot}
	err = errors.Join(os.MkdirAll(sb.dir, 0o700), disk.SyncFolder(filepath.Dir(sb.dir)))
	if err == nil {
		err = s.putMounted(sb, r)
	}
	var from origin
	if err == nil {
		from, err = begin(r)
	}
	if err == nil {
		err = s.boot(sb, r, from)
	}
	if err != nil {
		return runtime.Status{}, errors.Join(s.failed(err), s.remove(sb, r))
	}
	return s.announce(sb), nil
}

func (s *Supervisor) start(ctx context.Context, sb *sandbox, spec runtime.Spec) (runtime.Status, error) {
	r, ok := sb.record()
	if !ok {
		return runtime.Status{}, notFound(sb.id)
	}
	r, err := newer(r, spec.Generation)
	if err != nil {
		return runtime.Status{}, err
	}
	if r, err = s.settled(sb, r); err != nil {
		return runtime.Status{}, err
	}
	switch r.Phase {
	case stopped:
	case running:
		return s.keepGeneration(sb, r)
	default:
		return runtime.Status{}, errPhase(&r)
	}
	if r.Spec.Image != "" && r.Spec.Image != spec.Image { // its record may have been lost
		return runtime.Status{}, errs.E(errs.InvalidInput, "the disk of sandbox %s is of another image", sb.id).Because("image")
	}
	if r, err = s.letGo(sb, r); err != nil {
		return runtime.Status{}, err
	}
	if err := s.takeTurnToBoot(ctx); err != nil {
		return runtime.Status{}, err
	}
	defer func() { <-s.boots }()
	before := r
	r.Spec, r.Phase, r.Since = spec, starting, s.now()
	if err := s.putMounted(sb, r); err != nil {
		return runtime.Status{}, err
	}
	err = s.disks.Limit(sb.id, s.diskLimit(sb.id, spec.Resources.DiskGiB, 0))
	if err == nil {
		err = s.boot(sb, r, origin{})
	}
	if err != nil {
		err = s.failed(err)
		if undone := s.teardown(sb, r); undone != nil {
			return runtime.Status{}, errors.Join(err, undone) // its record says what is left to do
		}
		s.undone(sb, before)
		return runtime.Status{}, err
	}
	return s.announce(sb), nil
}

// settled finishes what an earlier call of a stopped sandbox left half done, and gives its record as it is then: nothing may be begun above it.
func (s *Supervisor) settled(sb *sandbox, r record) (record, error) {
	var err error
	switch r.Phase {
	case starting, stopping:
		_, err = s.stopped(sb, r, r.interrupted())
	case replacing:
		err = s.rebased(sb, r)
	default:
		return r, nil
	}
	if err != nil {
		return r, s.unsettled(sb, err)
	}
	generation := r.Generation
	r, _ = sb.record()
	r.Generation = generation
	return r, nil
}

// failed logs what a boot failed of and gives what callers are told.
func (s *Supervisor) failed(err error) error {
	s.log.Error("boot failed", "error", err)
	return full(err, "boot_failed", "the sandbox could not be booted on this node")
}

// unsettled is the error of a boot that has to wait for what an earlier one left: processes that were killed may take long to go on a machine with much to do.
func (s *Supervisor) unsettled(sb *sandbox, err error) error {
	s.log.Error("sandbox not settled", "sandbox", sb.id, "error", err)
	if noRoom(err) {
		return full(err, "", "what an earlier boot left cannot be settled")
	}
	return errs.Wrap(errs.HostUnavailable, err, "what an earlier boot of the sandbox left on this node is not all removed yet").Because("unsettled").After(time.Second)
}

// keepGeneration answers a call that finds nothing to do.
func (s *Supervisor) keepGeneration(sb *sandbox, r record) (runtime.Status, error) {
	if old, ok := sb.record(); ok && old.Generation != r.Generation {
		if err := sb.put(r); err != nil {
			return runtime.Status{}, err
		}
		return s.announce(sb), nil
	}
	st, _ := s.status(sb)
	return st, nil
}

// takeTurnToBoot waits for one of the places: more boots than cores at a time only slow each other down.
func (s *Supervisor) takeTurnToBoot(ctx context.Context) error {
	select {
	case s.boots <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// boot brings a sandbox up on the disk that it has, and records that it runs.
func (s *Supervisor) boot(sb *sandbox, r record, from origin) error {
	spec := r.Spec
	internet := spec.Network == runtime.NetworkInternet
	layers, err := disk.Stack(s.path(), spec.Image)
	if err != nil {
		return fmt.Errorf("find image: %w", err)
	}
	if err := s.disks.Mount(sb.id, s.mount(sb.id), layers...); err != nil {
		return err
	}
	if from.memory != nil {
		err = furnishTmp(s.mount(sb.id)) // its kernel knows the rest as it is
	} else {
		err = furnish(s.mount(sb.id), spec.Hostname, netns.Resolv(internet), from.fresh || r.Fresh)
	}
	if err == nil {
		err = mountPoints(s.mount(sb.id), spec.Mounts)
	}
	if err != nil {
		return err
	}
	if err := s.nets.Setup(sb.id, r.Slot, internet); err != nil {
		return err
	}
	if err := s.groups.Create(sb.id, bootLimits(spec.Resources)); err != nil {
		return err
	}
	r.Runtime, r.Guest = s.hello.RuntimeSHA256, s.hello.GuestSHA256
	r.VCPU, r.MemoryMiB = spec.Resources.VCPU, spec.Resources.MemoryMiB
	if m := from.memory; m != nil {
		// Its limits are those of now, what it has mounted and how many cores it sees those of its boot.
		r.Runtime, r.Guest, r.VCPU, r.MemoryMiB = m.Runtime, m.Guest, m.VCPU, m.MemoryMiB
	}
	oci := ociSpec(r.booted(), s.mount(sb.id), s.nets.Path(sb.id), s.guestFile(r.Guest), s.volumeFolder)
	j := join{Procs: s.groups.Procs(sb.id), TotalMemory: spec.Resources.MemoryMiB << 20, CPUs: visibleCPUs(r.VCPU, goruntime.NumCPU())}
	if err := writeBundle(sb.bundle(), oci, j); err != nil {
		return err
	}
	l, err := s.launch(sb, from)
	if err != nil {
		return errors.Join(err, s.quote(sb))
	}
	if err := s.plug(r); err != nil {
		return err
	}
	if err := s.keepState(sb); err != nil {
		return err
	}
	s.limitSoon(sb, l, spec.Resources)
	r.Fresh = false
	r.Phase, r.Reason, r.ExitStatus, r.Since, r.BootID, r.Boot, r.Gofer = running, "", -1, s.now(), s.bootID, l.boot, l.gofer
	return sb.put(r)
}

// quoted is how much of a file of gVisor is told.
const quoted = 2000

// quote gives what gVisor wrote about a sandbox that failed: the end of its log, and the beginning of its panic, as the stacks of all threads follow.
func (s *Supervisor) quote(sb *sandbox) error {
	var parts []error
	if b, err := os.ReadFile(filepath.Join(sb.dir, errorLog)); err == nil && len(b) > 0 {
		parts = append(parts, fmt.Errorf("%s: %s", errorLog, b[max(0, len(b)-quoted):]))
	}
	if b, err := os.ReadFile(filepath.Join(sb.dir, panicLog)); err == nil && len(b) > 0 {
		parts = append(parts, fmt.Errorf("%s: %s", panicLog, b[:min(len(b), quoted)]))
	}
	return errors.Join(parts...)
}

// launch has gVisor make the sandbox and start the guest in it.
func (s *Supervisor) launch(sb *sandbox, from origin) (*live, error) {
	conf, err := s.gvisorConfig(sb)
	if err != nil {
		return nil, err
	}
	spec, err := specutils.ReadSpec(sb.bundle(), conf)
	if err != nil {
		return nil, fmt.Errorf("read spec: %w", err)
	}
	files := from.verify()
	defer files.cancel()
	cont, err := s.container(conf, container.Args{ID: sb.id, Spec: spec, BundleDir: sb.bundle()}, from)
	if err != nil {
		return nil, fmt.Errorf("make container: %w", err)
	}
	l := &live{cont: cont, child: true, dead: make(chan struct{})}
	sb.setLive(l) // from here on a teardown finds it
	if l.boot, err = proc.Identify(cont.SandboxPid()); err != nil {
		return nil, fmt.Errorf("identify sandbox: %w", err)
	}
	if l.gofer, err = proc.Identify(cont.GoferPid.Load()); err != nil {
		return nil, fmt.Errorf("identify gofer: %w", err)
	}
	if l.goferfd, err = l.gofer.Open(); err != nil {
		return nil, fmt.Errorf("watch gofer: %w", err)
	}
	if l.pidfd, err = l.boot.Open(); err != nil {
		return nil, fmt.Errorf("watch sandbox: %w", err)
	}
	s.watchDeath(sb, l)
	if from.memory == nil {
		if err := cont.Start(conf); err != nil {
			return nil, fmt.Errorf("start container: %w", err)
		}
		return l, nil
	}
	if err := <-files.state; err != nil {
		return nil, err
	}
	if !from.undone { // what runs changes the disk for good
		if err := <-files.pages; err != nil {
			return nil, err
		}
		files.pages = nil
	}
	l.lazy = true
	direct := from.memory.direct(filepath.Join(from.dir, checkpointfiles.PagesFileName))
	err = cont.Restore(conf, from.dir, direct, true, nil) // pages are read when they are needed
	if files.pages != nil {
		// It has run meanwhile, without a network and on a disk that goes with it. What is wrong with its pages is why it did not come up, where it did not.
		if err := <-files.pages; err != nil {
			return nil, err
		}
	}
	if err != nil {
		return nil, fmt.Errorf("start container: %w", err)
	}
	return l, nil
}

// verified says what came of reading the files of a memory.
type verified struct {
	state, pages <-chan error
	cancel       context.CancelFunc
}

// verify begins to read the memory's files, those of the kernel itself first, while the processes that will have it start.
func (o origin) verify() verified {
	state, pages := make(chan error, 1), make(chan error, 1)
	ctx, cancel := context.WithCancel(context.Background())
	if o.memory != nil {
		go func() {
			err := o.memory.verify(ctx, o.dir, checkpointfiles.StateFileName, checkpointfiles.PagesMetadataFileName)
			state <- err
			if err == nil {
				err = o.memory.verify(ctx, o.dir, checkpointfiles.PagesFileName)
			}
			pages <- err
		}()
	}
	return verified{state, pages, cancel}
}

// container starts the processes of a sandbox: of this program, or of the one that its memory is of. gVisor takes the program's path from a global variable.
func (s *Supervisor) container(conf *config.Config, args container.Args, from origin) (*container.Container, error) {
	if from.memory == nil || from.memory.Runtime == s.hello.RuntimeSHA256 {
		s.exe.RLock()
		defer s.exe.RUnlock()
		return container.New(conf, args)
	}
	path, err := s.program(from.memory.Runtime)
	if err != nil {
		return nil, errMemory(err, runtime.MemoryForeign, "the program that made it is not kept here any more")
	}
	s.exe.Lock()
	defer s.exe.Unlock()
	specutils.ExePath = path
	defer func() { specutils.ExePath = selfExe }()
	return container.New(conf, args)
}

// gvisorConfig is the configuration of one sandbox: what goes wrong in it is written to files of its own.
func (s *Supervisor) gvisorConfig(sb *sandbox) (*config.Config, error) {
	flags := flag.NewFlagSet("gvisor", flag.ContinueOnError)
	config.RegisterFlags(flags)
	for _, f := range [][2]string{
		{"root", s.path("gvisor")},
		{"platform", "systrap"},
		{"network", "sandbox"},
		{"overlay2", "none"},
		{"ignore-cgroups", "true"}, // it would move this whole process; Reexec joins them instead
		{"allow-suid", "true"},
		{"net-raw", "true"},
		{"file-access-mounts", "exclusive"}, // nobody else writes to /tmp or the guest, or to a volume that it writes to; one that it reads nobody writes to
		{"host-settings", "ignore"},
		{"in-sandbox-cgroup", "v2"}, // the guest limits processes in it: gVisor has no RLIMIT_NPROC
		{"log", filepath.Join(sb.dir, errorLog)},
		{"panic-log", filepath.Join(sb.dir, panicLog)},
	} {
		if err := flags.Set(f[0], f[1]); err != nil {
			return nil, fmt.Errorf("set gvisor flag %s: %w", f[0], err)
		}
	}
	conf, err := config.NewFromFlags(flags)
	if err != nil {
		return nil, fmt.Errorf("configure gvisor: %w", err)
	}
	return conf, nil
}

// unmountDisk is here beside its counterpart in boot.
func (s *Supervisor) unmountDisk(id string) error { return disk.Unmount(s.mount(id)) }
