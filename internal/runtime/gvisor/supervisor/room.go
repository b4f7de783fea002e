package supervisor

import (
	"errors"
	"strings"
	"time"

	"github.com/berthrun/berth/internal/id"
)

// How often it is looked whether the host has room for the image of disks: more often where there is little; and how often disks that are held are held anew, as
// they may have less by then, or be new.
const (
	roomEvery = 200 * time.Millisecond
	roomSoon  = 20 * time.Millisecond
	holdEvery = time.Second
)

// keepRoom holds all disks to what they have while the host has next to no room for the image that they are in: inside, what would be more is "quota exceeded".
// Without room the image's file system would fail, and with it every sandbox of the node. It ends with this process's part.
func (s *Supervisor) keepRoom() {
	if _, _, ok := s.disks.Room(); !ok {
		return
	}
	for {
		next := s.checkRoom()
		if !s.disks.Held() {
			if err := s.disks.Reserve(); err != nil {
				s.log.Debug("no room is set aside on the host", "error", err)
			}
		}
		select {
		case <-time.After(next):
		case <-s.ended:
			return
		}
	}
}

// checkRoom holds the disks, or lets go of them once there is plenty again, and says when to look next.
func (s *Supervisor) checkRoom() time.Duration {
	free, low, ok := s.disks.Room()
	held := s.disks.Held()
	switch {
	case ok && free < low || held && free <= 2*low:
		s.disks.SetHeld(true)
		err := s.limitDisks()
		if !held {
			// What was written until now needs room yet.
			err = errors.Join(err, s.disks.Release())
			s.log.Error("the host's disk is nearly full: no sandbox or volume may hold more than it does", "free", free, "low", low)
		}
		if err != nil {
			s.log.Error("disks not held", "error", err)
		}
		return holdEvery
	case held:
		s.log.Info("the host's disk has room again", "free", free)
		s.disks.SetHeld(false)
		if err := s.limitDisks(); err != nil {
			s.log.Error("limits of disks not set", "error", err)
		}
	case free < 8*low:
		return roomSoon
	}
	return roomEvery
}

// limitDisks gives every disk its own limit.
func (s *Supervisor) limitDisks() error {
	disks, failed := s.disks.List()
	for _, d := range disks {
		var err error
		if volume, ok := strings.CutPrefix(d, volumePrefix); ok && id.Valid(id.Volume, volume) {
			err = s.limitVolume(volume, 0)
		} else {
			err = s.disks.Limit(d, s.sandboxLimit(strings.TrimPrefix(d, basePrefix)))
		}
		if err != nil && s.disks.Has(d) {
			failed = errors.Join(failed, err)
		}
	}
	return failed
}

// sandboxLimit is that of a sandbox's disk; 0, which is none, for those of saves and copies.
func (s *Supervisor) sandboxLimit(name string) int64 {
	s.mu.Lock()
	sb := s.sandboxes[name]
	s.mu.Unlock()
	if sb == nil {
		return 0
	}
	var gib int64
	sb.mu.Lock()
	if sb.rec != nil {
		gib = sb.rec.Spec.Resources.DiskGiB
	}
	sb.mu.Unlock()
	return s.diskLimit(name, gib, 0)
}

// How often, and for how long, it is looked whether what was removed is counted no more.
const (
	freedEvery = 2 * time.Second
	freedFor   = 3 * time.Minute
)

// limitFreed sets the limit of a disk once that is not below what it has: what a removed copy of it had is let go of in the background, and its writer is not
// to be refused meanwhile. Where it takes too long it is set all the same.
func (s *Supervisor) limitFreed(disk string, limit func() int64) {
	if !s.disks.Describe().Shared {
		return
	}
	done, err := s.task()
	if err != nil {
		return // whoever comes after this process sets it
	}
	go func() {
		defer done()
		for began := time.Now(); ; {
			select {
			case <-time.After(freedEvery):
			case <-s.ended:
				return
			}
			if s.disks.Held() {
				return // all limits are set again once there is room
			}
			n, err := s.disks.Usage(disk)
			if err != nil || !s.disks.Has(disk) {
				return // removed meanwhile
			}
			if to := limit(); to == 0 || n <= to || time.Since(began) > freedFor {
				if err := s.disks.Limit(disk, to); err != nil && s.disks.Has(disk) {
					s.log.Warn("limit of disk not set", "disk", disk, "error", err) // it is set at its next boot or change
				}
				return
			}
		}
	}()
}
