package supervisor

import (
	goruntime "runtime"
	"time"

	"github.com/berthrun/berth/internal/runtime"
	"github.com/berthrun/berth/internal/runtime/gvisor/cgroup"
)

// pidsBackstop is the limit of host tasks where a sandbox has none of its own. Reaching it ends the whole sandbox, as gVisor cannot go on
// without a thread, so it is far above what the guest allows: a process inside is about two tasks here.
const pidsBackstop = 1 << 15

// limits are those of a sandbox's group. gVisor's own kernel and file server need some memory beside what the sandbox is told that it has;
// what is not left for them would be taken from it.
func limits(r runtime.Resources) cgroup.Limits {
	own := 128 + r.MemoryMiB/8
	l := cgroup.Limits{VCPU: r.VCPU, MemoryBytes: (r.MemoryMiB + own) << 20, Pids: pidsBackstop}
	if r.Pids > 0 {
		l.Pids = max(pidsBackstop, 4*r.Pids)
	}
	return l
}

// bootTime is how long a sandbox may use the whole machine's CPUs to boot: its kernel starts with several threads at once, and an own share would
// only make it late.
const bootTime = 2 * time.Second

func bootLimits(r runtime.Resources) cgroup.Limits {
	l := limits(r)
	l.VCPU = max(l.VCPU, float64(goruntime.NumCPU()))
	return l
}

// limitSoon holds a sandbox to its share of CPU time once it has had its time to boot. The limits are those it has by then.
func (s *Supervisor) limitSoon(sb *sandbox, l *live, booted runtime.Resources) {
	if bootLimits(booted) == limits(booted) {
		return
	}
	s.work.Go(func() {
		select {
		case <-time.After(bootTime):
		case <-l.dead:
			return // or this process ends: whoever takes the sandbox back sets its limits
		}
		r, ok := sb.record()
		if !ok {
			return
		}
		if err := s.groups.Update(sb.id, limits(r.Spec.Resources)); err != nil {
			s.log.Warn("limits not set after the boot", "sandbox", sb.id, "error", err)
		}
	})
}
