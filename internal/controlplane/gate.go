package controlplane

import (
	"context"
	"net/http"
	"strings"
	"sync"

	"github.com/berthrun/berth/internal/errs"
)

// gate counts the requests that are being answered, and lets none begin once the server is ending.
type gate struct {
	mu     sync.Mutex
	now    int
	ending bool
	quiet  chan struct{} // closed when ending and nothing is left
}

func newGate() *gate { return &gate{quiet: make(chan struct{})} }

func (g *gate) enter() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.ending {
		return false
	}
	g.now++
	return true
}

func (g *gate) leave() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.now--
	if g.ending && g.now == 0 {
		close(g.quiet)
	}
}

// end refuses what has not begun, and waits for the rest; it gives how many are left when the context ends first.
func (g *gate) end(ctx context.Context) int {
	g.mu.Lock()
	if !g.ending {
		g.ending = true
		if g.now == 0 {
			close(g.quiet)
		}
	}
	g.mu.Unlock()
	select {
	case <-g.quiet:
		return 0
	case <-ctx.Done():
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.now
}

func (g *gate) isEnding() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.ending
}

func (g *gate) open() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.now
}

// guard lets requests through but those that begin too late. Probes are always answered, and never waited for.
func (g *gate) guard(next http.Handler, mcpBase string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/healthz", "/readyz", "/metrics":
			next.ServeHTTP(w, r)
			return
		}
		if !g.enter() {
			refuseLate(w, r, mcpBase)
			return
		}
		defer g.leave()
		next.ServeHTTP(w, r)
	})
}

// refuseLate answers in the form of the face that was called.
func refuseLate(w http.ResponseWriter, r *http.Request, mcpBase string) {
	h := w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("Retry-After", "2")
	h.Set("Connection", "close")
	body := `{"error":{"code":"UNAVAILABLE","message":"the server is ending","reason":"shutting_down","retryAfterMs":2000,"suggestion":"Try again in a moment: nothing was done."}}`
	if r.URL.Path == mcpBase || strings.HasPrefix(r.URL.Path, mcpBase+"/") {
		body = `{"jsonrpc":"2.0","id":null,"error":{"code":-32000,"message":"the server is ending; try again in a moment: nothing was done"}}`
	}
	w.WriteHeader(http.StatusServiceUnavailable)
	_, _ = w.Write([]byte(body)) // a caller that has gone needs no answer
}

// errEnding makes /readyz say that no new calls are taken.
func errEnding() error {
	return errs.E(errs.Unavailable, "the server is ending").Because("shutting_down").Suggest("Send new calls to another server.")
}

// Quiesce refuses new calls, makes /readyz say so, and waits for those that are being answered. It gives how many are left when the context ends first.
func (p *Plane) Quiesce(ctx context.Context) int { return p.gate.end(ctx) }
