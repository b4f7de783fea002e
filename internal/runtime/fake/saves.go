package fake

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/guest"
	"github.com/berthrun/berth/internal/runtime"
)

// save is one that is kept. Its lock is held for reading while it is copied from.
type save struct {
	mu     sync.RWMutex
	gone   bool
	kept   runtime.Save
	dir    string
	memory *memory // nil where it has none
}

func (s *save) disk() string { return filepath.Join(s.dir, "disk") }

func (d *Driver) save(name string) *save {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.saves[name]
}

// Save implements runtime.Driver. All of them are brief.
func (d *Driver) Save(ctx context.Context, id string, generation int64, name string, opts runtime.SaveOptions) (runtime.Save, error) {
	withMemory := opts.Memory
	can := d.cfg.Can.Saves && (d.cfg.Can.Memory || !withMemory)
	if can && (name == "" || len(name) > 128 || strings.ContainsAny(name, "/.")) {
		return runtime.Save{}, errs.E(errs.InvalidInput, "the name of the save is malformed")
	}
	b, err := d.change(ctx, can, id, generation)
	if err != nil {
		return runtime.Save{}, err
	}
	defer b.mu.Unlock()
	if s := d.save(name); s != nil {
		return s.kept, nil
	}
	st := d.statusOf(b)
	if withMemory && st.State == runtime.Stopped {
		return runtime.Save{}, wrongState(st)
	}
	if withMemory && len(b.spec.Mounts) > 0 {
		return runtime.Save{}, errs.E(errs.InvalidState, "a sandbox with volumes is saved without its memory").Because("volumes")
	}
	if err := d.cfg.Before(ctx, "save", id); err != nil {
		return runtime.Save{}, err
	}
	if b.guest != nil && b.thaw == nil {
		b.freeze()
		defer b.goOn()
	}
	dir := filepath.Join(d.cfg.Dir, ".saves", name)
	work := dir + "." + id // several sandboxes may be saved under one name at once: the first is kept
	s := &save{dir: dir, kept: runtime.Save{
		Name: name, SandboxID: id, Image: b.spec.Image, Resources: b.spec.Resources, Memory: withMemory, At: d.cfg.Now(), DiskBytes: size(b.root),
	}}
	err = d.copyDisk(b, filepath.Join(work, "disk"))
	if err == nil && withMemory {
		s.memory, err = d.keepMemory(b, filepath.Join(work, "memory"))
	}
	if err != nil {
		_ = os.RemoveAll(work)
		return runtime.Save{}, err
	}
	if withMemory {
		s.memory.path = filepath.Join(dir, "memory")
		s.kept.MemoryBytes, s.kept.Runtime, s.kept.Guest = int64(len(s.memory.content)), runtimeHash, guestHash
	}
	return d.publish(s, work)
}

// keepMemory writes the memory of a sandbox that stands still.
func (d *Driver) keepMemory(b *box, path string) (*memory, error) {
	var state *guest.State
	if b.memory != nil {
		if err := b.memory.check(); err != nil {
			return nil, err
		}
		state = b.memory.state
	} else {
		state = b.guest.State()
	}
	return d.remember(path, b.status.ID, state)
}

// publish puts a finished save in its place, unless there is one.
func (d *Driver) publish(s *save, work string) (runtime.Save, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if first := d.saves[s.kept.Name]; first != nil {
		_ = os.RemoveAll(work)
		return first.kept, nil
	}
	if err := os.Rename(work, s.dir); err != nil {
		_ = os.RemoveAll(work)
		return runtime.Save{}, fmt.Errorf("keep save: %w", err)
	}
	d.saves[s.kept.Name] = s
	return s.kept, nil
}

// Clone implements runtime.Driver.
func (d *Driver) Clone(ctx context.Context, spec runtime.Spec, name string, opts runtime.CloneOptions) (runtime.Status, error) {
	if err := ctx.Err(); err != nil {
		return runtime.Status{}, err
	}
	if !d.cfg.Can.Saves {
		return runtime.Status{}, unsupported()
	}
	if err := d.check(spec); err != nil {
		return runtime.Status{}, err
	}
	s := d.save(name)
	if s == nil {
		return runtime.Status{}, noSave(name)
	}
	s.mu.RLock()
	defer s.mu.RUnlock()
	if s.gone {
		return runtime.Status{}, noSave(name)
	}
	withMemory := s.memory != nil && !opts.FromDisk
	if spec.Image != s.kept.Image {
		return runtime.Status{}, errs.E(errs.InvalidInput, "the save %s is of image %s, not %s", name, s.kept.Image, spec.Image)
	}
	if old, now := s.kept.Resources, spec.Resources; withMemory && (old.VCPU != now.VCPU || old.MemoryMiB != now.MemoryMiB) {
		return runtime.Status{}, errs.E(errs.InvalidInput, "a copy with memory has the CPU and memory of its save")
	}
	if withMemory && len(spec.Mounts) > 0 {
		return runtime.Status{}, errs.E(errs.InvalidState, "a copy with memory mounts no volumes").Because("volumes")
	}
	b, err := d.enter(spec.ID, spec.Generation, true)
	if err != nil {
		return runtime.Status{}, err
	}
	defer b.mu.Unlock()
	st := d.statusOf(b)
	if st.State == runtime.Running {
		return st, nil
	}
	if _, err := os.Stat(b.root); err == nil {
		return runtime.Status{}, errs.E(errs.AlreadyExists, "the sandbox is there already").Because(string(st.State))
	}
	err = d.cfg.Before(ctx, "clone", spec.ID)
	var state *guest.State
	if err == nil && withMemory {
		err, state = s.memory.check(), s.memory.state
	}
	if err == nil {
		err = copyTree(s.disk(), b.root)
	}
	if err == nil {
		err = d.boot(b, spec, state)
	}
	if err != nil {
		d.drop(b)
		return runtime.Status{}, err
	}
	return d.set(b, runtime.Running, ""), nil
}

func noSave(name string) error {
	return errs.E(errs.NotFound, "there is no save %s on this node", name)
}

// Saves implements runtime.Driver.
func (d *Driver) Saves(context.Context) ([]runtime.Save, error) {
	if !d.cfg.Can.Saves {
		return nil, unsupported()
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	all := make([]runtime.Save, 0, len(d.saves))
	for _, s := range d.saves {
		all = append(all, s.kept)
	}
	return all, nil
}

// Forget implements runtime.Driver.
func (d *Driver) Forget(ctx context.Context, name string) error {
	if !d.cfg.Can.Saves {
		return unsupported()
	}
	s := d.save(name)
	if s == nil {
		return nil
	}
	if err := d.cfg.Before(ctx, "forget", name); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.gone {
		return nil
	}
	if err := os.RemoveAll(s.dir); err != nil {
		return fmt.Errorf("remove save: %w", err)
	}
	s.gone = true
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.saves, name)
	return nil
}

// Damage changes the memory file of a suspended sandbox, or of a save, for tests. how is truncated, missing or foreign.
func (d *Driver) Damage(what, how string) error {
	path := filepath.Join(d.cfg.Dir, ".memory", what)
	if s := d.save(what); s != nil {
		path = filepath.Join(s.dir, "memory")
	}
	content, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	switch how {
	case "truncated":
		return os.Truncate(path, int64(len(content)/2))
	case "missing":
		return os.Remove(path)
	case "foreign":
		return os.WriteFile(path, []byte(strings.Replace(string(content), runtimeHash, "another-runtime", 1)), 0o600)
	}
	return fmt.Errorf("there is no damage %q", how)
}
