package supervisor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/sentry/state/checkpointfiles"

	"github.com/berthrun/berth/internal/disk"
	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/runtime"
)

// A save is a folder with saveFile, written last, and its memory folder's files; its disk is one of the store's.
const saveFile = "save.json"

// kept is a save in the table. Whoever makes, uses or removes it holds lock.
type kept struct {
	lock sync.RWMutex
	save *runtime.Save // nil while it is made and after it is removed
}

// partialSave ends the name of a save's folder that is not whole.
const partialSave = ".new"

func (s *Supervisor) saveDir(name string) string { return s.path("saves", name) }

// own gives the entry of a name to whoever makes or removes its save: nobody else has it until done. A save that was brought to this node while this
// process runs is found.
func (s *Supervisor) own(name string) *kept {
	for {
		s.mu.Lock()
		k := s.saves[name]
		if k == nil {
			k = &kept{}
			s.saves[name] = k
		}
		s.mu.Unlock()
		k.lock.Lock()
		s.mu.Lock()
		current := s.saves[name] == k
		s.mu.Unlock()
		if !current { // it was let go while we waited
			k.lock.Unlock()
			continue
		}
		if k.save == nil {
			k.save, _ = s.loadSave(name) // nil where there is none
		}
		return k
	}
}

// done gives back what own gave. An entry without a save is let go.
func (s *Supervisor) done(name string, k *kept) {
	if k.save == nil {
		s.mu.Lock()
		delete(s.saves, name)
		s.mu.Unlock()
	}
	k.lock.Unlock()
}

// share gives the entry of a save to whoever uses it, with others; nil where there is no save. The caller gives its lock back.
func (s *Supervisor) share(name string) *kept {
	for {
		s.mu.Lock()
		k := s.saves[name]
		s.mu.Unlock()
		if k != nil {
			if k.lock.RLock(); k.save != nil {
				return k
			}
			k.lock.RUnlock()
		}
		k = s.own(name)
		found := k.save != nil
		s.done(name, k)
		if !found {
			return nil
		}
	}
}

// Save keeps a moment of a sandbox.
func (s *Supervisor) Save(ctx context.Context, id string, generation int64, name string, opts runtime.SaveOptions) (runtime.Save, error) {
	if !idForm().MatchString(name) {
		return runtime.Save{}, errs.E(errs.InvalidInput, "%q is no name of a save", name)
	}
	var out runtime.Save
	_, err := s.change(ctx, id, generation, func(sb *sandbox, r record) (runtime.Status, error) {
		k := s.own(name)
		defer s.done(name, k)
		if k.save == nil {
			if opts.Memory && len(r.Spec.Mounts) > 0 && r.holds() {
				return runtime.Status{}, errs.E(errs.InvalidState, "a sandbox with volumes is saved without its memory").Because("volumes")
			}
			made, err := s.save(sb, r, name, opts)
			if err != nil {
				return runtime.Status{}, errors.Join(full(err, "save_failed", "the sandbox could not be saved"), s.removeSave(name))
			}
			k.save = made
		} else if k.save.SandboxID != id || k.save.Memory != opts.Memory {
			return runtime.Status{}, errs.E(errs.AlreadyExists, "there is another save %s", name).Because("save")
		}
		out = *k.save
		return runtime.Status{}, nil
	})
	if err != nil {
		return runtime.Save{}, err // what is made may still be written to out
	}
	return out, nil
}

func errNoSave(name string) error {
	return errs.E(errs.NotFound, "no save %s is on this node", name).Because("save")
}

// save makes a save. What is not whole at the end is removed by the caller, or by whoever comes after this process.
func (s *Supervisor) save(sb *sandbox, r record, name string, opts runtime.SaveOptions) (*runtime.Save, error) {
	temp := s.saveDir(name) + partialSave
	if err := s.removeSave(name); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(temp, 0o700); err != nil {
		return nil, fmt.Errorf("make folder: %w", err)
	}
	take := func(record) error {
		err := s.moment(sb, name, temp, opts)
		if err != nil {
			err = errors.Join(err, s.removeSave(name)) // at once: the record needs room
		}
		return err
	}
	var err error
	switch {
	case r.Phase == running || r.Phase == paused:
		if opts.Memory {
			s.countPages(sb.current())
		}
		err = s.still(sb, r, saving, take)
	case r.Phase == suspended && opts.Memory:
		if err = linkMemory(sb.memory(), temp); err == nil {
			err = s.disks.Copy(sb.id, savePrefix+name, 0)
		}
	case r.Phase == suspended || r.Phase == stopped && !opts.Memory:
		err = s.disks.Copy(sb.id, savePrefix+name, 0)
	default:
		err = errPhase(&r)
	}
	if err != nil {
		return nil, err
	}
	out := &runtime.Save{Name: name, SandboxID: sb.id, Image: r.Spec.Image, Resources: r.Spec.Resources, Memory: opts.Memory, At: s.now()}
	if opts.Memory {
		var m *memory
		if r.Phase == suspended {
			m, err = readMemory(temp)
		} else {
			m, err = s.finish(r, temp, opts.Brief)
		}
		if err != nil {
			return nil, err
		}
		out.MemoryBytes, out.Runtime, out.Guest = m.bytes(), m.Runtime, m.Guest
	}
	if !opts.Brief {
		if err := s.disks.Sync(); err != nil {
			return nil, err
		}
	}
	counted := savePrefix + name
	if s.disks.Describe().Shared {
		counted = sb.id // what the save has counts for it
	}
	if n, err := s.disks.Usage(counted); err == nil {
		out.DiskBytes = n
	}
	if err := s.disks.Limit(sb.id, s.diskLimit(sb.id, r.Spec.Resources.DiskGiB, out.DiskBytes)); err != nil {
		return nil, err
	}
	if err := writeDurably(filepath.Join(temp, saveFile), out); err != nil {
		return nil, fmt.Errorf("describe save: %w", err)
	}
	if err := os.Rename(temp, s.saveDir(name)); err != nil {
		return nil, fmt.Errorf("keep save: %w", err)
	}
	return out, disk.SyncFolder(s.path("saves"))
}

// countPages has gVisor find out which pages a sandbox uses, while it still goes on. The kernel is asked for that; of pages that gVisor does not know about when
// it writes them it looks at the content, to leave out those that are empty, and each look costs a page fault while the sandbox stands still.
func (s *Supervisor) countPages(l *live) {
	if l == nil || l.cont == nil {
		return // still refuses it
	}
	if _, err := l.cont.Sandbox.Usage(true); err != nil && !l.isDead() {
		s.log.Warn("pages not counted before a save", "sandbox", l.cont.ID, "error", err)
	}
}

// moment writes the memory of a sandbox that stands still, and copies its disk.
func (s *Supervisor) moment(sb *sandbox, name, dir string, opts runtime.SaveOptions) error {
	if !opts.Memory {
		return s.disks.Copy(sb.id, savePrefix+name, 0)
	}
	written, copied := make(chan error, 1), make(chan error, 1)
	go func() {
		err := s.write(sb, dir, opts.Brief)
		written <- err
	}()
	// gVisor brings all that it holds of files to the disk before it writes the first page, so that the disk does not change any more from then on. Copied
	// at the end it would wait until the disk has taken all the pages.
	pages, tick := filepath.Join(dir, checkpointfiles.PagesFileName), time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case err := <-written:
			if err != nil {
				return err
			}
			return s.disks.Copy(sb.id, savePrefix+name, 0)
		case <-tick.C:
		}
		if info, err := os.Stat(pages); err == nil && info.Size() > 0 {
			break
		}
	}
	go func() { copied <- s.disks.Copy(sb.id, savePrefix+name, 0) }()
	return errors.Join(<-written, <-copied)
}

// linkMemory gives a memory folder's files a second name: nobody changes them.
func linkMemory(from, to string) error {
	for _, name := range append([]string{memoryFile}, memoryFiles...) {
		if err := os.Link(filepath.Join(from, name), filepath.Join(to, name)); errors.Is(err, fs.ErrNotExist) {
			return errMemory(err, runtime.MemoryMissing, "a file of it is not there")
		} else if err != nil {
			return fmt.Errorf("keep memory: %w", err)
		}
	}
	return nil
}

// removeSave removes all of a save, its folder first: without it the rest is nothing.
func (s *Supervisor) removeSave(name string) error {
	dir, gone := s.saveDir(name), s.saveDir(name)+partialSave
	err := os.RemoveAll(gone)
	// Under the name of what is not whole at once: half removed it must not be taken for a save.
	if rerr := os.Rename(dir, gone); rerr != nil && !errors.Is(rerr, fs.ErrNotExist) {
		err = errors.Join(err, rerr)
	}
	err = errors.Join(err, os.RemoveAll(gone), s.disks.Remove(savePrefix+name))
	if err != nil {
		return errs.Wrap(errs.Unavailable, err, "the save could not be removed").Because("disk")
	}
	return nil
}

// Saves reports every save. What is just being made or removed is waited for.
func (s *Supervisor) Saves() ([]runtime.Save, error) {
	entries, err := os.ReadDir(s.path("saves"))
	if err != nil {
		return nil, errs.Wrap(errs.Unavailable, err, "the saves of this node cannot be listed").Because("disk")
	}
	out := []runtime.Save{}
	for _, e := range entries {
		if !idForm().MatchString(e.Name()) {
			continue // it is not whole
		}
		if k := s.share(e.Name()); k != nil {
			out = append(out, *k.save)
			k.lock.RUnlock()
		}
	}
	return out, nil
}

// Forget removes a save. What was made of it goes on: its files stay for as long as somebody reads them.
func (s *Supervisor) Forget(name string) error {
	if !idForm().MatchString(name) {
		return errs.E(errs.InvalidInput, "%q is no name of a save", name)
	}
	k := s.own(name)
	defer s.done(name, k)
	if err := s.removeSave(name); err != nil {
		return err
	}
	of := k.save
	if k.save = nil; of != nil {
		s.limitFreed(of.SandboxID, func() int64 { return s.sandboxLimit(of.SandboxID) })
	}
	return nil
}

// diskLimit is what a sandbox's disk of a size may hold. Where what saves have counts for the disk as well, it may have that much more, at most its size once
// more: else a sandbox that is more than half full could not write its files anew once it has a snapshot. held is that of a save that is being made.
func (s *Supervisor) diskLimit(sandbox string, gib, held int64) int64 {
	if gib == 0 || !s.disks.Describe().Shared {
		return gib << 30
	}
	s.mu.Lock()
	all := slices.Collect(maps.Values(s.saves))
	s.mu.Unlock()
	for _, k := range all {
		if !k.lock.TryRLock() {
			continue // it is just being made or removed, and a limit is set after that
		}
		if k.save != nil && k.save.SandboxID == sandbox {
			held += k.save.DiskBytes
		}
		k.lock.RUnlock()
	}
	return gib<<30 + min(held, gib<<30)
}

// Clone makes a sandbox of a save.
func (s *Supervisor) Clone(ctx context.Context, spec runtime.Spec, name string, opts runtime.CloneOptions) (runtime.Status, error) {
	if err := s.check(&spec); err != nil {
		return runtime.Status{}, err
	}
	if !idForm().MatchString(name) {
		return runtime.Status{}, errs.E(errs.InvalidInput, "%q is no name of a save", name)
	}
	return s.do(ctx, spec.ID, true, func(ctx context.Context, sb *sandbox) (runtime.Status, error) {
		k := s.share(name)
		if k != nil {
			defer k.lock.RUnlock()
		} else if _, ok := sb.record(); !ok {
			return runtime.Status{}, errNoSave(name)
		}
		return s.make(ctx, sb, spec, func(r record) (origin, error) {
			if k == nil {
				return origin{}, errNoSave(name)
			}
			return s.cloned(k.save, r.Spec, opts)
		})
	})
}

// cloned copies the disk of a save for a new sandbox, and says how it boots.
func (s *Supervisor) cloned(save *runtime.Save, spec runtime.Spec, opts runtime.CloneOptions) (origin, error) {
	from := origin{undone: true}
	if save.Image != spec.Image {
		return from, errs.E(errs.InvalidInput, "the save %s is of another image", save.Name).Because("image")
	}
	if save.Memory && !opts.FromDisk {
		if len(spec.Mounts) > 0 {
			return from, errs.E(errs.InvalidState, "a copy with memory mounts no volumes").Because("volumes")
		}
		from.dir = s.saveDir(save.Name)
		m, err := readMemory(from.dir)
		if err != nil {
			return from, err
		}
		if err := s.fits(m, spec); err != nil {
			return from, err
		}
		if old, now := save.Resources, spec.Resources; old.VCPU != now.VCPU || old.MemoryMiB != now.MemoryMiB {
			return from, errs.E(errs.InvalidInput, "a copy with memory of the save %s has %g cores and %d MiB of memory, as that had", save.Name, old.VCPU, old.MemoryMiB).Because("resources")
		}
		from.memory = m
	}
	return from, s.disks.Copy(savePrefix+save.Name, spec.ID, spec.Resources.DiskGiB<<30)
}

// loadSaves reads what an earlier process kept, and removes what it did not finish.
func (s *Supervisor) loadSaves() error {
	entries, err := os.ReadDir(s.path("saves"))
	if err != nil {
		return fmt.Errorf("list saves: %w", err)
	}
	for _, e := range entries {
		name := e.Name()
		save, err := s.loadSave(name)
		if err != nil {
			s.log.Warn("remove a save that is not whole", "save", name, "error", err)
			if err := s.removeSave(strings.TrimSuffix(name, partialSave)); err != nil {
				return err
			}
			continue
		}
		s.saves[name] = &kept{save: save}
	}
	return nil
}

func (s *Supervisor) loadSave(name string) (*runtime.Save, error) {
	if !idForm().MatchString(name) {
		return nil, errors.New("it was not finished")
	}
	b, err := os.ReadFile(filepath.Join(s.saveDir(name), saveFile))
	if err != nil {
		return nil, err
	}
	save := &runtime.Save{}
	if err := json.Unmarshal(b, save); err != nil {
		return nil, err
	}
	if save.Name != name || !s.disks.Has(savePrefix+name) {
		return nil, errors.New("its disk is not there")
	}
	return save, nil
}

// noRoom reports whether an error comes of a full disk. gVisor hands only the text of one over.
func noRoom(err error) bool {
	return errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) || strings.Contains(err.Error(), unix.ENOSPC.Error()) || strings.Contains(err.Error(), unix.EDQUOT.Error())
}
