//go:build linux

package guest

import (
	"encoding/json"
	"net/http"
	"os"
	"syscall"
	"time"
)

const (
	maxGrace   = 5 * time.Minute
	gracePause = 10 * time.Millisecond
	killWait   = 5 * time.Second
)

// shutdown ends everything, syncs, answers, and lets the guest end.
func (s *Server) shutdown(w http.ResponseWriter, r *http.Request) {
	var in Shutdown
	if err := decode(w, r, smallRequest, &in); err != nil {
		answer(w, nil, err)
		return
	}
	if in.GraceMS < 0 {
		answer(w, nil, fail(CodeInvalid, "a grace time cannot be negative"))
		return
	}
	s.endAll(min(time.Duration(in.GraceMS)*time.Millisecond, maxGrace))
	s.syncDisk()
	defer s.downOnce.Do(func() { close(s.down) })
	if in.Export {
		s.exported.Store(true)
		s.writeExport(w)
		return
	}
	answer(w, struct{}{}, nil)
}

// Exported reports whether the host was sent an export when it shut the guest down: it needs a moment to read it.
func (s *Server) Exported() bool { return s.exported.Load() }

// endAll asks everything to end, waits, and kills what is left.
func (s *Server) endAll(grace time.Duration) {
	s.processes.close()
	s.signalAll(syscall.SIGTERM)
	s.signalAll(syscall.SIGCONT) // one that is stopped would not see the TERM
	deadline := time.Now().Add(grace)
	for s.anyAlive() && time.Now().Before(deadline) {
		time.Sleep(gracePause)
	}
	for _, p := range s.processes.all() {
		_ = p.kill()
	}
	s.signalAll(syscall.SIGKILL)
	s.attachments.close() // whoever does not read on must not hold this up
	s.forwards.close()
	late := time.NewTimer(killWait)
	defer late.Stop()
	for _, p := range s.processes.all() {
		select {
		case <-p.ended:
		case <-late.C:
			return
		}
	}
}

// signalAll signals everything in the sandbox, or in a test what was started here.
func (s *Server) signalAll(sig syscall.Signal) {
	if s.cfg.Init {
		_ = syscall.Kill(-1, sig)
		return
	}
	for _, p := range s.processes.all() {
		_ = p.signal(sig)
	}
}

// anyAlive reports whether anything is still there.
func (s *Server) anyAlive() bool {
	if s.cfg.Init {
		for _, t := range tasks() {
			if t.pid != os.Getpid() && !t.dead {
				return true
			}
		}
		return false
	}
	for _, p := range s.processes.all() {
		if p.running() {
			return true
		}
	}
	return false
}

// export answers all that is remembered of processes.
func (s *Server) export(w http.ResponseWriter, _ *http.Request) { s.writeExport(w) }

func (s *Server) writeExport(w http.ResponseWriter) {
	w.Header().Set("Content-Type", "application/x-ndjson")
	enc := json.NewEncoder(w)
	n := 0
	for _, p := range s.processes.all() {
		st := p.state()
		if enc.Encode(ExportRecord{Process: &st}) != nil {
			return
		}
		n++
		for _, stream := range []string{"stdout", "stderr"} {
			head, ring, at, marks := p.stream(stream).headAndRing()
			// The beginning that was saved apart may reach into what the ring holds.
			if int64(len(head)) > at {
				head = head[:at]
			}
			if exportChunks(enc, stream, 0, head, nil) != nil || exportChunks(enc, stream, at, ring, marks) != nil {
				return
			}
		}
	}
	_ = enc.Encode(ExportRecord{End: &ExportEnd{Processes: n}})
}

// exportChunks writes one run of bytes, parted where it has stamps.
func exportChunks(enc *json.Encoder, stream string, at int64, data []byte, marks stamps) error {
	stamp := int64(0)
	for len(data) > 0 {
		for len(marks) > 0 && marks[0][0] <= at {
			stamp, marks = marks[0][1], marks[1:]
		}
		n := min(len(data), OutputBytes)
		if len(marks) > 0 {
			n = int(min(int64(n), marks[0][0]-at))
		}
		if err := enc.Encode(ExportRecord{Chunk: &ExportChunk{Stream: stream, Offset: at, AtMicros: stamp, Data: data[:n]}}); err != nil {
			return err
		}
		at, data = at+int64(n), data[n:]
	}
	return nil
}
