// Package process owns commands and processes in sandboxes: running them, their output, input and signals, and what is kept of them once their sandbox
// has stopped.
//
// It does not own sandboxes' states: it asks for a guest, and gets one or a reason why not.
package process

import (
	"context"
	"io"
	"log/slog"
	"strings"
	"time"

	"github.com/berthrun/berth/api"
	"github.com/berthrun/berth/api/op"
	"github.com/berthrun/berth/internal/db"
	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/guest"
)

// Sandboxes gives the guests of sandboxes of the caller's organization.
type Sandboxes interface {
	// Resource gives the sandbox as authorization sees it, or errs.NotFound.
	Resource(ctx context.Context, id string) (op.Resource, error)
	// Awake gives the guest of a sandbox, which is started where it must and may be; woke says how.
	Awake(ctx context.Context, id string) (g *guest.Client, woke string, err error)
	// Running gives the guest of a running sandbox, or an error that says why it is none.
	Running(ctx context.Context, id string) (*guest.Client, error)
	// Live gives the guest of a running sandbox, else nil.
	Live(ctx context.Context, id string) (*guest.Client, error)
	// Explain gives the error of a call on a guest a better one where the sandbox died under it.
	Explain(ctx context.Context, id string, err error) error
	// Ever gives the sandbox as authorization sees it, a deleted one too for a while, or errs.NotFound.
	Ever(ctx context.Context, id string) (op.Resource, error)
	// Story gives what happened to a sandbox, oldest first, and its guest where it runs, else nil.
	Story(ctx context.Context, id string) ([]api.LogLine, *guest.Client, error)
}

// Blobs keeps streams.
type Blobs interface {
	Put(ctx context.Context, key string, r io.Reader) error
	// GetRange opens length bytes of a stream from an offset on.
	GetRange(ctx context.Context, key string, offset, length int64) (io.ReadCloser, error)
	DeletePrefix(ctx context.Context, prefix string) error
}

// Config is what the service is made of.
type Config struct {
	DB        *db.DB
	Sandboxes Sandboxes
	Blobs     Blobs
	Now       func() time.Time
	Logger    *slog.Logger
}

// Service runs commands and processes.
type Service struct {
	Config
	reading   chan struct{} // holds one for each log that is being read
	followers followers
}

// New makes the service.
func New(c Config) *Service {
	if c.Now == nil {
		c.Now = time.Now
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	return &Service{Config: c, reading: make(chan struct{}, logsAtOnce)}
}

// Register binds the operations on commands and processes.
func (s *Service) Register(r *op.Registry) {
	op.Handle(r, api.Exec, op.Handler[api.ExecIn, api.ExecOut]{Draft: s.draftExec, Act: s.actExec})
	op.Handle(r, api.StartProcess, op.Handler[api.StartProcessIn, api.ProcessOut]{Draft: s.draftStart, Intent: s.intentStart, Act: s.actStart})
	op.Handle(r, api.ListProcesses, op.Handler[api.ListProcessesIn, api.ListProcessesOut]{
		Draft: func(ctx context.Context, in *api.ListProcessesIn) (*op.Draft, error) {
			return s.draft(ctx, in.SandboxID)
		}, Act: s.actList,
	})
	op.Handle(r, api.GetProcess, op.Handler[api.ProcessIn, api.GetProcessOut]{
		Draft: func(ctx context.Context, in *api.ProcessIn) (*op.Draft, error) { return s.draft(ctx, in.SandboxID) }, Act: s.actGet,
	})
	op.Handle(r, api.ProcessOutput, op.Handler[api.ProcessOutputIn, api.ProcessOutputOut]{
		Draft: func(ctx context.Context, in *api.ProcessOutputIn) (*op.Draft, error) {
			return s.draft(ctx, in.SandboxID)
		}, Act: s.actOutput,
	})
	op.Handle(r, api.SandboxLogs, op.Handler[api.SandboxLogsIn, api.SandboxLogsOut]{
		Draft: func(ctx context.Context, in *api.SandboxLogsIn) (*op.Draft, error) {
			res, err := s.Sandboxes.Ever(ctx, in.SandboxID)
			if err != nil {
				return nil, err
			}
			return &op.Draft{Resource: res}, nil
		}, Act: s.actLogs,
	})
	op.HandleStream(r, api.FollowProcess, op.StreamHandler[api.FollowProcessIn]{
		Draft: func(ctx context.Context, in *api.FollowProcessIn) (*op.Draft, error) {
			return s.draft(ctx, in.SandboxID)
		}, Serve: s.serveFollow,
	})
	op.Handle(r, api.ProcessInput, op.Handler[api.ProcessInputIn, api.ProcessInputOut]{
		Draft: func(ctx context.Context, in *api.ProcessInputIn) (*op.Draft, error) {
			return s.draft(ctx, in.SandboxID)
		}, Act: s.actInput,
	})
	op.Handle(r, api.ProcessSignal, op.Handler[api.ProcessSignalIn, api.ProcessSignalOut]{
		Draft: func(ctx context.Context, in *api.ProcessSignalIn) (*op.Draft, error) {
			return s.draft(ctx, in.SandboxID)
		}, Act: s.actSignal,
	})
}

func (s *Service) draft(ctx context.Context, sandboxID string) (*op.Draft, error) {
	r, err := s.Sandboxes.Resource(ctx, sandboxID)
	if err != nil {
		return nil, err
	}
	return &op.Draft{Resource: r}, nil
}

// command checks what is to be run and makes the guest's request of it.
func command(in *api.CommandIn) (guest.Start, error) {
	st := guest.Start{Command: in.Command, Argv: in.Argv, Cwd: in.Cwd, Env: in.Env, User: in.User}
	if (in.Command == "") == (len(in.Argv) == 0) {
		return st, errs.E(errs.InvalidInput, "give exactly one of command and argv").
			Suggest("command is a string for the shell, argv a list of program and arguments.").With("path", "command")
	}
	total := len(in.Command)
	for _, a := range in.Argv {
		total += len(a)
		if strings.ContainsRune(a, 0) {
			return st, errs.E(errs.InvalidInput, "argv must not hold NUL").With("path", "argv")
		}
	}
	for k, v := range in.Env {
		total += len(k) + len(v)
		if k == "" || strings.ContainsAny(k, "=\x00") || strings.ContainsRune(v, 0) {
			return st, errs.E(errs.InvalidInput, "env has a name or value that no process can take").With("path", "env")
		}
	}
	if strings.ContainsRune(in.Command, 0) || strings.ContainsRune(in.Cwd, 0) {
		return st, errs.E(errs.InvalidInput, "command and cwd must not hold NUL").With("path", "command")
	}
	if total > guest.MaxEnvBytes {
		return st, errs.E(errs.InvalidInput, "command, arguments and environment hold more than %d bytes", guest.MaxEnvBytes).
			Suggest("Write the data to a file with write_file, or pass it as stdin.").With("path", "command")
	}
	return st, nil
}

// show is a guest's process as callers see it.
func show(sandboxID string, p guest.Process) api.Process {
	out := api.Process{
		ID: p.ID, SandboxID: sandboxID, Command: p.Command, Cwd: p.Cwd, User: p.User, Background: p.Background, PTY: p.PTY, State: "running",
		Signal: p.Signal, TimedOut: p.TimedOut, OutOfMemory: p.OutOfMemory, StartedAt: p.StartedAt.UTC(), StdoutBytes: p.StdoutBytes, StderrBytes: p.StderrBytes,
	}
	if !p.Running {
		code, ended := p.ExitCode, p.EndedAt.UTC()
		out.State, out.ExitCode, out.EndedAt = "exited", &code, &ended
	}
	return out
}

func errNoProcess(id string) error {
	return errs.E(errs.NotFound, "there is no process %s in the sandbox", id).Suggest("list_processes shows which there are.")
}
