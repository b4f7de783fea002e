package supervisor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"time"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/id"
	"github.com/berthrun/berth/internal/runtime"
)

// A copy of a volume is a disk of the store, and copies/NAME.json, which is written before the disk gets its name.

// copyFileOf is the content of a copy's file.
type copyFileOf struct {
	Volume string    `json:"volume"`
	At     time.Time `json:"at"`             // the moment that it is of
	Held   int64     `json:"held,omitempty"` // bytes that the volume held then
}

func (s *Supervisor) copyPath(name string) string { return s.path("copies", name+".json") }

// readCopy reads what a copy is of; fs.ErrNotExist where there is none.
func (s *Supervisor) readCopy(name string) (copyFileOf, error) {
	var f copyFileOf
	if !s.disks.Has(copyPrefix + name) {
		return f, fs.ErrNotExist
	}
	b, err := os.ReadFile(s.copyPath(name))
	if err == nil {
		err = json.Unmarshal(b, &f)
	}
	return f, err
}

func checkCopy(name string) error {
	if !id.Valid(id.Backup, name) {
		return errs.E(errs.InvalidInput, "%q is no name of a copy", name).Because("copy")
	}
	return nil
}

// takeCopy gives a copy's name to whoever makes or forgets it, and counts the operation.
func (s *Supervisor) takeCopy(name string) (give func(), err error) {
	done, err := s.task()
	if err != nil {
		return nil, err
	}
	s.vols.Lock()
	defer s.vols.Unlock()
	if s.copies[name] {
		done()
		return nil, errs.E(errs.Busy, "the copy %s is just being made or removed", name).Because("copy").After(time.Second)
	}
	s.copies[name] = true
	return func() {
		s.vols.Lock()
		delete(s.copies, name)
		s.vols.Unlock()
		done()
	}, nil
}

// CopyVolume keeps a moment of a volume. What has begun goes on to its end, though the caller may give up.
func (s *Supervisor) CopyVolume(ctx context.Context, volume, name string) error {
	if err := errors.Join(checkVolume(volume), checkCopy(name)); err != nil {
		return err
	}
	give, err := s.takeCopy(name)
	if err != nil {
		return err
	}
	defer give()
	switch is, err := s.readCopy(name); {
	case err == nil && is.Volume == volume:
		return nil
	case err == nil:
		return errs.E(errs.AlreadyExists, "there is a copy %s of another volume", name).Because("copy")
	}
	ctx = context.WithoutCancel(ctx)
	temp := copyPrefix + name + newSuffix
	if err := s.removeCopy(name); err != nil {
		return err
	}
	is, err := s.momentOf(ctx, volume, temp)
	if err == nil {
		err = s.disks.Sync()
	}
	if err == nil {
		err = writeDurably(s.copyPath(name), is)
	}
	if err == nil {
		err = s.disks.Replace(temp, copyPrefix+name)
	}
	if err == nil {
		err = s.disks.Sync() // the name
	}
	if err != nil {
		return errors.Join(full(err, "copy_failed", "the volume could not be copied"), s.removeCopy(name), s.limitVolume(volume, 0))
	}
	return nil
}

// momentOf copies a volume's disk as it is at one moment, and says what that is.
func (s *Supervisor) momentOf(ctx context.Context, volume, to string) (is copyFileOf, err error) {
	take := func(record) (err error) {
		is = copyFileOf{Volume: volume, At: s.now()}
		if err := s.disks.Copy(volumePrefix+volume, to, 0); err != nil || !s.disks.Describe().Shared {
			return err
		}
		if is.Held, err = s.disks.Usage(volumePrefix + volume); err != nil {
			return err
		}
		return s.limitVolume(volume, is.Held)
	}
	for {
		writer, end, err := s.quiet(volume)
		switch {
		case err != nil:
			return is, err
		case end != nil:
			err := take(record{})
			end()
			return is, err
		case writer == "": // another copy of it is being made
			continue
		}
		stays := true
		_, err = s.do(ctx, writer, false, func(_ context.Context, sb *sandbox) (runtime.Status, error) {
			r, ok := sb.record()
			if ok {
				if r, err = s.settled(sb, r); err != nil {
					return runtime.Status{}, err
				}
			}
			if readOnly, mounts := s.mounting(volume)[sb.id]; !ok || !mounts || readOnly {
				stays = false
				return runtime.Status{}, nil
			}
			switch r.Phase {
			case running, paused:
				return runtime.Status{}, s.still(sb, r, saving, take)
			case suspended, stopped:
				return runtime.Status{}, take(r)
			}
			return runtime.Status{}, s.unsettled(sb, errPhase(&r)) // undoing something failed half-way
		})
		if stays && !errs.Is(err, errs.NotFound) || ctx.Err() != nil {
			return is, err
		}
	}
}

// quiet names the sandbox that writes to a volume or, where none does, keeps any from beginning to until end is called. Without either it has waited for
// another copy.
func (s *Supervisor) quiet(volume string) (writer string, end func(), err error) {
	s.vols.Lock()
	defer s.vols.Unlock()
	if !s.disks.Has(volumePrefix + volume) {
		return "", nil, noVolume(volume)
	}
	for sandbox, readOnly := range s.mounting(volume) {
		if !readOnly {
			return sandbox, nil, nil
		}
	}
	if c := s.copying[volume]; c != nil {
		s.vols.Unlock()
		<-c
		s.vols.Lock()
		return "", nil, nil
	}
	c := make(chan struct{})
	s.copying[volume] = c
	return "", func() {
		s.vols.Lock()
		delete(s.copying, volume)
		s.vols.Unlock()
		close(c)
	}, nil
}

// ForgetCopy removes a copy.
func (s *Supervisor) ForgetCopy(name string) error {
	if err := checkCopy(name); err != nil {
		return err
	}
	give, err := s.takeCopy(name)
	if err != nil {
		return err
	}
	defer give()
	is, _ := s.readCopy(name) // of one that is not whole nothing counts
	if err := s.removeCopy(name); err != nil || is.Volume == "" {
		return err
	}
	s.limitFreed(volumePrefix+is.Volume, func() int64 { return s.volumeLimit(is.Volume, 0) })
	return nil
}

// limitVolume sets how much may be written to a volume. Where what copies have counts for the volume as well, it may have that much more, at most its size once
// more: else the writer of a volume that is more than half full could not write it anew while it is copied away. held is that of a copy that is being made.
func (s *Supervisor) limitVolume(volume string, held int64) error {
	s.vols.Lock()
	defer s.vols.Unlock()
	return s.limitHeld(volume, held)
}

// limitHeld is limitVolume for whoever has vols.
func (s *Supervisor) limitHeld(volume string, held int64) error {
	limit := s.volumeLimit(volume, held)
	if limit == 0 || !s.disks.Has(volumePrefix+volume) {
		return nil
	}
	return s.disks.Limit(volumePrefix+volume, limit)
}

// volumeLimit is that of a volume, 0 where it has no size.
func (s *Supervisor) volumeLimit(volume string, held int64) int64 {
	gib := s.volumeSize(volume)
	if s.disks.Describe().Shared {
		all, _ := s.Copies() // one that is not counted only makes the limit narrower
		for _, name := range all {
			if is, err := s.readCopy(name); err == nil && is.Volume == volume {
				held += is.Held
			}
		}
	}
	return gib<<30 + min(held, gib<<30)
}

// removeCopy removes all of a copy, whole or not. Its name goes first: half removed it must not be taken for one.
func (s *Supervisor) removeCopy(name string) error {
	temp := copyPrefix + name + newSuffix
	err := s.disks.Remove(temp)
	if err == nil {
		err = s.disks.Replace(copyPrefix+name, temp)
	}
	if err == nil {
		err = s.disks.Remove(temp)
	}
	if rerr := os.Remove(s.copyPath(name)); !errors.Is(rerr, fs.ErrNotExist) {
		err = errors.Join(err, rerr)
	}
	if err != nil {
		return errs.Wrap(errs.Unavailable, err, "the copy could not be removed").Because("disk")
	}
	return nil
}

// Copies names all.
func (s *Supervisor) Copies() ([]string, error) {
	disks, err := s.disks.List()
	if err != nil {
		return nil, errs.Wrap(errs.Unavailable, fmt.Errorf("list copies: %w", err), "the copies of this node cannot be listed").Because("disk")
	}
	out := []string{}
	for _, d := range disks {
		if name, ok := strings.CutPrefix(d, copyPrefix); ok && id.Valid(id.Backup, name) {
			out = append(out, name)
		}
	}
	return out, nil
}
