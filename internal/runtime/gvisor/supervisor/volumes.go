package supervisor

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/id"
	"github.com/berthrun/berth/internal/runtime"
)

// A volume is a disk of the store, without layers, and volumes/ID.json, which says its size. The disk is what counts: it comes under its name whole, and goes
// under another one before it is removed.
const (
	newSuffix  = ".new"  // ends the name of a disk that is not whole
	goneSuffix = ".gone" // of one that is being removed
	loadSuffix = ".load" // of one that is being brought to this node, by whoever has it locked
)

// volumeFile is the content of a volume's file.
type volumeFile struct {
	SizeGiB int64 `json:"sizeGiB"`
}

func (s *Supervisor) volumePath(volume string) string { return s.path("volumes", volume+".json") }

// volumeFolder is what is mounted of a volume.
func (s *Supervisor) volumeFolder(volume string) string { return s.disks.Folder(volumePrefix + volume) }

// volumeSize is the size that a volume was given, 0 where none was.
func (s *Supervisor) volumeSize(volume string) int64 {
	var f volumeFile
	b, err := os.ReadFile(s.volumePath(volume))
	if err == nil {
		err = json.Unmarshal(b, &f)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		s.log.Warn("size of volume not read", "volume", volume, "error", err)
	}
	return f.SizeGiB
}

func checkVolume(volume string) error {
	if !id.Valid(id.Volume, volume) {
		return errs.E(errs.InvalidInput, "%q is no id of a volume", volume).Because("volume")
	}
	return nil
}

func noVolume(volume string) error {
	return errs.E(errs.NotFound, "no volume %s is on this node", volume).Because("volume")
}

// task counts an operation that is no sandbox's: this process does not end before it has. The caller calls done at its end.
func (s *Supervisor) task() (done func(), err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || s.closing {
		return nil, errs.E(errs.HostUnavailable, "the runtime of this node is shutting down").Because("shutting_down")
	}
	s.work.Add(1)
	s.ops.Add(1)
	return func() { s.ops.Done(); s.work.Done() }, nil
}

// maxVolumeGiB is more than any disk has.
const maxVolumeGiB = 1 << 20

// MakeVolume makes a volume, or has one grow.
func (s *Supervisor) MakeVolume(volume string, sizeGiB int64) error {
	if err := checkVolume(volume); err != nil {
		return err
	}
	if sizeGiB < 1 || sizeGiB > maxVolumeGiB {
		return errs.E(errs.InvalidInput, "a volume has at least 1 GiB").Because("size")
	}
	done, err := s.task()
	if err != nil {
		return err
	}
	defer done()
	s.vols.Lock()
	defer s.vols.Unlock()
	disk, had := volumePrefix+volume, s.volumeSize(volume)
	switch {
	case !s.disks.Has(disk):
		err = s.newVolume(volume, sizeGiB)
	case had < sizeGiB:
		err = writeDurably(s.volumePath(volume), volumeFile{sizeGiB})
		fallthrough
	default: // again, as the call that gave it its size may have been interrupted
		if err == nil {
			err = s.limitHeld(volume, 0)
		}
	}
	if err != nil {
		return full(err, "disk", "the volume could not be made")
	}
	return nil
}

// newVolume makes an empty volume, durably. Its root is for every user of every image.
func (s *Supervisor) newVolume(volume string, gib int64) error {
	disk := volumePrefix + volume
	temp := disk + newSuffix
	err := errors.Join(s.disks.Remove(temp), s.disks.Create(temp, gib<<30))
	if err == nil {
		err = os.Chmod(s.disks.Folder(temp), 0o777) //nolint:gosec // inside of sandboxes; the folder above it is root's alone
	}
	if err == nil {
		err = writeDurably(s.volumePath(volume), volumeFile{gib})
	}
	if err == nil {
		err = s.disks.Replace(temp, disk)
	}
	if err != nil {
		return errors.Join(err, s.disks.Remove(temp))
	}
	return s.disks.Sync()
}

// RemoveVolume removes a volume that nobody mounts. One that is just being copied is waited for.
func (s *Supervisor) RemoveVolume(volume string) error {
	if err := checkVolume(volume); err != nil {
		return err
	}
	done, err := s.task()
	if err != nil {
		return err
	}
	defer done()
	for {
		copied, err := s.hide(volume)
		if err != nil {
			return err
		}
		if copied == nil {
			break
		}
		<-copied
	}
	gone := volumePrefix + volume + goneSuffix
	if err := errors.Join(s.disks.Remove(gone), s.disks.Remove(volumePrefix+volume+loadSuffix), s.disks.Sync()); err != nil {
		return errs.Wrap(errs.Unavailable, err, "the volume could not be removed").Because("disk")
	}
	return nil
}

// hide takes a volume out of everybody's sight. Where it is being copied it gives what is closed once that is done.
func (s *Supervisor) hide(volume string) (<-chan struct{}, error) {
	s.vols.Lock()
	defer s.vols.Unlock()
	for other := range s.mounting(volume) {
		return nil, errs.E(errs.InvalidState, "sandbox %s mounts the volume %s", other, volume).Because("mounted").Suggest("Delete or stop the sandbox first.")
	}
	if c := s.copying[volume]; c != nil {
		return c, nil
	}
	err := os.Remove(s.volumePath(volume))
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	if err == nil {
		err = s.disks.Replace(volumePrefix+volume, volumePrefix+volume+goneSuffix)
	}
	if err != nil {
		return nil, errs.Wrap(errs.Unavailable, err, "the volume could not be removed").Because("disk")
	}
	return nil, nil
}

// Volumes reports all.
func (s *Supervisor) Volumes() ([]runtime.Volume, error) {
	disks, err := s.disks.List()
	if err != nil {
		return nil, errs.Wrap(errs.Unavailable, err, "the volumes of this node cannot be listed").Because("disk")
	}
	out := []runtime.Volume{}
	for _, d := range disks {
		volume, ok := strings.CutPrefix(d, volumePrefix)
		if !ok || !id.Valid(id.Volume, volume) {
			continue
		}
		v := runtime.Volume{ID: volume, SizeGiB: s.volumeSize(volume)}
		if v.UsedBytes, err = s.disks.Usage(d); err != nil {
			s.log.Warn("measure volume", "volume", volume, "error", err) // it may be gone by now
		}
		out = append(out, v)
	}
	return out, nil
}

// holds reports whether a sandbox has its mounts: it has a kernel, or a memory that will have one.
func (r *record) holds() bool { return r.Phase != stopped && r.Phase != replacing || r.Unsettled }

// mounting gives every sandbox that has a volume mounted, and whether it only reads.
func (s *Supervisor) mounting(volume string) map[string]bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := map[string]bool{}
	for sandbox, sb := range s.sandboxes {
		sb.mu.Lock()
		if sb.rec != nil && sb.rec.holds() {
			for _, m := range sb.rec.Spec.Mounts {
				if m.Volume == volume {
					out[sandbox] = m.ReadOnly
				}
			}
		}
		sb.mu.Unlock()
	}
	return out
}

// putMounted records a sandbox that is about to boot, once nobody has what its mounts exclude. Its turn is held.
func (s *Supervisor) putMounted(sb *sandbox, r record) error {
	for len(r.Spec.Mounts) > 0 {
		copied, err := s.claim(sb, r)
		if copied == nil {
			return err
		}
		<-copied // of a volume that nobody writes to, for as long as the disk needs
	}
	return sb.put(r)
}

// claim records the sandbox, unless another has a volume of it or one that it is to write to is being copied: then it gives what is closed at the end of that.
func (s *Supervisor) claim(sb *sandbox, r record) (<-chan struct{}, error) {
	s.vols.Lock()
	defer s.vols.Unlock()
	for _, m := range r.Spec.Mounts {
		if !s.disks.Has(volumePrefix + m.Volume) {
			return nil, noVolume(m.Volume)
		}
		for other, readOnly := range s.mounting(m.Volume) {
			if other != sb.id && !(readOnly && m.ReadOnly) {
				return nil, errs.E(errs.InvalidState, "another sandbox mounts the volume %s", m.Volume).Because("volume_in_use").
					Suggest("A volume is mounted by one sandbox that may write to it, or by any number that only read.")
			}
		}
		if c := s.copying[m.Volume]; c != nil && !m.ReadOnly {
			return c, nil
		}
	}
	return nil, sb.put(r)
}

// ownsVolumeDisk reports whether a disk of a volume or a copy is one, whole, or is just being brought here.
func (s *Supervisor) ownsVolumeDisk(disk string) bool {
	if name, ok := strings.CutPrefix(disk, copyPrefix); ok {
		_, err := s.readCopy(name)
		return err == nil
	}
	volume, loading := strings.CutSuffix(strings.TrimPrefix(disk, volumePrefix), loadSuffix)
	return id.Valid(id.Volume, volume) && (!loading || s.locked(disk))
}

// locked reports whether somebody has a disk's folder locked.
func (s *Supervisor) locked(disk string) bool {
	f, err := os.Open(strings.TrimSuffix(s.disks.Folder(disk), "/upper"))
	if err != nil {
		return false
	}
	defer f.Close()
	return errors.Is(unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB), unix.EWOULDBLOCK)
}

// sweepVolumes removes the files of volumes and copies that are not there, and sets the limits of those that are: a copy may have been interrupted.
func (s *Supervisor) sweepVolumes() error {
	var failed error
	for dir, prefix := range map[string]string{"volumes": volumePrefix, "copies": copyPrefix} {
		entries, err := os.ReadDir(s.path(dir))
		if err != nil {
			return fmt.Errorf("list %s: %w", dir, err)
		}
		for _, e := range entries {
			if name, whole := strings.CutSuffix(e.Name(), ".json"); !whole || !s.disks.Has(prefix+name) {
				failed = errors.Join(failed, os.Remove(s.path(dir, e.Name())))
			} else if prefix == volumePrefix {
				failed = errors.Join(failed, s.limitVolume(name, 0))
			}
		}
	}
	return failed
}
