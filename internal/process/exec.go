package process

import (
	"context"
	"time"

	"github.com/berthrun/berth/api"
	"github.com/berthrun/berth/api/op"
	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/guest"
	"github.com/berthrun/berth/internal/id"
)

const (
	defaultTimeout = 60 * time.Second
	// afterTimeout is how much longer than a command's own time its result is waited for.
	afterTimeout = 3 * time.Second
	// answerTime is what of a call's time is kept for answering.
	answerTime = 2 * time.Second
)

func (s *Service) draftExec(ctx context.Context, in *api.ExecIn) (*op.Draft, error) {
	st, err := command(&in.CommandIn)
	if err != nil {
		return nil, err
	}
	d, err := s.draft(ctx, in.SandboxID)
	if err != nil {
		return nil, err
	}
	d.Process, d.Data = id.New(id.Process), st
	return d, nil
}

func (s *Service) actExec(ctx context.Context, in *api.ExecIn, d *op.Draft) (*api.ExecOut, error) {
	g, woke, err := s.Sandboxes.Awake(ctx, in.SandboxID)
	if err != nil {
		return nil, err
	}
	timeout := defaultTimeout
	if in.TimeoutSeconds > 0 {
		timeout = time.Duration(in.TimeoutSeconds) * time.Second
	}
	st := d.Data.(guest.Start)
	st.ID, st.TimeoutMS = d.Process, timeout.Milliseconds()
	if in.Stdin != "" {
		st.Stdin = []byte(in.Stdin)
	}
	wait := timeout + afterTimeout
	if deadline, ok := ctx.Deadline(); ok {
		wait = max(0, min(wait, time.Until(deadline)-answerTime))
	}
	res, err := g.Exec(ctx, st, wait)
	if err != nil {
		return nil, errs.Woke(named(s.Sandboxes.Explain(ctx, in.SandboxID, err), d.Process), woke)
	}
	if res.Process.Running {
		// It outlives this call: what is stored of it must be found once its sandbox is gone.
		if err := s.remember(ctx, s.DB, d.Resource.OrgID, show(in.SandboxID, res.Process)); err != nil {
			return nil, err
		}
	}
	return execOut(res, woke), nil
}

// named gives the error of a command that may have been started the id under which its result can be read later.
func named(err error, process string) error {
	e := errs.From(err)
	switch e.Code {
	case errs.Timeout, errs.Unavailable, errs.HostUnavailable:
		copied := *e
		return copied.Suggest("It may run. Repeat the call with the same idempotencyKey, or read process %s later: do not run it anew before.", process).
			With("processId", process)
	}
	return err
}

func execOut(res guest.ExecResult, woke string) *api.ExecOut {
	p := res.Process
	out := &api.ExecOut{
		Running: p.Running, ProcessID: p.ID, TimedOut: p.TimedOut, OutOfMemory: p.OutOfMemory, Signal: p.Signal, StdoutBytes: res.Stdout.Total,
		StderrBytes: res.Stderr.Total, Woke: woke,
	}
	var cut api.OutputCut
	out.Stdout, cut.Stdout = text(res.Stdout)
	out.Stderr, cut.Stderr = text(res.Stderr)
	if cut.Stdout+cut.Stderr > 0 {
		out.Truncated, out.OutputCut = true, &cut
	}
	if !p.Running {
		code := p.ExitCode
		out.ExitCode = &code
		out.DurationMS = p.EndedAt.Sub(p.StartedAt).Milliseconds()
	}
	return out
}
