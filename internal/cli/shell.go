package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/signal"
	"slices"
	"syscall"
	"time"

	"github.com/coder/websocket"
	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/berthrun/berth/api"
	"github.com/berthrun/berth/client"
)

const (
	exitLost     = 255              // as ssh ends when its connection is lost
	reconnectFor = 10 * time.Minute // how long a lost terminal is tried to reach again
	interruptFor = 10 * time.Second // how long a program without a terminal has to end after an interrupt
)

// shell is a program in a sandbox that this terminal, or these pipes, are connected to.
type shell struct {
	*app
	conn    *client.Client
	sandbox string
	start   api.TerminalStart
	process string // once it is known
	offset  int64
	tty     bool
	typed   chan []byte // what is typed; closed at its end. Nil: nothing is
	pending []byte      // taken from typed and not yet sent
	left    chan struct{}
}

func (a *app) shellCommand() *cobra.Command {
	var in api.TerminalStart
	var process string
	var noTTY bool
	c := &cobra.Command{
		Use: "shell SANDBOX [flags] [-- PROGRAM [ARG]...]", DisableFlagsInUseLine: true, Short: "Open a shell in a sandbox", Args: cobra.ArbitraryArgs,
		ValidArgsFunction: a.completeFirst(sandboxesFor),
		Long: "Opens a login shell in a sandbox, given by its id or name, or runs a program there with this terminal. A broken connection is made again, and " +
			"the terminal goes on where it was; ~. at the beginning of a line leaves it, and it goes on for 30 minutes.\n\n" +
			"Where input or output is no terminal, both streams go through as they are, and the program ends with the connection.",
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return usagef("%s needs SANDBOX, an id or a name", cmd.CommandPath())
			}
			if len(args) > 1 && cmd.ArgsLenAtDash() != 1 {
				return usagef("what to run goes behind --: %s %s -- %s", cmd.CommandPath(), args[0], args[1])
			}
			in.Argv, a.runs = args[1:], true
			for _, v := range append(slices.Concat(slices.Sorted(maps.Keys(in.Env)), slices.Sorted(maps.Values(in.Env)), args), in.User, in.Cwd, process) {
				if err := isText(v); err != nil {
					return err
				}
			}
			conn, err := a.connect()
			if err != nil {
				return err
			}
			s := &shell{app: a, conn: conn, start: in, process: process, tty: process != "" || !noTTY && isTerminal(a.stdin) && isTerminal(a.stdout)}
			return s.run(cmd.Context(), args[0], true)
		},
	}
	f := c.Flags()
	f.StringVarP(&in.User, "user", "u", "", "whom to run as, for example root (default user)")
	f.StringVarP(&in.Cwd, "cwd", "w", "", "where to start (default /workspace)")
	f.StringToStringVarP(&in.Env, "env", "e", nil, "variables, as `KEY=VALUE`")
	f.StringVar(&process, "process", "", "a `PROCESS_ID` with a terminal to come back to")
	f.BoolVarP(&noTTY, "no-tty", "T", false, "no terminal, even if this is one")
	return c
}

// interactive runs what an exec names with this terminal (-t) and standard input (-i).
func (c *command) interactive(cmd *cobra.Command, in map[string]any) error {
	raw, err := json.Marshal(in)
	if err != nil {
		return fmt.Errorf("encode input: %w", err)
	}
	var e api.ExecIn
	if err := json.Unmarshal(raw, &e); err != nil {
		return usagef("%v", err)
	}
	if e.Stdin != "" || e.TimeoutSeconds != 0 {
		return usagef("-i and -t take neither --stdin nor --timeout-seconds")
	}
	conn, err := c.connect()
	if err != nil {
		return err
	}
	if c.tty && !isTerminal(c.stdin) && c.keepStdin {
		return usagef("-t needs a terminal as standard input; leave it out to send %s as it is", "standard input")
	}
	s := &shell{app: c.app, conn: conn, tty: c.tty, start: api.TerminalStart{Command: e.Command, Argv: e.Argv, Cwd: e.Cwd, Env: e.Env, User: e.User}}
	return s.run(cmd.Context(), e.SandboxID, c.keepStdin)
}

// run connects until the program has ended, and gives its exit code as an ExitError.
func (s *shell) run(ctx context.Context, sandbox string, stdin bool) (err error) {
	if s.sandbox, err = s.sandboxID(ctx, s.conn, sandbox); err != nil {
		return err
	}
	s.start.Pipes = !s.tty
	s.left = make(chan struct{})
	if s.tty {
		s.ownTerm()
		restore, err := s.raw()
		if err != nil {
			return err
		}
		defer restore()
	}
	stop := make(chan struct{})
	defer close(stop)
	if stdin {
		s.typed = make(chan []byte)
		go s.read(stop)
	}
	return s.keep(ctx)
}

// ownTerm tells the program what this terminal understands.
func (s *shell) ownTerm() {
	env := map[string]string{}
	for _, name := range []string{"TERM", "COLORTERM"} {
		if v := s.env(name); v != "" {
			env[name] = v
		}
	}
	for k, v := range s.start.Env {
		env[k] = v
	}
	s.start.Env = env
}

// raw lets every key through to the program.
func (s *shell) raw() (restore func(), err error) {
	f, ok := s.stdin.(*os.File)
	if !ok || !isTerminal(f) {
		return func() {}, nil
	}
	before, err := term.MakeRaw(int(f.Fd()))
	if err != nil {
		return nil, fmt.Errorf("use the terminal: %w", err)
	}
	return func() { _ = term.Restore(int(f.Fd()), before) }, nil
}

// read takes what is typed. What is behind it waits until it was sent.
func (s *shell) read(stop <-chan struct{}) {
	defer close(s.typed)
	esc := &escape{on: s.tty && isTerminal(s.stdin), start: true}
	for {
		buf := make([]byte, 32<<10)
		n, err := s.stdin.Read(buf)
		out, cmd := esc.filter(buf[:n])
		if cmd == '?' {
			fmt.Fprint(s.stderr, "\r\nberth: ~. leaves the terminal, ~~ types ~, ~? shows this\r\n")
		}
		if len(out) > 0 {
			select {
			case s.typed <- out:
			case <-stop:
				return
			}
		}
		if cmd == '.' {
			close(s.left)
			return
		}
		if err != nil {
			return
		}
	}
}

// The ends of a connection.
var (
	errLeft = errors.New("left")
	errGone = errors.New("the connection is lost")
)

// keep connects, and again where the connection is lost.
func (s *shell) keep(ctx context.Context) error {
	wait, since := 500*time.Millisecond, time.Time{}
	for {
		began := time.Now()
		err := s.once(ctx)
		if exit, ok := errors.AsType[ExitError](err); ok || err == nil {
			if exit.Code == 0 {
				return nil
			}
			return exit
		}
		switch {
		case errors.Is(err, errLeft):
			s.lineNote("left; it goes on for 30 minutes: berth sandboxes shell %s --process %s", s.sandbox, s.process)
			return ExitError{exitLost}
		case ctx.Err() != nil, s.process == "", !again(err):
			return err
		case !s.tty:
			s.note("the connection is lost; how the command ended is not known")
			return ExitError{exitLost}
		}
		if time.Since(began) > 10*time.Second {
			wait, since = 500*time.Millisecond, time.Time{}
		}
		if since.IsZero() {
			since = time.Now()
			s.lineNote("the connection is lost; connecting again (~. leaves)")
		}
		if time.Since(since) > reconnectFor {
			return err
		}
		select {
		case <-time.After(wait):
		case <-s.left:
			return ExitError{exitLost}
		case <-ctx.Done():
			return ctx.Err()
		}
		wait = min(2*wait, 8*time.Second)
	}
}

// again reports whether another try may help.
func again(err error) bool {
	switch client.CodeOf(err) {
	case "", "UNAVAILABLE", "HOST_UNAVAILABLE", "BUSY", "RATE_LIMITED", "TIMEOUT":
		return true
	}
	return false
}

func (s *shell) lineNote(format string, args ...any) {
	if s.tty {
		fmt.Fprintf(s.stderr, "\r\nberth: "+format+"\r\n", args...)
		return
	}
	s.note(format, args...)
}

// once serves one connection.
func (s *shell) once(ctx context.Context) error {
	ws, err := client.Socket(ctx, s.conn, api.Terminal, api.TerminalIn{SandboxIn: api.SandboxIn{SandboxID: s.sandbox}, ProcessID: s.process, Offset: s.offset})
	if err != nil {
		return err
	}
	defer func() { _ = ws.CloseNow() }()
	// An interrupt is for the program: it, and not the context, ends the connection.
	inner, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	if s.process == "" {
		s.start.Cols, s.start.Rows = s.size()
		if err := send(inner, ws, "start", s.start); err != nil {
			return errGone
		}
	} else if err := s.resize(inner, ws); err != nil {
		return errGone
	}
	go s.interrupts(ctx, inner, ws, cancel)
	if s.tty {
		changed := make(chan os.Signal, 1)
		signal.Notify(changed, syscall.SIGWINCH)
		defer signal.Stop(changed)
		go s.winch(inner, ws, changed)
	}
	readied := make(chan struct{})
	failed := make(chan error, 1)
	go func() {
		select {
		case <-readied:
			failed <- s.forward(inner, ws)
		case <-inner.Done():
			failed <- nil
		}
	}()
	err = s.receive(inner, ws, readied)
	cancel()
	if ferr := <-failed; errors.Is(ferr, errLeft) {
		return errLeft
	}
	return err
}

// interrupts passes an interrupt of this program on; where that does not end the other, the connection is given up.
func (s *shell) interrupts(ctx, inner context.Context, ws *websocket.Conn, cancel func()) {
	select {
	case <-inner.Done():
		return
	case <-ctx.Done():
	}
	if !s.tty {
		_ = send(inner, ws, "signal", api.TerminalSignal{Signal: "INT"})
		select {
		case <-inner.Done():
			return
		case <-time.After(interruptFor):
		}
	}
	cancel()
}

func (s *shell) size() (cols, rows int) {
	for _, v := range []any{s.stdout, s.stdin, s.stderr} {
		if f, ok := v.(*os.File); ok && isTerminal(f) {
			if cols, rows, err := term.GetSize(int(f.Fd())); err == nil {
				return cols, rows
			}
		}
	}
	return 0, 0
}

func (s *shell) resize(ctx context.Context, ws *websocket.Conn) error {
	cols, rows := s.size()
	return send(ctx, ws, "resize", api.TerminalResize{Cols: cols, Rows: rows})
}

func (s *shell) winch(ctx context.Context, ws *websocket.Conn, changed <-chan os.Signal) {
	for {
		select {
		case <-changed:
			_ = s.resize(ctx, ws)
		case <-ctx.Done():
			return
		}
	}
}

// forward sends what is typed, until its end or that of the connection.
func (s *shell) forward(ctx context.Context, ws *websocket.Conn) error {
	typed := s.typed
	if typed == nil && !s.tty {
		return send(ctx, ws, "eof", struct{}{})
	}
	for {
		if len(s.pending) > 0 {
			if err := ws.Write(ctx, websocket.MessageBinary, s.pending); err != nil {
				return err
			}
			s.pending = nil
		}
		select {
		case b, ok := <-typed:
			if ok {
				s.pending = b
				continue
			}
			select {
			case <-s.left:
				_ = ws.Close(websocket.StatusNormalClosure, "")
				return errLeft
			default:
			}
			typed = nil
			if err := send(ctx, ws, "eof", struct{}{}); err != nil {
				return err
			}
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// receive writes what the program writes and ends with its exit.
func (s *shell) receive(ctx context.Context, ws *websocket.Conn, readied chan struct{}) error {
	for {
		kind, b, err := ws.Read(ctx)
		if err != nil {
			return errGone
		}
		if kind == websocket.MessageBinary {
			if err := s.output(b); err != nil {
				return err
			}
			continue
		}
		var m struct {
			Type string `json:"type"`
			api.TerminalReady
			api.TerminalExit
			api.TerminalError
		}
		if err := json.Unmarshal(b, &m); err != nil {
			return fmt.Errorf("read a message of the server: %w", err)
		}
		switch m.Type {
		case "ready":
			s.process, s.offset = m.ProcessID, m.Offset
			if how := wokeNote(m.Woke); how != "" && !s.quiet {
				s.lineNote("%s", how)
			}
			select {
			case <-readied:
			default:
				close(readied)
			}
		case "offset":
			s.lineNote("%d bytes were not kept", m.Offset-s.offset)
			s.offset = m.Offset
		case "exit":
			_ = ws.Close(websocket.StatusNormalClosure, "")
			return ExitError{m.ExitCode}
		case "error":
			return &client.Error{Code: m.Code, Message: m.Message, Suggestion: m.Suggestion, Reason: m.Reason}
		}
	}
}

func (s *shell) output(b []byte) error {
	to := s.stdout
	if s.start.Pipes {
		if len(b) == 0 {
			return nil
		}
		if b[0] == 2 {
			to = s.stderr
		}
		b = b[1:]
	}
	s.offset += int64(len(b))
	if _, err := to.Write(b); err != nil {
		return ExitError{exitFailed} // whoever read it has enough
	}
	return nil
}

func send(ctx context.Context, ws *websocket.Conn, kind string, v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	members := map[string]any{}
	if err := json.Unmarshal(b, &members); err != nil {
		return err
	}
	members["type"] = kind
	if b, err = json.Marshal(members); err != nil {
		return err
	}
	return ws.Write(ctx, websocket.MessageText, b)
}

// escape finds ~. and its like at the beginnings of lines.
type escape struct {
	on    bool
	start bool // the next byte begins a line
	tilde bool // a ~ is held back
}

// filter gives what is to be sent and the command that was typed, if any. Behind ~. nothing is sent.
func (e *escape) filter(in []byte) (out []byte, cmd byte) {
	if !e.on {
		return in, 0
	}
	for _, c := range in {
		if e.tilde {
			e.tilde = false
			switch c {
			case '.':
				return out, '.'
			case '?':
				cmd = '?'
				e.start = true
				continue
			case '~':
				out = append(out, '~')
				e.start = false
				continue
			}
			out = append(out, '~')
		} else if e.start && c == '~' {
			e.tilde, e.start = true, false
			continue
		}
		out = append(out, c)
		e.start = c == '\r' || c == '\n'
	}
	return out, cmd
}
