package terminal

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"sync"
	"time"

	"github.com/coder/websocket"

	"github.com/berthrun/berth/api"
	"github.com/berthrun/berth/api/op"
	"github.com/berthrun/berth/internal/caller"
	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/guest"
)

const (
	startTime   = 15 * time.Second // for the client's first message
	pingEvery   = 20 * time.Second
	writeTime   = time.Hour // a reader may stop for a while: its process waits
	lastTime    = 5 * time.Second
	maxMessage  = 256 << 10
	maxStartEnv = guest.MaxEnvBytes
	streamOut   = 1 // begin the binary messages of a process without a terminal
	streamErr   = 2
)

// session is one connection to one process.
type session struct {
	*Service
	sandbox string
	conn    *websocket.Conn
	process *guest.Attached
	pipes   bool
	writing sync.Mutex // one message at a time, so that offsets stand before their bytes
	reading context.Context
	wg      sync.WaitGroup // of what reads from conn
}

// serve carries a terminal until its process or its connection ends.
func (s *Service) serve(ctx context.Context, in *api.TerminalIn, d *op.Draft, st *op.Stream) error {
	if err := s.admit(st.R); err != nil {
		return err
	}
	g, woke, err := s.Sandboxes.Awake(ctx, in.SandboxID)
	if err != nil {
		return err
	}
	attach := guest.Attach{ID: in.ProcessID, Stdout: in.Offset}
	if in.ProcessID != "" {
		p, err := g.Process(ctx, in.ProcessID)
		if err != nil {
			return s.Sandboxes.Explain(ctx, in.SandboxID, err)
		}
		if !p.PTY {
			return errs.E(errs.InvalidInput, "process %s has no terminal", p.ID).Because("no_terminal").With("path", "processId").
				Suggest("Read its output with processes.output.")
		}
	}
	conn, err := websocket.Accept(st.W, st.R, &websocket.AcceptOptions{InsecureSkipVerify: true}) // admit has looked at the origin
	if err != nil {
		return errs.Wrap(errs.InvalidInput, err, "the WebSocket handshake is not right").Because("not_websocket")
	}
	conn.SetReadLimit(maxMessage)
	// Reading goes on until the connection is closed in order: a read that is cancelled would break it off.
	reading, stop := context.WithCancel(context.WithoutCancel(ctx))
	ss := &session{Service: s, sandbox: in.SandboxID, conn: conn, reading: reading}
	err = ss.run(ctx, g, attach, d, woke)
	err = ss.close(ctx, err)
	stop()
	ss.wg.Wait()
	return err
}

// run starts or finds the process and carries its bytes.
func (s *session) run(ctx context.Context, g *guest.Client, attach guest.Attach, d *op.Draft, woke string) (err error) {
	if attach.ID == "" {
		if attach.Start, err = s.start(ctx, d.Process); err != nil {
			return err
		}
		s.pipes = attach.Start.PTY == nil
	}
	if s.process, err = g.Attach(ctx, attach); err != nil {
		return s.Sandboxes.Explain(ctx, s.sandbox, err)
	}
	defer s.process.Close()
	id := attach.ID
	if attach.Start != nil {
		id = attach.Start.ID
		if err := s.note(ctx, g, d.Resource.OrgID, id); err != nil {
			return err
		}
	}
	if err := s.say(ctx, "ready", api.TerminalReady{ProcessID: id, Offset: attach.Stdout, Woke: woke}); err != nil {
		return err
	}
	return s.carry(ctx, attach.Stdout)
}

// note writes down a terminal that outlives its connection.
func (s *session) note(ctx context.Context, g *guest.Client, org, id string) error {
	if s.pipes {
		return nil
	}
	p, err := g.Process(ctx, id)
	if err != nil {
		return s.Sandboxes.Explain(ctx, s.sandbox, err)
	}
	return s.Processes.Started(ctx, org, s.sandbox, p)
}

// start reads the first message: what to run.
func (s *session) start(ctx context.Context, id string) (*guest.Start, error) {
	ctx, cancel := context.WithTimeout(ctx, startTime)
	defer cancel()
	kind, body, err := s.conn.Read(ctx)
	if err != nil {
		return nil, lost(err)
	}
	var in struct {
		Type string `json:"type"`
		api.TerminalStart
	}
	if kind != websocket.MessageText || json.Unmarshal(body, &in) != nil || in.Type != "start" {
		return nil, errs.E(errs.InvalidInput, `the first message is not {"type":"start"}`).Because("no_start").
			Suggest(`Send {"type":"start","cols":80,"rows":24} as text first.`)
	}
	if in.Command != "" && len(in.Argv) > 0 {
		return nil, errs.E(errs.InvalidInput, "give at most one of command and argv").With("path", "command")
	}
	if len(in.User) > 64 || len(in.Cwd) > guest.MaxPathBytes || len(in.Env) > 256 {
		return nil, errs.E(errs.InvalidInput, "user, cwd or env is too long")
	}
	size := len(in.Command)
	for _, a := range in.Argv {
		size += len(a) + 1
	}
	for k, v := range in.Env {
		size += len(k) + len(v) + 2
	}
	if size > maxStartEnv {
		return nil, errs.E(errs.InvalidInput, "command and env hold more than %d bytes", maxStartEnv).With("path", "command")
	}
	st := &guest.Start{
		ID: id, Command: in.Command, Argv: in.Argv, Login: in.Command == "" && len(in.Argv) == 0, User: in.User, Cwd: in.Cwd, Env: in.Env,
		Linger: &guest.Linger{},
	}
	if !in.Pipes {
		st.PTY, st.Background, st.Linger.AfterMS = &guest.Size{Cols: in.Cols, Rows: in.Rows}, true, s.Linger.Milliseconds()
	}
	return st, nil
}

// carry moves bytes both ways until the process has ended and all it wrote was sent, or the connection is lost.
func (s *session) carry(ctx context.Context, offset int64) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel(nil)
	s.wg.Go(func() { cancel(s.receive(s.reading)) })
	wg.Go(func() {
		if err := s.watch(ctx); err != nil {
			cancel(err)
		}
	})
	sent := make(chan error, 2)
	go func() { sent <- s.output(ctx, s.process.Stdout, streamOut, offset) }()
	go func() { sent <- s.output(ctx, s.process.Stderr, streamErr, 0) }()
	stop := context.AfterFunc(ctx, func() { _ = s.process.Close() }) // ends the reads
	defer stop()
	first, second := <-sent, <-sent
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	if err := errors.Join(first, second); err != nil {
		return s.Sandboxes.Explain(ctx, s.sandbox, err)
	}
	p, err := s.process.Wait()
	if err != nil {
		return s.Sandboxes.Explain(ctx, s.sandbox, err)
	}
	return s.say(ctx, "exit", api.TerminalExit{ExitCode: p.ExitCode, Signal: p.Signal})
}

// output sends one stream. Without pipes only the first one has bytes.
func (s *session) output(ctx context.Context, r *guest.AttachedStream, stream byte, offset int64) error {
	buf := make([]byte, 1+guest.FrameBytes)
	buf[0] = stream
	for {
		n, err := r.Read(buf[1:])
		if n > 0 {
			at := r.Offset() - int64(n)
			if at != offset && !s.pipes {
				if err := s.say(ctx, "offset", api.TerminalOffset{Offset: at}); err != nil {
					return err
				}
			}
			offset = at + int64(n)
			data := buf[1 : 1+n]
			if s.pipes {
				data = buf[:1+n]
			}
			if err := s.write(ctx, websocket.MessageBinary, data, writeTime); err != nil {
				return err
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// receive takes what the client sends. It ends with why.
func (s *session) receive(ctx context.Context) error {
	for {
		kind, body, err := s.conn.Read(ctx)
		if err != nil {
			return lost(err)
		}
		if kind == websocket.MessageBinary {
			_, _ = s.process.Write(body) // where it has gone, what is read from it says why
			continue
		}
		var in struct {
			Type, Signal string
			Cols, Rows   int
		}
		if json.Unmarshal(body, &in) != nil {
			return errs.E(errs.InvalidInput, "a text message is no JSON of the form that a terminal takes").Because("bad_message")
		}
		switch in.Type {
		case "resize":
			_ = s.process.Resize(guest.Size{Cols: in.Cols, Rows: in.Rows})
		case "eof":
			_ = s.process.CloseWrite()
		case "signal":
			_ = s.process.Signal(in.Signal)
		default:
			return errs.E(errs.InvalidInput, "there is no message of this type").Because("bad_message")
		}
	}
}

// watch ends a terminal whose key was revoked, whose sandbox is gone, or whose client does not answer any more.
func (s *session) watch(ctx context.Context) error {
	ping, recheck := time.NewTicker(pingEvery), time.NewTicker(s.Recheck)
	defer ping.Stop()
	defer recheck.Stop()
	missed := 0
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-recheck.C:
			if err := s.still(ctx); err != nil && ctx.Err() == nil {
				return err
			}
		case <-ping.C:
			pctx, cancel := context.WithTimeout(ctx, pingEvery)
			err := s.conn.Ping(pctx)
			cancel()
			if missed++; err == nil {
				missed = 0
			}
			// Without a terminal the client may have stopped reading for a reader of its own; the connection itself is watched by the kernel.
			if missed > 2 && !s.pipes {
				return lost(err)
			}
		}
	}
}

// still reports whether the caller may still be here.
func (s *session) still(ctx context.Context) error {
	c := caller.From(ctx)
	_, err := s.Callers.Again(ctx, c.OrgID, c.KeyID)
	if errs.Is(err, errs.Unauthenticated) {
		return err
	}
	if _, err := s.Sandboxes.Resource(ctx, s.sandbox); errs.Is(err, errs.NotFound) {
		return err
	}
	return nil
}

// say sends a text message.
func (s *session) say(ctx context.Context, kind string, v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	text := append([]byte(`{"type":"`+kind+`"`), b[1:]...)
	if len(b) > 2 {
		text = append([]byte(`{"type":"`+kind+`",`), b[1:]...)
	}
	return s.write(ctx, websocket.MessageText, text, lastTime)
}

func (s *session) write(ctx context.Context, kind websocket.MessageType, b []byte, most time.Duration) error {
	s.writing.Lock()
	defer s.writing.Unlock()
	ctx, cancel := context.WithTimeout(ctx, most)
	defer cancel()
	return lost(s.conn.Write(ctx, kind, b))
}

// errLost is the end of a connection whose client is gone. There is nobody to be told.
var errLost = errors.New("the connection is lost")

func lost(err error) error {
	if err == nil {
		return nil
	}
	return errors.Join(errLost, err)
}

// close tells the client how it ended and closes the connection.
func (s *session) close(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil && !errors.Is(cause, context.Canceled) {
		err = cause // the server is about to stop
	}
	if err == nil {
		_ = s.conn.Close(websocket.StatusNormalClosure, "")
		return nil
	}
	if errors.Is(err, errLost) {
		_ = s.conn.CloseNow()
		return nil
	}
	e := errs.From(err)
	shown := api.TerminalError{Code: string(e.Code), Message: e.Message, Suggestion: e.Suggestion, Reason: e.Reason}
	if e.Code == errs.Internal {
		shown.Message = "something failed inside the server"
	}
	lctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), lastTime)
	defer cancel()
	_ = s.say(lctx, "error", shown)
	_ = s.conn.Close(websocket.StatusInternalError, string(e.Code))
	return err
}
