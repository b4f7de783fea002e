package supervisor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"gvisor.dev/gvisor/pkg/sentry/state/checkpointfiles"
	"gvisor.dev/gvisor/pkg/state/statefile"
	gsandbox "gvisor.dev/gvisor/runsc/sandbox"

	"github.com/berthrun/berth/internal/disk"
	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/id"
	"github.com/berthrun/berth/internal/runtime"
)

// A memory folder holds what gVisor writes of a kernel, and memoryFile, which is written last: without it the rest is nothing.
const memoryFile = "memory.json"

// memory is what memoryFile says: all that must be the same again when the kernel is brought back, and what the files hold. gVisor itself compares only its
// version's stamp and the CPU.
type memory struct {
	Driver        string              `json:"driver"`
	Stamp         string              `json:"stamp"`   // of gVisor
	Runtime       string              `json:"runtime"` // hash of the program
	Guest         string              `json:"guest"`   // hash of the program inside
	GuestProtocol int                 `json:"guestProtocol"`
	CPU           []string            `json:"cpu"` // features that it may use
	Image         string              `json:"image"`
	Layers        []string            `json:"layers"` // the folders' names of the image's trees, uppermost first
	Mounts        []string            `json:"mounts"` // destinations and options
	VCPU          float64             `json:"vcpu"`
	MemoryMiB     int64               `json:"memoryMiB"`
	At            time.Time           `json:"at"`
	Files         map[string]checksum `json:"files"`
	Brief         bool                `json:"brief,omitempty"` // made for use at once: only sizes are kept
}

// checksum of a file. CRC-32C finds what a disk damages at the speed of the disk; it is no proof against whoever may write here.
type checksum struct {
	Bytes int64  `json:"bytes"`
	CRC   uint32 `json:"crc32c"`
}

func (m *memory) bytes() (n int64) {
	for _, f := range m.Files {
		n += f.Bytes
	}
	return n
}

func errMemory(err error, reason, what string) error {
	return errs.Wrap(errs.Unavailable, err, "the kept memory of the sandbox cannot be used: %s", what).Because(reason)
}

// cpuFeatures are those of this machine, sorted.
var cpuFeatures = sync.OnceValue(func() []string {
	b, err := os.ReadFile("/proc/cpuinfo")
	if err != nil {
		return nil
	}
	for line := range strings.Lines(string(b)) {
		name, value, ok := strings.Cut(line, ":")
		if n := strings.TrimSpace(name); ok && (n == "flags" || n == "Features") {
			f := strings.Fields(value)
			slices.Sort(f)
			return f
		}
	}
	return nil
})

// mountsOf names what the kernel of a boot has mounted, without what may differ.
func mountsOf(spec runtime.Spec) []string {
	oci := ociSpec(spec, "", "", "", func(id string) string { return id })
	out := make([]string, 0, len(oci.Mounts))
	for _, m := range oci.Mounts {
		text := m.Destination + " " + m.Type + " " + strings.Join(m.Options, ",")
		if id.Valid(id.Volume, m.Source) {
			text += " " + m.Source
		}
		out = append(out, text)
	}
	return out
}

// write has gVisor write the kernel of a frozen sandbox into a new folder. Nothing is durable yet, and nothing describes it: finish does that. A brief one
// is written past the page cache where the disk is quick; of another the cache has the pages for finish, and for a wake that comes soon.
func (s *Supervisor) write(sb *sandbox, dir string, brief bool) error {
	l := sb.current()
	if l == nil || l.cont == nil {
		return errs.E(errs.Unavailable, "the memory of this sandbox cannot be written: gVisor's state of it was lost").Because("freeze_failed")
	}
	if err := errors.Join(os.RemoveAll(dir), os.MkdirAll(dir, 0o700)); err != nil {
		return fmt.Errorf("make memory folder: %w", err)
	}
	conf, err := s.gvisorConfig(sb)
	if err != nil {
		return err
	}
	if err := l.cont.Checkpoint(conf, dir, gsandbox.CheckpointOpts{Compression: statefile.CompressionLevelNone, Resume: true, Direct: brief && s.direct.Load()}); err != nil {
		return fmt.Errorf("write memory: %w", err)
	}
	return nil
}

// finish makes what write wrote durable, and says what it is. From then on it may be used.
func (s *Supervisor) finish(r record, dir string, brief bool) (*memory, error) {
	m := &memory{
		Driver: "gvisor", Stamp: s.hello.Stamp, Runtime: r.Runtime, Guest: r.Guest, GuestProtocol: guestProtocol, CPU: cpuFeatures(), Image: r.Spec.Image,
		Mounts: mountsOf(r.booted()), VCPU: r.booted().Resources.VCPU, MemoryMiB: r.booted().Resources.MemoryMiB,
		At: s.now(), Files: map[string]checksum{}, Brief: brief,
	}
	layers, err := s.layers(r.Spec.Image)
	if err != nil {
		return nil, err
	}
	m.Layers = layers
	for _, name := range memoryFiles {
		if m.Files[name], err = seal(filepath.Join(dir, name), brief); err != nil {
			return nil, fmt.Errorf("sync memory: %w", err)
		}
	}
	if err := s.keepPrograms(m.Runtime); err != nil {
		return nil, err
	}
	if err := writeDurably(filepath.Join(dir, memoryFile), m); err != nil {
		return nil, fmt.Errorf("describe memory: %w", err)
	}
	return m, nil
}

var memoryFiles = []string{checkpointfiles.StateFileName, checkpointfiles.PagesMetadataFileName, checkpointfiles.PagesFileName}

// seal makes a file durable and sums it up. A brief one is neither.
func seal(path string, brief bool) (checksum, error) {
	if brief {
		info, err := os.Stat(path)
		if err != nil {
			return checksum{}, err
		}
		return checksum{Bytes: info.Size()}, nil
	}
	f, err := os.Open(path)
	if err != nil {
		return checksum{}, err
	}
	if err := errors.Join(f.Sync(), f.Close()); err != nil {
		return checksum{}, err
	}
	return sum(context.Background(), path)
}

// readMemory reads what a memory folder says of itself.
func readMemory(dir string) (*memory, error) {
	b, err := os.ReadFile(filepath.Join(dir, memoryFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, errMemory(err, runtime.MemoryMissing, "it is not there")
	}
	m := &memory{}
	if err == nil {
		err = json.Unmarshal(b, m)
	}
	if err != nil || len(m.Files) == 0 {
		return nil, errMemory(err, runtime.MemoryDamaged, "its description cannot be read")
	}
	return m, nil
}

// fits refuses a memory that this node, or a sandbox of this spec, cannot have.
func (s *Supervisor) fits(m *memory, spec runtime.Spec) error {
	foreign := func(format string, args ...any) error {
		return errMemory(nil, runtime.MemoryForeign, fmt.Sprintf(format, args...))
	}
	switch {
	case m.Driver != "gvisor":
		return foreign("it was made by the driver %q", m.Driver)
	case m.Image != spec.Image:
		return foreign("it was made on another image")
	case !slices.Equal(m.Mounts, mountsOf(sized(spec, m.VCPU, m.MemoryMiB))):
		return foreign("it was made with other mounts")
	}
	if layers, err := s.layers(spec.Image); err != nil || !slices.Equal(layers, m.Layers) {
		return foreign("the layers of its image are not the same any more")
	}
	for _, f := range m.CPU {
		if _, ok := slices.BinarySearch(cpuFeatures(), f); !ok {
			return foreign("it was made on a processor with %s", f)
		}
	}
	if _, err := s.program(m.Runtime); err != nil {
		return foreign("the program that made it is not kept here any more")
	}
	if _, err := os.Stat(s.guestFile(m.Guest)); err != nil {
		return foreign("the guest inside of it is not kept here any more")
	}
	return nil
}

// verify reads files of a memory folder and compares them.
func (m *memory) verify(ctx context.Context, dir string, names ...string) error {
	for _, name := range names {
		path := filepath.Join(dir, name)
		info, err := os.Stat(path)
		if errors.Is(err, fs.ErrNotExist) {
			return errMemory(err, runtime.MemoryMissing, "a file of it is not there")
		} else if err != nil {
			return errMemory(err, runtime.MemoryDamaged, "a file of it cannot be opened")
		}
		if info.Size() != m.Files[name].Bytes {
			err := fmt.Errorf("%s has %d bytes, not %d", name, info.Size(), m.Files[name].Bytes)
			return errMemory(err, runtime.MemoryDamaged, "a file of it has another size")
		}
		if m.Brief {
			continue
		}
		got, err := sum(ctx, path)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err != nil || got != m.Files[name] {
			return errMemory(err, runtime.MemoryDamaged, "a file of it is not what was written")
		}
	}
	return nil
}

// layers names the trees of an image, the uppermost first.
func (s *Supervisor) layers(image string) ([]string, error) {
	trees, err := disk.Stack(s.path(), image)
	if err != nil {
		return nil, err
	}
	out := make([]string, len(trees))
	for i, t := range trees {
		rel, err := filepath.Rel(s.cfg.Root, t)
		if err != nil {
			return nil, fmt.Errorf("name layer: %w", err)
		}
		out[i] = rel
	}
	return out, nil
}
