package supervisor

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"gvisor.dev/gvisor/runsc/container"
)

// align makes a kernel that was taken back stand still or go on, as its record says. The process before this one may have been killed between a word to the
// kernel, gVisor's note of it and ours, so that neither note is believed: a kernel that is let go on though it does not stand still ends.
func align(l *live, stand bool) error {
	stands, err := standsStill(l.cont)
	if err != nil {
		return err
	}
	noted := l.cont.Status == container.Paused
	box, id := l.cont.Sandbox, l.cont.ID
	switch {
	case stands == stand && noted == stand:
		return nil
	case stands == noted && stand:
		return l.cont.Pause()
	case stands == noted:
		return l.cont.Resume()
	case stand && stands: // it is noted as running, and gVisor pauses only what is
		return errors.Join(box.Resume(id), l.cont.Pause())
	case stand:
		return box.Pause(id)
	case stands:
		return box.Resume(id)
	default: // it is noted as paused, and gVisor lets only what is go on
		return errors.Join(box.Pause(id), l.cont.Resume())
	}
}

// standsStill reports whether a kernel stands still. gVisor has no call that tells, but what its goroutines do does: each of a task waits in doStop then. A word
// to it may have been on its way, so that it is asked until two answers agree.
func standsStill(cont *container.Container) (bool, error) {
	const asked = 20
	last := false
	for i := range asked {
		text, err := cont.Sandbox.Stacks()
		if err != nil {
			return false, fmt.Errorf("ask what the sandbox does: %w", err)
		}
		now := allStopped(text)
		if i > 0 && now == last {
			return now, nil
		}
		last = now
		time.Sleep(2 * time.Millisecond)
	}
	return false, errors.New("the sandbox does not settle")
}

// allStopped reads the stacks of a sandbox's goroutines.
func allStopped(stacks string) bool {
	tasks := 0
	for g := range strings.SplitSeq(stacks, "\n\n") {
		if !strings.Contains(g, "kernel.(*Task).run(") {
			continue
		}
		if !strings.Contains(g, "kernel.(*Task).doStop(") {
			return false
		}
		tasks++
	}
	return tasks > 0
}
