// Package runtime owns the contract between a node and what runs its sandboxes: one interface, Driver, that every runtime implements
// and that the conformance suite in runtimetest proves.
//
// It does not own the states a caller sees (internal/sandbox does) nor what happens inside a sandbox (internal/guest does).
package runtime

import (
	"context"
	"net"
	"strings"
	"time"
)

// State is what a driver knows of a sandbox on its node. It is coarser than the states that callers see.
type State string

// The states of a sandbox on its node.
const (
	Running State = "running" // it has a live kernel, and its guest can be dialed
	Paused  State = "paused"  // frozen in memory or checkpointed to disk
	Stopped State = "stopped" // only its disk is there
	Deleted State = "deleted" // nothing is: only the last event of one has it, no call answers it
)

// Why a sandbox is no longer running.
const (
	ReasonRequested   = "requested"     // Stop was called
	ReasonOutOfMemory = "out_of_memory" // the memory limit was hit and the whole sandbox died
	ReasonExited      = "guest_exited"  // the guest ended by itself
	ReasonKilled      = "killed"        // something on the host ended it
	ReasonHostRestart = "host_restarted"
)

// Depth says where the memory of a paused sandbox is.
type Depth string

// The depths of a pause.
const (
	Frozen Depth = "frozen" // in memory: its processes stand still
	OnDisk Depth = "disk"   // in a file: no process of it is left, and no memory
)

// Why a memory file cannot be used: the reasons of the errs.Unavailable that Wake and Clone answer.
const (
	MemoryMissing = "memory_missing"
	MemoryDamaged = "memory_damaged"
	MemoryForeign = "memory_foreign" // of another runtime, image, processor or size
)

// MemoryUnusable reports whether a reason says that a memory file cannot be used, however often it is tried.
func MemoryUnusable(reason string) bool {
	return reason == MemoryMissing || reason == MemoryDamaged || reason == MemoryForeign
}

// Network says what a sandbox may reach.
type Network string

// The networks.
const (
	NetworkInternet Network = "internet" // the internet, never the host, metadata addresses or other sandboxes
	NetworkNone     Network = "none"     // nothing
)

// Resources are the limits of one sandbox.
type Resources struct {
	VCPU      float64 // CPU time a second, in cores; more than 0
	MemoryMiB int64   // of everything in it
	DiskGiB   int64   // of its own writes; 0 is unlimited
	Pids      int64   // of processes inside; 0 is the driver's default
}

// Spec is all that is needed to boot a sandbox. The caller keeps it and hands it over at every boot: a driver may forget it.
type Spec struct {
	ID         string // sbx_…
	Generation int64  // of the sandbox's row: calls with an older one are refused
	Image      string // the id of a prepared image on this node (a layer's digest)
	Resources  Resources
	Network    Network
	Hostname   string
	GuestToken string // what the guest asks of whoever talks to it
	// Mounts are the volumes that it has from this boot on. Those of a memory are the same as when it was written; those of a stopped sandbox may be others
	// at each boot. CheckMounts says what they may be.
	Mounts []Mount `json:",omitempty"`
}

// DefaultHostname is the host name of a sandbox that nobody gave a name: sandbox- and the beginning of its id.
func DefaultHostname(id string) string {
	_, random, _ := strings.Cut(id, "_")
	return "sandbox-" + random[:min(len(random), 8)]
}

// Status is what a driver reports of one sandbox.
type Status struct {
	ID         string
	Generation int64 // the newest it was told
	State      State
	Depth      Depth     // of a paused one
	Reason     string    // of a stopped one: one of the Reason constants
	ExitStatus int       // of a stopped one, where it is known; else -1
	Since      time.Time // of the state
	Address    string    // inside the sandbox network, for diagnosis
}

// Event tells that a sandbox changed without a call, or that a call finished changing it.
type Event struct {
	Status Status
}

// Stats are readings of one running sandbox. Zero where unknown.
type Stats struct {
	CPUSeconds  float64 // used since boot
	MemoryBytes int64   // in use now
	MemoryPeak  int64
	DiskBytes   int64 // own writes
	Pids        int64 // host tasks
}

// Capabilities say which of the optional calls a driver can do. A face offers only what the driver of the pool can.
type Capabilities struct {
	Pause   bool // Pause and Resume, frozen in memory
	Memory  bool // Suspend, Wake, and saves with memory
	Saves   bool // saves at all: Save, Clone, Saves, Forget
	Instant bool // a save of a disk takes no time, whatever the disk holds
	Quota   bool // DiskGiB, and the size of a volume, are enforced
	Volumes bool // Spec.Mounts, MakeVolume, CopyVolume and their counterparts
}

// StopOptions say how a sandbox is ended.
type StopOptions struct {
	Grace time.Duration // how long the guest gets to end by itself before it is killed; 0 kills at once
}

// Save is a moment of a sandbox that is kept on a node under a name of its own: the disk, and the memory where it was asked for. It outlives the
// sandbox. Nothing changes it.
type Save struct {
	Name        string
	SandboxID   string    // of the sandbox that it was made of
	Image       string    // the disk is its own writes above this image
	Resources   Resources // that it had; those of a copy with memory have the same VCPU and MemoryMiB
	Memory      bool
	MemoryBytes int64 // of the file
	DiskBytes   int64 // of its own writes; 0 where unknown
	At          time.Time
	Runtime     string // hash of the program that made the memory file, and is the only one that may restore it
	Guest       string // hash of the guest inside
}

// SaveOptions say what a save keeps.
type SaveOptions struct {
	Memory bool // the memory of a running or paused sandbox too, of the same moment
	Brief  bool // it is for use at once: it need not outlive a loss of power, and is made faster
}

// CloneOptions say how a sandbox is made of a save.
type CloneOptions struct {
	FromDisk bool // boots it on the disk, though the save may have memory
}

// RebaseOptions say what the new disk of a sandbox begins with.
type RebaseOptions struct {
	Save string // the disk of this save, which is of the spec's image; empty: nothing
	Keep string // a folder right below the root, such as /workspace, that is taken over from the old disk in place of the new one's
}

// Driver runs sandboxes on one node. Every method may be called concurrently, for one sandbox too: a driver orders what touches
// one sandbox by itself. Calls carry the generation of the sandbox's row; one older than the newest seen is errs.InvalidState with
// reason "stale_generation". An unknown id is errs.NotFound, but Delete of one succeeds. A capability that is missing answers
// errs.Unavailable with reason "not_supported". A cancelled context stops the waiting, never leaves anything half made: what was
// begun is finished or undone.
type Driver interface {
	// Name is the driver's name in configuration: gvisor, vm, kube or fake.
	Name() string
	// Capabilities do not change while the driver lives.
	Capabilities() Capabilities

	// Create makes the sandbox's disk from its image and boots it. It returns once the kernel runs; the guest may need a moment
	// more. A repeated Create of a running sandbox with the same or a newer generation gives its status. On failure nothing is left. Where the node has no room
	// for new disks it is errs.NoCapacity with reason "disk_full".
	Create(ctx context.Context, spec Spec) (Status, error)
	// Start boots a stopped sandbox on the disk that it kept, which is of the spec's image. Of a running one it gives the status.
	Start(ctx context.Context, spec Spec) (Status, error)
	// Stop ends it and keeps its disk. Of a stopped one it does nothing.
	Stop(ctx context.Context, id string, generation int64, opts StopOptions) (Status, error)
	// Delete ends it and removes everything it had: processes, mounts, namespaces, cgroups, addresses, files.
	Delete(ctx context.Context, id string, generation int64) error
	// Get reports one.
	Get(ctx context.Context, id string) (Status, error)
	// List reports every sandbox on the node, stopped ones too, in no order.
	List(ctx context.Context) ([]Status, error)
	// Watch sends an event for every change until the context ends, then closes the channel. It begins with one event for every
	// sandbox there is. A reader that falls behind loses intermediate states, never the latest.
	Watch(ctx context.Context) (<-chan Event, error)
	// Dial connects to a TCP port inside a running sandbox. The connection fails, and never hangs, when the sandbox dies.
	Dial(ctx context.Context, id string, port int) (net.Conn, error)
	// Stats reads a running sandbox.
	Stats(ctx context.Context, id string) (Stats, error)
	// Update changes the limits of a sandbox, at once where it runs.
	Update(ctx context.Context, id string, generation int64, r Resources) error

	// Pause freezes a running sandbox in memory; of a paused one it gives the status. Resume lets a frozen one go on.
	Pause(ctx context.Context, id string, generation int64) (Status, error)
	Resume(ctx context.Context, id string, generation int64) (Status, error)
	// Suspend writes the memory of a running or frozen sandbox to disk, durably and checked, and only then lets go of its processes and its memory:
	// it is Paused, OnDisk. Of a suspended one it does nothing. When it fails the sandbox goes on as it was, except that a frozen one may run.
	Suspend(ctx context.Context, id string, generation int64) (Status, error)
	// Wake brings a paused sandbox back with its memory and processes: a frozen one as Resume does, a suspended one from its file, on the disk that it had.
	// A file that is damaged, missing, or of another runtime is errs.Unavailable with one of the Memory reasons, and nothing changes.
	// What Rewind needs is kept until Settle, Stop, Start or the next Suspend; where saves are not Instant the driver may keep none of it, and the wake is
	// settled at once. Of a running one it gives the status.
	Wake(ctx context.Context, spec Spec) (Status, error)
	// Rewind undoes a Wake that is not settled: the sandbox is suspended again with the memory and the disk that it had. Of one that is suspended it
	// does nothing; of any other that has nothing to go back to it is errs.InvalidState with reason "settled".
	Rewind(ctx context.Context, id string, generation int64) (Status, error)
	// Settle lets go of what Rewind needs. Without that it does nothing.
	Settle(ctx context.Context, id string, generation int64) error

	// Save keeps the disk of a running, paused or stopped sandbox and, where asked for, the memory of a running or paused one.
	// The sandbox stands still only for that moment, goes on afterwards and stays as deep asleep as it was. A repeated Save of a name gives what is there.
	// A full disk is errs.LimitExceeded with reason "disk_full"; on failure nothing of the save is left.
	Save(ctx context.Context, id string, generation int64, name string, opts SaveOptions) (Save, error)
	// Clone makes a new sandbox of a save: with its memory and processes where it has them and opts do not say otherwise, else by a boot on a copy of its
	// disk. It is otherwise like Create. The guest still has the token of the sandbox that was saved, until it is configured.
	Clone(ctx context.Context, spec Spec, name string, opts CloneOptions) (Status, error)
	// Saves reports every save on the node, in no order.
	Saves(ctx context.Context) ([]Save, error)
	// Forget removes a save. Sandboxes made of it go on. One that is not there is fine.
	Forget(ctx context.Context, name string) error

	// Rebase gives a stopped sandbox another disk, above the spec's image, which its next Start is of. The old one is there, whole and in use, until the new
	// one is. A repeated call with the same generation does nothing. Where what is to be kept is no folder it is errs.InvalidState with reason
	// "not_directory"; one that is not there is fine. A full disk is errs.LimitExceeded with reason "disk_full", and nothing changes.
	Rebase(ctx context.Context, spec Spec, opts RebaseOptions) (Status, error)

	// A boot with Mounts is otherwise like any. One that mounts a volume for writing which another sandbox mounts, or for reading which another one writes
	// to, is errs.InvalidState with reason "volume_in_use"; the sandboxes that mount are those that have a kernel or a memory file, suspended ones too. A
	// volume that is not there is errs.NotFound with reason "volume". The folder that a volume is mounted at is made where it is missing; a path that leads, by
	// links in the sandbox's own disk, to where nothing can be mounted is errs.InvalidInput with reason "mount_path". What is written to a volume is on no
	// disk, save or memory of a sandbox: a save has an empty folder in its place, and with memory it is errs.InvalidState with reason "volumes", as is a Clone
	// with memory and mounts. Rewind brings the disk and the memory back, never what was written to volumes.

	// MakeVolume makes an empty volume. One that is there grows to the size where that is more, which sandboxes see at their next boot at the latest, and never
	// shrinks. A size below 1 is errs.InvalidInput. Killed at any moment it leaves the volume or nothing.
	MakeVolume(ctx context.Context, id string, sizeGiB int64) error
	// RemoveVolume removes a volume with all that is in it: nobody can read it afterwards but in copies. One that is not there is fine. While a sandbox that has
	// a kernel or a memory file mounts it, it is errs.InvalidState with reason "mounted".
	RemoveVolume(ctx context.Context, id string) error
	// Volumes reports every volume on the node, in no order.
	Volumes(ctx context.Context) ([]Volume, error)
	// CopyVolume keeps the volume as it is at one moment under a name of its own, bak_…, which nothing changes. A running sandbox that writes to it stands still
	// for that moment, and goes on; what its programs have not given to the kernel yet is theirs, and what its kernel keeps back is for the caller to have
	// synced before. It takes no time where saves are Instant; else the sandbox stands still while all is copied. The copy is there whole or not at all, also
	// after a kill or a loss of power. A repeated call of a name that has a copy of this volume does nothing; of another's it is errs.AlreadyExists; of one that
	// is just being made or forgotten it is errs.Busy. A volume that is not there is errs.NotFound with reason "volume", a full disk errs.LimitExceeded with reason
	// "disk_full".
	CopyVolume(ctx context.Context, id, name string) error
	// ForgetCopy removes a copy. One that is not there is fine.
	ForgetCopy(ctx context.Context, name string) error
	// Copies names every copy on the node, in no order.
	Copies(ctx context.Context) ([]string, error)

	// Close lets go of the driver's own resources. Sandboxes go on.
	Close() error
}
