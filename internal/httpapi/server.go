package httpapi

import (
	"context"
	"log/slog"
	"net"
	"net/http"
	"time"
)

// NewServer makes the HTTP server that faces are served by. Headers must come within 10 s; there is no limit on a whole request, since calls
// wait: bodies and answers have limits of their own. ctx is the parent of every request's context.
func NewServer(ctx context.Context, h http.Handler, log *slog.Logger) *http.Server {
	return &http.Server{
		Handler:           h,
		ReadHeaderTimeout: 10 * time.Second,
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    64 << 10,
		ErrorLog:          slog.NewLogLogger(log.Handler(), slog.LevelWarn),
		ConnState:         Fresh,
		BaseContext:       func(net.Listener) context.Context { return ctx },
	}
}

// Fresh takes the deadlines of an answer away once it is sent, for http.Server.ConnState: they must not reach into the next one.
func Fresh(c net.Conn, s http.ConnState) {
	if s == http.StateIdle {
		_ = c.SetWriteDeadline(time.Time{})
	}
}
