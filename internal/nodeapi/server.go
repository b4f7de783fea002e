package nodeapi

import (
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net"
	"net/http"
	"sync"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/runtime"
)

// dialProtocol is what a connection to a port inside a sandbox is upgraded to: plain bytes.
const dialProtocol = "berth-dial"

// Server serves a node's driver.
type Server struct {
	driver runtime.Driver
	info   func() Info
	log    *slog.Logger
	mux    *http.ServeMux
}

// NewServer makes the handler of a node. info is asked at every look-up, since images come and go.
func NewServer(d runtime.Driver, info func() Info, log *slog.Logger) *Server {
	s := &Server{driver: d, info: info, log: log, mux: http.NewServeMux()}
	s.mux.HandleFunc("GET /node/v1/info", func(w http.ResponseWriter, _ *http.Request) { answer(w, s.info(), nil) })
	handle(s, "create", func(ctx context.Context, b specBody) (any, error) { return d.Create(ctx, b.Spec) })
	handle(s, "start", func(ctx context.Context, b specBody) (any, error) { return d.Start(ctx, b.Spec) })
	handle(s, "stop", func(ctx context.Context, b idBody) (any, error) {
		return d.Stop(ctx, b.ID, b.Generation, runtime.StopOptions{Grace: b.Grace})
	})
	handle(s, "delete", func(ctx context.Context, b idBody) (any, error) { return nil, d.Delete(ctx, b.ID, b.Generation) })
	handle(s, "get", func(ctx context.Context, b idBody) (any, error) { return d.Get(ctx, b.ID) })
	handle(s, "list", func(ctx context.Context, _ idBody) (any, error) { return d.List(ctx) })
	handle(s, "stats", func(ctx context.Context, b idBody) (any, error) { return d.Stats(ctx, b.ID) })
	handle(s, "update", func(ctx context.Context, b idBody) (any, error) {
		if b.Resources == nil {
			return nil, errs.E(errs.InvalidInput, "resources are missing")
		}
		return nil, d.Update(ctx, b.ID, b.Generation, *b.Resources)
	})
	handle(s, "pause", func(ctx context.Context, b idBody) (any, error) { return d.Pause(ctx, b.ID, b.Generation) })
	handle(s, "resume", func(ctx context.Context, b idBody) (any, error) { return d.Resume(ctx, b.ID, b.Generation) })
	handleSaves(s, d)
	handleVolumes(s, d)
	s.mux.HandleFunc("POST /node/v1/watch", s.watch)
	s.mux.HandleFunc("POST /node/v1/dial", s.dial)
	return s
}

// ServeHTTP implements http.Handler.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) { s.mux.ServeHTTP(w, r) }

func handle[B any](s *Server, method string, do func(ctx context.Context, b B) (any, error)) {
	s.mux.HandleFunc("POST /node/v1/"+method, func(w http.ResponseWriter, r *http.Request) {
		var b B
		if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxBody)).Decode(&b); err != nil {
			writeError(w, errs.Wrap(errs.InvalidInput, err, "the body cannot be read"))
			return
		}
		v, err := do(r.Context(), b)
		if err != nil && errs.Is(err, errs.Internal) && r.Context().Err() == nil {
			s.log.Error("node call failed", "method", method, "error", err)
		}
		answer(w, v, err)
	})
}

func answer(w http.ResponseWriter, v any, err error) {
	if err != nil {
		writeError(w, err)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(v)
}

func (s *Server) watch(w http.ResponseWriter, r *http.Request) {
	events, err := s.driver.Watch(r.Context())
	if err != nil {
		writeError(w, err)
		return
	}
	w.Header().Set("Content-Type", "application/jsonl")
	w.WriteHeader(http.StatusOK)
	out := json.NewEncoder(w)
	rc := http.NewResponseController(w)
	_ = rc.Flush()
	for e := range events {
		if out.Encode(e) != nil || rc.Flush() != nil {
			return
		}
	}
}

func (s *Server) dial(w http.ResponseWriter, r *http.Request) {
	var b idBody
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxBody)).Decode(&b); err != nil {
		writeError(w, errs.Wrap(errs.InvalidInput, err, "the body cannot be read"))
		return
	}
	inside, err := s.driver.Dial(r.Context(), b.ID, b.Port)
	if err != nil {
		writeError(w, err)
		return
	}
	defer inside.Close()
	hijacker, ok := w.(http.Hijacker)
	if !ok {
		writeError(w, errs.E(errs.Unavailable, "this connection cannot be upgraded"))
		return
	}
	outside, buffered, err := hijacker.Hijack()
	if err != nil {
		s.log.Error("node dial not upgraded", "error", err)
		return
	}
	defer outside.Close()
	if _, err := io.WriteString(outside, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: "+dialProtocol+"\r\n\r\n"); err != nil {
		return
	}
	if n := buffered.Reader.Buffered(); n > 0 {
		early, _ := buffered.Reader.Peek(n)
		if _, err := inside.Write(early); err != nil {
			return
		}
	}
	join(outside, inside)
}

// join copies both ways until both directions have ended; an end on one side is passed on as an end of writing on the other.
func join(a, b net.Conn) {
	var wg sync.WaitGroup
	copyOne := func(dst, src net.Conn) {
		_, err := io.Copy(dst, src)
		if c, ok := dst.(interface{ CloseWrite() error }); ok && err == nil {
			_ = c.CloseWrite()
			return
		}
		_ = dst.Close()
		_ = src.Close()
	}
	wg.Go(func() { copyOne(a, b) })
	wg.Go(func() { copyOne(b, a) })
	wg.Wait()
}
