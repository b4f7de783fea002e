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
		BaseContext:       func(net.Listener) context.Context { return ctx },
	}
}
