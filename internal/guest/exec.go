//go:build linux

package guest

import (
	"net/http"
	"strconv"
	"syscall"
	"time"
)

// startBytes bounds the body of a start: a long command, its environment and its input, as base64.
const startBytes = 8 << 20

// signals are those that may be sent.
var signals = map[string]syscall.Signal{
	"TERM": syscall.SIGTERM, "KILL": syscall.SIGKILL, "INT": syscall.SIGINT, "HUP": syscall.SIGHUP, "QUIT": syscall.SIGQUIT, "USR1": syscall.SIGUSR1,
	"USR2": syscall.SIGUSR2, "WINCH": syscall.SIGWINCH, "STOP": syscall.SIGSTOP, "CONT": syscall.SIGCONT,
}

// exec starts a process, or finds the one that was, and waits for it.
func (s *Server) exec(w http.ResponseWriter, r *http.Request) {
	var in Start
	wait, err := waitOf(r, -1)
	if err == nil {
		err = decode(w, r, startBytes, &in)
	}
	if err != nil {
		answer(w, nil, err)
		return
	}
	s.touch()
	p, err := s.start(r.Context(), &in)
	if err != nil {
		answer(w, nil, err)
		return
	}
	p.wait(r.Context(), wait)
	s.touch()
	res := ExecResult{Process: p.state()}
	res.Stdout, res.Stderr = p.stdout.excerpt(), p.stderr.excerpt()
	answer(w, res, nil)
}

// startProcess starts a process and does not wait.
func (s *Server) startProcess(w http.ResponseWriter, r *http.Request) {
	var in Start
	if err := decode(w, r, startBytes, &in); err != nil {
		answer(w, nil, err)
		return
	}
	s.touch()
	p, err := s.start(r.Context(), &in)
	if err != nil {
		answer(w, nil, err)
		return
	}
	answer(w, p.state(), nil)
}

// listProcesses answers all that are remembered, oldest first.
func (s *Server) listProcesses(w http.ResponseWriter, _ *http.Request) {
	list := ProcessList{Processes: []Process{}}
	for _, p := range s.processes.all() {
		st := p.state()
		st.Command, st.Cwd = clip(st.Command, listedCommand), clip(st.Cwd, listedCwd)
		list.Processes = append(list.Processes, st)
	}
	answer(w, list, nil)
}

func (s *Server) getProcess(w http.ResponseWriter, r *http.Request) {
	p, err := s.processes.get(r.Context(), r.PathValue("id"))
	if err != nil {
		answer(w, nil, err)
		return
	}
	answer(w, p.state(), nil)
}

// output answers a part of a stream, waiting for its first byte where asked to.
func (s *Server) output(w http.ResponseWriter, r *http.Request) {
	out, err := s.readOutput(r)
	answer(w, out, err)
}

func (s *Server) readOutput(r *http.Request) (*Output, error) {
	p, err := s.processes.get(r.Context(), r.PathValue("id"))
	if err != nil {
		return nil, err
	}
	q := r.URL.Query()
	sp := p.stream(q.Get("stream"))
	if sp == nil {
		return nil, fail(CodeInvalid, "a stream is stdout or stderr")
	}
	offset, err := number(q.Get("offset"), 0, 1<<62)
	if err != nil {
		return nil, err
	}
	limit, err := number(q.Get("limit"), OutputBytes, OutputBytes)
	if err != nil {
		return nil, err
	}
	wait, err := waitOf(r, 0)
	if err != nil {
		return nil, err
	}
	var late <-chan time.Time
	if wait > 0 {
		t := time.NewTimer(wait)
		defer t.Stop()
		late = t.C
	}
	for {
		changed := sp.changed()
		running := p.running() // asked first: what is read after the end is all there is
		data, from, earliest, total := sp.read(offset, int(limit))
		if len(data) > 0 || !running || wait == 0 {
			next := from + int64(len(data))
			return &Output{Data: data, Offset: from, Next: next, Earliest: earliest, EOF: !running && next == total, Process: p.state()}, nil
		}
		select {
		case <-changed:
		case <-p.ended:
		case <-late:
			wait = 0
		case <-r.Context().Done():
			return nil, r.Context().Err()
		}
	}
}

func (s *Server) sendInput(w http.ResponseWriter, r *http.Request) {
	var in Input
	if err := decode(w, r, InputBytes*2, &in); err != nil {
		answer(w, nil, err)
		return
	}
	p, err := s.processes.get(r.Context(), r.PathValue("id"))
	switch {
	case err != nil:
	case len(in.Data) > InputBytes:
		err = fail(CodeTooLarge, "an input has at most %d bytes", InputBytes)
	case !p.running():
		err = fail(CodeEnded, "the process has ended")
	}
	if err != nil {
		answer(w, nil, err)
		return
	}
	s.touch()
	n, err := p.input.write(r.Context(), in.Data, in.EOF)
	answer(w, InputWritten{Written: n}, err)
}

func (s *Server) sendSignal(w http.ResponseWriter, r *http.Request) {
	var in Signal
	if err := decode(w, r, 4<<10, &in); err != nil {
		answer(w, nil, err)
		return
	}
	p, err := s.processes.get(r.Context(), r.PathValue("id"))
	if err != nil {
		answer(w, nil, err)
		return
	}
	sig, ok := signals[in.Name]
	if !ok {
		answer(w, nil, fail(CodeInvalid, "%q is not a signal that can be sent", clip(in.Name, 32)))
		return
	}
	err = p.signal(sig)
	answer(w, p.state(), err)
}

func (s *Server) resize(w http.ResponseWriter, r *http.Request) {
	var in Resize
	if err := decode(w, r, 4<<10, &in); err != nil {
		answer(w, nil, err)
		return
	}
	p, err := s.processes.get(r.Context(), r.PathValue("id"))
	if err == nil && p.pty == nil {
		err = fail(CodeInvalid, "the process has no terminal")
	}
	if err == nil {
		in, err = checkSize(in)
	}
	if err == nil {
		err = p.pty.resize(in)
	}
	answer(w, in, err)
}

// waitOf reads waitMs.
func waitOf(r *http.Request, missing time.Duration) (time.Duration, error) {
	v := r.URL.Query().Get("waitMs")
	if v == "" {
		return missing, nil
	}
	ms, err := number(v, 0, 24*3600*1000)
	return time.Duration(ms) * time.Millisecond, err
}

// number reads a query parameter from 0 to most; a larger one is most.
func number(v string, missing, most int64) (int64, error) {
	if v == "" {
		return missing, nil
	}
	n, err := strconv.ParseInt(v, 10, 64)
	if err != nil || n < 0 {
		return 0, fail(CodeInvalid, "%q is not a number from 0", clip(v, 32))
	}
	return min(n, most), nil
}
