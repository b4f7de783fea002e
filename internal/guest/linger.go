//go:build linux

package guest

import (
	"syscall"
	"time"
)

// attached counts who follows a process, for one that ends when nobody does.
type attached struct {
	count  int
	linger *Linger
	timer  *time.Timer
}

// joined notes one more attachment.
func (p *process) joined() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.attached.count++
	p.followed = true
	if p.attached.timer != nil {
		p.attached.timer.Stop()
		p.attached.timer = nil
	}
}

// hold keeps a process from writing more than its spools hold until the first attachment follows it.
func (p *process) hold() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.followed = true
	p.held = [2]*follower{p.stdout.follow(0), p.stderr.follow(0)}
}

// letGo ends the hold.
func (p *process) letGo() {
	p.mu.Lock()
	held := p.held
	p.held = [2]*follower{}
	p.mu.Unlock()
	if held[0] != nil {
		p.stdout.unfollow(held[0])
		p.stderr.unfollow(held[1])
	}
}

// left notes that an attachment is over: broken off, or because the process has ended. The last one that is broken off begins the wait for the
// end of a process that does not outlive it.
func (p *process) left(broken bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.attached.count--
	if p.attached.count > 0 || p.attached.linger == nil {
		return
	}
	if p.hasEnded {
		if p.pty == nil {
			p.release() // only whoever was attached wanted it
		}
		return
	}
	if broken {
		p.attached.timer = time.AfterFunc(time.Duration(p.attached.linger.AfterMS)*time.Millisecond, p.hangUp)
	}
}

// hangUp asks a process that nobody is attached to any more to end, and kills it where it does not.
func (p *process) hangUp() {
	p.mu.Lock()
	if p.attached.count > 0 || p.reaped {
		p.mu.Unlock()
		return
	}
	p.attached.timer = time.AfterFunc(hangupGrace, func() {
		p.mu.Lock()
		again := p.attached.count > 0
		p.mu.Unlock()
		switch {
		case again:
		case p.pty == nil:
			p.killHolders()
		default:
			_ = p.kill()
		}
	})
	p.mu.Unlock()
	if p.pty == nil {
		p.signalHolders(syscall.SIGHUP, syscall.SIGCONT)
		p.input.close()
		return
	}
	_ = p.signal(syscall.SIGHUP)
	_ = p.signal(syscall.SIGCONT) // one that is stopped would not see the HUP
}
