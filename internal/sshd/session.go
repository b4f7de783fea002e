package sshd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"

	"golang.org/x/crypto/ssh"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/guest"
	"github.com/berthrun/berth/internal/id"
)

const maxEnv = 64

// session is one channel that runs something: a shell, a command, SFTP.
type session struct {
	*connection
	ch  ssh.Channel
	env map[string]string
	pty *guest.Size

	mu      sync.Mutex
	process *guest.Attached // nil until it was started
}

// session serves one channel until what it started has ended.
func (c *connection) session(ctx context.Context, nc ssh.NewChannel) {
	ch, requests, err := nc.Accept()
	if err != nil {
		return
	}
	s := &session{connection: c, ch: ch, env: map[string]string{}}
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	for r := range requests {
		start, ok := s.request(r)
		if start != nil {
			s.begin(ctx, r, start, &wg)
			continue
		}
		if r.WantReply {
			_ = r.Reply(ok, nil)
		}
	}
	cancel() // the channel is closed: what it started ends with it
	s.leave()
	wg.Wait()
	_ = ch.Close()
}

// request takes one request of the channel. start is what it asks to run.
func (s *session) request(r *ssh.Request) (start *guest.Start, ok bool) {
	running := s.running()
	switch r.Type {
	case "env":
		var v struct{ Name, Value string }
		if ssh.Unmarshal(r.Payload, &v) != nil || !accepted(v.Name) || len(v.Value) > 32<<10 || len(s.env) >= maxEnv || strings.Contains(v.Value, "\x00") {
			return nil, false
		}
		s.env[v.Name] = v.Value
		return nil, true
	case "pty-req":
		var v struct {
			Term                      string
			Cols, Rows, Width, Height uint32
			Modes                     string
		}
		if ssh.Unmarshal(r.Payload, &v) != nil || s.pty != nil || running != nil {
			return nil, false
		}
		s.pty = &guest.Size{Cols: int(min(v.Cols, 4096)), Rows: int(min(v.Rows, 4096))}
		if v.Term != "" && len(v.Term) <= 64 && !strings.ContainsAny(v.Term, "=\x00") {
			s.env["TERM"] = v.Term
		}
		return nil, true
	case "window-change":
		var v struct{ Cols, Rows, Width, Height uint32 }
		if ssh.Unmarshal(r.Payload, &v) != nil || running == nil {
			return nil, false
		}
		return nil, running.Resize(guest.Size{Cols: int(min(v.Cols, 4096)), Rows: int(min(v.Rows, 4096))}) == nil
	case "signal":
		var v struct{ Name string }
		if ssh.Unmarshal(r.Payload, &v) != nil || running == nil {
			return nil, false
		}
		return nil, running.Signal(v.Name) == nil
	case "shell":
		return s.start(r, func(st *guest.Start) bool { st.Login = true; return true })
	case "exec":
		return s.start(r, func(st *guest.Start) bool {
			var v struct{ Command string }
			ok := ssh.Unmarshal(r.Payload, &v) == nil && v.Command != "" && len(v.Command) <= guest.MaxEnvBytes && !strings.Contains(v.Command, "\x00")
			st.Command = v.Command
			return ok
		})
	case "subsystem":
		return s.start(r, func(st *guest.Start) bool {
			var v struct{ Name string }
			st.SFTP = true
			return ssh.Unmarshal(r.Payload, &v) == nil && v.Name == "sftp" && s.pty == nil
		})
	}
	return nil, false // among them the forwarding of agents and X11
}

func (s *session) start(_ *ssh.Request, fill func(*guest.Start) bool) (*guest.Start, bool) {
	st := &guest.Start{ID: id.New(id.Process), User: s.user, Env: s.env, PTY: s.pty, Background: s.pty != nil, Linger: &guest.Linger{}}
	if s.running() != nil || !fill(st) {
		return nil, false
	}
	return st, true
}

func (s *session) running() *guest.Attached {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.process
}

// begin starts what was asked for and carries its bytes.
func (s *session) begin(ctx context.Context, r *ssh.Request, start *guest.Start, wg *sync.WaitGroup) {
	p, err := s.guest.Attach(ctx, guest.Attach{Start: start})
	if err != nil {
		// A client that is refused says nothing of why. One that is told on standard error does.
		if r.WantReply {
			_ = r.Reply(true, nil)
		}
		e := errs.From(s.Sandboxes.Explain(ctx, s.resource.ID, err))
		_, _ = fmt.Fprintf(s.ch.Stderr(), "berth: %s\r\n", e.Message)
		s.end(127, "")
		return
	}
	s.mu.Lock()
	s.process = p
	s.mu.Unlock()
	if r.WantReply {
		_ = r.Reply(true, nil)
	}
	wg.Go(func() {
		_, _ = io.Copy(p, s.ch)
		_ = p.CloseWrite()
	})
	wg.Go(func() { s.carry(ctx, p) })
}

// carry sends what the process writes, and then how it ended.
func (s *session) carry(ctx context.Context, p *guest.Attached) {
	defer p.Close()
	stop := context.AfterFunc(ctx, func() { _ = p.Close() })
	defer stop()
	var wg sync.WaitGroup
	var out, stderr error
	buf := func() []byte { return make([]byte, guest.FrameBytes) }
	wg.Go(func() { _, out = io.CopyBuffer(onlyWriter{s.ch}, p.Stdout, buf()) })
	wg.Go(func() { _, stderr = io.CopyBuffer(onlyWriter{s.ch.Stderr()}, p.Stderr, buf()) })
	wg.Wait()
	if ctx.Err() != nil {
		return
	}
	res, err := p.Wait()
	if err = errors.Join(out, stderr, err); err != nil {
		// There is no exit status: ssh ends with 255, as it does when a host is lost.
		e := errs.From(s.Sandboxes.Explain(ctx, s.resource.ID, err))
		_, _ = fmt.Fprintf(s.ch.Stderr(), "berth: %s\r\n", e.Message)
		_ = s.ch.Close()
		return
	}
	s.end(res.ExitCode, res.Signal)
}

// end tells the client how it ended and closes the channel.
func (s *session) end(code int, signal string) {
	_ = s.ch.CloseWrite()
	if name, ok := sshSignal(signal); ok {
		_, _ = s.ch.SendRequest("exit-signal", false, ssh.Marshal(struct {
			Name          string
			Core          bool
			Message, Lang string
		}{Name: name}))
	} else {
		_, _ = s.ch.SendRequest("exit-status", false, ssh.Marshal(struct{ Status uint32 }{uint32(code)})) //nolint:gosec // 0 to 255
	}
	_ = s.ch.Close()
}

// leave lets go of the process.
func (s *session) leave() {
	if p := s.running(); p != nil {
		_ = p.Close()
	}
}

// sshSignal is how SSH calls a signal that ended a process: by name, where it has one (RFC 4254, 6.10).
func sshSignal(name string) (string, bool) {
	switch name {
	case "HUP", "INT", "KILL", "QUIT", "TERM", "USR1", "USR2":
		return name, true
	case "4":
		return "ILL", true
	case "6":
		return "ABRT", true
	case "8":
		return "FPE", true
	case "11":
		return "SEGV", true
	case "13":
		return "PIPE", true
	case "14":
		return "ALRM", true
	}
	return "", false
}

// accepted reports whether a client may set a variable: languages, and what git and terminals ask for. Others could change what programs do in ways that
// the sandbox's own env should decide.
func accepted(name string) bool {
	switch name {
	case "LANG", "LANGUAGE", "COLORTERM", "TERM_PROGRAM", "TERM_PROGRAM_VERSION", "TZ", "NO_COLOR":
		return true
	}
	return (strings.HasPrefix(name, "LC_") || strings.HasPrefix(name, "GIT_")) && len(name) <= 64 && !strings.ContainsAny(name, "=\x00")
}

// onlyWriter hides other methods, so that the buffer is used.
type onlyWriter struct{ io.Writer }
