//go:build linux

package guest

import (
	"context"
	"os"
	"strconv"
	"sync"
	"syscall"
	"time"
)

// process is one that was started here, from its start until it is forgotten.
type process struct {
	id         string
	command    string
	cwd        string
	user       string
	pid        int // of the main process, its group and its session
	background bool
	pty        *terminal
	startedAt  time.Time
	stdout     *spool
	stderr     *spool
	out, err   *stream // what is read from; err is nil on a terminal
	timer      *time.Timer

	started chan struct{} // closed once the fields above are set or failed is
	failed  error         // why it could not be started
	ended   chan struct{} // closed once the main process has ended and what it wrote is in the spools

	input *input

	mu          sync.Mutex
	timedOut    bool
	outOfMemory bool // a part of it was killed as the sandbox's memory was used up
	reaped      bool // its pid may be another's now
	followed    bool // someone is or was attached
	attached    attached
	held        [2]*follower
	exit        exit
	endedAt     time.Time
	hasEnded    bool
}

// exit is how a process ended.
type exit struct {
	code   int
	signal string
}

// exitOf translates a wait status: 128 and the number where a signal ended it.
func exitOf(ws syscall.WaitStatus) exit {
	if ws.Signaled() {
		return exit{128 + int(ws.Signal()), signalName(ws.Signal())}
	}
	return exit{code: ws.ExitStatus()}
}

// reap is called with the wait status as soon as the main process has ended. What it wrote is read before anyone is told; with patient, as fast as
// whoever is attached takes it.
func (p *process) reap(ws syscall.WaitStatus, now time.Time, patient bool) {
	if p.timer != nil {
		p.timer.Stop()
	}
	p.out.drain(patient)
	p.err.drain(patient)
	p.mu.Lock()
	p.exit, p.endedAt, p.hasEnded = exitOf(ws), now, true
	if p.attached.timer != nil {
		p.attached.timer.Stop()
	}
	p.mu.Unlock()
	p.input.close()
	close(p.ended)
	p.stdout.poke()
	p.stderr.poke()
}

// running reports whether it has not ended.
func (p *process) running() bool {
	select {
	case <-p.ended:
		return false
	default:
		return true
	}
}

// wait waits for the end, at most until the context ends or d has passed; a negative d is without limit.
func (p *process) wait(ctx context.Context, d time.Duration) {
	if d == 0 || !p.running() {
		return
	}
	var late <-chan time.Time
	if d > 0 {
		t := time.NewTimer(d)
		defer t.Stop()
		late = t.C
	}
	select {
	case <-p.ended:
	case <-ctx.Done():
	case <-late:
	}
}

// state is what the host is told.
func (p *process) state() Process {
	p.mu.Lock()
	defer p.mu.Unlock()
	return Process{
		ID: p.id, Command: p.command, Cwd: p.cwd, User: p.user, PID: p.pid, Background: p.background, PTY: p.pty != nil,
		Running: !p.hasEnded, ExitCode: p.exit.code, Signal: p.exit.signal, TimedOut: p.hasEnded && p.timedOut, OutOfMemory: p.hasEnded && p.outOfMemory,
		StartedAt: p.startedAt, EndedAt: p.endedAt, StdoutBytes: p.stdout.size(), StderrBytes: p.stderr.size(),
	}
}

// stream gives the spool of a stream's name, or nil.
func (p *process) stream(name string) *spool {
	switch name {
	case "", "stdout":
		return p.stdout
	case "stderr":
		return p.stderr
	}
	return nil
}

// signal sends to the group of the main process, and to the terminal's foreground group.
func (p *process) signal(sig syscall.Signal) error {
	if sig == syscall.SIGKILL {
		return p.kill()
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.reaped {
		return fail(CodeEnded, "the process has ended")
	}
	if p.pty != nil {
		if fg := p.pty.foreground(); fg > 1 && fg != p.pid {
			_ = syscall.Kill(-fg, sig)
		}
	}
	return syscall.Kill(-p.pid, sig)
}

// kill ends the main process and everything that came from it: its session, its group and their descendants.
func (p *process) kill() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.reaped {
		return fail(CodeEnded, "the process has ended")
	}
	killTree(p.pid)
	return nil
}

// timeout is what the timer does.
func (p *process) timeout() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.reaped {
		p.timedOut = true
		killTree(p.pid)
	}
}

// wasFollowed reports whether someone is or was attached.
func (p *process) wasFollowed() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.followed
}

// markReaped takes the exit status of the main process while nothing can signal its pid.
func (p *process) markReaped(wait func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	wait()
	p.reaped = true
}

// release lets go of what the spools hold.
func (p *process) release() {
	p.stdout.drop()
	p.stderr.drop()
}

// signalName is a signal's name without SIG, or its number.
func signalName(sig syscall.Signal) string {
	for name, s := range signals {
		if s == sig {
			return name
		}
	}
	return strconv.Itoa(int(sig))
}

// closeAll closes the files that are not nil.
func closeAll(files ...*os.File) {
	for _, f := range files {
		if f != nil {
			_ = f.Close()
		}
	}
}
