package sandbox

import (
	"slices"
	"time"

	"github.com/berthrun/berth/api"
	"github.com/berthrun/berth/internal/errs"
)

// transitions says which states follow each state. A transition is one conditional UPDATE on state and generation; nothing else changes a state.
var transitions = map[string][]string{
	api.StateCreating: {api.StateRunning, api.StateFailed, api.StateDeleting},
	api.StateRunning:  {api.StatePausing, api.StateStopping, api.StateStopped, api.StateDeleting},
	api.StatePausing:  {api.StatePaused, api.StateRunning, api.StateDeleting},
	api.StatePaused:   {api.StateWaking, api.StateStopping, api.StateDeleting},
	api.StateWaking:   {api.StateRunning, api.StatePaused, api.StateDeleting},
	api.StateStopping: {api.StateStopped, api.StateDeleting},
	api.StateStopped:  {api.StateStarting, api.StateDeleting},
	api.StateStarting: {api.StateRunning, api.StateStopped, api.StateDeleting},
	api.StateFailed:   {api.StateDeleting},
	api.StateDeleting: {api.StateDeleted},
	api.StateDeleted:  {},
}

// allowed reports whether a transition is in the table.
func allowed(from, to string) bool { return slices.Contains(transitions[from], to) }

// moving are the states that a worker carries on from by itself.
func moving(state string) bool {
	switch state {
	case api.StateCreating, api.StateStarting, api.StateStopping, api.StatePausing, api.StateWaking, api.StateDeleting:
		return true
	}
	return false
}

// goes reports whether a sandbox is deleted or about to be: for callers there is none.
func goes(r *row) bool { return r.State == api.StateDeleting || r.State == api.StateDeleted }

// verb is what a caller wants of a sandbox.
type verb string

// The rows of the operation table.
const (
	verbUse    verb = "use"    // exec, files, start a process, terminal, preview
	verbPoke   verb = "poke"   // input and signals of a process
	verbPause  verb = "pause"  //
	verbStart  verb = "start"  // boots, or wakes a paused one
	verbWake   verb = "wake"   // never boots
	verbStop   verb = "stop"   //
	verbFork   verb = "fork"   //
	verbSnap   verb = "snap"   // snapshot
	verbSwitch verb = "switch" // switchImage
	verbUpdate verb = "update" // update, timeout, extend
	verbDelete verb = "delete" //
)

// answer is what the operation table says.
type answer string

// The cells of the operation table.
const (
	do      answer = "do"
	wait    answer = "wait"    // for the transition under way, up to the call's time, then BUSY
	onward  answer = "onward"  // wait for the transition under way, then look again
	wake    answer = "wake"    // memory and processes come back
	boot    answer = "boot"    // a fresh boot on the kept disk
	nothing answer = "nothing" // it is so already
	join    answer = "join"    // wait for the transition under way and take its result
	busy    answer = "busy"
	invalid answer = "invalid"
)

// decide is the operation table: what a verb does in a state. Deleted sandboxes are not found before this is asked.
func decide(v verb, state string) answer {
	switch state {
	case api.StateCreating, api.StateStarting, api.StateWaking:
		return pick(v, map[verb]answer{
			verbUse: wait, verbPoke: busy, verbPause: busy, verbStart: join, verbWake: join, verbStop: busy,
			verbFork: busy, verbSnap: busy, verbSwitch: busy, verbUpdate: do, verbDelete: do,
		})
	case api.StateRunning:
		return pick(v, map[verb]answer{
			verbUse: do, verbPoke: do, verbPause: do, verbStart: nothing, verbWake: nothing, verbStop: do,
			verbFork: do, verbSnap: do, verbSwitch: do, verbUpdate: do, verbDelete: do,
		})
	case api.StatePausing:
		return pick(v, map[verb]answer{
			verbUse: onward, verbPoke: onward, verbPause: join, verbStart: onward, verbWake: onward, verbStop: join,
			verbFork: busy, verbSnap: busy, verbSwitch: busy, verbUpdate: do, verbDelete: do,
		})
	case api.StateStopping:
		return pick(v, map[verb]answer{
			verbUse: onward, verbPoke: onward, verbPause: busy, verbStart: onward, verbWake: onward, verbStop: join,
			verbFork: busy, verbSnap: busy, verbSwitch: busy, verbUpdate: do, verbDelete: do,
		})
	case api.StatePaused:
		return pick(v, map[verb]answer{
			verbUse: wake, verbPoke: wake, verbPause: nothing, verbStart: wake, verbWake: wake, verbStop: do,
			verbFork: do, verbSnap: do, verbUpdate: do, verbDelete: do,
		})
	case api.StateStopped:
		return pick(v, map[verb]answer{
			verbUse: boot, verbPoke: invalid, verbPause: invalid, verbStart: boot, verbStop: nothing,
			verbFork: invalid, verbSnap: do, verbSwitch: do, verbUpdate: do, verbDelete: do,
		})
	case api.StateFailed:
		return pick(v, map[verb]answer{verbStop: nothing, verbDelete: do})
	case api.StateDeleting:
		return pick(v, map[verb]answer{verbDelete: join})
	}
	return invalid
}

func pick(v verb, cells map[verb]answer) answer {
	if a, ok := cells[v]; ok {
		return a
	}
	return invalid
}

// usage is what a sandbox in a state takes from the organization's quotas: its disk for as long as it exists, the rest while it may run.
func (r *row) usage(state string) map[string]int64 {
	u := map[string]int64{}
	if state != api.StateDeleted && state != "" {
		u["sandboxes.total"] = 1
		u["disk.total"] = r.DiskGiB
	}
	switch state {
	case api.StateCreating, api.StateRunning, api.StatePausing, api.StateWaking, api.StateStopping, api.StateStarting:
		u["sandboxes.running"] = 1
		u["vcpu.running"] = r.VCPUMilli
		u["memory.running"] = r.MemoryMiB
	}
	return u
}

// usageDelta is what a transition takes (positive) and gives back (negative).
func (r *row) usageDelta(from, to string) map[string]int64 {
	d := r.usage(to)
	for k, v := range r.usage(from) {
		d[k] -= v
	}
	for k, v := range d {
		if v == 0 {
			delete(d, k)
		}
	}
	return d
}

func errBusy(r *row) error {
	return errs.E(errs.Busy, "the sandbox is %s", r.State).Because(r.State).After(2*time.Second).
		Suggest("Call again in a few seconds with the same idempotencyKey.").With("state", r.State)
}

func errInvalidState(r *row, v verb) error {
	e := errs.E(errs.InvalidState, "a sandbox that is %s cannot do this", r.State).Because(r.State).With("state", r.State)
	switch {
	case r.State == api.StateFailed:
		return e.Suggest("It failed: %s. Delete it and create another.", r.Error)
	case r.State == api.StateDeleting:
		return e.Suggest("It is being deleted and does not come back. Create another.")
	case r.State == api.StateStopped && v == verbWake:
		return e.Suggest("It keeps no memory. start_sandbox boots it on its disk.")
	case r.State == api.StateStopped && v == verbPause:
		return e.Suggest("It uses neither CPU nor memory already.")
	case r.State == api.StateStopped && v == verbFork:
		return e.Suggest("Start it first, or take a snapshot of its disk with snapshot_sandbox and create from that.")
	case v == verbSwitch:
		return e.Suggest("Wake it or stop it first: what it has in memory is of its present image.")
	case v == verbPoke:
		return e.Suggest("Its processes ended when it stopped. Read their output with read_process_output, or start it and a new process.")
	default:
		return e.Suggest("Read the sandbox and bring it into another state first.")
	}
}

func errNoBoot(r *row) error {
	if e := errNoMemory(r); e != nil {
		return e
	}
	if r.State == api.StateFailed && r.StopReason == diskFull {
		return errs.E(errs.NoCapacity, "the sandbox was not made: %s", r.Error).Because(diskFull).With("sandboxId", r.ID).After(10 * time.Second).
			Suggest("Delete snapshots, volumes or sandboxes that are not needed, or have the operator add room; then try again with a new idempotencyKey.")
	}
	return errs.E(errs.Upstream, "the sandbox did not boot: %s", r.Error).Because("boot_failed").
		Suggest("Read the sandbox for details; try again with a new idempotencyKey, or create another.").With("sandboxId", r.ID)
}

func errAsleep(r *row) error {
	return errs.E(errs.InvalidState, "the sandbox is %s and this call may not start it", r.State).Because("asleep").With("state", r.State).
		Suggest("Start it with %s, from a credential and endpoint that may, then call again.", wakingTool(r))
}

func wakingTool(r *row) string {
	if r.State == api.StatePaused {
		return "resume_sandbox"
	}
	return "start_sandbox"
}

// errDeletedMeanwhile is the error of a call under which its sandbox was deleted.
func errDeletedMeanwhile(id string) error {
	return errs.E(errs.NotFound, "the sandbox %s was deleted while the call ran", id).Because("deleted").
		Suggest("Nothing of it is left. Create another one.").With("sandboxId", id)
}

// errPausedMeanwhile is the error of a call under which its sandbox was paused, by the state that it is in since.
func errPausedMeanwhile(state string) error {
	return errs.E(errs.Busy, "the sandbox was paused while the call ran").Because(api.StatePaused).After(time.Second).With("state", state).
		Suggest("What ran is kept with its memory. Call again with the same idempotencyKey: it wakes and the call goes on.")
}

func errNotFound(id string) error {
	return errs.E(errs.NotFound, "there is no sandbox %s", id).Suggest("Check the id; list_sandboxes shows which exist.")
}
