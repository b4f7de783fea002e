package supervisor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/runtime"
	"github.com/berthrun/berth/internal/runtime/gvisor/wire"
)

// maxBody bounds what a caller may send.
const maxBody = 1 << 20

// Serve answers on a Unix socket that only root may use, until the context ends or a caller asks for the end. Then it waits for what was
// begun and returns. Sandboxes go on, unless the caller asked for their deletion.
func (s *Supervisor) Serve(ctx context.Context, socket string) error {
	// Whoever had it before is gone: the root folder's lock is ours.
	if err := os.Remove(socket); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("replace socket: %w", err)
	}
	temp := socket + ".new"
	_ = os.Remove(temp)
	ln, err := net.ListenUnix("unix", &net.UnixAddr{Name: temp, Net: "unix"})
	if err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	ln.SetUnlinkOnClose(false)
	// Under its name only once nobody else may open it.
	if err := errors.Join(os.Chmod(temp, 0o600), os.Rename(temp, socket)); err != nil {
		return errors.Join(fmt.Errorf("protect socket: %w", err), ln.Close())
	}
	defer os.Remove(socket)
	ended, end := context.WithCancelCause(ctx)
	defer end(nil)
	if s.cfg.Ready != nil {
		s.cfg.Ready()
	}
	server := &http.Server{Handler: s.handler(end), ReadHeaderTimeout: 10 * time.Second, ErrorLog: nil}
	failed := make(chan error, 1)
	go func() { failed <- server.Serve(ln) }()
	select {
	case err := <-failed:
		return fmt.Errorf("serve: %w", err)
	case <-ended.Done():
	}
	s.log.Info("shutting down", "delete_sandboxes", errors.Is(context.Cause(ended), errDeleteAll))
	if errors.Is(context.Cause(ended), errDeleteAll) {
		err = s.CloseAll(context.WithoutCancel(ctx))
	} else {
		err = s.Close()
	}
	// What was done is still answered; a caller that does not read is not waited for long.
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
	defer cancel()
	if server.Shutdown(last) != nil {
		_ = server.Close()
	}
	return err
}

// The causes of an end that a caller asked for.
var (
	errEnd       = errors.New("asked to end")
	errDeleteAll = errors.New("asked to delete every sandbox and end")
)

func (s *Supervisor) handler(end context.CancelCauseFunc) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET "+wire.PathHello, func(w http.ResponseWriter, _ *http.Request) { answer(w, s.Hello(), nil) })
	mux.HandleFunc("GET "+wire.PathList, func(w http.ResponseWriter, _ *http.Request) { answer(w, s.List(), nil) })
	mux.HandleFunc("GET "+wire.PathWatch, s.watch)
	handle(mux, wire.PathCreate, s.Create)
	handle(mux, wire.PathStart, s.Start)
	handle(mux, wire.PathStop, func(ctx context.Context, in wire.Ref) (runtime.Status, error) {
		return s.Stop(ctx, in.ID, in.Generation, time.Duration(in.GraceMS)*time.Millisecond)
	})
	handle(mux, wire.PathDelete, func(ctx context.Context, in wire.Ref) (struct{}, error) {
		return struct{}{}, s.Delete(ctx, in.ID, in.Generation)
	})
	handle(mux, wire.PathGet, func(_ context.Context, in wire.Ref) (runtime.Status, error) { return s.Get(in.ID) })
	handle(mux, wire.PathStats, func(_ context.Context, in wire.Ref) (runtime.Stats, error) { return s.Stats(in.ID) })
	handle(mux, wire.PathUpdate, func(ctx context.Context, in wire.Ref) (struct{}, error) {
		return struct{}{}, s.Update(ctx, in.ID, in.Generation, in.Resources)
	})
	handle(mux, wire.PathPause, func(ctx context.Context, in wire.Ref) (runtime.Status, error) {
		return s.Pause(ctx, in.ID, in.Generation)
	})
	handle(mux, wire.PathResume, func(ctx context.Context, in wire.Ref) (runtime.Status, error) {
		return s.Resume(ctx, in.ID, in.Generation)
	})
	s.handleSaves(mux)
	s.handleVolumes(mux)
	mux.HandleFunc("POST "+wire.PathDial, s.dial)
	mux.HandleFunc("POST "+wire.PathShutdown, func(w http.ResponseWriter, r *http.Request) {
		cause := errEnd
		if r.URL.Query().Get("sandboxes") == "delete" {
			cause = errDeleteAll
		}
		answer(w, struct{}{}, nil)
		_ = http.NewResponseController(w).Flush()
		end(cause)
	})
	return mux
}

func (s *Supervisor) handleSaves(mux *http.ServeMux) {
	handle(mux, wire.PathSuspend, func(ctx context.Context, in wire.Ref) (runtime.Status, error) {
		return s.Suspend(ctx, in.ID, in.Generation)
	})
	handle(mux, wire.PathWake, s.Wake)
	handle(mux, wire.PathRewind, func(ctx context.Context, in wire.Ref) (runtime.Status, error) {
		return s.Rewind(ctx, in.ID, in.Generation)
	})
	handle(mux, wire.PathSettle, func(ctx context.Context, in wire.Ref) (struct{}, error) {
		return struct{}{}, s.Settle(ctx, in.ID, in.Generation)
	})
	handle(mux, wire.PathSave, func(ctx context.Context, in wire.Ref) (runtime.Save, error) {
		return s.Save(ctx, in.ID, in.Generation, in.Name, in.Save)
	})
	handle(mux, wire.PathClone, func(ctx context.Context, in wire.Clone) (runtime.Status, error) {
		return s.Clone(ctx, in.Spec, in.Name, in.Options)
	})
	mux.HandleFunc("GET "+wire.PathSaves, func(w http.ResponseWriter, _ *http.Request) {
		all, err := s.Saves()
		answer(w, all, err)
	})
	handle(mux, wire.PathRebase, func(ctx context.Context, in wire.Rebase) (runtime.Status, error) {
		return s.Rebase(ctx, in.Spec, in.Options)
	})
	handle(mux, wire.PathForget, func(_ context.Context, in wire.Ref) (struct{}, error) { return struct{}{}, s.Forget(in.Name) })
}

func (s *Supervisor) handleVolumes(mux *http.ServeMux) {
	for path, call := range map[string]func(context.Context, wire.Ref) error{
		wire.PathMakeVolume:   func(_ context.Context, in wire.Ref) error { return s.MakeVolume(in.ID, in.SizeGiB) },
		wire.PathRemoveVolume: func(_ context.Context, in wire.Ref) error { return s.RemoveVolume(in.ID) },
		wire.PathCopyVolume:   func(ctx context.Context, in wire.Ref) error { return s.CopyVolume(ctx, in.ID, in.Name) },
		wire.PathForgetCopy:   func(_ context.Context, in wire.Ref) error { return s.ForgetCopy(in.Name) },
	} {
		handle(mux, path, func(ctx context.Context, in wire.Ref) (struct{}, error) { return struct{}{}, call(ctx, in) })
	}
	mux.HandleFunc("GET "+wire.PathVolumes, func(w http.ResponseWriter, _ *http.Request) {
		all, err := s.Volumes()
		answer(w, all, err)
	})
	mux.HandleFunc("GET "+wire.PathCopies, func(w http.ResponseWriter, _ *http.Request) {
		all, err := s.Copies()
		answer(w, all, err)
	})
}

// handle serves one call: its input is the body, its output the answer.
func handle[In, Out any](mux *http.ServeMux, path string, call func(context.Context, In) (Out, error)) {
	mux.HandleFunc("POST "+path, func(w http.ResponseWriter, r *http.Request) {
		in, err := decode[In](w, r)
		if err != nil {
			answer(w, nil, err)
			return
		}
		out, err := call(r.Context(), in)
		answer(w, out, err)
	})
}

func decode[In any](w http.ResponseWriter, r *http.Request) (In, error) {
	var in In
	d := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxBody))
	if err := d.Decode(&in); err != nil {
		return in, errs.Wrap(errs.InvalidInput, err, "the request is not understood")
	}
	// To the end, so that the server notices a caller that gives up.
	_, err := io.Copy(io.Discard, d.Buffered())
	return in, err
}

func answer(w http.ResponseWriter, out any, err error) {
	w.Header().Set("Content-Type", "application/json")
	if err != nil {
		body := wire.FromError(err)
		w.WriteHeader(body.Code.Status())
		out = body
	}
	_ = json.NewEncoder(w).Encode(out) // a caller that is gone is no error of ours
}

// watch streams changes, a line each, after all that there is and a line that says so.
func (s *Supervisor) watch(w http.ResponseWriter, r *http.Request) {
	queue := s.events.subscribe(s.List)
	defer s.events.unsubscribe(queue)
	w.Header().Set("Content-Type", "application/x-ndjson")
	out, flush := json.NewEncoder(w), http.NewResponseController(w).Flush
	send := func() error {
		for _, st := range queue.Take() {
			if err := out.Encode(wire.Event{Status: &st}); err != nil {
				return err
			}
		}
		return nil
	}
	if send() != nil || out.Encode(wire.Event{Synced: true}) != nil || flush() != nil {
		return
	}
	for {
		select {
		case <-queue.Ready():
		case <-s.events.done:
			_ = errors.Join(send(), flush()) // the last of it; a caller that is gone is no error of ours
			return
		case <-r.Context().Done():
			return
		}
		if send() != nil || flush() != nil {
			return
		}
	}
}

// dial hands over a connection: from then on nothing of it passes through this process.
func (s *Supervisor) dial(w http.ResponseWriter, r *http.Request) {
	in, err := decode[wire.Ref](w, r)
	if err != nil {
		answer(w, nil, err)
		return
	}
	conn, death, err := s.Dial(r.Context(), in.ID, in.Port)
	if err != nil {
		answer(w, nil, err)
		return
	}
	defer conn.Close()
	defer death.Close()
	if err := handOver(w, conn, death); err != nil {
		s.log.Warn("hand over connection", "sandbox", in.ID, "error", err)
	}
}

func handOver(w http.ResponseWriter, conn *net.TCPConn, death *os.File) error {
	caller, _, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return err
	}
	defer caller.Close()
	unixConn, ok := caller.(*net.UnixConn)
	if !ok {
		return errors.New("the caller is not on a unix socket")
	}
	raw, err := conn.SyscallConn()
	if err != nil {
		return err
	}
	rawDeath, err := death.SyscallConn()
	if err != nil {
		return err
	}
	// Within Control both stay open, and as they are: taking them out would make them blocking for whoever gets them.
	var failed error
	err = raw.Control(func(fd uintptr) {
		failed = rawDeath.Control(func(deathFD uintptr) {
			_, _, err = unixConn.WriteMsgUnix([]byte(dialAnswer), unix.UnixRights(int(fd), int(deathFD)), nil)
		})
		failed = errors.Join(failed, err)
	})
	return errors.Join(failed, err)
}

const dialAnswer = "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: berth-dial\r\n\r\n"
