package supervisor

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/berthrun/berth/internal/disk"
	"github.com/berthrun/berth/internal/runtime"
	"github.com/berthrun/berth/internal/runtime/gvisor/proc"
)

// phase is what a record says was going on when it was written.
type phase string

const (
	creating   phase = "creating" // not acknowledged: an interruption undoes it
	starting   phase = "starting" // an interruption leaves it stopped
	running    phase = "running"
	paused     phase = "paused"
	suspending phase = "suspending" // an interruption lets it go on as it was
	saving     phase = "saving"     // the same
	suspended  phase = "suspended"  // only its disk and its memory's files are there
	waking     phase = "waking"     // an interruption leaves it suspended
	stopping   phase = "stopping"   // an interruption is finished
	stopped    phase = "stopped"
	replacing  phase = "replacing" // its new disk takes the place of the old one; an interruption is finished
	deleting   phase = "deleting"  // an interruption is finished
)

// record is all that survives this process, one file a sandbox. It is written before anything is done.
type record struct {
	Spec       runtime.Spec `json:"spec"`
	Generation int64        `json:"generation"`
	Phase      phase        `json:"phase"`
	Reason     string       `json:"reason,omitempty"` // why it is stopped, or is stopping
	ExitStatus int          `json:"exitStatus"`
	Since      time.Time    `json:"since"`
	Slot       int          `json:"slot"`
	Before     phase        `json:"before,omitempty"`    // of one that stands still for a moment: what it was
	Unsettled  bool         `json:"unsettled,omitempty"` // it was woken, and its memory's files are kept
	VCPU       float64      `json:"vcpu,omitempty"`      // that its kernel was booted with; the limits may have changed since
	MemoryMiB  int64        `json:"memoryMiB,omitempty"` // the same
	Runtime    string       `json:"runtime,omitempty"`   // hash of the program that its kernel is
	Guest      string       `json:"guest,omitempty"`     // hash of the guest inside
	BootID     string       `json:"bootId,omitempty"`    // of the machine, when it was booted
	Rebased    int64        `json:"rebased,omitempty"`   // the generation of the call that gave it its disk, where one did
	Fresh      bool         `json:"fresh,omitempty"`     // it was not booted on its disk yet
	Boot       proc.Process `json:"boot"`
	Gofer      proc.Process `json:"gofer"`
}

// booted is the spec as its kernel was booted with.
func (r *record) booted() runtime.Spec {
	if r.MemoryMiB == 0 {
		return r.Spec // booted before this was recorded
	}
	return sized(r.Spec, r.VCPU, r.MemoryMiB)
}

// sized is a spec with other resources.
func sized(spec runtime.Spec, vcpu float64, memoryMiB int64) runtime.Spec {
	spec.Resources.VCPU, spec.Resources.MemoryMiB = vcpu, memoryMiB
	return spec
}

// status is what callers see of a record.
func (r *record) status(address string) runtime.Status {
	st := runtime.Status{ID: r.Spec.ID, Generation: r.Generation, Reason: r.Reason, ExitStatus: r.ExitStatus, Since: r.Since, Address: address}
	switch r.Phase {
	case running:
		st.State = runtime.Running
	case paused:
		st.State, st.Depth = runtime.Paused, runtime.Frozen
	case suspended, waking:
		st.State, st.Depth = runtime.Paused, runtime.OnDisk
	case suspending, saving:
		st.State = runtime.Running
		if r.Before == paused {
			st.State, st.Depth = runtime.Paused, runtime.Frozen
		}
	case stopping:
		st.State = runtime.Stopped
		if r.Reason == runtime.ReasonRequested {
			st.State, st.Reason = runtime.Running, "" // it may have a grace
		}
	default:
		st.State = runtime.Stopped
	}
	return st
}

const recordFile = "record.json"

var errDamaged = errors.New("the record is damaged")

// save replaces the record in a folder so that a crash at any moment leaves the old or the new one, whole.
func (r *record) save(dir string) error {
	if err := writeDurably(filepath.Join(dir, recordFile), r); err != nil {
		return fmt.Errorf("write record: %w", err)
	}
	return nil
}

// writeDurably replaces a small file so that a crash at any moment leaves the old or the new one, whole.
func writeDurably(path string, v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	f, err := os.OpenFile(path+".new", os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(b)
	if err := errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	if err := os.Rename(path+".new", path); err != nil {
		return err
	}
	return disk.SyncFolder(filepath.Dir(path))
}

// loadRecord reads a record. One that is not whole, or of another sandbox, is errDamaged.
func loadRecord(dir, id string) (*record, error) {
	b, err := os.ReadFile(filepath.Join(dir, recordFile))
	if err != nil {
		return nil, fmt.Errorf("read record: %w", err)
	}
	r := &record{}
	if err := json.Unmarshal(b, r); err != nil || r.Spec.ID != id || !r.Phase.known() || r.Slot < 0 || r.Slot >= maxSlots || r.Boot.PID < 0 || r.Gofer.PID < 0 {
		return nil, errDamaged
	}
	return r, nil
}

// maxSlots is more than any subnet has.
const maxSlots = 1 << 24

func (p phase) known() bool {
	switch p {
	case creating, starting, running, paused, suspending, saving, suspended, waking, stopping, stopped, replacing, deleting:
		return true
	}
	return false
}

// lives reports whether a sandbox in this phase has a kernel.
func (p phase) lives() bool { return p == running || p == paused || p == suspending || p == saving }
