package supervisor

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"gvisor.dev/gvisor/runsc/container"
)

// stateCopy is what gVisor's state of a sandbox was when it had booted. gVisor does not write its own file atomically: one that was cut off is made again of
// this. What has changed since, whether the kernel stands still, is not believed anyway.
const stateCopy = "gvisor.state"

func (s *Supervisor) keepState(sb *sandbox) error {
	b, err := os.ReadFile(s.stateFile(sb.id, "state"))
	if err == nil {
		err = os.WriteFile(filepath.Join(sb.dir, stateCopy), b, 0o600)
	}
	if err != nil {
		return fmt.Errorf("keep gvisor's state: %w", err)
	}
	return nil
}

// loadState reads gVisor's state of a boot, nil with an error where neither it nor its copy can be had.
func (s *Supervisor) loadState(sb *sandbox, r record) (*container.Container, error) {
	cont, err := s.readState(sb, r)
	if err == nil {
		return cont, nil
	}
	b, cerr := os.ReadFile(filepath.Join(sb.dir, stateCopy))
	if cerr != nil {
		return nil, errors.Join(err, cerr)
	}
	if cerr := os.WriteFile(s.stateFile(sb.id, "state"), b, 0o600); cerr != nil {
		return nil, errors.Join(err, cerr)
	}
	s.log.Info("gvisor's state was cut off", "sandbox", sb.id, "error", err)
	return s.readState(sb, r)
}

func (s *Supervisor) readState(sb *sandbox, r record) (*container.Container, error) {
	cont, err := container.Load(s.path("gvisor"), container.FullID{SandboxID: sb.id, ContainerID: sb.id}, container.LoadOpts{Exact: true, SkipCheck: true})
	if err != nil {
		return nil, err
	}
	if cont.Sandbox == nil || cont.SandboxPid() != r.Boot.PID {
		return nil, errors.New("it is of another boot")
	}
	return cont, nil
}
