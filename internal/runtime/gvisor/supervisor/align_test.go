package supervisor

import "testing"

// A kernel stands still where each of its tasks waits to be let go on, and it has some.
func TestAllStopped(t *testing.T) {
	const (
		other   = "goroutine 1 [select]:\nmain.main()\n"
		waiting = "goroutine 7 [sync.Cond.Wait]:\nsync.(*Cond).Wait(0x1)\ngvisor.dev/gvisor/pkg/sentry/kernel.(*Task).doStop(0x2)\ngvisor.dev/gvisor/pkg/sentry/kernel.(*Task).run(0x2, 0x1)\n"
		busy    = "goroutine 8 [select]:\ngvisor.dev/gvisor/pkg/sentry/kernel.(*Task).block(0x3)\ngvisor.dev/gvisor/pkg/sentry/kernel.(*Task).run(0x3, 0x2)\n"
	)
	for name, tt := range map[string]struct {
		stacks string
		want   bool
	}{
		"all wait":    {other + "\n" + waiting + "\n" + waiting, true},
		"one is busy": {waiting + "\n" + other + "\n" + busy, false},
		"no tasks":    {other, false},
		"nothing":     {"", false},
	} {
		if got := allStopped(tt.stacks); got != tt.want {
			t.Errorf("%s: %t, want %t", name, got, tt.want)
		}
	}
}
