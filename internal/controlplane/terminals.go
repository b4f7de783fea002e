package controlplane

import (
	"github.com/berthrun/berth/internal/process"
	"github.com/berthrun/berth/internal/sshd"
	"github.com/berthrun/berth/internal/terminal"
)

// ways binds the ways of people into a sandbox: terminals and SSH.
func (p *Plane) ways(processes *process.Service) error {
	cfg := p.cfg
	p.terminals = terminal.New(terminal.Config{
		DB: p.db, Sandboxes: p.sandboxes, Processes: processes, Callers: p.identity, PublicURL: cfg.PublicURL, Linger: cfg.TerminalLinger,
		Recheck: cfg.Recheck, Now: cfg.Now, Logger: cfg.Logger,
	})
	p.terminals.Register(p.registry)
	var keys sshd.Keys = new(sshd.MemoryKeys)
	if cfg.SSHKeys != "" {
		keys = sshd.FileKeys(cfg.SSHKeys)
	}
	ssh, err := sshd.New(sshd.Config{
		Sandboxes: p.sandboxes, Callers: p.identity, Keys: keys, Recheck: cfg.Recheck, Now: cfg.Now, Logger: cfg.Logger,
	})
	if err != nil {
		return err
	}
	ssh.Register(p.registry)
	return nil
}
