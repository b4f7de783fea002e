package process

import (
	"cmp"
	"context"
	"encoding/base64"
	"slices"
	"time"

	"github.com/berthrun/berth/api"
	"github.com/berthrun/berth/api/op"
	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/guest"
	"github.com/berthrun/berth/internal/id"
)

func (s *Service) draftStart(ctx context.Context, in *api.StartProcessIn) (*op.Draft, error) {
	st, err := command(&in.CommandIn)
	if err != nil {
		return nil, err
	}
	st.Background, st.OpenStdin, st.TimeoutMS = true, in.OpenStdin, int64(in.TimeoutSeconds)*1000
	if in.PTY {
		st.PTY = &guest.Size{Cols: orInt(in.Cols, 80), Rows: orInt(in.Rows, 24)}
	}
	d, err := s.draft(ctx, in.SandboxID)
	if err != nil {
		return nil, err
	}
	d.Process, d.Data = id.New(id.Process), st
	return d, nil
}

func (s *Service) intentStart(ctx context.Context, tx op.Tx, in *api.StartProcessIn, d *op.Draft) error {
	st := d.Data.(guest.Start)
	return s.remember(ctx, tx, d.Resource.OrgID, api.Process{
		ID: d.Process, SandboxID: in.SandboxID, Command: shown(st), Cwd: st.Cwd, User: st.User, Background: true, PTY: in.PTY,
		State: "running", StartedAt: s.Now().UTC(),
	})
}

func (s *Service) actStart(ctx context.Context, in *api.StartProcessIn, d *op.Draft) (*api.ProcessOut, error) {
	g, woke, err := s.Sandboxes.Awake(ctx, in.SandboxID)
	if err != nil {
		s.neverStarted(ctx, in.SandboxID, d.Process)
		return nil, err
	}
	st := d.Data.(guest.Start)
	st.ID = d.Process
	p, err := g.StartProcess(ctx, st)
	if err != nil {
		if c := errs.CodeOf(err); c == errs.InvalidInput || c == errs.InvalidState || c == errs.Forbidden || c == errs.LimitExceeded {
			s.neverStarted(ctx, in.SandboxID, d.Process) // the guest refused it
		}
		return nil, errs.Woke(s.Sandboxes.Explain(ctx, in.SandboxID, err), woke)
	}
	// Where an earlier try with this key found its sandbox not ready, the row was taken away again.
	if _, err := s.stored(ctx, in.SandboxID, p.ID); errs.Is(err, errs.NotFound) {
		if err := s.remember(ctx, s.DB, d.Resource.OrgID, show(in.SandboxID, p)); err != nil {
			return nil, err
		}
	}
	return &api.ProcessOut{Process: show(in.SandboxID, p), Woke: woke}, nil
}

// neverStarted removes the row of a process that was intended and could not be: else it would seem to run.
func (s *Service) neverStarted(ctx context.Context, sandboxID, id string) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	if err := s.forgetOne(ctx, sandboxID, id); err != nil {
		s.Logger.Warn("row of a refused process not removed", "process", id, "error", err)
	}
}

// shown is a command as listings show it.
func shown(st guest.Start) string {
	if st.Command != "" {
		return clip(st.Command, 4096)
	}
	all := ""
	for _, a := range st.Argv {
		all += a + " "
	}
	return clip(all, 4096)
}

func clip(s string, n int) string {
	if len(s) <= n {
		return s
	}
	return valid(guest.WholeRunes([]byte(s[:n])))
}

func (s *Service) actGet(ctx context.Context, in *api.ProcessIn, _ *op.Draft) (*api.GetProcessOut, error) {
	p, err := s.process(ctx, in)
	if err != nil {
		return nil, err
	}
	return &api.GetProcessOut{Process: p}, nil
}

// process gives one process: the guest's where it runs and knows it, else what is stored.
func (s *Service) process(ctx context.Context, in *api.ProcessIn) (api.Process, error) {
	g, err := s.Sandboxes.Live(ctx, in.SandboxID)
	if err != nil {
		return api.Process{}, err
	}
	if g != nil {
		p, err := g.Process(ctx, in.ProcessID)
		if err == nil {
			return show(in.SandboxID, p), nil
		}
		if !errs.Is(err, errs.NotFound) {
			return api.Process{}, s.Sandboxes.Explain(ctx, in.SandboxID, err)
		}
	}
	st, err := s.stored(ctx, in.SandboxID, in.ProcessID)
	if err != nil {
		return api.Process{}, err
	}
	return asLost(st.info, g != nil), nil
}

// asLost marks a stored process that is said to run although its guest does not know it.
func asLost(p api.Process, live bool) api.Process {
	if live && p.State == "running" {
		p.State = "lost"
	}
	return p
}

func (s *Service) actList(ctx context.Context, in *api.ListProcessesIn, _ *op.Draft) (*api.ListProcessesOut, error) {
	bound := *in
	bound.Cursor, bound.Limit = "", 0
	after, err := op.DecodeCursor(in.Cursor, bound, 2)
	if err != nil {
		return nil, err
	}
	all, err := s.all(ctx, in.SandboxID)
	if err != nil {
		return nil, err
	}
	key := func(p api.Process) string { return p.StartedAt.UTC().Format("2006-01-02T15:04:05.000000000Z") }
	slices.SortFunc(all, func(a, b api.Process) int { return cmp.Or(cmp.Compare(key(b), key(a)), cmp.Compare(b.ID, a.ID)) })
	out := &api.ListProcessesOut{}
	limit := orInt(in.Limit, 20)
	for _, p := range all {
		if in.State != "" && p.State != in.State {
			continue
		}
		if after != nil && cmp.Or(cmp.Compare(key(p), after[0]), cmp.Compare(p.ID, after[1])) >= 0 {
			continue
		}
		if len(out.Items) == limit {
			last := out.Items[limit-1]
			out.NextCursor = op.EncodeCursor(bound, key(last), last.ID)
			break
		}
		out.Items = append(out.Items, p)
	}
	return out, nil
}

// all gives the processes of a sandbox, those of the guest before those that are stored.
func (s *Service) all(ctx context.Context, sandboxID string) ([]api.Process, error) {
	g, err := s.Sandboxes.Live(ctx, sandboxID)
	if err != nil {
		return nil, err
	}
	var all []api.Process
	known := map[string]bool{}
	if g != nil {
		live, err := g.Processes(ctx)
		if err != nil {
			return nil, s.Sandboxes.Explain(ctx, sandboxID, err)
		}
		for _, p := range live {
			known[p.ID] = true
			all = append(all, show(sandboxID, p))
		}
	}
	rows, err := s.storedAll(ctx, sandboxID)
	if err != nil {
		return nil, err
	}
	for _, r := range rows {
		if !known[r.info.ID] {
			all = append(all, asLost(r.info, g != nil))
		}
	}
	return all, nil
}

func (s *Service) actOutput(ctx context.Context, in *api.ProcessOutputIn, _ *op.Draft) (*api.ProcessOutputOut, error) {
	limit := orInt(in.Limit, guest.OutputBytes)
	wait := time.Duration(in.WaitSeconds) * time.Second
	if deadline, ok := ctx.Deadline(); ok {
		wait = max(0, min(wait, time.Until(deadline)-answerTime))
	}
	r, err := s.read(ctx, &in.ProcessIn, cmp.Or(in.Stream, "stdout"), in.Offset, limit, wait)
	if err != nil {
		return nil, err
	}
	return outputOut(r.process, r.data, r.offset, r.next, r.earliest, r.eof), nil
}

// reading is a part of a stream.
type reading struct {
	process                api.Process
	data                   []byte
	offset, next, earliest int64
	eof                    bool
	live                   bool // it came from the guest, which has waited
}

// read reads a part of a stream: from the guest where it runs and knows the process, else from what is stored.
func (s *Service) read(ctx context.Context, in *api.ProcessIn, stream string, offset int64, limit int, wait time.Duration) (reading, error) {
	g, err := s.Sandboxes.Live(ctx, in.SandboxID)
	if err != nil {
		return reading{}, err
	}
	if g != nil {
		back := func() {}
		if wait > 0 {
			back = op.Yield(ctx)
		}
		o, err := g.Output(ctx, in.ProcessID, guest.OutputQuery{Stream: stream, Offset: offset, Limit: limit, Wait: wait})
		back()
		if err == nil {
			return reading{show(in.SandboxID, o.Process), o.Data, o.Offset, o.Next, o.Earliest, o.EOF, true}, nil
		}
		if !errs.Is(err, errs.NotFound) {
			return reading{}, s.Sandboxes.Explain(ctx, in.SandboxID, err)
		}
	}
	return s.storedOutput(ctx, in, stream, offset, limit, g != nil)
}

func outputOut(p api.Process, data []byte, offset, next, earliest int64, eof bool) *api.ProcessOutputOut {
	out := &api.ProcessOutputOut{Offset: offset, EarliestOffset: earliest, EOF: eof, Process: p}
	used := 0
	out.Data, out.Encoding, used = encode(data, eof)
	out.NextOffset = next - int64(len(data)-used)
	return out
}

func (s *Service) actInput(ctx context.Context, in *api.ProcessInputIn, d *op.Draft) (*api.ProcessInputOut, error) {
	data := []byte(in.Data)
	if in.Encoding == "base64" {
		var err error
		if data, err = base64.StdEncoding.DecodeString(in.Data); err != nil {
			return nil, errs.E(errs.InvalidInput, "data is not valid base64").With("path", "data")
		}
	}
	g, err := s.Sandboxes.Running(ctx, in.SandboxID)
	if err != nil {
		return nil, err
	}
	n, err := g.Input(ctx, d.Once, in.ProcessID, guest.Input{Data: data, EOF: in.EOF})
	if err != nil {
		return nil, s.why(ctx, in.ProcessIn, err)
	}
	return &api.ProcessInputOut{BytesWritten: int64(n)}, nil
}

func (s *Service) actSignal(ctx context.Context, in *api.ProcessSignalIn, d *op.Draft) (*api.ProcessSignalOut, error) {
	g, err := s.Sandboxes.Running(ctx, in.SandboxID)
	if err != nil {
		return nil, err
	}
	p, err := g.Signal(ctx, d.Once, in.ProcessID, in.Signal)
	if err != nil {
		return nil, s.why(ctx, in.ProcessIn, err)
	}
	return &api.ProcessSignalOut{Process: show(in.SandboxID, p)}, nil
}

// why tells of a process that the guest does not know whether it was there before the sandbox's last start.
func (s *Service) why(ctx context.Context, in api.ProcessIn, err error) error {
	if !errs.Is(err, errs.NotFound) {
		return s.Sandboxes.Explain(ctx, in.SandboxID, err)
	}
	if _, serr := s.stored(ctx, in.SandboxID, in.ProcessID); serr != nil {
		return serr
	}
	return errs.E(errs.InvalidState, "the process ended when its sandbox stopped").Because("ended").Suggest("Read its output, or start it again.")
}

func orInt(n, def int) int {
	if n == 0 {
		return def
	}
	return n
}

// Started notes a process that outlives the call that started it, such as a terminal: what is kept of it must be found once its sandbox is gone.
func (s *Service) Started(ctx context.Context, orgID, sandboxID string, p guest.Process) error {
	return s.remember(ctx, s.DB, orgID, show(sandboxID, p))
}
