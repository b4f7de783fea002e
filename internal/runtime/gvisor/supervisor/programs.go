package supervisor

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/berthrun/berth/internal/disk"

	"github.com/berthrun/berth/internal/bundle"
)

// selfExe is this program.
const selfExe = "/proc/self/exe"

// The beginnings of the names of programs that are kept. Sixteen digits of their hashes follow.
const (
	guestPrefix   = "guest-"
	runtimePrefix = "runtime-"
	hashDigits    = 16
)

func short(hash string) string { return hash[:min(hashDigits, len(hash))] }

// guestFile is our copy of a guest.
func (s *Supervisor) guestFile(hash string) string { return s.path(guestPrefix + short(hash)) }

func (s *Supervisor) runtimeFile(hash string) string {
	return s.path("programs", runtimePrefix+short(hash))
}

// program gives the path of the runtime of a hash: this program, or a kept one.
func (s *Supervisor) program(hash string) (string, error) {
	if hash == s.hello.RuntimeSHA256 {
		return selfExe, nil
	}
	path := s.runtimeFile(hash)
	got, err := bundle.HashFile(path)
	if err == nil && got != hash {
		err = errors.New("it is another program")
	}
	return path, err
}

// keepPrograms keeps a copy of this program for what only it may restore, once there is something. An older one was kept when it was this.
func (s *Supervisor) keepPrograms(hash string) error {
	if hash != s.hello.RuntimeSHA256 {
		return nil
	}
	path := s.runtimeFile(hash)
	if _, err := os.Stat(path); err == nil {
		return nil
	}
	if err := os.MkdirAll(s.path("programs"), 0o700); err != nil {
		return fmt.Errorf("keep program: %w", err)
	}
	if err := copyFile(selfExe, path); err != nil {
		return fmt.Errorf("keep program: %w", err)
	}
	return disk.SyncFolder(s.path("programs"))
}

// sweepPrograms removes kept programs that nothing needs any more.
func (s *Supervisor) sweepPrograms() error {
	needed := map[string]bool{s.guestFile(s.hello.GuestSHA256): true}
	need := func(runtime, guest string) {
		needed[s.runtimeFile(runtime)], needed[s.guestFile(guest)] = true, true
	}
	for _, sb := range s.sandboxes {
		switch r := sb.rec; {
		case r.Phase.lives() && r.Runtime == "":
			return nil // its kernel is of a time in which that was not written down
		case r.Phase.lives(), r.Phase == suspended, r.Unsettled:
			need(r.Runtime, r.Guest)
		}
	}
	for _, k := range s.saves {
		need(k.save.Runtime, k.save.Guest)
	}
	for dir, prefix := range map[string]string{s.path(): guestPrefix, s.path("programs"): runtimePrefix} {
		entries, err := os.ReadDir(dir)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("list programs: %w", err)
		}
		for _, e := range entries {
			path := dir + "/" + e.Name()
			if !strings.HasPrefix(e.Name(), prefix) || needed[path] {
				continue
			}
			if err := os.Remove(path); err != nil {
				return fmt.Errorf("remove program: %w", err)
			}
		}
	}
	return nil
}
